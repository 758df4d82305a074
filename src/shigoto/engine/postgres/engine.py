"""PostgresEngine: the verbs that PostgreSQL has in its own way, and what the common ones do differently there.

What the ends of runs (T4-T8) mean is in `engine.sql.settling`; the token of a completion is checked by the function
`complete`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import psycopg
from msgspec import json

from shigoto.engine.op import Op, OpBatch
from shigoto.engine.postgres import checkup, claiming, enqueueing, schema, transaction
from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.claiming import ScanStarts
from shigoto.engine.postgres.driver import ONE_TRIP, Driver, PostgresHints
from shigoto.engine.postgres.joining import Joiner, Lanes
from shigoto.engine.postgres.transaction import BlockPool
from shigoto.engine.postgres.wire import bigint_array, in_schema, int_array, load_texts, text_array
from shigoto.engine.protocol import Block, Capabilities, Doorbell
from shigoto.engine.sql import commands, settling
from shigoto.engine.sql.commands import Dialect, SqlText, StateTable, StateTables, Steps, sql, too_new, value
from shigoto.engine.sql.engine import SqlEngine
from shigoto.engine.sql.enqueueing import lanes
from shigoto.engine.sql.settling import count
from shigoto.model.checkup import Checkup
from shigoto.model.job import Enqueued, JobSpec, Lease, State
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Promoted, Settlement, Verdict, Want

if TYPE_CHECKING:
    from shigoto.engine.movable import Mover

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
    for table in ("shigoto.done", "shigoto.running")
)

STATE_TABLES = StateTables(
    everywhere=StateTable(table="shigoto.job b", number="b.number", error=IN_ERROR),
    many_pending=StateTable(table="shigoto.job b", condition=NOWHERE_ELSE, number="b.number", error=IN_ERROR),
    by_state={
        State.PENDING: StateTable(table=WAITING, lane="s.lane", error=IN_ERROR),
        "retrying": StateTable(table=WAITING, condition="s.failures > 0", lane="s.lane", error=IN_ERROR),
        "scheduled": StateTable(table="shigoto.scheduled s", lane="s.lane", error=IN_ERROR),
        State.PROCESSING: StateTable(table="shigoto.running s", lane="s.lane", error=IN_ERROR),
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


T = TypeVar("T")

CAPABILITIES = Capabilities(
    name="postgres", durable=True, shared=True, joins=True, moves=True, block_limit=60.0
)
MIGRATE_FOR = 600.0  # seconds
MOVE_FOR = 86_400.0  # seconds, for one step of a move; that of an export is all of it


class PostgresEngine(SqlEngine):
    """Jobs in a schema of a PostgreSQL database. Opens lazily, and never makes or changes the schema unasked."""

    def __init__(self, url: str) -> None:
        self._settings = read_address(url)
        texts = load_texts(self._settings.schema)
        self._driver = Driver(self._settings, texts)
        self._joiner = Joiner(self._driver, texts)
        self._block_pool = BlockPool(self._driver, self._joiner.trust)
        self._lanes = Lanes()
        self._scan_starts = ScanStarts()
        dialect = Dialect(
            now_and_step=lambda: _now_and_step(self._settings.shown),
            complete=complete,
            forget=_forget,
            fold=_fold,
            uncounted=lambda: value({}),  # `counters` has them all
            numbers=enqueueing.numbers,
            lock_keys=enqueueing.lock_keys,
            locked=locked,
            is_damage=lambda error: False,
            submit=lambda _, specs: enqueueing.enqueue_joined(specs),
            state_tables=STATE_TABLES,
            statement=lambda text, values: statement(in_schema(text, self._settings.schema), values),
        )
        super().__init__(dialect, now=now_there, watch=lambda: value(None))

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    @property
    def address(self) -> str:
        return self._settings.url

    @property
    def shown(self) -> str:
        """The address as people may see it."""
        return self._settings.shown

    def run(self, op: Op[T]) -> T:
        return self._driver.run(op)

    async def arun(self, op: Op[T]) -> T:
        return await self._driver.arun(op)

    def join(self, connection: object, op: Op[T]) -> T:
        return self._joiner.join(connection, op)

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        return await self._joiner.ajoin(connection, op)

    def block(self, last: Callable[[], Op[Any]], *, limit: float) -> Block:
        return transaction.Block(self._block_pool, last, limit)

    def listen(self) -> Doorbell:
        return self._driver.listen()

    def hurry(self) -> None:
        """For somebody who sits and waits: tell at once that the server cannot be reached, and do not try again."""
        self._driver.hurry()

    def close(self) -> None:
        self._block_pool.close()
        self._driver.close()

    def migrate(self) -> list[str]:
        op = Op(start=lambda: schema.migrate(self._settings.schema, self._settings.shown))
        return self._driver.run(op, deadline=MIGRATE_FOR)

    def migration_script(self, *, everything: bool = False) -> str:
        """The SQL of what `migrate` would do now, or of all of it, for which nobody is asked; empty if it is done."""
        name, store = self._settings.schema, self._settings.shown
        if everything:
            return schema.script(name, store, schema.shipped(), begun=False)
        missing, begun = self._driver.run(Op(start=lambda: schema.missing(name, store), mode="read"))
        return schema.script(name, store, missing, begun=begun)

    def expect_schema(self) -> None:
        """Raise SchemaMissing if the database has no current store; creates and changes nothing."""
        look = Op(
            start=lambda: schema.expect_current(self._settings.schema, self._settings.shown), mode="read"
        )
        self._driver.run(look)

    def expect_ready(self, *, any_role: bool) -> Op[None]:
        """Raises StoreError if no worker may begin here, or not as this user; creates and changes nothing."""
        name, store = self._settings.schema, self._settings.shown
        return Op(start=lambda: schema.expect_ready(name, store, any_role=any_role), mode="read")

    def checkup(self, *, deep: bool = False) -> Checkup:
        """What there is to know of the server's and the store's health; changes nothing."""
        return checkup.examine(self._settings, self._driver)

    def mover(self) -> "Mover":
        """The store, for whoever moves it."""
        from shigoto.engine.postgres import moving

        return moving.mover(
            self._settings.schema, self._settings.shown, lambda op: self._driver.run(op, deadline=MOVE_FOR)
        )

    # A job's way: in, out, and ended.

    def enqueue_many(self, specs: Sequence[JobSpec]) -> Op[list[Enqueued]]:
        if not specs:
            return Op(start=lambda: value([]), mode="read", hints=ONE_TRIP)
        one = len(specs) == 1 and specs[0].key is None
        return Op(
            start=lambda: enqueueing.enqueue_joined(specs),
            rings=commands.anything_new,
            batch=OpBatch("enqueue", specs[0], self._enqueue_several) if one else None,
            hints=PostgresHints(
                one_trip=one or enqueueing.is_single(specs),
                alone=lambda: enqueueing.enqueue_one(specs[0]) if one else enqueueing.enqueue(specs),
                lanes=lambda: self._lanes.missing(lanes(specs)),
            ),
        )

    def _enqueue_several(self, specs: list[JobSpec]) -> Op[list[list[Enqueued]]]:
        def each(steps: Steps[list[Enqueued]]) -> Steps[list[list[Enqueued]]]:
            return [[answer] for answer in (yield from steps)]

        return Op(
            start=lambda: each(enqueueing.enqueue_joined(specs)),
            hints=PostgresHints(
                one_trip=enqueueing.is_single(specs), alone=lambda: each(enqueueing.enqueue(specs))
            ),
        )

    def claim(self, worker: UUID, wants: Sequence[Want]) -> Op[list[Lease]]:
        return Op(start=lambda: claiming.claim(self._scan_starts, worker, wants), hints=ONE_TRIP)

    def settle(self, worker: UUID, settlements: Sequence[Settlement]) -> Op[list[Verdict]]:
        others = special(settlements)
        plain = bool(settlements) and not others
        back = any(s.ending not in (Ending.COMPLETED, Ending.CANCELLED) for s in others)
        return Op(
            start=lambda: settle(self._dialect, worker, settlements, plain=plain),
            rings=(lambda _: True) if back else None,
            hints=ONE_TRIP if plain else None,
            urgent=True,
        )

    def promote(self, limit: int) -> Op[Promoted]:
        return Op(start=lambda: _promote(limit), rings=lambda promoted: promoted.count > 0, hints=ONE_TRIP)


def _promote(limit: int) -> Steps[Promoted]:
    moved, next_in = (yield sql("promote", limit)).fetchone()
    return Promoted(moved, next_in)


def _now_and_step(store: str) -> Steps[tuple[Millis, Millis]]:
    step, version, name = (yield sql("renew_clock")).fetchone()
    if version is not None and version > schema.newest():
        raise too_new(store, version, name, schema.newest())
    return (yield from now_there()), step


def _forget(jobs: Sequence[tuple[int, State, str]]) -> Steps[None]:
    yield sql("delete_jobs", json.encode([number for number, _, _ in jobs]).decode())
    yield from count(deleted=[(queue, state) for _, state, queue in jobs])


def _fold() -> Steps[None]:
    yield sql("fold_tally")
