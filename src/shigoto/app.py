"""The app: its tasks, its store and its schedules, put together. The only place that composes them.

Whatever asks a store has a twin for event loops, whose name begins with an `a`. What schedules and tests need is
imported when there is one. `load_app` finds the app that the words `module:attr` mean, with errors that name the place.
"""

import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from importlib import import_module
from inspect import isasyncgenfunction, iscoroutine
from threading import Lock
from time import monotonic
from types import MappingProxyType, ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeGuard,
    TypeVar,
    Unpack,
    overload,
    runtime_checkable,
)
from urllib.parse import quote
from uuid import UUID

from shigoto import bulk, enqueue
from shigoto.bulk import BulkPlan, Cancelled, Redriven
from shigoto.context import Context
from shigoto.encryption import Encryption, keys_from_environment
from shigoto.engine.open import open_engine
from shigoto.engine.protocol import Engine
from shigoto.enqueue import Call
from shigoto.filters import Filters, parse_id, together, wanted
from shigoto.handle import Decode, JobHandle, found
from shigoto.model.errors import (
    DeclarationError,
    OptionInvalid,
    ShigotoError,
    StoreRefused,
    Unsupported,
    nearest,
)
from shigoto.model.job import Counts, Job, JobFilter
from shigoto.model.text import shown, storable, without_secrets
from shigoto.model.time import Duration, Millis, host_clock
from shigoto.model.worker import WorkerRecord
from shigoto.observe.bus import Bus
from shigoto.observe.settings import Exporters, Sentry, Traces, chosen_sentry, chosen_traces
from shigoto.observe.tracing import Tracing
from shigoto.options import (
    CallOptions,
    ScheduledOptions,
    ScheduleOptions,
    TaskOptions,
    check_defaults,
    check_patience,
)
from shigoto.queues import Queue, list_op, pause_op
from shigoto.task import Decorate, Task, Tasks

if TYPE_CHECKING:
    from datetime import datetime

    from shigoto.notify.notifier import Notifier
    from shigoto.notify.rules import Rule
    from shigoto.schedule.declare import Declared
    from shigoto.schedule.manage import Schedules
    from shigoto.schedule.tick import Tick
    from shigoto.testing.jobs import Jobs, JobsOptions

P = ParamSpec("P")
R = TypeVar("R")

Lifespan = Callable[["Shigoto"], AsyncIterator[Any]] | Callable[["Shigoto"], AbstractAsyncContextManager[Any]]
L = TypeVar("L", bound=Lifespan)

DEFAULT_URL = "sqlite:///workers.db"

OWN = os.path.dirname(__file__)
LIBRARY = os.path.dirname(os.__file__)
INSTALLED = ("site-packages", "dist-packages")  # where others put their code, inside of the library


@runtime_checkable
class KeepsTime(Protocol):
    """An engine that knows store time without asking the store."""

    def now(self) -> Millis:
        """Store time."""
        ...


@runtime_checkable
class Connects(Protocol):
    """An engine whose store takes the user's own statements too."""

    def connect(self) -> Any:
        """A new connection, set up as the engine needs it; the caller closes it."""
        ...


