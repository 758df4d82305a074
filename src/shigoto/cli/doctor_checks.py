"""The facts and findings of the doctor, and its checks of a store, its machine, jobs, workers and schedules.

Each check is a pure function for one question, from the facts to a finding, or to None if the question makes no sense
for this store. The checks of a PostgreSQL server are in `doctor_postgres.py`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from shigoto.cli.confirm import jobs, names
from shigoto.cli.output import span
from shigoto.cli.target import NO_HINT, CommandHint
from shigoto.model.checkup import Checkup, FileFacts, LaneFacts, ServerFacts, StoreFacts
from shigoto.model.job import Counts, QueueSettings
from shigoto.model.schedule import Schedule
from shigoto.model.time import MAX_HOLD, Millis, to_datetime, to_millis
from shigoto.model.worker import WorkerRecord
from shigoto.schedule.declare import HEARD_WITHIN

MENDED = (3, 51, 3)  # the first SQLite without the WAL-reset bug
MIB = 1024 * 1024
LONG_LOG = 64 * MIB  # four times what makes us copy it back
LITTLE_SPACE, NO_SPACE = 512 * MIB, 64 * MIB

# On a network the store is not opened at all; its engine says why.
VANISHING = {
    "overlay": "of a container's own layer, which is thrown away with the container",
    "tmpfs": "in memory, which is lost when the machine restarts",
    "ramfs": "in memory, which is lost when the machine restarts",
}

PATIENCE = timedelta(minutes=5)  # with ready jobs: a deployment may take as long
NO_WORKER_FOR = timedelta(minutes=1)
NAMED = 5  # lanes, queues or workers in one sentence
OVERDUE: Millis = 60_000


class Level(StrEnum):
    """How bad it is; only a problem makes the doctor's exit code 1."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Struct, frozen=True):
    """What one check found, and what to do about it."""

    check: str
    level: Level
    text: str
    remedy: str | None = None


class DoctorFacts(Struct, frozen=True, kw_only=True):
    """All that the checks may know. `checkup` is for engines that look after themselves, `hint` for remedies that are
    commands."""

    now: datetime
    python: str
    engine: str
    checkup: Checkup | None = None
    queues: dict[str, Counts] = {}
    settings: list[QueueSettings] = []
    workers: list[WorkerRecord] = []
    quarantined: int = 0
    schedules: list[Schedule] = []
    unreadable: dict[str, str] = {}  # schedules of which nobody here can tell when they are due, and why
    hint: CommandHint = NO_HINT

    @property
    def store(self) -> StoreFacts | None:
        """The store from inside, if its engine could tell."""
        return None if self.checkup is None else self.checkup.store

    @property
    def file(self) -> FileFacts | None:
        return None if self.checkup is None else self.checkup.file

    @property
    def server(self) -> ServerFacts | None:
        return None if self.checkup is None else self.checkup.server

    @property
    def refused(self) -> bool:
        """Whether the store could not be opened, so that nothing is known of its jobs."""
        return self.checkup is not None and self.checkup.store is None

    @property
    def live(self) -> list[WorkerRecord]:
        """The workers whose lease is good."""
        return [worker for worker in self.workers if worker.lease_until >= self.now]

    @property
    def paused(self) -> set[str]:
        return {queue.name for queue in self.settings if queue.paused}

    @property
    def lanes(self) -> list[LaneFacts]:
        """What could run now, as far as that is known, without paused queues."""
        return (
            [] if self.store is None else [lane for lane in self.store.lanes if lane.queue not in self.paused]
        )

    def since(self, lanes: Sequence[LaneFacts]) -> timedelta:
        """How long the oldest job of these lanes has been ready."""
        return max((self.now - lane.oldest for lane in lanes), default=timedelta())


def python(facts: DoctorFacts) -> Finding:
    return Finding("python", Level.OK, f"This is Python {facts.python}.")


