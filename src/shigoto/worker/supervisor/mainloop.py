"""The event loop of a process that exists for one worker or scheduler, and how that process ends.

Whatever handlers have left behind, tasks or threads that do not give in, is not waited for: jobs that could not
be finished have been given back, and run elsewhere by the time this process would linger.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn, Protocol, TypeVar

from shigoto.app import Shigoto
from shigoto.observe.events import WorkerLeaving
from shigoto.worker.stopping import Service
from shigoto.worker.supervisor.watchdog import FAREWELL, Watchdog, exit_after

LAST_MOMENT = 1.0  # seconds from the last release until nothing runs here any more; others wait for two
FLUSHED_WITHIN = 0.8  # seconds for spans and the like to leave; less than the last moment
TIDY = 0.1  # seconds for the tasks and threads that handlers have left behind


class Outcome(Protocol):
    """How it ended, as far as its process is concerned: `running` are parts of it that could not be stopped."""

    @property
    def running(self) -> int:
        """How many are still at it."""
        ...

    @property
    def exit_code(self) -> int:
        """That of the process."""
        ...


T = TypeVar("T", bound=Outcome)


def run_to_the_end(
    app: Shigoto,
    worker: Service[T],
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
    over = threading.Event()
    with asyncio.Runner(loop_factory=event_loop()) as runner:
        try:
            code = runner.run(_run(app, worker, watchdog, begin, beside, ended, over))
        finally:
            if not over.is_set():
                cut_off()
    app.close()
    if any(not thread.daemon for thread in set(threading.enumerate()) - others):
        # The interpreter would wait for them.
        leave_now(code)
    return code


def _hurry(watchdog: Watchdog, event: WorkerLeaving) -> None:
    """What still runs here is given back now, and soon runs elsewhere."""
    if event.running:
        watchdog.allow(LAST_MOMENT)


def event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the event loop: uvloop where it is installed."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def leave_now(code: int) -> NoReturn:
    """End the process now; nobody who reads our output can hold it up."""

    def flush() -> None:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()

    exit_after(flush, code)


async def _run(
    app: Shigoto,
    worker: Service[T],
    watchdog: Watchdog,
    begin: Callable[[], None],
    beside: Callable[[], Coroutine[Any, Any, None]],
    ended: Callable[[T], None],
    over: threading.Event,
) -> int:
    try:
        return await _work(app, worker, watchdog, begin, beside, ended)
    finally:
        over.set()


async def _work(
    app: Shigoto,
    worker: Service[T],
    watchdog: Watchdog,
    begin: Callable[[], None],
    beside: Callable[[], Coroutine[Any, Any, None]],
    ended: Callable[[T], None],
) -> int:
    begin()
    other = asyncio.create_task(beside(), name="shigoto-beside")
    try:
        stopped = await worker.run()
        watchdog.code = stopped.exit_code
    finally:
        other.cancel()
        watchdog.allow(FAREWELL)
    ended(stopped)
    if not stopped.running:
        # The event loop has nothing left to do, so it may as well wait here.
        app.flush(FLUSHED_WITHIN)
        app.outward.end()
    if stopped.running or not await _tidy():
        # They would keep the process alive, at work on jobs that are no longer its own.
        leave_now(watchdog.code)
    return watchdog.code


async def _tidy() -> bool:
    """Whether all tasks that are left give in to a cancel, and all threads of `to_thread` are idle."""
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    tasks.add(asyncio.create_task(loop.shutdown_default_executor(), name="shigoto-executor"))
    _, left = await asyncio.wait(tasks, timeout=TIDY)
    return not left
