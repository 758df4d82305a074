"""Carries what running jobs say, progress and log lines, to the store: one batch, at most once a second.

The last words of a run do not depend on this: they travel with the settlement. So what cannot be written is dropped,
and never keeps the reports of others back.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence

from shigoto.context import Signals
from shigoto.model.errors import StoreError
from shigoto.model.job import Lease
from shigoto.model.worker import Report
from shigoto.worker.logfields import about
from shigoto.worker.pool import Pool
from shigoto.worker.station import Station, Trouble

SOONEST = 1.0
LATEST = 5.0

logger = logging.getLogger("shigoto.worker")


class Reporter:
    """Looks at what runs once a second; when there has been no news for a minute, every few seconds."""

    def __init__(self, station: Station, pools: Sequence[Pool]) -> None:
        self._station = station
        self._pools = pools
        self._time = asyncio.get_running_loop().time
        self._trouble = Trouble(station, "reporter")
        self._complained = False

    async def run(self) -> None:
        """Report until cancelled."""
        news_at = self._time()
        while True:
            await asyncio.sleep(min(LATEST, max(SOONEST, (self._time() - news_at) / 10)))
            news = list(self._news())
            if news:
                news_at = self._time()
                await self._report(news)

    def _news(self) -> Iterator[tuple[Signals, Report]]:
        for pool in self._pools:
            for hand in pool.hands():
                # Signals before lease, and signals again: a thread may be changing over to its next job.
                signals = hand.signals
                lease = hand.lease
                if lease is not None and hand.signals is signals:
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
        """Write them together; if one of them cannot be written, each by itself, and that one not at all."""
        engine = self._station.engine
        try:
            reports = [report for _, report in news]
            await self._station.ask("report", engine.report(self._station.id, reports))
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
            lease = self._station.held.get(number)
            logger.error(
                "What job %d reports cannot be written and is dropped, as more of its kind will be: %r",
                number,
                error,
                extra=None if lease is None else about(lease),
            )


def _report(lease: Lease, signals: Signals) -> Report | None:
    """What this run has said since it was last asked."""
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
    """This report did not arrive: all of it is news again."""
    if report.progress is not None:
        signals.progress_changed = True
    if report.log is not None and signals.lines is not None:
        signals.lines.unsend(report.log)
