"""Formats of the log: text, colours, JSON and the journal of systemd, and the handler that writes them.

A worker writes two lines for every job at its usual level, so what is plain takes a short way: text that can be printed
is not looked at letter by letter, and numbers need no encoder.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from math import isfinite
from typing import Literal, TextIO, cast

from shigoto.model.secrets import scrubbed
from shigoto.observe.log_writer import DroppingWriter, LosslessWriter, Stream

Fields = Mapping[str, object]
Hide = Callable[[str], str]

IDENTITY = frozenset({"worker", "job_id", "task", "queue", "tenant"})
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
RED, YELLOW, GREEN, CYAN = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[36m"

_COLOURS = ((logging.ERROR, RED), (logging.WARNING, YELLOW), (logging.INFO, GREEN))
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7
_in_json = json.JSONEncoder(default=str).encode


class CleanFormatter(logging.Formatter):
    """What all of them share: a text without secrets. Before it is put into quotes or between others: a mask that took
    a quote away, or digits out of a number, would break the line.

    `hide` takes out what is secret where it was written.
    """

    def __init__(self, hide: Hide | None = None) -> None:
        super().__init__()
        self._hide = hide

    def sentence(self, record: logging.LogRecord) -> str:
        return self._clean(record, record.getMessage())

    def facts(self, record: logging.LogRecord) -> Iterator[tuple[str, object]]:
        """What rides beside it. Which job it is about is no secret, whatever its id looks like."""
        for key, value in fields_of(record).items():
            yield key, value if key in IDENTITY else self._cleaned(record, value)

    def traces(self, record: logging.LogRecord) -> list[str]:
        traces = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            traces.append(self.formatStack(record.stack_info))
        return [self._clean(record, trace) for trace in traces]

    def _cleaned(self, record: logging.LogRecord, value: object) -> object:
        if isinstance(value, str):
            return self._clean(record, value)
        if isinstance(value, list | tuple):
            return [self._cleaned(record, each) for each in cast("Sequence[object]", value)]
        return value

    def _clean(self, record: logging.LogRecord, text: str) -> str:
        if self._hide is not None:
            text = self._hide(text)
        # What libraries say of trouble may quote what they were given.
        return scrubbed(text) if record.levelno >= logging.WARNING else text


class TextFormatter(CleanFormatter):
    """One line: time, level, logger, the sentence, then `key=value` pairs."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{time_text(record.created)} {self._without_time(record)}"

    def _without_time(self, record: logging.LogRecord) -> str:
        words = [f"{record.levelname:<7} {record.name} {_one_line(self.sentence(record))}"]
        words += [f"{key}={_value(value)}" for key, value in self.facts(record)]
        line = " ".join(words)
        return "\n".join([line, *traces]) if (traces := self.traces(record)) else line


class ColourFormatter(TextFormatter):
    """The same for people at a terminal: the level in its colour, and what is beside the sentence in the background."""

    def format(self, record: logging.LogRecord) -> str:
        colour = _colour(record.levelno)
        words = " ".join(f"{key}={_value(value)}" for key, value in self.facts(record))
        line = (
            f"{DIM}{time_text(record.created)}{PLAIN} {colour}{record.levelname:<7}{PLAIN} "
            f"{DIM}{record.name}{PLAIN} {_one_line(self.sentence(record))}{f' {DIM}{words}{PLAIN}' if words else ''}"
        )
        return "\n".join([line, *traces]) if (traces := self.traces(record)) else line


@lru_cache
def _colour(level: int) -> str:
    return next((colour for lowest, colour in _COLOURS if level >= lowest), CYAN)


class JournalFormatter(TextFormatter):
    """For the journal of systemd, which has a clock of its own and takes the level from a number in front."""

    def format(self, record: logging.LogRecord) -> str:
        """The line and its traceback, each line with its number: each is an entry of its own there."""
        mark = _mark(record.levelno)
        return "\n".join([f"<{mark}>{line}" for line in self._without_time(record).splitlines()])


@lru_cache
def _mark(level: int) -> int:
    return next((mark for lowest, mark in _PRIORITIES if level >= lowest), _DEBUG)


class JsonFormatter(CleanFormatter):
    """One JSON object a line: time, level, logger, message, the fields, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line. Plain ASCII, so no terminal and no collector can break it."""
        line: dict[str, object] = {
            "time": time_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.sentence(record),
        }
        line |= {key: value for key, value in self.facts(record) if key not in line}
        if traces := self.traces(record):
            line["exception"] = "\n".join(traces)
        return _in_json(line)


def fields_of(record: logging.LogRecord) -> Fields:
    fields: Fields = getattr(record, "shigoto", {})
    return fields


def time_text(created: float) -> str:
    second = int(created)
    carry, micros = divmod(round((created - second) * 1e6), 1_000_000)
    return _moment(second + carry, micros // 1000)


@lru_cache(maxsize=1)  # many lines are written in the same millisecond
def _moment(second: int, millis: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC).isoformat()[:19]}.{millis:03}Z"


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def _value(value: object) -> str:
    """A value as one word: quoted when a reader could not tell where it ends."""
    if isinstance(value, str):
        plain = value and value.isprintable() and not (" " in value or '"' in value or "=" in value)
        return value if plain else _in_json(value)
    if type(value) is int or (type(value) is float and isfinite(value)):
        return repr(value)
    return _in_json(value)


class LogHandler(logging.StreamHandler[Stream]):
    """A class of its own, to be recognised when logging is set up again.

    `fields` are those of the job at hand: they are asked for at every record that does not name a job by itself.
    """

    def __init__(self, stream: Stream, fields: Callable[[], Fields] | None) -> None:
        super().__init__(stream)
        self._more = fields

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line. What is inherited would take the lock once more, for every one."""
        if self._more is not None:
            fields = fields_of(record)
            if "job_id" not in fields and (more := self._more()):
                record.shigoto = {**more, **fields}
        try:
            self.stream.write(self.format(record) + self.terminator)
            self.stream.flush()
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        if isinstance(self.stream, DroppingWriter | LosslessWriter):
            self.stream.drain()
        super().close()


def formatter_for(
    format: Literal["text", "json"], stream: TextIO | None, hide: Hide | None = None
) -> CleanFormatter:
    """The formatter for lines that go to this stream, None if it is none of the system's."""
    if format == "json":
        return JsonFormatter(hide)
    if _is_journal(stream):
        return JournalFormatter(hide)
    return ColourFormatter(hide) if _shows_colours(stream) else TextFormatter(hide)


def _is_journal(stream: TextIO | None) -> bool:
    """Whether systemd says that this very file leads to its journal; it may have been turned elsewhere since."""
    try:
        status = None if stream is None else os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return status is not None and os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _shows_colours(stream: TextIO | None) -> bool:
    """Whether somebody looks at it who has not asked for none (no-color.org)."""
    try:
        looked_at = stream is not None and stream.isatty()
    except ValueError:
        return False
    return looked_at and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
