"""The runs of each job, from what handlers wrote down, and which faults have hit the processes they ran in."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from math import isinf

from msgspec import Struct

from faults.evidence.records import Record

# Deeds that leave a process alive and at work, and so explain no crash; any other word does. A worker outlives whatever
# is done to its server.
HARMLESS = ("cont", "term", "int", "told", "hup", "clock", "server", "gone", "closed", "gate")
ASKS = ("term", "int", "told", "closed")
TOLD = "told"  # an ancestor was asked to stop, which will tell it
CLOSED = "closed"  # what it ran was given back by a move, at once; it hears of that by its next beat
HEARD_WITHIN = (
    5.0  # seconds until a process that was asked to stop, and all that descend from it, claim nothing more
)
OBEYED_WITHIN = 1.0  # seconds of the same, if it was asked itself
GONE = "gone"  # somebody watched it, saw it for the last time then, and nobody says who has ended it
BEREAVED = "bereave"  # its parent was killed: it has this long to notice
BEREAVED_FOR = 1.0
DYING = 0.05  # seconds in which threads of a process that has written down its death may write
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
    """Who was disturbed, and when, from all records in order of time.

    The number of a process is given to another when it has ended. So whose child it was, and whether it still writes,
    is asked for a moment.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._of: dict[int, list[Record]] = defaultdict(list)
        self._words: dict[int, list[Record]] = defaultdict(list)
        for record in records:
            (self._of if record.what == "fault" else self._words)[record.pid].append(record)
        self._all = sorted(fault.at for each in self._of.values() for fault in each if harms(fault))

    def any_before(self, at: float) -> bool:
        """Whether anybody was harmed until then."""
        return bisect_right(self._all, at) > 0

    def line(self, pid: int, at: float) -> list[int]:
        """The process and its ancestors at that moment, as far as they are known."""
        found = [pid]
        while (up := self._parent(found[-1], at)) > 1 and up not in found:
            found.append(up)
        return found

    def _parent(self, pid: int, at: float) -> int:
        """As the word of it that is nearest in time has it; 0 if it has said nothing."""
        words = self._words.get(pid, ())
        place = bisect_right(words, at, key=lambda word: word.at)
        near = words[max(0, place - 1) : place + 1]
        return min(near, key=lambda word: abs(word.at - at)).parent if near else 0

    def last_word(self, pid: int, since: float) -> float:
        """When the process that was there at that moment wrote anything down for the last time."""
        last, parent = since, self._parent(pid, since)
        words = self._words.get(pid, ())
        orphaned = any(
            fault.at >= since and (fault.deed == BEREAVED or (one == parent and ends(fault)))
            for one in (pid, parent)
            for fault in self._of.get(one, ())
        )
        for word in words[bisect_right(words, since, key=lambda word: word.at) :]:
            if word.parent != parent and not orphaned:
                break
            last = word.at
        return last

    def that_explain(
        self, pid: int, since: float, until: float, lease: float, at: float | None = None
    ) -> list[Record]:
        """The faults done to the process or an ancestor while the claim was held, that can have ended it; first first.

        Its ancestors are those that it had `at` this moment, or else when the claim began.
        """
        found = [
            fault
            for one in self.line(pid, since if at is None else at)
            for fault in self._of.get(one, ())
            if harms(fault)
            and fault.at <= until
            and self._lasts(fault) >= since
            and (fault.deed != "stop" or self._outlasts(fault, lease, until))
        ]
        return sorted(found, key=lambda fault: fault.at)

    def _outlasts(self, stop: Record, lease: float, until: float) -> bool:
        """Whether a lease can have run out by this stop, and that have been noticed by then.

        The last beat may have been a third of a lease before the stop, and a tenth of that late.
        """
        lasted = self._lasts(stop)
        noticed = isinf(until) or until <= lasted + NOTICED_WITHIN * lease
        return noticed and lasted - stop.at > 0.6 * lease

    def asked(self, pid: int, since: float, until: float, at: float | None = None) -> int:
        """How often the process, or one that it descends from, was asked to stop; once more means: at once.

        A move asks nobody, and takes what runs: that is at once.

        Whoever was asked itself claims nothing soon after that; those who descend from it have to be told.
        """
        return max(
            sum(
                2 if fault.deed == CLOSED else 1
                for fault in self._of.get(one, ())
                if fault.deed in ASKS
                and since - (HEARD_WITHIN if one != pid or fault.deed == TOLD else OBEYED_WITHIN) <= fault.at
                and fault.at <= until
            )
            for one in self.line(pid, since if at is None else at)
        )

    def _lasts(self, fault: Record) -> float:
        """Until when it is felt: a stop until the process may go on or is killed, a parent's death until the child has
        noticed."""
        if fault.deed == BEREAVED:
            return fault.at + BEREAVED_FOR
        if fault.deed != "stop":
            return fault.at
        later = (
            each.at
            for each in self._of[fault.pid]
            if (each.deed == "cont" or ends(each)) and each.at >= fault.at
        )
        return min(later, default=float("inf"))

    def end_of(self, pid: int, since: float) -> float | None:
        """When the process, or what kept it alive, was killed, stopped for good or seen for the last time, if it was.

        What has begun while its process dies is over at once. Who descends from a process that has ended, ends with it
        or soon after it: nobody sees when, so it is there for as long as it writes.
        """
        own = [fault for fault in self._of.get(pid, ()) if fault.at >= since - DYING]
        found = [
            max(fault.at, since)
            for fault in own
            if ends(fault) or fault.deed == GONE or (fault.deed == "stop" and isinf(self._lasts(fault)))
        ]
        found += [
            max(fault.at, self.last_word(pid, since))
            for one in self.line(pid, since)
            for fault in self._of.get(one, ())
            if fault.at >= since and (fault.deed == BEREAVED or (ends(fault) and one != pid))
        ]
        return min(found, default=None)

    def continued(self, pid: int, at: float, grace: float) -> bool:
        """Whether the process was told to go on after a stop, or lost its store to a move, so shortly before."""
        return any(
            fault.deed in ("cont", CLOSED) and fault.at <= at <= fault.at + grace
            for one in self.line(pid, at)
            for fault in self._of.get(one, ())
        )


def ends(fault: Record) -> bool:
    """Whether a process ends by this, whoever does it."""
    return harms(fault) and fault.deed not in ("stop", BEREAVED)


def harms(fault: Record) -> bool:
    """Whether a process may end, or seem to, by this."""
    return fault.deed not in HARMLESS
