"""What can be said about a schedule: each refusal names the field, and what it may be."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from shigoto import ScheduleInvalid, Shigoto
from shigoto.model.time import to_millis
from shigoto.schedule import definition
from shigoto.schedule.definition import define, words_of
from shigoto.schedule.recurrence import Cron, Every, Once

WHEN = datetime(2030, 1, 31, 9, tzinfo=UTC)
EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))


@pytest.mark.parametrize(
    ("words", "field", "why"),
    [
        ({}, "cron", "say one of cron, every and at, not none of them"),
        ({"cron": "@daily", "at": WHEN}, "at", "not cron and at"),
        ({"cron": 5}, "cron", "an expression such as '0 3 * * *', not 5"),
        ({"cron": ""}, "cron", "has 0"),
        ({"cron": "0 0 0 0 * * *"}, "cron", "has 7"),
        ({"cron": "0 24 * * *"}, "cron", "the hour of cron"),
        ({"cron": "0 0 * 13 *"}, "cron", "the month of cron"),
        ({"cron": "0 0 * * 8"}, "cron", "the day-of-week of cron"),
        ({"cron": "99 0 0 * * *"}, "cron", "second, minute 0-59"),
        ({"cron": "@reboot"}, "cron", "@yearly"),
        ({"cron": "0 0 30 2 *"}, "cron", "is never due: no month that it names has such a day"),
        ({"cron": "0 0 31 4,6 *"}, "cron", "is never due"),
        ({"cron": "0 0 32 2 *"}, "cron", "the day-of-month of cron"),
        ({"cron": "*/61 * * * *"}, "cron", "takes every 61th minute, and there are only 60"),
        ({"cron": "0 5,*/25 * * *"}, "cron", "every 25th hour"),
        ({"cron": "*/61 * * * * *"}, "cron", "every 61th second"),
        ({"cron": f"{'9' * 5_000} * * * *"}, "cron", "at most 1000 characters"),
        ({"cron": f"{'9' * 900} * * * *"}, "cron", "the minute of cron"),
        ({"every": 10**400}, "every", "longer than a hundred years"),
        ({"every": 1e308}, "every", "longer than a hundred years"),
        ({"every": -(10**400)}, "every", "negative"),
        ({"cron": "@daily", "jitter": 10**5_000}, "jitter", "longer than a hundred years"),
        ({"cron": "@daily", "catch_up_within": 10**400}, "catch_up_within", "longer than a hundred years"),
        ({"at": datetime(1, 1, 1), "tz": "Asia/Tokyo"}, "at", "from 2 to 9998, not 0001-01-01T00:00:00"),  # noqa: DTZ001
        ({"at": datetime.max.replace(tzinfo=WEST)}, "at", "from 2 to 9998, not 9999"),
        ({"cron": "@daily", "until": datetime.min.replace(tzinfo=EAST)}, "until", "from 2 to 9998"),
        ({"cron": "@daily", "until": datetime.max.replace(tzinfo=WEST)}, "until", "from 2 to 9998"),
        ({"cron": "@daily", "tz": "Tokyo"}, "tz", "such as 'Europe/Berlin'"),
        ({"cron": "@daily", "tz": ""}, "tz", "a time zone"),
        ({"cron": "@daily", "tz": "../etc/passwd"}, "tz", "a time zone"),
        ({"cron": "@daily", "tz": 9}, "tz", "not 9"),
        ({"every": 0}, "every", "at least a second"),
        ({"every": -5}, "every", "negative"),
        ({"every": "5 apples"}, "every", "a text such as '5m'"),
        ({"every": None, "cron": None, "at": "tomorrow"}, "at", "must be a datetime, not 'tomorrow'"),
        ({"every": 60, "gap": "skip"}, "gap", "goes with cron, not with every"),
        ({"at": WHEN, "fold": "both"}, "fold", "goes with cron, not with at"),
        ({"cron": "@daily", "gap": "before"}, "gap", "'after', 'skip'"),
        ({"cron": "@daily", "fold": "second"}, "fold", "'first', 'both'"),
        ({"cron": "@daily", "catch_up": "some"}, "catch_up", "'none', 'latest', 'all'"),
        ({"cron": "@daily", "catch_up": ["all"]}, "catch_up", "'none', 'latest', 'all'"),
        ({"cron": "@daily", "catch_up_most": 0}, "catch_up_most", "from 1 to 10000, not 0"),
        ({"cron": "@daily", "catch_up_most": True}, "catch_up_most", "a whole number"),
        ({"cron": "@daily", "catch_up_within": -1}, "catch_up_within", "negative"),
        ({"cron": "@daily", "overlap": "forbid"}, "overlap", "'allow', 'skip', 'queue', 'cancel'"),
        ({"cron": "@daily", "jitter": "much"}, "jitter", "a timedelta or a number of seconds"),
        ({"cron": "@daily", "jitter": float("nan")}, "jitter", "finite"),
        ({"cron": "@daily", "until": "2030"}, "until", "must be a datetime"),
        ({"cron": "@daily", "timezone": "UTC"}, "timezone", "there is no option 'timezone'"),
        ({"cron": "@daily", "overlaps": "skip"}, "overlaps", "Did you mean 'overlap'?"),
    ],
)
def test_a_refusal_names_the_field_and_what_it_may_be(words: dict[str, Any], field: str, why: str) -> None:
    """S4-15: cron expression, parameters and times are validated, and the error is detailed."""
    with pytest.raises(ScheduleInvalid) as refused:
        define("schedule 'nightly'", **words)

    assert refused.value.field == field
    assert why in str(refused.value)
    assert str(refused.value).startswith("schedule 'nightly': ")


@pytest.mark.parametrize("cron", ["0 0 31 * *", "0 0 29 2 *", "*/60 */24 */31 */12 */7", "0 0 30 2 MON"])
def test_what_is_rare_or_odd_and_can_be_meant_is_no_error(cron: str) -> None:
    define("a", cron=cron)


def test_where_there_are_no_zones_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_at_all() -> set[str]:
        return set()

    monkeypatch.setattr(definition, "available_timezones", none_at_all)

    with pytest.raises(ScheduleInvalid, match="pip install tzdata"):
        define("schedule 'nightly'", cron="@daily", tz="Nowhere/At_All")


def test_what_can_be_said_is_kept() -> None:
    given = define(
        "a", cron="30 2 * * *", tz="Europe/Berlin", gap="skip", fold="both", catch_up="all", catch_up_most=7,
        catch_up_within=timedelta(hours=2), overlap="queue", jitter=1.5, until=WHEN,
    )  # fmt: skip

    assert given.recurrence == Cron("30 2 * * *", "Europe/Berlin", "skip", "both")
    assert (given.catch_up, given.most, given.within) == ("all", 7, 7_200_000)
    assert (given.overlap, given.jitter, given.until) == ("queue", 1_500, to_millis(WHEN))
    assert define("a", every="90s").recurrence == define("a", every=90).recurrence == Every(90_000)
    assert define("a", at=WHEN).recurrence == Once(to_millis(WHEN))


def test_a_time_without_a_zone_is_on_the_wall_of_the_schedule() -> None:
    given = define("a", at=datetime(2030, 1, 31, 9), tz="Asia/Tokyo")  # noqa: DTZ001

    assert given.recurrence == Once(to_millis(datetime(2030, 1, 31, 0, tzinfo=UTC)))
    assert given.zone == "Asia/Tokyo"


@pytest.mark.parametrize(
    "words",
    [
        {"cron": "30 2 * * *", "tz": "Europe/Berlin", "gap": "skip", "jitter": 5, "until": WHEN},
        {"every": 90, "tz": "Asia/Tokyo", "catch_up": "all", "catch_up_within": 60},
        {"at": WHEN, "overlap": "skip"},
    ],
)
def test_a_definition_can_be_said_again(words: dict[str, Any]) -> None:
    """For updates: what is not named stays, to the letter."""
    given = define("a", **words)

    assert define("a", **words_of(given)) == given


def test_a_key_lets_nobody_make_room() -> None:
    app = Shigoto("memory:")

    @app.task
    def report() -> None: ...

    keyed = report.using(key="k").call()
    with pytest.raises(ScheduleInvalid, match="unique key 'k'") as refused:
        app.schedules.add("a", keyed, cron="@daily", overlap="cancel")
    assert refused.value.field == "overlap"
    with pytest.raises(ScheduleInvalid, match="unique key 'k'") as refused:
        app.schedule("a", "@daily", call=keyed, overlap="cancel")
    assert refused.value.field == "overlap"
    assert not app.declared


def test_a_maker_of_calls_with_a_key_that_lets_nobody_make_room_fails_and_says_why() -> None:
    app = Shigoto("memory:")

    @app.task
    def report() -> None: ...

    app.schedule("a", every="1m", overlap="cancel", call=lambda tick: report.using(key="k").call())
    with app.test() as jobs:
        jobs.advance(minutes=1)
        with pytest.raises(ScheduleInvalid, match="overlap='cancel' cannot make room"):
            jobs.run_all(raise_errors=True)


def test_an_instant_at_which_every_job_would_have_expired_is_refused() -> None:
    app = Shigoto("memory:")

    @app.task
    def report() -> None: ...

    once = report.using(expires=WHEN).call()
    with pytest.raises(ScheduleInvalid, match="2030-01-31T09:00:00") as refused:
        app.schedules.add("a", once, cron="@daily")
    assert refused.value.field == "call"
    with pytest.raises(ScheduleInvalid, match="is one instant"):
        app.schedule("a", "@daily", call=once)
    app.schedules.add("a", report.using(expires=60).call(), cron="@daily")
