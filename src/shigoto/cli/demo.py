"""The command `demo`: two workers on a store of its own, a stream of jobs, and the reckoning.

    produce   jobs enter the store for a while, while the workers take them out
    drain     no more jobs enter; the last ones, delayed and retried ones too, come to their end
    reckon    every job that was enqueued is looked up: is any of them lost?

It runs in one thread and tells a watcher what it sees. A terminal shows that as a picture, drawn over itself, and
anything else as plain lines.

The workers are processes that never outlive this one. Each holds the reading end of a pipe whose writing end is here,
and stops when the pipe ends (`--stop-on-eof`): so they stop even if this process is killed and can tell them nothing.
"""

import os
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Literal, TextIO
from uuid import UUID

import click
from msgspec import Struct, json
from msgspec.structs import asdict

from shigoto.app import Shigoto
from shigoto.cli import output
from shigoto.cli.daemon import signals_interrupt
from shigoto.cli.output import bar, clip, one_line, total
from shigoto.cli.watch import Canvas, filled
from shigoto.demo import BEAT, DemoTasks
from shigoto.engine.protocol import Engine
from shigoto.model.job import Counts, Job, JobFilter, State
from shigoto.model.secrets import without_key

STOPS_WITHIN = 10.0  # seconds from the first signal to the second
HURRIES_WITHIN = 0.3  # the same, when something went wrong or somebody is in a hurry
ENDS_WITHIN = 3.0  # seconds from the second signal to the last resort

WORKERS = 2
SLOTS = ("--concurrency", "8", "--threads", "2", "--log-level", "warning")
DRAINS_WITHIN = 30.0  # seconds
RATE_OVER = 2.0  # seconds
SHOWN_RUNNING = 4
SHOWN_EVENTS = 5
PAGE = 500
PHASES = {
    "starting": "starting two worker processes",
    "producing": "jobs go in, workers take them out",
    "draining": "no new jobs; the last ones are run",
}
HUES = {
    "  pending": "yellow",
    "  processing": "cyan",
    "  completed": "green",
    "  retried": "magenta",
    "  failed": "red",
}

SHOW_FOR = 12.0  # seconds

Phase = Literal["starting", "producing", "draining"]


