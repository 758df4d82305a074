"""What can be said about a schedule: each refusal names the field, and what it may be."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shigoto import ScheduleInvalid, Shigoto
from shigoto.model.clock import to_millis
from shigoto.schedule import options
from shigoto.schedule.options import definition, words_of
from shigoto.schedule.recurrence import Cron, Every, Once

WHEN = datetime(2030, 1, 31, 9, tzinfo=UTC)


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
        definition("schedule 'nightly'", **words)

    assert refused.value.field == field
    assert why in str(refused.value)
    assert str(refused.value).startswith("schedule 'nightly': ")


def test_where_there_are_no_zones_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_at_all() -> set[str]:
        return set()

    monkeypatch.setattr(options, "available_timezones", none_at_all)

    with pytest.raises(ScheduleInvalid, match="pip install tzdata"):
        definition("schedule 'nightly'", cron="@daily", tz="Nowhere/At_All")


def test_what_can_be_said_is_kept() -> None:
    given = definition(
        "a", cron="30 2 * * *", tz="Europe/Berlin", gap="skip", fold="both", catch_up="all", catch_up_most=7,
        catch_up_within=timedelta(hours=2), overlap="queue", jitter=1.5, until=WHEN,
    )  # fmt: skip

    assert given.recurrence == Cron("30 2 * * *", "Europe/Berlin", "skip", "both")
    assert (given.catch_up, given.most, given.within) == ("all", 7, 7_200_000)
    assert (given.overlap, given.jitter, given.until) == ("queue", 1_500, to_millis(WHEN))
    assert definition("a", every="90s").recurrence == definition("a", every=90).recurrence == Every(90_000)
    assert definition("a", at=WHEN).recurrence == Once(to_millis(WHEN))


def test_a_time_without_a_zone_is_on_the_wall_of_the_schedule() -> None:
    given = definition("a", at=datetime(2030, 1, 31, 9), tz="Asia/Tokyo")  # noqa: DTZ001

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
    given = definition("a", **words)

    assert definition("a", **words_of(given)) == given


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
