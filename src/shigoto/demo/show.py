"""The demo itself: a store, worker processes, a stream of jobs, and the reckoning.

    produce   jobs enter the store for a while, while the workers take them out
    drain     no more jobs enter; the last ones, delayed and retried ones too, come to their end
    reckon    every job that was enqueued is looked up: is any of them lost?

It runs in one thread and tells a watcher what it sees; how that is displayed is not its business.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Literal
from uuid import UUID

from msgspec import Struct, json

from shigoto.app import Shigoto
from shigoto.demo import BEAT, Acts
from shigoto.demo.troupe import Troupe
from shigoto.engine.protocol import Engine
from shigoto.model.job import Counts, Job, JobFilter, State

WORKERS = 2
SLOTS = ("--concurrency", "8", "--threads", "2", "--log-level", "warning")
DRAINS_WITHIN = 30.0  # seconds
RATE_OVER = 2.0  # seconds
SHOWN_RUNNING = 4
SHOWN_EVENTS = 5
PAGE = 500

Phase = Literal["starting", "producing", "draining"]


class Snapshot(Struct, frozen=True, kw_only=True):
    """What there is to see at one moment."""

    phase: Phase
    seconds: float
    store: Path
    workers: int
    enqueued: int
    retried: int
    queues: dict[str, Counts]
    rate: float
    running: tuple[Job, ...]
    events: tuple[str, ...]


class Report(Struct, frozen=True, kw_only=True):
    """What became of the jobs. Lost is one that neither ended nor waits, now that nobody works any more."""

    enqueued: int
    completed: int
    retried: int
    failed: int
    cancelled: int
    pending: int
    lost: int
    seconds: float
    workers: int
    ended_well: bool
    tasks: dict[str, int]


Watch = Callable[[Snapshot], None]


@contextmanager
def temporary_folder(*, keep: bool) -> Generator[Path]:
    """A new folder, removed at the end whatever happens, unless it is to be kept."""
    folder = Path(mkdtemp(prefix="shigoto-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            rmtree(folder, ignore_errors=True)


def put_on(folder: Path, *, seconds: float, watch: Watch, complain: Callable[[str], None]) -> Report:
    """Produce jobs for so many seconds with two worker processes at work, and tell what became of them."""
    store = folder / "jobs.db"
    app = Shigoto(str(store))
    acts = Acts(app)
    app.engine.migrate()
    troupe = Troupe("shigoto.demo:stage", str(store), count=WORKERS, folder=folder, options=SLOTS)
    try:
        with troupe:
            show = Show(app, acts, troupe, store)
            show.produce(seconds, watch)
            show.drain(watch)
        for line in troupe.last_words():
            complain(line)
        return show.report()
    finally:
        app.close()


class Show:
    """One performance."""

    def __init__(self, app: Shigoto, acts: Acts, troupe: Troupe, store: Path) -> None:
        self._app = app
        self._acts = acts
        self._troupe = troupe
        self._store = store
        self._engine: Engine = app.engine
        self._began = time.monotonic()
        self._enqueued: list[UUID] = []
        self._stories = Stories()
        self._rate = Rate()

    def produce(self, seconds: float, watch: Watch) -> None:
        """Enqueue what the programme says, beat by beat, as long as there are workers."""
        for beat in range(max(1, round(seconds / BEAT))):
            calls = self._acts.at(beat)
            for call, handle in zip(calls, self._app.enqueue_many(calls), strict=True):
                self._enqueued.append(handle.id)
                if call.route.spec.task in self._acts.telling:
                    self._stories.follow(handle.id)
            watch(self._look("producing"))
            if not self._troupe.alive:
                break
            self._sleep_until((beat + 1) * BEAT)

    def drain(self, watch: Watch) -> None:
        """Wait until every job has ended, within reason."""
        deadline = time.monotonic() + DRAINS_WITHIN
        while time.monotonic() < deadline and self._troupe.alive:
            snapshot = self._look("draining")
            watch(snapshot)
            if not any(counts.pending or counts.processing for counts in snapshot.queues.values()):
                break
            time.sleep(BEAT)

    def report(self) -> Report:
        """Look up every job that was enqueued."""
        jobs = self._all_jobs()
        states = Counter(job.state if job else None for job in jobs)
        return Report(
            enqueued=len(jobs),
            completed=states[State.COMPLETED],
            retried=sum(job is not None and job.failures > 0 and job.attempt > 1 for job in jobs),
            failed=states[State.FAILED],
            cancelled=states[State.CANCELLED],
            pending=states[State.PENDING],
            lost=states[None] + states[State.PROCESSING] + states[State.BLOCKED],
            seconds=round(time.monotonic() - self._began, 2),
            workers=WORKERS,
            ended_well=states[State.COMPLETED] == len(jobs) and self._troupe.ended_well,
            tasks=dict(sorted(Counter(job.task for job in jobs if job).items())),
        )

    def _all_jobs(self) -> list[Job | None]:
        jobs: list[Job | None] = []
        for start in range(0, len(self._enqueued), PAGE):
            page = self._engine.run(self._engine.get(self._enqueued[start : start + PAGE]))
            jobs += page
        return jobs

    def _look(self, phase: Phase) -> Snapshot:
        run, engine = self._engine.run, self._engine
        seconds = time.monotonic() - self._began
        queues = run(engine.stats())
        workers = len(run(engine.workers()))
        running = run(engine.find(JobFilter(state=State.PROCESSING)))
        self._stories.hear(run(engine.get(self._stories.open)))
        return Snapshot(
            phase=phase if workers else "starting",
            seconds=seconds,
            store=self._store,
            workers=workers,
            enqueued=len(self._enqueued),
            retried=self._stories.retried,
            queues=queues,
            rate=self._rate.at(seconds, sum(counts.completed for counts in queues.values())),
            running=tuple(sorted(running, key=_most_telling)[:SHOWN_RUNNING]),
            events=tuple(self._stories.told),
        )

    def _sleep_until(self, seconds: float) -> None:
        time.sleep(max(0.0, self._began + seconds - time.monotonic()))


class Stories:
    """Follows single jobs through the store, and tells in a sentence what happened to each."""

    def __init__(self) -> None:
        self.told: deque[str] = deque(maxlen=SHOWN_EVENTS)
        self.retried = 0
        self._failures: dict[UUID, int] = {}

    @property
    def open(self) -> list[UUID]:
        """The jobs whose end is not known yet."""
        return list(self._failures)

    def follow(self, id: UUID) -> None:
        """Tell what happens to this job."""
        self._failures[id] = 0

    def hear(self, jobs: list[Job | None]) -> None:
        """Tell what is new about these."""
        for job in jobs:
            if job is None:
                continue
            if job.failures > self._failures[job.id]:
                self.retried += self._failures[job.id] == 0
                self._failures[job.id] = job.failures
                self.told.append(f"#{job.number} {job.task} failed and will run again: {job.error}")
            if job.state.terminal:
                del self._failures[job.id]
                self.told.append(_ending(job))


class Rate:
    """Jobs per second over the last moments."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def at(self, seconds: float, completed: int) -> float:
        """The rate now that so many are completed."""
        self._looks.append((seconds, completed))
        while self._looks[0][0] < seconds - RATE_OVER:
            self._looks.popleft()
        then, before = self._looks[0]
        return (completed - before) / (seconds - then) if seconds > then else 0.0


def _most_telling(job: Job) -> tuple[bool, int]:
    return job.progress is None, job.number


def _ending(job: Job) -> str:
    name = f"#{job.number} {job.task}"
    if job.state is not State.COMPLETED:
        return f"{name} {job.state}: {job.error}"
    if job.failures:
        return f"{name} completed on attempt {job.attempt}: {_result(job)}"
    if job.run_at > job.created_at:
        delay = (job.run_at - job.created_at).total_seconds()
        return f"{name} completed, {delay:.1f} s after it was enqueued, as asked: {_result(job)}"
    return f"{name} completed: {_result(job)}"


def _result(job: Job) -> object:
    return json.decode(job.result) if job.result else None
