"""What allows a job to run again, and what makes a crash believable.

Each run after a job's first needs an event that ended the one before: a recorded error, a release, a snooze, an
operator's retry, or a crash. The store says which of these it was. That somebody crashed or was fenced it may say only
if the ledger has a fault that was done to that process or an ancestor of it: else a healthy worker lost its job.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct, field

from faults.evidence.moves import NEVER, Claim, Story
from faults.evidence.records import Record
from faults.evidence.runs import Faults, Run

SLACK = 0.05  # seconds between a record and a row that tell of the same moment
SETTLED_WITHIN = 1.0  # seconds in which a run that has ended is settled, if nobody is disturbed


class Licences(Struct, kw_only=True):
    """Judges the runs of one job after the other, and counts by what they were licensed."""

    faults: Faults
    workers: Mapping[str, int]  # their processes
    offset: float | None  # of the store's clock from the ledger's, None if they cannot be compared
    reruns: dict[str, int] = field(default_factory=dict)
    recovery: list[float] = field(default_factory=list)

    def judge(self, runs: Sequence[Run], story: Story | None) -> list[str]:
        """Count what licensed each further run, and tell why others must not have been."""
        wrong: list[str] = []
        if story is not None:
            wrong += self._false_crashes(runs, story)
        for before, after in pairwise(runs):
            if story is not None and after.fence < before.fence:
                continue  # its token is looked at elsewhere
            licence, fault = self._licence(before, after, story)
            self.reruns[licence or "none"] = self.reruns.get(licence or "none", 0) + 1
            if not licence:
                wrong.append(
                    f"ran again with token {after.fence}, and nothing allowed it after {before.fence}"
                )
            elif fault is not None and (before.ended is None or before.ended > fault.at):
                self.recovery.append(after.began - fault.at)
        return wrong

    def _licence(self, before: Run, after: Run, story: Story | None) -> tuple[str, Record | None]:
        if story is None:
            return self._by_the_ledger(before, after)
        claim = story.claims.get(before.fence)
        if before.fence == after.fence or claim is None or claim.end is None:
            return "", None
        end = claim.end
        if end.how == "crash":
            fault = self.explanation(claim, before)
            return (fault.deed if fault else "crash"), fault  # one that is not explained counts as such, once
        if end.how == "release":
            return self._release(claim, before)
        if end.how in ("failed", "cancel"):
            return "operator", None  # the moves show that it was retried, else it could not have been claimed
        return (end.how if end.how in ("error", "snooze") else ""), None

    def _release(self, claim: Claim, before: Run) -> tuple[str, Record | None]:
        """Work that was done is not given back, unless the process died, or was told to die, before it could say so."""
        fault = self.explanation(claim, before)
        if fault is not None:
            return "release", fault
        assert claim.end is not None
        gave_back = NEVER if self.offset is None else claim.end.at - self.offset
        finished = before.outcome == "done" and before.ended is not None
        if finished and before.ended is not None and before.ended + SETTLED_WITHIN < gave_back < NEVER:
            return "", None
        return "release", None

    def _by_the_ledger(self, before: Run, after: Run) -> tuple[str, Record | None]:
        """Without an audit: by how the handler ended, or by what was done to its process."""
        if before.outcome == "error" and before.ended is not None and before.ended <= after.began:
            return "error", None
        fault = self.faults.that_explain(before.pid, before.began, after.began)
        if fault is not None:
            return fault.deed, fault
        return ("cancel" if before.outcome == "cancelled" else ""), None

    def _false_crashes(self, runs: Sequence[Run], story: Story) -> list[str]:
        by_fence = {run.fence: run for run in runs}
        return [
            f"token {claim.token} was counted as a crash, and nobody has harmed its worker"
            for claim in story.claims.values()
            if claim.end is not None
            and claim.end.how == "crash"
            and not self._explained(claim, by_fence.get(claim.token))
        ]

    def _explained(self, claim: Claim, run: Run | None) -> bool:
        return self.explanation(claim, run) is not None or (
            run is None and claim.worker not in self.workers and self.faults.any_before(self._until(claim))
        )

    def explanation(self, claim: Claim, run: Run | None) -> Record | None:
        """The fault that was done to the process of this claim while it was held."""
        pid = run.pid if run is not None else self.workers.get(claim.worker)
        if pid is None:
            return None
        since = -NEVER if self.offset is None else claim.at - self.offset - SLACK
        fault = self.faults.that_explain(pid, since, self._until(claim))
        if fault is None and run is not None and claim.worker in self.workers:
            # A run in a child process: what was done to its worker, whose parent the child need not know.
            fault = self.faults.that_explain(self.workers[claim.worker], since, self._until(claim))
        return fault

    def _until(self, claim: Claim) -> float:
        if claim.end is None or self.offset is None:
            return NEVER
        return claim.end.at - self.offset + SLACK
