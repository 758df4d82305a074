"""What a decorated function becomes, and the collections that tasks are declared in.

The types are the point: `Task[P, R_co]` has the function's own parameters, without the Context, on every
way to call it, and a handle's result is what the function returns, awaited if it is a coroutine. `R_co` is
what the plain call returns; the first of each pair of overloads looks into a coroutine.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import cached_property, update_wrapper
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from msgspec.structs import replace

from shigoto import enqueue
from shigoto.codec import Signature, check_shape, resolve
from shigoto.context import Context, detached
from shigoto.encryption import Encryption
from shigoto.enqueue import Call, Route
from shigoto.handle import JobHandle
from shigoto.model.errors import DeclarationError, OptionInvalid
from shigoto.model.secrets import marked
from shigoto.model.time import Duration
from shigoto.options import (
    MAX_DEPTH,
    MAX_PAYLOAD,
    NO_STOP_IN_THREAD,
    CallOptions,
    Changes,
    Executor,
    Options,
    ScheduledOptions,
    TaskOptions,
    check_call_options,
    check_name,
    check_task_options,
    executor_of,
    expect_limits_in_order,
    expect_place,
    expect_times,
    lay_call_over,
    lay_over,
    several,
)

if TYPE_CHECKING:
    from shigoto.app import Shigoto
    from shigoto.schedule.declare import Declared

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class Declaration:
    """What the decorator wrote down; a task and all that `using` makes of it share one.

    Annotations are resolved at the first use, not here: forward references and imports may not exist yet.
    """

    def __init__(self, fn: Callable[..., Any], given: TaskOptions) -> None:
        self.fn = fn
        self.name = _name(fn, given.get("name"))
        aliases = several("aliases", given.get("aliases", ()))
        self.aliases = tuple(check_name(alias, "The alias") for alias in aliases)
        self.changes = check_task_options(given, where=f"task {self.name!r}")
        self.takes_context = check_shape(fn, task=self.name, context_type=Context)
        self.is_async = iscoroutinefunction(fn)
        self.app: Shigoto | None = None
        self.options = self.options_over(Options())

    def bind(self, app: "Shigoto") -> None:
        """Make the task one of this app's, with its defaults."""
        self.options = self.options_over(app.options)
        self.app = app

    @cached_property
    def signature(self) -> Signature:
        """How arguments and results are stored. Raises DeclarationError for annotations without sense."""
        return resolve(
            self.fn, task=self.name, context_type=Context, max_bytes=MAX_PAYLOAD, max_depth=MAX_DEPTH
        )

    @property
    def executor(self) -> Executor:
        """Where runs take place: as declared, else as the function needs it."""
        return executor_of(self.options, is_async=self.is_async)

    def options_over(self, base: Options) -> Options:
        """What holds for the task over these defaults. Raises DeclarationError for one that it cannot have."""
        options = lay_over(base, self.changes)
        where = f"task {self.name!r}"
        expect_limits_in_order(options, where=where)
        expect_place(options, is_async=self.is_async, where=where)
        return options


