"""The terminal as the live view holds it: keys one by one, signals as events, and everything given back at the end."""

import os
import select
import signal
import termios
import threading
import time
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from shigoto.cli.top.keys import Key, Keys
from shigoto.cli.watch import Canvas

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
END_PATIENCE = 1.0  # seconds for an end in good order, before another signal ends it at once
WATCHED = (*ENDS, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)

Handler = Callable[[int, FrameType | None], Any] | int | None


class Terminal:
    """A terminal whose keys come unechoed, with a canvas on its whole screen. Only for the main thread.

    `wake` may be called from any thread, and ends a wait.
    """

    def __init__(self, keyboard: int, canvas: Canvas) -> None:
        self._keyboard = keyboard
        self._keys = Keys()
        self._signals: set[int] = set()
        self._former: dict[int, Handler] = {}
        self._told_to_end: float | None = None
        self._heard = 0.0  # when the last keys came
        # The lock keeps a late thread from writing into whatever file has got the number of the closed pipe.
        self._pressing = threading.Lock()
        self._given_back = False
        self._bell, self._button = os.pipe()
        for end in (self._bell, self._button):
            os.set_blocking(end, False)
        self._modes = termios.tcgetattr(keyboard)
        self._former_wakeup = -1
        self.canvas = canvas
        self.gone = False

    def __enter__(self) -> "Terminal":
        self._former_wakeup = signal.set_wakeup_fd(self._button, warn_on_full_buffer=False)
        for number in WATCHED:
            # One that is ignored (by nohup, say, or by a shell without job control) stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._note)
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_wakeup)
        with self._pressing:
            os.close(self._bell)
            os.close(self._button)
            self._given_back = True

    def wake(self) -> None:
        """End the wait that is under way, or the next one; nothing if the terminal was given back."""
        with self._pressing, suppress(BlockingIOError):  # a full pipe wakes as well
            if not self._given_back:
                os.write(self._button, b"\0")

    def wait(self, seconds: float) -> list[Key]:
        """Wait for keys, signals, a wake or the end of the time, whatever comes first; the keys that came."""
        patience = self._keys.patience
        left = seconds if patience is None else self._heard + patience - time.monotonic()
        ready, _, _ = select.select([self._keyboard, self._bell], [], [], max(0.0, min(seconds, left)))
        if self._bell in ready:
            with suppress(BlockingIOError):
                os.read(self._bell, 65_536)
        if self._keyboard in ready:
            self._heard = time.monotonic()
            return self._keys.feed(self._read())
        is_late = patience is not None and time.monotonic() >= self._heard + patience
        return self._keys.give_up() if is_late else []

    def draw(self, lines: Sequence[str]) -> None:
        """Draw the lines, if there is still somewhere to draw them."""
        try:
            self.canvas.draw(lines)
        except OSError:
            self.gone = True

    def signals(self) -> set[int]:
        """The signals that have come since the last time."""
        come, self._signals = self._signals, set()
        return come

    def suspend(self) -> None:
        """Give the terminal back and stop, as Ctrl-Z asks, until somebody says to go on."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._note)
        self._take()

    def take_again(self) -> None:
        """Take the terminal again: somebody else has had it meanwhile."""
        self._take()

    def _read(self) -> bytes:
        try:
            some = os.read(self._keyboard, 4_096)
        except OSError:  # what Linux says of a terminal that was closed
            some = b""
        self.gone = self.gone or not some
        return some

    def _take(self) -> None:
        try:
            tty.setcbreak(self._keyboard, termios.TCSADRAIN)
            self.canvas.enter()
        except (termios.error, OSError):  # it was closed
            self.gone = True

    def _give_back(self) -> None:
        self.canvas.leave()
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.add(number)
        if number not in ENDS:
            return
        now = time.monotonic()
        if self._told_to_end is None:
            self._told_to_end = now
        elif now - self._told_to_end > END_PATIENCE:
            self._end_at_once(number)

    def _end_at_once(self, number: int) -> None:
        """A terminal that takes no output holds us in the middle of a write, and every signal only begins it anew."""
        self.canvas.abandon()
        with suppress(termios.error):
            termios.tcsetattr(self._keyboard, termios.TCSANOW, self._modes)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
