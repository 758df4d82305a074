"""A worker as a program: its event loop, its signals, its log, and its exit code.

A stop must end the process, and soon: jobs that it could not finish have been given back, and run elsewhere by
the time it lingers here. Two things see to that.

    at the end    whatever handlers have left behind, tasks or threads that do not give in, is not waited for
    the watchdog  a thread that waits for the first signal, and then for so long as a stop may take: the event
                  loop may be blocked by a handler, the store by another process
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from math import inf
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Literal, NoReturn

from msgspec import Struct
from msgspec.structs import asdict

from shigoto.app import Shigoto
from shigoto.cli.output import total
from shigoto.cli.target import InFile
from shigoto.model.errors import StoreError
from shigoto.observe.log import configure_logging
from shigoto.worker import Stopped, Worker
from shigoto.worker.logfields import job_fields

logger = logging.getLogger("shigoto.worker")

OVERTIME = 2.0  # seconds beyond the stop time-out until the watchdog bites
HURRY = 5.0  # seconds from a second signal until it bites
FAREWELL = 5.0  # seconds for closing the store, once the worker has ended
TIDY = 0.1  # seconds for the tasks and threads that handlers have left behind
TELL = 0.5  # seconds for the last words: whoever reads the log may be stuck, too
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
    others = set(threading.enumerate())
    with Watchdog(worker.stop, worker.stop_timeout) as watchdog:
        with asyncio.Runner(loop_factory=event_loop()) as runner:
            code = runner.run(_work(app, worker, shift, watchdog))
        app.close()
        if any(not thread.daemon for thread in set(threading.enumerate()) - others):
            # The interpreter would wait for them.
            _leave(code)
    return code


def exit_code(stopped: Stopped) -> int:
    """1 if jobs could not be given back or were taken away, else 0."""
    return 1 if stopped.unreleased or stopped.reason == "fenced" else 0


class Watchdog:
    """Passes signals on to `stop`, and ends the process if it has not ended in time.

    The handler of a signal runs between any two steps of the main thread, and interrupts a sleep; so it is heard
    while a handler of ours blocks the event loop. (Not while native code does that without a pause: the byte that
    the interpreter could write at once is no help, because forked children would write it, too.)
    """

    def __init__(self, stop: Callable[[], None], stop_timeout: float) -> None:
        self._stop = stop
        self._stop_timeout = stop_timeout
        self._code = 1
        # How long the process may still live, whenever that changes; None ends the watch. This queue, unlike
        # events and locks, may be used in a handler that has interrupted another.
        self._news: SimpleQueue[float | None] = SimpleQueue()
        self._signals = 0
        self._pid = os.getpid()
        self._former: dict[int, Any] = {}
        self._thread = threading.Thread(target=self._watch, name="shigoto-watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._former[number] = signal.signal(number, self._heard) or signal.SIG_DFL
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        self._news.put(None)
        self._thread.join()

    def stop(self) -> None:
        """Stop; asked again, hurry. For the main thread."""
        self._signals += 1
        self._news.put(self._stop_timeout + OVERTIME if self._signals == 1 else HURRY)
        self._stop()

    def expect_the_end(self, code: int) -> None:
        """The worker has ended, and this is the exit code; the rest must not take long."""
        self._code = code
        self._news.put(FAREWELL)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self.stop()
        elif callable(former := self._former[number]):
            former(number, frame)
        else:
            # A child that a handler has forked: the signal is its own, and does there what it always does.
            signal.signal(number, former)
            os.kill(os.getpid(), number)

    def _watch(self) -> None:
        bite_at = inf
        while True:
            left = bite_at - time.monotonic()
            try:
                patience = self._news.get(timeout=None if left == inf else max(0.0, left))
            except Empty:
                self._bite()
            if patience is None:
                return
            bite_at = min(bite_at, time.monotonic() + patience)

    def _bite(self) -> NoReturn:
        teller = threading.Thread(target=logger.error, args=(TOO_SLOW,), daemon=True)
        teller.start()
        teller.join(TELL)
        os._exit(self._code)


TOO_SLOW = (
    "The process did not end in time after a stop, and is ended now. Jobs that it could not give back are run"
    " again when its lease is over"
)


async def _work(app: Shigoto, worker: Worker, shift: Shift, watchdog: Watchdog) -> int:
    loop = asyncio.get_running_loop()
    if shift.stop_on_eof:
        loop.add_reader(sys.stdin.fileno(), _stop_at_the_end, loop, watchdog)
    logger.info("Tasks: %s; store: %s", ", ".join(app.tasks) or "none", _name_of_store(app))
    printing = asyncio.create_task(print_stats(app, shift.stats_every), name="shigoto-stats")
    code = 1
    try:
        stopped = await worker.run()
        code = exit_code(stopped)
    finally:
        printing.cancel()
        watchdog.expect_the_end(code)
    if stopped.running or not await _tidy(loop):
        # They would keep the process alive, at work on jobs that are no longer its own.
        _leave(code)
    return code


async def _tidy(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether all tasks that are left give in to a cancel, and all threads of `to_thread` are idle."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    tasks.add(asyncio.create_task(loop.shutdown_default_executor(), name="shigoto-executor"))
    _, left = await asyncio.wait(tasks, timeout=TIDY)
    return not left


def _leave(code: int) -> NoReturn:
    """End the process now; the watchdog sees to it that nobody who reads our output can hold it up."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _stop_at_the_end(loop: asyncio.AbstractEventLoop, watchdog: Watchdog) -> None:
    if not os.read(sys.stdin.fileno(), EOF_LOOK):
        loop.remove_reader(sys.stdin.fileno())
        watchdog.stop()


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


def _name_of_store(app: Shigoto) -> str:
    engine = app.engine
    return str(engine.path) if isinstance(engine, InFile) else engine.capabilities.name
