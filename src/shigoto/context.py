"""The job in hand, as its own handler sees it, and the ways a handler can end a run other than by returning.

A handler asks for it by a first parameter annotated `Context`, or anywhere below by `shigoto.current()`.
Nothing here does any I/O: the handler writes into `Signals` and reads from it, and the worker carries it to
and from the store.
"""

from contextvars import ContextVar
from typing import Any
from uuid import UUID

import msgspec

from shigoto.model.duration import Duration
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.options import duration

MAX_PROGRESS_TEXT = 500


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


class Signals:
    """What a run and its worker tell each other; plain attributes, safe across threads.

    The worker clears `progress_changed` before it reads the progress, so news is sent twice rather than lost.
    """

    __slots__ = ("cancelled", "progress", "progress_changed", "progress_text", "stopping")

    def __init__(self) -> None:
        self.cancelled: bool = False
        self.stopping: bool = False
        self.progress: float | None = None
        self.progress_text: str | None = None
        self.progress_changed: bool = False


class Context:
    """The job in hand, as its handler sees it.

        @app.task
        def resize(ctx: Context, paths: list[str]) -> None:
            for done, path in enumerate(paths):
                ctx.progress(done / len(paths), path)

    It is injected, and not part of the payload: whoever enqueues leaves it out.
    """

    __slots__ = ("_lease", "_signals")

    def __init__(self, lease: Lease, signals: Signals) -> None:
        self._lease = lease
        self._signals = signals

    @property
    def job_id(self) -> UUID:
        """The job's id; the same in every run."""
        return self._lease.id

    @property
    def number(self) -> int:
        """The store's number of the job, for people."""
        return self._lease.number

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._lease.task

    @property
    def queue(self) -> str:
        """The queue the job was taken from."""
        return self._lease.queue

    @property
    def attempt(self) -> int:
        """Which run this is, from 1; snoozed and released runs do not count."""
        return self._lease.attempt

    @property
    def failures(self) -> int:
        """How many runs have failed before this one."""
        return self._lease.failures

    @property
    def tenant(self) -> str:
        """On whose behalf the job runs; empty if nobody's in particular."""
        return self._lease.tenant

    @property
    def key(self) -> str | None:
        """The job's unique key."""
        return self._lease.key

    @property
    def tags(self) -> tuple[str, ...]:
        """The job's tags."""
        tags = self._lease.tags
        return msgspec.json.decode(tags, type=tuple[str, ...]) if tags else ()

    @property
    def meta(self) -> dict[str, Any]:
        """The job's free metadata."""
        meta = self._lease.meta
        return msgspec.json.decode(meta, type=dict[str, Any]) if meta else {}

    @property
    def idempotency_key(self) -> str:
        """What to send to others so that a second run is recognised as the same request."""
        return str(self._lease.id)

    @property
    def fence(self) -> int:
        """A number that rises with every claim: who remembers the highest can refuse a stale run."""
        return self._lease.token

    @property
    def cancelled(self) -> bool:
        """Whether somebody has asked to cancel this job. A handler in a thread has to look."""
        return self._signals.cancelled

    @property
    def stopping(self) -> bool:
        """Whether the worker is about to stop; a run that ends soon is not cut short."""
        return self._signals.stopping

    def progress(self, fraction: float, text: str = "") -> None:
        """Say how far the run is, from 0 to 1. Never blocks; the newest is stored about once a second."""
        if not 0 <= fraction <= 1:
            raise ValueError(
                f"progress takes a fraction from 0 to 1, not {fraction!r}; for percent, divide by 100."
            )
        signals = self._signals
        signals.progress = float(fraction)
        signals.progress_text = str(text)[:MAX_PROGRESS_TEXT]
        signals.progress_changed = True


current_context: ContextVar[Context] = ContextVar("shigoto_context")


def current() -> Context:
    """The context of the job that is running here, for code that is not handed one."""
    try:
        return current_context.get()
    except LookupError:
        raise LookupError(
            "No job is running here: shigoto.current() works in a task run by a worker, and in what it calls."
            " A thread started by the task does not inherit it; pass the context along."
        ) from None


def detached(task: str) -> Context:
    """A context for a plain call of a task's function: there is no job, and progress goes nowhere."""
    lease = Lease(
        number=0,
        token=0,
        id=uuid7(),
        task=task,
        queue="",
        payload="{}",
        attempt=1,
        failures=0,
        snoozes=0,
        max_failures=1,
        priority=0,
        run_at=0,
        claimed_at=0,
    )
    return Context(lease, Signals())
