"""The record protocol: how the verbs of an engine are asked for over a line, by our own workers and command line.

Both ends have this table. What is sent is a tuple of arguments, what comes back is the value, both as msgpack of the
very records that the engine takes and gives: a signature in `engine.protocol` says what goes over the line. JSON texts
in them are not escaped once more.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from inspect import Signature, signature
from types import GenericAlias, UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin

from msgspec import DecodeError, Struct, defstruct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import asdict, fields, replace

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import RequestInvalid
from shigoto.model.job import JobFilter, JobSpec, State
from shigoto.model.service import Scope

PROTOCOL = 1  # raised when one end no longer understands what the other says
RECORDS_PATH = "/api/v1/engine"  # where the verbs are asked for
MEDIA_TYPE = "application/msgpack"


class ServerHello(Struct, frozen=True, kw_only=True):
    """What a server says of itself."""

    protocol: int
    version: str
    engine: str


class Greeting(Protocol):
    """The verb that no engine has: the server answers it by itself."""

    def hello(self) -> Op[ServerHello]:
        """Tell what is there."""
        ...


class Verb(Struct, frozen=True):
    """One verb: its name over the line, who may ask for it, and its method, which says what it takes and gives.

    `method`: the name of that in Python, if it is another one. `repeatable`: to ask once more, when no answer came,
    does no harm. `restricted`: a token that is confined to queues or a tenant may ask, and the server sees to it that
    it gets no more than it should. `mode` and `urgent` are those of its op; see `Op`.
    """

    name: str
    scopes: tuple[Scope, ...]
    of: type[Any] = Engine
    method: str = ""
    repeatable: bool = True
    restricted: bool = False
    mode: Literal["read", "write"] = "write"
    urgent: bool = False

    @property
    def promise(self) -> Callable[..., Op[Any]]:
        """The method in the protocol."""
        promise: Callable[..., Op[Any]] = getattr(self.of, self.method or self.name)
        return promise

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its arguments, in order."""
        return tuple(name for name in self.promise.__annotations__ if name != "return")

    @property
    def takes(self) -> Any:
        """The type by which its arguments are read, all in one tuple."""
        hints = self.promise.__annotations__
        return GenericAlias(tuple, tuple(_readable(hints[name]) for name in self.names))

    @property
    def gives(self) -> Any:
        """The type by which its value is read."""
        [value] = get_args(self.promise.__annotations__["return"])
        return value


# A filter as it is read: msgspec reads no union of an enumeration and other words.
Named = Literal[
    "pending", "processing", "completed", "failed", "cancelled", "blocked", "scheduled", "retrying"
]
Filter: Any = defstruct(
    "Filter",
    [
        (field.name, Named | None if field.name == "state" else field.type, field.default)
        for field in fields(JobFilter)
    ],
    frozen=True,
    kw_only=True,
)

CONTAINERS: Mapping[Any, Any] = {Sequence: list, Collection: frozenset, UnionType: Union}


def _readable(kind: Any) -> Any:
    """The type by which an argument of this type is read."""
    if kind is JobFilter:
        return Filter
    made = CONTAINERS.get(get_origin(kind))
    return kind if made is None else made[tuple(map(_readable, get_args(kind)))]


ANYBODY: tuple[Scope, ...] = ("submit", "work", "read", "admin")
SUBMIT: tuple[Scope, ...] = ("submit",)
WORK: tuple[Scope, ...] = ("work",)
READ: tuple[Scope, ...] = ("read",)
SEEN_BY_WORKERS: tuple[Scope, ...] = ("read", "work")  # a worker logs and shows them
ADMIN: tuple[Scope, ...] = ("admin",)

