"""A few threads that ask for those who must not wait."""

import threading
from collections import deque
from collections.abc import Callable

from shigoto.model.errors import StoreUnavailable

MOST, MOST_URGENT = 8, 16


class Threads:
    """Threads that are started when they are needed, and keep no program from ending."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._idle = self._count = 0
        self._closed = False

    def submit(self, work: Callable[[], None], *, urgent: bool = False) -> None:
        """Do this in a thread; if all are at work, when one of them is done. The urgent find one."""
        with self._changed:
            if urgent:
                self._waiting.appendleft(work)
            else:
                self._waiting.append(work)
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._count < (MOST_URGENT if urgent else MOST):
                self._start()

    def close(self) -> None:
        """Let every thread end as soon as there is nothing left to do."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _start(self) -> None:
        self._count += 1
        thread = threading.Thread(target=self._serve, name=f"shigoto-http-{self._count}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._count -= 1
            if not self._count:
                self._waiting.clear()
                raise StoreUnavailable(f"No thread for the store could be started: {error}.") from error

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            while not (self._waiting or self._closed):
                self._changed.wait()
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._count -= 1
            return None
