"""Waiting for work: one doorbell for all who wait, and what becomes of jobs whose worker has hung up.

Those who wait for the same work stand in line, and a ring wakes only the first. Whoever finds something says so, and
wakes the next; whoever finds nothing ends it. A thousand who wait for the same cost one look at the store per ring.

    ring, or a second has passed ──► the first of every line ──looks──► found ──► the next in line ──► …
                                                                └──► nothing: waits again, as the first

A worker may hang up or lose its token while it waits: then nothing that was found for it is lost.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from secrets import randbits
from typing import TYPE_CHECKING, Any
from uuid import UUID

from fastapi import Request

from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError
from shigoto.model.job import Lease
from shigoto.model.worker import Ending, Settlement, Want
from shigoto.server.auth import allowed
from shigoto.server.routing import gone

if TYPE_CHECKING:
    from shigoto.server.service import Service

logger = logging.getLogger("shigoto.server")

FLOOR = 1.0  # seconds after which the first of every line looks, rung or not
BREATH = 0.003  # seconds in which rings are answered together
MANY_LINES, LONG_BREATH = 50, 0.050  # each line costs a look
PAUSE = 1.0  # seconds after trouble with the doorbell
SAME_COUNT = 1_000_000


class WorkWaiters:
    """Wakes those who wait for work. For one event loop; `rung` counts the rings, from some number on."""

    def __init__(self, opening: Callable[[], Engine], *, first: int | None = None) -> None:
        self._opening = opening
        self._closed = asyncio.Event()
        self._lines: dict[Hashable, deque[asyncio.Future[bool]]] = {}
        self._listeners: set[asyncio.Future[bool]] = set()
        # Of two servers no two count alike: who has heard of the other's number must not take it for ours.
        self.rung = randbits(48) if first is None else first

    async def run(self) -> None:
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            while not closing.done():
                try:
                    await self._listen(closing)
                except StoreError as error:
                    logger.warning("The doorbell of the store cannot be heard: %s", error)
                    self._wake_the_first()
                    await asyncio.wait([closing], timeout=PAUSE)
        finally:
            closing.cancel()

    async def wait(
        self, interest: Hashable, until: float, *, seen: int | None = None, again: bool = False
    ) -> bool:
        """Wait until there may be work, or until that moment of the loop's clock; False if none will come any more.

        Whoever has looked already says what `rung` was before he did: then nothing that came meanwhile is missed. Who
        was woken `again` and has found nothing was the first in line, and is so still.
        """
        if self._closed.is_set():
            return False
        if seen is not None and seen != self.rung:
            return True
        line = self._lines.setdefault(interest, deque())
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        (line.appendleft if again else line.append)(future)
        try:
            return await self._until(future, until)
        except asyncio.CancelledError:
            if future.done():
                self.passed_on(interest)  # woken, and gone before it could look
            raise
        finally:
            with suppress(ValueError):
                line.remove(future)
            if not line and self._lines.get(interest) is line:
                del self._lines[interest]

    async def rings(self, seen: int, until: float) -> None:
        """Wait for a ring after the one that was counted as `seen`, if that was counted here; else for the next."""
        if self._closed.is_set() or 0 < self.rung - seen < SAME_COUNT:
            return
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._listeners.add(future)
        try:
            await self._until(future, until)
        finally:
            self._listeners.discard(future)

    def passed_on(self, interest: Hashable) -> None:
        """Whoever was woken has found something, or did not look: there may be more, for the next."""
        line = self._lines.get(interest)
        while line:
            future = line.popleft()
            if not future.done():
                future.set_result(True)
                return

    def close(self) -> None:
        self._closed.set()
        for future in [*self._listeners, *(each for line in self._lines.values() for each in line)]:
            if not future.done():
                future.set_result(False)

    async def _until(self, future: "asyncio.Future[bool]", until: float) -> bool:
        left = until - asyncio.get_running_loop().time()
        if left <= 0:
            return False
        await asyncio.wait([future], timeout=left)
        return future.done() and future.result()

    async def _listen(self, closing: "asyncio.Future[Any]") -> None:
        doorbell = self._opening().listen()
        try:
            while not closing.done():
                waiting = asyncio.ensure_future(doorbell.wait(FLOOR))
                try:
                    await asyncio.wait([waiting, closing], return_when=asyncio.FIRST_COMPLETED)
                    rang = waiting.done() and waiting.result()
                finally:
                    waiting.cancel()
                if rang:
                    self._ring()
                self._wake_the_first()
                if rang:
                    await asyncio.sleep(LONG_BREATH if len(self._lines) > MANY_LINES else BREATH)
        finally:
            doorbell.close()

    def _ring(self) -> None:
        self.rung += 1
        listeners, self._listeners = self._listeners, set()
        for future in listeners:
            if not future.done():
                future.set_result(True)

    def _wake_the_first(self) -> None:
        for interest in list(self._lines):
            self.passed_on(interest)


async def leases_for(
    request: Request, service: "Service", worker: UUID, want: Want, wait: float
) -> list[Lease]:
    """Jobs for the worker, after so many seconds at most; none, if there are none, or the client has gone. Raises
    TokenInvalid if its token was revoked meanwhile."""
    seeking = asyncio.create_task(_sought(service, worker, want, wait), name="shigoto-seeks")
    told = False
    try:
        if wait and await gone(request, seeking):
            return []
        leases = await seeking
        if wait:
            await allowed(request, "work")
        told = True
        return leases
    finally:
        if not told:  # also if the request is cut off in the moment in which something was found
            seeking.cancel()
            _give_back_later(service, worker, seeking)


async def _sought(service: "Service", worker: UUID, want: Want, wait: float) -> list[Lease]:
    """Jobs for the worker; none if there are none in time."""
    engine, waiters = service.engine, service.waiters
    until = asyncio.get_running_loop().time() + wait
    interest = (want.tasks, want.queues, want.alone)
    again = False
    while True:
        seen = waiters.rung
        looking = asyncio.ensure_future(engine.arun(engine.claim(worker, [want])))
        try:
            leases = await asyncio.shield(looking)
        except asyncio.CancelledError:
            # Somebody has hung up meanwhile: what the store has given out goes back, and the next one looks.
            _give_back_later(service, worker, looking)
            waiters.passed_on(interest)
            raise
        if leases:
            waiters.passed_on(interest)
            return leases
        if not await waiters.wait(interest, until, seen=seen, again=again):
            return []
        again = True


def _give_back_later(service: "Service", worker: UUID, looking: "asyncio.Future[list[Lease]]") -> None:
    async def release() -> None:
        await asyncio.wait((looking,))
        if not looking.cancelled() and looking.exception() is None:
            await _give_back(service, worker, looking.result())

    service.see_to(release())


async def _give_back(service: "Service", worker: UUID, leases: Sequence[Lease]) -> None:
    """As if they had never been claimed. If that fails, the next beat of the worker does it, if that says what it has
    `held`."""
    if leases:
        released = [
            Settlement(
                number=lease.number, token=lease.token, queue=lease.queue, ending=Ending.RELEASED, ran=False
            )
            for lease in leases
        ]
        with suppress(StoreError):
            await service.engine.arun(service.engine.settle(worker, released))
