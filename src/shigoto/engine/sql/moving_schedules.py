"""Whole schedules with their histories, out of one database and into another."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from msgspec import json

from shigoto.engine.movable import ScheduleMark
from shigoto.engine.sql.command import Steps, sql
from shigoto.engine.sql.ticking import remove as remove_schedules
from shigoto.model.record import StoredSchedule, StoredTick
from shigoto.model.schedule import Pause, TickOutcome

Load = Callable[[str, tuple[str, ...], Sequence[Sequence[Any]]], Steps[None]]

# In the order of the columns of the statements `whole_schedules` and `whole_histories`.
COLUMNS = (
    "name", "id", "revision", "definition", "origin", "paused_at", "failed", "held", "look_at", "decided_to", "job",
    "number", "errors", "error", "counts", "created_at", "declared_at", "pauses",
)  # fmt: skip
ENTRY_COLUMNS = ("schedule", "at", "outcome", "decided_at", "job", "until", "count")
FLAGS = ("failed", "held")
_decode_counts = json.Decoder(dict[str, int]).decode
_decode_pauses = json.Decoder(tuple[Pause, ...]).decode


def marks() -> Steps[dict[str, ScheduleMark]]:
    """What tells whether they are the same in two stores."""
    rows = (yield sql("mark_schedules")).fetchall()
    return {name: ScheduleMark(UUID(id), *sums) for name, id, *sums in rows}


def whole(names: Sequence[str]) -> Steps[list[StoredSchedule]]:
    """Those of the schedules that are there, with their histories."""
    text = json.encode(names).decode()
    histories: dict[str, list[StoredTick]] = {}
    for name, *entry in (yield sql("whole_histories", text)).fetchall():
        histories.setdefault(name, []).append(_entry(entry))
    rows = (yield sql("whole_schedules", text)).fetchall()
    return [_schedule(row, tuple(histories.get(row[0], ()))) for row in rows]


def put(schedules: Sequence[StoredSchedule], load: Load) -> Steps[None]:
    """Store them, in place of those of the same names."""
    yield from remove_schedules([each.name for each in schedules])
    yield from load("schedule", COLUMNS, [_row(each) for each in schedules])
    lines = [_line(each.id, entry) for each in schedules for entry in each.history]
    if lines:
        yield from load("tick", ENTRY_COLUMNS, lines)


def remove(names: Sequence[str]) -> Steps[None]:
    """Forget them, with their histories."""
    yield from remove_schedules(names)


def _entry(row: Sequence[Any]) -> StoredTick:
    at, outcome, decided_at, job, until, count = row
    return StoredTick(
        at=at,
        outcome=TickOutcome(outcome),
        decided_at=decided_at,
        job=_id(job),
        until=until,
        count=count,
    )


def _schedule(row: Sequence[Any], history: tuple[StoredTick, ...]) -> StoredSchedule:
    values = dict(zip(COLUMNS, row, strict=True))
    values |= {
        "id": UUID(values["id"]),
        "job": _id(values["job"]),
        "counts": _decode_counts(values["counts"]),
        "pauses": _decode_pauses(values["pauses"]),
    }
    values |= {flag: bool(values[flag]) for flag in FLAGS}
    return StoredSchedule(**values, history=history)


def _row(schedule: StoredSchedule) -> tuple[object, ...]:
    return tuple(_cell(getattr(schedule, column)) for column in COLUMNS)


def _line(schedule: UUID, entry: StoredTick) -> tuple[object, ...]:
    return (
        str(schedule),
        entry.at,
        entry.outcome.value,
        entry.decided_at,
        _cell(entry.job),
        entry.until,
        entry.count,
    )


def _cell(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return json.encode(value).decode() if isinstance(value, dict | tuple) else value


def _id(text: str | None) -> UUID | None:
    return None if text is None else UUID(text)