class WorkerProcesses:
    """Several `shigoto worker` processes on one store, from `__enter__` to `__exit__`."""

    def __init__(self, app: str, url: str, *, count: int, folder: Path, options: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-m", "shigoto", "--app", app, "--url", url, "worker"]
        self._command += ["--stop-on-eof", *options]
        self._logs = [folder / f"worker-{number}.log" for number in range(1, count + 1)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "WorkerProcesses":
        with ExitStack() as in_case:
            in_case.callback(self.stop)
            for log in self._logs:
                with log.open("wb") as words:
                    self._processes.append(self._start(words.fileno()))
            in_case.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop(HURRIES_WITHIN if kind else STOPS_WITHIN)

    @property
    def alive(self) -> int:
        return sum(process.poll() is None for process in self._processes)

    @property
    def ended_well(self) -> bool:
        return all(process.poll() == 0 for process in self._processes)

    def final_log_lines(self) -> list[str]:
        lines: list[str] = []
        for process, log in zip(self._processes, self._logs, strict=False):
            if process.poll():
                lines.append(f"A worker ended with exit code {process.returncode}:")
                lines += log.read_text("utf-8", "replace").splitlines()[-10:]
        return lines

    def stop(self, patience: float = HURRIES_WITHIN) -> None:
        """Ask all to stop, again after some patience, and then end them. Stopping twice is fine."""
        try:
            for seconds in (patience, ENDS_WITHIN):
                for process in self._processes:
                    process.terminate()
                if self._gone_within(seconds):
                    break
        finally:
            for process in self._processes:
                process.kill()
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()

    def _start(self, log: int) -> subprocess.Popen[bytes]:
        # A session of its own: a Ctrl-C at the terminal is for us, and we tell the workers.
        return subprocess.Popen(
            self._command,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _gone_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        try:
            for process in self._processes:
                process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True


def _environment() -> dict[str, str]:
    """Ours without settings, be they variables or a file here: they are meant for other workers."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SHIGOTO_")}
    return {**plain, "SHIGOTO_CONFIG": os.devnull}


class Snapshot(Struct, frozen=True, kw_only=True):
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


class DemoReport(Struct, frozen=True, kw_only=True):
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


def run_demo(folder: Path, *, seconds: float, watch: Watch, complain: Callable[[str], None]) -> DemoReport:
    """Produce jobs for so many seconds with two worker processes at work, and tell what became of them."""
    store = folder / "jobs.db"
    app = Shigoto(str(store))
    acts = DemoTasks(app)
    app.engine.migrate()
    workers = WorkerProcesses("shigoto.demo:stage", str(store), count=WORKERS, folder=folder, options=SLOTS)
    try:
        with workers:
            run = DemoRun(app, acts, workers, store)
            run.produce(seconds, watch)
            run.drain(watch)
        for line in workers.final_log_lines():
            complain(line)
        return run.report()
    finally:
        app.close()


class DemoRun:
    def __init__(self, app: Shigoto, acts: DemoTasks, workers: WorkerProcesses, store: Path) -> None:
        self._app = app
        self._acts = acts
        self._workers = workers
        self._store = store
        self._engine: Engine = app.engine
        self._began = time.monotonic()
        self._enqueued: list[UUID] = []
        self._stories = Stories()
        self._rate = CompletionRate()

    def produce(self, seconds: float, watch: Watch) -> None:
        """Enqueue what the programme says, beat by beat, as long as there are workers."""
        for beat in range(max(1, round(seconds / BEAT))):
            calls = self._acts.at(beat)
            for call, handle in zip(calls, self._app.enqueue_many(calls), strict=True):
                self._enqueued.append(handle.id)
                if call.route.spec.task in self._acts.telling:
                    self._stories.follow(handle.id)
            watch(self._look("producing"))
            if not self._workers.alive:
                break
            time.sleep(max(0.0, self._began + (beat + 1) * BEAT - time.monotonic()))

    def drain(self, watch: Watch) -> None:
        deadline = time.monotonic() + DRAINS_WITHIN
        while time.monotonic() < deadline and self._workers.alive:
            snapshot = self._look("draining")
            watch(snapshot)
            if not any(counts.pending or counts.processing for counts in snapshot.queues.values()):
                break
            time.sleep(BEAT)

    def report(self) -> DemoReport:
        jobs = self._all_jobs()
        states = Counter(job.state if job else None for job in jobs)
        return DemoReport(
            enqueued=len(jobs),
            completed=states[State.COMPLETED],
            retried=sum(job is not None and job.failures > 0 and job.attempt > 1 for job in jobs),
            failed=states[State.FAILED],
            cancelled=states[State.CANCELLED],
            pending=states[State.PENDING],
            lost=states[None] + states[State.PROCESSING] + states[State.BLOCKED],
            seconds=round(time.monotonic() - self._began, 2),
            workers=WORKERS,
            ended_well=states[State.COMPLETED] == len(jobs) and self._workers.ended_well,
            tasks=dict(sorted(Counter(job.task for job in jobs if job).items())),
        )

    def _all_jobs(self) -> list[Job | None]:
        pages = [self._enqueued[start : start + PAGE] for start in range(0, len(self._enqueued), PAGE)]
        return [job for page in pages for job in self._engine.run(self._engine.get(page))]

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
            running=tuple(
                sorted(running, key=lambda job: (job.progress is None, job.number))[:SHOWN_RUNNING]
            ),
            events=tuple(self._stories.told),
        )


class Stories:
    """Follows single jobs through the store, and tells in a sentence what happened to each."""

    def __init__(self) -> None:
        self.told: deque[str] = deque(maxlen=SHOWN_EVENTS)
        self.retried = 0
        self._failures: dict[UUID, int] = {}

    @property
    def open(self) -> list[UUID]:
        return list(self._failures)

    def follow(self, id: UUID) -> None:
        self._failures[id] = 0

    def hear(self, jobs: list[Job | None]) -> None:
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


class CompletionRate:
    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()

    def at(self, seconds: float, completed: int) -> float:
        self._looks.append((seconds, completed))
        while self._looks[0][0] < seconds - RATE_OVER:
            self._looks.popleft()
        then, before = self._looks[0]
        return (completed - before) / (seconds - then) if seconds > then else 0.0


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


class Screen:
    def __init__(self, canvas: Canvas, *, colour: bool) -> None:
        self._canvas = canvas
        self._colour = colour

    def show(self, snapshot: Snapshot) -> None:
        self._canvas.draw(picture(snapshot, self._canvas.size.columns, colour=self._colour))


class PlainLines:
    """A line about once a second, with the newest event."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._next = 0.0
        self._event = ""

    def show(self, snapshot: Snapshot) -> None:
        if snapshot.seconds < self._next:
            return
        self._next = snapshot.seconds + 1
        counts = total(snapshot.queues)
        self._stream.write(
            f"{snapshot.seconds:5.1f} s  enqueued {snapshot.enqueued:5}  pending {counts.pending:4}"
            f"  processing {counts.processing:3}  completed {counts.completed:5}"
            f"  retried {snapshot.retried:3}  failed {counts.failed}\n"
        )
        if snapshot.events and snapshot.events[-1] != self._event:
            self._event = snapshot.events[-1]
            self._stream.write(f"         {one_line(self._event)}\n")
        self._stream.flush()


def picture(snapshot: Snapshot, width: int, *, colour: bool) -> list[str]:
    """The lines of one picture; always as many, so that nothing jumps."""
    counts = total(snapshot.queues)
    workers = f"{snapshot.workers} worker{'' if snapshot.workers == 1 else 's'}"
    lines = [
        f"Shigoto demo: {workers} on {snapshot.store}",
        f"{snapshot.seconds:.1f} s: {PHASES[snapshot.phase]}",
        "",
        f"  {'enqueued':<11}{snapshot.enqueued:6}",
        _gauge("pending", counts.pending, snapshot.enqueued),
        _gauge("processing", counts.processing, snapshot.enqueued),
        _gauge("completed", counts.completed, snapshot.enqueued) + f"  {snapshot.rate:.0f} jobs/s",
        _gauge("retried", snapshot.retried, snapshot.enqueued),
        _gauge("failed", counts.failed, snapshot.enqueued),
        "",
        "Running",
        *filled([_running(job) for job in snapshot.running], SHOWN_RUNNING),
        "",
        "Last events",
        *filled([f"  {event}" for event in snapshot.events], SHOWN_EVENTS),
    ]
    return [_painted(clip(one_line(line), width - 1), colour=colour) for line in lines]


def _gauge(name: str, count: int, whole: int) -> str:
    return f"  {name:<11}{count:6}  {bar(count / whole if whole else 0)}"


def _running(job: Job) -> str:
    if job.progress is None:
        return f"  #{job.number:<6}{job.task}"
    share = f"{bar(job.progress)} {job.progress:4.0%}"
    return f"  #{job.number:<6}{job.task:<14}{share}  {without_key(job.progress_text or '')}"


def _painted(line: str, *, colour: bool) -> str:
    if not colour:
        return line
    if line and not line.startswith(" "):
        return click.style(line, bold=True)
    for start, hue in HUES.items():
        if line.startswith(start):
            return click.style(line, fg=hue)
    if " failed and will run again" in line:
        return click.style(line, fg="magenta")
    return line


def summary(report: DemoReport, *, kept: str | None) -> list[str]:
    ends = f"{report.completed} completed, {report.retried} of them after a retry, {report.failed} failed"
    kinds = "async tasks and plain functions, with priorities, delays, progress and retries"
    elsewhere = "`shigoto enqueue user_created hello`, then `shigoto stats`"
    lines = [
        f"{report.enqueued} jobs in {report.seconds:.1f} s on one SQLite file: {ends}, {report.lost} lost.",
        f"{report.workers} worker processes shared them: {kinds}.",
        f"Next: `shigoto worker`; in another terminal, in this folder, {elsewhere}.",
    ]
    if kept is not None:
        lines.append(f"The store is kept; look into it: shigoto list {kept} completed")
    return lines


@click.command()
@click.option(
    "--seconds", type=click.FloatRange(0, 3_600, min_open=True), default=SHOW_FOR, show_default=True,
    help="How long to make jobs.",
)  # fmt: skip
@click.option("--keep", is_flag=True, help="Keep the store, and say where it is.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome for programs, and nothing else.")
def demo(seconds: float, keep: bool, as_json: bool) -> int:
    """See jobs run: two workers on one SQLite file.

    Makes a store in a temporary folder, starts two worker processes, and feeds them for a while with jobs of
    every kind. At the end every job is looked up; the exit code is 0 if all of them completed.
    """
    try:
        with signals_interrupt():
            report, kept = _perform(seconds, keep=keep, as_json=as_json)
    except KeyboardInterrupt:
        click.echo("Interrupted. The workers have stopped.", err=True)
        raise click.Abort from None
    if as_json:
        output.print_json({**asdict(report), **({"store": kept} if kept else {})})
    else:
        click.echo("\n".join(summary(report, kept=kept)))
    return 0 if report.ended_well and not report.lost else 1


def _perform(seconds: float, *, keep: bool, as_json: bool) -> tuple[DemoReport, str | None]:
    """Run the demo, on a screen, in lines or unseen; and return where the store is, if it is kept."""
    with temporary_folder(keep=keep) as folder, ExitStack() as stack:
        watch: Watch = PlainLines(sys.stdout).show
        if not as_json and output.can_redraw():
            watch = Screen(stack.enter_context(Canvas(sys.stdout)), colour=output.in_colour()).show
        seen: Watch = (lambda _: None) if as_json else watch
        report = run_demo(folder, seconds=seconds, watch=seen, complain=_complain)
        return report, str(folder / "jobs.db") if keep else None


def _complain(line: str) -> None:
    click.echo(line, err=True)
