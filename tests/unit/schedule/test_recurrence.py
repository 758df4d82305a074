"""When schedules are due: cron expressions in time zones, intervals, and single instants (S4-22, F28, E42).

What is written out here was worked out by hand; a calendar of another make, which is held against these cases too, then
stands for all the others.
"""

from datetime import datetime, tzinfo
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

import pytest

from faults.experiment import Setting
from faults.experiments.e42_calendar import EXPERIMENT, ZONES, Comparison
from faults.tools.oracle import DAY, Rule, Zone
from shigoto.options import Fold, Gap
from shigoto.schedule import recurrence
from shigoto.schedule.recurrence import Cron, Every, Once, Season, Seconds, offset_at

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
SAO_PAULO, APIA, BEIRUT, HAVANA = "America/Sao_Paulo", "Pacific/Apia", "Asia/Beirut", "America/Havana"

# Expression, zone, since when by the clocks there, and what follows: with the offset, since a time may come twice.
CASES = {
    "every day": ("0 3 * * *", "Asia/Tokyo", "2026-05-05T12:00", ["05-06T03:00+09:00", "05-07T03:00+09:00"]),
    "leapt over": ("30 2 * * *", BERLIN, "2026-03-28T12:00", ["03-29T03:00+02:00", "03-30T02:30+02:00"]),
    "leapt over, twice": ("10,50 2 * * *", BERLIN, "2026-03-28T12:00", ["03-29T03:00+02:00", "03-30T02:10+02:00"]),
    "leapt over to another": ("0 2,3 * * *", BERLIN, "2026-03-28T12:00", ["03-29T03:00+02:00", "03-30T02:00+02:00"]),
    "shown twice": ("30 2 * * *", BERLIN, "2026-10-24T12:00", ["10-25T02:30+02:00", "10-26T02:30+01:00"]),
    "swept over, forward": ("30 * * * *", BERLIN, "2026-03-29T01:00", ["03-29T01:30+01:00", "03-29T03:30+02:00"]),
    "swept over, back": (
        "30 * * * *", BERLIN, "2026-10-25T02:00", ["10-25T02:30+02:00", "10-25T02:30+01:00", "10-25T03:30+01:00"]
    ),
    "half an hour forward": ("15 2 * * *", LORD_HOWE, "2026-10-03T12:00", ["10-04T02:30+11:00", "10-05T02:15+11:00"]),
    "half an hour back": ("45 1 * * *", LORD_HOWE, "2026-04-04T12:00", ["04-05T01:45+11:00", "04-06T01:45+10:30"]),
    "no midnight": ("0 0 * * *", SAO_PAULO, "2018-11-03T12:00", ["11-04T01:00-02:00", "11-05T00:00-02:00"]),
    "two midnights": ("0 0 * * *", HAVANA, "2026-10-31T12:00", ["11-01T00:00-04:00", "11-02T00:00-05:00"]),
    "an hour before midnight twice": (
        "30 23 * * *", BEIRUT, "2026-10-24T12:00", ["10-24T23:30+03:00", "10-25T23:30+02:00"]
    ),
    "a day that was not": ("0 12 * * *", APIA, "2011-12-28T13:00", ["12-29T12:00-10:00", "12-31T00:00+14:00"]),
    "on a day that was not": ("0 12 30 12 *", APIA, "2011-06-01T00:00", ["12-31T00:00+14:00"]),
    "a leap day": ("0 0 29 2 *", "UTC", "2096-03-01T00:00", ["2104-02-29T00:00+00:00"]),
    "the last day": ("0 0 L * *", "UTC", "2028-02-01T00:00", ["02-29T00:00+00:00", "03-31T00:00+00:00"]),
    "the last workday": ("0 0 LW * *", "UTC", "2026-05-01T00:00", ["05-29T00:00+00:00", "06-30T00:00+00:00"]),
    "the last Friday": ("0 0 * * 5L", "UTC", "2026-05-01T00:00", ["05-29T00:00+00:00", "06-26T00:00+00:00"]),
    "the second Monday": ("0 0 * * MON#2", "UTC", "2026-05-01T00:00", ["05-11T00:00+00:00", "06-08T00:00+00:00"]),
    "a day or a weekday": ("0 0 13 * FRI", "UTC", "2026-05-09T00:00", ["05-13T00:00+00:00", "05-15T00:00+00:00"]),
    "a day and a weekday": ("0 0 */13 * FRI", "UTC", "2026-05-09T00:00", ["08-14T00:00+00:00"]),
    "seconds": ("*/30 59 23 31 12 *", "UTC", "2026-12-31T00:00", ["12-31T23:59:00+00:00", "12-31T23:59:30+00:00"]),
    "seconds leapt over": ("5,9 30 2 * * *", BERLIN, "2026-03-28T12:00", ["03-29T03:00+02:00", "03-30T02:30:05+02:00"]),
}  # fmt: skip


def instant(local: str, zone: str) -> int:
    return int(datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).timestamp())


def expected(since: str, following: list[str]) -> list[int]:
    """Years are left out where they are that of the beginning."""
    full = [text if text[4] == "-" else f"{since[:5]}{text}" for text in following]
    return [int(datetime.fromisoformat(text).timestamp()) for text in full]


