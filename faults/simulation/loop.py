"""The event loop of a world: the processes in it take turns at random, and time passes when none has anything to do.

Every callback belongs to a process, the one in whose context it was asked for. A process that is paused keeps what
becomes due for when it goes on, as one does that got SIGSTOP; in one that was killed nothing happens any more that
anybody else could see. Callbacks of one process run in their order; between processes the seed decides.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MOST_CALLBACKS = 2_000_000  # in one world; one that needs more runs in circles


PROCESS: "ContextVar[Process]" = ContextVar("process")
OUTSIDE = Context()  # of what happens in the world, but in none of its processes


class Process:
    """One process of the world. `alive` until it ends or is killed."""

    def __init__(self, loop: "Loop", name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.was_paused = False
        self.ready: deque[asyncio.Handle] = deque()
        self.context = Context()
        self.context.run(PROCESS.set, self)
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run this in here."""
        return self._loop.create_task(work, name=self.name, context=self.context.copy())

    def pause(self, seconds: float) -> None:
        """Let nothing happen in here for so long."""
        if not self.paused:
            self.paused = self.was_paused = True
            self._loop.leave_out(self)
            self._loop.call_at(self._loop.time() + seconds, self._go_on, context=OUTSIDE)

    async def going_on(self) -> None:
        """Wait until it is not paused, from outside of it."""
        if self.paused:
            woken = self._loop.create_future()
            self._waiters.append(woken)
            await woken

    def _go_on(self) -> None:
        self.paused = False
        for waiter in self._waiters:
            waiter.set_result(None)
        self._waiters.clear()
        self._loop.take_in(self)


class Loop(asyncio.BaseEventLoop):
    """As much of an event loop as a worker needs. It has neither sockets nor threads."""

    _living = _over = False

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Process]] = []
        self._count = 0
        self._outside = Process(self, "world")
        self._turns: list[Process] = []
        self.callbacks = 0
        self.faults: list[str] = []  # what callbacks have raised

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._living

    def is_closed(self) -> bool:
        return self._over

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], **options: Any
    ) -> "asyncio.Task[T]":
        return asyncio.Task(coro, loop=self, **options)  # type: ignore[arg-type,unused-ignore]

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle, context.get(PROCESS, self._outside))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heappush(self._timers, (when, self._count, timer, context.get(PROCESS, self._outside)))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is left where it is, and passed over when its time comes."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None:
            self.faults.append(f"{context.get('message')}: {error!r}")

    def live(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end, and then what is left to its end, too, though nothing of that counts any more."""
        asyncio._set_running_loop(self)
        self._living = True
        try:
            task = OUTSIDE.copy().run(self.create_task, main)
            self._run_until(task.done)
            faults = list(self.faults)
            self._end()
            self.faults = faults
        finally:
            self._living, self._over = False, True
            asyncio._set_running_loop(None)
        return task.result()

    def _end(self) -> None:
        for _ in range(4):
            left = [task for task in asyncio.all_tasks(self) if not task.done()]
            if not left:
                return
            for task in left:
                task.cancel()
            self._run_until(partial(self._are_done, left, self._now + 100))

    def _are_done(self, tasks: "list[asyncio.Task[Any]]", end: float) -> bool:
        return self._now > end or all(task.done() for task in tasks)

    def _run_until(self, true: Callable[[], bool]) -> None:
        turns, random = self._turns, self._random.random
        while not true():
            if not turns and not self._advance():
                raise RuntimeError("The world is stuck: nobody waits for anything that has a time.")
            while turns:
                at = int(random() * len(turns)) if len(turns) > 1 else 0
                process = turns[at]
                handle = process.ready.popleft()
                if not process.ready:
                    turns.pop(at)
                if not handle.cancelled():
                    self.callbacks += 1
                    handle._run()
                    if self.callbacks > MOST_CALLBACKS:
                        raise RuntimeError(f"The world runs in circles, at {self._now:g} s.")

    def _advance(self) -> bool:
        """Move on to when the next timer is due; False if there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if not timers:
            return False
        now = self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= now:
            self._enqueue(*heappop(timers)[2:])
        return True

    def _enqueue(self, handle: asyncio.Handle, process: Process) -> None:
        process.ready.append(handle)
        if len(process.ready) == 1 and not process.paused:
            self._turns.append(process)

    def leave_out(self, process: Process) -> None:
        """It is paused."""
        if process in self._turns:
            self._turns.remove(process)

    def take_in(self, process: Process) -> None:
        """It goes on."""
        if process.ready and process not in self._turns:
            self._turns.append(process)
