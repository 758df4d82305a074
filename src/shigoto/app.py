"""The app: tasks, a store and a bus, put together. The only place that composes them."""

import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from threading import Lock
from time import monotonic
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
    runtime_checkable,
)

from shigoto import enqueue
from shigoto.address import address_of
from shigoto.checks import check_defaults, check_patience
from shigoto.context import Context
from shigoto.encryption import Encryption, keys_from_environment
from shigoto.engine.open import open_engine
from shigoto.engine.protocol import Engine
from shigoto.enqueue import Call
from shigoto.handle import Decode, JobHandle
from shigoto.lifespan import Lifespan, called, entered
from shigoto.middleware.tracing import Tracing
from shigoto.model.errors import DeclarationError, ShigotoError, StoreRefused, Unsupported
from shigoto.model.job import Job
from shigoto.model.text import shown, without_secrets
from shigoto.model.time import Duration
from shigoto.observe.bus import Bus
from shigoto.observe.outward import Outward
from shigoto.observe.sentry import Sentry, chosen_sentry
from shigoto.observe.traces import Traces, chosen_traces
from shigoto.options import CallOptions, TaskOptions
from shigoto.planning import Planning
from shigoto.query import Query
from shigoto.task import Decorate, Task, Tasks

if TYPE_CHECKING:
    from shigoto.notify.notifier import Notifier
    from shigoto.notify.rules import Rule
    from shigoto.testing.jobs import Jobs, JobsOptions

P = ParamSpec("P")
R = TypeVar("R")

L = TypeVar("L", bound=Lifespan)

DEFAULT_URL = "sqlite:///workers.db"


@runtime_checkable
class Connects(Protocol):
    """An engine whose store takes the user's own statements too."""

    def connect(self) -> Any:
        """A new connection, set up as the engine needs it; the caller closes it."""
        ...


class Shigoto(Query, Planning):
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
        self.outward = Outward(self.bus, self.sentry, recorded, lambda: self.engine)
        self.encryption = keys_from_environment() if encryption is None else encryption
        self.unknown_after = check_patience(unknown_after)
        self.options = check_defaults(defaults or {})
        own = None if engine is None else f"{engine.capabilities.name}:"
        self._url = address_of(url) or own or os.environ.get("SHIGOTO_URL") or DEFAULT_URL
        self._engine = engine
        self._opening = Lock()
        self._lent = False
        self._imports = (imports,) if isinstance(imports, str) else tuple(imports)
        self._loaded = False
        self._lifespan: Lifespan | None = None
        self._tasks: dict[str, Task[..., Any]] = {}
        self._aliases: dict[str, Task[..., Any]] = {}
        self._own = Tasks()
        Planning.__init__(self, self._own)
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
                f"The app has a lifespan already, {called(self._lifespan)}, and {called(fn)} would be a second."
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
        async with entered(self._lifespan, self) as state:
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
        self.outward.flush(max(0.0, until - monotonic()))

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


def open_store(url: str) -> Engine:
    """The engine of a store address; see `open_engine`. Raises StoreRefused."""
    try:
        return open_engine(url)
    except RuntimeError as error:  # what Python 3.11 and 3.12 raise for links that lead in a circle
        raise StoreRefused(f"{url!r} cannot be the path of a store: {error}.") from error


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
