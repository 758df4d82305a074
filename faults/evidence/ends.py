"""Whether what the store says of a job's end is what its runs, or an operator, have written down.

A success is written by the run that had it, after it; an error or a failure by the run that had that. A job is
cancelled, and comes back after its end, only if somebody has asked for that, each time; and no success is thrown away.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from faults.evidence.licences import SLACK, Licences
from faults.evidence.moves import Claim, Story
from faults.evidence.records import Record
from faults.evidence.runs import Run

ILL = ("error", "failed", "snooze")  # what the store may say only of a run that ended in an error
SHORT_OF_SUCCESS = ("error", "cancelled", "withdrawn", "trouble", "fenced")
# With an effect, a run may be cut short, or lose its connection, when the store has already taken its transaction.
UNLIKE_SUCCESS = ("error", "withdrawn", "fenced")


class Ends(Struct, frozen=True, kw_only=True):
    """Judges the ends of one job after the other."""

    offset: float | None  # of the store's clock from the ledger's, None if they cannot be compared
    cancels: Mapping[str, Sequence[float]]  # when operators have cancelled which job
    forced: Mapping[str, Sequence[float]]  # those of them that did not wait for its run
    retries: Mapping[str, Sequence[float]]
    unruly: Collection[str]  # jobs whose handlers may be believed less than the store
    refusable: Collection[str]  # jobs that may fail without a run
    keyed: Collection[str]  # jobs that another may replace while they wait
    licences: Licences

    def judge(self, runs: Sequence[Run], story: Story, *, transactional: bool) -> list[str]:
        """What is wrong with them."""
        return [
            *self._false_success(runs, story, transactional),
            *self._false_failures(runs, story),
            *self._given_up(runs, story),
            *self._recounted(story),
            *self._cancelled_by_nobody(runs, story),
            *self._thrown_away(runs, story),
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
            return self._false_transaction(mine, story)
        ends = [run.ended for run in mine if run.ended is not None and succeeded(run)]
        if not ends:
            return [f"completed with token {done.token}, whose run did not end so"]
        ended = min(ends)
        if self.offset is not None and done.at - self.offset + SLACK < ended:
            early = ended + self.offset - done.at
            return [f"completed {early:.3f} s before the run with token {done.token} ended"]
        return []

    def _false_transaction(self, mine: Sequence[Run], story: Story) -> list[str]:
        done = story.completed
        assert done is not None
        if all(run.outcome in UNLIKE_SUCCESS for run in mine):
            return [f"completed with token {done.token}, whose run did not end so"]
        ends = [run.ended for run in mine if run.ended is not None and succeeded(run)]
        if ends and self.offset is not None and done.at - self.offset > max(ends) + SLACK:
            return [f"completed with token {done.token} after its run, and not in its transaction"]
        return []

    def _false_failures(self, runs: Sequence[Run], story: Story) -> list[str]:
        if not runs or story.job in self.unruly:
            return []  # one that never ran at all is lost
        wrong: list[str] = []
        for claim in story.claims.values():
            if claim.end is not None and claim.end.how in ILL:
                mine = [run for run in runs if run.token == claim.token]
                if not mine and story.job in self.refusable:
                    continue
                why = self._wrong_with(claim, mine)
                wrong += [f"token {claim.token} counts as {claim.end.how}, and {each}" for each in why]
        return wrong

    def _wrong_with(self, claim: Claim, mine: Sequence[Run]) -> list[str]:
        """Why a claim cannot have ended in an error."""
        assert claim.end is not None
        if not mine:
            return ["never ran"]
        ends = [run.ended for run in mine if run.ended is not None and run.outcome == "error"]
        if not ends:
            return ["its run did not end so"]
        if self.offset is not None and claim.end.at - self.offset + SLACK < min(ends):
            return [f"its run ended {min(ends) + self.offset - claim.end.at:.3f} s later"]
        return []

    def _given_up(self, runs: Sequence[Run], story: Story) -> list[str]:
        """What waits fails only if it may be refused: it has expired, or nobody knows its task."""
        if not runs or story.job in self.refusable:
            return []
        return [f"failed at token {change.token} while it waited" for change in story.given_up]

    def _recounted(self, story: Story) -> list[str]:
        """Waiting counts nothing and forgets nothing, unless another job takes its place."""
        if story.job in self.keyed:
            return []
        return [f"was counted anew at token {change.token} while it waited" for change in story.recounted]

    def _cancelled_by_nobody(self, runs: Sequence[Run], story: Story) -> list[str]:
        withdrawn = {run.token for run in runs if run.outcome == "withdrawn"}
        by_others = [change for change in story.cancelled if change.token not in withdrawn]
        return [
            f"cancelled at token {change.token}, and nobody has asked for that"
            for count, change in enumerate(by_others, 1)
            if not self._asked(self.cancels, story.job, change.at, count)
        ]

    def _thrown_away(self, runs: Sequence[Run], story: Story) -> list[str]:
        """A run that ended well is a success, whoever has asked to cancel it, unless by force."""
        return [
            f"token {run.token} was cancelled, although its run had ended well"
            for run in runs
            if run.outcome == "done"
            and (claim := story.claims.get(run.token)) is not None
            and claim.end is not None
            and claim.end.how == "cancel"
            and self.licences.had_ended(claim, run)
            and not self._asked(self.forced, story.job, claim.end.at, 1)
            and not self.licences.may_give_back(claim, run)
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


def moments_of_force(records: Iterable[Record]) -> dict[str, list[float]]:
    """When an operator has used force, for each job, in order."""
    return moments((record for record in records if record.deed == "force"), "cancel")


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
