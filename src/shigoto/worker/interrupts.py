"""Exceptions from outside, raised in the main thread of a child process while it runs a sync handler.

An order comes in another thread, which leaves the exception here and sends the main thread a signal: that ends a sleep
or a wait for a socket, and then Python calls `_heard` between two steps of the handler.

    order ──► due ──► signal ──► _heard: armed, not shielded, due for this very run?  raised, once
                └───────────────── nudge: again, in case it came at a bad moment

A signal that nobody has ordered is not obeyed. A service manager sends its SIGTERM to every process of the service, and
the worker alone knows how long this job may still take.
"""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ORDERED = (signal.SIGTERM, signal.SIGUSR1)
FROM_TERMINALS = (signal.SIGTTOU, signal.SIGTTIN)


class Interrupts:
    """Made in the main thread. `arm` and `disarm` are called there, `order` and `nudge` in any thread."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._pid = os.getpid()
        self._former: dict[int, Any] = {}
        self._run: object = None
        self._armed = False
        self._shields = 0
        self._due: tuple[object, Exception, signal.Signals] | None = None

    def install(self) -> None:
        """Answer the signals from now on, whatever we have inherited.

        Ctrl-C at a terminal, and its end, are for the worker. And since children are never in the foreground, a
        terminal would stop whoever writes to it, and nobody would ever wake that one up.
        """
        hangup = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
        for number in (*ORDERED, signal.SIGINT, *hangup):
            self._former[number] = signal.signal(number, self._heard)
        for number in FROM_TERMINALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ORDERED)

    def begin(self, run: object) -> None:
        """Begin the next run; orders for another run are void, and so are its signal handlers."""
        self._run = run
        for number in self._former:
            if signal.getsignal(number) != self._heard:
                signal.signal(number, self._heard)

    def arm(self) -> None:
        """Allow interrupts from now on: the handler begins. One that was ordered before is raised now."""
        self._armed = True
        self._raise()

    def disarm(self) -> None:
        self._armed = False

    def order(self, run: object, error: Exception, by: signal.Signals) -> None:
        self._due = run, error, by
        self.nudge()

    def nudge(self) -> None:
        due = self._due
        if due is not None and due[0] is self._run and self._armed:
            signal.pthread_kill(self._main, due[2])

    @contextmanager
    def shield(self) -> Generator[None]:
        """Raise nothing in this block."""
        if threading.get_ident() != self._main:
            yield
            return
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._raise()
        else:
            # A process that a handler has forked: the signal is its own, and does there what it always does.
            signal.signal(number, self._former[number] or signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _raise(self) -> None:
        due = self._due
        if due is not None and due[0] is self._run and self._armed and not self._shields:
            self._due = None
            raise due[1]
