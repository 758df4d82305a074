"""Waiting for something or for a while, whichever comes first."""

import asyncio


class Wakeup:
    """A bell for one waiter on one event loop. A ring while nobody waits is kept; many count as one."""

    __slots__ = ("_event",)

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
