"""Events: everything that a worker reports, one class per event.

What is told of the outcome of a job is told after the store has accepted it, so it has happened.

Whether an errored job is retried or has failed is decided in the store. The worker tells it by the same rules
(`model.states`) from what it knows of the job; what only the store knows, such as a cancel that came last, is
in the job itself.
"""

from collections.abc import Sequence
from uuid import UUID

from msgspec import Struct

from shigoto.model.job import FailureKind, Lease
from shigoto.model.time import Millis
from shigoto.model.worker import Rescued


class Event(Struct, frozen=True):
    """Something that happened in a worker."""

    worker: str


class WorkerStarted(Event, frozen=True):
    """The worker is registered and begins to claim.

    `children` is how many processes for single jobs it may start. One that is not `supervised` beats from a thread of
    its own process only.
    """

    worker_id: UUID
    queues: tuple[str, ...] | None
    concurrency: int
    threads: int
    children: int = 0
    supervised: bool = False


class WorkerStopping(Event, frozen=True):
    """The worker claims no more; what runs may end by itself for a while."""

    reason: str


class WorkerLeaving(Event, frozen=True):
    """The worker is about to give back what it could not finish, and to leave the store.

    `running` handlers are still at work, or may have left something at work: their process should end soon.
    """

    running: int


class WorkerStopped(Event, frozen=True):
    """The worker has left.

    `unreleased` jobs could not be given back, `running` handlers could not be stopped.
    """

    reason: str
    unreleased: int
    running: int


class JobsClaimed(Event, frozen=True):
    """The worker has taken jobs, one at least, and is about to run them. Told once for each claim."""

    leases: Sequence[Lease]


class JobEvent(Event, frozen=True, gc=False):
    """Something that happened to one job. Nothing in it can refer back to it, as in a Lease."""

    job_id: UUID
    number: int
    task: str
    queue: str
    tenant: str
    attempt: int


class JobStarted(JobEvent, frozen=True, gc=False):
    """The handler is about to be called."""


class JobCompleted(JobEvent, frozen=True, gc=False):
    """The handler returned and its result is stored. `duration` is in seconds, here and below."""

    duration: float


class JobRetried(JobEvent, frozen=True, gc=False):
    """The run failed, and the job will run again after `delay`."""

    duration: float
    delay: Millis
    kind: FailureKind
    error: str


class JobFailedEvent(JobEvent, frozen=True, gc=False):
    """The job has failed for good. The `traceback` is what the store keeps of it; the log leaves it out."""

    duration: float
    kind: FailureKind
    error: str
    traceback: str | None = None


class JobSnoozed(JobEvent, frozen=True, gc=False):
    """The handler asked to be run again after `delay`; that is no failure."""

    duration: float
    delay: Millis


class JobReleased(JobEvent, frozen=True, gc=False):
    """The job was given back: unrun, or cut short by a stop."""

    duration: float


class JobCancelledEvent(JobEvent, frozen=True, gc=False):
    """The run was stopped by a cancel, or the handler asked for one."""

    duration: float


class JobCrashed(JobEvent, frozen=True, gc=False):
    """The process of the job died under it, with nobody else inside; the job will run again, alone, after `delay`.

    After too many of these it has failed, and JobFailedEvent is told instead, with the kind crash_loop.
    """

    duration: float
    delay: Millis
    error: str


class JobStuck(JobEvent, frozen=True, gc=False):
    """The run goes on although it should have ended; `stack` is where it is. Told once.

    `why` it should have: "soft limit" in a thread, which cannot be stopped; on the event loop "limit", "cancel" or
    "loss", if it was told to end and did not give in. The `limit` is the one it has passed, if it has one.
    """

    limit: Millis | None
    stack: str
    why: str = "soft limit"


class LeaseLostEvent(JobEvent, frozen=True, gc=False):
    """The outcome was refused and dropped, because the job belongs to somebody else by now."""

    duration: float


class WorkersFenced(Event, frozen=True):
    """Workers that did not beat for too long; whatever they still write is refused."""

    workers: tuple[UUID, ...]


