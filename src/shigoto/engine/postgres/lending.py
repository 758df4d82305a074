"""Where transaction blocks get their connections from: pools of their own, so that beats and settles never wait.

Whoever finds all of them in use waits in line. A block that stays open for too long is ended by the watchdog.
"""

from typing import Protocol
from weakref import WeakSet

from shigoto.engine.postgres.belongings import EachLoop, begins_again_in_child
from shigoto.engine.postgres.connecting import Connector
from shigoto.engine.postgres.driver import Driver
from shigoto.engine.postgres.joining import Joiner
from shigoto.engine.postgres.pools import LoopPool, ThreadPool
from shigoto.engine.sql.block import Watchdog


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
        begins_again_in_child(self)

    def _begin_again(self) -> None:
        settings = self.driver.settings
        patience = min(settings.patience, self.driver.deadline)
        # What a block prepares is gone after it: so is what we would have prepared.
        self._connector = Connector(self.store, settings.parameters, prepares=False, patience=patience)
        self.threads = self._new_pool()
        self.watchdog = Watchdog()
        self._loops = EachLoop(lambda: LoopPool(self.store, settings.on_a_loop, self._connector.aopen))

    def _new_pool(self) -> ThreadPool:
        return ThreadPool(self.store, self.driver.settings.on_a_loop, self._connector.open)

    def on_loop(self) -> LoopPool:
        """The pool of the running event loop."""
        return self._loops.here()

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
        self.watchdog = Watchdog()
        threads, self.threads = self.threads, self._new_pool()
        threads.close()
        self._loops.close()

    def after_fork_in_child(self) -> None:
        """Begin again, without the parent's connections."""
        for block in list(self._blocks):
            block.disown()
        self._blocks = WeakSet()
        self.threads.disown()
        self._loops.disown()
        self._begin_again()
