"""The request to stop, and its result; `shutdown.py` has what lies between."""

from typing import Literal

from msgspec import Struct

from shigoto.worker.wakeup import Wakeup

LEAST_PATIENCE = (
    1.0  # seconds for what must be tried at the end, such as giving back jobs, however short the time-out
)

Reason = Literal["stopped", "drained", "recycled", "fenced"]


class Stopped(Struct, frozen=True, kw_only=True):
    """How a worker ended: it was stopped, had nothing left to do, had run as many jobs as it should, or was fenced.

    `unreleased` jobs could not be given back, and come back when its lease ends; `running` handlers could not
    be stopped, and are still at it.
    """

    reason: Reason
    unreleased: int = 0
    running: int = 0

    @property
    def exit_code(self) -> int:
        """Of a process that existed for it: 1 if jobs could not be given back or were taken away."""
        return 1 if self.unreleased or self.reason == "fenced" else 0


class StopSwitch:
    """Thrown once, it asks a worker to stop; thrown twice, to hurry. For the event loop only.

    A worker that stops by itself, because it is done, is in a hurry only if somebody asks twice; `asked` says that
    somebody has. `changed` is for
    the one who waits: it rings when the switch is thrown, and when there is less left to wait for.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self.hurried = False
        self.asked = False
        self.changed = Wakeup()

    def throw(self, reason: Reason = "stopped") -> None:
        """Stop; asked again, hurry."""
        if reason == "stopped":
            self.hurried = self.hurried or self.asked
            self.asked = True
        self.reason = self.reason or reason
        self.changed.ring()

    def hurry(self) -> None:
        """Stop, and hurry."""
        self.asked = True
        self.throw()

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
