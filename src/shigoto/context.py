"""The running job as its own handler sees it: its signals, its log, and the ways to end it.

A handler asks for it by a first parameter annotated `Context`, or anywhere below by `shigoto.current()`. Most of it
does no I/O: the handler writes into `Signals` and reads from it, and the worker carries it to and from the store. A
checkpoint, a transaction and a fan-out go to the store themselves, through the `JobServices`, because the handler must
know that they have arrived.
"""

import logging
from collections import Counter, deque
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from itertools import islice
from threading import RLock
from typing import Any, Literal, TypeVar, overload
from uuid import UUID, uuid5

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from shigoto.codec import encode_json
from shigoto.encryption import Redaction
from shigoto.engine.protocol import Engine
from shigoto.enqueue import Call, expect_call
from shigoto.model.errors import JobError, LeaseLost, OptionInvalid
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec, Lease, LogLine
from shigoto.model.secrets import without_mark
from shigoto.model.text import fit, plain_id, plain_whole, shown, spelt_out
from shigoto.model.time import Duration, Millis, host_clock
from shigoto.model.worker import LogTail, Report
from shigoto.observe.tracing import Tracing, storing
from shigoto.options import MAX_DEPTH, MAX_PAYLOAD, MAX_TENANT, choice, duration, text
from shigoto.transactions import Completion, JoinedTransaction, Transaction, transact

C = TypeVar("C")
T = TypeVar("T")
Tenant = TypeVar("Tenant", bound=str | int | UUID)
Part = tuple[str, str]  # a task, and which part of the fan-out its children are
Level = Literal["debug", "info", "warning", "error", "critical"]

logger = logging.getLogger("shigoto")
_log_lock = RLock()

LEVELS = ("debug", "info", "warning", "error", "critical")
MAX_PROGRESS_TEXT = 500
MAX_PROGRESS_BYTES = 4 * 1024
MAX_CHECKPOINT = 64 * 1024
FAN_OUT_BATCH = 500
MAX_PART = 200
MOST_LINES = 1_000
MOST_LOG_BYTES = 64 * 1024
LONGEST_LINE = 2_000
LONGEST_LEVEL = 20
LONGEST_TEXT = 4 * MOST_LOG_BYTES


class JobLog:
    """The last lines that a run has logged, numbered. Safe across threads.

    A run may write more than anybody wants to keep, so this is a ring: the newest thousand lines, or fewer if they are
    long. `tail` gives what is new since the last time, and the number of the oldest line that still counts; the store
    drops what lies before it, so both sides keep the same.

    The garbage collector calls destructors between any two steps, and some of them log. So a line may be added in the
    midst of anything here, by the thread that is at it: it waits in `_fresh` until that is done.
    """

    __slots__ = ("_added", "_busy", "_bytes", "_fresh", "_last", "_lines", "_lock", "_sent")

    def __init__(self, added: Callable[[], None] | None = None) -> None:
        """`added` is called after every text, in the thread that has added it."""
        self._added = added
        self._lock = RLock()
        self._busy = False
        self._fresh: deque[tuple[Millis, str, str]] = deque()
        self._lines: deque[tuple[LogLine, int]] = deque()
        self._bytes = 0
        self._last = 0
        self._sent = 0

    def add(self, at: Millis, level: str, text: str) -> None:
        """Write a line, or several if the text has several."""
        # Made plain: one line that cannot be written would keep those of other runs from the store.
        lines = str.__str__(text)[:LONGEST_TEXT].splitlines() or [""]
        level = storable_level(str.__str__(level))
        self._fresh.extend([(at, level, _storable_line(line)) for line in lines])
        with self._lock:
            if self._busy:
                return
            with self._undisturbed():
                pass
        if self._added is not None:
            self._added()

    def tail(self) -> LogTail | None:
        """What is new since the last call; None if nothing is."""
        with self._undisturbed():
            if self._sent == self._last:
                return None
            fresh = tuple(line for line, _ in self._lines if line.line > self._sent)
            tail = LogTail(first=self._lines[0][0].line, lines=fresh)
            self._sent = self._last
            return tail

    def whole(self) -> LogTail | None:
        """Everything that is kept, told or not."""
        with self._undisturbed():
            if not self._lines:
                return None
            return LogTail(first=self._lines[0][0].line, lines=tuple(line for line, _ in self._lines))

    def unsend(self, tail: LogTail) -> None:
        """This tail did not arrive: give its lines out again with the next one, as far as they are still kept."""
        with self._lock:
            self._sent = min(self._sent, tail.lines[0].line - 1)

    @contextmanager
    def _undisturbed(self) -> Generator[None]:
        """Alone with the lines, and with all that were added before."""
        with self._lock:
            self._busy = True
            try:
                while self._fresh:
                    self._keep(*self._fresh.popleft())
                yield
            finally:
                self._busy = False

    def _keep(self, at: Millis, level: str, text: str) -> None:
        size = len(level.encode()) + len(text.encode())
        self._lines.append((LogLine(self._last + 1, at, level, text), size))
        self._last += 1
        self._bytes += size
        while len(self._lines) > MOST_LINES or self._bytes > MOST_LOG_BYTES:
            self._bytes -= self._lines.popleft()[1]


