"""STAGE 1 of a job's path: from a call to a stored job.

    task.enqueue(…)  →  Call  →  JobSpec  →  the engine's transaction  →  JobHandle

The arguments are checked and encoded when the `Call` is made, so a mistake shows where it was written. A
job's id is made just before it is stored: one `Call` enqueued twice is two jobs. Next on the path:
`worker/claimer.py`.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from shigoto.codec import encode_json
from shigoto.encryption import KEY_FILE, KEYS, Encryption
from shigoto.handle import Decode, JobHandle, on_event_loop
from shigoto.model import errors
from shigoto.model.ids import uuid7, uuids7
from shigoto.model.job import Enqueued, JobSpec
from shigoto.model.secrets import ENVELOPE_MARK
from shigoto.model.text import plain_text, shown
from shigoto.model.worker import WorkerRecord
from shigoto.observe.tracing import storing
from shigoto.options import (
    MAX_DEPTH,
    MAX_PAYLOAD,
    CallOptions,
    Options,
    check_call_options,
    check_name,
    lay_call_over,
)

if TYPE_CHECKING:
    from shigoto.app import Shigoto

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

logger = logging.getLogger("shigoto")


class Route(Struct, frozen=True):
    """What all calls of one task object have in common, worked out once.

    `spec` lacks only an id and a payload: copying it costs a sixth of building it anew. The arguments are encrypted if
    `encrypts` and the app has keys; by `must` it is an error if it has none.
    """

    app: "Shigoto"
    options: Options
    spec: JobSpec
    decode: Decode | None
    encrypts: bool = True
    must: bool = False


class Call(Struct, Generic[R_co], frozen=True, eq=False, gc=False):
    """One call of a task, checked and encoded but not stored; what `enqueue_many` takes.

    Thousands are made at a time, so the garbage collector does not look at them; one that its own app holds on to keeps
    the app alive.
    """

    route: Route
    payload: str

    def __repr__(self) -> str:
        return f"<Call of {self.route.spec.task!r}>"

    def spec(self, id: UUID, tenant: str | None = None) -> JobSpec:
        """A new job for this call, with this id unless `using(id=…)` named one, and for this tenant if one is named.

        Raises EncryptionKeyMissing, PayloadTooLarge.
        """
        route = self.route
        template = route.spec
        spec = replace(template, id=route.options.id or id, payload=self.payload, template=template)
        if tenant is not None:
            spec = replace(spec, tenant=tenant, template=None)
        keys = route.app.encryption
        if keys is None:
            if route.must:
                expect_keys(route)
            return spec
        return encrypted(spec, keys) if route.encrypts else spec


def encrypted(spec: JobSpec, keys: Encryption) -> JobSpec:
    """The job with its arguments encrypted. Raises PayloadTooLarge: limits hold for what is stored."""
    payload = keys.encrypt(spec.payload, spec, "payload")
    if len(payload) > MAX_PAYLOAD:
        raise errors.PayloadTooLarge(
            f"task {spec.task!r}: the arguments: {len(payload):,} bytes when encrypted are over the limit of"
            f" {MAX_PAYLOAD:,}."
        )
    return replace(spec, payload=payload)


def expect_keys(route: Route) -> None:
    """Raise EncryptionKeyMissing for a call that must be encrypted, and cannot be. A test has no need of keys."""
    if not route.app.is_lent:
        raise errors.EncryptionKeyMissing(
            f"task {route.spec.task!r} says encrypt=True, and this process has no key. Give it the keys by"
            f" Shigoto(encryption=…), ${KEYS} or ${KEY_FILE}."
        )


def enqueue(call: Call[R]) -> JobHandle[R]:
    """Store one job and return once it is committed, or written on the connection that was handed in."""
    route = call.route
    if route.options.connection is not None or route.options.on_error == "log":
        return enqueue_many(route.app, (call,))[0]
    # The same for the most frequent case: a web request that stores one job and waits for that.
    if on_event_loop():
        _warn_of_blocking()
    app = route.app
    engine, specs = app.engine, (call.spec(uuid7()),)
    traced = None if app.tracing is None else app.tracing.begin(specs)
    if traced is None:
        [at] = engine.run(engine.enqueue_many(specs))
    else:
        with traced as marked:
            [at] = engine.run(engine.enqueue_many(marked))
    return JobHandle(engine, at.id, at.number, at.status, route.decode, app.encryption)


async def aenqueue(call: Call[R]) -> JobHandle[R]:
    """Store one job without blocking the event loop. What many store at once shares a commit."""
    route = call.route
    if route.options.connection is not None or route.options.on_error == "log":
        return (await aenqueue_many(route.app, (call,)))[0]
    app = route.app
    engine, specs = app.engine, (call.spec(uuid7()),)
    traced = None if app.tracing is None else app.tracing.begin(specs)
    if traced is None:
        [at] = await engine.arun(engine.enqueue_many(specs))
    else:
        with traced as marked:
            [at] = await engine.arun(engine.enqueue_many(marked))
    return JobHandle(engine, at.id, at.number, at.status, route.decode, app.encryption)


def enqueue_many(app: "Shigoto", calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
    """Store many jobs, all or none, and answer in their order."""
    batch = _Batch(app, calls)
    if not batch.specs:
        return []
    try:
        with storing(app.tracing, batch.specs) as specs:
            op = batch.engine.enqueue_many(specs)
            if batch.connection is not None:
                return batch.stored(batch.engine.join(batch.connection, op))
            if on_event_loop():
                _warn_of_blocking()
            return batch.stored(batch.engine.run(op))
    except errors.StoreError as error:
        return batch.not_stored(error)


async def aenqueue_many(app: "Shigoto", calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
    """Store many jobs, all or none, without blocking the event loop."""
    batch = _Batch(app, calls)
    if not batch.specs:
        return []
    try:
        with storing(app.tracing, batch.specs) as specs:
            op = batch.engine.enqueue_many(specs)
            if batch.connection is not None:
                return batch.stored(await batch.engine.ajoin(batch.connection, op))
            return batch.stored(await batch.engine.arun(op))
    except errors.StoreError as error:
        return batch.not_stored(error)


class _Batch(Generic[R]):
    """Calls on their way into the store: what the twins above do before and after the store's turn."""

    __slots__ = ("calls", "connection", "engine", "specs")

    def __init__(self, app: "Shigoto", calls: Iterable[Call[R]]) -> None:
        self.calls = _checked(app, calls)
        self.engine = app.engine
        count = len(self.calls)
        ids = uuids7(count) if count > 1 else (uuid7(),)
        self.specs = [call.spec(id) for call, id in zip(self.calls, ids, strict=False)]
        self.connection = self.calls[0].route.options.connection if self.calls else None

    def stored(self, answers: list[Enqueued]) -> list[JobHandle[R]]:
        engine = self.engine
        return [
            JobHandle(engine, at.id, at.number, at.status, call.route.decode, call.route.app.encryption)
            for call, at in zip(self.calls, answers, strict=True)
        ]

    def not_stored(self, error: errors.StoreError) -> list[JobHandle[R]]:
        """Raise, unless every call prefers a line in the log; what can never work is always an error."""
        logs = all(call.route.options.on_error == "log" for call in self.calls)
        if not logs or isinstance(error, errors.Unsupported):
            raise error
        for spec in self.specs:
            logger.error("Job %s (%s) was not enqueued and is given up: %s", spec.id, spec.task, error)
        return [
            JobHandle(self.engine, spec.id, 0, "not_enqueued", call.route.decode)
            for call, spec in zip(self.calls, self.specs, strict=True)
        ]