class Shigoto:
    """An app: the tasks it knows, and the store their jobs live in.

        app = Shigoto("sqlite:///jobs.db", imports=["shop.tasks"], defaults={"queue": "shop"})

        @app.task
        def greet(name: str) -> str:
            return f"Hello, {name}"

        greet.enqueue("Ada")

    Without a URL the store is $SHIGOTO_URL, or else the file workers.db. Nothing is opened before the first
    use, and a forked process opens its own.

    With `encryption` what jobs carry and say is encrypted, unless a task says `encrypt=False`. Without it the keys are
    those of $SHIGOTO_ENCRYPTION_KEYS or $SHIGOTO_ENCRYPTION_KEY_FILE, if there are any.

    Jobs of a task that no worker knows wait for one that does. With `unknown_after` they fail, as unknown_task, once
    they have been due for that long; the app's workers see to it, and a retry brings them back.

    `traces` records jobs with OpenTelemetry, and `sentry` tells Sentry of every job that has failed for good; without
    them $SHIGOTO_TRACES and $SHIGOTO_SENTRY say whether and how.
    `notify` are rules of `shigoto.notify`: who hears of failures, and of what else goes wrong.

    Whatever takes filters takes them one by one, as a text in the filter language, or both:

        app.find(state="failed", since=timedelta(hours=2), args={"store": 7})
        app.find("failed since:2h args.store:7", limit=50)

    Only `find` takes `before`, which is for its pages; everywhere else all jobs are meant that match.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        imports: Sequence[str] = (),
        defaults: TaskOptions | None = None,
        engine: Engine | None = None,
        unknown_after: Duration | None = None,
        traces: Traces | None = None,
        sentry: Sentry | None = None,
        notify: "Sequence[Rule]" = (),
        encryption: Encryption | None = None,
    ) -> None:
        self.bus = Bus()
        recorded = chosen_traces(traces)
        self.tracing = None if recorded is None else Tracing(recorded)
        self.sentry = chosen_sentry(sentry)
        self.exporters = Exporters(self.bus, self.sentry, recorded, lambda: self.engine)
        self.encryption: Encryption | None = keys_from_environment() if encryption is None else encryption
        self.unknown_after = check_patience(unknown_after)
        self.options = check_defaults(defaults or {})
        own = None if engine is None else f"{engine.capabilities.name}:"
        self._url = _address_of(url) or own or os.environ.get("SHIGOTO_URL") or DEFAULT_URL
        self._engine = engine
        self._opening = Lock()
        self._lent = False
        self._imports = (imports,) if isinstance(imports, str) else tuple(imports)
        self._loaded = False
        self._lifespan: Lifespan | None = None
        self._tasks: dict[str, Task[..., Any]] = {}
        self._aliases: dict[str, Task[..., Any]] = {}
        self._own = Tasks()
        self._planned: dict[str, Declared] = {}
        self._own.join(self)
        self.notifier = _notifier(self, notify)

    @property
    def url(self) -> str:
        """The address of the store. It can be changed until the store is first used."""
        return self._url

    @url.setter
    def url(self, url: str) -> None:
        if self._engine is not None:
            raise DeclarationError(
                f"The app uses {without_secrets(self._url)} already; choose a store before its first use."
            )
        self._url = url

    @property
    def engine(self) -> Engine:
        """The engine of the store, made on first use."""
        engine = self._engine
        if engine is None:
            with self._opening:
                engine = self._engine
                if engine is None:
                    engine = self._engine = open_store(self._url)
        return engine

    @overload
    def task(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Decorate: ...
    def task(
        self, fn: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]
    ) -> Task[..., Any] | Decorate:
        """Declare a function as a task: `@app.task` or `@app.task(queue="mail")`."""
        return self._own.task(**options) if fn is None else self._own.declare(fn, options)

    def cron(self, expression: str, /, **options: Unpack[ScheduledOptions]) -> Decorate:
        """Declare a function as a task that runs whenever the local time matches a cron expression.

            @app.cron("0 3 * * *", tz="Asia/Tokyo", catch_up="latest", overlap="skip")
            def aggregate(tick: Tick) -> None: ...

        Five fields, six with seconds first, or a word such as `@daily`. Each occurrence is one job, however many
        workers there are. A parameter `tick: Tick` tells which one it is. The options are those of `task`, and: `tz`;
        `catch_up` of what was due while nobody was there ("none", "latest" or "all", at most `catch_up_most` of them
        and not older than `catch_up_within`); `overlap` with a job before that has not ended ("allow", "skip", "queue",
        "cancel"); `jitter`; `until`; and, for times on the wall that the clocks skip or show twice, `gap` ("after",
        "skip") and `fold` ("first", "both").
        """
        return self._own.cron(expression, **options)

    def every(self, interval: Duration | str, /, **options: Unpack[ScheduledOptions]) -> Decorate:
        """Declare a function as a task that runs at an interval: `@app.every(timedelta(minutes=5))`, or `"5m"`.

        It is counted from midnight UTC of 1 January 1970, so that restarts and several workers do not move it. The
        options are those of `cron`.
        """
        return self._own.every(interval, **options)

    def schedule(
        self,
        name: str,
        cron: str | None = None,
        /,
        *,
        call: "Call[Any] | Callable[[Tick], Call[Any]]",
        every: Duration | str | None = None,
        at: "datetime | None" = None,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        """Declare a schedule for any task: `app.schedule("eu", "0 3 * * *", call=lambda tick: report.call("eu"))`.

        `call` is evaluated once for each occurrence, by whoever fires it, on the event loop of that worker: it should
        take no longer than a moment, and leave it to the task to ask others. Raises ScheduleInvalid, DeclarationError.
        """
        from shigoto.schedule.declare import planned

        planned(self._own, name, call, cron=cron, every=every, at=at, **options)

    @property
    def schedules(self) -> "Schedules":
        """The schedules of the store: what they are, what became of their ticks, and what can be done to them."""
        from shigoto.schedule.manage import Schedules

        return Schedules(self)

    @property
    def declared(self) -> "Mapping[str, Declared]":
        """The schedules that are declared in code, by name."""
        return MappingProxyType(self._planned)

    def plan(self, *declared: "Declared") -> None:
        """Take schedules that are declared in code; their names must be free: all or none. Raises DeclarationError."""
        for at, each in enumerate(declared):
            if each.name in self._planned or each.name in {other.name for other in declared[:at]}:
                raise DeclarationError(
                    f"Two schedules are called {each.name!r}. Give one of the tasks a name=, or choose another name."
                )
        self._planned.update({each.name: each for each in declared})

    def include(self, *collections: Tasks) -> None:
        """Make the tasks of these collections this app's own, also those still to be declared in them.

        All or none. Raises DeclarationError.
        """
        for tasks in collections:
            _expect_collection(tasks)
        fresh = [tasks for tasks in dict.fromkeys(collections) if tasks.is_new_to(self)]
        self.adopt(*(task for tasks in fresh for task in tasks))
        self.plan(*(declared for tasks in fresh for declared in tasks.planned))
        for tasks in fresh:
            tasks.join(self)

    def adopt(self, *tasks: Task[..., Any]) -> None:
        """Register tasks under their names and aliases, which must be free: all or none.

        Raises DeclarationError.
        """
        self._expect_free(tasks)
        for task in tasks:
            task.bind(self)
            self._tasks[task.name] = task
            self._aliases.update(dict.fromkeys(task.aliases, task))

    def lifespan(self, fn: L, /) -> L:
        """Declare what a worker of this app opens when it starts, and closes when it stops.

            @app.lifespan
            async def resources(app: Shigoto) -> AsyncIterator[Pool]:
                async with Pool() as pool:
                    yield pool

        An async generator function, or a function that makes an async context manager. What it yields is
        `ctx.state` in every handler. Each process that runs handlers enters its own. Raises DeclarationError
        for a second one.
        """
        if self._lifespan is not None:
            raise DeclarationError(
                f"The app has a lifespan already, {_called(self._lifespan)}, and {_called(fn)} would be a second."
                " Enter both in one function."
            )
        if not callable(fn):
            raise DeclarationError(f"lifespan takes an async generator function of the app, not {shown(fn)}.")
        self._lifespan = fn
        return fn

    @property
    def has_lifespan(self) -> bool:
        """Whether there is a lifespan to enter."""
        return self._lifespan is not None

    @asynccontextmanager
    async def enter_lifespan(self) -> AsyncGenerator[Any]:
        """Enter the app's lifespan, if it has one, and give its state; for whoever runs handlers."""
        if self._lifespan is None:
            yield None
            return
        async with _entered(self._lifespan, self) as state:
            yield state

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The tasks by name, without aliases, in the order of their declaration."""
        return MappingProxyType(self._tasks)

    def resolve(self, name: str) -> Task[..., Any] | None:
        """The task of this name or alias."""
        return self._tasks.get(name) or self._aliases.get(name)

    def load(self) -> None:
        """Import the modules named by `imports=`, once, so that the tasks in them are known."""
        if not self._loaded:
            for module in self._imports:
                import_module(module)
            self._loaded = True

    def check(self) -> None:
        """Load everything and resolve every task's annotations; one DeclarationError reports all problems."""
        self.load()
        problems: list[str] = []
        for task in self._tasks.values():
            try:
                _ = task.signature
            except ShigotoError as error:
                problems.append(str(error))
        if problems:
            raise DeclarationError("\n".join(problems))

    def enqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Store many jobs, all or none: `app.enqueue_many(greet.call(name) for name in names)`."""
        return enqueue.enqueue_many(self, calls)

    async def aenqueue_many(self, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Store many jobs, all or none, without blocking the event loop."""
        return await enqueue.aenqueue_many(self, calls)

    def enqueue_by_name(
        self,
        name: str,
        payload: Mapping[str, Any],
        *,
        allow_unknown: bool = False,
        **options: Unpack[CallOptions],
    ) -> JobHandle[Any]:
        """Store a job of a task whose code may be elsewhere; the options are those of `using`.

        The arguments are checked if the app knows the task. Raises UnknownTask if neither the app nor any
        live worker does, unless `allow_unknown`: then the job waits for a worker that does.
        """
        return enqueue.enqueue_by_name(self, name, payload, allow_unknown=allow_unknown, options=options)

    async def aenqueue_by_name(
        self,
        name: str,
        payload: Mapping[str, Any],
        *,
        allow_unknown: bool = False,
        **options: Unpack[CallOptions],
    ) -> JobHandle[Any]:
        """Store a job by the name of its task without blocking the event loop; see `enqueue_by_name`."""
        return await enqueue.aenqueue_by_name(
            self, name, payload, allow_unknown=allow_unknown, options=options
        )

    def job(self, job_id: UUID | str) -> JobHandle[Any]:
        """The handle of a stored job. Raises JobNotFound."""
        job_id = parse_id(job_id)
        [job] = self.engine.run(self.engine.get([job_id]))
        return found(self.engine, job, job_id=job_id, decode=self.decoder(job), keys=self.encryption)

    async def ajob(self, job_id: UUID | str) -> JobHandle[Any]:
        """The handle of a stored job. Raises JobNotFound."""
        job_id = parse_id(job_id)
        [job] = await self.engine.arun(self.engine.get([job_id]))
        return found(self.engine, job, job_id=job_id, decode=self.decoder(job), keys=self.encryption)

    def find(self, text: str = "", /, **filters: Unpack[Filters]) -> list[Job]:
        """A page of jobs, those first that were stored last: `app.find(state="failed", queue="mail", limit=50)`.

        The next page is the one `before=` the last number of this one. States may also be called waiting,
        running and succeeded; scheduled and retrying are parts of pending. Raises OptionInvalid.
        """
        return self.engine.run(self.engine.find(self._wanted(text, filters)))

    async def afind(self, text: str = "", /, **filters: Unpack[Filters]) -> list[Job]:
        """A page of jobs, newest first; see `find`."""
        return await self.engine.arun(self.engine.find(self._wanted(text, filters)))

    def count(self, text: str = "", /, **filters: Unpack[Filters]) -> int:
        """How many jobs match the filters of `find`; with a `limit` no more than that.

        It may have to look at all jobs; for counts by state and queue `stats` is cheap.
        """
        plan = bulk.count_plan(self.engine, self._meant(text, filters), clock=self.now)
        return bulk.carry_out(self.engine, plan)

    async def acount(self, text: str = "", /, **filters: Unpack[Filters]) -> int:
        """How many jobs match; see `count`."""
        plan = bulk.count_plan(self.engine, self._meant(text, filters), clock=self.now)
        return await bulk.acarry_out(self.engine, plan)

    def stats(self) -> dict[str, Counts]:
        """How many jobs each queue holds, by state."""
        return self.engine.run(self.engine.stats())

    async def astats(self) -> dict[str, Counts]:
        """How many jobs each queue holds, by state."""
        return await self.engine.arun(self.engine.stats())

    def workers(self) -> list[WorkerRecord]:
        """The workers that the store knows of, oldest first; one past its `lease_until` may be gone."""
        return self.engine.run(self.engine.workers())

    async def aworkers(self) -> list[WorkerRecord]:
        """The workers that the store knows of, oldest first; one past its `lease_until` may be gone."""
        return await self.engine.arun(self.engine.workers())

    def queues(self) -> list[Queue]:
        """Every queue that has had a job or a setting, by name: what it holds, and whether it is paused."""
        return self.engine.run(list_op(self.engine))

    async def aqueues(self) -> list[Queue]:
        """Every queue that has had a job or a setting, by name."""
        return await self.engine.arun(list_op(self.engine))

    def redrive(self, text: str = "", /, *, dry_run: bool = False, **filters: Unpack[Filters]) -> Redriven:
        """Retry all failed jobs that match: `app.redrive(task="send", failure_kind="timeout")`.

        The filters are those of `find`; `state` may be failed or cancelled, and a `limit` takes the newest. Quarantined
        jobs are left alone unless `failure_kind="crash_loop"` asks for them. A dry run changes nothing and tells which
        jobs would be retried; that a key is taken shows only when it is tried.
        """
        return bulk.carry_out(self.engine, self._redrive_plan(text, filters, dry_run=dry_run))

    async def aredrive(
        self, text: str = "", /, *, dry_run: bool = False, **filters: Unpack[Filters]
    ) -> Redriven:
        """Retry all failed jobs that match; see `redrive`."""
        return await bulk.acarry_out(self.engine, self._redrive_plan(text, filters, dry_run=dry_run))

    def cancel(
        self, text: str = "", /, *, force: bool = False, dry_run: bool = False, **filters: Unpack[Filters]
    ) -> Cancelled:
        """Cancel all jobs that match and have not ended: `app.cancel(queue="mail", since=timedelta(hours=1))`.

        The filters are those of `find`; at least one must be given, and `state="all"` is enough. Running jobs are asked
        to stop, or taken from their workers by `force`. A `limit` takes the newest. A dry run changes nothing and tells
        what would be done.
        """
        return bulk.carry_out(self.engine, self._cancel_plan(text, filters, force=force, dry_run=dry_run))

    async def acancel(
        self, text: str = "", /, *, force: bool = False, dry_run: bool = False, **filters: Unpack[Filters]
    ) -> Cancelled:
        """Cancel all jobs that match and have not ended; see `cancel`."""
        return await bulk.acarry_out(
            self.engine, self._cancel_plan(text, filters, force=force, dry_run=dry_run)
        )

    def clear(self, text: str = "", /, *, dry_run: bool = False, **filters: Unpack[Filters]) -> int:
        """Delete all jobs that match, with everything that is known of them: `app.clear(state="completed")`.

        The filters are those of `find`, and a `limit` takes the oldest. The state must be named: completed, failed,
        cancelled, pending, or all of these. Pending jobs will then never run; processing ones are never touched.
        Returns how many were deleted, or would be in a dry run.
        """
        plan = bulk.clear_plan(self.engine, self._meant(text, filters), dry_run=dry_run, clock=self.now)
        return bulk.carry_out(self.engine, plan)

    async def aclear(self, text: str = "", /, *, dry_run: bool = False, **filters: Unpack[Filters]) -> int:
        """Delete all jobs that match; see `clear`."""
        plan = bulk.clear_plan(self.engine, self._meant(text, filters), dry_run=dry_run, clock=self.now)
        return await bulk.acarry_out(self.engine, plan)

    def pause(self, queue: str) -> None:
        """Let no worker start jobs of this queue; those that run go on."""
        self.engine.run(pause_op(self.engine, queue, paused=True))

    async def apause(self, queue: str) -> None:
        """Let no worker start jobs of this queue; those that run go on."""
        await self.engine.arun(pause_op(self.engine, queue, paused=True))

    def resume(self, queue: str) -> None:
        """Let workers start jobs of this queue again."""
        self.engine.run(pause_op(self.engine, queue, paused=False))

    async def aresume(self, queue: str) -> None:
        """Let workers start jobs of this queue again."""
        await self.engine.arun(pause_op(self.engine, queue, paused=False))

    def connect(self) -> Any:
        """A new connection to the store's database for your own statements, to be closed by you.

        On SQLite an `sqlite3.Connection` with the settings that the store needs. Hand it to
        `using(connection=…)` to commit your rows and the job together. Raises Unsupported where the store
        is no database of yours.
        """
        engine = self.engine
        if not isinstance(engine, Connects):
            raise Unsupported(f"The {engine.capabilities.name} engine has no connections to give away.")
        return engine.connect()

    def test(self, **options: Unpack["JobsOptions"]) -> "Jobs":
        """For tests: a block in which jobs live in memory, or in a file, on a clock that obeys, and run when told.

            with app.test() as jobs:
                sign_up("ada@example.org")
                jobs.assert_enqueued(send_welcome.call("ada@example.org"))
                jobs.run_all()

        See `shigoto.testing.Jobs`. The app's own store is not even opened. Raises DeclarationError inside of another.
        """
        from shigoto.testing.jobs import Jobs

        return Jobs(self, **options)

    @contextmanager
    def lend(self, engine: Engine, url: str) -> Generator[None]:
        """Use another engine for a while, and leave the app's own alone; for `test`. Raises DeclarationError."""
        with self._opening:
            if self._lent:
                raise DeclarationError(
                    "app.test() is open already, and the jobs of an app are in one place at a time."
                    " Use what the outer one gave you."
                )
            own = self._url, self._engine, self.encryption
            self._url, self._engine, self.encryption, self._lent = url, engine, None, True
        try:
            yield
        finally:
            with self._opening:
                (self._url, self._engine, self.encryption), self._lent = own, False

    @property
    def is_lent(self) -> bool:
        """Whether the app is in a test, where nothing is encrypted: jobs are in memory, and tests look at them."""
        return self._lent

    def flush(self, seconds: float) -> None:
        """Send spans, failures and counts that are on their way to others, if that takes no longer than this."""
        until = monotonic() + seconds
        if self.tracing is not None:
            self.tracing.flush(seconds / 2)
        self.exporters.flush(max(0.0, until - monotonic()))

    def close(self) -> None:
        """Release the store. Closing twice is fine; a later use opens it again."""
        if self._engine is not None:
            self._engine.close()

    def _expect_free(self, tasks: Iterable[Task[..., Any]]) -> None:
        taken: dict[str, Task[..., Any]] = {}
        for task in tasks:
            task.expect_bindable(self)
            for name in dict.fromkeys((task.name, *task.aliases)):
                holder = self.resolve(name) or taken.get(name)
                if holder is not None:
                    places = f"{_place(holder)} and {_place(task)}"
                    raise DeclarationError(
                        f"Two tasks are called {name!r}: {places}. Give one of them a name=."
                    )
                taken[name] = task

    def now(self) -> Millis:
        """The time from which `since=timedelta(…)` counts back: the store's, where it is known without asking."""
        engine = self.engine
        return engine.now() if isinstance(engine, KeepsTime) else host_clock()

    def encrypts(self, task: str) -> bool:
        """Whether jobs of this task are encrypted where there are keys; those of one that is not known may be."""
        self.load()
        known = self.resolve(task)
        return known is None or known.encrypts

    def decoder(self, job: Job | None) -> Decode | None:
        """What reads the result of the job, if its task is known."""
        self.load()
        task = None if job is None else self.resolve(job.task)
        return None if task is None else task.signature.decode_result

    def _meant(self, text: str, filters: Filters) -> Filters:
        meant = together(text, filters)
        expect_searchable(self, meant)
        return meant

    def _wanted(self, text: str, filters: Filters) -> JobFilter:
        return wanted(self._meant(text, filters), self.now)

    def _redrive_plan(self, text: str, filters: Filters, *, dry_run: bool) -> BulkPlan[Redriven]:
        return bulk.redrive_plan(
            self.engine, self._meant(text, filters), dry_run=dry_run, decoder=self.decoder, clock=self.now
        )

    def _cancel_plan(self, text: str, filters: Filters, *, force: bool, dry_run: bool) -> BulkPlan[Cancelled]:
        engine = self.engine
        chosen = yield from bulk.choose_live_plan(
            engine, self._meant(text, filters), decoder=self.decoder, clock=self.now
        )
        return chosen if dry_run else (yield from bulk.cancel_plan(engine, chosen, force=force))


