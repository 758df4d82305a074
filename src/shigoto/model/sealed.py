"""Texts that are encrypted, as everybody sees them: known by their envelope, and read by nobody without the key.

    {"$shigoto":"enc","k":"2026","id":"0192…","v":"base64"}

An envelope is JSON, so it stands wherever the text would: in a payload, a result, an error, a line of a log. Engines,
moves, limits, the service and the command line handle it like any other text, and show that it is encrypted. `k` names
the key, and comes first: texts of one key are found by how they begin. `id` is that of the job for which a payload was
encrypted, since payloads go on to other jobs: to a rerun, or to the one that it replaces. `t` is the type of an error.
"""

import re
from typing import Literal
from uuid import UUID

from msgspec import DecodeError, Struct, json

MARK = "$shigoto"
PREFIX = f'{{"{MARK}":"enc",'
SHOWN = "encrypted"

KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")


class Envelope(
    Struct, frozen=True, tag_field=MARK, tag="enc", omit_defaults=True, forbid_unknown_fields=True
):
    """One encrypted text."""

    k: str
    v: bytes
    id: UUID | None = None
    t: str | None = None


_encoder = json.Encoder()
_decoder = json.Decoder(Envelope)


def is_sealed(text: str | None) -> bool:
    """Whether the text is an envelope."""
    return text is not None and text.startswith(PREFIX)


def unless_sealed(text: str | None) -> str | None:
    """The text, None if it is an envelope: for those who tell the world and have no key."""
    return None if is_sealed(text) else text


def write(envelope: Envelope) -> str:
    """The envelope as text."""
    return _encoder.encode(envelope).decode()


def read(text: str) -> Envelope | None:
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
    if not is_sealed(text):
        return text
    kind = type_of(text)
    return SHOWN if kind is None else f"{kind} ({SHOWN})"


def type_of(text: str) -> str | None:
    """Of an envelope, the type of the error in it."""
    envelope = read(text)
    return None if envelope is None else envelope.t


Held = Literal["payload", "result", "failure", "progress", "checkpoint", "error", "traceback", "log"]
HELD: tuple[Held, ...] = (
    "payload", "result", "failure", "progress", "checkpoint", "error", "traceback", "log",
)  # fmt: skip


class Sealed(Struct, frozen=True, kw_only=True):
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


class Reseal(Struct, frozen=True):
    """An envelope and what is to stand there instead."""

    sealed: Sealed
    text: str
