"""Claims (T2): jobs go out, by the function `claim`; and where in the line it looks.

Rows that were taken stay in the index until a vacuum, and one transaction that somebody leaves open keeps all of them
there: a look from the front of the line then walks over everything that was taken since. The server says how many such
dead entries a look has met. After several looks in a row that met many, most looks begin at a *mark*, one for each
priority, which is a little before the last place taken there:

    priority 9   ·········|──►         what is behind the mark is looked at by every claim,
    priority 7            ──────►      and so is all of a priority that has no mark;
    priority 5   ···|───►              what is before a mark (···), in rounds

So what is enqueued is found at once, however urgent. Only what comes to stand before the mark of its own priority waits
for the next *round*: it was given back, promoted late, or enqueued by a transaction that was committed late. A round
goes over this part of the line from its front to its end, a bit with one claim and a bit with another: each asks only
whether there is anything at all in its bit, and if so, looks at everything.

A round takes a small share of the time, and less than a second whatever it takes: a claim that comes when it should be
over and is not looks at everything, as does one that must be thorough. Where claims are few, one in a second does. Once
a look at everything meets few dead entries, the marks go.

How long anything took plays no part, so that a busy machine looks the same as a quiet one.
"""

from bisect import bisect_right
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
SUSPICIOUS = 3  # looks in a row that met more
STEP = 250  # entries, from a mark to the last place taken: at least one, at most two
MOST_POSTS = 256  # for each priority
MOST_BANDS = 16  # priorities that have marks; the others are looked at from their front
ROUND = (
    20e-6  # seconds of a round for each dead entry, which costs the server a fifth of a microsecond, or two
)
SHORTEST, LONGEST = 0.1, 0.8  # seconds of a round
TURNS = 10  # bits of a round
OFTEN = 0.2  # seconds between two claims, with which a round can be made
SECOND = 1.0  # in which everything is to be looked at
BELIEVED: Millis = 60_000  # a step back of the clock that is not ridden out

LinePosition = tuple[int, int, int]  # priority (negated), run_at, number: the order of the line
Slice = tuple[int, int, int, int]  # what is behind this place, and the last priority that belongs to it
Probe = tuple[
    int, int, int, int, int
]  # of one priority, what is behind the first place and not behind the second
WantKey = tuple[tuple[str, ...], tuple[str, ...] | None, bool | None]

FRONT: LinePosition = (-(2**31), -(2**63), 0)
END: LinePosition = (2**31 - 1, 2**63 - 1, 0)

CLAIMED_AT = Lease.__struct_fields__.index("claimed_at")


class ScanStart(Struct, frozen=True):
    """Where to look, None for everywhere, and everywhere too if there is anything in a probe.

    And how far the round will have come then, if it goes on with this look.
    """

    slices: tuple[Slice, ...] | None = None
    until: LinePosition | None = END
    probes: tuple[Probe, ...] = ()


EVERYWHERE = ScanStart()


class Course(Struct):
    """What is known of one line; by negated priority, where it has places."""

    heavy: int = 0  # looks everywhere, in a row, that met many dead entries
    posts: dict[int, list[LinePosition]] = field(
        default_factory=dict
    )  # the marks that were, and last the one that is
    newest: dict[int, LinePosition] = field(default_factory=dict)  # the last place taken
    next: dict[int, LinePosition] = field(default_factory=dict)  # what will be the marks
    looked: float = 0.0  # when a claim came last
    began: float = 0.0  # of the round
    period: float = LONGEST
    came: LinePosition = END
    end: LinePosition = END
    met: int = 0  # dead entries
    light: bool = False  # whether no look met many
    turned: bool = False  # whether the last look was part of the round
    more: bool = False  # whether there was no room for all that it found before the marks


