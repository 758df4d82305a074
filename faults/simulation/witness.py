"""Sees every commit of a world, and knows which changes of a job are lawful: the table of transitions once more,
written from the documentation and not from the code that it judges."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from faults.simulation.store import Seen, Store
from shigoto.model.job import State
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement, Verdict

P, R = State.PENDING, State.PROCESSING
DONE, FAILED, CANCELLED = State.COMPLETED, State.FAILED, State.CANCELLED
COUNTERS = ("failures", "crashes", "releases", "snoozes")
RAISED = {
    Ending.ERRORED: "failures",
    Ending.FAILED: "failures",
    Ending.SNOOZED: "snoozes",
    Ending.RELEASED: "releases",
    Ending.CRASHED: "crashes",
}


class Witness:
    """Keeps what it saw last, and complains about what has changed since without a reason.

    `ended` tells for each lease, by number and token, which operation has ended it.
    """

    def __init__(
        self, store: Store, too_early: Callable[[Millis], bool], complain: Callable[[str], None]
    ) -> None:
        self._store = store
        self._too_early = too_early
        self._complain = complain
        self._accepted: set[tuple[int, int]] = set()
        self.jobs: dict[int, Seen] = {}
        self.ended: dict[tuple[int, int], str] = {}
        self.by_id: dict[UUID, int] = {}
        self.trace: list[tuple[Any, ...]] = []

    @property
    def at_rest(self) -> bool:
        """Whether every job has ended."""
        return all(job.state.terminal for job in self.jobs.values())

    def saw(self, verb: str, asked: tuple[Any, ...], value: Any) -> None:
        """An operation was committed."""
        before, after = self.jobs, self._store.look()
        self.jobs = after
        for number, job in after.items():
            was = before.get(number)
            if was is None:
                self._new(verb, number, job)
            elif was is not job and was != job:
                self._changed(verb, asked, number, was, job)
        if len(after) < len(before) or (len(after) == len(before) and after.keys() != before.keys()):
            for number in before.keys() - after.keys():
                self._complain(f"job {number} vanished by {verb} (I1)")
        if verb == "settle":
            self._judge_verdicts(asked[0], asked[1], value)

    def _new(self, verb: str, number: int, job: Seen) -> None:
        self._note(number, verb, None, job)
        if verb not in ("enqueue_many", "tick") or job.state is not P or job.token:
            self._complain(f"job {number} came into being by {verb}, as {job} (T1)")
        if verb == "tick" and self._too_early(job.run_at):
            self._complain(f"job {number} is there for a tick that is not due yet (I8)")
        if job.id in self.by_id:
            self._complain(f"jobs {number} and {self.by_id[job.id]} have one id (I7)")
        self.by_id[job.id] = number

    def _changed(self, verb: str, asked: tuple[Any, ...], number: int, was: Seen, job: Seen) -> None:
        self._note(number, verb, was, job)
        if was.state is R and job.state is not R:
            forced = verb == "cancel"
            self.ended[number, was.token] = "force" if forced else verb
        problem = self._problem(verb, asked, number, was, job)
        if problem:
            self._complain(f"job {number}: {problem}; {verb} made {_words(was)} {_words(job)}")

    def _note(self, number: int, verb: str, was: Seen | None, job: Seen) -> None:
        counts = (job.failures, job.crashes, job.releases, job.snoozes, job.run_at)
        before = "" if was is None else was.state.value
        self.trace.append((verb, number, before, job.state.value, job.token, job.settled_token, *counts))

    def _problem(self, verb: str, asked: tuple[Any, ...], number: int, was: Seen, job: Seen) -> str:
        """What is wrong with this change, if anything is."""
        if was.state is DONE:
            return "something happened after completed (I3)"
        if job.failures > job.max_failures:
            return "more failures than it may have (I17)"
        if job.token != was.token + (was.state is P and job.state is R):
            return "its token did not rise by one with a claim (I5)"
        if job.settled_token != was.settled_token and not (
            verb == "settle" and job.settled_token == was.token
        ):
            return "a token counts as settled that was not (I4)"
        check = CHECKS.get((was.state, job.state))
        return "there is no such transition" if check is None else check(self, verb, asked, number, was, job)

    def claimed(self, verb: str, asked: tuple[Any, ...], number: int, was: Seen, job: Seen) -> str:
        """What is wrong with a claim, if anything is."""
        if verb != "claim" or job.worker != asked[0]:
            return "claimed by nobody who asked (T2)"
        if not self._store.is_live(asked[0]):
            return "claimed by a worker that is fenced or unknown (T2)"
        if self._too_early(was.run_at):
            return "claimed before it was due (I10)"
        return "claimed from a queue that is paused (T2)" if self._store.paused(was.queue) else ""

    def run_ended(self, verb: str, asked: tuple[Any, ...], number: int, was: Seen, job: Seen) -> str:
        """The same for the end of a run that leads anywhere but to completed."""
        raised = [name for name in COUNTERS if getattr(job, name) != getattr(was, name)]
        if verb == "settle":
            settlement = _settlement(asked[1], number, was.token)
            if settlement is None or asked[0] != was.worker:
                return "settled by somebody who does not hold it (I4)"
            if job.settled_token != was.token:
                return "settled, and nobody would know (I4)"
            counts = RAISED.get(settlement.ending)
            expected = [] if counts is None else [counts]
        elif verb in ("beat", "leave"):
            expected = ["releases"]
            if asked[0] != was.worker:
                return "given back by somebody else (T8)"
        elif verb == "sweep":
            expected = ["crashes"]
            if was.worker is None or self._store.is_live(was.worker):
                return "taken from a worker that is not fenced (T10)"
        elif verb == "cancel" and job.state is CANCELLED:
            expected = []
        else:
            return "its run was ended by none who may"
        return "" if raised == expected else f"counted as {raised}, not as {expected} (I17)"

    def completed(self, verb: str, asked: tuple[Any, ...], number: int, was: Seen, job: Seen) -> str:
        """The same for a run that has completed its job."""
        if verb == "block":
            return ""
        settlement = _settlement(asked[1], number, was.token) if verb == "settle" else None
        if settlement is None or asked[0] != was.worker or settlement.ending is not Ending.COMPLETED:
            return "completed by somebody who does not hold it (I4)"
        return "" if job.settled_token == was.token else "completed, and nobody would know (I4)"

    def _judge_verdicts(
        self, worker: UUID, settlements: Sequence[Settlement], verdicts: list[Verdict]
    ) -> None:
        for settlement, verdict in zip(settlements, verdicts, strict=True):
            lease = settlement.number, settlement.token
            if verdict is Verdict.ACCEPTED:
                if lease in self._accepted or self.ended.get(lease) != "settle":
                    self._complain(f"the end of job {lease[0]}, token {lease[1]} was accepted in vain (I4)")
                self._accepted.add(lease)
            elif (verdict is Verdict.REPEATED) != (lease in self._accepted and self._is_last(*lease)):
                self._complain(
                    f"the end of job {lease[0]}, token {lease[1]} was answered {verdict.name} (I4)"
                )

    def _is_last(self, number: int, token: int) -> bool:
        job = self.jobs.get(number)
        return job is not None and job.settled_token == token


Check = Callable[[Witness, str, tuple[Any, ...], int, Seen, Seen], str]


def _by(*verbs: str) -> Check:
    """Lawful if it was one of these operations."""
    return lambda witness, verb, asked, number, was, job: "" if verb in verbs else "not by this operation"


CHECKS: dict[tuple[State, State], Check] = {
    (P, R): Witness.claimed,
    (P, P): _by("promote"),
    (P, CANCELLED): _by("cancel"),
    (P, FAILED): _by("sweep"),
    (R, R): _by("cancel"),
    (R, P): Witness.run_ended,
    (R, FAILED): Witness.run_ended,
    (R, CANCELLED): Witness.run_ended,
    (R, DONE): Witness.completed,
    (FAILED, P): _by("retry"),
    (CANCELLED, P): _by("retry"),
}


def _settlement(settlements: Sequence[Settlement], number: int, token: int) -> Settlement | None:
    return next((s for s in settlements if (s.number, s.token) == (number, token)), None)


def _words(job: Seen) -> str:
    return f"{job.state.value} (token {job.token}, settled {job.settled_token})"
