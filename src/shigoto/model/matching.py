"""What a filter asks of a job, wherever engines must agree to the letter."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from string import ascii_lowercase, ascii_uppercase
from uuid import UUID

from msgspec import DecodeError, Raw, json, structs

from shigoto.model.job import Counts, JobFilter, State

_MEMBERS = json.Decoder(dict[str, Raw])
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_PLAIN = JobFilter()


def has_args(payload: str, args: Sequence[tuple[str, str]]) -> bool:
    """Whether the payload has all of these values. One that cannot be read has none."""
    try:
        return all(_stands_at(payload, path, text) for path, text in args)
    except (DecodeError, UnicodeError, RecursionError):
        return False


def _stands_at(payload: str, path: str, text: str) -> bool:
    here: str | Raw = payload
    for name in path.split("."):
        members = _MEMBERS.decode(here)
        if name not in members:
            return False
        here = members[name]
    value: object = json.decode(here)
    return value == text if isinstance(value, str) else json.encode(value).decode() == text


def folded(text: str) -> str:
    """The text with small ASCII letters for capital ones; the letters of other alphabets stay as they are."""
    return text.translate(_LOWER)


def worker_id(text: str) -> UUID | None:
    """The id that the text means, if it is one and not only a name."""
    with suppress(ValueError):
        return UUID(text)
    return None


def asks_for_counters_only(wanted: JobFilter) -> bool:
    """Whether counts by queue and state tell how many match, so that nobody has to look."""
    rest = structs.replace(wanted, state=None, queue=None, before=None, limit=_PLAIN.limit)
    return rest == _PLAIN and wanted.state != "retrying"


def sum_counts(stats: Mapping[str, Counts], wanted: JobFilter) -> int:
    """How many match a filter that asks for counters only."""
    columns = [state.value for state in State] if wanted.state is None else [wanted.state]
    queues = [counts for queue, counts in stats.items() if wanted.queue in (None, queue)]
    return sum(structs.asdict(counts)[column] for counts in queues for column in columns)