def _checked(app: "Shigoto", calls: Iterable[Call[R]]) -> tuple[Call[R], ...]:
    _expect_several(calls)
    checked = tuple(calls)
    last: Route | None = None
    for call in checked:
        if call.__class__ is not Call:
            expect_call("enqueue_many", call)
        if call.route is last:
            continue
        if call.route.app is not app:
            raise errors.OptionInvalid(f"{call!r} belongs to another app: enqueue it there.")
        if last is not None and call.route.options.connection is not last.options.connection:
            raise errors.OptionInvalid(
                "Jobs are enqueued together on one connection, but these name several."
            )
        last = call.route
    return checked


def _expect_several(calls: object) -> None:
    if not isinstance(calls, Iterable):
        raise errors.OptionInvalid(f"enqueue_many takes a list of calls, not {shown(calls)}.")


def expect_call(taker: str, call: object) -> None:
    """Raise OptionInvalid if somebody has handed in something else to whoever takes calls, such as a task."""
    if not isinstance(call, Call):
        raise errors.OptionInvalid(f"{taker} takes calls, not {shown(call)}: use task.call(...) to make one.")


def enqueue_by_name(
    app: "Shigoto", name: str, payload: Mapping[str, Any], *, allow_unknown: bool, options: CallOptions
) -> JobHandle[Any]:
    """Store a job of a task whose code may be elsewhere.

    The arguments are checked if the app knows the task; if it does not, some live worker must. Raises
    UnknownTask.
    """
    name = _checked_name(name, payload)
    if not allow_unknown and not _knows(app, name):
        with _forgiving(options):
            _expect_known(app, name, app.engine.run(app.engine.workers()))
    return enqueue(call_by_name(app, name, payload, options))


