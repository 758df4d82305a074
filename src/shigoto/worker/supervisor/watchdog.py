"""Requests to stop, and the thread that ends the process if they are not obeyed in time.

A stop must end the process, and soon: jobs that it could not finish have been given back, and run elsewhere by
the time it lingers here. But the event loop may be blocked by a handler, and the store by another process.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from math import inf
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, NoReturn

logger = logging.getLogger("shigoto.worker")

OVERTIME = 2.0  # seconds beyond the stop time-out until the watchdog bites
HURRY = 5.0  # seconds from a second request until it bites
FAREWELL = 5.0  # seconds for closing the store, once the worker has ended
OVERDUE = 70  # the exit code of a runner process that its own watchdog has ended
TELL = 0.5  # seconds for the last words: whoever reads the log may be stuck, too

TOO_SLOW = (
    "The process did not end in time after a stop, and is ended now. Jobs that it could not give back are run"
    " again when its lease is over"
)


class Watchdog:
    """Ends the process, with the exit code `code`, if it lives longer than it was last allowed to.

    `biting` is called first, and must be quick and sure.
    """

    def __init__(self, code: int = 1, biting: Callable[[], None] | None = None) -> None:
        self.code = code
        self._biting = biting
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
        """Let the process live for so long, unless it was allowed less already. Safe anywhere."""
        self._news.put(seconds)

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
        if self._biting is not None:
            self._biting()
        exit_after(_last_words, self.code)


def _last_words() -> None:
    logger.error(TOO_SLOW)
    logging.shutdown()


def exit_after(last_words: Callable[[], None], code: int) -> NoReturn:
    """End the process when this is said, or cannot be said: whoever reads our output may be stuck."""
    teller = threading.Thread(target=last_words, name="shigoto-last-words", daemon=True)
    try:
        teller.start()
        teller.join(TELL)
    finally:
        os._exit(code)


class Brake:
    """Passes requests on to `stop`, which is called once to stop and once more to hurry.

    `level` 1 asks to stop, 2 to hurry. Whoever asks for a level that was reached already changes nothing, so a
    request that arrives on two ways is one.
    """

    def __init__(self, stop: Callable[[], None], stop_timeout: float, watchdog: Watchdog) -> None:
        self._stop = stop
        self._stop_timeout = stop_timeout
        self._watchdog = watchdog
        # Re-entrant, since the handler of a signal may interrupt its own thread in here.
        self._pressing = threading.RLock()
        self.level = 0

    def press(self, level: int) -> None:
        """Stop, or hurry; from any thread, also in the handler of a signal."""
        with self._pressing:
            while self.level < min(level, 2):
                self.level += 1
                self._watchdog.allow(self._stop_timeout + OVERTIME if self.level == 1 else HURRY)
                self._stop()

    def press_harder(self) -> None:
        """The next level."""
        self.press(self.level + 1)


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