def expect_searchable(app: Shigoto, filters: Filters) -> None:
    """Raise OptionInvalid if the filter looks into arguments that are encrypted: it would leave them out in silence."""
    task = filters.get("task")
    if filters.get("args") and app.encryption is not None and (task is None or app.encrypts(task)):
        which = "of this app" if task is None else f"of the task {task!r}"
        raise OptionInvalid(
            f"The arguments {which} are encrypted, so jobs cannot be found by them. Give the jobs a tag or a key"
            " to find them by, or name a task that is declared with encrypt=False."
        )


def open_store(url: str) -> Engine:
    """The engine of a store address; see `open_engine`. Raises StoreRefused."""
    try:
        return open_engine(url)
    except RuntimeError as error:  # what Python 3.11 and 3.12 raise for links that lead in a circle
        raise StoreRefused(f"{url!r} cannot be the path of a store: {error}.") from error


def _address_of(url: object) -> str | None:
    """The address, given as one or as the path of a file; None if nothing was. Raises DeclarationError."""
    if url is None:
        return None
    if isinstance(url, str):
        if not url.strip():
            raise DeclarationError(
                "The address of the store is empty: name one, or leave it out for $SHIGOTO_URL or workers.db."
                " Is there a variable that is not set?"
            )
        return url
    if not _is_path(url):
        raise DeclarationError(
            f"The store must be an address or a path, such as 'sqlite:///jobs.db', not {shown(url)}."
        )
    return f"sqlite:///{quote(storable('The path of the store', os.fspath(url)))}"


