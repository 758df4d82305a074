"""Who owns connections: each event loop its own, which are closed on it, and each process, which leaves those of its
parent alone.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet


class Belonging(Protocol):
    """What a loop has."""

    def close(self) -> None:
        """Close it, on its loop, or when that does not run any more."""
        ...

    def disown(self) -> None:
        """In a forked child: let go of the parent's connections."""
        ...


B = TypeVar("B", bound=Belonging)


class EachLoop(Generic[B]):
    """One of these for each event loop, made on it when it is first needed."""

    def __init__(self, make: Callable[[], B]) -> None:
        self._make = make
        self._guard = threading.Lock()
        self._of: dict[asyncio.AbstractEventLoop, B] = {}

    def here(self) -> B:
        """That of the running loop. Closes what belongs to loops that have ended."""
        loop = asyncio.get_running_loop()
        own = self._of.get(loop)
        if own is None:
            own = self._make()
            with self._guard:
                gone = [self._of.pop(other) for other in list(self._of) if other.is_closed()]
                self._of[loop] = own
            for other in gone:
                other.close()
        return own

    def close(self) -> None:
        """Close all: what belongs to a loop of another thread there. A later call makes anew."""
        with self._guard:
            closing, self._of = self._of, {}
        for loop, own in closing.items():
            if not loop.is_running() or loop is _running_loop():
                own.close()
            else:
                with suppress(RuntimeError):  # it was closed in this moment, and its connections with it
                    loop.call_soon_threadsafe(own.close)

    def disown(self) -> None:
        """In a forked child: let go of all that the parent's loops have."""
        for own in self._of.values():
            own.disown()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Forked(Protocol):
    """What begins again in a forked child."""

    def after_fork_in_child(self) -> None:
        """Begin again, without the parent's connections and with locks that nobody holds."""
        ...


# A fork happens to all engines of a process at once.
_all: "WeakSet[Forked]" = WeakSet()


def begins_again_in_child(owner: Forked) -> None:
    """Tell it of forks, for as long as it lives."""
    _all.add(owner)


def _in_child() -> None:
    for owner in list(_all):
        owner.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
