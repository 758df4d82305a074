"""Where transactions are tried: a store with a table of the shop's own beside it, and jobs in a worker's hands."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

from shigoto import Context, JobHandle, Shigoto, State, Task
from shigoto.context import Desk, Signals
from shigoto.engine.protocol import Engine
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.outcome import Ending, Settlement, Verdict
from shigoto.model.worker import LEASE, Announcement, SweepOrder, Want
from shigoto.testing.clock import VirtualClock


class Run:
    """One job in a worker's hands, as its handler and its worker see it."""

    def __init__(self, shop: "AnyShop", handle: JobHandle[Any], lease: Lease) -> None:
        self.shop = shop
        self.handle = handle
        self.lease = lease
        self.signals = Signals()
        encode = shop.pay.signature.encode_result
        self.context = Context(lease, self.signals, Desk(shop.engine, shop.worker), encode)

    @property
    def state(self) -> State:
        return self.handle.status()

    def settle(self, ending: Ending) -> Verdict:
        """What the worker says when the handler has ended."""
        settlement = Settlement(
            number=self.lease.number, token=self.lease.token, queue="default", ending=ending, delay=0
        )
        return self.shop.engine.run(self.shop.engine.settle(self.shop.worker, [settlement]))[0]


class AnyShop:
    """An app on a store, which has a table `paid` beside the jobs."""

    insert = "INSERT INTO paid VALUES (?)"
    integrity_error: type[Exception] = sqlite3.IntegrityError

    def __init__(self, engine: Engine, clock: VirtualClock) -> None:
        self.clock = clock
        self.engine = engine
        self.app = Shigoto(engine=engine)
        self.worker = self.announce()
        self.pay = _pay(self.app)
        self.receipt = _receipt(self.app)

    def paid(self) -> list[int]:
        """The invoices that were paid."""
        raise NotImplementedError

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


class Shop(AnyShop):
    """One on a file of SQLite's."""

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


def _pay(app: Shigoto) -> Task[[int], str]:
    @app.task
    def pay(invoice: int) -> str:
        return f"paid {invoice}"

    return pay


def _receipt(app: Shigoto) -> Task[[int], None]:
    @app.task
    def receipt(invoice: int) -> None: ...

    return receipt