def store(facts: DoctorFacts) -> Finding | None:
    """Whether the store can be opened, and has the schema of this release."""
    if facts.checkup is None:
        return None
    if facts.checkup.refusal is not None:
        text = facts.checkup.refusal
        remedy = "Until this is mended nothing can be said about its jobs."
        return Finding("store", Level.PROBLEM, text, remedy)
    size = _bytes(max(part.size for part in (facts.file, facts.server) if part is not None))
    name = facts.checkup.name if facts.file is None else facts.file.path
    return Finding("store", Level.OK, f"{name} is up to date and has {size}.")


def move(facts: DoctorFacts) -> Finding | None:
    """Whether its jobs are on their way to another store, or were moved."""
    if facts.store is None or facts.store.move is None or facts.checkup is None:
        return None
    name = facts.checkup.name if facts.file is None else facts.file.path
    kind, other = facts.store.move.kind, facts.store.move.other
    if kind == "moved":
        text = f"{name} was moved to {other}, where its jobs are now: nothing is stored here any more."
        remedy = "Use that address."
        return Finding("move", Level.PROBLEM, text, remedy)
    doing = f"filled with the jobs of {other}" if kind == "filling" else f"moved to {other}"
    text = f"{name} is being {doing}, and that is not finished."
    remedy = "If it was interrupted, run the same command again, or `shigoto move … --give-up`."
    return Finding("move", Level.WARNING, text, remedy)


def version(facts: DoctorFacts) -> Finding | None:
    """Whether this SQLite has the WAL-reset bug."""
    if facts.checkup is None or facts.file is None:
        return None
    number = tuple(int(part) for part in facts.checkup.version.split("."))
    if number >= MENDED:
        return Finding("sqlite", Level.OK, f"SQLite {facts.checkup.version} has no known faults.")
    text = (
        f"SQLite {facts.checkup.version} has the WAL-reset bug, unless your distribution has mended it:"
        " a checkpoint beside a writer can corrupt the file. Shigoto's own checkpoints keep writers out."
    )
    remedy = (
        "Use app.connect() for statements of your own, since other connections checkpoint by themselves; or a"
        " Python with SQLite 3.51.3 or newer."
    )
    return Finding("sqlite", Level.NOTE, text, remedy)


def file_system(facts: DoctorFacts) -> Finding | None:
    """Whether the file lies where files stay."""
    if facts.file is None:
        return None
    kind = facts.file.file_system
    if kind in VANISHING:
        text = f"The store lies on a file system ({kind}) {VANISHING[kind]}."
        remedy = "Put it on a disk or a volume that stays, unless its jobs may be lost."
        return Finding("file system", Level.WARNING, text, remedy)
    named = f"The file system is {kind}." if kind else "The system does not tell the kind of file system."
    return Finding("file system", Level.OK, named)


def permissions(facts: DoctorFacts) -> Finding | None:
    file = facts.file
    if file is None:
        return None
    if file.forbidden:
        text = f"This user may not read and write {', '.join(file.forbidden)}."
        remedy = "Run as the user who owns the store, or give this one access to the file and its folder."
        return Finding("permissions", Level.PROBLEM, text, remedy)
    if file.exposed:
        text = f"Every user of this machine may change {', '.join(file.exposed)}."
        remedy = "Take the right to write from others: chmod o-w."
        return Finding("permissions", Level.WARNING, text, remedy)
    return Finding("permissions", Level.OK, "The file and its folder can be written.")


def space(facts: DoctorFacts) -> Finding | None:
    if facts.file is None or facts.file.free is None:
        return None
    free = facts.file.free
    level = Level.PROBLEM if free < NO_SPACE else Level.WARNING if free < LITTLE_SPACE else Level.OK
    remedy = (
        "Free some: on a full disk nothing can be enqueued or settled." if level is not Level.OK else None
    )
    return Finding("disk", level, f"The disk has {_bytes(free)} left.", remedy)


def log(facts: DoctorFacts) -> Finding | None:
    """Whether the write-ahead log is copied back as it should be."""
    if facts.file is None:
        return None
    size = facts.file.log_size
    if size < LONG_LOG:
        return Finding("log", Level.OK, f"The write-ahead log has {_bytes(size)}.")
    text = (
        f"The write-ahead log has grown to {_bytes(size)}: by one large commit, or because somebody reads for a"
        " long time and keeps it from being copied back."
    )
    remedy = (
        "The next commits will tell: if the log stays as long, find the connection that keeps a transaction open,"
        " perhaps a backup, a browser of the file or code of your own, and end it."
    )
    return Finding("log", Level.WARNING, text, remedy)


