"""A worker waits for work, and may hang up or lose its token meanwhile: then nothing that was found is lost."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import UUID

from fastapi import Request

from shigoto.model.errors import StoreError
from shigoto.model.job import Lease
from shigoto.model.worker import Ending, Settlement, Want
from shigoto.server.auth import allowed
from shigoto.server.endpoint import gone

if TYPE_CHECKING:
    from shigoto.server.service import Service


async def found(request: Request, service: "Service", worker: UUID, want: Want, wait: float) -> list[Lease]:
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
    engine, fan = service.engine, service.fan
    until = asyncio.get_running_loop().time() + wait
    interest = (want.tasks, want.queues, want.alone)
    again = False
    while True:
        seen = fan.rung
        looking = asyncio.ensure_future(engine.arun(engine.claim(worker, [want])))
        try:
            leases = await asyncio.shield(looking)
        except asyncio.CancelledError:
            # Somebody has hung up meanwhile: what the store has given out goes back, and the next one looks.
            _give_back_later(service, worker, looking)
            fan.passed_on(interest)
            raise
        if leases:
            fan.passed_on(interest)
            return leases
        if not await fan.wait(interest, until, seen=seen, again=again):
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
                number=lease.number,
                token=lease.token,
                queue=lease.queue,
                ending=Ending.RELEASED,
                ran=False,
            )
            for lease in leases
        ]
        with suppress(StoreError):
            await service.engine.arun(service.engine.settle(worker, released))
