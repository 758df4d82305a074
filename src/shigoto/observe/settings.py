"""Settings of an app for traces, metrics and Sentry, and the exporters that use them. No library is imported here.

    Shigoto(…, traces=Traces(sample=0.01))      or, without a change to code, SHIGOTO_TRACES=0.01
    Shigoto(…, sentry=Sentry())                 or, without a change to code, SHIGOTO_SENTRY=on; and $SENTRY_DSN

OpenTelemetry is not imported before there is something to record (`otel.py`), the SDK of Sentry not before there is
something to tell (`sentry.py`). The variables of OpenTelemetry itself hold here, too: OTEL_EXPORTER_OTLP_ENDPOINT and
its like, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_TRACES_EXPORTER and OTEL_SDK_DISABLED.
"""

import atexit
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import UUID

from msgspec import Struct

from shigoto.engine.protocol import Engine
from shigoto.model.errors import DeclarationError
from shigoto.model.job import Job
from shigoto.model.text import shown, without_secrets
from shigoto.observe.bus import Bus

if TYPE_CHECKING:
    from shigoto.observe.otlp_metrics import OtlpMetrics
    from shigoto.observe.sentry import SentryReporter

TRACES, OTLP_METRICS = "SHIGOTO_TRACES", "SHIGOTO_OTLP_METRICS"
SENTRY, SENTRY_DSN = "SHIGOTO_SENTRY", "SENTRY_DSN"
ON, OFF = ("1", "on", "true", "yes"), ("", "0", "off", "false", "no")
# What these samplers do with a trace that begins here; None: the share is in OTEL_TRACES_SAMPLER_ARG. A trace that has
# begun elsewhere is recorded if it is recorded there, whichever of them is named.
SAMPLERS = {
    "always_on": 1.0,
    "always_off": 0.0,
    "traceidratio": None,
    "parentbased_always_on": 1.0,
    "parentbased_always_off": 0.0,
    "parentbased_traceidratio": None,
}

FLUSHED_WITHIN = 2.0  # seconds, when a program ends that is none of ours

logger = logging.getLogger("shigoto.observe")


class Traces(Struct, frozen=True, kw_only=True):
    """Which jobs are traced with OpenTelemetry, and where their spans go.

        app = Shigoto("sqlite:///jobs.db", traces=Traces(sample=0.01))

    `sample` is the share of traces that begin with a job, from 0 to 1; without it $OTEL_TRACES_SAMPLER decides, or
    else all of them are recorded. A job that is enqueued inside of a span belongs to that trace, and is recorded if
    that is. `endpoint` is where spans are sent, such as "http://localhost:4318"; without it
    $OTEL_EXPORTER_OTLP_ENDPOINT. `service` is the name that they carry; without it $OTEL_SERVICE_NAME, or "shigoto".
    With `metrics`, workers send metrics, too.

    A program that has a tracer provider already keeps it: then our spans go where its own go, and `endpoint` and
    `service` are not looked at.
    """

    sample: float | None = None
    endpoint: str | None = None
    service: str | None = None
    metrics: bool = False

    def __post_init__(self) -> None:
        _expect_share(self.sample)

    def __repr__(self) -> str:
        place = None if self.endpoint is None else without_secrets(self.endpoint)
        return f"Traces(sample={self.sample}, endpoint={place!r}, service={self.service!r}, metrics={self.metrics})"

    def share(self, environment: Mapping[str, str] = os.environ) -> float:
        """Of the traces that begin here, how many are recorded."""
        if self.sample is not None:
            return float(self.sample)
        name = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
        if name not in SAMPLERS:
            logger.warning("OTEL_TRACES_SAMPLER is %r, which is unknown here: every trace is recorded", name)
            return 1.0
        share = SAMPLERS[name]
        return _share_of(environment.get("OTEL_TRACES_SAMPLER_ARG", "")) if share is None else share


def chosen_traces(given: Traces | None, environment: Mapping[str, str] = os.environ) -> Traces | None:
    """What holds for an app: what its code says, or else the environment. Raises DeclarationError for what cannot be,
    and if OpenTelemetry is not installed."""
    _expect_traces(given)
    chosen = _traces_from(environment) if given is None else given
    if chosen is None or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    from importlib.util import find_spec

    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise DeclarationError(
            "Traces need OpenTelemetry, which is not installed: pip install 'shigoto[otel]'."
        )
    return chosen


