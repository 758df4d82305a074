"""Event loops for async jobs that sync code runs, and threads without one for sync jobs that async code runs."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context as Variables
from typing import Any, TypeVar

from shigoto.handle import on_event_loop

T = TypeVar("T")


class PrivateLoop:
    """One private event loop. Where a loop is running already, it runs in a thread, and the caller waits for it."""

    def __init__(self) -> None:
        # With a factory, the loop is not made the current one: whoever asks for that gets what it had before.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def run(self, main: Coroutine[Any, Any, T], variables: Variables) -> T:
        """Run a coroutine to its end, with these context variables."""
        return _apart(lambda: self._runner.run(main, context=variables))

    def close(self) -> None:
        """Cancel what is left on it, and close it."""
        _apart(self._runner.close)


class PrivateLoops:
    """Private event loops, kept for the whole test: a client that outlives the job which made it needs its loop."""

    def __init__(self) -> None:
        self._idle: list[PrivateLoop] = []

    @contextmanager
    def lend(self) -> Generator[PrivateLoop]:
        """A loop for one caller; the same one next time, unless two want one at once."""
        try:
            loop = self._idle.pop()
        except IndexError:
            loop = PrivateLoop()
        try:
            yield loop
        finally:
            self._idle.append(loop)

    def close(self) -> None:
        """Close them all."""
        while self._idle:
            self._idle.pop().close()


@contextmanager
def no_loop() -> Generator[None]:
    """Hide the running event loop and its task for a while, as a worker's threads have none.

    What looks for one, asyncio.run() and Django's guards among it, would refuse in a test what it allows in production.
    """
    if not on_event_loop():
        yield
        return
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if task is not None:
            asyncio.tasks._enter_task(loop, task)


def _apart(work: Callable[[], T]) -> T:
    """Do it here, or in another thread if this one is busy with an event loop."""
    if not on_event_loop():
        return work()
    with ThreadPoolExecutor(1, "shigoto-test") as threads:
        return threads.submit(work).result()
