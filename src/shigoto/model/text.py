r"""Text and plain values that any store can hold, made of what callers hand in.

Not every string is such a text: half a surrogate pair cannot be written down at all, and PostgreSQL has no place for
U+0000. So that every store holds the same, the rule is the same for all, and it is applied here, before any of them:

    what is found again by its name    keys, tenants, tags, workers     refused where it is given: `storable`
    what only describes                errors, progress, log lines      kept, and spelt out as \x00: `fit`, `spelt_out`
    what is data                       payloads, results, checkpoints   kept to the letter: JSON writes \u0000

A text, a number or an id may also be of a subclass, with methods of its own: a member of an enum, a value of a database
driver, a stand-in of a test, or an attacker's. The functions `plain_…` make each plain before it is compared, measured
or shown, so that every engine is given the same and nothing that the value says of itself is believed. They return None
for what is not such a value.
"""

import re
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from shigoto.model.errors import OptionInvalid

CUT = " … (cut)"
HIDDEN = "***"
MAX_SHOWN = 200
ERROR_LIMIT = 4 * 1024  # bytes of UTF-8, of what an error says

# Greedy on purpose: a password may hold any letter, and to hide too much does no harm.
_PASSWORD = re.compile(r"(?<=://)([^:@/]*):.*@")
_SECRET = re.compile(r"(?i)([?&][^=&]*(?:pass|pwd|secret|token|key|credential|auth|listen)[^=&]*=)[^&]*")

_QUALNAME = type.__dict__["__qualname__"].__get__

# What a database or a terminal would trip over: control characters but the tab, and half a surrogate pair.
_UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def storable(what: str, text: str) -> str:
    """The text, plain, if every store can hold it. Raises OptionInvalid for half a surrogate pair and for U+0000."""
    text = writable(what, text)
    if "\0" in text:
        raise OptionInvalid(
            f"{what} has U+0000 in it, as character {text.index(chr(0))}, which not every store can hold. Leave it out."
        )
    return text


def writable(what: str, text: str) -> str:
    """The text, plain, if it can be written down at all. Raises OptionInvalid for half a surrogate pair."""
    text = str.__str__(text)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OptionInvalid(
            f"{what} is not valid text: character {error.start} is half of a surrogate pair, which no store can hold."
        ) from None
    return text


def fit(text: str, limit: int, *, keep_end: bool = False) -> str:
    """The text in at most `limit` bytes of valid UTF-8 without NUL; a cut is marked."""
    text = str.__str__(text)
    # Sliced first: a character has at least one byte, and 50 MB need not be encoded to be cut.
    cut = text[-limit - 1 :] if keep_end else text[: limit + 1]
    written = cut.replace("\0", "\\x00").encode("utf-8", "backslashreplace")
    if len(written) <= limit:
        return written.decode()
    room = limit - len(CUT.encode())
    part = written[-room:] if keep_end else written[:room]
    kept = part.decode("utf-8", "ignore")
    return CUT + kept if keep_end else kept + CUT


def spelt_out(line: str) -> str:
    """The line with nothing in it that a store or a terminal would trip over."""
    return _UNFIT.sub(lambda found: f"\\x{ord(found[0]):02x}", line)


def without_secrets(address: str) -> str:
    """The address of a store as it may be shown."""
    return _SECRET.sub(rf"\1{HIDDEN}", _PASSWORD.sub(rf"\1:{HIDDEN}@", address))


def shown(value: object) -> str:
    """The value as it stands in a message: on one short line, whatever it is."""
    try:
        text = repr(value)
    except Exception:
        text = f"{type(value).__qualname__}, which cannot be shown"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def name_of(error: BaseException) -> str:
    """What its class is called, whatever the class of that class says."""
    name: str = _QUALNAME(type(error))
    return name


def message_of(error: BaseException) -> str:
    """The error's own words, of any length."""
    try:
        return str(error)
    except Exception as broken:
        return _reason(error) or f"<its message cannot be shown: __str__ raised {type(broken).__qualname__}>"


def _reason(error: BaseException) -> str:
    """What `Cancel(404)` and its like were given: no string, so that `str` refuses what they return."""
    try:
        return str(getattr(error, "reason", ""))
    except Exception:
        return ""


# The methods of the plain types themselves: they take instances of subclasses, and nothing else, whatever that says it
# is. So no `isinstance` is needed, which believes what `__class__` says.


def plain_text(value: Any) -> str | None:
    try:
        return str.__str__(value)
    except TypeError:
        return None


def plain_whole(value: Any) -> int | None:
    """The whole number; a truth value is none."""
    if type(value) is bool:
        return None
    try:
        return int.__int__(value)
    except TypeError:
        return None


def plain_number(value: Any) -> float | None:
    """The number, whole or not; a truth value is none."""
    whole = plain_whole(value)
    if whole is not None:
        return whole
    try:
        return float.__float__(value)
    except TypeError:
        return None


def plain_moment(value: Any) -> datetime | None:
    """The moment, in its own time zone."""
    try:
        return datetime.combine(datetime.date(value), datetime.timetz(value))
    except TypeError:
        return None


def plain_span(value: Any) -> timedelta | None:
    try:
        return timedelta.__pos__(value)
    except TypeError:
        return None


def plain_id(value: Any) -> UUID | None:
    """The id; drivers of databases have classes of their own for these."""
    if type(value) is UUID:
        return value
    try:
        return UUID(int=int.__int__(value.int)) if isinstance(value, UUID) else None
    except (AttributeError, TypeError, ValueError):
        return None
