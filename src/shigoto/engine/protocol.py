"""The contract between the runtime and the engines.

Policy lives above this line (backoff, encoding, schedules, time limits), atomicity below it (claim under limits, token
check, uniqueness, counters, the caller's transaction). Every method takes and returns batches, as an `Op` to be run by
the same engine's `run`, `arun` or `join`.

`Registry` is what the service keeps beside the jobs, and asks about them. Every engine has it as
`engine.registry`; its ops are run like all others. `Relay` is an engine that hands everything on to another one, to be
overridden where somebody wants it otherwise. For type checkers it inherits `Engine`, as `RemoteEngine` does. So the
methods of `Engine` raise instead of being empty: empty ones would be abstract.

To add a method: write it here with its promise, then its tests in `conformance/`, then every engine (for HTTP a row in
the table of `engine.remote.protocol`), then the documentation.
"""

from collections.abc import Callable, Collection, Sequence
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from msgspec import Struct

from shigoto.engine.op import Op
from shigoto.model.job import (
    Attempt,
    Counts,
    Enqueued,
    Job,
    JobFilter,
    JobSpec,
    Lease,
    LoggedLine,
    QueueSettings,
    State,
)
from shigoto.model.schedule import Change, Due, Schedule, TickEntry
from shigoto.model.secrets import EncryptedText, ReencryptedText
from shigoto.model.service import AuditEntry, FeedPosition, Happening, Token
from shigoto.model.time import Millis
from shigoto.model.worker import (
    Announcement,
    Death,
    Orders,
    Promoted,
    Report,
    Rescued,
    Settlement,
    SweepOrder,
    Swept,
    Verdict,
    Want,
    WorkerRecord,
)

T = TypeVar("T")


