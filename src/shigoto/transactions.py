"""Transaction blocks of handlers: their SQL and the completion of the job in one commit.

    with ctx.transaction() as tx:            one of the store's own: begins, writes the completion, commits
    with ctx.transaction(connection) as tx:  the caller's: writes the completion and leaves the commit to the caller

Both may be `async with`. Leaving the block completes the job, with the result that was given to `tx.finish`, under the
same guard as every settlement; if the lease is lost, LeaseLost is raised and nothing has happened. If the block raises,
nothing has happened either: the run goes on, and may even try another block.

An answer that never came is not made up for here. When the commit itself raises, so does the block; the worker then
settles the run in the ordinary way, and the store knows whether this very lease was settled before. If it was not, the
job is given back and counts as nothing: that a store is full or locked says nothing about the job.

A run that returns inside its block has done nothing, and has failed: a generator that nobody exhausted, a task that
outlives its handler. The block is rolled back at once, since it would keep everybody else from writing.
"""

import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import iscoroutine, iscoroutinefunction
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Block
from shigoto.handle import on_event_loop
from shigoto.model.errors import (
    JobError,
    LeaseLost,
    StoreUnavailable,
    TransactionConflict,
    TransactionTooLong,
)
from shigoto.model.job import Lease
from shigoto.model.worker import Ending, Settlement, Verdict
from shigoto.options import MAX_PAYLOAD

if TYPE_CHECKING:
    from shigoto.context import JobServices, Signals

C = TypeVar("C")

LIMIT = 5.0  # seconds, unless the engine says otherwise; on SQLite a block holds the only write lock
RERUNS = 10  # of a function whose transaction was in conflict with others
LONGEST_PAUSE = 0.5  # seconds before the last of them


class Rows(Protocol):
    """What a statement in an async block has found."""

    @property
    def rowcount(self) -> int:
        """How many rows were written; -1 for a query."""
        ...

    @property
    def lastrowid(self) -> int | None:
        """The row that an INSERT has made last."""
        ...

    async def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    async def fetchall(self) -> list[Any]:
        """The rows that are left."""
        ...


class AsyncTransaction(Protocol):
    """What `async with ctx.transaction()` gives: a connection whose statements are awaited."""

    async def execute(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> Rows:
        """Run one statement."""
        ...

    async def executemany(
        self, statement: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]], /
    ) -> Rows:
        """Run one statement for each of many rows."""
        ...

    def finish(self, result: object) -> None:
        """Say what is stored as the job's result. Raises ResultInvalid."""
        ...


class Completion:
    """How a block ends its job: the result it was given, and the settlement that goes into the transaction."""

    def __init__(
        self, lease: Lease, signals: "Signals", services: "JobServices", encode: Callable[[Any], str]
    ) -> None:
        self._lease = lease
        self._signals = signals
        self._encode = encode
        self._result = "null"
        self.services = services

    @contextmanager
    def entering(self, give_up: Callable[[], None] | None = None) -> Generator[None]:
        """Enter the block inside. Raises JobError while another block is open, and once a block has ended the job.

        `give_up` rolls the block back if the run ends inside it.
        """
        state = self._signals.ended or self._signals.block
        if state is not None and state != "dropped":
            raise JobError(
                f"task {self._lease.task!r}: a transaction block ends its job, so a run has only one, and this one"
                f" {_STATES[state]}. Put everything that belongs together into one block."
            )
        self._signals.block = "open"
        self._signals.give_up = give_up
        try:
            yield
        except BaseException as error:
            self._left(None, error)
            raise

    @contextmanager
    def leaving(self, raised: type[BaseException] | None) -> Generator[None]:
        """Leave the block inside, and note what became of it; `raised` is the error of the block's own code."""
        dropped = raised is not None and issubclass(raised, GeneratorExit)  # an error that no code has seen
        try:
            yield
        except BaseException as error:
            signals = self._signals
            signals.lost = signals.lost or isinstance(error, LeaseLost)
            if dropped:
                self._left("dropped", None)
            else:
                self._left(None if isinstance(error, _ROLLED_BACK) else "unknown", error)
            raise
        self._left("dropped" if dropped else None, None)

    def finish(self, result: object) -> None:
        """Take the result. Raises ResultInvalid here, where everything can still be rolled back."""
        if self._signals.block != "open":
            raise JobError(
                f"task {self._lease.task!r}: finish() comes too late, the transaction block is over."
            )
        self._result = "null" if result is None else self._encode(result)
        self._redacted()

    def op(self) -> Op[list[Verdict]]:
        """What is written last in the block. Raises LeaseLost."""
        lease, signals = self._lease, self._signals
        settlement = Settlement(
            number=lease.number,
            token=lease.token,
            queue=lease.queue,
            ending=Ending.COMPLETED,
            result=self._redacted(),
            progress=signals.progress,
            progress_text=signals.progress_text,
            log=None if signals.lines is None else signals.lines.whole(),
        )
        settle = self.services.engine.settle(self.services.worker, [settlement])
        return Op(
            start=lambda: self._guarded(settle),
            mode=settle.mode,
            rings=settle.rings,
            committed=lambda _: self.ended("committed"),
        )

    def _redacted(self) -> str:
        """The result as it is stored. Raises ResultInvalid."""
        redaction = self._signals.redaction
        return self._result if redaction is None else redaction.result(self._result, MAX_PAYLOAD)

    def ended(self, how: Literal["committed", "joined"]) -> None:
        """Note that the settlement is committed, or a part of the caller's transaction."""
        self._signals.result = self._result
        self._signals.ended = how

    def _left(self, state: Literal["dropped", "unknown"] | None, error: BaseException | None) -> None:
        self._signals.block = state
        self._signals.give_up = None
        if isinstance(error, StoreUnavailable):
            self._signals.trouble = error

    def _guarded(self, settle: Op[list[Verdict]]) -> Steps[list[Verdict]]:
        verdicts = yield from settle.start()
        if verdicts != [Verdict.ACCEPTED]:
            raise LeaseLost(
                f"task {self._lease.task!r}: job {self._lease.number} is no longer this worker's, so the transaction"
                " must not be committed. Another run has it, or somebody has cancelled it by force; end this one."
            )
        return verdicts


