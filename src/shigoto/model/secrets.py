"""Encrypted texts, masked values, and jobs as they may be shown.

**Encrypted** texts are stored as envelopes:

    {"$shigoto":"enc","k":"2026","id":"0192…","v":"base64"}

An envelope is JSON, so it stands wherever the text would: in a payload, a result, an error, a line of a log. Engines,
moves, limits, the service and the command line handle it like any other text, and show that it is encrypted. `k` names
the key, and comes first: texts of one key are found by how they begin. `id` is that of the job for which a payload was
encrypted, since payloads go on to other jobs: to a rerun, or to the one that it replaces. `t` is the type of an error.

**Masked** values are left out wherever arguments, results and errors are shown: to people, to programs and in logs.
What is stored stays as it is. A value is masked

    by its annotation   what a task declares as `Secret[…]`: its parameters are named in the job's meta, so that those
                        who do not have the code leave them out, too; and its values in the texts of its own runs
    by its name         what is called *password*, *token*, authorization and the like, at any depth, and what
                        $SHIGOTO_REDACT adds to that
    by its looks        passwords in addresses, `Bearer …`, `password=…` in errors and warnings, of whatever origin

Everything that **shows** a job, its runs or its lines, to people or to programs, shows what `presented`,
`presented_attempts` and `presented_lines` return. What acts on jobs, moves them or hands them to workers has them as
they are stored.
"""

import os
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Literal, TypeGuard, get_args
from urllib.parse import quote, quote_plus
from uuid import UUID

from msgspec import DecodeError, Struct, json, structs

from shigoto.model.job import Attempt, Job, LoggedLine
from shigoto.model.text import HIDDEN

ENVELOPE_MARK = "$shigoto"
PREFIX = f'{{"{ENVELOPE_MARK}":"enc",'
ENCRYPTED = "encrypted"

KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


class Envelope(
    Struct, frozen=True, tag_field=ENVELOPE_MARK, tag="enc", omit_defaults=True, forbid_unknown_fields=True
):
    """One encrypted text."""

    k: str
    v: bytes
    id: UUID | None = None
    t: str | None = None


_encoder = json.Encoder()
_decoder = json.Decoder(Envelope)


def is_encrypted(text: str | None) -> bool:
    return text is not None and text.startswith(PREFIX)


def unless_encrypted(text: str | None) -> str | None:
    """The text, None if it is an envelope: for those who tell the world and have no key."""
    return None if is_encrypted(text) else text


def write_envelope(envelope: Envelope) -> str:
    return _encoder.encode(envelope).decode()


def read_envelope(text: str) -> Envelope | None:
    """The envelope that the text is; None if it only begins like one."""
    try:
        return _decoder.decode(text)
    except (DecodeError, RecursionError):
        return None


def prefix_of(key: str) -> str:
    """How all envelopes of a key begin."""
    return f'{PREFIX}"k":"{key}",'


def without_key(text: str) -> str:
    """The text as people see it, who have no key: of an envelope, that it is one, and of an error its type."""
    if not is_encrypted(text):
        return text
    kind = type_of(text)
    return ENCRYPTED if kind is None else f"{kind} ({ENCRYPTED})"


def type_of(text: str) -> str | None:
    """Of an envelope, the type of the error in it."""
    envelope = read_envelope(text)
    return None if envelope is None else envelope.t


Held = Literal["payload", "result", "failure", "progress", "checkpoint", "error", "traceback", "log"]
HELD: tuple[Held, ...] = get_args(Held)


class EncryptedText(Struct, frozen=True, kw_only=True):
    """One envelope in a store: of which job it is, and where it is `held`.

    `failure` is why the job failed, `error` and `traceback` are those of the run with this token, `log` a line of it.
    """

    number: int
    held: Held
    text: str
    id: UUID
    tenant: str
    task: str
    token: int = 0
    line: int = 0


class ReencryptedText(Struct, frozen=True):
    """An envelope and what is to stand there instead."""

    encrypted: EncryptedText
    text: str


REDACT_VARIABLE = "SHIGOTO_REDACT"
SECRETS_MARK = "$secret"  # in a job's meta: the names of its secret parameters
SHORTEST = 4  # letters of a value that is looked for in texts: a shorter one stands everywhere
SHORTEST_LINE = 8  # and of a line of one that has several

SECRET_NAMES = (
    "*password*", "*passwd*", "*passphrase*", "pwd", "*_pwd", "*secret*", "*token*", "*api_key*", "*apikey*",
    "*access_key*", "*private_key*", "*credential*", "*authorization*", "cookie", "set_cookie", "*dsn*", "*cvv*",
)  # fmt: skip
# The habit is to keep the secret elsewhere and to pass an id; and tokens of texts are counted.
HARMLESS_NAMES = ("*_id", "*_ids", "*_count", "max_tokens")

