"""A transaction block as `with` and as `async with`; the latter has a thread of its own, where all of it happens.

The event loop never waits for the disk or for the write lock. A cancel may strike at any `await`:

    while the block is being entered   the thread goes on, enters it, and finds the order to roll back
    at a statement                     the statement goes on, and the rollback comes after it
    while the block is being left      the cancel waits: whether it was committed must be known
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, TypeVar

from shigoto.engine.sqlite.lent import LentConnection, LentCursor
from shigoto.engine.sqlite.transaction import Block, expect_outside, mark_here
from shigoto.model.errors import JobError

T = TypeVar("T")

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Rows:
    """What a statement has found, fetched already."""

    __slots__ = ("_rows", "description", "lastrowid", "rowcount")

    def __init__(self, rows: list[Any], rowcount: int, lastrowid: int | None, description: Any) -> None:
        self._rows = iter(rows)
        self.rowcount = rowcount
        self.lastrowid = lastrowid
        self.description = description

    async def fetchone(self) -> Any:
        """The next row, or None."""
        return next(self._rows, None)

    async def fetchall(self) -> list[Any]:
        """The rows that are left."""
        return list(self._rows)


class AwaitedConnection:
    """The connection of an async block: its statements run in the block's thread, one after the other."""

    finish: Callable[[object], None]

    def __init__(self, lent: LentConnection, thread: "BlockThread") -> None:
        self.lent = lent
        self._thread = thread

    async def execute(self, statement: str, parameters: Any = (), /) -> Rows:
        """Run one statement, and fetch what it finds."""
        return await self.call(lambda: _fetched(self.lent.execute(statement, parameters)))

    async def executemany(self, statement: str, parameters: Iterable[Any], /) -> Rows:
        """Run one statement for each of many rows."""
        rows = list(parameters)
        return await self.call(lambda: _fetched(self.lent.executemany(statement, rows)))

    async def call(self, action: Callable[[], T]) -> T:
        """Do something in the block's thread."""
        value: T = await self._thread.submit(action)
        return value


class EitherBlock:
    """A block that may be entered with `with` or with `async with`."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def __enter__(self) -> LentConnection:
        expect_outside(self._block.host)
        lent = self._block.open()
        self._unmark = mark_here(self._block)
        return lent

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unmark()
        self._block.end(error)

    async def __aenter__(self) -> AwaitedConnection:
        expect_outside(self._block.host)
        self._thread = BlockThread()
        try:
            lent: LentConnection = await self._thread.submit(self._block.open)
        except BaseException:
            self._thread.submit(self._block.abandon)
            self._thread.stop()
            raise
        self._unmark = mark_here(self._block)
        return AwaitedConnection(lent, self._thread)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unmark()
        left = self._thread.submit(partial(self._block.end, error))
        self._thread.stop()
        if kind is not GeneratorExit:  # of a coroutine that is thrown away, and must not wait any more
            await _to_its_end(left)


class BlockThread:
    """A thread that lives as long as one block."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        Thread(target=self._serve, name="shigoto-block", daemon=True).start()

    def submit(self, action: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Do this next; the future belongs to the event loop that the block was entered on."""
        if self._stopped:
            raise JobError("The transaction block is over: its connection cannot be used any more.")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.put((action, future))
        return future

    def stop(self) -> None:
        """End after what was submitted."""
        self._stopped = True
        self._queue.put(None)

    def _serve(self) -> None:
        while (job := self._queue.get()) is not None:
            action, future = job
            try:
                value, error = action(), None
            except Exception as raised:
                value, error = None, raised
            try:
                self._loop.call_soon_threadsafe(_resolve, future, value, error)
            except RuntimeError:
                continue  # the loop is closed: nobody is left to be told


def _resolve(future: "asyncio.Future[Any]", value: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


async def _to_its_end(future: "asyncio.Future[Any]") -> None:
    """Wait for what must be known, however often the waiting is cancelled; the cancel comes through afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    failed = future.exception()
    if cancelled is not None:
        raise cancelled
    if failed is not None:
        raise failed


def _fetched(cursor: LentCursor) -> Rows:
    rows: list[Any] = [] if cursor.description is None else cursor.fetchall()
    return Rows(rows, cursor.rowcount, cursor.lastrowid, cursor.description)
