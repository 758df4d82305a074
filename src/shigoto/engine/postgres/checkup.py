"""The health of the server and of the store, as far as it can be known. Nothing here changes anything.

It needs no more rights than a worker has: what the server does not show to such a role is counted, or named. It has a
connection of its own, since it must see what lies between us and the server.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from shigoto.engine.op import Op
from shigoto.engine.postgres import schema
from shigoto.engine.postgres.address import PostgresAddress
from shigoto.engine.postgres.driver import Driver
from shigoto.engine.postgres.errors import refined, refused_connection
from shigoto.engine.postgres.wire import in_schema
from shigoto.engine.sql.commands import SqlText, Steps
from shigoto.engine.sql.commands import sql as call
from shigoto.model.checkup import (
    Checkup,
    HolderFacts,
    LaneFacts,
    MoveFacts,
    ServerFacts,
    StoreFacts,
    TableFacts,
)
from shigoto.model.errors import StoreError
from shigoto.model.time import to_datetime

HEAR_WITHIN = 2.0  # seconds
LONG_ENOUGH = 10.0  # seconds that a transaction must last to be worth a look
BUSY = frozenset({"ready", "running", "scheduled", "tally"})
SETTINGS = (
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "autovacuum",
    "track_counts",
    "server_encoding",
    "statement_timeout",
    "idle_in_transaction_session_timeout",
)
INDEXES = frozenset({
    "attempt_by_end", "attempt_pkey", "audit_by_target", "audit_pkey", "blocked_pkey", "clock_pkey", "counter_pkey",
    "done_by_end", "done_not_completed", "done_pkey", "expiry_pkey", "job_by_id",
    "job_by_key", "job_pkey", "key_pkey", "lane_pkey", "lane_task_queue_alone_key", "log_pkey",
    "meta_pkey", "migration_pkey", "progress_pkey", "queue_pkey", "ready_in_order", "running_pkey",
    "schedule_by_look", "schedule_by_reached", "schedule_pkey", "scheduled_pkey", "tick_pkey", "token_pkey",
    "worker_id_key", "worker_pkey",
})  # fmt: skip

ROLE = """
SELECT r.rolname::text, r.rolsuper, coalesce(pg_has_role(n.nspowner, 'MEMBER'), false), r.rolbypassrls,
  pg_is_in_recovery(), current_setting('server_version_num')::integer,
  current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
    - coalesce(current_setting('reserved_connections', true)::integer, 0),
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
  least(nullif(r.rolconnlimit, -1), (SELECT nullif(datconnlimit, -1) FROM pg_database
    WHERE datname = current_database())),
  pg_notification_queue_usage()
FROM pg_roles r
LEFT JOIN pg_namespace n ON n.nspname = %(schema)s
WHERE r.rolname = current_user
"""
RIGHTS = """
SELECT c.relname || ': ' || string_agg(needed, ', ' ORDER BY needed)
FROM pg_class c
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed
WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind = 'r'
  AND (c.relname <> 'migration' OR needed = 'SELECT') AND NOT has_table_privilege(c.oid, needed)
GROUP BY c.relname
UNION ALL
SELECT p.proname || ': EXECUTE'
FROM pg_proc p
WHERE p.pronamespace = to_regnamespace(%(schema)s) AND NOT has_function_privilege(p.oid, 'EXECUTE')
ORDER BY 1
"""
SESSIONS = """
SELECT pid, coalesce(usename::text, backend_type), coalesce(application_name, ''), coalesce(state, 'at work'),
  extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND (datname = current_database() OR backend_type = 'walsender')
  AND backend_type <> 'autovacuum worker' AND xact_start < clock_timestamp() - make_interval(secs => %(least)s)
