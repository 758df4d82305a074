"""Kills a transactional handler at one system call after the other, and looks at what is left.

    python -m tests.journeys.killing FOLDER sync|async|apart SECONDS

For each n, a child process takes the job of a fresh store and runs its handler. From the start of the block on, this
process steps it from system call to system call (ptrace), and kills it (SIGKILL) before the n-th one. Then it opens the
store and looks: effect, completion and further job are all there, or nothing is, or it is torn. Another worker takes
over, and there must be exactly one effect. It goes on until children survive, and prints what it saw as JSON.

`apart` is a handler without a transaction, to see that tears are seen. If all of it would take longer than SECONDS,
only every second n is tried, or every third, and so on.
"""

import asyncio
import json
import shutil
import signal
import sqlite3
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import UUID

from faults.tools.ptrace import begin, end, run_child
from shigoto import Context, Shigoto, State
from shigoto.context import JobServices, Signals
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.time import host_clock
from shigoto.model.worker import Announcement, Ending, Settlement, SweepOrder, Want

ENOUGH = 3  # survivors in a row: how many calls a block takes varies a little

FIRST, SECOND = UUID(int=1), UUID(int=2)
Seen = tuple[list[int], int, State]

ALL: Seen = ([1], 1, State.COMPLETED)
NOTHING: Seen = ([], 0, State.PROCESSING)


class Store:
    """A store with one job of `pay`, and the table that the handler writes to."""

    def __init__(self, path: Path, later: int = 0) -> None:
        self.path = path
        self.engine = SqliteEngine(path, clock=lambda: host_clock() + later)
        self.app = Shigoto(engine=self.engine)

        @self.app.task
        def pay(invoice: int) -> str:
            return f"paid {invoice}"

        @self.app.task
        def receipt(invoice: int) -> None: ...

        self.pay, self.receipt = pay, receipt

    def context(self, worker: UUID) -> Context | None:
        """The job, taken by this worker; None if nobody can have it."""
        engine = self.engine
        known = Announcement(id=worker, name="w", tasks=("pay", "receipt"), queues=None, slots=1, version="1")
        engine.run(engine.announce(known))
        leases = engine.run(engine.claim(worker, [Want(tasks=("pay",), queues=None, limit=1)]))
        encode = self.pay.signature.encode_result
        return Context(leases[0], Signals(), JobServices(engine, worker), encode) if leases else None

    def handle(self, context: Context, mode: str) -> None:
        """What the handler does."""
        if mode == "async":
            asyncio.run(self._handle_async(context))
            return
        begin()
        if mode == "apart":
            self._handle_apart(context)
            return
        with context.transaction() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")
            self.receipt.using(connection=tx).enqueue(1)
            tx.finish("paid")
        end()

    async def _handle_async(self, context: Context) -> None:
        begin()
        async with context.transaction() as tx:
            await tx.execute("INSERT INTO paid VALUES (1)")
            await self.receipt.using(connection=tx).aenqueue(1)
            tx.finish("paid")
        end()

    def _handle_apart(self, context: Context) -> None:
        with closing(self.app.connect()) as connection, connection:
            connection.execute("INSERT INTO paid VALUES (1)")
        self.receipt.enqueue(1)
        settlement = Settlement(
            number=context.number, token=context.fence, queue="default", ending=Ending.COMPLETED
        )
        self.engine.run(self.engine.settle(FIRST, [settlement]))
        end()

    def seen(self) -> Seen:
        """The effects, the number of further jobs, and the state of the job."""
        with closing(sqlite3.connect(self.path)) as connection:
            paid = [row[0] for row in connection.execute("SELECT invoice FROM paid")]
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        [job] = self.app.find(task="pay")
        return paid, len(self.app.find(task="receipt")), job.state


def main(folder: Path, mode: str, seconds: float) -> None:
    template = folder / f"{mode}.db"
    prepare(template)
    outcomes = {"nothing": 0, "all": 0, "torn": 0, "repeated": 0}
    started, n, killed, survived = time.monotonic(), 1, 0, 0
    calls = run_child(partial(run_block, fresh(folder, template), mode), None)
    while survived < ENOUGH:
        path = fresh(folder, template)
        survives = run_child(partial(run_block, path, mode), n) < n
        for outcome in examine(path):
            outcomes[outcome] += 1
        survived = survived + 1 if survives else 0
        killed += not survives
        spent = time.monotonic() - started
        each, left = spent / (killed + 1), max(seconds - spent, 0.1)
        n += max(1, round((calls - n) * each / left))
    print(json.dumps({"calls": calls, "killed": killed, **outcomes}))


def prepare(template: Path) -> None:
    store = Store(template)
    with closing(store.app.connect()) as connection, connection:
        connection.execute("CREATE TABLE paid (invoice INTEGER)")
    store.pay.enqueue(1)
    store.engine.close()


def fresh(folder: Path, template: Path) -> Path:
    for old in folder.glob("store.db*"):
        old.unlink()
    return Path(shutil.copy(template, folder / "store.db"))


def run_block(path: Path, mode: str) -> None:
    """What the child does."""
    store = Store(path)
    context = store.context(FIRST)
    assert context is not None
    store.handle(context, mode)


def examine(path: Path) -> list[str]:
    """What is left, and whether the effect is repeated when another worker takes over."""
    store = Store(path, later=3_600_000)
    try:
        seen = store.seen()
        left = "all" if seen == ALL else "nothing" if seen == NOTHING else "torn"
        store.engine.run(store.engine.sweep(SweepOrder(fence=(FIRST,))))
        context = store.context(SECOND)
        if context is not None:
            with context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                store.receipt.using(connection=tx).enqueue(1)
        return [left] if store.seen() == ALL else [left, "repeated"]
    finally:
        store.engine.close()


if __name__ == "__main__":
    signal.alarm(600)
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
