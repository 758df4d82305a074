"""What allows a job to run again, and what makes a crash or a release believable.

Each run after a job's first needs an event that ended the one before: a recorded error, a release, a snooze, an
operator's retry, or a crash. The store says which of these it was, and the ledger must bear it out:

    error, snooze      the run ended in an error
    crash              a fault was done to its process, or to an ancestor of it, that can have had this effect; a
                       process dies once, so no death explains two crashes of a job
    release            a run that has begun is given back only if its process was asked to stop or was harmed, or if the
                       store did not take its transaction; one that had ended well, only if it was harmed or hurried
    failed, cancelled  an operator has retried it
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct, field

from faults.evidence.audit import Announced
from faults.evidence.moves import NEVER, Claim, Story
from faults.evidence.records import Record
from faults.evidence.runs import Faults, Run, ends

SLACK = 0.05  # seconds between a record and a row that tell of the same moment
LEASE = 30.0  # seconds, of a worker that nobody knows
ASKING = 5.0  # seconds from the record of a retry until it is done: it may have to wait for the store
ILL = ("error", "snooze")  # how a claim ends whose run has not ended well, and is to run again


class Licences(Struct, kw_only=True):
    """Judges the runs of one job after the other, and counts by what they were licensed."""

    faults: Faults
    workers: Mapping[str, Announced]
    offset: float | None  # of the store's clock from the ledger's, None if they cannot be compared
    retries: Mapping[str, Sequence[float]]  # when operators have retried which job
    unruly: Collection[str]  # jobs whose handlers may be believed less than the store
    reruns: dict[str, int] = field(default_factory=dict)
    recovery: list[float] = field(default_factory=list)
    freed: list[float] = field(default_factory=list)

    def judge(self, runs: Sequence[Run], story: Story | None) -> list[str]:
        """Count what licensed each further run, and tell why others must not have been."""
        wrong: list[str] = []
        if story is not None:
            wrong += self._false_crashes(runs, story) + self._false_releases(runs, story)
        used: set[float] = set()
        for before, after in pairwise(runs):
            if after.token < before.token:
                continue  # it is looked at elsewhere
            licence, fault = self._licence(before, after, story, used)
            self.reruns[licence or "none"] = self.reruns.get(licence or "none", 0) + 1
            if not licence:
                wrong.append(
                    f"ran again with token {after.token}, and nothing allowed it after {before.token}"
                )
            elif fault is not None and (before.ended is None or before.ended > fault.at):
                self.recovery.append(after.began - fault.at)
                if story is not None and self.offset is not None:
                    self.freed.append(self._until(story.claims[before.token]) - SLACK - fault.at)
        return wrong

    def _licence(
        self, before: Run, after: Run, story: Story | None, used: set[float]
    ) -> tuple[str, Record | None]:
        """By what, and after which fault; a crash or release that is not to be believed is flagged once, elsewhere."""
        claim = None if story is None else story.claims.get(before.token)
        if before.token == after.token or claim is None or claim.end is None:
            return "", None
        how = claim.end.how
        if how == "crash":
            fault = self.explanation(claim, before)
            return (fault.deed if fault else "crash"), fault
        if how == "release":
            return how, self.explanation(claim, before)
        if how in ("failed", "cancel"):
            return ("operator" if self._retried(before, after, used) else ""), None
        believed = before.outcome == "error" or before.job in self.unruly
        return (how if how in ILL and believed else ""), None

    def _retried(self, before: Run, after: Run, used: set[float]) -> bool:
        """Whether an operator has retried it between the two runs.

        That is written down before it is tried, and a quick run may begin and fail in between: then it counts unless
        it was `used`, for the run that it has met.
        """
        asked = self.retries.get(before.job, ())
        between = [at for at in asked if before.began <= at <= after.began]
        under_way = [at for at in asked if 0 < before.began - at < ASKING and at not in used]
        found = between[:1] or under_way[-1:]
        used.update(found)
        return bool(found)

    def _false_crashes(self, runs: Sequence[Run], story: Story) -> list[str]:
        by_token = {run.token: run for run in runs}
        used: list[Record] = []
        wrong: list[str] = []
        for claim in story.claims.values():
            if claim.end is None or claim.end.how != "crash":
                continue
            run = by_token.get(claim.token)
            new = [fault for fault in self._explanations(claim, run) if fault not in used]
            used += filter(ends, new)
            if not new and not self._is_strangers(claim, run):
                wrong.append(f"token {claim.token} was counted as a crash, and nobody has harmed its worker")
        return wrong

    def _false_releases(self, runs: Sequence[Run], story: Story) -> list[str]:
        """What has begun is given back at a stop only; what never began may be given back by anybody."""
        return [
            f"token {run.token} was given back, although its run "
            + ("had ended well" if run.outcome == "done" else "had begun and nobody was asked to stop")
            for run in runs
            if (claim := story.claims.get(run.token)) is not None
            and claim.end is not None
            and claim.end.how == "release"
            and not self.may_give_back(claim, run)
        ]

    def may_give_back(self, claim: Claim, run: Run) -> bool:
        """Whether a run that has begun can have ended without a word of how."""
        if run.job in self.unruly or self.explanation(claim, run) is not None:
            return True
        if run.outcome == "trouble":
            return True  # a transaction that the store did not take says nothing about the job
        asked = max(
            self.faults.asked(pid, self._since(claim), self._until(claim), run.began)
            for pid in self._pids(claim, run)
        )
        return asked > (run.outcome == "done" and self.had_ended(claim, run))

    def had_ended(self, claim: Claim, run: Run) -> bool:
        """Whether a run was over when it was given back: one in a thread may end later, before its process does."""
        released_at = NEVER if claim.end is None or self.offset is None else claim.end.at - self.offset
        return run.ended is not None and released_at < NEVER and run.ended < released_at - SLACK

    def _is_strangers(self, claim: Claim, run: Run | None) -> bool:
        """Whether nobody can tell whose it was; that this must not be is told elsewhere."""
        return run is None and claim.worker not in self.workers and self.faults.any_before(self._until(claim))

    def explanation(self, claim: Claim, run: Run | None) -> Record | None:
        """The first fault that was done to the process of this claim while it was held, and can have ended it."""
        return next(iter(self._explanations(claim, run)), None)

    def _explanations(self, claim: Claim, run: Run | None) -> list[Record]:
        """All of them; those that were done to the run's own process first."""
        lease = self.workers[claim.worker].lease if claim.worker in self.workers else LEASE
        since, until = self._since(claim), self._until(claim)
        began = None if run is None else run.began
        found = [self.faults.that_explain(pid, since, until, lease, began) for pid in self._pids(claim, run)]
        return [fault for each in found for fault in each]

    def _pids(self, claim: Claim, run: Run | None) -> list[int]:
        """Of a run in a child process also its worker, whose parent the child need not know."""
        found = [] if run is None else [run.pid]
        return found + ([self.workers[claim.worker].pid] if claim.worker in self.workers else [])

    def _since(self, claim: Claim) -> float:
        return -NEVER if self.offset is None else claim.at - self.offset - SLACK

    def _until(self, claim: Claim) -> float:
        if claim.end is None or self.offset is None:
            return NEVER
        return claim.end.at - self.offset + SLACK
