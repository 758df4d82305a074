"""Expectations of a test: which jobs it asks for, and how far other jobs are from them.

A call names a job by what `using` has said of it, too. Only what was said counts, and all of it, also if it is what the
task says of itself. A retry policy and time limits that a job has from its task are those of the task: to say them is
no difference.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypedDict

import msgspec
from msgspec import Struct

from shigoto.app import Shigoto
from shigoto.enqueue import Call
from shigoto.filters import StateName, is_mapping, parse_state
from shigoto.model.errors import OptionInvalid, PayloadInvalid, nearest
from shigoto.model.job import MAX_PRIORITY, MIN_PRIORITY, Job, State, View
from shigoto.model.text import shown
from shigoto.model.time import Duration, Millis, to_datetime, to_millis
from shigoto.options import Options, duration, instant, whole
from shigoto.retry import Retry
from shigoto.task import Task
from shigoto.testing.store import OwnStore

AROUND = 60  # letters shown on either side of where two long values part

Target = Task[..., Any] | Call[Any] | str
Compared = list[tuple[Job, list[str]]]
# Of one option: what a call says of it, and what a job has that is of a task with these options.
Case = tuple[Callable[[Options], Any], Callable[[Job, Options], Any]]


class Sought(TypedDict, total=False):
    """What else a job must be; everything given must match.

    `args` are some of its arguments, by name. `run_at` and `delay` are what it was enqueued with, also if it has failed
    since and runs again later.
    """

    args: Mapping[str, Any]
    queue: str
    priority: int
    key: str | None
    tag: str
    tenant: str
    state: State | StateName
    run_at: datetime
    delay: Duration


class Search(Struct, frozen=True):
    """Which jobs are meant: those of a task, or of one call of it with the arguments `payload`, as JSON; `args` are
    some arguments as values, `exact` are further fields. What `using` has said is in `options`."""

    names: tuple[str, ...] | None = None
    task: Task[..., Any] | None = None
    options: Options = Options()
    payload: Mapping[str, Any] | None = None
    args: Mapping[str, Any] = {}
    exact: Mapping[str, object] = {}
    tag: str | None = None
    run_at: Millis | None = None
    delay: Millis | None = None
    state: State | View | None = None

    def differences(self, job: Job, asked: Job, now: datetime) -> list[str]:
        """Where a job is not what is sought; `asked` is the job as it was when it was enqueued."""
        if not self.is_of_task(job):
            return [f"it is of {job.task!r}"]
        own = Options() if self.task is None else self.task.options
        return [
            *self._differ_in_arguments(job),
            *unlike(self.options, own, asked),
            *self._differ_otherwise(job, asked),
            *([] if self._is_in_state(job, now) else [f"it is {job.state}, not {self.state}"]),
        ]

    def is_of_task(self, job: Job) -> bool:
        return self.names is None or job.task in self.names

    def __str__(self) -> str:
        words = [f"job of {self.names[0]!r}" if self.names else "job"]
        given = self.args if self.payload is None else self.payload
        if given or self.payload is not None:
            listed = ", ".join(f"{name}={shown(value)}" for name, value in given.items())
            words.append(f"with {listed or 'no arguments'}")
        words += described(self.options)
        words += [f"with {name} {shown(value)}" for name, value in self.exact.items()]
        words += [] if self.tag is None else [f"with tag {self.tag!r}"]
        words += [] if self.run_at is None else [f"with run_at {at(self.run_at)}"]
        words += [] if self.delay is None else [f"with a delay of {self.delay / 1000:g} s"]
        words += [] if self.state is None else [f"that is {self.state}"]
        return " ".join(words)

    def _differ_in_arguments(self, job: Job) -> Iterator[str]:
        stored = _object(job.payload)
        values = _values(self.task, stored)
        if self.payload is not None:
            wanted = _values(self.task, self.payload)
            for name in dict.fromkeys((*wanted, *values)):
                if not _alike(name, self.payload, stored) and not _alike(name, wanted, values):
                    yield _unequal(name, wanted, values)
        for name, value in self.args.items():
            said = {name: value}
            if not _alike(name, said, values) and not _alike(name, _as_json(said), stored):
                yield _unequal(name, said, values)

    def _is_in_state(self, job: Job, now: datetime) -> bool:
        match self.state:
            case None:
                return True
            case "scheduled":
                return job.state is State.PENDING and job.run_at > now
            case "retrying":
                return job.state is State.PENDING and job.failures > 0
            case _:
                return job.state == self.state

    def _differ_otherwise(self, job: Job, asked: Job) -> Iterator[str]:
        for name, value in self.exact.items():
            if (got := getattr(job, name)) != value:
                yield f"{name} is {shown(got)}, not {shown(value)}"
        if self.tag is not None and self.tag not in job.tags:
            yield f"its tags are {shown(list(job.tags))}, without {self.tag!r}"
        yield from _unlike_start(self.run_at, self.delay, asked)


def search(app: Shigoto, store: OwnStore, target: Target | None, sought: Sought) -> Search:
    """What a test has asked for, checked: what cannot be meant would never match, which is just what
    `refute_enqueued` waits for. Raises OptionInvalid."""
    for name in sought:
        if name not in Sought.__annotations__:
            raise OptionInvalid(
                f"There is nothing called {name!r} to look for.{nearest(name, tuple(Sought.__annotations__))}"
            )
    meant = _meant(app, store, target)
    return msgspec.structs.replace(
        meant,
        args=_checked_args(meant.task, sought.get("args", {})),
        exact={name: _checked(name, value) for name, value in sought.items() if name in EXACT},
        tag=_text("tag", sought["tag"]) if "tag" in sought else None,
        run_at=instant(sought["run_at"], "run_at") if "run_at" in sought else None,
        delay=duration(sought["delay"], "delay") if "delay" in sought else None,
        state=parse_state(sought["state"]) if "state" in sought else None,
    )


def compared(store: OwnStore, wanted: Search) -> Compared:
    """Every job of the test, oldest first, and where it is not what is sought."""
    now = to_datetime(store.clock.now)
    return [(job, wanted.differences(job, store.asked.get(job.id, job), now)) for job in store.everything()]


EXACT = ("queue", "priority", "key", "tenant")


def _checked(name: str, value: object) -> object:
    if name == "priority":
        return whole(name, value, MIN_PRIORITY, MAX_PRIORITY)
    return None if name == "key" and value is None else _text(name, value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise OptionInvalid(f"{name} must be a string, not {shown(value)}.")
    return value


def _checked_args(task: Task[..., Any] | None, args: object) -> Mapping[str, Any]:
    if not is_mapping(args):
        raise OptionInvalid(f"args takes a mapping of names to values, not {shown(args)}.")
    known = () if task is None else tuple(task.signature.arguments.slots)
    for name in args:
        if task is not None and name not in known:
            raise OptionInvalid(f"task {task.name!r} has no parameter {name!r}.{nearest(name, known)}")
    return args


def _meant(app: Shigoto, store: OwnStore, target: object) -> Search:
    app.load()
    if target is None:
        return Search()
    if isinstance(target, str):
        task = app.resolve(target)
        return _by_name(app, store, target) if task is None else Search(_names(task), task)
    if isinstance(target, Call):
        name, payload = target.route.spec.task, _object(target.payload)
        task = app.resolve(name)
        names = (name,) if task is None else _names(task)
        return Search(names, task, target.route.options, payload)
    if not isinstance(target, Task):
        raise OptionInvalid(
            f"Jobs are looked for by a task, a call of one, or a name, not {shown(target)}: say send, or send.call(7)."
        )
    task = app.resolve(target.name)
    if task is None:
        raise OptionInvalid(f"{target!r} is no task of this app.")
    return Search(_names(task), task, target.options)


def _by_name(app: Shigoto, store: OwnStore, name: str) -> Search:
    """A task whose code is elsewhere, unless it looks like a slip of the pen."""
    seen = {job.task for job in store.everything()}
    hint = "" if name in seen else nearest(name, seen | set(app.tasks))
    if hint:
        raise OptionInvalid(f"No task of this app is called {name!r}, and no job was enqueued for one.{hint}")
    return Search((name,))


def _names(task: Task[..., Any]) -> tuple[str, ...]:
    return task.name, *task.aliases


def _object(payload: str) -> dict[str, Any]:
    return msgspec.json.decode(payload, type=dict[str, Any])


def _values(task: Task[..., Any] | None, payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments as the handler gets them, defaults included; those of an unknown task as JSON."""
    if task is None:
        return payload
    signature = task.signature
    try:
        return {**signature.arguments.defaults, **signature.decode(msgspec.json.encode(payload))}
    except PayloadInvalid:
        return payload