def storable_level(level: str) -> str:
    """A level has any name that somebody gives it with `logging.addLevelName`."""
    return level if level.isalpha() and len(level) <= LONGEST_LEVEL else _storable_line(level)[:LONGEST_LEVEL]


def _storable_line(line: str) -> str:
    if len(line) > LONGEST_LINE:
        line = f"{line[: LONGEST_LINE - 1]}…"
    return spelt_out(line)[:LONGEST_LINE]


class Signals(Struct, eq=False):
    """What a run and its worker tell each other; plain attributes, safe across threads.

    cancelled, stopping, overdue, lost   said by the worker: a cancel was asked for, it is about to stop, the
                                         soft limit has passed, the lease is somebody else's
    progress…, lines                     said by the handler; `lines` is None until it writes its first one
    ended, result                        said by a transaction: it has ended the job, with this result (JSON
                                         text), "committed" for good, or "joined" to the caller's own
                                         transaction, of which only the store can tell whether it was committed
    block                                the transaction is open, or was thrown away without an error that
                                         anybody saw, or nobody knows what became of it
    give_up                              how to roll the open one back without waiting
    redaction                            how secrets are taken out of what the run says, and how that is encrypted
    trouble                              what the store has raised instead of taking the transaction

    The worker clears `progress_changed` before it reads the progress, so news is sent twice rather than lost.
    """

    cancelled: bool = False
    stopping: bool = False
    overdue: bool = False
    lost: bool = False
    progress: float | None = None
    progress_text: str | None = None
    progress_changed: bool = False
    lines: JobLog | None = None
    ended: Literal["committed", "joined"] | None = None
    result: str | None = None
    block: Literal["open", "dropped", "unknown"] | None = None
    give_up: Callable[[], None] | None = None
    trouble: Exception | None = None
    redaction: Redaction | None = None

    @property
    def news(self) -> bool:
        """Whether there is more to say of the run than how its handler ended."""
        return bool(
            self.cancelled
            or self.progress is not None
            or self.lines is not None
            or self.ended
            or self.block
            or self.redaction
        )


class RunOutcome(Exception):
    """A handler's choice of how this run ends. Not an error: let it pass through your `except` clauses."""


class RetryLater(RunOutcome):
    """Count this run as failed and try again after `delay`, while the job has retries left.

    Made for a server's `Retry-After`: the delay replaces that of the retry policy.
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(delay, reason)
        self.delay = duration(delay, "The delay of RetryLater")
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or f"the handler asked for a retry in {self.delay / 1000:g} s"


class Snooze(RunOutcome):
    """Run again after `delay`, as if this run had not happened: it counts as neither failure nor attempt."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = duration(delay, "The delay of Snooze")

    def __str__(self) -> str:
        return f"the handler snoozed for {self.delay / 1000:g} s"


class Cancel(RunOutcome):
    """End the job as cancelled."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler cancelled its job"


class Fail(RunOutcome):
    """End the job as failed, without a retry."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler failed its job"


class FannedOut(Struct, frozen=True):
    """What became of the children: made now, there already, or put in the place of one with the same key."""

    inserted: int = 0
    existing: int = 0
    replaced: int = 0