async def aenqueue_by_name(
    app: "Shigoto", name: str, payload: Mapping[str, Any], *, allow_unknown: bool, options: CallOptions
) -> JobHandle[Any]:
    """The same without blocking the event loop."""
    name = _checked_name(name, payload)
    if not allow_unknown and not _knows(app, name):
        with _forgiving(options):
            _expect_known(app, name, await app.engine.arun(app.engine.workers()))
    return await aenqueue(call_by_name(app, name, payload, options))


def call_by_name(app: "Shigoto", name: str, payload: Mapping[str, Any], options: CallOptions) -> Call[Any]:
    """A call of a task, checked if the app knows it."""
    task = app.resolve(name) if _knows(app, name) else None
    return (
        _unchecked_call(app, name, payload, options)
        if task is None
        else task.using(**options).call_with(payload)
    )


def _knows(app: "Shigoto", name: str) -> bool:
    app.load()
    return app.resolve(name) is not None


def _checked_name(name: object, payload: object) -> str:
    """The name, plain. What no type checker has seen is refused before it is used."""
    plain = plain_text(name)
    if plain is None:
        raise errors.OptionInvalid(f"The name of a task must be a string, not {shown(name)}.")
    if not isinstance(payload, Mapping):
        raise errors.PayloadInvalid(
            f"task {shown(plain)}: the arguments must be a mapping of names to values, not {shown(payload)}."
        )
    return plain


def _forgiving(options: CallOptions) -> AbstractContextManager[None]:
    # Where the store cannot even be asked who knows the task, the enqueue that follows fails too, and is
    # logged.
    return suppress(errors.StoreError) if options.get("on_error") == "log" else nullcontext()


def _expect_known(app: "Shigoto", name: str, workers: list[WorkerRecord]) -> None:
    advertised = {task for worker in workers for task in worker.tasks}
    if name not in advertised:
        raise errors.UnknownTask(
            f"No task is called {shown(name)}, neither in this app nor by any live worker."
            f"{errors.nearest(name, advertised | set(app.tasks))}"
            " Start a worker that has it, or pass allow_unknown=True to let the job wait for one."
        )


def _unchecked_call(app: "Shigoto", name: str, payload: Mapping[str, Any], options: CallOptions) -> Call[Any]:
    where = f"task {check_name(name, 'The task')!r}"
    changes = check_call_options(options, where=where)
    resolved = lay_call_over(app.options, changes, where=where, stoppable=False)
    if ENVELOPE_MARK in payload:
        raise errors.PayloadInvalid(
            f"{where}: no argument can be called {ENVELOPE_MARK!r}, by which encrypted ones are known."
        )
    encrypts = resolved.encrypt is not False
    route = Route(app, resolved, resolved.spec(name), None, encrypts, must=bool(resolved.encrypt))
    what = f"{where}: the arguments"
    return Call(route, encode_json(dict(payload), what=what, max_bytes=MAX_PAYLOAD, max_depth=MAX_DEPTH))


@cache
def _warn_of_blocking() -> None:
    """Once per process: the next thousand such calls have the same cause."""
    logger.warning(
        "enqueue() was called on an event loop and blocks it for one commit; await aenqueue() does not."
        " This is said once."
    )