class JobsRescued(Event, frozen=True):
    """Jobs that a sweep took from workers that are gone."""

    jobs: tuple[Rescued, ...]


class TasksUnknown(Event, frozen=True):
    """Jobs of these tasks waited for longer than `Shigoto(unknown_after=…)` allows, known to no worker, and failed."""

    tasks: tuple[str, ...]


class JobsPromoted(Event, frozen=True):
    """Scheduled jobs whose time has come."""

    count: int


class SchedulesDeclared(Event, frozen=True):
    """Schedules that this code declares are new in the store, or are now what the code says."""

    schedules: tuple[str, ...]


class TickFired(Event, frozen=True):
    """A tick has become a job, `late` milliseconds after its time."""

    schedule: str
    at: Millis
    outcome: str
    job: UUID
    late: Millis


class TickPassed(Event, frozen=True):
    """A tick did not fire, or `count` of a stretch that begins with it."""

    schedule: str
    at: Millis
    outcome: str
    count: int


class TickLost(Event, frozen=True):
    """Another instance was first: it has fired the tick, or changed the schedule."""

    schedule: str


class ScheduleFailed(Event, frozen=True):
    """The job of a tick could not be made or stored, `errors` times in a row; `failed` if that was the last try, after
    which the schedule waits for somebody to mend and resume it, or is `removed`."""

    schedule: str
    error: str
    errors: int
    failed: bool
    removed: bool = False


class ScheduleRemoved(Event, frozen=True):
    """A schedule that had failed is removed, since `when_failed="remove"` was said of it."""

    schedule: str


class SchedulerStarted(Event, frozen=True):
    """A scheduler without a worker begins; `schedules` are those that its code declares."""

    schedules: tuple[str, ...]


class SchedulerStopping(Event, frozen=True):
    """It finishes the cycle at hand, and begins no other."""

    reason: str


class SchedulerStopped(Event, frozen=True):
    """It has stopped; `forced` parts of it did not end in time, and were cut off."""

    reason: str
    forced: int


class SchedulerDegraded(Event, frozen=True):
    """It cannot reach its store, so nothing is fired; it keeps trying."""

    error: str


class SchedulerRecovered(Event, frozen=True):
    """It reaches its store again, after so many seconds; what was due meanwhile is caught up as its schedules say."""

    seconds: float


class ChildFailed(Event, frozen=True):
    """A process for single jobs could not begin; the next one is tried in `retry_in` seconds."""

    error: str
    retry_in: float


class RunnerStarted(Event, frozen=True):
    """A supervisor has started a runner process; its worker tells more when it begins."""

    pid: int


class RunnerFailed(Event, frozen=True):
    """A runner process could not begin. The next one starts in `retry_in` seconds; None: when the code changes."""

    error: str
    retry_in: float | None


class RunnerPaused(Event, frozen=True):
    """A runner process is stopped by a signal. Nobody beats for it, so others get its jobs when its lease is over."""

    pid: int


class RunnerRetired(Event, frozen=True):
    """A runner process is asked to end, and will be replaced."""

    pid: int
    reason: str


class RunnerDied(Event, frozen=True):
    """A runner process has died with `jobs` running; a new one starts in `retry_in` seconds, None if none does.

    `words` is what the interpreter itself had to say of the crash, if anything.
    """

    pid: int
    how: str
    jobs: int
    retry_in: float | None
    words: str


class StoreTrouble(Event, frozen=True):
    """One step (`part`) could not reach the store, and will try again in `retry_in` seconds.

    `repeated` if it has told the same a short while ago.
    """

    part: str
    error: str
    retry_in: float
    repeated: bool = False


class StoreRecovered(Event, frozen=True):
    """The step reaches the store again, after so many tries in vain."""

    part: str
    tries: int


class StoreAnswered(Event, frozen=True):
    """The store took so many `seconds` to do what was asked, or to fail; `verb` is that of the engine."""

    verb: str
    seconds: float


class ClockStepped(Event, frozen=True):
    """The store's clock was set back by so much; every lease began anew."""

    step: Millis
