"""Moves of SQLite files. The move lock is made of triggers, which SQLite shows to every connection by itself.

A trigger lets pass whoever has written so into the row of the lock, in the same transaction. What comes into a file by
a move must not become ready or scheduled as what is enqueued does: so the triggers for that are away meanwhile, too.
"""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from shigoto.engine.movable import MoveLock
from shigoto.engine.op import Op
from shigoto.engine.sql.commands import SqlText, Steps, sql, value
from shigoto.engine.sql.moving import SqlMover, Ways
from shigoto.engine.sqlite import enqueueing
from shigoto.model.time import Millis

MAKE_MOVE_LOCK = """
CREATE TABLE IF NOT EXISTS shigoto_gate (
  lone   INTEGER PRIMARY KEY CHECK (lone = 1),
  kind   TEXT NOT NULL,
  move   TEXT NOT NULL,
  other  TEXT NOT NULL,
  holder TEXT NOT NULL,
  lifted INTEGER NOT NULL)
"""
EVENTS = ("INSERT", "UPDATE", "DELETE")
CLAIMS = {"running": ("INSERT",)}
# A worker may leave a closed store, and nothing else.
CHANGED = (
    "job", "ready", "scheduled", "blocked", "running", "done", "key", "expiry", "attempt", "progress", "log", "queue",
    "schedule", "tick",
)  # fmt: skip
EVERYTHING = dict.fromkeys(CHANGED, EVENTS) | {"worker": ("INSERT", "UPDATE")}
OF_ENQUEUES = """
SELECT name, sql FROM sqlite_schema
WHERE type = 'trigger' AND name IN ('shigoto_job_ready', 'shigoto_job_scheduled', 'shigoto_job_expiry')
"""
FILLED = (
    "key", "expiry", "ready", "scheduled", "blocked", "attempt", "log", "progress", "done", "job", "lane", "queue",
    "counter", "schedule", "tick",
)  # fmt: skip
COLUMNS = {("ready", "run_at"): "pos"}


def mover(path: str, run: Callable[[Op[Any]], Any], now: Callable[[], Millis]) -> SqlMover:
    return SqlMover(
        Ways(
            shown=path,
            run=run,
            now=lambda: value(now()),
            move_lock=_move_lock,
            alone=lambda: value(None),  # whoever writes is
            shut=lambda move_lock: _shut(move_lock, path),
            open=_open,
            passing=_passing,
            load=_load,
            go_on_after=_go_on_after,
            wipe=_wipe,
            submit=enqueueing.enqueue,
        )
    )


def _move_lock() -> Steps[MoveLock | None]:
    known = yield SqlText("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'shigoto_gate'")
    if known.fetchone() is None:
        return None
    row = (yield SqlText("SELECT kind, move, other, holder FROM shigoto_gate")).fetchone()
    return None if row is None else MoveLock(kind=row[0], move=row[1], other=row[2], holder=row[3])


def _shut(move_lock: MoveLock, path: str) -> Steps[None]:
    yield from _open()
    yield SqlText(MAKE_MOVE_LOCK)
    written = (move_lock.kind, move_lock.move, move_lock.other, move_lock.holder)
    yield SqlText("INSERT INTO shigoto_gate VALUES (1, ?, ?, ?, ?, 0)", written)
    # What a trigger raises must be written out in it: older versions of SQLite take nothing else.
    message = f"{move_lock.code} {move_lock.refusal(path)}".replace("'", "''")
    for table, events in (CLAIMS if move_lock.kind == "draining" else EVERYTHING).items():
        for event in events:
            yield SqlText(
                f"CREATE TRIGGER shigoto_gate_{table}_{event.lower()} BEFORE {event} ON shigoto_{table}"
                f" WHEN (SELECT NOT lifted FROM shigoto_gate) BEGIN SELECT RAISE(ABORT, '{message}'); END"
            )


def _open() -> Steps[None]:
    triggers = yield SqlText(
        "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name GLOB 'shigoto_gate_*'"
    )
    for (name,) in triggers.fetchall():
        yield SqlText(f'DROP TRIGGER "{name}"')
    yield SqlText("DROP TABLE IF EXISTS shigoto_gate")


def _passing(move_lock: MoveLock, steps: Steps[Any]) -> Steps[Any]:
    yield SqlText("UPDATE shigoto_gate SET lifted = 1")
    triggers = (yield SqlText(OF_ENQUEUES)).fetchall()
    for name, _ in triggers:
        yield SqlText(f'DROP TRIGGER "{name}"')
    value = yield from steps
    for _, text in triggers:
        yield SqlText(text)
    yield SqlText("UPDATE shigoto_gate SET lifted = 0")
    return value


def _load(table: str, columns: tuple[str, ...], rows: Sequence[Sequence[Any]]) -> Steps[None]:
    names = ", ".join(COLUMNS.get((table, column), column) for column in columns)
    places = ", ".join("?" * len(columns))
    if table == "job":
        rows = [[cell.bytes if isinstance(cell, UUID) else cell for cell in row] for row in rows]
    yield SqlText(f"INSERT INTO shigoto_{table} ({names}) VALUES ({places})", rows, many=True)


def _go_on_after(highest: int) -> Steps[None]:
    stored: int = (yield sql("highest")).fetchone()[0]
    yield sql("delete_husk")
    if highest > stored:
        yield sql("add_husk", highest)
        yield sql("set_meta", "husk", highest)
    yield sql("set_meta", "counted_to", max(highest, stored))
    yield sql("set_meta", "pruned_to", 0)


def _wipe() -> Steps[None]:
    for table in FILLED:
        yield SqlText(f"DELETE FROM shigoto_{table}")
    yield sql("set_meta", "counted_to", 0)
    yield sql("set_meta", "husk", 0)
