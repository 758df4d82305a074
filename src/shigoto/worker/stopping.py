"""Requests to stop, and the base class of everything that runs until it is stopped.

A worker stops in phases, which `parts.py` has.
"""

import asyncio
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Generic, Literal, Self, TypeVar

from msgspec import Struct

# Seconds for what must be tried at the end, such as giving back jobs, however short the time-out.
LEAST_PATIENCE = 1.0

Reason = Literal["stopped", "drained", "recycled", "fenced"]
T_co = TypeVar("T_co", covariant=True)


class Stopped(Struct, frozen=True, kw_only=True):
    """The end of a worker: it was stopped, had nothing left to do, had run as many jobs as it should, or was fenced.

    `unreleased` jobs could not be given back, and come back when its lease ends; `running` handlers could not
    be stopped, and still run.
    """

    reason: Reason
    unreleased: int = 0
    running: int = 0

    @property
    def exit_code(self) -> int:
        """Its process exits with 1 if jobs could not be given back or were taken away."""
        return 1 if self.unreleased or self.reason == "fenced" else 0


class StopSwitch:
    """The request to stop a worker (thrown once) and to hurry (thrown twice). For the event loop only.

    A worker may also stop by itself, because it is done; then `asked` is False, and a first request is no hurry.
    `changed` rings when the switch is thrown, and when there is less left to wait for.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self.hurried = False
        self.asked = False
        self.changed = Wakeup()

    def throw(self, reason: Reason = "stopped") -> None:
        """Ask to stop; the second time, to hurry."""
        if reason == "stopped":
            self.hurried = self.hurried or self.asked
            self.asked = True
        self.reason = self.reason or reason
        self.changed.ring()

    def hurry(self) -> None:
        self.asked = True
        self.throw()

    def fence(self) -> None:
        """Stop now: the right to settle is lost."""
        self.reason = "fenced"
        self.hurried = True
        self.changed.ring()

    async def thrown(self) -> Reason:
        while self.reason is None:
            await self.changed.wait(None)
        return self.reason


class Runnable(ABC, Generic[T_co]):
    """Made once, run once. `_start` does what may fail, `_serve` lasts until the switch is thrown."""

    kind: str  # what it is called, for people

    def __init__(self, name: str) -> None:
        self.name = name
        self._switch = StopSwitch()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T_co] | None = None

    @property
    @abstractmethod
    def stop_timeout(self) -> float:
        """The seconds that a stop may take, a trifle more if the store does not answer."""

    @property
    def stopping(self) -> bool:
        """True if it was asked to stop, or stops by itself."""
        return self._switch.reason is not None

    @abstractmethod
    async def _start(self) -> None: ...

    @abstractmethod
    async def _serve(self) -> T_co: ...

    async def run(self) -> T_co:
        """Run until it is stopped."""
        await self._start()
        return await self._serve()

    def stop(self) -> None:
        """Ask it to stop, from any thread or signal handler; ask twice to make it hurry.

        One that has not begun will not begin. Stopping one that has stopped is fine.
        """
        self._throw("stopped")

    async def wait(self) -> T_co:
        """Wait for the end of what was entered with `async with`; cancelling this does not end it."""
        if self._task is None:
            raise RuntimeError(f"Only a {self.kind} that was entered with `async with` can be waited for.")
        return await asyncio.shield(self._task)

    async def __aenter__(self) -> Self:
        await self._start()
        self._task = asyncio.create_task(self._serve(), name=f"shigoto-{self.kind}-{self.name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._switch.reason is None:
            self._switch.throw()
        try:
            await self.wait()
        except asyncio.CancelledError:
            # The block is cancelled, not what runs beside it: that still ends in good order, but in a hurry.
            if self._task is not None and not self._task.done():
                self._switch.hurry()
                await asyncio.wait([self._task])
            raise

    def _throw(self, reason: Reason) -> None:
        if self._loop is None:
            self._switch.throw(reason)
        else:
            # A closed loop has nothing left to stop.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._switch.throw, reason)

    def _take_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None:
            raise RuntimeError(
                f"{self.kind.capitalize()} {self.name} has run already; make a new one, with a new id."
            )
        self._loop = asyncio.get_running_loop()
        return self._loop

    async def _unless_stopped(self, task: "asyncio.Task[Any]") -> bool:
        """Wait for the task; return False if a stop comes first, and then cancel the task."""
        switch = self._switch
        task.add_done_callback(lambda _: switch.changed.ring())
        try:
            while not (task.done() or switch.reason):
                await switch.changed.wait(None)
            return task.done()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=LEAST_PATIENCE)


class Wakeup:
    """A doorbell for one waiter on one event loop. A ring while nobody waits is kept; many count as one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake the waiter, now or as soon as it waits."""
        self._event.set()

    async def wait(self, timeout: float | None) -> bool:
        """Return True after a ring, False after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        finally:
            self._event.clear()
        return True