class Registry(Protocol):
    """Tokens, the audit, the feed of what has happened, and what is encrypted."""

    def add_token(self, token: Token) -> Op[bool]:
        """Keep a token, as created now; False, and nothing is changed, if its id is taken."""
        ...

    def tokens(self) -> Op[list[Token]]:
        """All of them, the oldest first, those that were revoked or have expired, too."""
        ...

    def revoke_token(self, id: str) -> Op[bool]:
        """From now on it opens nothing; False if it is unknown or was revoked before."""
        ...

    def note(self, entries: Sequence[AuditEntry]) -> Op[None]:
        """Write into the audit what was done, in this order, as of now."""
        ...

    def noted(
        self, *, before: int | None = None, limit: int = 100, target: str | None = None
    ) -> Op[list[AuditEntry]]:
        """A page of the audit, the newest first: those with a number below `before`, and of this target, if named."""
        ...

    def watch(self) -> Op[None]:
        """Make `happened` cheap from now on, at a price for every job that ends. Idempotent."""
        ...

    def happened(self, after: FeedPosition, until: Millis, limit: int) -> Op[tuple[list[Happening], Millis]]:
        """What stands behind `after` and has happened before the instant `until`, in order, at most `limit`; and
        store time now.

        Whoever follows the feed asks for a few seconds at a time, and looks back: a commit may come later than the
        instant it bears.
        """
        ...

    def encrypted(
        self, current: str, *, after: int, limit: int
    ) -> Op[tuple[list[EncryptedText], int | None]]:
        """What is encrypted by any key but the one with the id `current`, of the first `limit` jobs with a number above
        `after`; and the number of the last of these jobs, None if there is none."""
        ...

    def reencrypt(self, changes: Sequence[ReencryptedText]) -> Op[int]:
        """Put other envelopes into the places of these, and count them: each only if what was seen still stands there.

        The one way in which the arguments of a stored job are written anew; nothing else of it changes.
        """
        ...


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine can do; asking for what it cannot is refused before anything is written."""

    name: str
    durable: bool  # jobs survive the process
    shared: bool  # several processes may open the same store
    joins: bool  # enqueue inside the caller's own transaction
    moves: bool = False  # its jobs can be moved, exported and imported (`engine.movable`)
    repairs: bool = True  # its users sweep, promote and fire schedules; else it does that by itself
    served: bool = (
        False  # it is behind a server, which sees to limits, and notes what operators do, by itself
    )
    block_limit: float | None = None  # seconds that a transaction block may last, where it need not be short


class Doorbell(Protocol):
    """How one waiter hears of work. It may miss a ring or ring for nothing: polling alone is always correct."""

    async def wait(self, timeout: float) -> bool:
        """Return True when work may be ready, False after `timeout` seconds."""
        ...

    def close(self) -> None:
        """Stop listening. Closing twice is fine."""
        ...


class Block(Protocol):
    """One write transaction on the store's database for somebody's own statements; `with` or `async with`, once.

    It gives a connection, with awaitable methods if it was entered with `async with`, which `using(connection=…)` takes
    too. It commits at the end of the block, and rolls back if the block raises.
    """

    def give_up(self) -> None:
        """Roll back soon, whoever is in it: the job has ended without it. Never waits."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Engine(Protocol):
    """A store: it carries jobs, and keeps time, history and order."""

    @property
    def capabilities(self) -> Capabilities:
        raise AttributeError

    def run(self, op: Op[T]) -> T:
        """Run an op in the calling thread and commit it. Safe from any thread."""
        raise AttributeError

    async def arun(self, op: Op[T]) -> T:
        """Run an op without blocking the event loop; ops that wait together may share one commit."""
        raise AttributeError

    def join(self, connection: object, op: Op[T]) -> T:
        """Run an op on the caller's open connection, inside the caller's transaction. Never begins or commits."""
        raise AttributeError

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        """The same for async callers; where the connection has a thread of its own, without blocking the event loop."""
        raise AttributeError

    def listen(self) -> Doorbell:
        """A new doorbell, for use on the running event loop."""
        raise AttributeError

    def close(self) -> None:
        """Release every resource. Closing twice is fine; a later call opens again."""
        raise AttributeError

    def enqueue_many(self, specs: Sequence[JobSpec]) -> Op[list[Enqueued]]:
        """T1, T17: store the jobs, all or none, and answer in the order of `specs`.

        A spec whose id is already stored is answered with the stored job and changes nothing. A unique key is resolved
        by its mode, in list order. A job whose time has come is ready at once, any other is scheduled.
        """
        raise AttributeError

    def claim(self, worker: UUID, wants: Sequence[Want]) -> Op[list[Lease]]:
        """T2: lease ready jobs to the worker, each want by itself, best first: priority, then run_at, then number.

        Only jobs that are due, not expired, of a wanted task, in a wanted queue that is not paused. Each claim raises
        the job's token by one. Never gives a job to two workers. A fenced or unknown worker gets nothing.
        An engine may stop early, though more is ready, once what it gives has CLAIM_BYTES; whoever asked may ask again.

        Unless a want is `thorough`, an engine may for up to a second overlook a job that came to stand before others of
        its priority that were taken already: given back, promoted late, or committed late. That is for an engine in
        which taken rows lie in the way, and then only while they do. Memory and SQLite always see everything.
        """
        raise AttributeError

    def beat(self, worker: UUID, held: Sequence[tuple[int, int]] | None) -> Op[Orders]:
        """Renew the worker's lease, unless it is fenced, and tell what it must know.

        `held` is the (number, token) of everything it still runs or is about to settle. Jobs that the store counts as
        its own but that are not in `held`, claimed longer ago than the claim deadline, are released (T8). None is for
        a beat by somebody who does not know what it holds: then nothing is released, and nothing called lost.
        """
        raise AttributeError

    def report(self, worker: UUID, reports: Sequence[Report]) -> Op[list[bool]]:
        """T3: store progress, checkpoints and log lines of running jobs; False for each lease that is lost."""
        raise AttributeError

    def settle(self, worker: UUID, settlements: Sequence[Settlement]) -> Op[list[Verdict]]:
        """T4-T8, T13: end runs, any mix of endings in one batch, each guarded by (number, token, worker).

        Idempotent: a settlement that did commit earlier is answered REPEATED and changes nothing, but its log lines
        are kept: some are written after a transaction block has ended the job.
        Where somebody else's transaction keeps some of several jobs locked, these are answered BUSY.
        """
        raise AttributeError

    @property
    def address(self) -> str:
        """Where any other process, whatever its working directory is, opens the same store: for `open_engine`.

        Raises Unsupported if no other process can, OptionInvalid if there is no way to say it.
        """
        raise AttributeError

    @property
    def registry(self) -> Registry:
        """Its tokens, its audit and its feed. Raises Unsupported where those are for somebody else to keep."""
        raise AttributeError

    def block(self, last: Callable[[], Op[Any]], *, limit: float) -> Block:
        """A transaction for a handler's own statements, which runs `last` in itself just before it commits.

        If `last` raises, everything is rolled back. A block that is open for longer than `limit` seconds is rolled back
        too, and raises TransactionTooLong. Raises Unsupported where the engine has no transactions to give away.
        """
        raise AttributeError

    def migrate(self) -> list[str]:
        """Bring the schema up to date and name the migrations that were applied. Idempotent, safe in parallel."""
        raise AttributeError

    def announce(self, announcement: Announcement) -> Op[None]:
        """Register a worker, or change what it said of itself; its lease starts now."""
        raise AttributeError

    def leave(self, worker: UUID) -> Op[int]:
        """Forget a worker that runs nothing any more; what it holds without knowing is released (T8) and counted."""
        raise AttributeError

    def report_dead(self, worker: UUID, deaths: Sequence[Death]) -> Op[list[Rescued]]:
        """Forget a worker whose process is known to have ended: the jobs in `deaths` have crashed (T9), everything else
        that it held is released (T8), and both count as not settled. Tells of all of them. A death counts towards
        quarantine only if it says that the job was alone.

        A death of a job that it does not hold is ignored; so is a worker that is unknown or fenced.
        """
        raise AttributeError

    def promote(self, limit: int) -> Op[Promoted]:
        """Make due scheduled jobs ready, in run_at order, at most `limit`."""
        raise AttributeError

    def sweep(self, order: SweepOrder) -> Op[Swept]:
        """Repair: fence the named workers if they are still expired, then free the jobs of every worker that is gone
        (T10, T13), fail what has expired (T16) and what nobody knows how to run (`unknown_after`), prune what was kept
        long enough (T18).

        Such a crash counts towards quarantine only if a suspect ran on a worker that does not isolate, or was the only
        job of the worker when this sweep fenced it.
        """
        raise AttributeError

    def switch_notices(self, on: bool) -> Op[bool]:
        """Say, for all who use the store, whether somebody wants to hear of things; tells whether that is news.

        While it is on, whoever makes a job fail for good, by whatever way, stores a `shigoto.notice` of it in the same
        transaction; so does whoever fences a worker or writes ticks down as missed. Never of jobs that are about
        notices themselves, and never two of one event: the id of a notice is made from what it tells of.
        """
        raise AttributeError

    def cancel(self, ids: Sequence[UUID], *, force: bool = False) -> Op[list[State | None]]:
        """T11, T12: cancel pending jobs at once, ask running ones to stop; the state afterwards, None if unknown.

        Ended jobs stay as they are. A running job stays processing until its worker has stopped it. By `force` (T14) it
        is cancelled at once, and its lease is void: what its worker still writes is refused.
        """
        raise AttributeError

    def retry(self, ids: Sequence[UUID]) -> Op[list[Enqueued]]:
        """T15: make failed or cancelled jobs ready again, with failures, solo crashes and snoozes back at zero.

        Raises JobNotFound, JobNotRetryable or KeyTaken, and then changes nothing.
        """
        raise AttributeError

    def deletable(self, wanted: JobFilter, *, after: int = 0) -> Op[list[int]]:
        """The numbers of matching jobs that may be deleted: the oldest after the number `after`, at most
        `wanted.limit`. It may have to look at all of them, and keeps nobody waiting meanwhile.

        Never a processing or blocked one: a filter without a state leaves those alone, one that names them has none.
        """
        raise AttributeError

    def delete(self, numbers: Sequence[int], states: Collection[State]) -> Op[int]:
        """Delete those of the jobs that are now in one of the states, with all that is known of them, and count them.

        Never a processing or blocked one, whatever `states` says. Looks at these jobs only.
        """
        raise AttributeError

    def count(self, wanted: JobFilter) -> Op[int]:
        """How many jobs match, whatever `wanted.limit` and `wanted.before` say. It may have to look at all of them."""
        raise AttributeError

    def get(self, ids: Sequence[UUID]) -> Op[list[Job | None]]:
        """The jobs, in order; None where an id is not stored."""
        raise AttributeError

    def find(self, wanted: JobFilter) -> Op[list[Job]]:
        """A page of matching jobs, newest first."""
        raise AttributeError

    def attempts(self, id: UUID) -> Op[list[Attempt]]:
        """The runs of a job that did not end completed, oldest first; of released ones, the last."""
        raise AttributeError

    def logs(self, id: UUID) -> Op[list[LoggedLine]]:
        """The lines that the runs of a job have written, as far as they are kept, oldest first."""
        raise AttributeError

    def stats(self) -> Op[dict[str, Counts]]:
        """Exact counts by queue, at a cost that does not grow with history."""
        raise AttributeError

    def oldest(self) -> Op[dict[str, Millis]]:
        """By queue, since when its longest waiting job could have been claimed, of those first in line; only where one
        waits. It does not matter how many do, or whether the queue is paused.
        """
        raise AttributeError

    def configure(self, settings: QueueSettings) -> Op[None]:
        """Replace an operator's settings of one queue, pausing or resuming it."""
        raise AttributeError

    def settings(self) -> Op[list[QueueSettings]]:
        """The settings of every queue that has had a job or a setting, by name."""
        raise AttributeError

    def workers(self) -> Op[list[WorkerRecord]]:
        """The workers that are registered and not fenced, oldest first."""
        raise AttributeError

    def time(self) -> Op[Millis]:
        """What time it is at the store, by which everything is due."""
        raise AttributeError

    def schedules(self, names: Sequence[str] | None = None) -> Op[list[Schedule]]:
        """The schedules of these names, or all of them, by name."""
        raise AttributeError

    def due(self, declared: Collection[str], limit: int) -> Op[Due]:
        """The schedules that somebody has to look at: `look_at` has come, or they have reached further ahead than
        CLOCK_JUMPED_BACK, ended or not, because the clock has gone back; at most `limit`, the longest overdue first.
        One that has failed is not among the latter.

        Only those without an origin, and those that the caller declares: what the others do is in somebody else's code.
        """
        raise AttributeError

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        """Change schedules, with all that goes with it in one transaction; tells what was done of each, and None if
        nothing was: somebody has changed the schedule since its revision was `seen`, or removed and added it again.

        An entry for a tick that has one which fires changes nothing and stores no job: one job per (schedule, instant).
        It is not counted, also where an entry tells of many ticks, and if none of the jobs is new, none makes room:
        what is told to be done is without it. Otherwise it takes the place of what was there. Its job is the one that
        then stands, which is another where a unique key says so; and so is that of the schedule, if the tick fired by
        itself and nobody asked for it. Of one schedule the newest KEPT entries are kept, or up to a fifth more, and
        whatever reaches into their time. A change that is heard has the revision after the one it saw, and never an
        older `declared_at`. What it cancels is cancelled before its jobs are stored, so that one may take the key of
        the other. What it forgets by `back_to` is no longer counted. One that `removes` is told as done, and leaves
        its jobs only.
        """
        raise AttributeError

    def remove_schedules(self, names: Sequence[str]) -> Op[list[bool]]:
        """Forget schedules and their histories; False for each that is not known. Their jobs stay."""
        raise AttributeError

    def declare(self, names: Collection[str]) -> Op[int]:
        """Say of schedules that a living process declares them, as of now; no change of them, and no new revision.

        Tells of how many that was said: fewer, if some are not known, or are just changed by somebody else.
        """
        raise AttributeError

    def history(self, name: str, *, before: Millis | None = None, limit: int = 100) -> Op[list[TickEntry]]:
        """The entries of a schedule, the newest first, those before an instant if one is named."""
        raise AttributeError


if TYPE_CHECKING:
    DynamicEngine = Engine
else:
    DynamicEngine = object  # its subclasses make at run time what they do not define


class Relay(DynamicEngine):
    """Every promise of the protocol, kept by `engine`: each name of `Engine` becomes a property that asks it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine


for _name in vars(Engine):
    if not _name.startswith("_"):
        setattr(Relay, _name, property(attrgetter(f"engine.{_name}")))
