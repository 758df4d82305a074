"""What the audit tells of each job: every move from one place to another, and which of them the table forbids.

A move is what lies between two moments at which a job has exactly one place. Some moves put the new row in first and
some take the old row out first, all in one transaction; a job with no place at all has been deleted, if nothing
follows.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from faults.evidence.audit import Change

WAITING = ("ready", "scheduled", "blocked")
NEVER = float("inf")


class End(Struct, frozen=True, kw_only=True):
    """How a claim ended, as the store has it: completed, error, failed, release, snooze, crash or cancel.

    It was `taken` if nobody who held it said so: its worker was fenced or reported dead, or an operator used force.
    """

    how: str
    taken: bool
    sequence: int
    at: float
    since: float  # when the transaction began that did it


class Claim(Struct, kw_only=True):
    """One token of one job: who got it and when, and how it ended."""

    token: int
    worker: str
    at: float
    sequence: int
    since: float
    end: End | None = None


class Story(Struct, kw_only=True):
    """What the store has done with one job."""

    job: str
    born: Change | None = None
    last: Change | None = None
    claims: dict[int, Claim] = field(default_factory=dict)
    completed: Change | None = None
    cancelled: list[Change] = field(default_factory=list)  # whoever did it: an operator, or its own run
    retried: list[Change] = field(default_factory=list)  # from failed or cancelled, which takes an operator
    given_up: list[Change] = field(default_factory=list)  # failed while it waited, by no run
    recounted: list[Change] = field(default_factory=list)  # with another count while it waited
    deleted: bool = False
    bad: list[str] = field(default_factory=list)


def stories(changes: Iterable[Change]) -> dict[str, Story]:
    """The story of each job, by id."""
    by_number: dict[int, list[Change]] = defaultdict(list)
    for change in changes:
        by_number[change.number].append(change)
    told: dict[str, Story] = {}
    for own in by_number.values():
        story = tell(own)
        before = told.get(story.job)
        if before is not None:
            story.bad += before.bad + ([] if before.deleted else ["is stored twice"])
            story.born = before.born
        told[story.job] = story
    return told


def tell(changes: Sequence[Change]) -> Story:
    """The story of one job, from all that has happened to its number."""
    story = Story(job=next((c.job for c in changes if not c.job.startswith("number")), changes[0].job))
    here: dict[str, Change] = {}
    last: Change | None = None
    for change in changes:
        _step(story, here, change)
        if len(here) == 1:
            [now] = here.values()
            if now is not last:
                _move(story, last, now)
                last = now
                story.born = story.born or now
    story.last = last
    if len(here) > 1:
        story.bad.append(f"ends in several places: {', '.join(here)}")
    if not here and last is not None:
        story.deleted = True
        if last.table in ("running", "blocked"):
            story.bad.append(f"was deleted while {last.table}")
    return story


def _step(story: Story, here: dict[str, Change], change: Change) -> None:
    was = here.get(change.table)
    if change.deed == "in":
        if was is not None or len(here) > 1:
            story.bad.append(f"came into {change.table} while in {', '.join(here)}")
        here[change.table] = change
    elif was is None:
        story.bad.append(f"{change.deed} of {change.table}, where it was not")
    elif change.deed == "out":
        del here[change.table]
    else:
        here[change.table] = change


def _move(story: Story, before: Change | None, after: Change) -> None:
    wrong = wrong_with(before, after)
    if wrong:
        story.bad.append(f"{_place(before)} to {_place(after)}: {wrong}")
    if after.table == "running":
        if before is not None and before.table == "running":
            return  # a request to cancel, or a newer job with its key
        story.claims[after.token] = _claim(after)
    elif before is not None and before.table == "running":
        claim = story.claims.setdefault(before.token, _claim(before))
        claim.end = End(
            how=_how(before, after),
            taken=after.settled_token != before.token,
            sequence=after.sequence,
            at=after.at,
            since=after.begun,
        )
    elif before is not None and before.table in WAITING:
        story.given_up += [after] if after.state == "failed" else []
        story.recounted += [after] if _counted(before, after) else []
    if after.state == "completed":
        story.completed = after
    elif after.state == "cancelled":
        story.cancelled.append(after)
    elif before is not None and before.state in ("failed", "cancelled") and after.table != "done":
        story.retried.append(after)


def _claim(row: Change) -> Claim:
    return Claim(token=row.token, worker=row.worker, at=row.at, sequence=row.sequence, since=row.begun)


def _place(change: Change | None) -> str:
    if change is None:
        return "nowhere"
    return f"{change.state or change.table} (token {change.token}, settled {change.settled_token})"


def _how(before: Change, after: Change) -> str:
    if after.state in ("completed", "cancelled"):
        return "cancel" if after.state == "cancelled" else "completed"
    counted = _counted(before, after)
    if counted == {"failures": 1}:
        return "failed" if after.state else "error"
    names = {"releases": "release", "snoozes": "snooze", "crashes": "crash"}
    return next((names[name] for name in counted if name in names), "nothing")


def _counted(before: Change, after: Change) -> dict[str, int]:
    """By how much each counter has changed, where it has."""
    names = ("failures", "releases", "snoozes", "crashes")
    return {name: by for name in names if (by := getattr(after, name) - getattr(before, name))}


def wrong_with(before: Change | None, after: Change) -> str:
    """Why the table of transitions does not have this move; nothing if it has."""
    if before is None:
        return _wrong_birth(after)
    if before.state == "completed":
        return "nothing leaves completed"
    if after.table == "running":
        return _wrong_claim(before, after)
    if after.token != before.token:
        return "the token changes by a claim only"
    if before.table == "running":
        return _wrong_end(before, after)
    if after.settled_token != before.settled_token:
        return "settled without a claim"
    if after.state == "completed":
        return "completed without a run"
    if before.table == after.table == "done":
        return "ended twice"
    return ""


def _wrong_birth(after: Change) -> str:
    if after.table not in WAITING:
        return "a job begins by waiting"
    new = (after.token, after.settled_token, after.failures, after.crashes, after.releases) == (0,) * 5
    return "" if new else "a new job has no past"


def _wrong_claim(before: Change, after: Change) -> str:
    if before.table == "running":  # the same row, with a flag
        return "" if _same(before, after) and not _counted(before, after) else "a claim cannot be changed"
    if before.table != "ready":
        return "only what is ready can be claimed"
    if after.token != before.token + 1:
        return "a claim raises the token by one"
    if after.settled_token != before.settled_token or _counted(before, after):
        return "a claim settles and counts nothing"
    return ""


def _same(before: Change, after: Change) -> bool:
    return (before.token, before.settled_token, before.worker) == (
        after.token,
        after.settled_token,
        after.worker,
    )


def _wrong_end(before: Change, after: Change) -> str:
    if after.settled_token not in (before.settled_token, before.token):
        return "settled with a token that is not the claim's"
    counted = _counted(before, after)
    if after.state == "completed":
        if after.settled_token != before.token:
            return "completed without its token"
        return "a success counts nothing" if counted else ""
    if after.state == "cancelled":
        return "" if len(counted) <= 1 and set(counted.values()) <= {1} else "more than one end was counted"
    if list(counted.values()) != [1]:
        return "an end counts once"
    if counted == {"failures": 1} and after.settled_token != before.token:
        return "only the holder can fail"
    return "" if after.table != "blocked" else "what has run is not blocked"
