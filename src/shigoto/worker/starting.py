"""The start of a worker: its options, its store, the app's lifespan, and its memory."""

import asyncio
import gc
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from random import Random
from typing import Any, Protocol, TypeVar, runtime_checkable

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import DeclarationError, NotReady, OptionInvalid, StoreUnavailable
from shigoto.model.ids import uuid7
from shigoto.model.notice import QUEUE
from shigoto.model.text import plain_number, shown
from shigoto.model.worker import Announcement
from shigoto.options import check_name, several
from shigoto.schedule.declare import Declared, declare_op
from shigoto.worker.endings import describe
from shigoto.worker.process import RunningJobs

MOST_SLOTS = 10_000
MOST_JOBS = 10**12
DAY = 86_400.0
T = TypeVar("T")
ANNOUNCED_WITHIN = 5.0  # seconds, if the store cannot be reached at first
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds
logger = logging.getLogger("shigoto.worker")
CANCEL_WITHIN = 0.2  # seconds for one that is cancelled, at the end of all patience
FREED_BLOCK = 16_000_000  # bytes: a claim, and the one that is worked off meanwhile
NEW_OBJECTS = 20_000


def checked_queues(queues: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of queues, each once; None for all."""
    if queues is None:
        return None
    names = tuple(dict.fromkeys(check_name(queue, "A queue") for queue in several("queues", queues)))
    if not names:
        raise OptionInvalid(f"queues takes a list of names, or None for all queues, not {shown(queues)}.")
    return names


def with_notices(queues: tuple[str, ...] | None, *, wanted: bool) -> tuple[str, ...] | None:
    """Return the queues that a worker serves: if it can run notices, also their queue."""
    return queues if queues is None or not wanted or QUEUE in queues else (*queues, QUEUE)


def checked_seconds(option: str, value: object, shortest: float, longest: float = DAY) -> float:
    seconds = plain_number(value)
    if seconds is None or not shortest <= seconds <= longest:
        raise OptionInvalid(
            f"{option} must be a number of seconds from {shortest:g} to {longest:g}, not {shown(value)}."
        )
    return float(seconds)


def checked_running_jobs(running_jobs: RunningJobs | None, needed: int) -> RunningJobs:
    """Return the memory for running jobs, if it has so many places; private memory, if none is given."""
    if running_jobs is None:
        return RunningJobs.private(needed)
    if running_jobs.size < needed:
        raise OptionInvalid(f"running_jobs has {running_jobs.size} places, and this worker needs {needed}.")
    return running_jobs


def cores() -> int:
    return os.cpu_count() or 1


def usual_threads() -> int:
    return min(32, 4 * cores())


def places(concurrency: int, threads: int | None, children: int | None) -> int:
    """Return how many jobs can run at once with these options, valid or not, child processes included."""
    wanted = (
        concurrency,
        usual_threads() if threads is None else threads,
        cores() if children is None else children,
    )
    return sum(max(0, min(count, MOST_SLOTS)) for count in wanted)


@runtime_checkable
class Prepared(Protocol):
    """An engine whose store others make and look after, so that it may not be what a worker needs."""

    def expect_ready(self, *, any_role: bool) -> Op[None]:
        """Raise StoreError if no worker may begin here, or not as this user; create and change nothing."""
        ...


async def expect_ready(engine: Engine, *, any_role: bool, kind: str = "worker") -> None:
    """Raise SchemaMissing, SchemaTooNew or StoreRefused if a worker must not begin, NotReady if it cannot yet.

    A store that a worker makes by itself is always ready.
    """
    if not isinstance(engine, Prepared):
        return
    try:
        await engine.arun(engine.expect_ready(any_role=any_role))
    except StoreUnavailable as error:
        raise NotReady(f"The {kind} cannot begin. {error}") from error


def expect_ready_now(engine: Engine, *, any_role: bool, kind: str) -> None:
    """Do the same in the caller's thread; a store that its users make is made now."""
    try:
        if isinstance(engine, Prepared):
            engine.run(engine.expect_ready(any_role=any_role))
        engine.run(engine.due((), 0))
    except StoreUnavailable as error:
        raise NotReady(f"The {kind} cannot begin. {error}") from error


def probe_op(engine: Engine) -> Op[Any]:
    """Return an op that any store of this release answers; it changes nothing."""
    return engine.expect_ready(any_role=True) if isinstance(engine, Prepared) else engine.due((), 0)


async def announce(
    engine: Engine, announcement: Announcement, clock: Callable[[], float], random: Random
) -> float:
    """Tell the store of a worker, and return when, on `clock`: its lease began no earlier. Raises NotReady."""
    sent_at = 0.0

    def op() -> Op[Any]:
        nonlocal sent_at
        sent_at = clock()
        return engine.announce(announcement)

    await _patiently(engine, op, ("worker", announcement.name), "announce itself", random)
    return sent_at


async def declare(
    engine: Engine, declared: Mapping[str, Declared], who: tuple[str, str], random: Random
) -> list[str]:
    """Store the schedules that the code declares, and return the names of those that are new or have changed.

    Raises NotReady, and ScheduleTaken if a schedule that the code does not declare has one of their names.
    """
    declaring = partial(declare_op, engine, declared, uuid7, logger.warning)
    return await _patiently(engine, declaring, who, "declare its schedules", random)


async def want_notices(engine: Engine, who: tuple[str, str], random: Random) -> None:
    """Let every process that uses the store write notices from now on. Raises NotReady."""
    if engine.capabilities.repairs:
        await _patiently(engine, lambda: engine.switch_notices(True), who, "ask for notices", random)
        return
    logger.warning(
        "%s %s has a server for its store, and leaves it to that to ask for notices: it does if it was started with"
        " an app that has rules, `shigoto --app … server`",
        who[0].capitalize(),
        who[1],
    )


async def _patiently(
    engine: Engine, op: Callable[[], Op[T]], who: tuple[str, str], wanted: str, random: Random
) -> T:
    """Ask the store; if it cannot be reached, again for 5 s, then raise NotReady. `who` is of a kind and has a name."""
    kind, name = who
    time = asyncio.get_running_loop().time
    give_up_at, pause = time() + ANNOUNCED_WITHIN, FIRST_PAUSE
    while True:
        try:
            return await engine.arun(op())
        except StoreUnavailable as error:
            if time() + pause > give_up_at:
                raise NotReady(f"The {kind} cannot begin. {error}") from error
            logger.warning("%s %s cannot %s, and tries again: %s", kind.capitalize(), name, wanted, error)
        await asyncio.sleep(pause * random.uniform(0.5, 1))
        pause = min(LONGEST_PAUSE, 2 * pause)


class Lifespan:
    """The app's lifespan, entered once, exited once. `broken` is called if it ends by itself in between.

    What a lifespan opens must be closed in the same task: task groups and time-outs insist on it. A worker starts in
    the task of whoever runs it and may end in another, so neither of them holds it, but a task of its own.
    """

    def __init__(
        self, entering: Callable[[], AbstractAsyncContextManager[Any]], broken: Callable[[], None]
    ) -> None:
        self._entering = entering
        self._broken = broken
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def enter(self) -> Any:
        """Enter, and return the state. Raises DeclarationError."""
        entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = self._task = asyncio.create_task(self._hold(entered), name="shigoto-lifespan")
        try:
            await asyncio.wait([task, entered], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.exit(CANCEL_WITHIN)
            raise
        if not entered.done():
            self._task = None
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            why = "it ended without a yield." if error is None else describe(error)[0]
            raise DeclarationError(f"The app's lifespan failed at the start: {why}") from error
        task.add_done_callback(self._ended)
        return entered.result()

    async def exit(self, patience: float) -> None:
        """Leave, within `patience` seconds. What it raises is logged. Exiting twice is fine."""
        task, self._task = self._task, None
        if task is None:
            return
        self._leaving.set()
        await asyncio.wait([task], timeout=patience)
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=CANCEL_WITHIN)
            logger.error("The app's lifespan did not end within %.3g s and was cut short", patience)

    async def _hold(self, entered: "asyncio.Future[Any]") -> None:
        async with self._entering() as state:
            if not entered.done():
                entered.set_result(state)
            await self._leaving.wait()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("The app's lifespan has failed; the worker stops", exc_info=error)
        if not self._leaving.is_set():
            # One of its own tasks has failed, perhaps, and has taken the rest with it.
            self._broken()


def keep_freed_memory() -> None:
    """Teach the C library to keep what is freed.

    Payloads come and go by the megabyte. The C library of most Linux systems hands such amounts back to the system at
    once, and to get them again costs a page fault for every 4 KiB: a tenth of the time of a job with 10 KB. It learns
    from what is freed how much it may keep (mallopt(3): the dynamic mmap threshold): twice the largest block that it
    has seen, for each thread. So one block, freed before it was ever touched, is enough. Elsewhere this does nothing.
    """
    bytes(FREED_BLOCK)


def collect_rarely() -> None:
    """Look for garbage less often, in a process of our own, when the app is loaded.

    An app that has chosen a larger number, or none at all, keeps that.

    Garbage is looked for after so many new objects (Python's default: 700 or 2000). Thousands of leases are alive at
    any time, and each look meets them all for nothing: with fewer looks a drain takes 4 % less. What the app has loaded
    before its first job is not looked at again.
    """
    gc.freeze()
    objects, *others = gc.get_threshold()
    if 0 < objects < NEW_OBJECTS:
        gc.set_threshold(NEW_OBJECTS, *others)