class FanOut:
    """One fan-out of a parent, batch by batch, which can simply be run again. `before` are the parts that this run has
    stored already.

    The id of a child is derived from that of its parent, so whatever an earlier run has stored is met again. Where the
    tenants come from is the application's affair; under row security `shigoto sql fan-out` prints a function that lists
    them.
    """

    def __init__(self, parent: UUID, part: str, before: Set[Part]) -> None:
        self._parent = parent
        self._part = part if part == "" else text("part", part, MAX_PART)
        self._before = before
        self._engine: Engine | None = None
        self._tracing: Tracing | None = None
        self._statuses = Counter[str]()
        self.parts: set[Part] = set()

    def run(self, tenants: Iterable[Tenant], call: Callable[[Tenant], Call[Any]]) -> FannedOut:
        """Store all children, and return when the last batch is committed."""
        for some in _batches(tenants):
            engine, children = self._children(some, call)
            with storing(self._tracing, children) as specs:
                self._statuses.update(each.status for each in engine.run(engine.enqueue_many(specs)))
        return FannedOut(**self._statuses)

    async def arun(
        self, tenants: Iterable[Tenant] | AsyncIterable[Tenant], call: Callable[[Tenant], Call[Any]]
    ) -> FannedOut:
        """Store all children without blocking the event loop."""
        async for some in _abatches(tenants):
            engine, children = self._children(some, call)
            with storing(self._tracing, children) as specs:
                self._statuses.update(each.status for each in await engine.arun(engine.enqueue_many(specs)))
        return FannedOut(**self._statuses)

    def _children(
        self, tenants: Sequence[Tenant], call: Callable[[Tenant], Call[Any]]
    ) -> tuple[Engine, list[JobSpec]]:
        made = [(_tenant_name(tenant), _checked_call(call(tenant))) for tenant in tenants]
        app = made[0][1].route.app
        engine = self._engine = self._engine or app.engine
        self._tracing = app.tracing
        return engine, [self._child(tenant, each) for tenant, each in made]

    def _child(self, tenant: str, call: Call[Any]) -> JobSpec:
        spec = call.route.spec
        part = (spec.task, self._part)
        if part in self._before:
            raise OptionInvalid(
                f"This job has fanned out to {spec.task!r} before, and there is one child for each tenant. Tell the"
                " two apart by part=, such as part=str(day)."
            )
        if call.route.app.engine is not self._engine:
            raise OptionInvalid(f"{call!r} belongs to another app than the calls before it.")
        if spec.tenant not in ("", tenant):
            raise OptionInvalid(f"{call!r} is for tenant {spec.tenant!r}, and was made for {tenant!r}.")
        self.parts.add(part)
        id = uuid5(self._parent, "\0".join((*part, tenant)))
        return replace(call.spec(id, tenant), template=None)


def _tenant_name(tenant: object) -> str:
    number, id = plain_whole(tenant), plain_id(tenant)
    name = str(number) if number is not None else tenant if id is None else str(id)
    return text("The tenant", name, MAX_TENANT)


def _checked_call(call: Call[Any]) -> Call[Any]:
    expect_call("A fan-out", call)
    options = call.route.options
    if options.id is not None or options.connection is not None:
        raise OptionInvalid(
            f"{call!r}: the children of a fan-out have ids of their own and are stored in batches, so they can have"
            " neither the id nor the connection of using(…)."
        )
    return call


def _batches(tenants: Iterable[Tenant]) -> Iterator[list[Tenant]]:
    """The tenants in their order, which is sorted if they have none."""
    if isinstance(tenants, str | bytes):
        raise OptionInvalid(f"A fan-out takes a list of tenants, not one: write [{shown(tenants)}].")
    rest = iter(sorted(tenants, key=_tenant_name) if isinstance(tenants, Set) else tenants)
    while some := list(islice(rest, FAN_OUT_BATCH)):
        yield some


async def _abatches(tenants: Iterable[Tenant] | AsyncIterable[Tenant]) -> AsyncIterable[list[Tenant]]:
    if not isinstance(tenants, AsyncIterable):
        for some in _batches(tenants):
            yield some
        return
    some = list[Tenant]()
    async for tenant in tenants:
        some.append(tenant)
        if len(some) == FAN_OUT_BATCH:
            yield some
            some = list[Tenant]()
    if some:
        yield some