def _alike(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether both have it, and the same; what cannot even be compared is not."""
    if name not in one or name not in other:
        return False
    wanted, got = one[name], other[name]
    try:
        return isinstance(wanted, bool) == isinstance(got, bool) and bool(wanted == got)
    except Exception:  # whatever an author's __eq__ raises: an array's, for one
        return False


def _as_json(said: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(msgspec.json.encode(said), type=dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError):
        return {}


def _unequal(name: str, wanted: Mapping[str, Any], got: Mapping[str, Any]) -> str:
    if name not in wanted:
        return f"{name} is passed, {shown(got[name])}, and should not be"
    if name not in got:
        return f"{name} is not passed, and should be {shown(wanted[name])}"
    have, want = repr(got[name]), repr(wanted[name])
    where = next((n for n, (one, other) in enumerate(zip(have, want, strict=False)) if one != other), 0)
    if where <= AROUND:
        return f"{name} is {shown(got[name])}, not {shown(wanted[name])}"
    return f"{name} is {_excerpt(have, where)}, not {_excerpt(want, where)}, from letter {where} on"


def _excerpt(text: str, where: int) -> str:
    start, stop = where - AROUND // 3, where + AROUND
    return f"…{text[start:stop]}{'…' if stop < len(text) else ''}"


def unlike(wanted: Options, own: Options, asked: Job) -> Iterator[str]:
    """Where a job, as it was when it was enqueued, is not what `using` has said."""
    for name, (say, have) in CASES.items():
        if name in wanted.said:
            want, got = say(wanted), have(asked, own)
            if want != got:
                yield f"{name} is {_as_text(got)}, not {_as_text(want)}"
    if "delay" in wanted.said:
        yield from _unlike_start(wanted.run_at, wanted.delay if wanted.run_at is None else None, asked)
    if "expires_in" in wanted.said:
        yield from _unlike_expiry(wanted, asked)


def described(wanted: Options) -> Iterator[str]:
    for name, (say, _) in CASES.items():
        if name in wanted.said:
            yield f"with {name} {_as_text(say(wanted))}"
    if "delay" in wanted.said:
        yield f"with {_start(wanted.run_at, wanted.delay)}"
    if "expires_in" in wanted.said:
        yield f"with {_expiry(wanted.expires_at, wanted.expires_in)}"


def at(instant: Millis) -> str:
    return to_datetime(instant).isoformat()


def _unlike_start(run_at: Millis | None, delay: Millis | None, asked: Job) -> Iterator[str]:
    starts = to_millis(asked.run_at)
    waits = starts - to_millis(asked.created_at)
    if run_at is not None and starts != run_at:
        yield f"run_at is {at(starts)}, not {at(run_at)}"
    if delay is not None and waits != delay:
        yield f"its delay is {waits / 1000:g} s, not {delay / 1000:g} s"


def _unlike_expiry(wanted: Options, asked: Job) -> Iterator[str]:
    created = to_millis(asked.created_at)
    got = None if asked.expires_at is None else to_millis(asked.expires_at)
    want = wanted.expires_at if wanted.expires_in is None else created + wanted.expires_in
    if got != want:
        by_instant = wanted.expires_at is not None
        has = _expiry(got if by_instant else None, None if got is None else got - created)
        yield f"it has {has}, not {_expiry(wanted.expires_at, wanted.expires_in)}"


def _start(run_at: Millis | None, delay: Millis) -> str:
    return f"a delay of {delay / 1000:g} s" if run_at is None else f"run_at {at(run_at)}"


def _expiry(expires_at: Millis | None, expires_in: Millis | None) -> str:
    if expires_at is not None:
        return f"expiry at {at(expires_at)}"
    return "no expiry" if expires_in is None else f"expiry after {expires_in / 1000:g} s"


def _limit(own: Millis | None, stored: Millis | None) -> float | None:
    limit = own if stored is None else stored
    return limit / 1000 if limit else None


def _list(tags: str | None) -> list[str]:
    return msgspec.json.decode(tags, type=list[str]) if tags else []


def _json_object(meta: str | None) -> dict[str, Any]:
    return msgspec.json.decode(meta, type=dict[str, Any]) if meta else {}


def _as_text(value: object) -> str:
    return f"{value:g} s" if isinstance(value, float) else shown(value)


def _same(name: str) -> Case:
    return (lambda wanted: getattr(wanted, name), lambda job, _: getattr(job, name))


CASES: dict[str, Case] = {
    **{name: _same(name) for name in ("id", "queue", "priority", "tenant", "key", "max_crashes")},
    "retry": (
        lambda wanted: wanted.retry.with_retries(0),
        lambda job, own: (own.retry if job.retry is None else Retry.load(job.retry)).with_retries(0),
    ),
    "retries": (lambda wanted: wanted.retry.retries, lambda job, _: job.max_failures - 1),
    "timeout": (
        lambda wanted: _limit(wanted.timeout, None),
        lambda job, own: _limit(own.timeout, job.timeout),
    ),
    "soft_timeout": (
        lambda wanted: _limit(wanted.soft_timeout, None),
        lambda job, own: _limit(own.soft_timeout, job.soft_timeout),
    ),
    "tags": (lambda wanted: _list(wanted.tags), lambda job, _: list(job.tags)),
    "meta": (lambda wanted: _json_object(wanted.meta), lambda job, _: _json_object(job.meta)),
}