def _traces_from(environment: Mapping[str, str]) -> Traces | None:
    metrics = is_enabled(OTLP_METRICS, environment)
    word = word_of(TRACES, environment)
    if isinstance(word, bool):
        return Traces(metrics=metrics) if word else None
    try:
        return Traces(sample=float(word), metrics=metrics)
    except (ValueError, DeclarationError):
        # It may be an address with a secret in it, by mistake: it is not repeated.
        raise DeclarationError(f"${TRACES} is on, off, or a share from 0 to 1, and nothing else.") from None


def _share_of(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        return 1.0
    return share if 0 <= share <= 1 else 1.0


def _expect_share(sample: object) -> None:
    if sample is not None and not (isinstance(sample, int | float) and 0 <= sample <= 1):
        raise DeclarationError(f"traces: sample is a share from 0 to 1, not {shown(sample)}.")


def _expect_traces(given: object) -> None:
    if given is not None and not isinstance(given, Traces):
        raise DeclarationError(f"traces takes Traces(…), not {shown(given)}.")


class Sentry(Struct, frozen=True, kw_only=True):
    """Tell Sentry of jobs that have failed for good.

        app = Shigoto("sqlite:///jobs.db", sentry=Sentry(dsn="https://key@sentry.example/1"))

    Without a `dsn` it is $SENTRY_DSN, and without that nothing is sent. `environment` and `release` are what events
    carry; without them $SENTRY_ENVIRONMENT and $SENTRY_RELEASE.
    """

    dsn: str | None = None
    environment: str | None = None
    release: str | None = None

    def __repr__(self) -> str:
        place = None if self.dsn is None else urlsplit(self.dsn).hostname
        return f"Sentry(to {place}, environment={self.environment!r}, release={self.release!r})"


def chosen_sentry(given: Sentry | None, environment: Mapping[str, str] = os.environ) -> Sentry | None:
    """What holds for an app: what its code says, or else the environment; None if nothing is to be sent. Raises
    DeclarationError for what cannot be, and if the SDK is not installed."""
    _expect_sentry(given)
    chosen = Sentry() if given is None and is_enabled(SENTRY, environment) else given
    if chosen is None:
        return None
    dsn = chosen.dsn or environment.get(SENTRY_DSN, "").strip()
    if not dsn:
        return None
    _expect_dsn(dsn)
    from importlib.util import find_spec

    if find_spec("sentry_sdk") is None:
        raise DeclarationError("Sentry needs its SDK, which is not installed: pip install 'shigoto[sentry]'.")
    return Sentry(dsn=dsn, environment=chosen.environment, release=chosen.release)


def _expect_sentry(given: object) -> None:
    if given is not None and not isinstance(given, Sentry):
        # What it is, and not what it says: that may be an address, with its key in it.
        raise DeclarationError(f"sentry takes Sentry(…), and not a value of the type {type(given).__name__}.")


def _expect_dsn(dsn: str) -> None:
    """Raise DeclarationError for what is no address of a project in Sentry; it is not shown, for it has a key in it."""
    try:
        parts = urlsplit(dsn)
        fine = bool(parts.hostname and parts.username and parts.path.strip("/")) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not dsn.startswith(("http://", "https://")):
        raise DeclarationError(
            f"The DSN of Sentry is no address such as https://KEY@HOST/PROJECT. It comes from sentry= or ${SENTRY_DSN}."
        )


def word_of(name: str, environment: Mapping[str, str]) -> str | bool:
    """Whether the variable says on or off, which it does if it is not there; else the word that it says."""
    text = environment.get(name, "").strip().lower()
    return text in ON if text in (*ON, *OFF) else text


def is_enabled(name: str, environment: Mapping[str, str]) -> bool:
    """Whether the variable says on. Raises DeclarationError if it says neither."""
    word = word_of(name, environment)
    if isinstance(word, str):
        # It may be an address with a secret in it, by mistake: it is not repeated.
        raise DeclarationError(f"${name} is on or off, and nothing else.")
    return word


class Exporters:
    """Tells Sentry and OTLP metrics what a bus tells. An app has one; whatever runs something of the app begins it.

    Traces are not among it: what records a run also surrounds it (`observe/tracing.py`).
    """

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