ORDER BY xact_start
"""
UNSEEN = """
SELECT count(*)
FROM pg_stat_activity
WHERE datname = current_database() AND query = '<insufficient privilege>'
"""
PREPARED = """
SELECT gid, owner::text, extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts
WHERE database = current_database()
ORDER BY prepared
"""
SLOTS = """
SELECT slot_name::text, active, age(xmin)
FROM pg_replication_slots
WHERE xmin IS NOT NULL
ORDER BY age(xmin) DESC
"""
TABLES = """
SELECT s.relname::text, s.n_live_tup, s.n_dead_tup, greatest(s.last_vacuum, s.last_autovacuum),
  NOT coalesce('autovacuum_enabled=false' = ANY (c.reloptions) OR 'autovacuum_enabled=off' = ANY (c.reloptions), false)
FROM pg_stat_all_tables s
JOIN pg_class c ON c.oid = s.relid
WHERE s.schemaname = %(schema)s
ORDER BY s.n_dead_tup DESC
"""
EXISTING = """
SELECT c.relname::text, i.indisvalid AND i.indisready
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relnamespace = to_regnamespace(%(schema)s)
"""
SIZE = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint
FROM pg_class
WHERE relnamespace = to_regnamespace(%(schema)s) AND relkind = 'r'
"""
MARK = "SELECT mark FROM shigoto.clock"

Connection = psycopg.Connection[tuple[Any, ...]]


def examine(settings: PostgresAddress, driver: Driver) -> Checkup:
    """Look at the server, and then, if it has a store for us, into that."""
    server: ServerFacts | None = None
    try:
        with _connected(settings, settings.parameters) as connection:
            server = _look_at(connection, settings)
        inside = driver.run(Op(start=lambda: look_into(settings), mode="read"))
    except StoreError as error:
        return _found(settings, server, refusal=str(error))
    return _found(settings, server, store=inside)


def _found(settings: PostgresAddress, server: ServerFacts | None, **rest: Any) -> Checkup:
    version = "" if server is None else f"{server.number // 10_000}.{server.number % 10_000}"
    return Checkup(name=settings.shown, version=version, server=server, **rest)


def look_into(settings: PostgresAddress) -> Steps[StoreFacts]:
    """The clock, and what waits or runs without anybody."""
    yield from schema.expect_current(settings.schema, settings.shown)
    [mark] = (yield SqlText(in_schema(MARK, settings.schema))).fetchone()
    lanes = (yield call("ready_by_lane")).fetchall()
    [orphans] = (yield call("count_orphans")).fetchone()
    return StoreFacts(
        clock=mark,
        lanes=tuple(
            LaneFacts(queue=queue, task=task, alone=bool(alone), ready=ready, oldest=to_datetime(oldest))
            for queue, task, alone, ready, oldest in lanes
        ),
        orphans=orphans,
        move=(yield from _move(settings.schema)),
    )


def _move(name: str) -> Steps[MoveFacts | None]:
    """Whoever has set the move lock may have let nobody else read it."""
    readable = "SELECT 1 WHERE has_table_privilege(to_regclass($1::text), 'SELECT')"
    if (yield SqlText(readable, (f'"{name}".gate',))).fetchone() is None:
        return None
    row = (yield SqlText(in_schema("SELECT kind, other FROM shigoto.gate", name))).fetchone()
    return None if row is None else MoveFacts(kind=row[0], other=row[1])


