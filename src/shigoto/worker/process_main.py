"""The event loop of a process that exists for one worker or scheduler, and the end of that process.

A stop must end the process, and soon: jobs that it could not finish have been given back, and run elsewhere by the time
it lingers here. But the event loop may be blocked by a handler, and the store by another process. So a thread
(`Watchdog`) ends the process if it does not obey in time; and tasks or threads that handlers have left behind, and that
do not give in, are not waited for.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import inf
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, NoReturn, Protocol, TypeVar

from shigoto.app import Shigoto
from shigoto.observe.events import WorkerLeaving
from shigoto.worker.stopping import Runnable

logger = logging.getLogger("shigoto.worker")

OVERTIME = 2.0  # seconds beyond the stop time-out until the watchdog ends the process
HURRY = 5.0  # seconds from a second request until it ends the process
CLOSING_SECONDS = 5.0  # seconds for closing the store, once the worker has ended
OVERDUE = 70  # the exit code of a runner process that its own watchdog has ended
TELL = 0.5  # seconds for the final log message: whoever reads the log may be stuck, too

TOO_SLOW = (
    "The process did not end in time after a stop, and is ended now. Jobs that it could not give back are run"
    " again when its lease is over"
)
LAST_MOMENT = 1.0  # seconds from the last release until nothing runs here any more; others wait for two
FLUSHED_WITHIN = 0.8  # seconds for spans and the like to leave; less than the last moment
TIDY = 0.1  # seconds for the tasks and threads that handlers have left behind


class Watchdog:
    """Ends the process, with the exit code `code`, if it lives longer than it was last allowed to.

    `before_end` is called first, and must be quick and sure.
    """

    def __init__(self, code: int = 1, before_end: Callable[[], None] | None = None) -> None:
        self.code = code
        self._before_end = before_end
        # How long the process may still live, whenever that changes; None ends the watch. This queue, unlike
        # events and locks, may be used in a signal handler that has interrupted another.
        self._news: SimpleQueue[float | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name="shigoto-watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._news.put(None)
        self._thread.join()

    def allow(self, seconds: float) -> None:
        """Let the process last so long, unless it was allowed less before. Safe anywhere."""
        self._news.put(seconds)

    def _watch(self) -> None:
        end_at = inf
        while True:
            left = end_at - time.monotonic()
            try:
                patience = self._news.get(timeout=None if left == inf else max(0.0, left))
            except Empty:
                if self._before_end is not None:
                    self._before_end()
                exit_after(_log_too_slow, self.code)
            if patience is None:
                return
            end_at = min(end_at, time.monotonic() + patience)


def _log_too_slow() -> None:
    logger.error(TOO_SLOW)
    logging.shutdown()


def exit_after(final_message: Callable[[], None], code: int) -> NoReturn:
    """End the process when this is logged, or after 0.5 s: the reader of its output may be stuck."""
    teller = threading.Thread(target=final_message, name="shigoto-last-words", daemon=True)
    try:
        teller.start()
        teller.join(TELL)
    finally:
        os._exit(code)


class StopLevels:
    """Passes requests on to `stop`, which is called once to stop and once more to hurry.

    `level` 1 asks to stop, 2 to hurry. Whoever asks for a level that was reached already changes nothing, so a
    request that arrives on two ways is one.
    """

    def __init__(self, stop: Callable[[], None], stop_timeout: float, watchdog: Watchdog) -> None:
        self._stop = stop
        self._stop_timeout = stop_timeout
        self._watchdog = watchdog
        # Re-entrant, since the handler of a signal may interrupt its own thread in here.
        self._asking = threading.RLock()
        self.level = 0

    def ask(self, level: int) -> None:
        """Stop, or hurry; from any thread, also in the handler of a signal."""
        with self._asking:
            while self.level < min(level, 2):
                self.level += 1
                self._watchdog.allow(self._stop_timeout + OVERTIME if self.level == 1 else HURRY)
                self._stop()

    def ask_more(self) -> None:
        self.ask(self.level + 1)


class SignalWatch:
    """Lets these signals call `heard`, from `__enter__` to `__exit__`, in this very process.

    The handler of a signal runs between any two steps of the main thread, and interrupts a sleep; so it is heard
    while a handler of ours blocks the event loop. (Not while native code does that without a pause: the byte that
    the interpreter could write at once is no help, because forked children would write it, too.)
    """

    def __init__(self, heard: dict[signal.Signals, Callable[[], None]]) -> None:
        self._heard = heard
        self._pid = os.getpid()
        self._former: dict[int, Any] = {}

    def __enter__(self) -> "SignalWatch":
        for number in self._heard:
            self._former[number] = signal.signal(number, self._handle) or signal.SIG_DFL
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._heard[signal.Signals(number)]()
        elif callable(former := self._former[number]):
            former(number, frame)
        else:
            # A child that a handler has forked: the signal is its own, and does there what it always does.
            signal.signal(number, former)
            os.kill(os.getpid(), number)


class ExitReport(Protocol):
    """How it ended, as far as its process is concerned: `running` are parts of it that could not be stopped."""

    @property
    def running(self) -> int: ...

    @property
    def exit_code(self) -> int: ...


T = TypeVar("T", bound=ExitReport)


def run_to_the_end(
    app: Shigoto,
    worker: Runnable[T],
    watchdog: Watchdog,
    *,
    begin: Callable[[], None],
    beside: Callable[[], Coroutine[Any, Any, None]],
    ended: Callable[[T], None],
    cut_off: Callable[[], None] = lambda: None,
) -> int:
    """Run the worker, and tell the exit code; unless the process ends in here.

    `begin` is called on the event loop before the worker does anything, `beside` runs as long as it does, and `ended`
    is called at once when it has ended. If a handler has ended the event loop under it, `cut_off` is called instead,
    before anything is cancelled or closed.
    """
    others = set(threading.enumerate())
    app.bus.subscribe(partial(_hurry, watchdog), WorkerLeaving)
    over = False

    async def work() -> int:
        nonlocal over
        try:
            begin()
            other = asyncio.create_task(beside(), name="shigoto-beside")
            try:
                stopped = await worker.run()
                watchdog.code = stopped.exit_code
            finally:
                other.cancel()
                watchdog.allow(CLOSING_SECONDS)
            ended(stopped)
            if not stopped.running:
                # The event loop has nothing left to do, so it may as well wait here.
                app.flush(FLUSHED_WITHIN)
                app.exporters.end()
            if stopped.running or not await _tidy():
                # They would keep the process alive, at work on jobs that are no longer its own.
                leave_now(watchdog.code)
            return watchdog.code
        finally:
            over = True

    with asyncio.Runner(loop_factory=event_loop()) as runner:
        try:
            code = runner.run(work())
        finally:
            if not over:
                cut_off()
    app.close()
    if any(not thread.daemon for thread in set(threading.enumerate()) - others):
        # The interpreter would wait for them.
        leave_now(code)
    return code


def _hurry(watchdog: Watchdog, event: WorkerLeaving) -> None:
    """Shorten the end of the process: what still runs here is given back now, and soon runs elsewhere."""
    if event.running:
        watchdog.allow(LAST_MOMENT)


def event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of the event loop: uvloop where it is installed."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def leave_now(code: int) -> NoReturn:
    """End the process now; a reader of its output cannot delay that."""

    def flush() -> None:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()

    exit_after(flush, code)


async def _tidy() -> bool:
    """Return True if all tasks that are left give in to a cancel, and all threads of `to_thread` are idle."""
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    tasks.add(asyncio.create_task(loop.shutdown_default_executor(), name="shigoto-executor"))
    _, left = await asyncio.wait(tasks, timeout=TIDY)
    return not left
