"""Whether those who ran a job and ended it held it then: announced, not fenced, in the process that had the token."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from faults.evidence.audit import Announced
from faults.evidence.licences import SLACK
from faults.evidence.moves import Claim, End, Story
from faults.evidence.runs import Faults, Run

COMMITTED_WITHIN = 1.0  # seconds from the moment that a fence is written until everybody can see it
ANSWERED_WITHIN = 10.0  # seconds from a claim until it has an answer, or is given up


class Holders(Struct, frozen=True, kw_only=True):
    """Judges the holders of one job after the other."""

    faults: Faults
    workers: Mapping[str, Announced]
    offset: float | None  # of the store's clock from the ledger's, None if they cannot be compared
    grace: float  # seconds for which a stopped process may go on

    def judge(self, runs: Sequence[Run], story: Story) -> list[str]:
        """What is wrong with them."""
        wrong = [each for claim in story.claims.values() for each in self._wrong_with(claim)]
        for run in runs:
            claim = story.claims.get(run.token)
            if claim is not None:
                wrong += self._outside(run, claim) + self._elsewhere(run, claim)
        return wrong

    def _wrong_with(self, claim: Claim) -> list[str]:
        """A fence comes before whatever its worker does later; what was under way then may still be done."""
        worker = self.workers.get(claim.worker)
        if worker is None:
            return [f"token {claim.token} was given to a worker that nobody has announced"]
        if _is_after_its_fence(worker, claim):
            return [f"token {claim.token} was given to a worker that had been fenced"]
        if claim.end is not None and not claim.end.taken and _is_after_its_fence(worker, claim.end):
            return [f"token {claim.token} was ended by a worker that had been fenced"]
        return []

    def _outside(self, run: Run, claim: Claim) -> list[str]:
        """Whether a run began before its token was given out, or after it was taken."""
        if self.offset is None:
            return []
        given = claim.at - self.offset
        if run.began < given - SLACK:
            return [f"ran with token {run.token} {given - run.began:.3f} s before that was given out"]
        if claim.end is None:
            return []
        ended = claim.end.at - self.offset
        if run.began <= ended + SLACK or self._cannot_know(run, claim, claim.end, given):
            return []
        return [f"ran with token {run.token} {run.began - ended:.3f} s after that was over"]

    def _cannot_know(self, run: Run, claim: Claim, end: End, given: float) -> bool:
        """It was stopped and goes on, or the answer to its claim was under way when somebody used force."""
        lease = self.workers[claim.worker].lease if claim.worker in self.workers else 0.0
        if self.faults.continued(run.pid, run.began, max(self.grace, lease)):
            return True
        return end.taken and end.how == "cancel" and run.began <= given + ANSWERED_WITHIN

    def _elsewhere(self, run: Run, claim: Claim) -> list[str]:
        """Whether a run was in another process than the one that had its token, or one that descends from it."""
        worker = self.workers.get(claim.worker)
        if worker is None or run.parent <= 1 or worker.pid in self.faults.line(run.pid, run.began):
            return []
        return [f"ran with token {run.token} in another process than the one that had it"]


def _is_after_its_fence(worker: Announced, deed: Claim | End) -> bool:
    if worker.fenced is None or deed.sequence <= worker.fenced:
        return False
    return worker.fenced_at is None or deed.since > worker.fenced_at + COMMITTED_WITHIN
