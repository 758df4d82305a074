"""The loop of the live view: it asks the store, draws, waits for keys, and does what they ask for.

Two questions may be out at the store at any time: a query, and the one thing that was asked for. Each has a thread of
its own, so that a store that is locked is told on the screen and keeps nobody from leaving.
"""

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from shigoto.cli.target import expect_schema, expect_there
from shigoto.cli.top import store
from shigoto.cli.top.store import (
    Action,
    Choices,
    RetryAll,
    TopQuery,
    TopSnapshot,
    ViewMessage,
    act,
    panel_filter,
    press,
    snapshot_op,
)
from shigoto.cli.top.terminal import ENDS, Key, Terminal
from shigoto.cli.top.view import Scene, drawn
from shigoto.cli.watch import Pace
from shigoto.model.errors import ShigotoError

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

T = TypeVar("T")

SHARE = 10  # times as long as a query takes, until the next one
CLOCK = 1.0  # seconds between two pictures, however rarely the store is asked
LAST_WAIT = 2.0  # seconds that an action has to end when the view is left or put to sleep


class Loop:
    def __init__(
        self, engine: "Engine", terminal: Terminal, *, store: str, interval: float, colour: bool
    ) -> None:
        self._engine = engine
        self._terminal = terminal
        self._store = store
        self._interval = interval
        self._colour = colour
        self._choices = Choices()
        self._snapshot: TopSnapshot | None = None
        self._pace = Pace()
        self._query: Future[TopSnapshot] | None = None
        self._action: Future[str | RetryAll] | None = None
        self._query_began = self._next_query = 0.0
        self._warnings: deque[str] = deque(maxlen=1)

    def run(self) -> None:
        with warnings_kept(self._warnings):
            while not self._choices.over and not self._terminal.gone:
                self._begin_query()
                self._draw()
                for key in self._terminal.wait(self._patience()):
                    self._press(key)
                self._hear_signals()
                self._take_answers()
        come_back(self._action)

    def _begin_query(self) -> None:
        if self._query is not None or time.monotonic() < self._next_query:
            return
        self._query_began = time.monotonic()
        self._next_query = self._query_began + self._interval
        choices = self._choices
        query = TopQuery(
            filtered=choices.filtered,
            most=max(1, self._terminal.canvas.size.lines),
            chosen=store.chosen_job(choices),
            opened=choices.opened if choices.page == "job" else None,
        )
        self._query = errand("look", lambda: self._read_snapshot(query), self._terminal.wake)

    def _read_snapshot(self, query: TopQuery) -> TopSnapshot:
        """A query creates nothing, so the store must be there; whether it is, is asked again after every trouble."""
        expect_there(self._engine)
        expect_schema(self._engine)
        return self._engine.run(snapshot_op(self._engine, query))

    def _draw(self) -> None:
        scene = Scene(
            store=self._store,
            snapshot=self._snapshot,
            pace=self._pace,
            choices=self._choices,
            size=self._terminal.canvas.size,
            now=datetime.now(UTC),
            colour=self._colour,
        )
        self._terminal.draw(drawn(scene))

    def _patience(self) -> float:
        if self._query is not None:
            return CLOCK
        return max(0.0, min(CLOCK, self._next_query - time.monotonic()))

    def _press(self, key: Key) -> None:
        if key.name == "redraw":
            self._terminal.canvas.redraw()
            self._next_query = 0.0
            return
        before = self._choices
        self._choices, action = press(before, key, self._snapshot or TopSnapshot(), panel_filter)
        if action is not None:
            self._begin(action)
        if (self._choices.opened, self._choices.filtered) != (before.opened, before.filtered):
            self._next_query = 0.0

    def _begin(self, action: Action) -> None:
        self._action = errand("action", lambda: act(self._engine, action), self._terminal.wake)

    def _hear_signals(self) -> None:
        come = self._terminal.signals()
        if come.intersection(ENDS):
            self._choices = structs.replace(self._choices, over=True)
            return
        if signal.SIGTSTP in come:
            # A process that sleeps inside a transaction would keep all others from writing.
            come_back(self._query, self._action)
            self._terminal.suspend()
        elif signal.SIGCONT in come:
            self._terminal.take_again()
        if signal.SIGWINCH in come:
            self._terminal.canvas.redraw()

    def _take_answers(self) -> None:
        if self._query is not None and self._query.done():
            answer, self._query = self._query, None
            self._take_snapshot(answer)
        if self._action is not None and self._action.done():
            done, self._action = self._action, None
            self._take_result(done)
        if self._warnings:
            self._choices = structs.replace(self._choices, told=ViewMessage(self._warnings.pop(), bad=True))

    def _take_snapshot(self, answer: Future[TopSnapshot]) -> None:
        try:
            self._snapshot = answer.result()
        except (ShigotoError, OSError) as error:
            self._choices = structs.replace(self._choices, trouble=f"{error} Trying again.")
            self._pace = Pace()
            self._engine.close()  # or it would remember a file that was replaced
        else:
            self._pace = self._pace.after(time.monotonic(), self._snapshot.queues)
            self._choices = store.seen(self._choices, self._snapshot)
            if self._next_query:  # else somebody waits for it
                took = time.monotonic() - self._query_began
                self._next_query = self._query_began + rest(self._interval, took)

    def _take_result(self, answer: Future[str | RetryAll]) -> None:
        error = answer.exception()
        if error is None:
            came = answer.result()
            if isinstance(came, RetryAll):
                self._choices = store.asked(self._choices, came)
            else:
                self._choices = store.done(self._choices, came)
        else:
            self._choices = store.done(self._choices, str(error) or type(error).__name__, bad=True)
        self._next_query = 0.0  # to see what it has changed


def rest(interval: float, took: float) -> float:
    """How long from one query to the next, in seconds: who only looks must not keep a store busy."""
    return max(interval, SHARE * took)


def come_back(*out: Future[Any] | None) -> None:
    """Let what is out at the store come back, if that does not take long."""
    wait([each for each in out if each is not None], LAST_WAIT)


def errand(name: str, call: Callable[[], T], wake: Callable[[], None]) -> Future[T]:
    """A call in a thread that dies with the process: who leaves does not wait for a locked store."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)
        wake()

    threading.Thread(target=run, name=f"shigoto-top-{name}", daemon=True).start()
    return answer


class Kept(logging.Handler):
    """Keeps the last warning: written to the terminal it would go right across the picture."""

    def __init__(self, warnings: deque[str]) -> None:
        super().__init__(logging.WARNING)
        self._warnings = warnings

    def emit(self, record: logging.LogRecord) -> None:
        self._warnings.append(record.getMessage())


@contextmanager
def warnings_kept(warnings: deque[str]) -> Generator[None]:
    """Our own log lines, which come from any thread, go here and nowhere else."""
    logger, handler = logging.getLogger("shigoto"), Kept(warnings)
    former, propagate = logger.handlers[:], logger.propagate
    logger.handlers[:], logger.propagate = [handler], False
    try:
        yield
    finally:
        logger.handlers[:], logger.propagate = former, propagate