def journal(facts: DoctorFacts) -> Finding | None:
    """Whether commits are as safe as they should be."""
    if facts.store is None or facts.file is None:
        return None
    if facts.store.journal_mode != "wal":
        text = f"The journal mode is {facts.store.journal_mode!r}: readers and writers stop each other."
        remedy = "Somebody has changed it. Stop all processes and execute PRAGMA journal_mode = wal."
        return Finding("journal", Level.PROBLEM, text, remedy)
    if facts.store.synchronous != "full":
        text = f"synchronous is {facts.store.synchronous!r}: a power cut can lose the last commits."
        remedy = "Leave synchronous out of the store's address, unless that is what you want."
        return Finding("journal", Level.NOTE, text, remedy)
    return Finding("journal", Level.OK, "Every commit is on the disk before it counts.")


def integrity(facts: DoctorFacts) -> Finding | None:
    if facts.store is None or facts.store.damage is None:
        return None
    if facts.store.damage:
        text = f"The file is damaged: {'; '.join(facts.store.damage)}"
        remedy = "Stop all processes, keep a copy of the file and its -wal, and restore a backup."
        return Finding("integrity", Level.PROBLEM, text, remedy)
    return Finding("integrity", Level.OK, "No page of the file is damaged.")


def clock(facts: DoctorFacts) -> Finding | None:
    """Whether the machine's clock agrees with the times that the store has seen."""
    if facts.store is None or not facts.store.clock or facts.file is None:
        return None
    lead = to_datetime(facts.store.clock) - facts.now
    if lead > timedelta(milliseconds=MAX_HOLD):
        text = f"The store has seen a time that lies {span(lead)} ahead of this machine's clock."
        remedy = (
            "Set the clock right, with a time server. Workers go by it, and give every lease its time again."
        )
        return Finding("clock", Level.PROBLEM, text, remedy)
    if lead > timedelta(seconds=1):
        text = f"The clock was set back a little: for the next {span(lead)} time stands still for the store."
        remedy = "Nothing, if it happens once; a time server that slews the clock avoids it."
        return Finding("clock", Level.WARNING, text, remedy)
    ago = "" if lead > timedelta(seconds=-1) else f", and was last heard of {span(-lead)} ago"
    return Finding("clock", Level.OK, f"The store's clock agrees with this machine's{ago}.")


def _bytes(size: int) -> str:
    return f"{size / MIB / 1024:.1f} GiB" if size >= 1024 * MIB else f"{size / MIB:.1f} MiB"


def live_workers(facts: DoctorFacts) -> Finding | None:
    """Whether somebody is there to work, and whether all who said so still are."""
    if facts.refused:
        return None
    live = facts.live
    waiting = _due(facts) if facts.store is None else sum(lane.ready for lane in facts.lanes)
    if not live and waiting:
        long = facts.store is None or facts.since(facts.lanes) > NO_WORKER_FOR
        level = Level.PROBLEM if long else Level.WARNING
        text = f"No worker is alive, and {jobs(waiting)} could run."
        remedy = f"Start one: {facts.hint.command('worker')}."
        return Finding("workers", level, text, remedy)
    overdue = [worker for worker in facts.workers if worker.lease_until < facts.now]
    if overdue:
        silent = [f"{worker.name} (by {span(facts.now - worker.lease_until)})" for worker in overdue]
        held = sum(worker.processing for worker in overdue)
        text = f"No sign of life from {names(silent, NAMED)}; {jobs(held)} in hand."
        remedy = (
            "If they are gone, any live worker takes their jobs over within a minute."
            if live
            else "If they are gone, start a worker: it takes their jobs over."
        )
        return Finding("workers", Level.WARNING, text, remedy)
    return Finding("workers", Level.OK, f"{len(live)} alive." if live else "None, and no work.")


