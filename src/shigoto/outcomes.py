"""The ways a handler can end a run other than by returning: it raises one of these.

What each means for the job is decided by `worker/endings.py`.
"""

from shigoto.model.time import Duration
from shigoto.options import duration


class Outcome(Exception):
    """A handler's choice of how this run ends. Not an error: let it pass through your `except` clauses."""


class RetryLater(Outcome):
    """Count this run as failed and try again after `delay`, while the job has retries left.

    Made for a server's `Retry-After`: the delay replaces that of the retry policy.
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        super().__init__(delay, reason)
        self.delay = duration(delay, "The delay of RetryLater")
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or f"the handler asked for a retry in {self.delay / 1000:g} s"


class Snooze(Outcome):
    """Run again after `delay`, as if this run had not happened: it counts as neither failure nor attempt."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay = duration(delay, "The delay of Snooze")

    def __str__(self) -> str:
        return f"the handler snoozed for {self.delay / 1000:g} s"


class Cancel(Outcome):
    """End the job as cancelled."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler cancelled its job"


class Fail(Outcome):
    """End the job as failed, without a retry."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "the handler failed its job"
