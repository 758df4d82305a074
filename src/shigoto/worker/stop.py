"""The request to stop, and its result; `shutdown.py` has what lies between."""

from typing import Literal

from msgspec import Struct

from shigoto.worker.wakeup import Wakeup

Reason = Literal["stopped", "drained", "fenced"]


class Stopped(Struct, frozen=True, kw_only=True):
    """How a worker ended.

    `unreleased` jobs could not be given back, and come back when its lease ends; `running` handlers could not
    be stopped, and are still at it.
    """

    reason: Reason
    unreleased: int = 0
    running: int = 0


class StopSwitch:
    """Thrown once, it asks a worker to stop; thrown twice, to hurry. For the event loop only.

    `changed` is for the one who waits: it rings when the switch is thrown, and when there is less left to
    wait for.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self.hurried = False
        self.changed = Wakeup()

    def throw(self, reason: Reason = "stopped") -> None:
        """Stop; asked again, hurry."""
        self.hurried = self.reason is not None
        self.reason = self.reason or reason
        self.changed.ring()

    def fence(self) -> None:
        """Stop at once: the right to settle is lost."""
        self.reason = "fenced"
        self.hurried = True
        self.changed.ring()

    async def thrown(self) -> Reason:
        """Wait for it."""
        while self.reason is None:
            await self.changed.wait(None)
        return self.reason
