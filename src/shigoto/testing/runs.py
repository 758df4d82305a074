"""Runs of a test, and how each of them ended."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from shigoto.context import Cancel, RetryLater, Snooze
from shigoto.model.job import Job, State
from shigoto.model.worker import Ending, Settlement, Verdict

Outcome = Literal["completed", "retried", "failed", "cancelled", "snoozed", "released", "lost"]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one job: the job as it was afterwards, and what its handler raised, if it did.

    outcome   completed; retried: it failed and runs again later; failed: for good; cancelled; snoozed; released: given
              back, counts as nothing; lost: somebody had taken the job away, so this run has changed nothing
    """

    job: Job
    outcome: Outcome
    error: BaseException | None = None


class Ran:
    """The runs of one call, in order: `len(ran.completed)`, `[run.error for run in ran]`, `if ran: …`."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self._runs = tuple(runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        counts = Counter(run.outcome for run in self._runs)
        return f"<Ran {', '.join(f'{count} {outcome}' for outcome, count in counts.items()) or 'nothing'}>"

    @property
    def completed(self) -> list[Job]:
        """The jobs that have done what they should."""
        return self._of("completed")

    @property
    def retried(self) -> list[Job]:
        """The jobs whose run failed, and which run again later."""
        return self._of("retried")

    @property
    def failed(self) -> list[Job]:
        """The jobs that have failed for good."""
        return self._of("failed")

    @property
    def cancelled(self) -> list[Job]:
        """The jobs that were cancelled while they ran, or by themselves."""
        return self._of("cancelled")

    @property
    def snoozed(self) -> list[Job]:
        """The jobs that have put themselves off."""
        return self._of("snoozed")

    def raise_errors(self) -> None:
        """Raise what the first handler that failed has raised, with its own traceback; otherwise do nothing.

        `RetryLater`, `Snooze` and `Cancel` are requests, not errors.
        """
        for run in self._runs:
            if (error := surprising(run)) is not None:
                raise error

    def _of(self, outcome: Outcome) -> list[Job]:
        return [run.job for run in self._runs if run.outcome == outcome]


def surprising(run: Run) -> BaseException | None:
    """What the handler has raised, unless it is a request."""
    return None if isinstance(run.error, RetryLater | Snooze | Cancel) else run.error


def outcome_of(settlement: Settlement, verdict: Verdict, job: Job) -> Outcome:
    """How a run ended, by what its worker said and what the store made of it."""
    if verdict is Verdict.LOST:
        return "lost"
    match job.state:
        case State.COMPLETED:
            return "completed"
        case State.FAILED:
            return "failed"
        case State.CANCELLED:
            return "cancelled"
        case _:
            pass
    if settlement.ending is Ending.SNOOZED:
        return "snoozed"
    return "released" if settlement.ending is Ending.RELEASED else "retried"