class Marks:
    """The marks of one process, by what is wanted."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._courses: dict[WantKey, Course] = {}

    def look(self, want: Want) -> ScanStart:
        """Where in the line to look now."""
        course = self._courses.get(_key_of(want))
        if course is None or not course.posts or want.thorough:
            return EVERYWHERE
        return _scan_start(course, self._clock())

    def note(self, want: Want, look: ScanStart, leases: Sequence[Lease], dead: int, at: Millis) -> None:
        """Remember what a look has found, in the order of the line, the dead entries it met, and its store time."""
        line, many = _key_of(want), dead > FEW + 2 * len(leases)
        if not many and line not in self._courses:
            return
        course = self._courses.setdefault(line, Course())
        for place in map(position_of, leases):
            course.newest[place[0]] = max(place, course.newest.get(place[0], place))
        if (look.slices is None and not many) or any(mark[1] > at + BELIEVED for mark in _marks(course)):
            del self._courses[line]
            return
        course.more = _is_cut(course, want, leases)
        if look.slices is None:
            _note_everything(course, dead, self._clock())
        elif look.until is not None:
            course.came, course.met, course.turned = max(course.came, look.until), course.met + dead, True
            course.light = course.light and not many
            _move_on(course, len(leases))
        else:
            course.turned = False
            _move_on(course, dead + len(leases))


def position_of(lease: Lease) -> LinePosition:
    """Where in the line it stood."""
    return -lease.priority, lease.run_at, lease.number


def slices_of(marks: Sequence[LinePosition]) -> tuple[Slice, ...]:
    """What is behind these marks, in the order of the line, and all priorities without one."""
    lows = (FRONT, *marks)
    lasts = (*(mark[0] - 1 for mark in marks), END[0])
    return tuple((*low, last) for low, last in zip(lows, lasts, strict=True))


def probes_of(marks: Sequence[LinePosition], first: LinePosition, last: LinePosition) -> tuple[Probe, ...]:
    """What is before the marks, as far as it is between these places."""
    probes: list[Probe] = []
    for mark in marks:
        low, high = max(first, (mark[0], FRONT[1], FRONT[2])), min(last, mark)
        if low < high:
            probes.append((mark[0], low[1], low[2], high[1], high[2]))
    return tuple(probes)


def _is_cut(course: Course, want: Want, leases: Sequence[Lease]) -> bool:
    """Whether there may be more before the marks than these, for which there was no room."""
    if not leases or (len(leases) < want.limit and not is_large(leases)):
        return False
    last = position_of(leases[-1])
    return last[0] in course.posts and last <= course.posts[last[0]][-1]


def _scan_start(course: Course, now: float) -> ScanStart:
    marks = _marks(course)
    if course.more:
        return EVERYWHERE
    gap, past, is_over = now - course.looked, now - course.began, course.came >= course.end
    course.looked = now
    if gap > OFTEN:
        return EVERYWHERE if past + gap >= SECOND or not is_over else ScanStart(slices_of(marks), None)
    if (past >= LONGEST and not is_over) or (past >= course.period and is_over and course.light):
        return EVERYWHERE
    if past >= course.period and is_over:
        _begin(course, now, FRONT, marks[-1])
    elif course.turned:
        return ScanStart(slices_of(marks), None)  # which tells how far the marks are behind
    until = _turn(course, now)
    if until <= course.came:
        return ScanStart(slices_of(marks), None)
    return ScanStart(slices_of(marks), until, probes_of(marks, course.came, until))


def _begin(course: Course, now: float, came: LinePosition, end: LinePosition) -> None:
    course.period = min(LONGEST, max(SHORTEST, ROUND * course.met))
    course.began, course.came, course.end, course.met, course.light = now, came, end, 0, True


def _turn(course: Course, now: float) -> LinePosition:
    """Up to where a round should come by now.

    Not into the middle of jobs of one instant: before PostgreSQL 18, a look does not end before they do.
    """
    turn = int(TURNS * (now - course.began) / course.period) + 1
    if turn >= TURNS:
        return course.end
    posts = [post for _, posts in sorted(course.posts.items()) for post in posts]
    count = bisect_right(posts, course.end)
    priority, run_at, _ = posts[max(0, -(-count * turn // TURNS) - 1)]
    return posts[bisect_right(posts, (priority, run_at, END[1])) - 1]


def _note_everything(course: Course, dead: int, now: float) -> None:
    """A look from the front that met many: a whole round at once."""
    course.heavy += 1
    if course.heavy >= SUSPICIOUS:
        _set_marks(course, course.newest)
        course.met = dead
        _begin(course, now, END, END)
        course.met, course.light, course.turned, course.looked = dead, False, False, now


def _move_on(course: Course, behind: int) -> None:
    """Let the marks follow what is taken, when so many entries are behind them."""
    if behind >= 2 * STEP:
        _set_marks(course, course.next or course.newest)
        course.next = {}
    elif behind >= STEP and not course.next:
        course.next = dict(course.newest)


def _set_marks(course: Course, places: dict[int, LinePosition]) -> None:
    for priority, place in places.items():
        if priority not in course.posts and len(course.posts) >= MOST_BANDS:
            continue
        posts = course.posts.setdefault(priority, [])
        if not posts or place > posts[-1]:
            posts.append(place)
        if len(posts) > MOST_POSTS:
            del posts[:-1:2]


def _marks(course: Course) -> list[LinePosition]:
    return sorted(posts[-1] for posts in course.posts.values())


def _key_of(want: Want) -> WantKey:
    return want.tasks, want.queues, want.alone


def claim(marks: Marks, worker: UUID, wants: Sequence[Want]) -> Steps[list[Lease]]:
    """Lease the best ready jobs for each want."""
    looks = [marks.look(want) for want in wants]
    asked = [_asked(want, look) for want, look in zip(wants, looks, strict=True)]
    rows = (yield sql("claim", worker.bytes, json.encode(asked).decode())).fetchall()
    taken: list[Lease] = []
    left = zip(wants, looks, strict=True)
    leases: list[Lease] = []
    for row in rows:
        dead: int | None = row[-1]
        if dead is None:
            leases.append(Lease(*row[:-1]))
            continue
        # The last row for a want.
        leases.sort(key=position_of)
        marks.note(*next(left), leases, dead, at=row[CLAIMED_AT])
        taken += leases
        leases = []
    return taken


def _asked(want: Want, look: ScanStart) -> dict[str, Any]:
    return {
        "tasks": want.tasks,
        "queues": want.queues,
        "limit": want.limit,
        "alone": want.alone,
        "slices": look.slices,
        "probes": look.probes,
    }
