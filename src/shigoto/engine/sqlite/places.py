"""SQLite's words for where jobs are."""

from shigoto.engine.sql.commands import Place, Places
from shigoto.model.job import State

WAITING = (
    "(SELECT number, lane, failures FROM shigoto_ready"
    " UNION ALL SELECT number, lane, failures FROM shigoto_scheduled) s"
)
# SQLite uses a partial index only when its condition is repeated word for word.
NOT_COMPLETED = "shigoto_done s INDEXED BY shigoto_done_not_completed"
LAST_ERROR = (
    "(SELECT a.error FROM shigoto_attempt a"
    " WHERE a.number = s.number AND a.error IS NOT NULL ORDER BY a.token DESC LIMIT 1)"
)
IN_ERROR = f"iif(s.failures > 0, {LAST_ERROR}, NULL)"
ENDED_IN_ERROR = f"coalesce(s.error, {IN_ERROR})"
NOWHERE_ELSE = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM {table} x WHERE x.number = b.number)"
    for table in ("shigoto_done", "shigoto_running", "shigoto_blocked")
)

PLACES = Places(
    everywhere=Place(table="shigoto_job b", condition="b.lane <> 0", number="b.number", error=IN_ERROR),
    many_pending=Place(
        table="shigoto_job b", condition=f"b.lane <> 0 AND {NOWHERE_ELSE}", number="b.number", error=IN_ERROR
    ),
    by_state={
        State.PENDING: Place(table=WAITING, lane="s.lane", error=IN_ERROR),
        "retrying": Place(table=WAITING, condition="s.failures > 0", lane="s.lane", error=IN_ERROR),
        "scheduled": Place(table="shigoto_scheduled s", lane="s.lane", error=IN_ERROR),
        State.PROCESSING: Place(table="shigoto_running s", error=IN_ERROR),
        State.BLOCKED: Place(table="shigoto_blocked s", error="NULL"),
        State.COMPLETED: Place(table="shigoto_done s NOT INDEXED", condition="s.state = 3", error="NULL"),
        State.FAILED: Place(
            table=NOT_COMPLETED, condition="s.state = 4 AND s.state <> 3", error=ENDED_IN_ERROR
        ),
        State.CANCELLED: Place(
            table=NOT_COMPLETED, condition="s.state = 5 AND s.state <> 3", error=ENDED_IN_ERROR
        ),
    },
    conditions={
        "queue": "l.queue = :queue",
        "task": "l.task = :task",
        "tenant": "b.tenant = :tenant",
        "key": "b.key = :key",
        # Valid, unless somebody has written them by hand.
        "tag": "EXISTS (SELECT 1 FROM json_each(iif(json_valid(b.tags), b.tags, '[]')) t WHERE t.value = :tag)",
        "since": "b.created_at >= :since",
        "failure_kind": "s.failure_kind = :failure_kind",
        "worker": (
            "(s.worker = :worker_id OR s.worker IN (SELECT w.id FROM shigoto_worker w WHERE w.name = :worker))"
        ),
    },
    has_error="instr(lower({error}), :error) > 0",
    join=" CROSS JOIN ",  # which fixes the order
    bodies="shigoto_job b ON b.number = s.number",
    lanes="shigoto_lane l ON l.lane = {lane}",
    many="SELECT count(*) FROM (SELECT 1 FROM shigoto_ready LIMIT :many)",
)
