"""Ticks that were missed and are filled in later, and what the history tells of them then (S4-22)."""

from datetime import datetime, timedelta

from shigoto import Shigoto, TickOutcome
from shigoto.model.schedule import Change, Firing, TickEntry

HOUR = timedelta(hours=1)


def test_what_is_not_filled_in_stays_written_down_as_missed() -> None:
    app = Shigoto("memory:")

    @app.task
    def report() -> None: ...

    now = app.schedules.add("report", report.call(), every=HOUR).created_at
    last = now.replace(minute=0, second=0, microsecond=0)
    _miss(app, last - 9 * HOUR, last - HOUR, 9)

    jobs = app.schedules.backfill("report", last - 5 * HOUR, last - 4 * HOUR)

    assert [(line.outcome, line.at, line.count) for line in app.schedules.history("report")[::-1]] == [
        (TickOutcome.MISSED, last - 9 * HOUR, 4),
        (TickOutcome.BACKFILLED, last - 5 * HOUR, 1),
        (TickOutcome.BACKFILLED, last - 4 * HOUR, 1),
        (TickOutcome.MISSED, last - 3 * HOUR, 3),
    ]
    assert len(jobs) == 2
    assert app.schedules.backfill("report", last - 5 * HOUR, last - 4 * HOUR) == []
    assert len(app.schedules.backfill("report", last - 9 * HOUR, last - HOUR)) == 7
    assert {line.outcome for line in app.schedules.history("report")} == {TickOutcome.BACKFILLED}
    app.close()


def test_what_other_times_have_missed_stays_written_down_where_a_tick_is_filled_in() -> None:
    """The first of them is a tick of the schedule as it is now, too, and of the others nobody can tell."""
    app = Shigoto("memory:")

    @app.task
    def report() -> None: ...

    now = app.schedules.add("report", report.call(), every=HOUR).created_at
    last = now.replace(hour=0, minute=0, second=0, microsecond=0)
    _miss(app, last - 9 * HOUR, last - HOUR, 9)
    app.schedules.update("report", every=timedelta(minutes=90))

    [_] = app.schedules.backfill("report", last - 9 * HOUR, last - 9 * HOUR)

    assert [(line.outcome, line.count) for line in app.schedules.history("report")[::-1]] == [
        (TickOutcome.BACKFILLED, 1),
        (TickOutcome.MISSED, 8),
    ]
    app.close()


def _miss(app: Shigoto, first: datetime, last: datetime, count: int) -> None:
    """Write down that nobody was there for these ticks."""
    at, until = (round(each.timestamp() * 1000) for each in (first, last))
    entry = TickEntry(at=at, until=until, count=count, outcome=TickOutcome.MISSED, decided_at=until)
    [schedule] = app.engine.run(app.engine.schedules(["report"]))
    change = Change(schedule=schedule, seen=schedule.revision, firings=(Firing(entry=entry),))
    assert app.engine.run(app.engine.tick([change])) == [change]
