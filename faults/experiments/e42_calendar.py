"""E42: hundreds of cron expressions in a dozen zones over twenty years, held against a calendar of another make.

The oracle (`faults/tools/oracle.py`) shares no code with ours: it looks at minutes. The zones change their clocks by
half an hour, by two hours, at midnight, a minute after it, before and after Ramadan, and leave out a day. Each pair of
an expression and a zone is compared over all the years, with both answers to times that the clocks skip or show twice;
what is due more often than some fifty times a day is compared around every change of the clocks, and in a week of each
year. And wherever somebody begins to look, what comes next must be the same.
"""

import os
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import takewhile
from random import Random

from msgspec import Struct, field

from faults.experiment import Experiment, Outcome, Setting
from faults.tools import expressions
from faults.tools.oracle import DAY, HOUR, Rule, Zone
from shigoto.options import Fold, Gap
from shigoto.schedule.recurrence import Cron

ZONES = (
    "UTC",
    "Asia/Tokyo",
    "America/New_York",
    "Europe/Dublin",
    "Australia/Lord_Howe",  # by half an hour
    "Antarctica/Troll",  # by two hours
    "America/Sao_Paulo",  # at midnight, until 2019
    "America/Havana",
    "Asia/Beirut",
    "America/St_Johns",  # a minute after midnight, until 2011
    "Africa/Casablanca",  # four times a year
    "Pacific/Apia",  # 30 December 2011 was left out
)
EXPRESSIONS = 200
YEARS, SHORT_YEARS = (2008, 2028), (2011, 2013)
ANSWERS: tuple[tuple[Gap, Fold], ...] = (("after", "first"), ("skip", "both"))
MIXED: tuple[tuple[Gap, Fold], ...] = (("after", "both"), ("skip", "first"))  # compared around changes
OFTEN = 50  # times a day
LOOKS = 12  # beginnings, of each expression in each zone
NEAR = (-DAY, -HOUR, -61, -1, 0, 1, 59, HOUR, 2 * HOUR, DAY)  # to a change of the clocks


class Found(Struct, kw_only=True):
    """What comparisons have shown."""

    ticks: int = 0
    looks: int = 0
    changes: int = 0
    wrong: list[str] = field(default_factory=list)


def run(setting: Setting) -> Outcome:
    """Zone by zone."""
    random = setting.random("expressions")
    special = [*expressions.SPECIAL, *expressions.DENSE]
    if setting.full:
        others = expressions.some(random, 2 * EXPRESSIONS)
        chosen = list(dict.fromkeys(special + others))[:EXPRESSIONS]
    else:
        chosen = random.sample(special, 8) + expressions.some(random, 8)
    years = setting.of(SHORT_YEARS, YEARS)
    outcome, total, mismatches = Outcome(), Found(), 0
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        jobs = [pool.submit(compare, zone, chosen, years, setting.seed) for zone in ZONES]
        for zone, job in zip(ZONES, jobs, strict=True):
            found = job.result()
            outcome.wrong += found.wrong[:5]
            mismatches += len(found.wrong)
            total.ticks += found.ticks
            total.looks += found.looks
            total.changes += found.changes
            setting.say(f"E42: {zone}: {found.ticks} ticks, {len(found.wrong)} mismatches")
    outcome.n = total.ticks + total.looks
    outcome.figures = {
        "expressions": len(set(chosen)),
        "zones": len(ZONES),
        "years": years[1] - years[0],
        "changes of clocks": total.changes,
        "ticks": total.ticks,
        "beginnings": total.looks,
        "mismatches": mismatches,
    }
    return outcome


def compare(name: str, chosen: Sequence[str], years: tuple[int, int], seed: int) -> Found:
    """All expressions in one zone."""
    begin, end = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in years)
    comparison = Comparison(Zone(name, begin, end))
    for expression in dict.fromkeys(chosen):
        comparison.hold(expression, Random(f"{seed} {name} {expression}"))
    for expression in expressions.BY_THE_SECOND:
        comparison.hold_seconds(expression)
    return comparison.found


class Comparison:
    """What is due in a zone: by us, and by the oracle."""

    def __init__(self, zone: Zone) -> None:
        self._zone = zone
        self._changes = zone.changes
        self.found = Found(changes=len(self._changes))

    def hold(self, expression: str, random: Random) -> None:
        """One expression, over all the years if it is due seldom enough."""
        rule, zone = Rule(expression), self._zone
        around = [range(at - at % DAY - DAY, at - at % DAY + 2 * DAY, DAY) for at in self._changes]
        if len(rule.times) > OFTEN:
            weeks = [range(at, at + 7 * DAY, DAY) for at in range(zone.begin, zone.end - 7 * DAY, 365 * DAY)]
            for days in weeks + around:
                self._hold_days(rule, Cron(expression, zone.name), days)
            return
        for gap, fold in ANSWERS:
            cron = Cron(expression, zone.name, gap, fold)
            ticks = list(zone.due(rule, gap=gap, fold=fold))
            self._hold(cron, ticks, zone.begin, zone.end)
            self._look(cron, ticks, random)
        for gap, fold in MIXED if rule.fixed else ():
            for days in around:
                self._hold_days(rule, Cron(expression, zone.name, gap, fold), days)

    def hold_seconds(self, expression: str) -> None:
        """One that is due within minutes, second by second around some changes, and around midnight in spring."""
        for at in (*self._changes[:3], self._zone.begin + 100 * DAY):
            first, last = at - HOUR, at + HOUR
            ticks = list(self._zone.due_by_seconds(Rule(expression), first, last))
            self._hold(Cron(expression, self._zone.name), ticks, first, last)

    def _hold_days(self, rule: Rule, cron: Cron, days: range) -> None:
        inside = range(max(days.start, self._zone.begin), min(days.stop, self._zone.end), DAY)
        ticks = list(self._zone.due(rule, gap=cron.gap, fold=cron.fold, days=inside))
        self._hold(cron, ticks, inside.start, inside.stop)

    def _hold(self, cron: Cron, ticks: Sequence[int], begin: int, end: int) -> None:
        """From an instant until before another one."""
        ours = [at // 1000 for at in takewhile(lambda at: at < end * 1000, cron.after(begin * 1000 - 1))]
        self.found.ticks += len(ticks)
        if ours != ticks:
            odd = min(set(ours).symmetric_difference(ticks), default=begin)
            self._blame(cron, f"{len(ours)} and not {len(ticks)} times; first", odd)

    def _look(self, cron: Cron, ticks: Sequence[int], random: Random) -> None:
        """From some instants on, in whatever order."""
        zone, near = self._zone, random.sample(self._changes, min(len(self._changes), 2))
        looks = [change + by for change in near for by in random.sample(NEAR, 3)]
        looks += [random.randrange(zone.begin, zone.end) for _ in range(LOOKS - len(looks))]
        looks += [at + by for at in random.sample(ticks, min(len(ticks), 2)) for by in (-1, 0)]
        for at in looks:
            following = bisect_right(ticks, at)
            if not (zone.begin <= at and following < len(ticks)):
                continue
            self.found.looks += 1
            if next(cron.after(at * 1000 + random.choice((0, 1, 999)))) != ticks[following] * 1000:
                self._blame(cron, "otherwise, looked at from", at)

    def _blame(self, cron: Cron, what: str, at: int) -> None:
        when = datetime.fromtimestamp(at, UTC).isoformat()
        self.found.wrong.append(
            f"{cron.expression!r} in {cron.tz} ({cron.gap}, {cron.fold}) is due {what} {when}"
        )


EXPERIMENT = Experiment(id="E42", title="cron expressions against a calendar of another make", act=run)
