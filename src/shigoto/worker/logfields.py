"""Log lines and the jobs they come from: which job a line belongs to, and what a job's own log gets of it."""

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from threading import Lock
from uuid import UUID

from msgspec import to_builtins

from shigoto.context import Context, SoftTimeout, current_context
from shigoto.model.errors import JobCancelled
from shigoto.model.job import Lease

OURS = "shigoto"

_changing = Lock()


def job_fields() -> Mapping[str, object]:
    """The job that runs here, as log fields; nothing outside of a job. For `configure_logging(fields=…)`."""
    context = current_context.get(None)
    return {} if context is None else _fields(context.job_id, context)


def about(lease: Lease) -> dict[str, Mapping[str, object]]:
    """The same of a job that does not run here any more: `logger.warning(…, extra=about(lease))`."""
    return {"shigoto": _fields(lease.id, lease)}


def _fields(id: UUID, job: Context | Lease) -> Mapping[str, object]:
    return {
        "job_id": to_builtins(id),  # the same as str() of it, in a fifth of the time
        "number": job.number,
        "task": job.task,
        "queue": job.queue,
        "tenant": job.tenant,
        "attempt": job.attempt,
    }


def hidden(text: str) -> str:
    """A line of the log without the secrets of the job that runs here. For `configure_logging(hide=…)`."""
    context = current_context.get(None)
    return text if context is None else context.hidden(text)


@contextmanager
def capturing() -> Generator[None]:
    """Copy what handlers write with `logging` into the logs of their jobs, as long as this lasts.

    The handler sits at the root: loggers that do not propagate, or are set to a higher level, are not heard.
    """
    root = logging.getLogger()
    with _changing:
        capture = next((each for each in root.handlers if isinstance(each, Capture)), None) or Capture()
        # One for all workers of this process, or each line would be written once for each of them.
        capture.users += 1
        root.addHandler(capture)
    try:
        yield
    finally:
        with _changing:
            capture.users -= 1
            if not capture.users:
                root.removeHandler(capture)


class Capture(logging.Handler):
    """Writes records of level INFO and above into the log of the job that runs here, if one does.

    Not our own: what the worker says of a job is in its history already.
    """

    leaves_out_ours = True  # so nothing of ours need be made for its sake (`observe.shortcut`)

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter())
        self.users = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Never raises: a handler must not fail because of a line about it. But what the worker raises in a handler
        from outside may strike in here, too, and must get through."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level:
            _show_where_nobody_else_does(record, last)
        if record.name == OURS or record.name.startswith(f"{OURS}."):
            return
        try:
            context = current_context.get(None)
            if context is not None:
                context.write(record.levelname.lower(), self.format(record))
        except (JobCancelled, SoftTimeout):
            raise
        except Exception:
            self.handleError(record)


def _show_where_nobody_else_does(record: logging.LogRecord, last: logging.Handler) -> None:
    """A program that has not set up logging sees warnings all the same, by `logging.lastResort`, if there is no handler
    at all. We are one, so we must do it."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        if not all(isinstance(handler, Capture) for handler in logger.handlers):
            return
        logger = logger.parent if logger.propagate else None
    last.handle(record)
