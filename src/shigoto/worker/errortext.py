"""An exception as text that can be stored: never too long, always valid, whatever the exception does.

Handlers raise anything: errors whose `__str__` raises, messages of 50 MB, texts with NUL or half a surrogate
pair, which stores refuse. Describing an error must not become the next error. (One whose `__str__` raises
SystemExit still is: `runner.py` stands behind this.)
"""

import asyncio
import linecache
import traceback
from collections.abc import Callable, Collection
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, TracebackType
from typing import Any

from shigoto.model.secrets import scrubbed
from shigoto.model.text import ERROR_LIMIT, fit, message_of, name_of

LIMIT = 16 * 1024  # bytes of UTF-8, error and traceback together
FRAMES = 40


def describe(
    error: BaseException, *, skip: Collection[str] = (), hide: Callable[[str], str] = str
) -> tuple[str, str | None]:
    """The error as `Type: message`, and its traceback without the frames of the files `skip` at both ends.

    `hide` takes secrets out of them, before they are cut: half of a secret would not be known as one.
    """
    name = name_of(error)
    message = message_of(error)
    text = fit(scrubbed(hide(f"{name}: {message}" if message else name)), ERROR_LIMIT)
    frames = _without(error.__traceback__, skip)
    if frames is None:
        return text, None
    trace = _short_trace(text, frames) if len(message) > ERROR_LIMIT else _trace(error, frames, skip)
    return text, fit(scrubbed(hide(trace)), LIMIT - len(text.encode()), keep_end=True)


def stack_of(frame: FrameType, *, skip: Collection[str] = ()) -> str:
    """Where a thread is right now, without the frames of the files `skip`; the most recent call last."""
    entries = traceback.extract_stack(frame, FRAMES)
    lines = traceback.format_list([entry for entry in entries if entry.filename not in skip])
    return fit("".join(lines), LIMIT, keep_end=True)


def stack_of_task(task: "asyncio.Task[Any]", *, skip: Collection[str] = ()) -> str:
    """Where a task that is suspended waits, without the frames of the files `skip`; the most recent call last."""
    frames: list[tuple[FrameType, int]] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(frames) < FRAMES:
        frame = _attribute_of(awaited, "frame")
        if isinstance(frame, FrameType):
            frames.append((frame, frame.f_lineno))
        awaited = _attribute_of(awaited, "await") or _attribute_of(awaited, "yieldfrom")
    entries = traceback.StackSummary.extract(iter(frames))
    lines = traceback.format_list([entry for entry in entries if entry.filename not in skip])
    return fit("".join(lines), LIMIT, keep_end=True)


def _attribute_of(awaited: object, name: str) -> Any:
    """What a coroutine, a generator or an asynchronous generator knows under this name."""
    found = (getattr(awaited, f"{kind}_{name}", None) for kind in ("cr", "gi", "ag"))
    return next((value for value in found if value is not None), None)


def _without(frames: TracebackType | None, skip: Collection[str]) -> TracebackType | None:
    """What the runtime does to call a handler is of no interest to its author."""
    while frames is not None and frames.tb_frame.f_code.co_filename in skip:
        frames = frames.tb_next
    return frames


def _trace(error: BaseException, frames: TracebackType, skip: Collection[str]) -> str:
    try:
        quick = _quick_trace(error, frames, skip) if _stands_alone(error) else None
        if quick is not None:
            return quick
        told = traceback.TracebackException(type(error), error, frames, limit=-FRAMES, compact=True)
        while told.stack and told.stack[-1].filename in skip:
            # What the runtime has raised in a handler, it has not raised by itself.
            told.stack.pop()
        return "".join(told.format())
    except Exception as broken:
        return f"<the traceback cannot be shown: {type(broken).__qualname__}>"


def _stands_alone(error: BaseException) -> bool:
    """Whether there is nothing to tell but its own frames and its message."""
    linked = error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__)
    # A NameError makes a suggestion by what its frame knows.
    return not linked and not isinstance(error, BaseExceptionGroup | SyntaxError | NameError)


def _quick_trace(error: BaseException, frames: TracebackType, skip: Collection[str]) -> str | None:
    """The same text for a tenth: handlers fail in the same places again and again, and to find the line of a place, and
    what to underline in it, takes up to 60 µs, so it is remembered. None for a recursion, which is told in other words.
    """
    places: list[TracebackType] = []
    at: TracebackType | None = frames
    while at is not None:
        places.append(at)
        at = at.tb_next
    while places and places[-1].tb_frame.f_code.co_filename in skip:
        places.pop()
    if any(place.tb_lasti < 0 for place in places):  # made by hand
        return None
    texts = [_place(place) for place in places[-FRAMES:]]
    if len(set(texts)) < len(texts):
        return None
    last = traceback.TracebackException(type(error), error, None, compact=True).format_exception_only()
    return "".join([*(["Traceback (most recent call last):\n"] if texts else []), *texts, *last])


def _place(at: TracebackType) -> str:
    code = at.tb_frame.f_code
    linecache.lazycache(code.co_filename, at.tb_frame.f_globals)  # where the source may lie, if not in a file
    return _place_in(code, code.co_filename, at.tb_lasti)


@lru_cache(maxsize=1_000)
def _place_in(code: CodeType, filename: str, instruction: int) -> str:
    """The text of a place; the file is named, for codes of two files can be equal."""
    line, end_line, column, end_column = next(islice(code.co_positions(), instruction // 2, None))
    entry = traceback.FrameSummary(
        filename, line, code.co_name, end_lineno=end_line, colno=column, end_colno=end_column
    )
    return "".join(traceback.format_list([entry]))


def _short_trace(text: str, frames: TracebackType) -> str:
    """The frames without the message, which would leave no room for them."""
    return "".join([*traceback.format_tb(frames, -FRAMES), text[:200]])
