"""What `shigoto schedules` prints: lists, the page of one schedule, its ticks to come, and those that were."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

import click
from msgspec import Struct
from msgspec.structs import asdict

from shigoto.cli import output
from shigoto.cli.output import Column
from shigoto.model.schedule import ScheduleRecord, TickOutcome, TickRecord
from shigoto.model.time import Millis, to_millis
from shigoto.schedule.definition import Definition
from shigoto.schedule.preview import ClockChange, clock_changes, upcoming
from shigoto.schedule.recurrence import zone_called

LABEL = 12
STATUS_COLOURS = {"paused": "yellow", "failed": "red", "undeclared": "yellow", "unreadable": "red"}
OUTCOME_COLOURS = {
    TickOutcome.FIRED: "green",
    TickOutcome.CAUGHT_UP: "green",
    TickOutcome.BACKFILLED: "green",
    TickOutcome.RUN_NOW: "cyan",
    TickOutcome.MISSED: "red",
    TickOutcome.SKIPPED: "yellow",
    TickOutcome.SUPPRESSED: "yellow",
}
STATUSES = {
    "active": "",
    "paused": "its ticks are suppressed; `shigoto schedules resume` lets it fire again",
    "failed": "its job could not be made or stored; `shigoto schedules resume` tries again",
    "ended": "it is never due again",
    "undeclared": "no process has declared it lately, so nobody fires it",
    "unreadable": "nobody here can tell when it is due, nor fire it; `shigoto schedules update --tz` gives it another"
    " time zone",
}


def schedules_table(found: Sequence[ScheduleRecord], width: int | None, now: datetime) -> list[str]:
    """A line per schedule."""
    columns = [
        Column("schedule", least=8),
        Column("when", least=9),
        Column("time zone", least=6, spare=3),
        Column("task", least=6, spare=2),
        Column("status", paint=_paint_status),
        Column("next tick"),
        Column("fired", right=True, spare=5),
        Column("missed", right=True, spare=4),
        Column("declared in", least=8, spare=6),
    ]
    return output.table(columns, [_row(each, now, brief=width is not None) for each in found], width)


def _row(record: ScheduleRecord, now: datetime, *, brief: bool) -> list[str]:
    counts = record.counts
    fired = sum(counts.get(outcome, 0) for outcome in TickOutcome if outcome.fires)
    return [
        output.one_line(record.name),
        output.one_line(record.when),
        output.one_line(record.tz),
        output.one_line(record.task or "-"),
        record.status,
        "-" if record.next_at is None else _moment(record.next_at, now, brief=brief),
        str(fired),
        str(counts.get(TickOutcome.MISSED, 0)),
        output.one_line(record.origin or "-"),
    ]


def _moment(at: datetime, now: datetime, *, brief: bool) -> str:
    return output.moment(at, now) if brief else output.iso(at)


def _paint_status(text: str) -> str:
    return click.style(text, fg=STATUS_COLOURS[text]) if text in STATUS_COLOURS else text


def record_of(record: ScheduleRecord) -> dict[str, object]:
    """The schedule for programs; its arguments are part of it, not text inside of it."""
    payload = None if record.payload is None else output.embedded(record.payload)
    return {**asdict(record), "payload": payload}


def page(record: ScheduleRecord, width: int | None) -> list[str]:
    """All about one schedule, for people."""
    lines = [f"{click.style(record.name, bold=True)}: {output.one_line(record.when)}", ""]
    for label, text in facts(record):
        later = " " * (LABEL + 2)
        lines += output.wrapped(output.one_line(text), width, first=f"  {label:<{LABEL}}", later=later)
    return lines


def facts(record: ScheduleRecord) -> list[tuple[str, str]]:
    """What there is to know of a schedule, but for what is as usual."""
    local = zone(record.tz)
    meaning = STATUSES[record.status]
    catch_up = "" if record.catch_up != "all" else f", at most {record.catch_up_most} at once"
    within = "" if record.catch_up_within is None else f", up to {output.span(record.catch_up_within)} late"
    counts = [f"{count} {outcome.replace('_', ' ')}" for outcome, count in record.counts.items() if count]
    told = [
        ("status", f"{record.status}: {meaning}" if meaning else record.status),
        ("next tick", "" if record.next_at is None else in_zone(record.next_at, local)),
        ("time zone", record.tz),
        ("task", record.task or "as its code says"),
        ("arguments", output.brief(record.payload or "")),
        ("queue", record.queue or ""),
        ("catch up", f"{record.catch_up}{catch_up}{within}"),
        ("overlap", record.overlap),
        ("jitter", f"up to {output.span(record.jitter)}" if record.jitter else ""),
        ("until", "" if record.until is None else in_zone(record.until, local)),
        ("ticks", ", ".join(counts) or "none so far"),
        ("last job", "" if record.last_job is None else str(record.last_job)),
        ("errors", f"{record.errors} in a row" if record.errors else ""),
        ("error", record.error or ""),
        ("when failed", record.when_failed if record.when_failed != "keep" else ""),
        ("declared in", record.origin or ""),
        ("created", in_zone(record.created_at, local)),
    ]
    return [(label, text) for label, text in told if text]


def zone(name: str) -> tzinfo:
    """The time zone of this name; UTC where nobody knows it, so that looking is no error."""
    try:
        return zone_called(name)
    except (ValueError, OSError, KeyError):
        return UTC


def in_zone(at: datetime, zone: tzinfo) -> str:
    """An instant on the wall of a zone, with the day of the week and how far its clocks are ahead."""
    local = at.astimezone(zone).replace(microsecond=0)
    return f"{local:%a %Y-%m-%d %H:%M:%S} {local.isoformat()[19:]}"


class Preview(Struct, frozen=True, kw_only=True):
    """The ticks of a definition in a stretch of time, and the changes of the clocks within it."""

    tz: str
    ticks: list[datetime]
    changes: list[ClockChange]
    more: bool  # there are later ones

    def record(self) -> dict[str, object]:
        """For programs."""
        changes = [
            {**asdict(change), "by": change.by.total_seconds(), "meaning": change.sentence()}
            for change in self.changes
        ]
        return {"tz": self.tz, "ticks": self.ticks, "more": self.more, "clock_changes": changes}

    def lines(self, width: int | None) -> list[str]:
        """A line per tick, and what happens where the clocks are changed, in the order of time."""
        local = zone(self.tz)
        told = [(at.astimezone(UTC), 1, [in_zone(at, local)]) for at in self.ticks]
        for change in self.changes:  # above a tick of the same instant, which may make up for others
            sentence = output.wrapped(change.sentence(), width, first="  ", later="  ")
            told.append((change.at.astimezone(UTC), 0, sentence))
        return [line for _, _, lines in sorted(told) for line in lines]


def preview(given: Definition, tz: str, since: Millis, to: Millis | None, limit: int) -> Preview:
    """What happens from an instant on: until `to`, and not more than `limit` ticks."""
    ticks = upcoming(given, since - 1, to, limit + 1)
    more = len(ticks) > limit
    ticks = ticks[:limit]
    last = to if to is not None and not more else to_millis(ticks[-1]) if ticks else since
    return Preview(tz=tz, ticks=ticks, changes=clock_changes(given, since - 1, last), more=more)


def history_table(ticks: Sequence[TickRecord], tz: str, width: int | None) -> list[str]:
    """A line per entry, the newest first."""
    columns = [
        Column("tick"),
        Column("outcome", paint=_paint_outcome),
        Column("ticks", right=True, spare=2),
        Column("late", right=True, spare=1),
        Column("job", spare=3),
    ]
    local = zone(tz)
    return output.table(columns, [_tick_row(tick, local) for tick in ticks], width)


def _tick_row(tick: TickRecord, zone: tzinfo) -> list[str]:
    has_time = tick.outcome.fires and tick.outcome is not TickOutcome.RUN_NOW
    return [
        in_zone(tick.at, zone),
        tick.outcome.replace("_", " "),
        str(tick.count),
        output.span(timedelta(seconds=tick.lateness)) if has_time else "-",
        "-" if tick.job is None else str(tick.job),
    ]


def _paint_outcome(text: str) -> str:
    return click.style(text, fg=OUTCOME_COLOURS[TickOutcome(text.replace(" ", "_"))])
