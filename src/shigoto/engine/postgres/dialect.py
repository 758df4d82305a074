"""PostgreSQL's dialect: where jobs are, and how runs end where others may have locked them.

What the ends of runs (T4-T8) mean is in `engine.sql.settling`; the token of a completion is checked by the function
`complete`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import psycopg
from msgspec import json

from shigoto.engine.postgres.wire import bigint_array, int_array, text_array
from shigoto.engine.sql import settling
from shigoto.engine.sql.commands import Dialect, SqlText, StateTable, StateTables, Steps, sql
from shigoto.model.job import State
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement, Verdict

WAITING = (
    "(SELECT number, lane, failures FROM shigoto.ready"
    " UNION ALL SELECT number, lane, failures FROM shigoto.scheduled) s"
)
LAST_ERROR = (
    "(SELECT a.error FROM shigoto.attempt a"
    " WHERE a.number = s.number AND a.error IS NOT NULL ORDER BY a.token DESC LIMIT 1)"
)
IN_ERROR = f"CASE WHEN s.failures > 0 THEN {LAST_ERROR} END"
ENDED_IN_ERROR = f"coalesce(s.error, {IN_ERROR})"
NOWHERE_ELSE = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} x WHERE x.number = b.number)"
    for table in ("shigoto.done", "shigoto.running", "shigoto.blocked")
)

STATE_TABLES = StateTables(
    everywhere=StateTable(table="shigoto.job b", number="b.number", error=IN_ERROR),
    many_pending=StateTable(table="shigoto.job b", condition=NOWHERE_ELSE, number="b.number", error=IN_ERROR),
    by_state={
        State.PENDING: StateTable(table=WAITING, lane="s.lane", error=IN_ERROR),
        "retrying": StateTable(table=WAITING, condition="s.failures > 0", lane="s.lane", error=IN_ERROR),
        "scheduled": StateTable(table="shigoto.scheduled s", lane="s.lane", error=IN_ERROR),
        State.PROCESSING: StateTable(table="shigoto.running s", lane="s.lane", error=IN_ERROR),
        State.BLOCKED: StateTable(table="shigoto.blocked s", error="NULL"),
        State.COMPLETED: StateTable(table="shigoto.done s", condition="s.state = 3", error="NULL"),
        State.FAILED: StateTable(
            table="shigoto.done s", condition="s.state = 4 AND s.state <> 3", error=ENDED_IN_ERROR
        ),
        State.CANCELLED: StateTable(
            table="shigoto.done s", condition="s.state = 5 AND s.state <> 3", error=ENDED_IN_ERROR
        ),
    },
    conditions={
        "queue": "l.queue = :queue::text",
        "task": "l.task = :task::text",
        "tenant": "b.tenant = :tenant::text",
        "key": "b.key = :key::text",
        "tag": "b.tags::jsonb ? :tag::text",
        "since": "b.created_at >= :since::bigint",
        "failure_kind": "s.failure_kind = :failure_kind::text",
        "worker": (
            "(s.worker = encode(:worker_id::bytea, 'hex')::uuid"
            " OR s.worker IN (SELECT w.id FROM shigoto.worker w WHERE w.name = :worker::text))"
        ),
    },
    has_error='strpos(lower(({error}) COLLATE "C"), :error::text) > 0',
    join=" JOIN ",
    bodies="shigoto.job b ON b.number = s.number",
    lanes="shigoto.lane l ON l.lane = {lane}",
    many="SELECT count(*) FROM (SELECT 1 FROM shigoto.ready LIMIT :many::int) r",
)

# Casts have two colons.
_NAMED = re.compile(r"(?<!:):([a-z_]+)")


def statement(text: str, values: Mapping[str, Any]) -> SqlText:
    """The statement with numbers for the names of its values."""
    names: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    numbers = _NAMED.sub(numbered, text)
    return SqlText(numbers, [values[name] for name in names])


def complete(now: Millis, worker: UUID, settlements: list[Settlement]) -> Steps[list[Settlement]]:
    """Complete those that this worker holds, and tell which these are."""
    numbers = bigint_array([s.number for s in settlements])
    tokens = int_array([s.token for s in settlements])
    results = text_array([s.result for s in settlements])
    [accepted] = (yield sql("complete", worker.bytes, numbers, tokens, results)).fetchone()
    if len(accepted) == len(settlements):
        return settlements
    mine = set(accepted)
    return [s for s in settlements if s.number in mine]


def special(settlements: Sequence[Settlement]) -> list[Settlement]:
    """Those that are more than a completion with a result."""
    return [
        s
        for s in settlements
        if s.ending is not Ending.COMPLETED
        or s.log is not None
        or s.progress is not None
        or s.progress_text is not None
    ]


def settle(
    dialect: Dialect, worker: UUID, settlements: Sequence[Settlement], *, plain: bool
) -> Steps[list[Verdict]]:
    """One that is locked is waited for, not for long; of several, the others are settled."""
    if len(settlements) == 1:
        return (yield from _settle_free(dialect, worker, settlements))
    if plain:
        try:
            return (yield from settling.settle(dialect, 0, worker, settlements))
        except psycopg.errors.LockNotAvailable:
            pass  # it was by itself, so that a transaction can begin now
    busy = yield from locked([settlement.number for settlement in settlements])
    free = [settlement for settlement in settlements if settlement.number not in busy]
    verdicts = iter((yield from _settle_free(dialect, worker, free)) if free else ())
    return [Verdict.BUSY if s.number in busy else next(verdicts) for s in settlements]


def locked(numbers: Sequence[int]) -> Steps[Collection[int]]:
    """Which of these runs somebody else has locked; all others are locked by us now, in the order of their numbers."""
    rows = (yield sql("lock_free", json.encode(numbers).decode())).fetchall()
    return frozenset(number for (number,) in rows)


def _settle_free(dialect: Dialect, worker: UUID, settlements: Sequence[Settlement]) -> Steps[list[Verdict]]:
    now: Millis = 0
    if any(settlement.ending is not Ending.COMPLETED for settlement in settlements):
        now = yield from now_there()
    return (yield from settling.settle(dialect, now, worker, settlements))


def now_there() -> Steps[Millis]:
    """What time it is at the store."""
    [now] = (yield sql("now")).fetchone()
    return int(now)
