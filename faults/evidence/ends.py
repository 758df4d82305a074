"""Whether what the store says of a job's end is what its runs, or an operator, have written down.

A success is written by the run that had it, after it. A run that ended well does not count as an error. A job is
cancelled, and comes back after its end, only if somebody has asked for that.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from faults.evidence.licences import SLACK
from faults.evidence.moves import Story
from faults.evidence.records import Record
from faults.evidence.runs import Run

ILL = ("error", "failed", "snooze")  # what the store may say only of a run that has not ended well
SHORT_OF_SUCCESS = ("error", "cancelled", "withdrawn", "trouble", "fenced")


class Ends(Struct, frozen=True, kw_only=True):
    """Judges the ends of one job after the other."""

    offset: float | None  # of the store's clock from the ledger's, None if they cannot be compared
    cancels: Mapping[str, Sequence[float]]  # when operators have cancelled which job
    retries: Mapping[str, Sequence[float]]
    unruly: Collection[str]  # jobs whose handlers may be believed less than the store

    def judge(self, runs: Sequence[Run], story: Story, *, transactional: bool) -> list[str]:
        """What is wrong with them."""
        return [
            *self._false_success(runs, story, transactional),
            *self._false_failures(runs, story),
            *self._cancelled_by_nobody(runs, story),
            *self._retried_by_nobody(story),
        ]

    def _false_success(self, runs: Sequence[Run], story: Story, transactional: bool) -> list[str]:
        """With an effect, a success is written before the end of its run."""
        done = story.completed
        if done is None or not runs:
            return []  # one that never ran at all is lost
        mine = [run for run in runs if run.token == done.token]
        if not mine:
            return [f"completed with token {done.token}, which never ran"]
        if transactional:
            return []
        ends = [run.ended for run in mine if run.ended is not None and succeeded(run)]
        if not ends:
            return [f"completed with token {done.token}, whose run did not end so"]
        ended = min(ends)
        if self.offset is not None and done.at - self.offset + SLACK < ended:
            early = ended + self.offset - done.at
            return [f"completed {early:.3f} s before the run with token {done.token} ended"]
        return []

    def _false_failures(self, runs: Sequence[Run], story: Story) -> list[str]:
        if story.job in self.unruly:
            return []
        done = {run.token for run in runs if run.outcome == "done"}
        return [
            f"token {claim.token} counts as {claim.end.how}, and its run ended well"
            for claim in story.claims.values()
            if claim.end is not None and claim.end.how in ILL and claim.token in done
        ]

    def _cancelled_by_nobody(self, runs: Sequence[Run], story: Story) -> list[str]:
        withdrawn = {run.token for run in runs if run.outcome == "withdrawn"}
        return [
            f"cancelled at token {change.token}, and nobody has asked for that"
            for change in story.cancelled
            if change.token not in withdrawn and not self._asked(self.cancels, story.job, change.at, 1)
        ]

    def _retried_by_nobody(self, story: Story) -> list[str]:
        return [
            f"came back at token {change.token}, and nobody has retried it"
            for count, change in enumerate(story.retried, 1)
            if not self._asked(self.retries, story.job, change.at, count)
        ]

    def _asked(self, asked: Mapping[str, Sequence[float]], job: str, at: float, times: int) -> bool:
        """Whether somebody has asked for it so often by then."""
        found = asked.get(job, ())
        return (len(found) if self.offset is None else bisect_right(found, at - self.offset + SLACK)) >= times


def succeeded(run: Run) -> bool:
    """Whether it has ended, and not badly; apps have words of their own for that."""
    return run.ended is not None and run.outcome not in SHORT_OF_SUCCESS


def moments(records: Iterable[Record], what: str) -> dict[str, list[float]]:
    """When that was written down, for each job, in order."""
    found: dict[str, list[float]] = {}
    for record in records:
        if record.what == what:
            found.setdefault(record.job, []).append(record.at)
    return found
