"""The runs of each job, from what handlers wrote down, and which faults have hit the processes they ran in."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from math import isinf

from msgspec import Struct

from faults.evidence.records import Record

# Deeds that leave a process alive and at work, and so explain no crash; any other word does.
HARMLESS = ("cont", "term", "int", "told", "hup", "clock")
ASKS = ("term", "int", "told")
TOLD = "told"  # an ancestor was asked to stop, which will tell it
HEARD_WITHIN = (
    5.0  # seconds until a process that was asked to stop, and all that descend from it, claim nothing more
)
BEREAVED = "bereave"  # its parent was killed: it has this long to notice
BEREAVED_FOR = 1.0
NOTICED_WITHIN = 2.0  # leases after which nobody is fenced any more for having been stopped


class Run(Struct, frozen=True, kw_only=True):
    """One run of one job; without an end if it was cut short, or if nobody was left to write it."""

    job: str
    token: int
    pid: int
    parent: int
    began: float
    ended: float | None = None
    outcome: str = ""


def runs(records: Iterable[Record]) -> dict[str, list[Run]]:
    """The runs of each job, in the order in which they began. A run that is fenced ends there, at the latest."""
    starts: dict[str, list[Record]] = defaultdict(list)
    ends: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    for record in records:
        if record.what == "start":
            starts[record.job].append(record)
        elif record.what in ("end", "fenced"):
            ends[record.job, record.token, record.pid].append(record)
    return {job: [_run(start, ends) for start in own] for job, own in starts.items()}


def _run(start: Record, ends: dict[tuple[str, int, int], list[Record]]) -> Run:
    mine = [end for end in ends[start.job, start.token, start.pid] if end.at >= start.at]
    end = next((end for end in mine if end.what == "end"), mine[0] if mine else None)
    return Run(
        job=start.job,
        token=start.token,
        pid=start.pid,
        parent=start.parent,
        began=start.at,
        ended=None if end is None else end.at,
        outcome="" if end is None else end.outcome or end.what,
    )


class Faults:
    """Who was disturbed, and when."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._of: dict[int, list[Record]] = defaultdict(list)
        self._parents: dict[int, set[int]] = defaultdict(set)
        self._last: dict[int, float] = {}
        for record in records:
            if record.what == "fault":
                self._of[record.pid].append(record)
            else:
                self._parents[record.pid].add(record.parent)
                self._last[record.pid] = max(record.at, self._last.get(record.pid, 0.0))
        self._all = sorted(fault.at for each in self._of.values() for fault in each if harms(fault))

    def any_before(self, at: float) -> bool:
        """Whether anybody was harmed until then."""
        return bisect_right(self._all, at) > 0

    def line(self, pid: int) -> list[int]:
        """The process and its ancestors, as far as they are known."""
        found, new = [pid], [pid]
        while new:
            new = sorted(
                {up for one in new for up in self._parents.get(one, ()) if up > 1 and up not in found}
            )
            found += new
        return found

    def that_explain(self, pid: int, since: float, until: float, lease: float) -> Record | None:
        """The first fault done to the process or an ancestor while the claim was held, that can have ended it."""
        found = [
            fault
            for one in self.line(pid)
            for fault in self._of.get(one, ())
            if harms(fault)
            and fault.at <= until
            and self._lasts(fault) >= since
            and (fault.deed != "stop" or self._outlasts(fault, lease, until))
        ]
        return min(found, key=lambda fault: fault.at, default=None)

    def _outlasts(self, stop: Record, lease: float, until: float) -> bool:
        """Whether a lease can have run out by this stop, and that have been noticed by then.

        The last beat may have been a third of a lease before the stop, and a tenth of that late.
        """
        lasted = self._lasts(stop)
        noticed = isinf(until) or until <= lasted + NOTICED_WITHIN * lease
        return noticed and lasted - stop.at > 0.6 * lease

    def asked(self, pid: int, since: float, until: float) -> int:
        """How often the process, or one that it descends from, was asked to stop; once more means: at once."""
        return max(
            sum(
                fault.deed in ASKS and since - HEARD_WITHIN <= fault.at <= until
                for fault in self._of.get(one, ())
            )
            for one in self.line(pid)
        )

    def _lasts(self, fault: Record) -> float:
        """Until when it is felt: a stop until the process may go on, a parent's death until the child has noticed."""
        if fault.deed == BEREAVED:
            return fault.at + BEREAVED_FOR
        if fault.deed != "stop":
            return fault.at
        later = (each.at for each in self._of[fault.pid] if each.deed == "cont" and each.at >= fault.at)
        return min(later, default=float("inf"))

    def end_of(self, pid: int, since: float) -> float | None:
        """When the process, or what kept it alive, was killed; None if it was not."""
        ends = [
            fault.at
            for fault in self._of.get(pid, ())
            if harms(fault) and fault.deed not in ("stop", BEREAVED) and fault.at >= since
        ]
        bereaved = [
            max(fault.at + BEREAVED_FOR, self._last.get(pid, 0.0))
            for one in self.line(pid)
            for fault in self._of.get(one, ())
            if fault.at >= since and (fault.deed == BEREAVED or (fault.deed == "kill" and one != pid))
        ]
        return min([*ends, *bereaved], default=None)

    def continued(self, pid: int, at: float, grace: float) -> bool:
        """Whether the process was told to go on, after a stop, so shortly before."""
        return any(
            fault.deed == "cont" and fault.at <= at <= fault.at + grace
            for one in self.line(pid)
            for fault in self._of.get(one, ())
        )


def harms(fault: Record) -> bool:
    """Whether a process may end, or seem to, by this."""
    return fault.deed not in HARMLESS
