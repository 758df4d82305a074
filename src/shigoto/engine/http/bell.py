"""The doorbell of a server: one long request, kept under way from one wait to the next."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from shigoto.model.errors import ShigotoError

WAIT = 25  # seconds, after which the server answers anyhow
GRACE = 10.0  # seconds more until we believe that it will not
BREATH = 0.020  # seconds after a ring: a busy store rings all the time, and each ring is a request
PAUSE = 1.0  # seconds after an error; whoever waits looks by himself every now and then
DOORBELL = "/api/v1/doorbell"

Get = Callable[[str, float], Coroutine[Any, Any, bytes]]


class Rung(Struct, frozen=True):
    """How often the bell has rung, from some number on."""

    rung: int


class Bell:
    """One waiter's ear. It asks from the moment it is made, so that it misses nothing before the first wait."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self._heard = asyncio.Event()
        self._listening = asyncio.get_running_loop().create_task(self._listen(), name="shigoto-http-bell")

    async def wait(self, timeout: float) -> bool:
        """Return True when work may be ready, False after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._heard.wait()
        heard = self._heard.is_set()
        self._heard.clear()
        return heard

    def close(self) -> None:
        """Stop listening."""
        with suppress(RuntimeError):  # its loop is gone, and with it the task
            self._listening.cancel()

    async def _listen(self) -> None:
        seen: int | None = None
        while True:
            query = f"?wait={WAIT}" if seen is None else f"?wait={WAIT}&seen={seen}"
            try:
                rung = msgspec.json.decode(await self._get(DOORBELL + query, WAIT + GRACE), type=Rung).rung
            except (ShigotoError, msgspec.DecodeError):
                await asyncio.sleep(PAUSE)
                continue
            if rung != seen:
                # The first time, too: something may have happened before the server began to count for us.
                seen = rung
                self._heard.set()
                await asyncio.sleep(BREATH)
