"""A worker as a program: its event loop, its signals, its log, and its exit code."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from shigoto.app import Shigoto
from shigoto.cli.output import total
from shigoto.cli.target import InFile
from shigoto.context import current_context
from shigoto.model.errors import StoreError
from shigoto.observe.log import Fields, configure_logging
from shigoto.worker import Stopped, Worker

logger = logging.getLogger("shigoto.worker")

EOF_LOOK = 65_536  # bytes; whatever is written to standard input is thrown away


class Shift(Struct, frozen=True, kw_only=True):
    """What surrounds the worker while it works."""

    stats_every: float
    stop_on_eof: bool
    log_format: Literal["text", "json"]
    log_level: str


def work(app: Shigoto, worker: Worker, shift: Shift) -> int:
    """Run the worker to its end, and tell the exit code."""
    configure_logging(format=shift.log_format, level=shift.log_level.upper(), fields=job_fields)
    with asyncio.Runner(loop_factory=event_loop()) as runner:
        stopped = runner.run(_work(app, worker, shift))
    code = exit_code(stopped)
    if stopped.running:
        # Threads that do not stop would keep the process alive, at work on jobs that are no longer its own.
        logging.shutdown()
        os._exit(code)
    app.close()
    return code


def exit_code(stopped: Stopped) -> int:
    """1 if jobs could not be given back or were taken away, else 0."""
    return 1 if stopped.unreleased or stopped.reason == "fenced" else 0


async def _work(app: Shigoto, worker: Worker, shift: Shift) -> Stopped:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, worker.stop)
    if shift.stop_on_eof:
        loop.add_reader(sys.stdin.fileno(), _stop_at_the_end, loop, worker)
    logger.info("Tasks: %s; store: %s", ", ".join(app.tasks) or "none", _name_of_store(app))
    printing = asyncio.create_task(print_stats(app, shift.stats_every), name="shigoto-stats")
    try:
        return await worker.run()
    finally:
        printing.cancel()
        with suppress(asyncio.CancelledError):
            await printing


def _stop_at_the_end(loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    if not os.read(sys.stdin.fileno(), EOF_LOOK):
        loop.remove_reader(sys.stdin.fileno())
        worker.stop()


async def print_stats(app: Shigoto, every: float) -> None:
    """Log the counts again and again; never, if there is no time between."""
    while every > 0:
        await asyncio.sleep(every)
        try:
            counts = total(await app.astats())
        except StoreError as error:
            logger.warning("The statistics are left out this time: %s", error)
            continue
        logger.info(
            "Job Stats - Pending: %d, Processing: %d, Completed: %d, Failed: %d",
            counts.pending,
            counts.processing,
            counts.completed,
            counts.failed,
            extra={"shigoto": asdict(counts)},
        )


def event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the event loop: uvloop where it is installed."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def job_fields() -> Fields:
    """Which job a line of the log belongs to, if it was written by a handler."""
    context = current_context.get(None)
    if context is None:
        return {}
    return {
        "job_id": str(context.job_id),
        "number": context.number,
        "task": context.task,
        "attempt": context.attempt,
    }


def _name_of_store(app: Shigoto) -> str:
    engine = app.engine
    return str(engine.path) if isinstance(engine, InFile) else engine.capabilities.name
