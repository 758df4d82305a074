"""Where transaction blocks get their connections from: pools of their own, so that beats and settles never wait.

Whoever finds all of them in use waits in line. A block that stays open for too long is ended by the watchdog.
"""

import asyncio
import os
import threading
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet

from shigoto.engine.postgres.address import CONNECT_FOR
from shigoto.engine.postgres.connecting import Connector
from shigoto.engine.postgres.driver import Driver
from shigoto.engine.postgres.joining import Joiner
from shigoto.engine.postgres.pools import LoopPool, ThreadPool
from shigoto.engine.sql.watchdog import Watchdog


class Borrower(Protocol):
    """A block, as far as its process is concerned."""

    def disown(self) -> None:
        """This is a forked child's copy: nothing may touch the parent's connection any more."""
        ...


class Lending:
    """The blocks of one process on one store."""

    def __init__(self, driver: Driver, joiner: Joiner) -> None:
        self.driver = driver
        self.store = driver.settings.shown
        self._joiner = joiner
        self._blocks: WeakSet[Borrower] = WeakSet()
        self._begin_again()
        _all.add(self)

    def _begin_again(self) -> None:
        settings = self.driver.settings
        patience = min(float(CONNECT_FOR), self.driver.deadline)
        # What a block prepares is gone after it: so is what we would have prepared.
        self._connector = Connector(self.store, settings.parameters, prepares=False, patience=patience)
        self.threads = self._new_pool()
        self.watchdog = Watchdog()
        self._loops: dict[asyncio.AbstractEventLoop, LoopPool] = {}
        self._guard = threading.Lock()

    def _new_pool(self) -> ThreadPool:
        return ThreadPool(self.store, self.driver.settings.on_a_loop, self._connector.open)

    def on_loop(self) -> LoopPool:
        """The pool of the running event loop."""
        loop = asyncio.get_running_loop()
        pool = self._loops.get(loop)
        if pool is None:
            pool = LoopPool(self.store, self.driver.settings.on_a_loop, self._connector.aopen)
            with self._guard:
                gone = [self._loops.pop(other) for other in list(self._loops) if other.is_closed()]
                self._loops[loop] = pool
            for other in gone:
                other.close()
        return pool

    def sign_in(self, block: Borrower, lent: object) -> None:
        """A block has begun, with this connection."""
        self._blocks.add(block)
        self._joiner.trust(lent)

    def sign_out(self, block: Borrower) -> None:
        """A block has ended."""
        self._blocks.discard(block)

    def close(self) -> None:
        """Close what nobody uses now, and the rest when it comes back. A later block opens again."""
        self.watchdog.stop()
        with self._guard:
            self.watchdog = Watchdog()
            loops, self._loops = self._loops, {}
            threads, self.threads = self.threads, self._new_pool()
        threads.close()
        for loop, pool in loops.items():
            if not loop.is_running() or loop is _running_loop():
                pool.close()
            else:
                with suppress(RuntimeError):  # it was closed in this moment, and its connections with it
                    loop.call_soon_threadsafe(pool.close)

    def after_fork_in_child(self) -> None:
        """Begin again, without the parent's connections."""
        for block in list(self._blocks):
            block.disown()
        self._blocks = WeakSet()
        self.threads.disown()
        for pool in self._loops.values():
            pool.disown()
        self._begin_again()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# A fork happens to all engines of a process at once.
_all: "WeakSet[Lending]" = WeakSet()


def _in_child() -> None:
    for lending in list(_all):
        lending.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
