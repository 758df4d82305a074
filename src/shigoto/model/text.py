"""Text that any store can hold and anybody may see, made of what people and programs say."""

import re

CUT = " … (cut)"
HIDDEN = "***"
MAX_SHOWN = 200

# Greedy on purpose: a password may hold any letter, and to hide too much does no harm.
_PASSWORD = re.compile(r"(?<=://)([^:@/]*):.*@")
_SECRET = re.compile(r"(?i)([?&][^=&]*(?:pass|pwd|secret|token|key|credential|auth|listen)[^=&]*=)[^&]*")


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
