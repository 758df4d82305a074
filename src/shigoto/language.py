"""The filter language: which jobs are meant, in one line that the command line and every other door understand.

    state:failed queue:mail task:send tag:vip key:"a b" tenant:acme worker:web-1 kind:crash_loop
    error:"connection refused" since:2h args.store:7 args.user.name:Ada

All terms must match. The name of a state may stand by itself: `failed queue:mail`. A value with blanks in it is quoted;
inside double quotes \\" is a quote and \\\\ a backslash. `since` asks since when a job is stored, whatever has happened
to it later: it takes how long ago (90, 90s, 5m, 2h, 1d, 2w), a moment with its time zone, or a day, which starts at
midnight in UTC.

A text is cut into words first and each word read by itself. On the command line the shell has done the first half, and
has taken most quotes away: a word is one term there, blanks and all.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, cast, get_args

from shigoto.engine.open import SCHEMES
from shigoto.filters import (
    Filters,
    Scalar,
    StateName,
    argument_text,
    arguments_of,
    check_path,
    parse_kind,
    parse_state,
)
from shigoto.model.errors import OptionInvalid, nearest
from shigoto.model.job import FailureKind, State
from shigoto.model.text import shown
from shigoto.model.time import FORMS, milliseconds, read_duration, write_duration
from shigoto.options import several, text

QUALIFIERS = ("state", "queue", "task", "tag", "key", "tenant", "worker", "kind", "error", "since", "args")
STATES: tuple[str, ...] = get_args(StateName)
LONGEST = 10_000  # characters of one term

_QUOTED = r""""(?:[^"\\]|\\.)*"|'[^']*'"""
_WORD = re.compile(rf"(?=\S)(?:args\.(?:{_QUOTED}))?[^\s:]*(?::(?:{_QUOTED})?\S*)?", re.DOTALL)
_WHOLE = re.compile(_QUOTED, re.DOTALL)
_QUALIFIER = re.compile(rf"args\.(?P<path>{_QUOTED}):|(?P<name>[^:]*):", re.DOTALL)
_SECOND = re.compile(rf"\s(?:{'|'.join(QUALIFIERS[:-1])}|args\.\S+):\S")
_PLAIN = re.compile(r"""[^\s"']\S*""")
_PLAIN_PATH = re.compile(r"""[^\s:"'][^\s:]*""")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def parse(filter: str | Sequence[str]) -> Filters:
    """What a text, or the words of a command line, asks for. Raises OptionInvalid, which names the term."""
    found: dict[str, Any] = {}
    for place, word in enumerate(
        words_of(filter) if isinstance(filter, str) else several("A filter", filter), 1
    ):
        try:
            _add(found, text("A term", word, LONGEST))
        except OptionInvalid as error:
            raise OptionInvalid(f"{error} (In term {place}: {shown(word)}.)") from None
    return cast("Filters", found)


def write(filters: Filters) -> str:
    """The text that `parse` reads as these filters; pages, which are `before` and `limit`, have no words in it."""
    terms: list[str] = []
    for name, value in filters.items():
        if name == "args" and value is not None:
            args = filters.get("args") or {}
            terms += [
                f"args.{_written_path(path)}:{_written(argument_text(path, arg))}"
                for path, arg in args.items()
            ]
        elif value is not None and name not in ("before", "limit"):
            terms.append(f"{'kind' if name == 'failure_kind' else name}:{_written(_said(value))}")
    return " ".join(terms)


def together(filter: str | Sequence[str], filters: Filters) -> Filters:
    """What a text, or words, and single filters ask for together. Raises OptionInvalid for what both of them say."""
    said: dict[str, Any] = {**parse(filter)}
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
    """Read one term into what was found so far."""
    name, path, value = _taken_apart(word)
    if name == "args":
        args: dict[str, Scalar] = found.setdefault("args", {})
        if check_path(path) in args:
            raise OptionInvalid(f"The filter says args.{path} twice.")
        args[path] = value
        return
    field, meant = "failure_kind" if name == "kind" else name, _read(name, value)
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
    return name, rest, _value(word[match.end() :])


def _value(said: str) -> str:
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


def _read(name: str, value: str) -> object:
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


def _said(value: object) -> str:
    if isinstance(value, timedelta):
        return write_duration(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return value.value if isinstance(value, State | FailureKind) else str(value)


def _written(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else _quoted(text)


def _written_path(path: str) -> str:
    return path if _PLAIN_PATH.fullmatch(path) else _quoted(path)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
