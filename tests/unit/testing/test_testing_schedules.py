"""Schedules in `app.test()`: fired on the virtual clock, as by a worker."""

from datetime import date, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from shigoto import ScheduleInvalid, Shigoto, Tick, TickOutcome

TOKYO = ZoneInfo("Asia/Tokyo")
EVE = datetime(2026, 5, 6, 2, 59, 30, tzinfo=TOKYO)
THREE = datetime(2026, 5, 6, 3, tzinfo=TOKYO)


class Ledger:
    """An app that closes the books of the day before, each night at three in Tokyo."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.app = Shigoto(f"sqlite:///{folder / 'never_opened.db'}")
        self.closed: list[date] = []

        @self.app.cron("0 3 * * *", tz="Asia/Tokyo", **options)
        def close_books(tick: Tick) -> None:
            self.closed.append(tick.local_date - timedelta(days=1))

    def outcomes(self, name: str = "close_books") -> list[TickOutcome]:
        return [entry.outcome for entry in reversed(self.app.schedules.history(name))]


def nothing() -> None:
    """A task that is there to be scheduled."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def stored(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    return {"store": folder / "jobs.db"} if request.param == "file" else {}


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    return stored(request, tmp_path)


def test_the_target_date_comes_from_the_tick_on_time(ledger: Ledger, store: dict[str, Any]) -> None:
    """S3-59 = GWT-7: at 2026-05-06 03:00 in Tokyo the books of 2026-05-05 are closed."""
    with ledger.app.test(now=EVE, **store) as jobs:
        jobs.advance(seconds=30)
        assert jobs.now == THREE
        [job] = jobs.run_all(raise_errors=True).completed

    assert job.run_at == THREE
    assert ledger.closed == [date(2026, 5, 5)]


def test_the_target_date_is_the_same_after_an_outage(ledger: Ledger, store: dict[str, Any]) -> None:
    """S3-59 = GWT-7: ten minutes late, caught up, it is still 2026-05-05; also if the run is retried a day later."""
    with ledger.app.test(now=EVE, **store) as jobs:
        jobs.advance(minutes=10, seconds=30, outage=True)
        assert jobs.now == THREE + timedelta(minutes=10)
        jobs.run_all(raise_errors=True)

        assert ledger.outcomes() == [TickOutcome.CAUGHT_UP]
        [entry] = ledger.app.schedules.history("close_books")
        assert (entry.at, entry.lateness) == (THREE, 600.0)
        assert entry.job is not None
        ledger.app.job(entry.job).rerun()
        jobs.advance(days=0, hours=12)
        jobs.run_all()

    assert ledger.closed == [date(2026, 5, 5), date(2026, 5, 5)]


def test_a_clock_that_travels_passes_every_tick(ledger: Ledger) -> None:
    with ledger.app.test(now=EVE) as jobs:
        assert list(jobs.advance(days=3)) == []
        assert len(jobs.enqueued("close_books")) == 3
        jobs.assert_enqueued("close_books", run_at=THREE, count=1)
        jobs.run_all()

        assert ledger.outcomes() == [TickOutcome.FIRED] * 3
        assert [entry.lateness for entry in ledger.app.schedules.history("close_books")] == [0.0] * 3

    assert ledger.closed == [date(2026, 5, 5), date(2026, 5, 6), date(2026, 5, 7)]


def test_inline_each_job_runs_at_its_tick(ledger: Ledger) -> None:
    with ledger.app.test(now=EVE, run="inline") as jobs:
        ran = jobs.advance(days=2)

        assert [job.started_at for job in ran.completed] == [THREE, THREE + timedelta(days=1)]


async def test_there_are_async_twins(ledger: Ledger) -> None:
    async with ledger.app.test(now=EVE) as jobs:
        await jobs.aadvance(minutes=1)
        assert len((await jobs.arun_all()).completed) == 1
        await jobs.aadvance(days=2, hours=1, outage=True)

        assert len((await jobs.arun_all()).completed) == 1
        assert ledger.outcomes() == [TickOutcome.FIRED, TickOutcome.MISSED, TickOutcome.CAUGHT_UP]


@pytest.mark.parametrize(
    ("catch_up", "outcomes"),
    [("none", ["missed"]), ("latest", ["missed", "caught_up"]), ("all", ["caught_up"] * 3)],
)
def test_after_an_outage_a_schedule_catches_up_as_it_says(
    tmp_path: Path, catch_up: str, outcomes: list[str]
) -> None:
    ledger = Ledger(tmp_path, catch_up=catch_up)
    with ledger.app.test(now=EVE) as jobs:
        jobs.advance(days=2, hours=12, outage=True)

        assert ledger.outcomes() == outcomes


def test_running_everything_does_not_travel(tmp_path: Path) -> None:
    """A schedule of each second is due again in a second, and run_all ends before that."""
    app = Shigoto(f"sqlite:///{tmp_path}/none.db")
    ran: list[datetime] = []

    @app.every("1s")
    def beat(tick: Tick) -> None:
        ran.append(tick.at)

    with app.test(now=EVE) as jobs:
        assert list(jobs.run_all()) == []
        for second in range(1, 4):
            jobs.advance(seconds=1)
            assert len(jobs.run_all()) == 1
            assert list(jobs.run_all()) == []
            assert ran[-1] == EVE + timedelta(seconds=second)


@pytest.mark.tier("nightly")
def test_a_way_with_too_many_ticks_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    app = Shigoto(f"sqlite:///{tmp_path}/none.db")
    app.every("1s", name="beat")(nothing)

    with app.test(now=EVE) as jobs:
        with pytest.raises(RuntimeError, match=r"more than 10000 times.*outage=True.*ticks=False"):
            jobs.advance(days=1)
        jobs.advance(days=1, outage=True)
    with app.test(now=EVE, ticks=False) as jobs:
        jobs.advance(days=1)
        assert list(jobs.run_all()) == []
        assert jobs.enqueued() == []