# Behind anything, as in PGPASSWORD; but for words that others end in, such as compass.
_WORDS = (
    r"(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|cookie"
    r"|(?:\b|_)(?:pass|pwd))"
)
_VALUE = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_LOOKS = (
    # Greedy up to the last @ before a space or a quote: a password may hold any other letter.
    (re.compile(r"(?<=://)([^\s:@/'\"]*):[^\s'\"]*@"), rf"\1:{HIDDEN}@"),
    (re.compile(r"(?i)\b(cookie:[ \t]*)[^\r\n'\"]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer|basic)\s+(?=[\w.~+/-]*[\d=_.~+/-])[\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (
        re.compile(
            rf"(?i)(authorization['\"]?\s*[=:]\s*)(?!{re.escape(HIDDEN)})"
            rf"(?:{_VALUE}|(?:[a-z][\w-]* +)?[^\s'\",;&)}}\]]+)"
        ),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(
            rf"(?i)({_WORDS}['\"]?\s*[=:]\s*)(?!{re.escape(HIDDEN)})"
            rf"(?:{_VALUE}|(?:bearer |basic )?[^\s'\",;&)}}\]]+)"
        ),
        rf"\1{HIDDEN}",
    ),
)
# Looked for first, since most texts have none of them: a fiftieth of what the expressions take.
_LIKELY = ("://", "bearer", "basic", "auth", "cookie", "pass", "pwd", "secret", "token", "key", "credential")


def scrubbed(text: str) -> str:
    """A text of whatever origin without what looks like a secret in it."""
    lower = text.lower()
    if not any(word in lower for word in _LIKELY):
        return text
    for look, instead in _LOOKS:
        text = look.sub(instead, text)
    return text


def marked(meta: str | None, names: Iterable[str]) -> str:
    """The meta of a job whose parameters of these names are secret."""
    known: dict[str, Any] = json.decode(meta, type=dict[str, Any]) if meta else {}
    return json.encode({**known, SECRETS_MARK: list(names)}).decode()


def secrets_in(meta: str | None) -> frozenset[str]:
    """The names of the secret parameters of a job with this meta."""
    if meta is None or SECRETS_MARK not in meta:
        return frozenset()
    try:
        names: object = json.decode(meta, type=dict[str, Any]).get(SECRETS_MARK)
    except (DecodeError, RecursionError):
        return frozenset()
    return frozenset(name for name in names if isinstance(name, str)) if is_list(names) else frozenset()


def without_mark(meta: str | None) -> str | None:
    """The meta as its owner knows it."""
    if meta is None or SECRETS_MARK not in meta:
        return meta
    try:
        known = json.decode(meta, type=dict[str, Any])
    except (DecodeError, RecursionError):
        return meta
    known.pop(SECRETS_MARK, None)
    return json.encode(known).decode() if known else None


def is_masked(payload: str, meta: str | None) -> bool:
    """Whether something has been left out of the arguments: nobody can run a job with them."""
    if HIDDEN not in payload:
        return False
    try:
        return _has_masks(json.decode(payload), secrets_in(meta))
    except (DecodeError, RecursionError):
        return False


def _has_masks(value: Any, names: frozenset[str] = frozenset()) -> bool:
    if _is_table(value):
        return any(
            inner == HIDDEN if name in names or hides(name) else _has_masks(inner)
            for name, inner in value.items()
        )
    return is_list(value) and any(map(_has_masks, value))


def masked_payload(payload: str, meta: str | None) -> str:
    """The arguments as they may be shown, as JSON."""
    return masked(payload, secrets_in(meta))


def masked(written: str, names: frozenset[str] = frozenset()) -> str:
    """A JSON text as it may be shown: what is secret by its name is left out, at the top also what has one of `names`.
    Of an envelope only that it is one. What is no JSON is shown as it is."""
    if is_encrypted(written):
        return f'"{ENCRYPTED}"'
    if '"' not in written:
        return written
    try:
        value: Any = json.decode(written)
        shown = _masked(value, names)
        return written if shown is value else json.encode(shown).decode()
    except (DecodeError, RecursionError, ValueError):
        return written


def _masked(value: Any, names: frozenset[str] = frozenset()) -> Any:
    """The value itself if there is nothing to hide in it."""
    if _is_table(value):
        table = {
            name: HIDDEN if inner is not None and (name in names or hides(name)) else _masked(inner)
            for name, inner in value.items()
        }
        return value if all(table[name] is inner for name, inner in value.items()) else table
    if is_list(value):
        members = [_masked(each) for each in value]
        return value if all(new is old for new, old in zip(members, value, strict=True)) else members
    return value


@lru_cache(maxsize=4_096)
def hides(name: str) -> bool:
    """Whether what is called so is left out."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")
    hidden, harmless = rules()
    if any(fnmatchcase(plain, rule) for rule in harmless):
        return False
    return any(fnmatchcase(plain, rule) for rule in hidden)


@cache
def rules() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which names are hidden, and which are not although they look so: ours, and those of $SHIGOTO_REDACT, where
    `!name` is one that is not."""
    said = os.environ.get(REDACT_VARIABLE, "").lower().replace("-", "_")
    words = [word for word in re.split(r"[\s,]+", said) if word]
    own = tuple(word for word in words if not word.startswith("!"))
    harmless = tuple(word[1:] for word in words if word.startswith("!"))
    # Whoever names a thing means it, also if it ends in _id.
    return (*SECRET_NAMES, *own), (*(each for each in HARMLESS_NAMES if each not in own), *harmless)


def hider(
    payload: str, names: Iterable[str], defaults: Mapping[str, Any] = MappingProxyType({})
) -> Callable[[str], str] | None:
    """What takes the values of the secret parameters out of a text; None if there is nothing to look for. The payload
    lacks what has one of the `defaults`."""
    try:
        arguments: Any = json.decode(payload)
    except (DecodeError, RecursionError):
        return None
    if not _is_table(arguments):
        return None
    told = {**defaults, **arguments}
    values = {text for name in names for text in _texts(told.get(name)) if len(text) >= SHORTEST}
    return _Hider(values) if values else None


class _Hider:
    """Takes values out of texts. Most runs say nothing, so how the values may look is worked out when one does."""

    def __init__(self, values: Collection[str]) -> None:
        self._values = values

    def __call__(self, text: str) -> str:
        return self._look.sub(HIDDEN, text)

    @cached_property
    def _look(self) -> re.Pattern[str]:
        forms = {form for value in self._values for plain in _parts(value) for form in _forms(plain)}
        return re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))


