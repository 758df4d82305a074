"""The jobs of one test: what `app.test()` gives."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from contextvars import copy_context
from datetime import datetime, timedelta
from typing import Any, Self, TypedDict, Unpack

from msgspec import UNSET

from shigoto.app import Shigoto
from shigoto.handle import on_event_loop
from shigoto.model.errors import DeclarationError, OptionInvalid
from shigoto.model.job import Job, Lease
from shigoto.model.time import Duration, Millis, to_datetime
from shigoto.options import choice, duration, instant, whole
from shigoto.testing.crash import Crash, Victim, When
from shigoto.testing.expectations import Compared, Search, Sought, Target, compared, search
from shigoto.testing.runs import Ran, Run
from shigoto.testing.store import OwnStore, StoreInFile, StoreInMemory, Ticks
from shigoto.testing.worker import MOST_RUNS, ManualWorker, Mode, RunLoop

HIGHEST = 10**9
SWEEP_EVERY: Millis = 5_000
MOST_TICKS = 10_000
TOO_MANY = (
    f"Schedules were due more than {MOST_TICKS} times on the way. Move the clock in smaller steps, as if nobody were at"
    " work meanwhile (advance(…, outage=True)), or without schedules (app.test(ticks=False))."
)


class JobsOptions(TypedDict, total=False):
    """What `app.test(...)` takes.

    run     drain (the default): nothing runs before `run_all()`; inline: what is due runs at once, where it is enqueued
    now     where the clock stands at first; if not given, at the present
    state   what `ctx.state` is in handlers; if not given, what the app's lifespan yields
    store   the path of an SQLite file in which jobs live, instead of in memory: with transactions, real ones
    ticks   whether schedules fire when the clock gets there, as they do at a worker; they do unless this is False
    """

    run: Mode
    now: datetime
    state: Any
    store: str | os.PathLike[str]
    ticks: bool


class ClockMove(TypedDict, total=False):
    days: float
    hours: float
    minutes: float
    seconds: float
    milliseconds: float


class Jobs:
    """The jobs of one test: in memory or in a file, on a clock that stands still, run by nobody but this.

        with app.test() as jobs:
            sign_up("ada@example.org")
            jobs.assert_enqueued(send_welcome.call("ada@example.org"))
            assert len(jobs.run_all().completed) == 1

    `async with` does the same. Handlers are run as by a worker: arguments go through JSON, errors through the retry
    policy. Sync ones run in the thread of the test, also those with executor="process"; async ones on the event loop
    that runs, if `arun_all` or `aenqueue` is awaited, else on a private one. They see the context variables as they
    were when the block was entered. Time limits stop async ones, after real seconds. The app's lifespan is entered for
    each round of runs.

    In memory a job enqueued on a connection of your own is there at once, whether you commit or not; in a file it is
    there if you commit. Inline, too, it waits for `run_all`.
    A `run_at` is taken as written: the clock starts at the present, and whoever names an instant brings it up to date.
    """

    def __init__(self, app: Shigoto, **options: Unpack[JobsOptions]) -> None:
        choice("run", options.get("run", "drain"), ("drain", "inline"))
        mode: Mode = options.get("run", "drain")
        unknown = set(options) - set(JobsOptions.__annotations__)
        if unknown:
            raise OptionInvalid(
                f"app.test() has no option {', '.join(sorted(unknown))}: it takes run, now, state, store and ticks."
            )
        self._app = app
        self._mode = mode
        self._state: Any = options.get("state", UNSET)
        now = instant(options["now"], "now") if "now" in options else None
        file = options.get("store", UNSET)
        self._store: OwnStore = StoreInMemory(app.url, now) if file is UNSET else StoreInFile(app, file, now)
        self._worker = self._store.job_runner = ManualWorker(app, self._store, mode=mode, state=self._state)
        self._ticks = Ticks(app, self._store, on=options.get("ticks", True))
        self._stack = ExitStack()
        self._used = False
        self._open = False

    def __enter__(self) -> Self:
        if self._used:
            raise DeclarationError(
                "This test has begun already, and a test is entered once: call app.test() again."
            )
        with ExitStack() as stack:
            stack.enter_context(self._app.lend(self._store, self._store.url))
            stack.callback(self._store.end)
            stack.callback(self._worker.close)
            self._store.begin()
            self._ticks.begin()
            self._stack = stack.pop_all()
        self._worker.variables = copy_context()
        self._used = self._open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        self._stack.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    def __repr__(self) -> str:
        return (
            f"<Jobs {len(self._store.everything())} enqueued, {len(self._worker.runs)} runs, at {self.now}>"
        )

    @property
    def now(self) -> datetime:
        """What the store's clock says, in UTC."""
        return to_datetime(self._store.clock.now)

    @property
    def runs(self) -> Ran:
        """Everything that has run so far, inline or told to."""
        return Ran(self._worker.runs)

    def run_all(self, *, raise_errors: bool = False, limit: int = MOST_RUNS) -> Ran:
        """Run everything that is due, and what that enqueues, until nothing is; best first, one after the other.

        What is due of schedules is fired before, once; the clock does not move, so nothing of them is due again.
        With `raise_errors` the first handler that raises ends it, and its error is raised here, with its traceback; the
        job is settled before. `RetryLater`, `Snooze` and `Cancel` are no errors. What the code of a schedule has raised
        is raised, too. RuntimeError after `limit` runs.
        """
        return self._worker.play(self._run_loop("arun_all", raise_errors, limit))

    async def arun_all(self, *, raise_errors: bool = False, limit: int = MOST_RUNS) -> Ran:
        """Run everything that is due, async jobs on the running event loop; see `run_all`."""
        return await self._worker.aplay(self._run_loop(None, raise_errors, limit))

    def advance(self, by: Duration = 0, /, *, outage: bool = False, **span: Unpack[ClockMove]) -> Ran:
        """Move the clock: `advance(hours=2)`, `advance(timedelta(days=1))`, `advance(90)` for seconds.

        Jobs become due, expire, and are deleted when their retention is over. Schedules fire at each instant at which
        they are due. What has become due waits for `run_all`; inline it runs, each job at its own instant, and the runs
        are returned. RuntimeError if schedules are due more than 10 000 times on the way.

        With `outage` nobody is at work meanwhile: what is overdue of schedules at the end is caught up, or not, as they
        say, and jobs run inline when it is over.
        """
        self._expect_open("aadvance" if self._mode == "inline" else None)
        ran: list[Run] = []
        for _ in self._instants(_span(by, span), outage=outage):
            ran += self._worker.play(self._due_now(len(ran)))
        return Ran(ran)

    async def aadvance(self, by: Duration = 0, /, *, outage: bool = False, **span: Unpack[ClockMove]) -> Ran:
        """Move the clock; what runs inline, runs on the running event loop; see `advance`."""
        self._expect_open(None)
        ran: list[Run] = []
        for _ in self._instants(_span(by, span), outage=outage):
            ran += await self._worker.aplay(self._due_now(len(ran)))
        return Ran(ran)

    def advance_to_next(self) -> Ran:
        """Move the clock to where the next job is due: a retry, say; if no job waits, to the next tick of a schedule.

        jobs.advance_to_next()
        jobs.run_all()

        As with `advance`, what has become due waits for `run_all`, and the runs that are returned are none; inline it
        runs, and its runs are returned. Schedules that are due on the way fire. Raises LookupError if nothing waits.
        """
        return self.advance(self._to_next())

    async def aadvance_to_next(self) -> Ran:
        """Move the clock to where the next job is due; see `advance_to_next`."""
        return await self.aadvance(self._to_next())

    def crash(self, victim: Victim, /, *, when: When = "after") -> Job:
        """Let a worker die that holds this job, or the next of this task, and return the job as it is afterwards.

        before   the job was claimed, and its handler never began
        during   the handler got to the end of its first `ctx.checkpoint`
        after    the handler ran to its end, and nobody heard of it: what it did, it will do again

        Then the lease runs out and the job is freed, for which the clock moves on. It is pending and due again, with
        one more crash, so that `run_all()` runs it once more. The first crash makes it a suspect, which runs alone from
        then on; after `max_crashes` more it is quarantined: failed, with the failure kind `crash_loop`.

        Raises JobError if there is no such job, or it is not due.
        """
        self._expect_open("acrash")
        return self._crash(victim, when).happen()

    async def acrash(self, victim: Victim, /, *, when: When = "after") -> Job:
        """Let a worker die that holds this job; if it is async, on the running event loop; see `crash`."""
        self._expect_open(None)
        return await self._crash(victim, when).ahappen()

    def enqueued(self, target: Target | None = None, /, **sought: Unpack[Sought]) -> list[Job]:
        """The jobs that were enqueued in this test, oldest first, whatever has become of them.

        jobs.enqueued()                                     all of them
        jobs.enqueued(send, args={"to": "ada"}, state="failed")   those of a task, with these arguments among others
        jobs.enqueued(send.call("ada", 7))                  those of this very call
        """
        return _matching(self._compared(target, sought)[1])

    def assert_enqueued(
        self, target: Target | None = None, /, *, count: int | None = None, **sought: Unpack[Sought]
    ) -> list[Job]:
        """Expect such a job to have been enqueued, or `count` of them, and return them; see `enqueued`.

        A call must match in all its arguments and in what was said by `using`. AssertionError tells what was enqueued
        instead, and how far that is from it.
        """
        __tracebackhide__ = True
        wanted, all_jobs = self._compared(target, sought)
        jobs = _matching(all_jobs)
        if (not jobs) if count is None else (len(jobs) != whole("count", count, 0, HIGHEST)):
            raise AssertionError(missing(wanted, all_jobs, count))
        return jobs

    def refute_enqueued(self, target: Target | None = None, /, **sought: Unpack[Sought]) -> None:
        """Expect no such job to have been enqueued; see `enqueued`."""
        __tracebackhide__ = True
        wanted, all_jobs = self._compared(target, sought)
        if _matching(all_jobs):
            raise AssertionError(unwanted(wanted, all_jobs))

    def _compared(self, target: Target | None, sought: Sought) -> tuple[Search, Compared]:
        if not self._used:
            raise DeclarationError(
                "This test has not begun, so nothing was enqueued in it: `with app.test() as jobs:`."
            )
        wanted = search(self._app, self._store, target, sought)
        return wanted, compared(self._store, wanted)

    def _run_loop(self, instead: str | None, raise_errors: bool, limit: int) -> RunLoop:
        self._expect_open(instead)
        self._worker.tidy()
        self._ticks.fire()
        errors = self._ticks.taken_errors()
        if raise_errors and errors:
            raise errors[0]
        bound = whole("limit", limit, 0, HIGHEST)
        remedy = "run_all(limit=…) allows more."
        return RunLoop(self._worker, (), self._best, bound=bound, remedy=remedy, raise_errors=raise_errors)

    def _crash(self, victim: Victim, when: When) -> Crash:
        self._worker.announce()
        variables = self._worker.variables
        return Crash(self._app, self._store, victim, when=when, state=self._state, variables=variables)

    def _best(self) -> list[Lease]:
        return self._worker.claim(1)

    def _due_now(self, so_far: int) -> RunLoop:
        more = self._best if self._mode == "inline" else list
        return RunLoop(
            self._worker, (), more, before=so_far, remedy="Move the clock in smaller steps to allow more."
        )

    def _instants(self, span: Millis, *, outage: bool) -> Iterator[None]:
        """Move the clock to the end; if something is to be done there, by way of all instants at which jobs are due,
        or schedules."""
        store, until = self._store, self._store.clock.now + span
        self._worker.tidy()  # some patience begins when a sweep first sees a reason for it
        self._ticks.fire()
        counts = self._app.unknown_after is not None
        jobs_count = self._mode == "inline" or counts
        # A worker sweeps every few seconds. A sweep looks at every job, so on a long way a hundred must do, but where
        # they count how long a task has been unknown.
        every = 0 if counts else max(SWEEP_EVERY, span // 100)
        tidy_at = store.clock.now + every
        ticks = 0
        while not outage and (wait := self._next_stop(jobs=jobs_count)) is not None:
            if store.clock.now + wait >= until:
                break
            store.move(store.clock.now + wait)
            if store.clock.now >= tidy_at:
                self._worker.tidy()
                tidy_at = store.clock.now + every
            ticks += self._ticks.fire()
            if ticks > MOST_TICKS:
                raise RuntimeError(TOO_MANY)
            yield
        store.move(until)
        self._worker.tidy()
        self._ticks.fire()
        yield

    def _next_stop(self, *, jobs: bool) -> Millis | None:
        """In how many milliseconds there is something to do: for a schedule, or also for a job."""
        waits = (self._ticks.next_in(), self._store.promote_due() if jobs else None)
        return min((wait for wait in waits if wait is not None), default=None)

    def _to_next(self) -> timedelta:
        wait = self._store.promote_due()
        if wait is None:
            self._ticks.fire()
            wait = self._ticks.next_in()
        if wait is None:
            raise LookupError("No job waits for a later instant, so there is nothing to advance to.")
        return timedelta(milliseconds=wait)

    def _expect_open(self, instead: str | None) -> None:
        """Refuse what would reach the app's own store, or block an event loop that async jobs need."""
        if not self._open:
            raise DeclarationError("Jobs run inside of the block only: `with app.test() as jobs:`.")
        if instead is not None and on_event_loop():
            raise DeclarationError(
                f"An event loop is running here, and async jobs need it: await jobs.{instead}(…)."
            )


def _span(by: Duration, span: ClockMove) -> Millis:
    for name in span:
        if name not in ClockMove.__annotations__:
            raise OptionInvalid(f"advance takes {', '.join(ClockMove.__annotations__)}, not {name!r}.")
    return duration(by, "advance") + duration(timedelta(**span), "advance")


def _matching(all_jobs: Compared) -> list[Job]:
    return [job for job, differences in all_jobs if not differences]


MOST_SHOWN = 20
MOST_CLOSE = 3
MOST_LETTERS = 200


def missing(wanted: Search, all_jobs: Compared, count: int | None) -> str:
    found = sum(not differences for _, differences in all_jobs)
    if count is None:
        said = f"No {wanted} was enqueued."
    else:
        said = f"{_counted(found)} instead of {count}: {wanted}."
    close = sorted(
        ((job, differences) for job, differences in all_jobs if differences and wanted.is_of_task(job)),
        key=lambda each: len(each[1]),
    )
    lines = [f"  {_job_line(job)}\n    {'; '.join(differences)}" for job, differences in close[:MOST_CLOSE]]
    return "\n".join([said, *(["The closest:", *lines] if lines else []), *_listing(all_jobs)])


def unwanted(wanted: Search, all_jobs: Compared) -> str:
    found = sum(not differences for _, differences in all_jobs)
    return "\n".join([f"{_counted(found)} too many: {wanted}.", *_listing(all_jobs)])


def _listing(all_jobs: Compared) -> list[str]:
    if not all_jobs:
        return ["Nothing was enqueued at all."]
    lines = [f"{'  ' if differences else '* '}{_job_line(job)}" for job, differences in all_jobs[:MOST_SHOWN]]
    rest = len(all_jobs) - len(lines)
    return ["Enqueued in this test:", *lines, *([f"  … and {rest} more"] if rest else [])]


def _counted(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} jobs"


def _job_line(job: Job) -> str:
    payload = job.payload if len(job.payload) <= MOST_LETTERS else f"{job.payload[:MOST_LETTERS]}…"
    return f"#{job.number} {job.task} {payload} in {job.queue!r}, {job.state}"