def due(cron: Cron, since: str, count: int) -> list[int]:
    return [at // 1000 for at in islice(cron.after(instant(since, cron.tz) * 1000), count)]


class TestCron:
    """S4-22: time zones, and changes of the clocks."""

    @pytest.mark.parametrize("case", CASES)
    def test_it_is_due_when_people_would_expect_it(self, case: str) -> None:
        """F28, E42."""
        expression, zone, since, following = CASES[case]

        assert due(Cron(expression, zone), since, len(following)) == expected(since, following)

    @pytest.mark.parametrize(
        ("gap", "fold", "since", "following"),
        [
            ("skip", "first", "2026-03-28T12:00", ["03-30T02:30+02:00"]),
            ("after", "both", "2026-03-28T12:00", ["03-29T03:00+02:00", "03-30T02:30+02:00"]),
            ("skip", "both", "2026-10-24T12:00", ["10-25T02:30+02:00", "10-25T02:30+01:00"]),
            ("skip", "first", "2026-10-24T12:00", ["10-25T02:30+02:00", "10-26T02:30+01:00"]),
        ],
    )
    def test_what_the_clocks_skip_or_show_twice_can_be_chosen(
        self, gap: Gap, fold: Fold, since: str, following: list[str]
    ) -> None:
        """F28."""
        cron = Cron("30 2 * * *", BERLIN, gap, fold)

        assert due(cron, since, len(following)) == expected(since, following)

    def test_a_look_in_the_midst_of_a_change_sees_the_same(self) -> None:
        cron = Cron("30 2 * * *", BERLIN)
        leap = instant("2026-03-29T03:00", BERLIN)

        assert next(cron.after(leap * 1000 - 1)) == leap * 1000
        assert next(cron.after(leap * 1000)) == instant("2026-03-30T02:30", BERLIN) * 1000
        again = int(datetime.fromisoformat("2026-10-25T02:10+01:00").timestamp())
        assert next(cron.after(again * 1000)) == instant("2026-10-26T02:30", BERLIN) * 1000

    def test_it_comes_to_an_end_where_there_is_nothing_any_more(self) -> None:
        assert next(Cron("0 0 */31 * 1#3", "UTC").after(0), None) is None

    def test_a_word_is_what_it_stands_for(self) -> None:
        for word, fields in recurrence.WORDS.items():
            once, again = Cron(word, BERLIN), Cron(fields, BERLIN)

            assert due(once, "2026-03-01T00:00", 3) == due(again, "2026-03-01T00:00", 3)


class TestEvery:
    """Intervals."""

    def test_it_is_counted_from_the_epoch(self) -> None:
        assert list(islice(Every(5_000).after(12_345), 3)) == [15_000, 20_000, 25_000]

    def test_it_is_later_than_what_it_is_asked_for(self) -> None:
        assert next(Every(5_000).after(15_000)) == 20_000
        assert next(Every(5_000).after(14_999)) == 15_000

    def test_it_does_not_begin_before_its_start(self) -> None:
        assert list(islice(Every(5_000, start=7_000).after(0), 2)) == [7_000, 12_000]

    def test_the_clocks_do_not_matter_to_it(self) -> None:
        since = instant("2026-03-28T00:00", BERLIN) * 1000

        ticks = list(islice(Every(3_600_000).after(since), 48))

        assert [later - at for at, later in pairwise(ticks)] == [3_600_000] * 47


def test_once_is_once() -> None:
    assert list(Once(5_000).after(4_999)) == [5_000]
    assert list(Once(5_000).after(5_000)) == []


def never_changed(since: Seconds, until_year: int, zone: tzinfo) -> list[Season]:
    """The seasons of a zone as if nobody ever changed the clocks."""
    return [Season(since, 2**40, offset_at(since, zone))]


class TestOracle:
    """E42: what ours is held against, and that it can tell."""

    @pytest.mark.parametrize("case", CASES)
    def test_it_knows_the_same_cases(self, case: str) -> None:
        expression, name, since, following = CASES[case]
        begin = instant(since, name)
        wanted = expected(since, following)
        zone = Zone(name, begin - begin % DAY, wanted[-1] - wanted[-1] % DAY + DAY)

        found = [at for at in zone.due(Rule(expression)) if at > begin]

        assert found[: len(wanted)] == wanted

    def test_every_second_is_what_every_minute_is(self) -> None:
        begin = instant("2026-10-25T00:00", "UTC")
        zone, rule = Zone(BERLIN, begin, begin + DAY), Rule("*/20 */7 0-4 * * *")

        assert list(zone.due(rule)) == list(zone.due_by_seconds(rule, begin, begin + DAY))

    @pytest.mark.parametrize(
        ("name", "broken"),
        [
            ("has_fixed_times", lambda fields: False),
            ("has_fixed_times", lambda fields: True),
            ("seasons", never_changed),
        ],
    )
    def test_it_sees_a_calendar_that_is_wrong(
        self, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin = instant("2026-01-01T00:00", "UTC")
        comparison = Comparison(Zone(BERLIN, begin, begin + 365 * DAY))
        monkeypatch.setattr(recurrence, name, broken)

        for expression in ("30 2 * * *", "30 * * * *"):
            comparison.hold(expression, Random(0))

        assert comparison.found.wrong

    @pytest.mark.tier("nightly")
    def test_e42_ours_is_the_same_wherever_they_are_held_against_each_other(self, tmp_path: Path) -> None:
        """E42, F28, S4-22: sixteen expressions in twelve zones for two years; in full two hundred for twenty."""
        outcome = EXPERIMENT.run(
            Setting(engine="sqlite", folder=tmp_path, seed=42, full=False, say=lambda _: None)
        )

        assert outcome.passed, outcome.wrong
        assert outcome.n > 100_000
        assert outcome.figures["zones"] == len(ZONES) == 12