def _is_path(url: object) -> TypeGuard[os.PathLike[str]]:
    return isinstance(url, os.PathLike)


def _entered(lifespan: Lifespan, app: "Shigoto") -> AbstractAsyncContextManager[Any]:
    """The lifespan as a context manager, still to be entered. Raises DeclarationError."""
    made: object = asynccontextmanager(lifespan)(app) if isasyncgenfunction(lifespan) else lifespan(app)
    if isinstance(made, AbstractAsyncContextManager):
        return made
    if iscoroutine(made):
        made.close()
    raise DeclarationError(
        f"The lifespan {_called(lifespan)} must be an async generator function (async def, with a yield), or make"
        f" an async context manager; it gave {shown(made)}."
    )


def _called(fn: object) -> str:
    return str(getattr(fn, "__qualname__", None) or shown(fn))


def _notifier(app: Shigoto, rules: "Sequence[Rule]") -> "Notifier | None":
    if isinstance(rules, tuple | list) and not rules:
        return None
    from shigoto.notify.notifier import Notifier

    return Notifier(app, rules)


def _expect_collection(tasks: object) -> None:
    if not isinstance(tasks, Tasks):
        raise DeclarationError(f"include takes collections made with Tasks(), not {shown(tasks)}.")


def _place(task: Task[..., Any]) -> str:
    return f"{task.fn.__module__}.{task.fn.__qualname__}"


