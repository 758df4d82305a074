"""Progress and log lines of running jobs, and their way to the store.

    a handler logs        ──► Capture ──► the job's own log ─┐
    a handler says        ──► progress ─────────────────────┴──► ProgressReporter: one batch a second ──► store

The last words of a run do not depend on this: they travel with the settlement. So what cannot be written is dropped,
and never keeps the reports of others back.
"""

import asyncio
import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from uuid import UUID

from msgspec import to_builtins

from shigoto.context import Context, Signals, SoftTimeout, current_context
from shigoto.model.errors import JobCancelled, StoreError
from shigoto.model.job import Lease
from shigoto.model.worker import Report
from shigoto.worker.pool import Pool
from shigoto.worker.state import Trouble, WorkerState

SOONEST = 1.0
LATEST = 5.0

logger = logging.getLogger("shigoto.worker")
OUR_LOGGER = "shigoto"
_changing = Lock()


class ProgressReporter:
    """Looks at what runs once a second; when there has been no news for a minute, every few seconds."""

    def __init__(self, state: WorkerState, pools: Sequence[Pool]) -> None:
        self._state = state
        self._pools = pools
        self._time = asyncio.get_running_loop().time
        self._trouble = Trouble(state, "reporter")
        self._complained = False

    async def run(self) -> None:
        news_at = self._time()
        while True:
            await asyncio.sleep(min(LATEST, max(SOONEST, (self._time() - news_at) / 10)))
            news = list(self._news())
            if news:
                news_at = self._time()
                await self._report(news)

    def _news(self) -> Iterator[tuple[Signals, Report]]:
        for pool in self._pools:
            for slot in pool.busy_slots():
                # Signals before lease, and signals again: a thread may be changing over to its next job.
                signals = slot.signals
                lease = slot.lease
                if lease is not None and slot.signals is signals:
                    report = _report(lease, signals)
                    if report is not None:
                        yield signals, report

    async def _report(self, news: list[tuple[Signals, Report]]) -> None:
        try:
            await self._write(news)
        except StoreError as error:
            for signals, report in news:
                _take_back(signals, report)
            await asyncio.sleep(self._trouble.met(error))
        else:
            self._trouble.over()

    async def _write(self, news: Sequence[tuple[Signals, Report]]) -> None:
        """Write them together; if one cannot be written, each by itself, and that one not at all."""
        engine = self._state.engine
        try:
            reports = [report for _, report in news]
            await self._state.ask("report", engine.report(self._state.id, reports))
        except StoreError:
            raise
        except Exception as error:
            if len(news) == 1:
                self._complain(news[0][1].number, error)
                return
            for one in news:
                await self._write([one])

    def _complain(self, number: int, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            lease = self._state.held.get(number)
            logger.error(
                "What job %d reports cannot be written and is dropped, as more of its kind will be: %r",
                number,
                error,
                extra=None if lease is None else about(lease),
            )


def _report(lease: Lease, signals: Signals) -> Report | None:
    log = None if signals.lines is None else signals.lines.tail()
    if not signals.progress_changed:
        return None if log is None else Report(number=lease.number, token=lease.token, log=log)
    signals.progress_changed = False
    return Report(
        number=lease.number,
        token=lease.token,
        progress=signals.progress,
        progress_text=signals.progress_text,
        log=log,
    )


def _take_back(signals: Signals, report: Report) -> None:
    """Mark a report that did not arrive as news again."""
    if report.progress is not None:
        signals.progress_changed = True
    if report.log is not None and signals.lines is not None:
        signals.lines.unsend(report.log)


def job_fields() -> Mapping[str, object]:
    """Return the running job as log fields; none outside of a job. For `configure_logging(fields=…)`."""
    context = current_context.get(None)
    return {} if context is None else _fields(context.job_id, context)


def about(lease: Lease) -> dict[str, Mapping[str, object]]:
    """Return the same for a job that does not run here any more: `logger.warning(…, extra=about(lease))`."""
    return {"shigoto": _fields(lease.id, lease)}


def _fields(id: UUID, job: Context | Lease) -> Mapping[str, object]:
    # to_builtins() gives the same as str(), in a fifth of the time.
    return {
        "job_id": to_builtins(id),
        "number": job.number,
        "task": job.task,
        "queue": job.queue,
        "tenant": job.tenant,
        "attempt": job.attempt,
    }


def hidden(text: str) -> str:
    """Return a log line without the secrets of the running job. For `configure_logging(hide=…)`."""
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

    leaves_out_ours = True  # so nothing of ours need be made for its sake (`observe.log.JobLines`)

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
        if record.name == OUR_LOGGER or record.name.startswith(f"{OUR_LOGGER}."):
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