def orphaned_jobs(facts: DoctorFacts) -> Finding | None:
    """Whether jobs are counted as running although their worker is gone."""
    if facts.store is None or not facts.store.orphans:
        return None
    remedy = "A live worker frees them within seconds." if facts.live else "Start a worker: it frees them."
    level = Level.NOTE if facts.live else Level.WARNING
    text = f"{jobs(facts.store.orphans)} of workers that are gone count as running."
    return Finding("leases", level, text, remedy)


def unserved_lanes(facts: DoctorFacts) -> Finding | None:
    """Whether there are jobs that no live worker would take: of an unknown task, or of a queue nobody serves."""
    if not facts.live:
        return None
    lanes = [lane for lane in facts.lanes if not any(_serves(worker, lane) for worker in facts.live)]
    if not lanes:
        return None
    known = {task for worker in facts.live for task in worker.tasks}
    told = [
        f"{lane.task} in {lane.queue} ({jobs(lane.ready)}, for {span(facts.now - lane.oldest)},"
        f" {'no worker takes that queue' if lane.task in known else 'nobody knows the task'})"
        for lane in lanes
    ]
    level = Level.PROBLEM if facts.since(lanes) > PATIENCE else Level.WARNING
    text = f"No live worker takes {names(told, NAMED)}."
    remedy = "Start a worker whose app has the task and that serves the queue; or cancel the jobs."
    return Finding("tasks", level, text, remedy)


def paused_queues(facts: DoctorFacts) -> Finding | None:
    waiting = {
        name: counts.pending
        for name, counts in facts.queues.items()
        if name in facts.paused and counts.pending
    }
    if not waiting:
        return None
    told = [f"{name} ({jobs(pending)})" for name, pending in waiting.items()]
    text = f"Jobs wait in paused queues: {names(told, NAMED)}."
    remedy = f"{facts.hint.command('resume', *list(waiting)[:NAMED])} lets them run."
    return Finding("queues", Level.NOTE, text, remedy)


def isolated_jobs(facts: DoctorFacts) -> Finding | None:
    """Whether jobs wait for a process of their own and no live worker has one to give."""
    lanes = [lane for lane in facts.lanes if lane.alone and _is_refused(facts.live, lane)]
    if not lanes:
        return None
    count = sum(lane.ready for lane in lanes)
    text = (
        f"{jobs(count)} must run in a process of {_own(count)} own, because of a crash or a time limit,"
        " and no live worker can do that."
    )
    remedy = (
        f"Start a worker by `{facts.hint.command('worker')}`: those that are part of another program have no such"
        " processes."
    )
    return Finding("isolation", Level.WARNING, text, remedy)


def quarantined_jobs(facts: DoctorFacts) -> Finding | None:
    if not facts.quarantined:
        return None
    these = ("--kind", "crash_loop")
    text = (
        f"{jobs(facts.quarantined)} killed {_own(facts.quarantined)} process again and again, and"
        f" {'was' if facts.quarantined == 1 else 'were'} put away."
    )
    remedy = (
        f"{facts.hint.command('list', *these)} names them, and {facts.hint.command('show')} has the signal and the"
        f" stack of each. Mend the code, then {facts.hint.command('redrive', *these)}."
    )
    return Finding("quarantine", Level.WARNING, text, remedy)


def backlog(facts: DoctorFacts) -> Finding | None:
    """Whether workers come to the jobs that they take in good time."""
    if facts.store is None or facts.refused:
        return None
    served = [lane for lane in facts.lanes if any(_serves(worker, lane) for worker in facts.live)]
    if facts.since(served) <= PATIENCE:
        return Finding("backlog", Level.OK, "No job that a worker would take has waited for long.")
    oldest = min(served, key=lambda lane: lane.oldest)
    text = f"A job of {oldest.task} in {oldest.queue} has been ready for {span(facts.now - oldest.oldest)}."
    remedy = (
        "The workers do not keep up: start more, or give them more slots with --concurrency or --processes."
    )
    return Finding("backlog", Level.WARNING, text, remedy)


def _serves(worker: WorkerRecord, lane: LaneFacts) -> bool:
    return lane.task in worker.tasks and (worker.queues is None or lane.queue in worker.queues)


