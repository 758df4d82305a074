"""A worker or a scheduler in this very process: `shigoto scheduler`, and `shigoto worker --processes 0` for debuggers.

There is no supervisor: the worker beats from a thread, and a crash takes everything with it.
"""

import logging
import signal
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from shigoto.app import Shigoto
from shigoto.engine.open import name_of_store
from shigoto.observe.log import configure_logging, some_of
from shigoto.worker.process_main import Brake, Outcome, SignalWatch, Watchdog, run_to_the_end
from shigoto.worker.reporting import hidden, job_fields
from shigoto.worker.stopping import Service
from shigoto.worker.supervisor.host import call_at_eof
from shigoto.worker.supervisor.runner_process import LogFormat

logger = logging.getLogger("shigoto.worker")


class Shift(Struct, frozen=True, kw_only=True):
    """What surrounds the worker while it works."""

    stop_on_eof: bool
    log_format: LogFormat
    log_level: str
    notice: str | None = None


def work(
    app: Shigoto, worker: Service[Outcome], shift: Shift, beside: Callable[[], Coroutine[Any, Any, None]]
) -> int:
    """Run the worker, or the scheduler, to its end, and tell the exit code; `beside` runs as long as it does."""
    configure_logging(
        format=shift.log_format, level=shift.log_level.upper(), fields=job_fields, hide=hidden, gather=True
    )
    if shift.notice is not None:
        logger.info("%s", shift.notice)
    with Watchdog() as watchdog:
        brake = Brake(worker.stop, worker.stop_timeout, watchdog)

        def begin() -> None:
            if shift.stop_on_eof:
                call_at_eof(get_running_loop(), brake.press_harder)
            logger.info("Tasks: %s; store: %s", some_of(app.tasks) or "none", name_of_store(app.engine))

        with SignalWatch(dict.fromkeys((signal.SIGINT, signal.SIGTERM), brake.press_harder)):
            return run_to_the_end(
                app,
                worker,
                watchdog,
                begin=begin,
                beside=beside,
                ended=lambda _: None,
            )
