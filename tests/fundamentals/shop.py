"""Where transactions are tried: a store with a table of the shop's own beside it, and jobs in a worker's hands.

What tests must do differently on each kind of store is told by `SqliteShop` here and `PostgresShop` in
`postgres_shop.py`; `conftest.py` says on which of them a test runs.
"""

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from shigoto import Context, JobHandle, Shigoto, State, Task
from shigoto import transactions as face
from shigoto.context import JobServices, Signals
from shigoto.engine.protocol import Engine
from shigoto.engine.sqlite import SqliteEngine
from shigoto.engine.sqlite.transaction import Block
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.worker import LEASE, Announcement, Ending, Settlement, SweepOrder, Verdict, Want
from shigoto.testing.store import VirtualClock

SHORT = 0.2  # seconds that a block may last where tests wait for its end


class Run:
    """One job in a worker's hands, as its handler and its worker see it."""

    def __init__(self, shop: "Shop", handle: JobHandle[Any], lease: Lease) -> None:
        self.shop = shop
        self.handle = handle
        self.lease = lease
        self.signals = Signals()
        encode = shop.pay.signature.encode_result
        self.context = Context(lease, self.signals, JobServices(shop.engine, shop.worker), encode)

    @property
    def state(self) -> State:
        return self.handle.status()

    def settle(self, ending: Ending) -> Verdict:
        """What the worker says when the handler has ended."""
        settlement = Settlement(
            number=self.lease.number, token=self.lease.token, queue="default", ending=ending, delay=0
        )
        return self.shop.engine.run(self.shop.engine.settle(self.shop.worker, [settlement]))[0]


class Shop:
    """An app on a store, which has a table `paid` beside the jobs."""

    insert: str  # of an invoice that is paid
    endless: str  # a statement that does not end by itself
    done: str  # the table of the store that a completion is written to
    no_such_table: str  # what is said without it
    integrity_error: type[Exception]

    def __init__(self, engine: Engine, clock: VirtualClock) -> None:
        self.clock = clock
        self.engine = engine
        self.app = Shigoto(engine=engine)
        self.worker = self.announce()
        self.pay = _pay(self.app)
        self.receipt = _receipt(self.app)

    def connect(self) -> Any:
        """A connection of the caller's own."""
        raise NotImplementedError

    def paid(self) -> list[int]:
        """The invoices that were paid."""
        raise NotImplementedError

    def until_free(self) -> None:
        """Wait until no block is open in the store."""
        raise NotImplementedError

    def begin_statement(self, tx: Any, start: Callable[[], None]) -> None:
        """Start a statement of the block elsewhere, and wait until it is at work."""
        raise NotImplementedError

    def shorten_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let blocks last no longer than `SHORT`."""
        raise NotImplementedError

    def lose_the_answer(self, monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> str:
        """Let the answer to a commit be lost, whether it is done or not; returns what is said about it."""
        raise NotImplementedError

    def hold_commits(
        self, monkeypatch: pytest.MonkeyPatch, committing: threading.Event, go_on: threading.Event
    ) -> None:
        """Let a commit of an async block tell that it begins, and wait until it may."""
        raise NotImplementedError

    def check(self) -> None:
        """Look for damage, where a store can be asked for it."""

    def close(self) -> None:
        self.engine.close()

    def announce(self) -> UUID:
        worker = uuid7()
        announcement = Announcement(
            id=worker, name="w", tasks=("pay", "receipt"), queues=None, slots=9, version="1"
        )
        self.engine.run(self.engine.announce(announcement))
        return worker

    def start(self, **options: Any) -> Run:
        """A job of `pay`, claimed."""
        handle = self.pay.using(**options).enqueue(1)
        [lease] = self.claim()
        return Run(self, handle, lease)

    def claim(self) -> list[Lease]:
        return self.engine.run(self.engine.claim(self.worker, [Want(tasks=("pay",), queues=None, limit=1)]))

    def fence(self) -> None:
        """Let the worker's lease run out, so that its jobs are somebody else's."""
        self.clock.advance(LEASE + 1)
        self.engine.run(self.engine.sweep(SweepOrder(fence=(self.worker,))))

    def receipts(self) -> int:
        return len(self.app.find(task="receipt"))


class SqliteShop(Shop):
    """One on a file of SQLite's."""

    insert = "INSERT INTO paid VALUES (?)"
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    done = "shigoto_done"
    no_such_table = "no such table"
    integrity_error = sqlite3.IntegrityError

    def __init__(self, folder: Path) -> None:
        clock = VirtualClock()
        self.path = folder / "shop.db"
        super().__init__(SqliteEngine(self.path, clock=clock), clock)
        with closing(self.connect()) as connection, connection:
            connection.execute("CREATE TABLE paid (invoice INTEGER PRIMARY KEY)")

    def connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection = self.app.connect()
        return connection

    def paid(self) -> list[int]:
        with closing(self.connect()) as connection:
            return [row[0] for row in connection.execute("SELECT invoice FROM paid ORDER BY invoice")]

    def until_free(self) -> None:
        """Take the write lock, which an open block would have."""
        with closing(self.connect()) as connection:
            connection.execute("PRAGMA busy_timeout = 10000")
            connection.execute("BEGIN IMMEDIATE")

    def begin_statement(self, tx: sqlite3.Connection, start: Callable[[], None]) -> None:
        at_work = threading.Event()
        tx.set_progress_handler(at_work.set, 1_000)
        start()
        assert at_work.wait(10)

    def shorten_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert face.LIMIT == 5.0
        monkeypatch.setattr(face, "LIMIT", SHORT)

    def lose_the_answer(self, monkeypatch: pytest.MonkeyPatch, *, committed: bool) -> str:
        plainly = Block._plainly

        def lose(block: Block, statement: str) -> None:
            if statement != "COMMIT" or committed:
                plainly(block, statement)
            if statement == "COMMIT":
                raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(Block, "_plainly", lose)
        return "disk I/O error"

    def hold_commits(
        self, monkeypatch: pytest.MonkeyPatch, committing: threading.Event, go_on: threading.Event
    ) -> None:
        commit = Block._commit

        def slowly(block: Block) -> Any:
            committing.set()
            assert go_on.wait(10)
            return commit(block)

        monkeypatch.setattr(Block, "_commit", slowly)

    def check(self) -> None:
        with closing(self.connect()) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def pay(run: Run, invoice: int = 1) -> None:
    """What a handler does: an effect, a further job, a result."""
    with run.context.transaction() as tx:
        tx.execute(run.shop.insert, (invoice,))
        run.shop.receipt.using(connection=tx).enqueue(invoice)
        tx.finish(f"paid {invoice}")


async def apay(run: Run, invoice: int = 1) -> None:
    """What an async handler does."""
    async with run.context.transaction() as tx:
        await tx.execute(run.shop.insert, (invoice,))
        await run.shop.receipt.using(connection=tx).aenqueue(invoice)
        tx.finish(f"paid {invoice}")


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for what somebody else does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _pay(app: Shigoto) -> Task[[int], str]:
    @app.task
    def pay(invoice: int) -> str:
        return f"paid {invoice}"

    return pay


def _receipt(app: Shigoto) -> Task[[int], None]:
    @app.task
    def receipt(invoice: int) -> None: ...

    return receipt
