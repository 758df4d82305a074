"""Claims (T2): jobs go out, by the function `claim`; and where in the line a claim starts to look.

Rows that were taken stay in the index until a vacuum, and one transaction that stays open keeps all of them there: a
scan from the front of the line then walks over everything that was taken since. The server tells how many such dead
entries a scan has met. After several full scans in a row that met many, a claim begins at the *scan starts*, one for
each priority, which is a little before the last place taken there:

    priority 9   ·········|──►         what is behind a scan start is looked at by every claim,
    priority 7            ──────►      and so is all of a priority that has none;
    priority 5   ···|───►              what is before a scan start (···), by a full scan

So what is enqueued is found at once, however urgent. Only what comes to stand before the scan start of its own priority
waits for the next full scan: it was given back, promoted late, or enqueued by a transaction that was committed late.

A claim is a full scan if it must be thorough, or if the last full scan would be a second ago at the next claim. Once a
full scan meets few dead entries, the scan starts go.

How long anything took plays no part, so that a busy machine looks the same as a quiet one.
"""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any
from uuid import UUID

from msgspec import Struct, field, json

from shigoto.engine.sql.commands import Steps, sql
from shigoto.model.job import Lease
from shigoto.model.time import Millis
from shigoto.model.worker import Want, is_large

FEW = 500  # dead entries that say nothing: others have just taken them
SUSPICIOUS = 3  # full scans in a row that met more
STEP = 250  # entries, from a scan start to the last place taken: at least one step, at most two
MOST_STARTS = 16  # priorities that have one; the others are looked at from their front
LONGEST = 0.8  # seconds from one full scan to the next, if claims come often
SECOND = 1.0  # in which everything is to be looked at
BELIEVED: Millis = 60_000  # a step back of the clock that is not ridden out

LinePosition = tuple[int, int, int]  # priority (negated), run_at, number: the order of the line
Slice = tuple[int, int, int, int]  # what is behind this place, and the last priority that belongs to it
WantKey = tuple[tuple[str, ...], tuple[str, ...] | None, bool | None]

FRONT: LinePosition = (-(2**31), -(2**63), 0)
LAST_PRIORITY = 2**31 - 1

CLAIMED_AT = Lease.__struct_fields__.index("claimed_at")


class LineScans(Struct):
    """What is known of one line; places are by negated priority."""

    heavy: int = 0  # full scans that met many dead entries
    starts: dict[int, LinePosition] = field(default_factory=dict)
    newest: dict[int, LinePosition] = field(default_factory=dict)  # the last place taken
    next: dict[int, LinePosition] = field(default_factory=dict)  # what will be the scan starts
    claimed_at: float = 0.0
    scanned_at: float = 0.0  # the last full scan
    more: bool = False  # whether there was no room for all that a full scan found before the scan starts


class ScanStarts:
    """The scan starts of one process, by what is wanted."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lines: dict[WantKey, LineScans] = {}

    def slices(self, want: Want) -> tuple[Slice, ...] | None:
        """Where in the line to look now; None for a full scan."""
        line = self._lines.get(_key_of(want))
        if line is None or not line.starts or line.more or want.thorough:
            return None
        now = self._clock()
        pause, line.claimed_at = now - line.claimed_at, now
        past = now - line.scanned_at
        return None if past >= LONGEST or past + pause >= SECOND else slices_of(sorted(line.starts.values()))

    def note(
        self, want: Want, slices: tuple[Slice, ...] | None, leases: Sequence[Lease], dead: int, at: Millis
    ) -> None:
        """Remember what a claim has found, in the order of the line, the dead entries it met, and its store time."""
        key, many = _key_of(want), dead > FEW + 2 * len(leases)
        if not many and key not in self._lines:
            return
        line = self._lines.setdefault(key, LineScans())
        for place in map(position_of, leases):
            line.newest[place[0]] = max(place, line.newest.get(place[0], place))
        was_set_back = any(start[1] > at + BELIEVED for start in line.starts.values())
        if (slices is None and not many) or was_set_back:
            del self._lines[key]
            return
        line.more = _is_cut(line, want, leases)
        if slices is not None:
            _move_on(line, dead + len(leases))
            return
        line.scanned_at = line.claimed_at = self._clock()
        line.heavy += 1
        if line.heavy >= SUSPICIOUS and not line.starts:
            _set_starts(line, line.newest)


def position_of(lease: Lease) -> LinePosition:
    return -lease.priority, lease.run_at, lease.number


def slices_of(starts: Sequence[LinePosition]) -> tuple[Slice, ...]:
    """What is behind these places, in the order of the line, and all priorities without one."""
    lows = (FRONT, *starts)
    lasts = (*(start[0] - 1 for start in starts), LAST_PRIORITY)
    return tuple((*low, last) for low, last in zip(lows, lasts, strict=True))


def _is_cut(line: LineScans, want: Want, leases: Sequence[Lease]) -> bool:
    """Whether there may be more before the scan starts than these, for which there was no room."""
    if not leases or (len(leases) < want.limit and not is_large(leases)):
        return False
    last = position_of(leases[-1])
    return last[0] in line.starts and last <= line.starts[last[0]]


def _move_on(line: LineScans, behind: int) -> None:
    """Let the scan starts follow what is taken, when so many entries are behind them."""
    if behind >= 2 * STEP:
        _set_starts(line, line.next or line.newest)
        line.next = {}
    elif behind >= STEP and not line.next:
        line.next = dict(line.newest)


def _set_starts(line: LineScans, places: dict[int, LinePosition]) -> None:
    for priority, place in places.items():
        if priority in line.starts or len(line.starts) < MOST_STARTS:
            line.starts[priority] = max(place, line.starts.get(priority, place))


def _key_of(want: Want) -> WantKey:
    return want.tasks, want.queues, want.alone


def claim(starts: ScanStarts, worker: UUID, wants: Sequence[Want]) -> Steps[list[Lease]]:
    """Lease the best ready jobs for each want."""
    scans = [(want, starts.slices(want)) for want in wants]
    text = json.encode([_asked(want, slices) for want, slices in scans]).decode()
    rows = (yield sql("claim", worker.bytes, text)).fetchall()
    taken: list[Lease] = []
    left = iter(scans)
    leases: list[Lease] = []
    for row in rows:
        dead: int | None = row[-1]
        if dead is None:
            leases.append(Lease(*row[:-1]))
            continue
        # The last row for a want.
        leases.sort(key=position_of)
        starts.note(*next(left), leases, dead, at=row[CLAIMED_AT])
        taken += leases
        leases = []
    return taken


def _asked(want: Want, slices: tuple[Slice, ...] | None) -> dict[str, Any]:
    return {
        "tasks": want.tasks,
        "queues": want.queues,
        "limit": want.limit,
        "alone": want.alone,
        "slices": slices,
        "probes": (),  # of a release that also looked for anything at all between two places
    }
