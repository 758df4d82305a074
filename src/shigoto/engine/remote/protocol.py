"""The record protocol: how the verbs of an engine are asked for over a line, by our own workers and command line.

Both ends have this table. What is sent is a tuple of arguments, what comes back is the value, both as msgpack of the
very records that the engine takes and gives. JSON texts in them are not escaped once more.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

from msgspec import DecodeError, Struct, defstruct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import asdict, fields, replace

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import RequestInvalid
from shigoto.model.job import (
    Attempt,
    Counts,
    Enqueued,
    Job,
    JobFilter,
    JobSpec,
    Lease,
    LoggedLine,
    QueueSettings,
    State,
)
from shigoto.model.schedule import Change, Due, Schedule, TickEntry
from shigoto.model.service import Scope
from shigoto.model.time import Millis
from shigoto.model.worker import (
    Announcement,
    Death,
    Orders,
    Promoted,
    Report,
    Rescued,
    Settlement,
    SweepOrder,
    Swept,
    Verdict,
    Want,
    WorkerRecord,
)

PROTOCOL = 1  # raised when one end no longer understands what the other says
RECORDS_PATH = "/api/v1/engine"  # where the verbs are asked for
MEDIA_TYPE = "application/msgpack"


class ServerHello(Struct, frozen=True, kw_only=True):
    """What a server says of itself."""

    protocol: int
    version: str
    engine: str


class Verb(Struct, frozen=True, kw_only=True):
    """One verb: its arguments by the names they have in the protocol, its value, and who may ask for it.

    `repeatable`: to ask once more, when no answer came, does no harm. `restricted`: a token that is confined to queues
    or a tenant may ask, and the server sees to it that it gets no more than it should. `method`: its name in Python,
    if that is another one than in the protocol.
    """

    method: str = ""
    names: tuple[str, ...] = ()
    takes: Any
    gives: Any
    scopes: tuple[Scope, ...]
    repeatable: bool = True
    restricted: bool = False


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

ANYBODY: tuple[Scope, ...] = ("submit", "work", "read", "admin")
WORK: tuple[Scope, ...] = ("work",)
READ: tuple[Scope, ...] = ("read",)
ADMIN: tuple[Scope, ...] = ("admin",)
Held = list[tuple[int, int]] | None

VERBS: Mapping[str, Verb] = {
    "hello": Verb(takes=tuple[()], gives=ServerHello, scopes=ANYBODY, restricted=True),
    "enqueue_many": Verb(
        names=("specs",),
        takes=tuple[list[JobSpec]],
        gives=list[Enqueued],
        scopes=("submit",),
        restricted=True,
    ),
    "claim": Verb(
        names=("worker", "wants"),
        takes=tuple[UUID, list[Want]],
        gives=list[Lease],
        scopes=WORK,
        repeatable=False,
        restricted=True,
    ),
    "beat": Verb(
        names=("worker", "held"), takes=tuple[UUID, Held], gives=Orders, scopes=WORK, restricted=True
    ),
    "report": Verb(
        names=("worker", "reports"),
        takes=tuple[UUID, list[Report]],
        gives=list[bool],
        scopes=WORK,
        restricted=True,
    ),
    "settle": Verb(
        names=("worker", "settlements"),
        takes=tuple[UUID, list[Settlement]],
        gives=list[Verdict],
        scopes=WORK,
        restricted=True,
    ),
    "announce": Verb(
        names=("announcement",), takes=tuple[Announcement], gives=None, scopes=WORK, restricted=True
    ),
    "leave": Verb(names=("worker",), takes=tuple[UUID], gives=int, scopes=WORK, restricted=True),
    "bury": Verb(
        method="report_dead",
        names=("worker", "deaths"),
        takes=tuple[UUID, list[Death]],
        gives=list[Rescued],
        scopes=WORK,
        restricted=True,
    ),
    "promote": Verb(names=("limit",), takes=tuple[int], gives=Promoted, scopes=WORK, restricted=True),
    "get": Verb(
        names=("ids",),
        takes=tuple[list[UUID]],
        gives=list[Job | None],
        scopes=("read", "work", "submit"),
        restricted=True,
    ),
    "workers": Verb(takes=tuple[()], gives=list[WorkerRecord], scopes=("read", "work"), restricted=True),
    "find": Verb(names=("wanted",), takes=tuple[Filter], gives=list[Job], scopes=READ),
    "count": Verb(names=("wanted",), takes=tuple[Filter], gives=int, scopes=READ),
    "attempts": Verb(names=("id",), takes=tuple[UUID], gives=list[Attempt], scopes=READ),
    "logs": Verb(names=("id",), takes=tuple[UUID], gives=list[LoggedLine], scopes=READ),
    "stats": Verb(
        takes=tuple[()], gives=dict[str, Counts], scopes=("read", "work"), restricted=True
    ),  # a worker logs them
    "oldest": Verb(
        takes=tuple[()], gives=dict[str, Millis], scopes=("read", "work"), restricted=True
    ),  # it shows them, too
    "settings": Verb(takes=tuple[()], gives=list[QueueSettings], scopes=READ),
    "schedules": Verb(names=("names",), takes=tuple[list[str] | None], gives=list[Schedule], scopes=READ),
    "time": Verb(takes=tuple[()], gives=Millis, scopes=ANYBODY, restricted=True),
    "history": Verb(
        names=("name", "before", "limit"),
        takes=tuple[str, Millis | None, int],
        gives=list[TickEntry],
        scopes=READ,
    ),
    "cancel": Verb(
        names=("ids", "force"), takes=tuple[list[UUID], bool], gives=list[State | None], scopes=ADMIN
    ),
    "retry": Verb(
        names=("ids",), takes=tuple[list[UUID]], gives=list[Enqueued], scopes=ADMIN, repeatable=False
    ),
    "deletable": Verb(names=("wanted", "after"), takes=tuple[Filter, int], gives=list[int], scopes=ADMIN),
    "delete": Verb(
        names=("numbers", "states"),
        takes=tuple[list[int], frozenset[State]],
        gives=int,
        scopes=ADMIN,
        repeatable=False,
    ),
    "configure": Verb(names=("settings",), takes=tuple[QueueSettings], gives=None, scopes=ADMIN),
    "due": Verb(names=("declared", "limit"), takes=tuple[frozenset[str], int], gives=Due, scopes=ADMIN),
    "tick": Verb(
        names=("changes",), takes=tuple[list[Change]], gives=list[Change | None], scopes=ADMIN
    ),  # guarded by revisions
    "declare": Verb(names=("names",), takes=tuple[frozenset[str]], gives=int, scopes=ADMIN),
    "remove_schedules": Verb(names=("names",), takes=tuple[list[str]], gives=list[bool], scopes=ADMIN),
    "switch_notices": Verb(names=("on",), takes=tuple[bool], gives=bool, scopes=ADMIN),
    "sweep": Verb(names=("order",), takes=tuple[SweepOrder], gives=Swept, scopes=ADMIN),
}

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
    method = getattr(engine, VERBS[verb].method or verb)
    op: Op[Any] = method(**dict(zip(VERBS[verb].names, args, strict=True)))
    return op
