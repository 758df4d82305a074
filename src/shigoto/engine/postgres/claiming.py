"""T2: jobs go out, by the function `claim`; and where in the line it begins to look.

Rows that were taken stay in the index until a vacuum, and one transaction that somebody leaves open keeps all of them
there: a look from the front of the line then walks over everything that was taken since. Once that is plain to see,
claims look only behind what was taken last, most of the time. What has come to stand before that, because it is more
urgent or its transaction was committed late, is found by the next look from the front: these may take a tenth of the
time, there is one a second whatever it takes, and always one before a claim comes back with nothing.
"""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any
from uuid import UUID

from msgspec import Struct, json

from shigoto.engine.sql.command import Steps, sql
from shigoto.model.job import Lease
from shigoto.model.worker import Want

SHARE = 9.0  # times as long as the last look from the front has taken
LONGEST = 1_000.0  # milliseconds between two of them
# A look at a thousand jobs takes 3 to 4 ms of the server's time. Several in a row that take much longer are no chance.
SLOW, SLOW_FOR_EACH = 2.0, 0.01  # milliseconds
SUSPICIOUS = 3  # slow looks in a row

Place = tuple[int, int, int]  # priority (negated), run_at, number: the order of the line
Line = tuple[tuple[str, ...], tuple[str, ...] | None, bool | None]


class Mark(Struct):
    """How far one line was taken, how many looks from its front were slow, and until when none is due."""

    after: Place | None = None
    slow: int = 0
    until: float = 0.0


class Marks:
    """The marks of one process, by what is wanted."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._marks: dict[Line, Mark] = {}

    def after(self, want: Want) -> Place | None:
        """Where in the line to begin; None for its front."""
        mark = self._marks.get(_line(want))
        return None if mark is None or self._clock() >= mark.until else mark.after

    def note(self, want: Want, leases: list[Lease], took: float, *, front: bool) -> None:
        """Remember how far a look has come, and how many milliseconds it took."""
        if not leases:
            self._marks.pop(_line(want), None)
            return
        mark = self._marks.setdefault(_line(want), Mark())
        mark.after = _place(leases[-1])
        if front:
            mark.slow = mark.slow + 1 if took > SLOW + SLOW_FOR_EACH * len(leases) else 0
            pause = min(LONGEST, SHARE * took) if mark.slow >= SUSPICIOUS else 0.0
            mark.until = self._clock() + pause / 1_000


def claim(marks: Marks, worker: UUID, wants: Sequence[Want]) -> Steps[list[Lease]]:
    """Lease the best ready jobs for each want."""
    after = [marks.after(want) for want in wants]
    leases = yield from _look(marks, worker, wants, after)
    if not leases and any(place is not None for place in after):
        leases = yield from _look(marks, worker, wants, [None] * len(wants))
    return leases


def _look(
    marks: Marks, worker: UUID, wants: Sequence[Want], after: Sequence[Place | None]
) -> Steps[list[Lease]]:
    asked = [_asked(want, place) for want, place in zip(wants, after, strict=True)]
    rows = (yield sql("claim", worker.bytes, json.encode(asked).decode())).fetchall()
    taken: list[list[Lease]] = [[] for _ in wants]
    took = [0.0] * len(wants)
    for row in rows:
        at: int = row[-2] - 1
        taken[at].append(Lease(*row[:-2]))
        took[at] = row[-1]
    for want, leases, place, milliseconds in zip(wants, taken, after, took, strict=True):
        leases.sort(key=_place)
        marks.note(want, leases, milliseconds, front=place is None)
    return [lease for leases in taken for lease in leases]


def _asked(want: Want, after: Place | None) -> dict[str, Any]:
    return {
        "tasks": want.tasks,
        "queues": want.queues,
        "limit": want.limit,
        "alone": want.alone,
        "after": after,
    }


def _line(want: Want) -> Line:
    return want.tasks, want.queues, want.alone


def _place(lease: Lease) -> Place:
    return -lease.priority, lease.run_at, lease.number
