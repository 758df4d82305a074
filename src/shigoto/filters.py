r"""The job filters of `app.find`, of bulk actions and of the command line, and the language they are written in.

The filter language says in one line which jobs are meant:

    state:failed queue:mail task:send tag:vip key:"a b" tenant:acme worker:web-1 kind:crash_loop
    error:"connection refused" since:2h args.store:7 args.user.name:Ada

All terms must match. The name of a state may stand by itself: `failed queue:mail`. A value with blanks in it is quoted;
inside double quotes \" is a quote and \\ a backslash. `since` asks since when a job is stored, whatever has happened to
it later: it takes how long ago (90, 90s, 5m, 2h, 1d, 2w), a moment with its time zone, or a day, which starts at
midnight in UTC.

A text is cut into words first and each word read by itself. On the command line the shell has done the first half, and
has taken most quotes away: a word is one term there, blanks and all.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from math import isfinite
from typing import Any, Literal, TypedDict, TypeGuard, cast, get_args
from uuid import UUID

import msgspec

from shigoto.engine.open import SCHEMES
from shigoto.model.errors import OptionInvalid, nearest
from shigoto.model.job import FailureKind, JobFilter, State, View
from shigoto.model.text import plain_id, plain_number, plain_text, plain_whole, shown, storable, writable
from shigoto.model.time import FORMS, Clock, Millis, host_clock, milliseconds, read_duration, write_duration
from shigoto.options import instant, several, text

MAX_PAGE = 1_000
MAX_NUMBER = 2**63 - 1

Scalar = str | int | float | bool | None
StateName = Literal[
    "pending",
    "processing",
    "completed",
    "failed",
    "cancelled",
    "blocked",
    "scheduled",
    "retrying",
    "waiting",
    "running",
    "succeeded",
    "all",
]
KindName = Literal[
    "error",
    "timeout",
    "rejected",
    "payload_invalid",
    "result_invalid",
    "unknown_task",
    "expired",
    "snoozed_out",
    "superseded",
    "crash_loop",
]

QUALIFIERS = ("state", "queue", "task", "tag", "key", "tenant", "worker", "kind", "error", "since", "args")
STATES: tuple[str, ...] = get_args(StateName)
LONGEST_TERM = 10_000  # characters of one term

_QUOTED = r""""(?:[^"\\]|\\.)*"|'[^']*'"""
_WORD = re.compile(rf"(?=\S)(?:args\.(?:{_QUOTED}))?[^\s:]*(?::(?:{_QUOTED})?\S*)?", re.DOTALL)
_WHOLE = re.compile(_QUOTED, re.DOTALL)
_QUALIFIER = re.compile(rf"args\.(?P<path>{_QUOTED}):|(?P<name>[^:]*):", re.DOTALL)
_SECOND = re.compile(rf"\s(?:{'|'.join(QUALIFIERS[:-1])}|args\.\S+):\S")
_PLAIN = re.compile(r"""[^\s"']\S*""")
_PLAIN_PATH = re.compile(r"""[^\s:"'][^\s:]*""")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


class Filters(TypedDict, total=False):
    """Which jobs are meant; everything given must match, and None means that it was not given.

    `worker` is the name or the id of the one that runs the job now, `error` a part of its error. `since` is the
    earliest moment at which it was stored, or how long ago that was: it says nothing of when it ran or ended. `args`
    are arguments of the job by their path: `{"store": 7, "user.name": "Ada"}`. The state `all` is every one.
    """

    state: State | StateName | None
    queue: str | None
    task: str | None
    tag: str | None
    key: str | None
    tenant: str | None
    failure_kind: FailureKind | KindName | None
    worker: str | UUID | None
    error: str | None
    since: datetime | timedelta | None
    args: Mapping[str, Scalar] | None
    before: int | None
    limit: int


