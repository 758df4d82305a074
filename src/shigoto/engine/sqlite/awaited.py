"""A transaction block as `with` and as `async with`; the latter has a thread of its own, where all of it happens.

The event loop never waits for the disk or for the write lock. A cancel may strike at any `await`:

    while the block is being entered   the thread goes on, enters it, and finds the order to roll back
    at a statement                     the statement goes on, and the rollback comes after it
    while the block is being left      the cancel waits: whether it was committed must be known
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from types import TracebackType
from typing import Any, TypeVar

from shigoto.engine.sql.block import OVER, started, to_its_end
from shigoto.engine.sqlite.lent import LentConnection, LentCursor
from shigoto.engine.sqlite.transaction import Block, expect_outside, mark_here
from shigoto.model.errors import JobError

T = TypeVar("T")

BROKEN = (
    "A statement of the transaction block has raised what ends a thread, such as SystemExit, so all of it was rolled"
    " back. Raise errors that are an Exception in adapters and in functions that SQL calls."
)

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
        expect_outside(self._block.host.path)
        lent = self._block.open()
        self._unmark = mark_here(self._block)
        return lent

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unmark()
        self._block.end(error)

    async def __aenter__(self) -> AwaitedConnection:
        expect_outside(self._block.host.path)
        self._thread = BlockThread(self._block.abandon)
        try:
            lent: LentConnection = await self._thread.submit(self._block.open)
        except BaseException:
            self._thread.finish(self._block.abandon)
            raise
        self._unmark = mark_here(self._block)
        return AwaitedConnection(lent, self._thread)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unmark()
        left = self._thread.finish(partial(self._block.end, error))
        if left is None:
            if error is None:
                raise JobError(BROKEN)
        elif kind is not GeneratorExit:  # of a coroutine that is thrown away, and must not wait any more
            await to_its_end(left)

    def give_up(self) -> None:
        """Roll back soon: the job has ended without it. Never waits."""
        self._block.give_up()


class BlockThread:
    """A thread that lives as long as one block; if something ends it before, the block is abandoned."""

    def __init__(self, abandon: Callable[[], None]) -> None:
        self._abandon = abandon
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._refusal: str | None = None
        started(Thread(target=self._serve, name="shigoto-block", daemon=True))

    def submit(self, action: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Do this next; the future belongs to the event loop that the block was entered on."""
        with self._lock:
            if self._refusal is not None:
                raise JobError(self._refusal)
            future: asyncio.Future[Any] = self._loop.create_future()
            self._queue.put((action, future))
            return future

    def finish(self, action: Callable[[], Any]) -> "asyncio.Future[Any] | None":
        """Do this and end; None if the thread has ended already, with the block."""
        with self._lock:
            if self._refusal is not None:
                return None
            self._refusal = OVER
            future: asyncio.Future[Any] = self._loop.create_future()
            self._queue.put((action, future))
            self._queue.put(None)
            return future

    def _serve(self) -> None:
        ordinary = False
        try:
            while (job := self._queue.get()) is not None:
                self._do(*job)
            ordinary = True
        finally:
            if not ordinary:
                self._break_off()

    def _do(self, action: Callable[[], Any], future: "asyncio.Future[Any]") -> None:
        try:
            value = action()
        except StopIteration:  # which a future cannot carry
            self._tell(
                future, None, RuntimeError("A statement of the transaction block raised StopIteration.")
            )
        except Exception as raised:
            self._tell(future, None, raised)
        except BaseException as raised:  # which would end the event loop, too, if it came up in a task there
            broken = JobError(f"{BROKEN} It was {type(raised).__qualname__}.")
            broken.__cause__ = raised
            self._tell(future, None, broken)
            raise
        else:
            self._tell(future, value, None)

    def _break_off(self) -> None:
        """Roll back, and leave nobody waiting."""
        with self._lock:
            self._refusal = self._refusal or BROKEN
        try:
            self._abandon()
        finally:
            while not self._queue.empty():
                job = self._queue.get()
                if job is not None:
                    self._tell(job[1], None, JobError(BROKEN))

    def _tell(self, future: "asyncio.Future[Any]", value: Any, error: Exception | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(_resolve, future, value, error)


def _resolve(future: "asyncio.Future[Any]", value: Any, error: Exception | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _fetched(cursor: LentCursor) -> Rows:
    rows: list[Any] = [] if cursor.description is None else cursor.fetchall()
    return Rows(rows, cursor.rowcount, cursor.lastrowid, cursor.description)