class SoftTimeout(TimeoutError):
    """The run has passed its `soft_timeout`. Raised in handlers that can be interrupted; clean up and end."""


class JobServices(Struct, frozen=True):
    """What a handler's own writes need: the store, on whose lease they are made, and the lifespan's state.

    `shield` keeps exceptions from outside away while it lasts, where there are any.
    """

    engine: Engine
    worker: UUID
    state: Any = None
    shield: Callable[[], AbstractContextManager[None]] = nullcontext


class Context(Struct, eq=False):
    """The job in hand, as its handler sees it.

        @app.task
        def resize(ctx: Context, paths: list[str]) -> None:
            for done, path in enumerate(paths):
                ctx.progress(done / len(paths), path)

    It is injected, and not part of the payload: whoever enqueues leaves it out.
    """

    # Without services there is no job. `_encode` is how the task stores its results (`Signature.encode_result`).
    _lease: Lease
    _signals: Signals
    _services: JobServices | None = None
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
        signals.progress_text = (
            said if signals.redaction is None else signals.redaction.said("progress", said)
        )
        signals.progress_changed = True

    @property
    def state(self) -> Any:
        """What the app's lifespan has yielded in this process; None without one."""
        return None if self._services is None else self._services.state

    def log(self, text: str, level: Level = "info") -> None:
        """Write a line into the job's own log, which `shigoto show` prints. Never blocks.

        What a handler writes with `logging`, at level INFO or above, is there as well.
        """
        choice("level", level, LEVELS)
        if self._services is None:
            logger.log(logging.getLevelNamesMapping()[level.upper()], "%s", text)
        else:
            self.write(level, str(text))

    def write(self, level: str, text: str) -> None:
        """Add to the lines of the run; for the worker's capture of `logging`, which has levels of its own."""
        signals = self._signals
        lines = signals.lines
        if lines is None:  # most runs write none
            # Made before the lock is taken, and then in one step: a destructor that logs may come in between.
            fresh = JobLog()
            with _log_lock:
                lines = signals.lines = signals.lines or fresh
        for said in (text,) if signals.redaction is None else signals.redaction.lines(text):
            lines.add(host_clock(), level, said)

    def hidden(self, text: str) -> str:
        """The text without the values of the job's secret parameters; for whoever writes it elsewhere."""
        redaction = self._signals.redaction
        return text if redaction is None else redaction.hidden(text)

    def use_redaction(self, redaction: Redaction) -> None:
        """Keep what the run says from others from now on; for the worker. Raises EncryptionKeyMissing."""
        if redaction.box is not None and self._lease.checkpoint is not None:
            self._checkpoint = redaction.box.open("checkpoint", self._lease.checkpoint)
        self._signals.redaction = redaction

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
        if self._services is not None:
            engine, worker = self._services.engine, self._services.worker
            self._expect_kept(engine.run(engine.report(worker, [self._report(text)])))
        self._checkpoint = text

    async def acheckpoint(self, value: object) -> None:
        """Store a checkpoint without blocking the event loop; see `checkpoint`."""
        text = self._checkpoint_text(value)
        if self._services is not None:
            engine, worker = self._services.engine, self._services.worker
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
        if self._services is None:
            raise JobError(
                f"task {self.task!r} was called as a plain function, so there is no job that a transaction could"
                " complete. Enqueue it and let a worker run it."
            )
        return Completion(self._lease, self._signals, self._services, self._encode or _encode_freely)

    def _checkpoint_text(self, value: object) -> str:
        if self._signals.ended is not None:
            raise JobError(
                f"task {self.task!r}: a transaction block has ended this job, so no run will resume from a checkpoint."
                " Checkpoints come before the block."
            )
        what = f"task {self.task!r}: the checkpoint"
        return encode_json(value, what=what, max_bytes=MAX_CHECKPOINT, max_depth=MAX_DEPTH)

    def _report(self, checkpoint: str) -> Report:
        if self._signals.redaction is not None:
            checkpoint = self._signals.redaction.checkpoint(checkpoint, MAX_CHECKPOINT)
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