def load_app(reference: str) -> Shigoto:
    """The app of `module:attr`; `attr` is `app` if left out, and may be a function that makes the app."""
    module, _, attribute = reference.partition(":")
    if not _is_dotted(module) or _is_file(module):
        hint = _as_module(module, attribute)
        raise DeclarationError(
            f"An app is named module:attr, such as shop.tasks:app, not {reference!r}{hint}."
        )
    here = _current_directory()
    if here is not None and here not in sys.path:
        sys.path.insert(0, here)
    with told_in_one_line(reference):
        value = _attribute(import_module(module), attribute or "app")
        if not isinstance(value, Shigoto) and callable(value):
            value = value()
    if not isinstance(value, Shigoto):
        raise DeclarationError(f"{reference!r} is no Shigoto app: it is of type {type(value).__name__}.")
    return value


def _is_dotted(module: str) -> bool:
    return all(part.isidentifier() for part in module.split("."))


def _is_file(module: str) -> bool:
    """Whether the name of a file stands where a module belongs; a module may be called `py`, too."""
    return module.endswith(".py") and os.path.isfile(module)


def _as_module(module: str, attribute: str) -> str:
    dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
    is_path = module.endswith(".py") and _is_dotted(dotted)
    return f": write {dotted}:{attribute or 'app'}" if is_path else ""


