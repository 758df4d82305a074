"""The job in hand, as its own handler sees it.

A handler asks for it by a first parameter annotated `Context`, or anywhere below by `shigoto.current()`.
Most of it does no I/O: the handler writes into `Signals` and reads from it, and the worker carries it to
and from the store. A checkpoint and a transaction go to the store themselves, through the `Desk`, because
the handler must know that they have arrived.
"""

import logging
from collections.abc import AsyncIterable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from threading import RLock
from typing import Any, Literal, TypeVar, overload
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType

from shigoto.codec import encode_json
from shigoto.cover import Cover
from shigoto.engine.protocol import Engine
from shigoto.enqueue import Call
from shigoto.fan_out import FannedOut, FanOut, Part, Tenant
from shigoto.lines import Lines
from shigoto.model.errors import JobError, LeaseLost
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.secrets import without_mark
from shigoto.model.text import fit
from shigoto.model.time import host_clock
from shigoto.model.worker import Report
from shigoto.options import MAX_DEPTH, MAX_PAYLOAD, choice
from shigoto.signals import Signals
from shigoto.transaction import Completion, JoinedTransaction, Transaction, transact

MAX_PROGRESS_TEXT = 500
MAX_PROGRESS_BYTES = 4 * 1024
MAX_CHECKPOINT = 64 * 1024

C = TypeVar("C")
T = TypeVar("T")

Level = Literal["debug", "info", "warning", "error", "critical"]
LEVELS = ("debug", "info", "warning", "error", "critical")

logger = logging.getLogger("shigoto")


class SoftTimeout(TimeoutError):
    """The run has passed its `soft_timeout`. Raised in handlers that can be interrupted; clean up and end."""


class Desk(Struct, frozen=True):
    """What a handler's own writes need: the store, on whose lease they are made, and the lifespan's state.

    `shield` keeps exceptions from outside away while it lasts, where there are any.
    """

    engine: Engine
    worker: UUID
    state: Any = None
    shield: Callable[[], AbstractContextManager[None]] = nullcontext


_first_line = RLock()


