"""An exception as text that can be stored: never too long, always valid, whatever the exception does.

Handlers raise anything: errors whose `__str__` raises, messages of 50 MB, texts with NUL or half a surrogate
pair, which stores refuse. Describing an error must not become the next error. (One whose `__str__` raises
SystemExit still is: `runner.py` stands behind this.)
"""

import traceback
from collections.abc import Collection
from types import FrameType, TracebackType

LIMIT = 16 * 1024  # bytes of UTF-8, error and traceback together
ERROR_LIMIT = 4 * 1024
FRAMES = 40
CUT = " … (cut)"


def describe(error: BaseException, *, skip: Collection[str] = ()) -> tuple[str, str | None]:
    """The error as `Type: message`, and its traceback without the frames of the files `skip` at both ends."""
    name = type(error).__qualname__
    message = message_of(error)
    text = fit(f"{name}: {message}" if message else name, ERROR_LIMIT)
    frames = _without(error.__traceback__, skip)
    if frames is None:
        return text, None
    trace = _short_trace(text, frames) if len(message) > ERROR_LIMIT else _trace(error, frames, skip)
    return text, fit(trace, LIMIT - len(text.encode()), keep_end=True)


def message_of(error: BaseException) -> str:
    """The error's own words."""
    try:
        return str(error)
    except Exception as broken:
        return _reason(error) or f"<its message cannot be shown: __str__ raised {type(broken).__qualname__}>"


def stack_of(frame: FrameType, *, skip: Collection[str] = ()) -> str:
    """Where a thread is right now, without the frames of the files `skip`; the most recent call last."""
    entries = traceback.extract_stack(frame, FRAMES)
    lines = traceback.format_list([entry for entry in entries if entry.filename not in skip])
    return fit("".join(lines), LIMIT, keep_end=True)


def fit(text: str, limit: int, *, keep_end: bool = False) -> str:
    """The text in at most `limit` bytes of valid UTF-8 without NUL; a cut is marked."""
    # Sliced first: a character has at least one byte, and 50 MB need not be encoded to be cut.
    cut = text[-limit - 1 :] if keep_end else text[: limit + 1]
    written = cut.replace("\0", "\\x00").encode("utf-8", "backslashreplace")
    if len(written) <= limit:
        return written.decode()
    room = limit - len(CUT.encode())
    part = written[-room:] if keep_end else written[:room]
    kept = part.decode("utf-8", "ignore")
    return CUT + kept if keep_end else kept + CUT


def _reason(error: BaseException) -> str:
    """What `Cancel(404)` and its like were given: no string, so that `str` refuses what they return."""
    try:
        return str(getattr(error, "reason", ""))
    except Exception:
        return ""


def _without(frames: TracebackType | None, skip: Collection[str]) -> TracebackType | None:
    """What the runtime does to call a handler is of no interest to its author."""
    while frames is not None and frames.tb_frame.f_code.co_filename in skip:
        frames = frames.tb_next
    return frames


def _trace(error: BaseException, frames: TracebackType, skip: Collection[str]) -> str:
    try:
        told = traceback.TracebackException(type(error), error, frames, limit=-FRAMES, compact=True)
        while told.stack and told.stack[-1].filename in skip:
            # What the runtime has raised in a handler, it has not raised by itself.
            told.stack.pop()
        return "".join(told.format())
    except Exception as broken:
        return f"<the traceback cannot be shown: {type(broken).__qualname__}>"


def _short_trace(text: str, frames: TracebackType) -> str:
    """The frames without the message, which would leave no room for them."""
    return "".join([*traceback.format_tb(frames, -FRAMES), text[:200]])