def _is_refused(live: Sequence[WorkerRecord], lane: LaneFacts) -> bool:
    """Whether workers would take this lane, and none of them can run a job by itself."""
    serving = [worker for worker in live if _serves(worker, lane)]
    return bool(serving) and not any(worker.isolates for worker in serving)


def _due(facts: DoctorFacts) -> int:
    """How many pending jobs are due, where only counts are known."""
    return sum(
        counts.pending - counts.scheduled for name, counts in facts.queues.items() if name not in facts.paused
    )


def _own(count: int) -> str:
    return "its" if count == 1 else "their"


def failed_schedules(facts: DoctorFacts) -> Finding | None:
    broken = [each for each in facts.schedules if each.failed]
    if not broken:
        return None
    told = names([f"{each.name} ({each.error})" for each in broken])
    text = f"{_schedules_in_words(broken)} not fired any more, after too many errors: {told}."
    remedy = f"Mend the cause, then: shigoto schedules resume {broken[0].name}."
    return Finding("schedules", Level.PROBLEM, text, remedy)


def overdue_schedules(facts: DoctorFacts) -> Finding | None:
    """Whether somebody ticks at all."""
    late = [each for each in facts.schedules if _is_overdue(each, facts)]
    if facts.live:
        late = [
            each for each in late if not _is_undeclared(each, facts) and each.name not in facts.unreadable
        ]
    if not late:
        return None
    late.sort(key=lambda each: (each.look_at or 0, each.name))
    told = names([f"{each.name} (by {span(facts.now - to_datetime(each.look_at or 0))})" for each in late])
    remedy = (
        "None of the workers ticks, or none knows their code: some are told not to, and one that drains never does."
        f" Start one that does: {facts.hint.command('worker')}."
        if facts.live
        else f"Nobody is there to tick: start a worker, {facts.hint.command('worker')}."
    )
    text = f"{_schedules_in_words(late)} overdue: {told}."
    return Finding("schedules", Level.PROBLEM, text, remedy)


def undeclared_schedules(facts: DoctorFacts) -> Finding | None:
    """Whether there are schedules whose code is gone, so that nobody fires them."""
    lost = [each for each in facts.schedules if _is_undeclared(each, facts)]
    if not facts.live or not lost:  # without a worker nobody could declare them
        return None
    told = names([f"{each.name} (by {each.origin})" for each in lost])
    text = (
        f"{_schedules_in_words(lost)} declared in code that no process has any more, and not fired: {told}."
    )
    remedy = (
        "Start a worker whose app has that code. If it is gone for good: shigoto schedules remove"
        f" {lost[0].name}."
    )
    return Finding("schedules", Level.WARNING, text, remedy)


def unreadable_schedules(facts: DoctorFacts) -> Finding | None:
    """Whether there are schedules of which nobody here can tell when they are due; and elsewhere neither, if no worker
    has fired them."""
    waiting = [each for each in facts.schedules if each.look_at is not None and not each.failed]
    lost = [each for each in waiting if each.name in facts.unreadable]
    if not lost:
        return None
    told = names([f"{each.name} ({facts.unreadable[each.name].rstrip('.')})" for each in lost])
    level = Level.PROBLEM if any(_is_overdue(each, facts) for each in lost) else Level.WARNING
    text = f"{_schedules_in_words(lost)} not understood here, and fired by no such process: {told}."
    remedy = (
        "Install tzdata where workers and schedulers run, or give it another time zone: shigoto schedules update"
        f" {lost[0].name} --tz ZONE. One that code declares gets it there."
    )
    return Finding("schedules", level, text, remedy)


def _is_overdue(schedule: Schedule, facts: DoctorFacts) -> bool:
    return schedule.look_at is not None and schedule.look_at < to_millis(facts.now) - OVERDUE


def _is_undeclared(schedule: Schedule, facts: DoctorFacts) -> bool:
    return bool(schedule.origin) and schedule.declared_at < to_millis(facts.now) - HEARD_WITHIN


def _schedules_in_words(some: Sequence[Schedule]) -> str:
    return "1 schedule is" if len(some) == 1 else f"{len(some)} schedules are"