def wanted(filters: Filters, clock: Clock = host_clock) -> JobFilter:
    """The filter in the store's words, as of now. Raises OptionInvalid for what cannot be meant."""
    for name in filters:
        if name not in Filters.__annotations__:
            raise OptionInvalid(
                f"There is no filter {shown(name)}.{nearest(name, tuple(Filters.__annotations__))}"
            )
    kind, worker = filters.get("failure_kind"), plain_id(filters.get("worker"))
    args = {check_path(path): value for path, value in arguments_of(filters).items()}
    return JobFilter(
        state=_state_of(filters),
        queue=_text_of("queue", filters),
        task=_text_of("task", filters),
        tag=_text_of("tag", filters),
        key=_text_of("key", filters),
        tenant=_text_of("tenant", filters),
        failure_kind=None if kind is None else parse_kind(kind),
        worker=_text_of("worker", filters) if worker is None else str(worker),
        error=_text_of("error", filters),
        since=_since_of(filters, clock),
        args=tuple((path, argument_text(path, value)) for path, value in args.items()),
        before=_before_of(filters),
        limit=_limit_of(filters),
    )


def parse_id(job_id: object) -> UUID:
    """The id of a job, given as one or as its text. Raises OptionInvalid."""
    id, text = plain_id(job_id), plain_text(job_id)
    if text is not None:
        with suppress(ValueError):
            id = UUID(text)
    if id is not None:
        return id
    raise OptionInvalid(f"The id of a job is a UUID or its text, not {shown(job_id)}.")


def parse_state(name: object) -> State | View:
    """The state, or view of pending, that a word means; the aliases of other systems are understood."""
    known = get_args(StateName)
    word = plain_text(name)
    if word is None:
        raise OptionInvalid(f"A state is one of {', '.join(known)}, not {shown(name)}.")
    match word:
        case "scheduled" | "retrying":
            return word
        case "waiting":
            return State.PENDING
        case "running":
            return State.PROCESSING
        case "succeeded":
            return State.COMPLETED
        case _:
            pass
    try:
        return State(word)
    except ValueError:
        raise OptionInvalid(
            f"There is no state {shown(word)}.{nearest(word, known)} States are: {', '.join(known)}."
        ) from None


def parse_kind(name: object) -> FailureKind:
    known = [str(kind) for kind in FailureKind]
    word = plain_text(name)
    if word is None:
        raise OptionInvalid(f"A kind of failure is one of {', '.join(known)}, not {shown(name)}.")
    try:
        return FailureKind(word)
    except ValueError:
        raise OptionInvalid(
            f"There is no kind of failure {shown(word)}.{nearest(word, known)} Kinds are: {', '.join(known)}."
        ) from None


def _state_of(filters: Filters) -> State | View | None:
    """None for every one. Who asks for a kind of failure, and for no state, means failed jobs."""
    state = filters.get("state")
    if state is None:
        return None if filters.get("failure_kind") is None else State.FAILED
    return None if plain_text(state) == "all" else parse_state(state)


def _before_of(filters: Filters) -> int | None:
    before = filters.get("before")
    number = plain_whole(before)
    if before is not None and (number is None or not 0 <= number <= MAX_NUMBER):
        raise OptionInvalid(f"before must be the number of a job, not {shown(before)}.")
    return number


def _limit_of(filters: Filters) -> int:
    limit = filters.get("limit", 20)
    number = plain_whole(limit)
    if number is None or not 1 <= number <= MAX_PAGE:
        raise OptionInvalid(
            f"limit must be a whole number from 1 to {MAX_PAGE}, not {shown(limit)};"
            " for the next page there is before=."
        )
    return number


def _text_of(
    name: Literal["queue", "task", "tag", "key", "tenant", "worker", "error"], filters: Filters
) -> str | None:
    value: object = filters.get(name)
    if value is None:
        return None
    text = plain_text(value)
    if text is None:
        raise OptionInvalid(f"{name} must be a string, not {shown(value)}.")
    return storable(name, text)


