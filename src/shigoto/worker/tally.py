"""What a ticker counts of its own doings, and what that comes to: in memory, for this process alone.

What all schedulers together have done with a schedule is in the store, in its `counts`.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from math import ceil

from msgspec import Struct

from shigoto.model.schedule import Change
from shigoto.model.time import Millis

WINDOW = 1_000  # values of which the spread is told, the newest,
WITHIN = 600.0  # and of ticks those of so many seconds: an outage that is over is no news for ever
RECENT = 100  # cycles that count for the rate of errors
MOST_NAMED = 10_000  # schedules that are counted one by one


class Spread(Struct, frozen=True, kw_only=True):
    """Of the newest values the middle one, and that which one in a hundred exceeds; None if there is none."""

    p50: float | None
    p99: float | None


class ScheduleFigures(Struct, frozen=True, kw_only=True):
    """What this process has done with one schedule; `last_at` is the newest tick that it has fired."""

    fired: int = 0
    passed: int = 0
    lost: int = 0
    failures: int = 0
    last_at: Millis | None = None


class Figures(Struct, frozen=True, kw_only=True):
    """What a ticker has done since it began.

    Ticks that it `fired`, that `passed` without a job (missed, skipped, suppressed), that it `lost` to another
    instance; `failures` are jobs that could not be made or stored, `errors` are cycles in which the store did not
    answer. `error_rate` is the part of the newest cycles in which something failed. `lateness` in milliseconds is that
    of ticks which fired, also of those that were caught up, but not of those that waited for the job before. `cycle`
    is in seconds, and so is `idle`: since when no cycle has ended. `down_for` is since when the store does not answer,
    None if it does; `trouble` is what it said last. `last_fired` is an instant of the store. `left_alone` are schedules
    that are due, but in time zones that are not known here.
    """

    fired: int
    passed: int
    lost: int
    failures: int
    errors: int
    cycles: int
    cycle_seconds: float
    cycle: Spread
    lateness: Spread
    error_rate: float
    idle: float
    down_for: float | None
    trouble: str | None
    last_fired: Millis | None
    by_schedule: dict[str, ScheduleFigures]
    by_priority: dict[int, int]
    seconds: float  # since it began to count
    left_alone: tuple[str, ...] = ()

    @property
    def rates(self) -> "Rates":
        """How many jobs it has stored per second, since it began."""
        seconds = self.seconds or 1.0
        return Rates(
            total=self.fired / seconds,
            by_schedule={name: each.fired / seconds for name, each in self.by_schedule.items()},
            by_priority={priority: fired / seconds for priority, fired in self.by_priority.items()},
        )


class Tally:
    """Counts. For one event loop, whose seconds `time` tells."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._since = self._began_at = self._looked_at = self._ended_at = time()
        self._down_since: float | None = None
        self._trouble: str | None = None
        self._failed = False  # something in this cycle
        self._totals = Counter[str]()
        self._seconds = 0.0
        self._cycles: deque[float] = deque(maxlen=WINDOW)
        self._outcomes: deque[bool] = deque(maxlen=RECENT)
        self._lateness: deque[tuple[float, Millis]] = deque(maxlen=WINDOW)
        self._last_fired: Millis | None = None
        self._named: dict[str, Counter[str]] = {}
        self._last_at: dict[str, Millis] = {}
        self._priorities = Counter[int]()
        self.left_alone: set[str] = set()  # schedules that this process cannot look at

    def begin(self) -> None:
        """A cycle begins."""
        self._began_at = self._looked_at = self._time()
        self._failed = False

    def look(self) -> None:
        """It is about to ask the store what is due, and what time it is there."""
        self._looked_at = self._time()

    def end(self) -> None:
        """It has ended, and the store has answered."""
        self._ended_at = self._time()
        self._down_since = self._trouble = None
        self._totals["cycles"] += 1
        self._seconds += self._ended_at - self._began_at
        self._cycles.append(self._ended_at - self._began_at)
        self._outcomes.append(self._failed)

    def broke(self, error: Exception) -> bool:
        """It was cut short: the store does not answer. Tells whether that is news."""
        news = self._down_since is None
        # Since it was asked, not since it was given up: a store may take its time to say that it cannot.
        self._down_since = self._began_at if self._down_since is None else self._down_since
        self._trouble = str(error)
        self._totals["errors"] += 1
        self._outcomes.append(True)
        return news

    @property
    def down_for(self) -> float | None:
        """For how many seconds the store has not answered; None if it does."""
        return None if self._down_since is None else self._time() - self._down_since

    @property
    def waited(self) -> Millis:
        """How long this cycle has taken since it looked at the store's clock."""
        return round((self._time() - self._looked_at) * 1000)

    def lost(self, schedule: str) -> None:
        """Another instance was first."""
        self._count(schedule, "lost")

    def told(self, change: Change, *, held: bool = False) -> None:
        """The store has done this; `held` if it had to wait for the job before, which makes ticks late on purpose."""
        schedule = change.schedule
        if schedule.errors:
            self._count(schedule.name, "failures")
            self._failed = True
        for firing in change.firings:
            entry = firing.entry
            if firing.spec is None:
                self._count(schedule.name, "passed", firing.ticks)
                continue
            self._count(schedule.name, "fired")
            self._priorities[firing.spec.priority] += 1
            self._last_fired = entry.decided_at
            if schedule.name in self._named:
                self._last_at[schedule.name] = entry.at
            if not held:
                self._lateness.append((self._time(), entry.decided_at - entry.at + self.waited))

    def figures(self) -> Figures:
        """What it all comes to, as of now."""
        total, now = self._totals, self._time()
        return Figures(
            fired=total["fired"],
            passed=total["passed"],
            lost=total["lost"],
            failures=total["failures"],
            errors=total["errors"],
            cycles=total["cycles"],
            cycle_seconds=self._seconds,
            cycle=spread(self._cycles),
            lateness=spread([late for at, late in self._lateness if at >= now - WITHIN]),
            error_rate=sum(self._outcomes) / len(self._outcomes) if self._outcomes else 0.0,
            idle=now - self._ended_at,
            down_for=self.down_for,
            trouble=self._trouble,
            last_fired=self._last_fired,
            by_schedule={
                name: ScheduleFigures(**counts, last_at=self._last_at.get(name))
                for name, counts in self._named.items()
            },
            by_priority=dict(self._priorities),
            seconds=now - self._since,
            left_alone=tuple(sorted(self.left_alone)),
        )

    def _count(self, schedule: str, what: str, count: int = 1) -> None:
        self._totals[what] += count
        if schedule in self._named or len(self._named) < MOST_NAMED:
            self._named.setdefault(schedule, Counter())[what] += count


def spread(values: Sequence[float]) -> Spread:
    """The middle one of the values, and that which one in a hundred exceeds."""
    if not values:
        return Spread(p50=None, p99=None)
    ordered = sorted(values)
    return Spread(p50=_at(ordered, 0.50), p99=_at(ordered, 0.99))


def _at(ordered: Sequence[float], part: float) -> float:
    return ordered[max(0, ceil(len(ordered) * part) - 1)]


class Rates(Struct, frozen=True, kw_only=True):
    """Jobs of ticks that were stored, per second: in all, of each schedule, and by priority."""

    total: float
    by_schedule: dict[str, float]
    by_priority: dict[int, float]