def test_schedules_that_are_added_in_the_test_fire_and_can_be_paused(ledger: Ledger) -> None:
    """S4-3 to S4-5: and those that are declared are there from the beginning."""
    app = ledger.app
    sent: list[str] = []

    @app.task
    def send(to: str) -> None:
        sent.append(to)

    with app.test(now=EVE) as jobs:
        assert [record.name for record in app.schedules.all()] == ["close_books"]
        app.schedules.add("ada", send.call("ada"), cron="* * * * *")
        app.schedules.pause("close_books")
        jobs.advance(minutes=2)
        jobs.run_all()

        assert sent == ["ada", "ada"]
        assert ledger.outcomes() == [TickOutcome.SUPPRESSED]
        assert app.schedules.get("close_books").status == "paused"
        app.schedules.remove("ada")
        jobs.advance(days=1)
        assert list(jobs.run_all()) == []


def test_advance_to_next_goes_to_a_job_and_else_to_a_tick(ledger: Ledger) -> None:
    @ledger.app.task
    def later() -> None: ...

    with ledger.app.test(now=EVE) as jobs:
        later.using(delay=timedelta(days=1)).enqueue()
        jobs.advance_to_next()
        assert jobs.now == EVE + timedelta(days=1)
        assert len(jobs.run_all()) == 2, "the tick on the way, and the job"

        jobs.advance_to_next()
        assert jobs.now == THREE + timedelta(days=1)
        assert len(jobs.run_all()) == 1


def test_after_the_last_tick_there_is_nothing_to_advance_to(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, until=THREE)
    with ledger.app.test(now=EVE) as jobs:
        jobs.advance_to_next()
        assert jobs.now == THREE
        assert len(jobs.run_all()) == 1

        with pytest.raises(LookupError, match="nothing to advance to"):
            jobs.advance_to_next()
        assert jobs.now == THREE
        assert ledger.app.schedules.get("close_books").status == "ended"


def test_a_schedule_whose_job_cannot_be_made_is_tried_again_and_heard_of(tmp_path: Path) -> None:
    """S4-11: as at a worker; and a test can ask for the error itself."""
    app = Shigoto(f"sqlite:///{tmp_path}/none.db")
    broken = [True]

    @app.task
    def send(to: str) -> None: ...

    def call(tick: Tick) -> Any:
        if broken[0]:
            raise ConnectionError("no customers today")
        return send.call(str(tick.local_date))

    app.schedule("mails", "0 3 * * *", tz="Asia/Tokyo", call=call)
    with app.test(now=EVE) as jobs:
        jobs.advance(seconds=30)
        with pytest.raises(ConnectionError, match="no customers today"):
            jobs.run_all(raise_errors=True)
        assert app.schedules.get("mails").error == "ConnectionError: no customers today"
        assert jobs.enqueued() == []

        broken[0] = False
        jobs.advance(seconds=2)
        jobs.assert_enqueued(send.call("2026-05-06"), count=1)
        assert app.schedules.get("mails").errors == 0


def test_a_job_that_has_not_ended_is_in_the_way_of_the_next_as_the_schedule_says(tmp_path: Path) -> None:
    """Nothing ends before run_all."""
    ledger = Ledger(tmp_path, overlap="skip")
    with ledger.app.test(now=EVE) as jobs:
        jobs.advance(days=2)
        assert ledger.outcomes() == [TickOutcome.FIRED, TickOutcome.SKIPPED]
    with ledger.app.test(now=EVE, run="inline") as jobs:
        jobs.advance(days=2)
        assert ledger.outcomes() == [TickOutcome.FIRED, TickOutcome.FIRED]


def test_what_is_declared_in_the_block_fires(tmp_path: Path) -> None:
    app = Shigoto(f"sqlite:///{tmp_path}/none.db")
    with app.test(now=EVE) as jobs:
        app.cron("0 3 * * *", tz="Asia/Tokyo", name="late")(nothing)
        jobs.advance(minutes=1)

        assert len(jobs.enqueued("late")) == 1


def test_the_clock_follows_the_host_for_jobs_that_name_an_instant_and_not_for_ticks() -> None:
    app = Shigoto("memory:")
    app.every("1h", name="hourly")(nothing)
    with app.test() as jobs:
        before = jobs.now
        jobs.advance(hours=1)
        assert jobs.now == before + timedelta(hours=1)
        assert len(jobs.enqueued("hourly")) == 1


def test_a_schedule_whose_zone_is_not_known_is_left_alone_and_heard_of(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4-11: as by a worker; others go on, and a test can ask for the reason."""
    app = ledger.app
    app.every("1h", name="hourly")(nothing)

    def unknown(name: str) -> tzinfo:
        raise ZoneInfoNotFoundError(name)

    with app.test(now=EVE) as jobs:
        monkeypatch.setattr("shigoto.schedule.recurrence.ZoneInfo", unknown)
        jobs.advance(hours=3)
        with pytest.raises(ScheduleInvalid, match="Asia/Tokyo"):
            jobs.run_all(raise_errors=True)
        jobs.advance_to_next()
        assert len(jobs.enqueued("hourly")) == 4
        assert len(jobs.run_all(raise_errors=True)) == 4
        found = app.schedules.get("close_books")
        assert (found.status, found.errors) == ("unreadable", 0)

        monkeypatch.undo()
        jobs.run_all()
        assert ledger.outcomes() == [TickOutcome.CAUGHT_UP]
        assert app.schedules.get("close_books").status == "active"