def _current_directory() -> str | None:
    """The current directory, unless somebody has removed it."""
    try:
        return os.getcwd()
    except OSError:
        return None


@contextmanager
def told_in_one_line(reference: str) -> Generator[None]:
    """Whatever the user's code raises on import becomes a DeclarationError that names the place."""
    try:
        yield
    except OptionInvalid as error:
        raise DeclarationError(
            f"{reference!r} cannot be loaded: {error} ({_place_of_error(error)})."
        ) from error
    except ShigotoError:
        raise
    except SystemExit as error:
        # Let through, it would end the command as a success that has done nothing.
        said = "" if error.code is None else repr(error.code)
        raise DeclarationError(
            f"{reference!r} cannot be loaded: importing it ended the program"
            f" (sys.exit({said}) at {_place_of_error(error)}); put that under `if __name__ == '__main__'`."
        ) from error
    except Exception as error:
        raise DeclarationError(
            f"{reference!r} cannot be loaded: {type(error).__name__}: {error} ({_place_of_error(error)})."
        ) from error


def _place_of_error(error: Exception | SystemExit) -> str:
    """Where the user's code led to the error; for a module that is not there, where it was looked for."""
    if isinstance(error, ModuleNotFoundError):
        here = _current_directory()
        return f"looked for {'' if here is None else f'in {here} and '}among the installed ones"
    trace = error.__traceback__
    places: list[tuple[str, int]] = []
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    theirs = [place for place in places if not _is_library(place[0])]
    file, line = (theirs or places)[-1]
    return f"{file}, line {line}"


def _is_library(file: str) -> bool:
    """Whether a file is one of ours or of Python's, which says little to whoever has made a mistake elsewhere."""
    if file.startswith("<frozen"):
        return True
    is_python = file.startswith(LIBRARY + os.sep) and not any(name in file for name in INSTALLED)
    return is_python or file.startswith(OWN + os.sep)


def _attribute(module: ModuleType, path: str) -> object:
    value: object = module
    for name in path.split("."):
        if not hasattr(value, name):
            apps = [key for key, found in vars(module).items() if isinstance(found, Shigoto)]
            hint = nearest(name, apps) or (f" It has {', '.join(apps)}." if apps else "")
            raise DeclarationError(f"{module.__name__!r} has no {name!r}.{hint}")
        value = getattr(value, name)
    return value