class Task(Generic[P, R_co]):
    """A function that can be run later, somewhere else.

    `send.enqueue(7, "i-1")` stores a job and returns its handle, `send.using(delay=60).enqueue(7, "i-1")` does so
    with options, and `send(7, "i-1")` just calls the function, here and now.
    """

    def __init__(self, declaration: Declaration, changes: Changes | None = None) -> None:
        self._declaration = declaration
        self._changes: Changes = {} if changes is None else changes
        self._route: Route | None = None

    def __repr__(self) -> str:
        return f"<Task {self.name!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function itself; one that takes a Context gets a detached one."""
        if self._declaration.takes_context:
            return self.fn(detached(self.name), *args, **kwargs)
        return self.fn(*args, **kwargs)

    @overload
    def enqueue(
        self: "Task[P, Coroutine[Any, Any, T]]", *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[T]: ...
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]: ...
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[Any]:
        """Store a job and return when it is committed. Raises PayloadInvalid, PayloadTooLarge, StoreError."""
        return enqueue.enqueue(self._call(args, kwargs))

    @overload
    async def aenqueue(
        self: "Task[P, Coroutine[Any, Any, T]]", *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[T]: ...
    @overload
    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R_co]: ...
    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[Any]:
        """Store a job without blocking the event loop; see `enqueue`."""
        return await enqueue.aenqueue(self._call(args, kwargs))

    @overload
    def call(self: "Task[P, Coroutine[Any, Any, T]]", *args: P.args, **kwargs: P.kwargs) -> Call[T]: ...
    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]: ...
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[Any]:
        """A checked call for `enqueue_many`; nothing is stored yet."""
        return self._call(args, kwargs)

    def call_with(self, arguments: Mapping[str, object]) -> Call[Any]:
        """A checked call with arguments from outside, each a value or its JSON form: a UUID or its text."""
        return Call(self._find_route(), self.signature.encode_from_outside(arguments))

    def using(self, **options: Unpack[CallOptions]) -> "Task[P, R_co]":
        """The same task with options for its calls; later ones win. Raises OptionInvalid."""
        where = f"task {self.name!r}"
        changes = check_call_options(options, where=where)
        if changes.get("timeout") and self._declaration.options.executor == "thread":
            raise OptionInvalid(f"{where}: {NO_STOP_IN_THREAD}")
        return Task(self._declaration, {**self._changes, **changes})

    @property
    def name(self) -> str:
        """The name under which jobs of this task are stored."""
        return self._declaration.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Older names, under which jobs may still be waiting."""
        return self._declaration.aliases

    @property
    def fn(self) -> Callable[..., R_co]:
        """The function itself, Context and all."""
        return self._declaration.fn

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return self._declaration.is_async

    @property
    def executor(self) -> Executor:
        """Where its runs take place, but for single ones that were given a process of their own."""
        return self._declaration.executor

    @property
    def takes_context(self) -> bool:
        """Whether the function's first parameter is the Context."""
        return self._declaration.takes_context

    @property
    def encrypts(self) -> bool:
        """Whether its jobs are encrypted where there are keys: unless the call, the task or the app says otherwise, and
        the app's word does not count for secret parameters."""
        said = {**self._declaration.changes, **self._changes}
        if "encrypt" not in said and self.signature.arguments.secrets:
            return True
        return self.options.encrypt is not False

    @property
    def encryption(self) -> Encryption | None:
        """The keys of its app."""
        return None if self._declaration.app is None else self._declaration.app.encryption

    @property
    def options(self) -> Options:
        """What holds for the calls of this task object."""
        declared, where = self._declaration.options, f"task {self.name!r}"
        return lay_call_over(declared, self._changes, where=where, stoppable=self.executor != "thread")

    @property
    def signature(self) -> Signature:
        """How arguments and results are stored, resolved on first use. Raises DeclarationError."""
        return self._declaration.signature

    def schema(self) -> dict[str, Any]:
        """The JSON Schemas of `arguments`, the object that is a payload, and of the `result`. Raises DeclarationError.

        For programs in other languages, which have only JSON; the Context is no part of it.
        """
        return {"arguments": self.signature.json_schema(), "result": self.signature.json_schema_of_result()}

    def expect_bindable(self, app: "Shigoto") -> None:
        """Raise DeclarationError if the task cannot be one of this app's."""
        self._declaration.options_over(app.options)

    def bind(self, app: "Shigoto") -> None:
        """Make the task one of this app's; for `Shigoto.include`."""
        self._declaration.bind(app)

    def _call(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Call[Any]:
        return Call(self._find_route(), self._declaration.signature.arguments.encode(args, kwargs))

    def _find_route(self) -> Route:
        # Not a property: `mock` and `inspect` read all of them, also of a task that has no app yet.
        if self._route is not None:
            return self._route
        app = self._declaration.app
        if app is None:
            raise DeclarationError(
                f"task {self.name!r} belongs to no app yet, so there is no store for its jobs:"
                " call app.include(tasks) with the collection it was declared in."
            )
        options, signature = self.options, self.signature
        spec = options.spec(self.name)
        if secrets := signature.arguments.secrets:
            spec = replace(spec, meta=marked(spec.meta, sorted(secrets)))
        encrypts = self.encrypts
        self._route = Route(
            app, options, spec, signature.decode_result, encrypts, must=encrypts and bool(options.encrypt)
        )
        return self._route


class Decorate:
    """What `task(...)` returns when it is given options, and `cron(…)` and `every(…)`: the decorator itself."""

    __slots__ = ("_declare",)

    def __init__(self, declare: Callable[[Callable[..., Any]], Task[..., Any]]) -> None:
        self._declare = declare

    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Task[..., Any]:
        """Declare the function as a task, with a schedule of the same name if that was asked for."""
        return self._declare(fn)


class Tasks:
    """Tasks that have no app yet, against import cycles.

        tasks = Tasks()

        @tasks.task(queue="mail")
        def send_invitation(store_id: UUID, invitation_id: str) -> str: ...

        app.include(tasks)

    Declare them in any module, and give the collection to the app where that is made.
    """

    def __init__(self) -> None:
        self._declared: list[Task[..., Any]] = []
        self._planned: list[Declared] = []
        self._app: Shigoto | None = None

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(tuple(self._declared))

    @overload
    def task(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Decorate: ...
    def task(
        self, fn: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]
    ) -> Task[..., Any] | Decorate:
        """Declare a function as a task: `@tasks.task` or `@tasks.task(queue="mail")`."""
        return Decorate(lambda fn: self.declare(fn, options)) if fn is None else self.declare(fn, options)

    def cron(self, expression: str, /, **options: Unpack[ScheduledOptions]) -> Decorate:
        """Declare a function as a task that runs by a schedule; see `Shigoto.cron`."""
        expect_times(expression)
        return Decorate(lambda fn: self._scheduled(fn, expression, None, options))

    def every(self, interval: Duration | str, /, **options: Unpack[ScheduledOptions]) -> Decorate:
        """Declare a function as a task that runs at an interval; see `Shigoto.every`."""
        expect_times(interval)
        return Decorate(lambda fn: self._scheduled(fn, None, interval, options))

    def _scheduled(
        self,
        fn: Callable[..., Any],
        expression: str | None,
        every: Duration | str | None,
        options: ScheduledOptions,
    ) -> Task[..., Any]:
        from shigoto.schedule.declare import scheduled

        return scheduled(self, fn, expression, every, options)

    def declare(self, fn: Callable[..., Any], options: TaskOptions) -> Task[..., Any]:
        """Make a task of a function. Raises DeclarationError, OptionInvalid."""
        task: Task[..., Any] = Task(Declaration(fn, options))
        update_wrapper(task, fn)
        if self._app is not None:
            self._app.adopt(task)
        self._declared.append(task)
        return task

    def plan(self, declared: "Declared") -> None:
        """Declare a schedule. Raises DeclarationError if there is one of this name."""
        if self._app is not None:
            self._app.plan(declared)
        self._planned.append(declared)

    @property
    def planned(self) -> "tuple[Declared, ...]":
        """The schedules that are declared here."""
        return tuple(self._planned)

    def is_new_to(self, app: "Shigoto") -> bool:
        """Whether the app does not have these tasks yet. Raises DeclarationError if another one has."""
        if self._app is not None and self._app is not app:
            raise DeclarationError(
                "These tasks are already part of another app, and a job has only one store."
            )
        return self._app is None

    def join(self, app: "Shigoto") -> None:
        """Give tasks that are still to be declared to an app; for `Shigoto.include`."""
        self._app = app


def _name(fn: Callable[..., Any], given: str | None) -> str:
    if given is not None:
        return check_name(given, "The task name")
    name = getattr(fn, "__name__", None)
    if name is None:
        raise DeclarationError(f"{fn!r} has no name of its own: say @app.task(name=…).")
    try:
        return check_name(name, "The task name")
    except OptionInvalid as error:
        raise DeclarationError(f"{error} Rename the function, or say @app.task(name=…).") from error
