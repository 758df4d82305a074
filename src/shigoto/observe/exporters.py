"""Exporters of an app: Sentry and OTLP metrics, while a worker, a scheduler or a server of it runs here.

Traces are not among it: what records a run also surrounds it (`observe/tracing.py`).
"""

import atexit
import logging
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from shigoto.engine.protocol import Engine
from shigoto.model.job import Job
from shigoto.observe.bus import Bus
from shigoto.observe.settings import Sentry, Traces

if TYPE_CHECKING:
    from shigoto.observe.otlp_metrics import OtlpMetrics
    from shigoto.observe.sentry import SentryReporter

FLUSHED_WITHIN = 2.0  # seconds, when a program ends that is none of ours

logger = logging.getLogger("shigoto.observe")


class Exporters:
    """Tells others what a bus tells. Made once for an app; begun by everybody who runs something of it."""

    def __init__(
        self, bus: Bus, sentry: Sentry | None, traces: Traces | None, engine: Callable[[], Engine]
    ) -> None:
        self._bus = bus
        self._engine = engine
        self._sentry = sentry
        self._traces = traces if traces is not None and traces.metrics else None
        self._reporter: SentryReporter | None = None
        self._metrics: OtlpMetrics | None = None

    def begin(self) -> None:
        """Tell from now on; a second call changes nothing."""
        if self._sentry is not None and self._reporter is None:
            from shigoto.observe.sentry import SentryReporter

            self._reporter = SentryReporter(self._sentry, self._jobs)
            self._reporter.watch(self._bus)
        if self._traces is not None and self._metrics is None:
            try:
                self._metrics = self._count(self._traces)
            except Exception:
                logger.exception("Metrics are not sent")
                self._traces = None

    def flush(self, seconds: float) -> None:
        """Send what is there, if that takes no longer than this. One who does not answer leaves time to the other."""
        until = monotonic() + seconds
        if self._reporter is not None:
            self._reporter.flush(seconds if self._metrics is None else seconds / 2)
        if self._metrics is not None:
            self._metrics.flush(max(0.0, until - monotonic()))

    def end(self) -> None:
        """This process ends, and has flushed: what is not sent by now is not waited for a second time."""
        if self._reporter is not None:
            atexit.unregister(self._reporter.flush)
        if self._metrics is not None:
            atexit.unregister(self._metrics.flush)

    def _count(self, traces: Traces) -> "OtlpMetrics":
        from shigoto.observe.metrics import EventCounters
        from shigoto.observe.otlp_metrics import OtlpMetrics
        from shigoto.observe.store_gauges import StoreGauges

        counters = EventCounters()
        metrics = OtlpMetrics(traces, counters, StoreGauges(self._engine))
        counters.watch(self._bus)
        atexit.register(metrics.flush, FLUSHED_WITHIN)
        return metrics

    def _jobs(self, ids: Sequence[UUID]) -> list[Job | None]:
        engine = self._engine()
        return engine.run(engine.get(list(ids)))
