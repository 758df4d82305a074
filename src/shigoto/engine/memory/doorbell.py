"""One waiter's ear at the engine: an event on its own loop, which any thread may ring."""

import asyncio
from collections.abc import Callable


class MemoryDoorbell:
    """Rings until it is closed; a ring that nobody waits for is kept for the next wait."""

    def __init__(self, closed: "Callable[[MemoryDoorbell], None]") -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._closed = closed

    async def wait(self, timeout: float) -> bool:
        """Return True when work may be ready, False after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True

    def ring(self) -> None:
        """Wake the waiter. Safe from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._rung.set)
        except RuntimeError:
            # The loop is closed, and its waiter with it.
            self.close()

    def close(self) -> None:
        """Stop listening. Closing twice is fine."""
        self._closed(self)
