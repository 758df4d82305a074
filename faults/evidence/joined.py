"""The evidence of a move, from both stores: that of the old one until it was closed, that of the new one since it was
opened, as if they had been one.

In between lies what no checker of one store can see. Each job has to have the same place in the new store, when that
opens, as it had in the old one, with the same token and counts; it has to have the same number, body and history; and
nothing may change in the old store once that is closed. What this finds has counts of its own (`Moved`), and the rest
is for the checker, to which the two audits, joined, tell one story of each job: so a job that runs in both stores at
once, or once more without a licence, counts as it does in one.

A job that was given back when the old store closed has its licence by that. Its worker was forgotten by the same
commit, which fences it, and hears of that by its next beat.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from faults.evidence.audit import Announced, Change
from faults.evidence.checker import TOLD, Evidence
from faults.evidence.licences import SLACK
from faults.evidence.moves import NEVER, WAITING, stories
from faults.evidence.records import Record
from faults.evidence.runs import CLOSED
from shigoto.model.record import JobRecord

GATE = (
    "gate"  # the deed of a record that tells which gate stands before the old store, and since when (`due`)
)
SHUT = ("closed", "moved")
SAME = ("token", "settled_token", "state", "crashes", "releases", "failures", "snoozes")
# What stays the same whatever becomes of a job.
FIXED = (
    "id", "task", "queue", "payload", "created_at", "max_failures", "max_crashes", "priority", "tenant", "key",
    "expires_at", "retry", "timeout", "soft_timeout", "tags", "meta", "alone",
)  # fmt: skip
PAST = ("attempts", "log")  # to which can only be added


class Side(Struct, kw_only=True):
    """What one of the two stores says of itself; `jobs` are whole."""

    changes: Sequence[Change]
    jobs: Sequence[JobRecord]
    states: Mapping[str, str]
    workers: Mapping[str, Announced]
    effects: Mapping[str, int] = field(default_factory=dict)


class Moved(Struct, kw_only=True):
    """What a move must not do, with the jobs to which it did, each with the reason. `evidence` is for the checker."""

    evidence: Evidence
    missing: list[str] = field(default_factory=list)  # not in the new store when that opened
    strange: list[str] = field(default_factory=list)  # in the new one then, and not in the old one
    misplaced: list[str] = field(default_factory=list)  # in another place, or with another token or count
    renumbered: list[str] = field(default_factory=list)  # with another number, or one that was given before
    altered: list[str] = field(default_factory=list)  # with another body or history
    late: list[str] = field(default_factory=list)  # changed in the old store while that was closed
    given_back: int = 0  # when the old store closed

    @property
    def wrong(self) -> list[str]:
        """All of it, in words."""
        found = {text: getattr(self, name) for name, text in COUNTS.items()}
        return [f"{len(jobs)} jobs {text}: {'; '.join(jobs[:TOLD])}." for text, jobs in found.items() if jobs]


COUNTS = {
    "missing": "were not in the new store when it opened",
    "strange": "came with the move, and were not in the old store",
    "misplaced": "were not as they had been when the new store opened",
    "renumbered": "have not the number that they should have",
    "altered": "have another body or history than before",
    "late": "changed in the old store while it was closed",
}


class Shut(Struct, frozen=True):
    """A time in which nothing could change in the old store: it began within `first`, and lasted until `to`."""

    first: tuple[float, float]
    to: float


def join(
    records: Sequence[Record], old: Side, new: Side, *, opened: tuple[int, float], offset: float
) -> Moved:
    """The evidence of both; `opened` is after which change of the new store it was opened, and when.

    `offset` is by how much the clock of both audits is ahead of the ledger's.
    """
    return _Join(records, old, new, opened, offset).moved


class _Join:
    def __init__(
        self, records: Sequence[Record], old: Side, new: Side, opened: tuple[int, float], offset: float
    ) -> None:
        self.old, self.new, self.offset = old, new, offset
        self.shut = list(times_shut(records))
        self.later = [change for change in new.changes if change.sequence > opened[0]]
        self.was = places(old.changes)
        self.came = places(change for change in new.changes if change.sequence <= opened[0])
        self.id_of = {job.number: str(job.id) for job in (*new.jobs, *old.jobs)}
        self.last = max((change.sequence for change in old.changes), default=0)
        self.on_the_way = list(self._on_the_way(opened[1]))
        self.shift = self.last + len(self.on_the_way)
        workers, given_back = self._old_workers()
        self.moved = Moved(
            evidence=Evidence(
                records=sorted([*records, *given_back], key=lambda record: record.at),
                changes=[*old.changes, *self.on_the_way, *map(self._shifted, self.later)],
                states=new.states,
                effects=Counter(old.effects) + Counter(new.effects),
                workers=workers | self._new_workers(),
                offset=offset,
            ),
            given_back=len(given_back),
        )
        self._places()
        self._bodies()
        self._late()

    def _on_the_way(self, at: float) -> Iterator[Change]:
        """What waited for its time, and is ready when it arrives."""
        sequence = self.last
        for number in sorted(self.was.keys() & self.came.keys()):
            before, after = self.was[number], self.came[number]
            if before.table != after.table and {before.table, after.table} <= {*WAITING}:
                for place, deed in ((before, "out"), (after, "in")):
                    sequence += 1
                    yield replace(place, sequence=sequence, deed=deed, at=at, job=self._name(number))

    def _shifted(self, change: Change) -> Change:
        job = self._name(change.number) if change.job.startswith("number ") else change.job
        return replace(change, sequence=change.sequence + self.shift, job=job)

    def _name(self, number: int) -> str:
        return self.id_of.get(number, f"number {number}")

    def _old_workers(self) -> tuple[dict[str, Announced], list[Record]]:
        """Those fenced whose runs were given back when the store closed; and a record of each such run."""
        workers = dict(self.old.workers)
        records: list[Record] = []
        for story in stories(self.old.changes).values():
            for claim in story.claims.values():
                end, worker = claim.end, workers.get(claim.worker)
                if end is None or worker is None or end.how != "release" or not end.taken:
                    continue
                at = end.at - self.offset
                if any(
                    since - SLACK <= at <= seen + SLACK for since, seen in (each.first for each in self.shut)
                ):
                    fenced = min(end.sequence - 1, self.last if worker.fenced is None else worker.fenced)
                    workers[claim.worker] = replace(worker, fenced=fenced)
                    records.append(Record(what="fault", deed=CLOSED, at=at, pid=worker.pid, job=story.job))
        return workers, records

    def _new_workers(self) -> dict[str, Announced]:
        return {
            id: worker if worker.fenced is None else replace(worker, fenced=worker.fenced + self.shift)
            for id, worker in self.new.workers.items()
        }

    def _places(self) -> None:
        """Each job is where it was, and as it was."""
        for number in sorted(self.was.keys() | self.came.keys()):
            before, after, name = self.was.get(number), self.came.get(number), self._name(number)
            if before is None:
                self.moved.strange.append(name)
            elif after is None:
                self.moved.missing.append(f"{name} ({_place(before)})")
            elif _place(before) != _place(after):
                self.moved.misplaced.append(f"{name} ({_place(before)}, then {_place(after)})")

    def _bodies(self) -> None:
        """Each job has its number, its body and its history; that of what has ended is the same in all things."""
        changed = {change.number for change in self.later}
        there = {job.number: job for job in self.new.jobs}
        known = {job.id for job in self.old.jobs}
        taken = {(job.tenant, job.key) for job in self.new.jobs if job.key and job.id not in known}
        numbers = {job.id: job.number for job in self.new.jobs}
        before = {job.number for job in self.old.jobs}
        for job in self.old.jobs:
            found, number = there.get(job.number), numbers.get(job.id, job.number)
            if number != job.number:
                self.moved.renumbered.append(f"{job.id} ({job.number}, then {number})")
                continue
            if (job.tenant, job.key) in taken:
                job = replace(job, holds_key=False)
            if found is not None and (why := _difference(job, found, touched=job.number in changed)):
                self.moved.altered.append(f"{job.id} ({why})")
        given = max([*before, *self.was], default=0)
        for job in self.new.jobs:
            if job.id not in known and job.number <= given:
                self.moved.renumbered.append(f"{job.id} ({job.number}, which was given before)")

    def _late(self) -> None:
        """Nothing changes while the store is closed, after that was first seen."""
        for change in self.old.changes:
            at = change.at - self.offset
            if any(each.first[1] + SLACK < at < each.to - SLACK for each in self.shut):
                self.moved.late.append(f"{self._name(change.number)} ({change.deed} of {change.table})")


def times_shut(records: Iterable[Record]) -> Iterator[Shut]:
    """When the old store was closed, as whoever watched its gate has written down."""
    first: tuple[float, float] | None = None
    for record in records:
        if record.what != "fault" or record.deed != GATE or record.due is None:
            continue
        if record.outcome in SHUT:
            first = first or (record.due, record.at)
        elif first is not None:
            yield Shut(first, record.due)
            first = None
    if first is not None:
        yield Shut(first, NEVER)


def places(changes: Iterable[Change]) -> dict[int, Change]:
    """Where each job is after these, by number; one that is in several places has the last of them."""
    here: dict[int, dict[str, Change]] = {}
    for change in changes:
        own = here.setdefault(change.number, {})
        if change.deed == "out":
            own.pop(change.table, None)
        else:
            own[change.table] = change
    return {number: list(own.values())[-1] for number, own in here.items() if own}


def _place(change: Change) -> str:
    table = "waiting" if change.table in ("ready", "scheduled") else change.table
    return ", ".join([table, *(f"{name} {value}" for name in SAME if (value := getattr(change, name)))])


def _difference(before: JobRecord, after: JobRecord, *, touched: bool) -> str:
    """Which field is not as it should be. Who was `touched` in the new store has lived on there."""
    if not touched:
        names = before.__struct_fields__
        return ", ".join(name for name in names if getattr(before, name) != getattr(after, name))
    wrong = [name for name in FIXED if getattr(before, name) != getattr(after, name)]
    wrong += [name for name in PAST if not _begins_with(getattr(after, name), getattr(before, name))]
    wrong += [name for name in ("token", "settled_token") if getattr(after, name) < getattr(before, name)]
    return ", ".join(wrong)


def _begins_with(longer: Sequence[Any], shorter: Sequence[Any]) -> bool:
    return longer[: len(shorter)] == shorter