def _since_of(filters: Filters, clock: Clock) -> Millis | None:
    since = filters.get("since")
    if since is None:
        return None
    if isinstance(since, timedelta):
        return max(0, clock() - milliseconds(since, "since"))
    return instant(since, "since")


def arguments_of(filters: Filters) -> Mapping[object, object]:
    """The arguments that are asked for, by their paths. Raises OptionInvalid for what is no mapping."""
    args: object = filters.get("args")
    if args is None:
        return {}
    if not is_mapping(args):
        raise OptionInvalid(f'args takes paths and values, such as {{"store": 7}}, not {shown(args)}.')
    return args


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether it has values by their names."""
    return isinstance(value, Mapping)


def check_path(path: object) -> str:
    """The path of an argument: its name, and the names inside of it after dots. Raises OptionInvalid."""
    plain = plain_text(path)
    if plain is None or not all(plain.split(".")):
        raise OptionInvalid(
            f"The path of an argument is its name, and names inside of it after dots, not {shown(path)}."
        )
    return writable("The path of an argument", plain)


def argument_text(path: object, value: object) -> str:
    """The text that stands for a value in the store's filter: of a string itself, of anything else its JSON."""
    text = plain_text(value)
    if text is not None:
        return writable(f"The argument {path}", text)
    plain = value if type(value) is bool else plain_number(value)
    if value is None or (plain is not None and (type(plain) is not float or isfinite(plain))):
        with suppress(ValueError):  # of a number that is too long to be written
            return msgspec.json.encode(plain).decode()
    raise OptionInvalid(
        f"The argument {path} is compared with a string, a number, true, false or null, not {shown(value)}."
    )


def parse_filter(filter: str | Sequence[str]) -> Filters:
    """What a text, or the words of a command line, asks for. Raises OptionInvalid, which names the term."""
    found: dict[str, Any] = {}
    for place, word in enumerate(
        words_of(filter) if isinstance(filter, str) else several("A filter", filter), 1
    ):
        try:
            _add(found, text("A term", word, LONGEST_TERM))
        except OptionInvalid as error:
            raise OptionInvalid(f"{error} (In term {place}: {shown(word)}.)") from None
    return cast("Filters", found)


def write_filter(filters: Filters) -> str:
    """The text that `parse_filter` reads as these filters; `before` and `limit`, the pages, have no words in it."""
    terms: list[str] = []
    for name, value in filters.items():
        if name == "args" and value is not None:
            args = filters.get("args") or {}
            for path, arg in args.items():
                terms.append(f"args.{_written(path, _PLAIN_PATH)}:{_written(argument_text(path, arg))}")
        elif value is not None and name not in ("before", "limit"):
            terms.append(f"{'kind' if name == 'failure_kind' else name}:{_written(_value_text(value))}")
    return " ".join(terms)


def together(filter: str | Sequence[str], filters: Filters) -> Filters:
    """What a text, or words, and single filters ask for together. Raises OptionInvalid for what both of them say."""
    said: dict[str, Any] = {**parse_filter(filter)}
    given = {name: value for name, value in filters.items() if value is not None}
    args = _joined(said.pop("args", {}), arguments_of(filters), "args.")
    given.pop("args", None)
    both = {**filters, **_joined(said, given)}
    return cast("Filters", {**both, "args": args} if args else both)


def is_term(word: str) -> bool:
    """Whether a word of a command line is part of a filter, right or wrong, and not the address of a store.

    An address has a slash after the colon, or the name of an engine before it; one letter there is a Windows drive. A
    path has a slash before the colon, or begins with a dot.
    """
    match = _QUALIFIER.match(word)
    if match is None:
        return word in STATES
    name = match["name"]
    if name is None or name.partition(".")[0] in QUALIFIERS:
        return True
    is_path = "/" in name or name.startswith(".") or word[match.end() :].startswith("/")
    return len(name) > 1 and name not in SCHEMES and not is_path


