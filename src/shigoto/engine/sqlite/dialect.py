"""SQLite's dialect: its statements, its clock, its counters, and what else differs from other SQL engines.

Store time is the host's clock, held back by the highest time that was seen (rule: model.time.held_back). All processes
of a file share one host, so one clock. The mark lives in memory and starts from the file; every beat and sweep takes
over what others have written there and writes its own, so that after a small step all stand still together.

Enqueues are not counted one by one: numbers are given in commit order, so what was enqueued since is a range. The rest
of counting is in `engine.sql.settling`.

T4, the good end of runs, is here too: the token is checked in the joins of `complete` and `complete_plain`.
"""

import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from msgspec import json

from shigoto.engine.op import WRITE, Write
from shigoto.engine.sql.commands import (
    Command,
    NamedSql,
    SqlText,
    StateTable,
    StateTables,
    Steps,
    load_statements,
    sql,
    sql_each,
)
from shigoto.engine.sql.settling import count, count_completed
from shigoto.model.job import State
from shigoto.model.time import Clock, Millis, held_back
from shigoto.model.worker import UNTOLD, Promoted, Settlement

SQL = load_statements(Path(__file__).parent / "statements")

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
    for table in ("shigoto_done", "shigoto_running")
)
STATE_TABLES = StateTables(
    everywhere=StateTable(table="shigoto_job b", condition="b.lane <> 0", number="b.number", error=IN_ERROR),
    many_pending=StateTable(
        table="shigoto_job b", condition=f"b.lane <> 0 AND {NOWHERE_ELSE}", number="b.number", error=IN_ERROR
    ),
    by_state={
        State.PENDING: StateTable(table=WAITING, lane="s.lane", error=IN_ERROR),
        "retrying": StateTable(table=WAITING, condition="s.failures > 0", lane="s.lane", error=IN_ERROR),
        "scheduled": StateTable(table="shigoto_scheduled s", lane="s.lane", error=IN_ERROR),
        State.PROCESSING: StateTable(table="shigoto_running s", error=IN_ERROR),
        State.COMPLETED: StateTable(
            table="shigoto_done s NOT INDEXED", condition="s.state = 3", error="NULL"
        ),
        State.FAILED: StateTable(
            table=NOT_COMPLETED, condition="s.state = 4 AND s.state <> 3", error=ENDED_IN_ERROR
        ),
        State.CANCELLED: StateTable(
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


def execute(connection: sqlite3.Connection, command: Command) -> sqlite3.Cursor:
    """Run one command. The cursor's row factory is ours, whatever the caller's connection has set."""
    cursor = connection.cursor()
    cursor.row_factory = None
    if isinstance(command, Write):
        return cursor
    text = SQL[command.name] if isinstance(command, NamedSql) else command.text
    if isinstance(command, SqlText) and command.many:
        return cursor.executemany(text, command.values)
    return cursor.execute(text, command.values)


class StoreClock:
    """One read per operation; never runs backward by a little, and reports when it ran backward by a lot."""

    def __init__(self, host: Clock) -> None:
        self._host = host
        self._mark: Millis = 0
        self._lock = threading.Lock()
        self.step: Millis = 0

    def now(self) -> Millis:
        if self._host() == self._mark:  # as mostly, when it is asked several times in a millisecond
            return self._mark
        with self._lock:
            host = self._host()  # anew: who was stopped before it had the lock has an old time
            now = held_back(host, self._mark)
            if now < self._mark:
                self.step = self._mark - now
            self._mark = now
            return now

    def remember(self, mark: Millis) -> None:
        """Take over the mark of the file, unless it dates from before a step that we have believed already."""
        with self._lock:
            if not self.step:
                self._mark = max(self._mark, mark)

    def step_handled(self, step: Millis) -> None:
        """The sweep that gave every lease its time again is committed."""
        if self.step == step:
            self.step = 0


def now_and_step(clock: StoreClock) -> Steps[tuple[Millis, Millis]]:
    """Store time, no earlier than any process of this file has seen it, and remembered for the others."""
    mark: object = (yield sql("meta", "clock")).fetchone()[0]
    if isinstance(mark, int):  # unless somebody has written it by hand; ours is written over it below
        clock.remember(mark)
    now = clock.now()
    yield sql("set_meta", "clock", now)
    return now, clock.step


def fold_counters() -> Steps[None]:
    """Count what was enqueued since the last time; also before a pending job changes its queue, since until it is
    counted, it counts for the one it is in."""
    yield from _count_to((yield sql("highest")).fetchone()[0])


def uncounted() -> Steps[dict[str, int]]:
    return dict((yield sql("uncounted")).fetchall())


def count_batch(first: int, jobs: Mapping[str, int]) -> Steps[None]:
    """Count a batch that was enqueued just now: so many of each queue, their numbers from this one on.

    To count it later would mean to walk over it again: half a second for a million jobs, with the write lock held.
    """
    yield from _count_to(first - 1)
    yield sql_each("count", [(queue, number, 0, 0, 0) for queue, number in jobs.items()])
    yield sql("set_meta", "counted_to", first - 1 + sum(jobs.values()))


def _count_to(number: int) -> Steps[None]:
    counted_to: int = (yield sql("meta", "counted_to")).fetchone()[0]
    if number > counted_to:
        yield sql("fold", counted_to, number)
        yield sql("set_meta", "counted_to", number)


def count_deleted(jobs: Sequence[tuple[int, State, str]]) -> Steps[None]:
    """Jobs went away. What was enqueued since the last sweep is not in the totals yet."""
    counted_to: int = (yield sql("meta", "counted_to")).fetchone()[0]
    yield from count(
        deleted=[(queue, state) for number, state, queue in jobs if number <= counted_to],
        revived=[(queue, state) for number, state, queue in jobs if number > counted_to and state.terminal],
    )


def complete(now: Millis, worker: UUID, settlements: list[Settlement]) -> Steps[list[Settlement]]:
    written = yield from _write(now, worker, settlements)
    mine = settlements if written == len(settlements) else (yield from _held(worker, settlements))
    if not mine:
        return []
    yield sql("stop_running", json.encode([s.number for s in mine]).decode())
    counts = Counter([s.queue for s in mine])
    if UNTOLD in counts:
        counts = yield from _by_queue(mine)
    yield from count_completed(counts)
    return mine


def _by_queue(settlements: list[Settlement]) -> Steps[Counter[str]]:
    """How many jobs there are of each queue, as the store knows it."""
    numbers = json.encode([s.number for s in settlements]).decode()
    return Counter(dict((yield sql("by_queue", numbers)).fetchall()))


def _write(now: Millis, worker: UUID, settlements: list[Settlement]) -> Steps[int]:
    """Write the history of those that this worker holds, and count them.

    Runs without a result are most of all runs, and their tokens are few. To take three values of each apart costs
    SQLite 1.3 µs, and only its number, 0.5 µs.
    """
    plain: dict[int, list[int]] = {}
    telling: list[tuple[int, int, str | None]] = []
    for settlement in settlements:
        if settlement.result == "null":
            plain.setdefault(settlement.token, []).append(settlement.number)
        else:
            telling.append((settlement.number, settlement.token, settlement.result))
    written = 0
    for token, numbers in plain.items():
        batch = json.encode(numbers).decode()
        written += (yield sql("complete_plain", batch, worker.bytes, now, token)).rowcount
    if telling:
        batch = json.encode(telling).decode()
        written += (yield sql("complete", batch, worker.bytes, now)).rowcount
    return written


def _held(worker: UUID, settlements: list[Settlement]) -> Steps[list[Settlement]]:
    leases = json.encode([(s.number, s.token) for s in settlements]).decode()
    rows = json.decode((yield sql("held", leases, worker.bytes)).fetchone()[0])
    mine = {(row[0], row[1]) for row in rows}
    return [s for s in settlements if (s.number, s.token) in mine]


def promote(now: Millis, limit: int) -> Steps[Promoted]:
    """Move due jobs from the schedule to the ready set; the look at the next due instant needs no lock."""
    due = yield from _next_due()
    if due is None or due > now:
        return Promoted(0, None if due is None else due - now)
    yield WRITE
    count = (yield sql("promote", now, limit)).rowcount
    yield sql("unschedule_promoted", now, limit)
    due = yield from _next_due()
    return Promoted(max(count, 0), None if due is None else max(0, due - now))


def _next_due() -> Steps[Millis | None]:
    """When the next job is due. What somebody has written by hand, and is no instant, sorts behind all that are."""
    due: object = (yield sql("next_due")).fetchone()[0]
    return int(due) if isinstance(due, int | float) else None


def forget(jobs: Sequence[tuple[int, State, str]]) -> Steps[None]:
    """Delete the bodies. The newest stays as a husk, so that its number is not given out again."""
    numbers = [number for number, _, _ in jobs]
    highest = (yield sql("highest")).fetchone()[0]
    if highest in numbers:
        numbers.remove(highest)
        yield sql("delete_husk")
        yield sql("make_husk", highest)
        yield sql("set_meta", "husk", highest)
    yield sql("delete_jobs", json.encode(numbers).decode())
    yield sql("delete_husk")
    yield from count_deleted(jobs)