_ROLLED_BACK = (LeaseLost, TransactionConflict, TransactionTooLong)  # after any other error it is unknown
_STATES = {
    "open": "is already in one",
    "unknown": "has left one of which nobody knows whether it was committed",
    "committed": "has committed one",
    "joined": "has written one into your transaction",
}


class Transaction:
    """What `ctx.transaction()` gives: a block in a transaction of the store's own, entered once.

    `with` gives the database driver's own connection, which can be passed to everything that takes one; it has a
    method more, `finish(result)`. `async with` gives an `AsyncTransaction`.
    """

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        engine = completion.services.engine
        self._block: Block = engine.block(completion.op, limit=engine.capabilities.block_limit or LIMIT)

    def __enter__(self) -> Any:
        if on_event_loop():  # a wait for another task's block would keep that one from ending
            raise JobError("A transaction block on an event loop would block it: write `async with`.")
        completion = self._completion
        with completion.services.shield(), completion.entering(self._block.give_up):
            return self._with_finish(self._block.__enter__())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._completion.services.shield(), self._completion.leaving(kind):
            self._block.__exit__(kind, error, trace)

    async def __aenter__(self) -> AsyncTransaction:
        with self._completion.entering(self._block.give_up):
            connection: AsyncTransaction = self._with_finish(await self._block.__aenter__())
            return connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._completion.leaving(kind):
            await self._block.__aexit__(kind, error, trace)

    def _with_finish(self, connection: Any) -> Any:
        connection.finish = self._completion.finish
        return connection


class JoinedTransaction(Generic[C]):
    """What `ctx.transaction(connection)` gives: a block in the caller's own transaction, entered once.

    We never begin, commit or roll back on it.
    """

    def __init__(self, completion: Completion, connection: C) -> None:
        self._completion = completion
        self.connection = connection

    def finish(self, result: object) -> None:
        """Say what is stored as the job's result. Raises ResultInvalid."""
        self._completion.finish(result)

    def __enter__(self) -> "JoinedTransaction[C]":
        with self._completion.entering():
            return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._completion.leaving(kind):
            if kind is None:
                self._completion.services.engine.join(self.connection, self._completion.op())
                self._completion.ended("joined")

    async def __aenter__(self) -> "JoinedTransaction[C]":
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._completion.leaving(kind):
            if kind is None:
                await self._completion.services.engine.ajoin(self.connection, self._completion.op())
                self._completion.ended("joined")


def transact(begin: Callable[[], Transaction], fn: Callable[[Any], Any]) -> Any:
    """Commit what `fn` does with the connection, with what it returns as the job's result; awaitable if it is async.

    After a conflict with another transaction it is done again.
    """
    if iscoroutinefunction(fn):
        return _atransact(begin, fn)
    pauses = _pauses()
    while True:
        try:
            with begin() as tx:
                value = fn(tx)
                if iscoroutine(value):
                    value.close()
                    raise JobError(
                        "transact() was given a function that is not async and returns a coroutine: make it async def."
                    )
                tx.finish(value)
            return value
        except TransactionConflict:
            if (pause := next(pauses, None)) is None:
                raise
        time.sleep(pause)


async def _atransact(begin: Callable[[], Transaction], fn: Callable[[Any], Any]) -> Any:
    import asyncio  # it is there already; who never runs a handler does without

    pauses = _pauses()
    while True:
        try:
            async with begin() as tx:
                value = await fn(tx)
                tx.finish(value)
            return value
        except TransactionConflict:
            if (pause := next(pauses, None)) is None:
                raise
        await asyncio.sleep(pause)


def _pauses() -> Iterator[float]:
    """How long to wait before each rerun, in seconds: at random, so that those in conflict do not meet again."""
    for rerun in range(RERUNS):
        yield random.uniform(0.0, LONGEST_PAUSE / 2 ** (RERUNS - 1 - rerun))
