"""A span processor that sends in batches from a separate thread, and can be flushed within a time limit.

OpenTelemetry's own batches cannot be flushed within a time, wait for half a minute when a program ends, and send from a
thread that looks as if a handler had left it behind (`worker/shutdown.py`). Whatever happens to a collector, a job does
not wait for it here, and spans for which there is no room are dropped and counted.

    a span ends ──► queue ──► thread: a moment later, or at once if asked to, all that is there ──► exporter

Imports OpenTelemetry, so it is imported only where something is recorded.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from opentelemetry import context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

DELAY = 1.0  # seconds in which spans gather
MOST_WAITING = 4_096
MOST_AT_ONCE = 512
QUIET = "_SUPPRESS_INSTRUMENTATION_KEY"  # private in name only: whoever instruments HTTP clients asks for it

logger = logging.getLogger("shigoto.observe")


class SpanSender(Protocol):
    """Sends spans; takes as long as it takes."""

    def export(self, spans: Sequence[ReadableSpan], /) -> object:
        """Send them."""
        ...


class Batches(SpanProcessor):
    """Gathers the spans of this process, and of each that is forked from it anew."""

    def __init__(self, exporter: SpanSender) -> None:
        self._exporter = exporter
        self._delay = _setting("OTEL_BSP_SCHEDULE_DELAY", DELAY * 1000) / 1000
        self._most = max(1, int(_setting("OTEL_BSP_MAX_QUEUE_SIZE", MOST_WAITING)))
        self._portion = max(1, int(_setting("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", MOST_AT_ONCE)))
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span; never waits."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._changed:
            if len(self._waiting) >= self._most:
                self._drop()
                return
            self._waiting.append(span)
            if self._thread is None:
                self._start()
            elif len(self._waiting) in (1, self._portion):
                self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Send what is there now, and wait for that; False if it takes longer than this."""
        with self._changed:
            if self._thread is None:
                return True
            self._hurry = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not (self._waiting or self._sending), max(0.0, seconds))

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """The same, as OpenTelemetry calls it."""
        return self.flush(timeout_millis / 1000)

    def shutdown(self) -> None:
        """Nothing: the thread ends with its process, and whoever ends it flushes before."""

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[ReadableSpan] = deque()
        self._sending = self._hurry = False
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="shigoto-spans", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is about to end, or has no more threads
            self._waiting.clear()
        else:
            self._thread = thread

    def _drop(self) -> None:
        self._dropped += 1
        if self._dropped == 1:
            logger.warning("Spans are dropped: more are made than the collector takes")

    def _work(self) -> None:
        _leave_untraced()
        while True:
            self._send(self._gathered())

    def _gathered(self) -> list[ReadableSpan]:
        """The next batch, once there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            until = time.monotonic() + self._delay
            self._changed.wait_for(
                lambda: self._hurry or len(self._waiting) >= self._portion,
                max(0.0, until - time.monotonic()),
            )
            batch = [self._waiting.popleft() for _ in range(min(self._portion, len(self._waiting)))]
            self._sending = True
            return batch

    def _send(self, batch: list[ReadableSpan]) -> None:
        try:
            self._exporter.export(batch)
        except Exception:
            logger.exception("%d spans could not be sent, and are dropped", len(batch))
        with self._changed:
            self._sending = False
            if not self._waiting:
                self._hurry = False
                if self._dropped:
                    logger.warning("%d spans were dropped until now", self._dropped)
                    self._dropped = 0
            self._changed.notify_all()


def _leave_untraced() -> None:
    """What is sent from this thread is not to be traced itself."""
    key: object = getattr(context, QUIET, None)
    if isinstance(key, str):
        context.attach(context.set_value(key, True))


def _setting(name: str, default: float) -> float:
    try:
        value = float(os.environ.get(name, ""))
    except ValueError:
        return default
    return value if value > 0 else default