def _texts(value: Any) -> Iterator[str]:
    """All that would tell of a value in a text."""
    if isinstance(value, str):
        yield value
    elif _is_table(value):
        yield from value
        for inner in value.values():
            yield from _texts(inner)
    elif is_list(value):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield repr(value)


def _parts(value: str) -> Iterator[str]:
    """A value, what it stands for if it is base64, as bytes are stored, and its lines: texts of several lines are
    written with something in front of each, or one by one."""
    yield value
    try:
        data = b64decode(value, validate=True)
    except (NotBase64, ValueError):
        data = b""
    if len(data) >= SHORTEST:
        yield repr(data)[2:-1]
        yield data.hex()
        yield data.decode("latin-1")
        yield data.decode(errors="replace")
    lines = value.splitlines()
    if len(lines) > 1:
        yield from (line for line in map(str.strip, lines) if len(line) >= SHORTEST_LINE)


def _forms(value: str) -> Iterator[str]:
    """A text as it stands in others: as it is, in a repr, on one line of a log, in JSON, in an address; and each of
    these in a log of JSON."""
    from json import dumps  # which whoever only enqueues needs not

    for form in (
        value,
        repr(value)[1:-1],
        "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in value),
        json.encode(value).decode()[1:-1],
        quote(value),
        quote(value, safe=""),
        quote_plus(value),
    ):
        yield form
        yield dumps(form)[1:-1]  # of the standard library, as others write it: with all but ASCII escaped


def _is_table(value: object) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether JSON has it as an array."""
    return isinstance(value, list)


def presented(job: Job) -> Job:
    """The job as it may be shown."""
    result = job.result
    return structs.replace(
        job,
        payload=masked_payload(job.payload, job.meta),
        meta=without_mark(job.meta),
        progress_text=_shown_text(job.progress_text),
        result=f'"{without_key(result)}"' if result is not None and is_encrypted(result) else result,
        error=_shown_text(job.error),
    )


def presented_attempts(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Its runs as they may be shown. Where a traceback is encrypted there is the error, which tells its type."""
    return [
        structs.replace(
            each,
            error=_shown_text(each.error),
            traceback=None if is_encrypted(each.traceback) else each.traceback,
        )
        for each in attempts
    ]


def presented_lines(lines: Sequence[LoggedLine]) -> list[LoggedLine]:
    """Its lines as they may be shown."""
    return [
        structs.replace(each, text=without_key(each.text)) if is_encrypted(each.text) else each
        for each in lines
    ]


def _shown_text(text: str | None) -> str | None:
    return None if text is None else without_key(text)