_TABLE = (
    Verb("hello", ANYBODY, of=Greeting, restricted=True),
    Verb("enqueue_many", SUBMIT, restricted=True),
    Verb("claim", WORK, repeatable=False, restricted=True),
    Verb("beat", WORK, restricted=True, urgent=True),
    Verb("report", WORK, restricted=True),
    Verb("settle", WORK, restricted=True, urgent=True),
    Verb("announce", WORK, restricted=True, urgent=True),
    Verb("leave", WORK, restricted=True, urgent=True),
    Verb("bury", WORK, method="report_dead", restricted=True, urgent=True),
    Verb("promote", WORK, restricted=True),
    Verb("get", ("read", "work", "submit"), restricted=True, mode="read"),
    Verb("workers", SEEN_BY_WORKERS, restricted=True, mode="read"),
    Verb("find", READ, mode="read"),
    Verb("count", READ, mode="read"),
    Verb("attempts", READ, mode="read"),
    Verb("logs", READ, mode="read"),
    Verb("stats", SEEN_BY_WORKERS, restricted=True, mode="read"),
    Verb("oldest", SEEN_BY_WORKERS, restricted=True, mode="read"),
    Verb("settings", READ, mode="read"),
    Verb("schedules", READ, mode="read"),
    Verb("time", ANYBODY, restricted=True, mode="read"),
    Verb("history", READ, mode="read"),
    Verb("cancel", ADMIN),
    Verb("retry", ADMIN, repeatable=False),
    Verb("deletable", ADMIN, mode="read"),
    Verb("delete", ADMIN, repeatable=False),
    Verb("configure", ADMIN),
    Verb("due", ADMIN, mode="read"),
    Verb("tick", ADMIN),  # guarded by revisions
    Verb("declare", ADMIN),
    Verb("remove_schedules", ADMIN),
    Verb("switch_notices", ADMIN),
    Verb("sweep", ADMIN),
)
VERBS: Mapping[str, Verb] = {verb.name: verb for verb in _TABLE}
METHODS: Mapping[str, Verb] = {verb.method or verb.name: verb for verb in _TABLE if verb.of is Engine}

_STATES = frozenset(State)
_encoder = Encoder()
_args: dict[str, Decoder[Any]] = {}
_values: dict[str, Decoder[Any]] = {}


def encode(value: Any) -> bytes:
    """Arguments as a tuple, or a value, for the line. Specs have no template any more: see `plain`."""
    return _encoder.encode(value)


def plain(specs: Sequence[JobSpec]) -> list[JobSpec]:
    """The specs without what means something in their own process only."""
    return [spec if spec.template is None else replace(spec, template=None) for spec in specs]


def decode_args(verb: str, body: bytes) -> tuple[Any, ...]:
    """The arguments of a verb that is in the table. Raises RequestInvalid if they are not what it takes."""
    decoder = _args.get(verb) or _args.setdefault(verb, Decoder(VERBS[verb].takes))
    try:
        args: tuple[Any, ...] = decoder.decode(body)
    except DecodeError as error:
        raise RequestInvalid(f"The arguments of {verb} are not what it takes: {error}", "body") from None
    return tuple(_filter(arg) if isinstance(arg, Filter) else arg for arg in args)


def _filter(read: Any) -> JobFilter:
    said = asdict(read)
    state = said.pop("state")
    return JobFilter(state=State(state) if state in _STATES else state, **said)


def decode_value(verb: str, body: bytes) -> Any:
    """The value of a verb that is in the table. Raises msgspec's DecodeError if it is not what the verb gives."""
    decoder = _values.get(verb) or _values.setdefault(verb, Decoder(VERBS[verb].gives))
    return decoder.decode(body)


def asked(engine: Engine, verb: str, args: Sequence[Any]) -> Op[Any]:
    """The op of an engine that a verb and its arguments mean. `hello` is not one: the server answers it itself."""
    method: Callable[..., Op[Any]] = getattr(engine, VERBS[verb].method or verb)
    return method(**dict(zip(VERBS[verb].names, args, strict=True)))


def arguments(verb: Verb, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call in Python, as they go over the line: in order, and any collection as a list."""
    bound = _signature(verb).bind(None, *args, **named)
    bound.apply_defaults()
    _, *values = bound.arguments.values()
    return tuple(list(value) if _is_collection(value) else value for value in values)


def _is_collection(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str)


@cache
def _signature(verb: Verb) -> Signature:
    return signature(verb.promise)
