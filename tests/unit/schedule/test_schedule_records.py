"""A schedule as people see it: what is stored of it, and what that means now."""

from typing import Any

from shigoto.model.ids import uuid7
from shigoto.model.schedule import Schedule, ScheduleRecord
from shigoto.model.time import to_millis
from shigoto.schedule.definition import Definition, written
from shigoto.schedule.manage import record
from shigoto.schedule.recurrence import Cron, Every

HOUR = 3_600_000
NOW = 500_000 * HOUR + 60_000  # a minute past
EACH_HOUR = Definition(recurrence=Every(HOUR))


def shown(definition: Definition = EACH_HOUR, **words: Any) -> ScheduleRecord:
    """What people see of a schedule that was decided by now."""
    stored = {"decided_to": NOW, "look_at": 500_001 * HOUR} | words
    text = written(definition)
    return record(Schedule(id=uuid7(), name="often", definition=text, created_at=0, **stored), NOW)


def next_hour(seen: ScheduleRecord) -> float | None:
    """How many hours after the full hour before now its next tick is."""
    return None if seen.next_at is None else to_millis(seen.next_at) / HOUR - 500_000


def test_the_next_tick_is_the_first_that_is_not_decided() -> None:
    assert next_hour(shown()) == 1
    assert next_hour(shown(decided_to=NOW - HOUR, look_at=500_000 * HOUR)) == 0  # due, and nobody was there


def test_a_tick_that_waits_for_the_job_before_is_the_next_however_often_somebody_looks() -> None:
    assert next_hour(shown(waiting_for_overlap=True, decided_to=NOW - HOUR, look_at=NOW + 1_000)) == 0


def test_a_tick_that_is_tried_again_is_the_next_and_not_the_time_of_the_try() -> None:
    assert next_hour(shown(errors=3, decided_to=NOW - HOUR, look_at=NOW + 8_000)) == 0


def test_after_the_clock_went_back_the_next_tick_is_the_next_by_the_clock() -> None:
    assert next_hour(shown(decided_to=NOW + 5 * HOUR, look_at=NOW + 5 * HOUR)) == 1


def test_what_has_ended_or_failed_has_no_next_tick() -> None:
    assert next_hour(shown(look_at=None)) is None
    assert next_hour(shown(look_at=None, failed=True)) is None


def test_a_zone_that_nobody_here_knows_hides_no_schedule() -> None:
    seen = shown(Definition(recurrence=Cron("0 3 * * *", "Mars/Olympus")))

    assert (seen.tz, next_hour(seen)) == ("Mars/Olympus", 1)
    assert (seen.status, "does not know the time zone 'Mars/Olympus'" in str(seen.error)) == (
        "unreadable",
        True,
    )
    assert shown(Definition(recurrence=Cron("0 3 * * *", "Mars/Olympus")), look_at=None).status == "ended"
    assert shown(Definition(recurrence=Cron("0 3 * * *", "Mars/Olympus")), paused_at=1).status == "paused"
    assert shown(Definition(recurrence=Every(HOUR), tz="Mars/Olympus")).status == "active", "it can be fired"
