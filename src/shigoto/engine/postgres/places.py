"""PostgreSQL's words for where jobs are."""

import re
from collections.abc import Mapping
from typing import Any

from shigoto.engine.sql.commands import Place, Places, Statement
from shigoto.model.job import State

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

PLACES = Places(
    everywhere=Place(table="shigoto.job b", number="b.number", error=IN_ERROR),
    many_pending=Place(table="shigoto.job b", condition=NOWHERE_ELSE, number="b.number", error=IN_ERROR),
    by_state={
        State.PENDING: Place(table=WAITING, lane="s.lane", error=IN_ERROR),
        "retrying": Place(table=WAITING, condition="s.failures > 0", lane="s.lane", error=IN_ERROR),
        "scheduled": Place(table="shigoto.scheduled s", lane="s.lane", error=IN_ERROR),
        State.PROCESSING: Place(table="shigoto.running s", lane="s.lane", error=IN_ERROR),
        State.BLOCKED: Place(table="shigoto.blocked s", error="NULL"),
        State.COMPLETED: Place(table="shigoto.done s", condition="s.state = 3", error="NULL"),
        State.FAILED: Place(
            table="shigoto.done s", condition="s.state = 4 AND s.state <> 3", error=ENDED_IN_ERROR
        ),
        State.CANCELLED: Place(
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


def statement(text: str, values: Mapping[str, Any]) -> Statement:
    """The statement with numbers for the names of its values."""
    names: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    numbers = _NAMED.sub(numbered, text)
    return Statement(numbers, [values[name] for name in names])