def words_of(line: str) -> list[str]:
    """The words of a text, each of them a term; blanks inside quotes part nothing."""
    return [match[0] for match in _WORD.finditer(line)]


def _add(found: dict[str, Any], word: str) -> None:
    name, path, value = _taken_apart(word)
    if name == "args":
        args: dict[str, Scalar] = found.setdefault("args", {})
        if check_path(path) in args:
            raise OptionInvalid(f"The filter says args.{path} twice.")
        args[path] = value
        return
    field, meant = "failure_kind" if name == "kind" else name, _read_term(name, value)
    if field in found:
        raise OptionInvalid(f"The filter says {name} twice, and all terms must match: leave one out.")
    found[field] = meant


def _joined(said: Mapping[str, Any], given: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    for name in given:
        if name in said:
            raise OptionInvalid(f"The filter says {prefix}{name} twice: as a term, and by itself.")
    return {**said, **given}


def _taken_apart(word: str) -> tuple[str, str, str]:
    """The qualifier, the path after it, and the value of one term."""
    match = _QUALIFIER.match(word)
    if match is None:
        return "state", "", word
    path = match["path"]
    name, _, rest = ("args", "", _unquoted(path)) if path else match["name"].partition(".")
    if name not in QUALIFIERS or (bool(rest) and name != "args"):
        raise OptionInvalid(_unknown(match["name"] or name))
    if name == "args" and not rest:
        raise OptionInvalid("args needs the name of an argument: write args.NAME:VALUE.")
    return name, rest, _term_value(word[match.end() :])


def _term_value(said: str) -> str:
    if not said:
        raise OptionInvalid('There is no value after the colon; "" is the empty one.')
    if said[0] not in "\"'":
        if _SECOND.search(said):
            raise OptionInvalid(
                "This looks like several terms in one word: write each by itself, or put the value in quotes."
            )
        return said
    match = _WHOLE.match(said)
    if match is None:
        raise OptionInvalid(f"The quote {said[0]} is never closed.")
    if match.end() < len(said):
        raise OptionInvalid(
            f"After the closing quote comes {shown(said[match.end() :])}; inside double quotes"
            ' write \\" for a quote.'
        )
    return _unquoted(said)


def _unquoted(said: str) -> str:
    return said[1:-1] if said[0] == "'" else re.sub(r'\\(["\\])', r"\1", said[1:-1])


def _unknown(name: str) -> str:
    known = ", ".join(f"{qualifier}:" for qualifier in QUALIFIERS[:-1])
    return (
        f"There is no filter {shown(name)}.{nearest(name, QUALIFIERS)} Filters are: {known} and args.NAME:."
    )


def _read_term(name: str, value: str) -> object:
    match name:
        case "state":
            return value if value == "all" else parse_state(value)
        case "kind":
            return parse_kind(value)
        case "since":
            return read_since(value)
        case _:
            return value


def read_since(text: str) -> datetime | timedelta:
    """How long ago, or the moment. Raises OptionInvalid."""
    ago = read_duration(text)
    if ago is not None:
        milliseconds(ago, "since")  # refuses what is too long
        return ago
    try:
        if _DAY.fullmatch(text):
            day = date.fromisoformat(text)
            return datetime(day.year, day.month, day.day, tzinfo=UTC)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionInvalid(
            f"since takes how long ago jobs were stored ({FORMS}), a day such as 2030-01-31, or a moment such as"
            f" 2030-01-31T09:00:00Z, not {shown(text)}."
        ) from None
    if moment.utcoffset() is None:
        raise OptionInvalid(f"since has no time zone: end {shown(text)} with Z, or with one such as +09:00.")
    return moment


def _value_text(value: object) -> str:
    if isinstance(value, timedelta):
        return write_duration(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.value if isinstance(value, State | FailureKind) else str(value)


def _written(text: str, plain: re.Pattern[str] = _PLAIN) -> str:
    if plain.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
