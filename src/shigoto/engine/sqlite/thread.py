"""A database thread: takes all the operations that wait, runs them as one group, and hands the answers back.

Nothing waits for company: an op that arrives at an idle thread runs at once, and whatever arrives meanwhile is the next
group. One hand-over to the event loop serves a whole group.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from shigoto.engine.op import Op
from shigoto.engine.sql.block import started
from shigoto.model.errors import StoreUnavailable

MAX_GROUP = 256


class Outcome:
    """What became of one op."""

    __slots__ = ("error", "value")

    def __init__(self, value: Any = None, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error


_Waiting = tuple[Op[Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class DatabaseThread:
    """One thread."""

    def __init__(
        self,
        name: str,
        transact: Callable[[list[Op[Any]]], list[Outcome]],
    ) -> None:
        self._transact = transact
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._door = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name=f"shigoto-{name}", daemon=True)
        started(self._thread)

    def submit(self, op: Op[Any]) -> "asyncio.Future[Any]":
        """Queue an op; the future belongs to the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._door:
            if self._stopping:
                raise StoreUnavailable("The store was closed while an operation was on its way to it.")
            self._queue.put((op, future, loop))
        return future

    def stop(self) -> None:
        """Finish what is queued and end."""
        with self._door:
            self._stopping = True
            self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        stopping = False
        while not stopping:
            group, stopping = self._next_group()
            if not group:
                continue
            try:
                outcomes = self._transact([op for op, _, _ in group])
            except Exception as error:
                outcomes = [Outcome(error=error) for _ in group]
            _hand_over(group, outcomes)

    def _next_group(self) -> tuple[list[_Waiting], bool]:
        group: list[_Waiting] = []
        waiting = self._queue.get()
        while waiting is not None:
            group.append(waiting)
            if len(group) == MAX_GROUP:
                return group, False
            try:
                waiting = self._queue.get_nowait()
            except Empty:
                return group, False
        return group, True


def _hand_over(group: list[_Waiting], outcomes: list[Outcome]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome]]] = {}
    for (_, future, loop), outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(loop, []).append((future, outcome))
    for loop, answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, answers)
        except RuntimeError:
            continue  # the loop is closed: nobody is left to be told, and what was committed stays committed


def _resolve(answers: list[tuple["asyncio.Future[Any]", Outcome]]) -> None:
    for future, outcome in answers:
        if future.cancelled():
            continue
        if outcome.error is not None:
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome.value)
