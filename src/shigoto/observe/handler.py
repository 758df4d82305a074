"""The handler of the log of a program of ours: what it writes to, and in which form."""

import logging
import os
from collections.abc import Callable
from typing import Literal, TextIO

from shigoto.observe.formats import (
    CleanFormatter,
    ColourFormatter,
    Fields,
    Hide,
    JournalFormatter,
    JsonFormatter,
    TextFormatter,
    fields_of,
)
from shigoto.observe.gathering import Gatherer
from shigoto.observe.outlet import Outlet, Stream


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
        """Write what waits."""
        if isinstance(self.stream, Outlet | Gatherer):
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