class Context(Struct, eq=False):
    """The job in hand, as its handler sees it.

        @app.task
        def resize(ctx: Context, paths: list[str]) -> None:
            for done, path in enumerate(paths):
                ctx.progress(done / len(paths), path)

    It is injected, and not part of the payload: whoever enqueues leaves it out.
    """

    # Without a desk there is no job. `_encode` is how the task stores its results (`Signature.encode_result`).
    _lease: Lease
    _signals: Signals
    _desk: Desk | None = None
    _encode: Callable[[Any], str] | None = None
    _checkpoint: str | UnsetType | None = UNSET
    _parts: frozenset[Part] = frozenset()

    def __repr__(self) -> str:
        return f"<Context of job #{self.number} {self.task!r}>"

    @property
    def job_id(self) -> UUID:
        """The job's id; the same in every run."""
        return self._lease.id

    @property
    def number(self) -> int:
        """The store's number of the job, for people."""
        return self._lease.number

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._lease.task

    @property
    def queue(self) -> str:
        """The queue the job was taken from."""
        return self._lease.queue

    @property
    def attempt(self) -> int:
        """Which run this is, from 1; snoozed and released runs do not count."""
        return self._lease.attempt

    @property
    def failures(self) -> int:
        """How many runs have failed before this one."""
        return self._lease.failures

    @property
    def tenant(self) -> str:
        """On whose behalf the job runs; empty if nobody's in particular."""
        return self._lease.tenant

    @property
    def key(self) -> str | None:
        """The job's unique key."""
        return self._lease.key

    @property
    def tags(self) -> tuple[str, ...]:
        """The job's tags."""
        tags = self._lease.tags
        return msgspec.json.decode(tags, type=tuple[str, ...]) if tags else ()

    @property
    def meta(self) -> dict[str, Any]:
        """The job's free metadata."""
        meta = without_mark(self._lease.meta)
        return msgspec.json.decode(meta, type=dict[str, Any]) if meta else {}

    @property
    def idempotency_key(self) -> str:
        """What to send to others so that a second run is recognised as the same request."""
        return str(self._lease.id)

    @property
    def fence(self) -> int:
        """A number that rises with every claim: who remembers the highest can refuse a stale run."""
        return self._lease.token

    @property
    def cancelled(self) -> bool:
        """Whether this run should end: somebody has asked to cancel the job, or it is no longer this worker's.

        A handler in a thread has to look.
        """
        return self._signals.cancelled or self._signals.lost

    @property
    def overdue(self) -> bool:
        """Whether the run has passed its `soft_timeout`. A handler in a thread has to look."""
        return self._signals.overdue

    @property
    def stopping(self) -> bool:
        """Whether the worker is about to stop; a run that ends soon is not cut short."""
        return self._signals.stopping

    def progress(self, fraction: float, text: str = "") -> None:
        """Say how far the run is, from 0 to 1. Never blocks; the newest is stored about once a second."""
        if not 0 <= fraction <= 1:
            raise ValueError(
                f"progress takes a fraction from 0 to 1, not {fraction!r}; for percent, divide by 100."
            )
        signals = self._signals
        said = fit(self.hidden(str(text))[:MAX_PROGRESS_TEXT], MAX_PROGRESS_BYTES)
        signals.progress = float(fraction)
        signals.progress_text = said if signals.cover is None else signals.cover.said("progress", said)
        signals.progress_changed = True

    @property
    def state(self) -> Any:
        """What the app's lifespan has yielded in this process; None without one."""
        return None if self._desk is None else self._desk.state

    def log(self, text: str, level: Level = "info") -> None:
        """Write a line into the job's own log, which `shigoto show` prints. Never blocks.

        What a handler writes with `logging`, at level INFO or above, is there as well.
        """
        choice("level", level, LEVELS)
        if self._desk is None:
            logger.log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
        else:
            self.write(level, str(text))

    def write(self, level: str, text: str) -> None:
        """Add to the lines of the run; for the worker's capture of `logging`, which has levels of its own."""
        signals = self._signals
        lines = signals.lines
        if lines is None:  # most runs write none
            # Made before the lock is taken, and then in one step: a destructor that logs may come in between.
            fresh = Lines()
            with _first_line:
                lines = signals.lines = signals.lines or fresh
        for said in (text,) if signals.cover is None else signals.cover.lines(text):
            lines.add(host_clock(), level, said)

    def hidden(self, text: str) -> str:
        """The text without the values of the job's secret parameters; for whoever writes it elsewhere."""
        cover = self._signals.cover
        return text if cover is None else cover.hidden(text)

    def take_cover(self, cover: Cover) -> None:
        """Keep what the run says from others from now on; for the worker. Raises EncryptionKeyMissing."""
        if cover.box is not None and self._lease.checkpoint is not None:
            self._checkpoint = cover.box.open("checkpoint", self._lease.checkpoint)
        self._signals.cover = cover

    @property
    def resume_from(self) -> Any:
        """The newest checkpoint, of an earlier run or of this one; None if there is none."""
        newest = self._lease.checkpoint if self._checkpoint is UNSET else self._checkpoint
        return None if newest is None else msgspec.json.decode(newest)

    def checkpoint(self, value: object) -> None:
        """Store where the next run may resume, if this one is cut short; returns when it is committed.

        At most 64 KiB of JSON; the newest replaces the one before. Raises LeaseLost if the job is no longer this
        worker's, JobError once a transaction block has ended it, PayloadInvalid, PayloadTooLarge, StoreError.
        """
        text = self._checkpoint_text(value)
        if self._desk is not None:
            engine, worker = self._desk.engine, self._desk.worker
            self._expect_kept(engine.run(engine.report(worker, [self._report(text)])))
        self._checkpoint = text

    async def acheckpoint(self, value: object) -> None:
        """Store a checkpoint without blocking the event loop; see `checkpoint`."""
        text = self._checkpoint_text(value)
        if self._desk is not None:
            engine, worker = self._desk.engine, self._desk.worker
            self._expect_kept(await engine.arun(engine.report(worker, [self._report(text)])))
        self._checkpoint = text

    @overload
    def transaction(self) -> Transaction: ...
    @overload
    def transaction(self, connection: C, /) -> JoinedTransaction[C]: ...
    def transaction(self, *connections: Any) -> Transaction | JoinedTransaction[Any]:
        """A block whose SQL and the completion of this job are one commit: both happen, or neither.

            with ctx.transaction() as tx:
                tx.execute("UPDATE invoice SET paid = 1 WHERE id = ?", (invoice_id,))
                send_receipt.using(connection=tx).enqueue(invoice_id)
                tx.finish("paid")

        Use `with` in plain functions, where it gives the driver's own connection, and `async with` in async ones,
        where statements are awaited. Or pass a connection of your own with an open transaction, which you commit
        afterwards. On SQLite a block holds the only write lock: 5 s at most, then TransactionTooLong; 60 s on
        PostgreSQL. Raises LeaseLost at the end of the block if the job is no longer this worker's. Foreign keys are
        enforced in it; SQLite ignores the PRAGMA that turns them off, but there is `PRAGMA defer_foreign_keys`.
        """
        completion = self._completion()
        return JoinedTransaction(completion, *connections) if connections else Transaction(completion)

    def transact(self, fn: Callable[[Any], T], /) -> T:
        """Commit what `fn` does with a connection, with what it returns as the job's result, and return that.

            total = ctx.transact(lambda tx: book(tx, order))

        Await it if `fn` is async. It may be run again where a database asks for that, so keep other effects out.
        """
        value: T = transact(lambda: Transaction(self._completion()), fn)
        return value

    def fan_out(
        self, tenants: Iterable[Tenant], call: Callable[[Tenant], Call[Any]], *, part: str = ""
    ) -> FannedOut:
        """Store one child for each tenant, on its behalf, in batches of 500, and return when all are stored.

            ctx.fan_out(store_ids(), lambda store: aggregate.call(store, tick.local_date))

        A run that is cut short can simply run again: there is one child for each tenant, task and `part` of this job.
        Its arguments are those of the first time, so make them from the tick and not from the clock. The order is that
        of the tenants. Raises OptionInvalid, StoreError.
        """
        work = FanOut(self.job_id, part, self._parts)
        told = work.run(tenants, call)
        self._parts |= work.parts
        return told

    async def afan_out(
        self,
        tenants: Iterable[Tenant] | AsyncIterable[Tenant],
        call: Callable[[Tenant], Call[Any]],
        *,
        part: str = "",
    ) -> FannedOut:
        """Store one child for each tenant without blocking the event loop; see `fan_out`."""
        work = FanOut(self.job_id, part, self._parts)
        told = await work.arun(tenants, call)
        self._parts |= work.parts
        return told

    def _completion(self) -> Completion:
        if self._desk is None:
            raise JobError(
                f"task {self.task!r} was called as a plain function, so there is no job that a transaction could"
                " complete. Enqueue it and let a worker run it."
            )
        return Completion(self._lease, self._signals, self._desk, self._encode or _encode_freely)

    def _checkpoint_text(self, value: object) -> str:
        if self._signals.ended is not None:
            raise JobError(
                f"task {self.task!r}: a transaction block has ended this job, so no run will resume from a checkpoint."
                " Checkpoints come before the block."
            )
        what = f"task {self.task!r}: the checkpoint"
        return encode_json(value, what=what, max_bytes=MAX_CHECKPOINT, max_depth=MAX_DEPTH)

    def _report(self, checkpoint: str) -> Report:
        if self._signals.cover is not None:
            checkpoint = self._signals.cover.checkpoint(checkpoint, MAX_CHECKPOINT)
        return Report(number=self._lease.number, token=self._lease.token, checkpoint=checkpoint)

    def _expect_kept(self, kept: list[bool]) -> None:
        if not all(kept):
            self._signals.lost = True
            raise LeaseLost(
                f"task {self.task!r}: job {self.number} is no longer this worker's, so the checkpoint was refused."
                " Another run has it, or somebody has cancelled it by force; end this one."
            )


def _encode_freely(value: object) -> str:
    return encode_json(value, what="the result", max_bytes=MAX_PAYLOAD, max_depth=MAX_DEPTH)


current_context: ContextVar[Context] = ContextVar("shigoto_context")


def current() -> Context:
    """The context of the job that is running here, for code that is not handed one."""
    try:
        return current_context.get()
    except LookupError:
        raise LookupError(
            "No job is running here: shigoto.current() works in a task run by a worker, and in what it calls."
            " A thread started by the task does not inherit it; pass the context along."
        ) from None


def detached(task: str) -> Context:
    """A context for a plain call of a task's function: there is no job.

    Progress goes nowhere, log lines go to `logging`, and a checkpoint is remembered by the context alone.
    """
    lease = Lease(
        number=0,
        token=0,
        id=uuid7(),
        task=task,
        queue="",
        payload="{}",
        attempt=1,
        failures=0,
        snoozes=0,
        max_failures=1,
        priority=0,
        run_at=0,
        claimed_at=0,
    )
    return Context(lease, Signals())