@contextmanager
def _connected(settings: PostgresAddress, parameters: dict[str, str]) -> Generator[Connection]:
    """A connection of its own, whose errors are ours. Raises StoreError."""
    try:
        connection = psycopg.connect(make_conninfo(**parameters), autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise refused_connection(error, settings.shown) from error
    try:
        yield connection
    except psycopg.Error as error:
        raise refined(error, settings.shown) from error
    finally:
        connection.close()


class _Asking:
    """Questions to the server; what this role may not ask is remembered by its name."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._values = {"schema": name, "least": LONG_ENOUGH}
        self.hidden: list[str] = []

    def rows(self, what: str, text: LiteralString) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(text, self._values).fetchall()
        except errors.InsufficientPrivilege:
            self.hidden.append(what)
            return []

    def one(self, what: str, text: LiteralString) -> Any:
        rows = self.rows(what, text)
        return rows[0][0] if rows else 0


def _look_at(connection: Connection, settings: PostgresAddress) -> ServerFacts:
    asking = _Asking(connection, settings.schema)
    now, skew, doubt = _clock(connection)
    [who] = connection.execute(ROLE, {"schema": settings.schema}).fetchall()
    role, is_super, owns, bypasses, standby, number, places, used, limit, queue = who
    indexes = dict(asking.rows("indexes", EXISTING))
    pooled = _is_pooled(connection)
    return ServerFacts(
        number=number,
        now=now,
        skew=skew,
        doubt=doubt,
        role=role,
        superuser=is_super,
        owner=owns,
        bypasses=bypasses,
        standby=standby,
        settings={name: _setting(connection, name) for name in SETTINGS},
        places=places,
        used=used,
        limit=limit,
        most=settings.connections,
        rights=tuple(text for (text,) in asking.rows("rights", RIGHTS)),
        holders=tuple(_holders(asking)),
        unseen=asking.one("sessions", UNSEEN),
        tables=tuple(_table(*row) for row in asking.rows("tables", TABLES)),
        missing=tuple(sorted(INDEXES - indexes.keys())),
        invalid=tuple(sorted(name for name, valid in indexes.items() if not valid)),
        size=asking.one("sizes", SIZE),
        pooled=pooled,
        prepares=bool(settings.prepare),
        heard=None if standby else _hears(connection, settings),
        queue=queue,
        hidden=tuple(asking.hidden),
    )


def _clock(connection: Connection) -> tuple[Any, float, float]:
    """The server's time, by how much it is ahead of ours, and how far that may be wrong."""
    before = time.time()
    [[now]] = connection.execute("SELECT clock_timestamp()").fetchall()
    after = time.time()
    return (
        now + timedelta(seconds=after - before) / 2,
        now.timestamp() - (before + after) / 2,
        (after - before) / 2,
    )


def _setting(connection: Connection, name: str) -> str:
    [[value]] = connection.execute("SELECT current_setting(%s)", (name,)).fetchall()
    return str(value)


def _holders(asking: _Asking) -> Iterator[HolderFacts]:
    for pid, user, application, state, seconds in asking.rows("sessions", SESSIONS):
        called = f"process {pid} of {user}{f', {application}' if application else ''}, {state}"
        idle = state.startswith("idle in transaction")
        yield HolderFacts(kind="session", name=called, seconds=seconds, idle=idle)
    for gid, owner, seconds in asking.rows("prepared transactions", PREPARED):
        yield HolderFacts(
            kind="prepared", name=f"prepared transaction {gid} of {owner}", seconds=seconds, idle=True
        )
    for name, active, age in asking.rows("replication slots", SLOTS):
        called = (
            f"replication slot {name}, {'in use' if active else 'which nobody uses'}, {age} transactions back"
        )
        yield HolderFacts(kind="slot", name=called, idle=not active)


def _table(name: str, live: int, dead: int, vacuumed_at: Any, autovacuum: bool) -> TableFacts:
    return TableFacts(
        name=name, live=live, dead=dead, vacuumed_at=vacuumed_at, autovacuum=autovacuum, busy=name in BUSY
    )


def _is_pooled(connection: Connection) -> bool:
    """Whether somebody else is at the other end: a pooler makes up the process id that it tells its clients."""
    [[pid]] = connection.execute("SELECT pg_backend_pid()").fetchall()
    return bool(pid != connection.info.backend_pid)


def _hears(connection: Connection, settings: PostgresAddress) -> bool | None:
    """Whether a notification arrives where workers wait for it; on a channel that wakes nobody."""
    if settings.listen_parameters is None:
        return None
    channel = f"{settings.schema[:20]}_doctor_{uuid4().hex}"
    try:
        with _connected(settings, settings.listen_parameters) as listener:
            listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            connection.execute("SELECT pg_notify(%s, '')", (channel,))
            heard = any(True for _ in listener.notifies(timeout=HEAR_WITHIN, stop_after=1))
            # of a pooler's connection
            listener.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
            return heard
    except StoreError:
        return False
