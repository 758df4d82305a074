"""psycopg's own connections, by which ours are opened: nothing of them is left behind by a fork, or by whoever waits no
longer."""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Self, TypeVar

import psycopg
from psycopg.abc import PQGenConn

from shigoto.engine.postgres.belongings import begins_again_in_child

C = TypeVar("C")


class ThreadsInner(psycopg.Connection[Any]):
    """psycopg's connection, without its warning when it goes: a forked child must not close what it has inherited."""

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> PQGenConn[Self]:
        return _noting(super()._connect_gen(*args, **options))

    def __del__(self, _: Any = None, /) -> None: ...


class LoopsInner(psycopg.AsyncConnection[Any]):
    """The same for event loops."""

    @classmethod
    def _connect_gen(cls, *args: Any, **options: Any) -> PQGenConn[Self]:
        attempt = _noting(super()._connect_gen(*args, **options))
        _begun.get().append(attempt)
        return attempt

    def __del__(self, _: Any = None, /) -> None: ...


_begun: ContextVar[list[PQGenConn[Any]]] = ContextVar("_begun")


@contextmanager
def connecting() -> Generator[None]:
    """Around whoever connects on an event loop: what he does not wait for any more is closed. psycopg leaves that to
    the garbage collector, until which the server would wait for a password."""
    begun: list[PQGenConn[Any]] = []
    _begun.set(begun)  # and not reset: who is thrown away may end in another context
    try:
        yield
    finally:
        while begun:
            begun.pop().close()


class _Sockets:
    """The sockets of this process, from the moment when they begin to connect: nobody else has them yet, and a child
    that is forked by another thread just then would keep them open."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # by their descriptors, which others may have by now: what they were

    def note(self, descriptor: int) -> None:
        """This one is ours."""
        with suppress(OSError):
            self._known[descriptor] = os.fstat(descriptor).st_ino

    def after_fork_in_child(self) -> None:
        """Close those that are still what they were."""
        known, self._known = self._known, {}
        for descriptor, inode in known.items():
            with suppress(OSError):
                if os.fstat(descriptor).st_ino == inode:
                    os.close(descriptor)


_sockets = _Sockets()
begins_again_in_child(_sockets)


def _noting(attempt: PQGenConn[C]) -> PQGenConn[C]:
    try:
        waiting_for = next(attempt)
        while True:
            _sockets.note(waiting_for[0])
            waiting_for = attempt.send((yield waiting_for))
    except StopIteration as stop:
        connection: C = stop.value
        return connection
    finally:
        attempt.close()
