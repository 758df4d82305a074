"""Which jobs a filter means: walks through the tables that hold them, newest or oldest first, that stop early.

The state of a job is the table that holds its number, so much of what a filter says tells first where to look. What
only the payload can tell is asked last, in Python, for jobs that match in everything else.
"""

from sqlite3 import Error
from typing import Any, Literal

from msgspec import Struct, json, structs

from shigoto.engine.sqlite.damage import is_damage, one_by_one
from shigoto.engine.sqlite.statement import SQL, Statement, Steps, sql
from shigoto.model.job import JobFilter, State, View
from shigoto.model.matching import folded, has_args, worker_id
from shigoto.model.states import DELETABLE

EVERYWHERE: tuple[State | View, ...] = tuple(State)
NEVER_IN_ERROR = (State.COMPLETED, State.BLOCKED)

# With more pending jobs than this, walking the newest bodies finds a page of them sooner than sorting them all.
MANY = 20_000
PORTION = 500  # of jobs whose payloads are asked for at once

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


class Place(Struct, frozen=True):
    """Where jobs of one state or view are: the table, what must hold there, which column has the number or the lane."""

    table: str
    condition: str = "TRUE"
    number: str = "s.number"
    lane: str = "b.lane"
    error: str = f"iif(s.failures > 0, {LAST_ERROR}, NULL)"


ALL = Place("shigoto_job b", "b.lane <> 0", number="b.number")
MANY_PENDING = Place(
    "shigoto_job b",
    " AND ".join(
        ["b.lane <> 0"]
        + [
            f"NOT EXISTS (SELECT 1 FROM {table} x WHERE x.number = b.number)"
            for table in ("shigoto_done", "shigoto_running", "shigoto_blocked")
        ]
    ),
    number="b.number",
)
ENDED_IN_ERROR = f"coalesce(s.error, iif(s.failures > 0, {LAST_ERROR}, NULL))"
PLACES: dict[State | View, Place] = {
    State.PENDING: Place(WAITING, lane="s.lane"),
    "retrying": Place(WAITING, "s.failures > 0", lane="s.lane"),
    "scheduled": Place("shigoto_scheduled s", lane="s.lane"),
    State.PROCESSING: Place("shigoto_running s"),
    State.BLOCKED: Place("shigoto_blocked s"),
    State.COMPLETED: Place("shigoto_done s NOT INDEXED", "s.state = 3"),
    State.FAILED: Place(NOT_COMPLETED, "s.state = 4 AND s.state <> 3", error=ENDED_IN_ERROR),
    State.CANCELLED: Place(NOT_COMPLETED, "s.state = 5 AND s.state <> 3", error=ENDED_IN_ERROR),
}

OF_LANES = frozenset({"queue", "task"})
OF_BODIES = frozenset({"tenant", "key", "tag", "since"})
# What can be asked in any place; an error is told by each in its own way.
CONDITIONS = {
    "queue": "l.queue = :queue",
    "task": "l.task = :task",
    "tenant": "b.tenant = :tenant",
    "key": "b.key = :key",
    # Valid, unless somebody has written them by hand.
    "tag": "EXISTS (SELECT 1 FROM json_each(iif(json_valid(b.tags), b.tags, '[]')) t WHERE t.value = :tag)",
    "since": "b.created_at >= :since",
    "failure_kind": "s.failure_kind = :failure_kind",
    "worker": "(s.worker = :worker_id OR s.worker IN (SELECT w.id FROM shigoto_worker w WHERE w.name = :worker))",
}


def newest(wanted: JobFilter) -> Steps[list[int]]:
    """The numbers of a page."""
    states = states_of(wanted)
    if states == EVERYWHERE:
        places = [ALL]
    elif states == (State.PENDING,) and wanted.error is None:
        places = [(yield from _place_of_pending())]
    else:
        places = [PLACES[state] for state in states]
    found: list[int] = []
    for place in places:
        found += yield from _walk(numbers_of(place, wanted, "DESC"), wanted)
    return sorted(found, reverse=True)[: max(0, wanted.limit)]


def deletable(wanted: JobFilter, after: int) -> Steps[list[int]]:
    """The numbers of the oldest that have ended or have not begun."""
    found: list[int] = []
    for state in states_of(wanted):
        if state in DELETABLE or not isinstance(state, State):
            found += yield from _walk(numbers_of(PLACES[state], wanted, "ASC", after), wanted)
    return sorted(found)[: max(0, wanted.limit)]


def counted_one_by_one(wanted: JobFilter) -> Steps[int]:
    """How many match, when no counter tells."""
    states = states_of(wanted)
    total = 0
    for place in [ALL] if states == EVERYWHERE else [PLACES[state] for state in states]:
        cursor = yield Statement(*_select("b.payload" if wanted.args else "count(*)", place, wanted))
        if wanted.args:
            total += sum(has_args(payload, wanted.args) for (payload,) in cursor)
        else:
            total += cursor.fetchone()[0]
    return total


def states_of(wanted: JobFilter) -> tuple[State | View, ...]:
    """Where jobs that match can be; nowhere, if the filter contradicts itself."""
    states = EVERYWHERE if wanted.state is None else (wanted.state,)
    return tuple(state for state in states if _possible(state, wanted))


def _possible(state: State | View, wanted: JobFilter) -> bool:
    return (
        (wanted.worker is None or state is State.PROCESSING)
        and (wanted.failure_kind is None or state is State.FAILED)
        and (wanted.error is None or state not in NEVER_IN_ERROR)
    )


def _place_of_pending() -> Steps[Place]:
    look = Statement(f"SELECT count(*) FROM (SELECT 1 FROM shigoto_ready LIMIT {MANY})")
    return MANY_PENDING if (yield look).fetchone()[0] == MANY else PLACES[State.PENDING]


def _walk(statement: Statement, wanted: JobFilter) -> Steps[list[int]]:
    cursor = yield statement
    if not wanted.args:
        return [number for (number,) in cursor.fetchall()]
    found: list[int] = []
    while len(found) < wanted.limit and (rows := cursor.fetchmany(PORTION)):
        numbers = [number for (number,) in rows]
        payloads = yield from _payloads(numbers)
        fitting = {number for number, payload in payloads if has_args(payload, wanted.args)}
        found += [number for number in numbers if number in fitting]
    cursor.close()
    return found


def _payloads(numbers: list[int]) -> Steps[list[tuple[Any, ...]]]:
    try:
        return (yield sql("payloads", json.encode(numbers).decode())).fetchall()
    except Error as error:
        if not is_damage(error):
            raise
        return (yield from one_by_one(SQL["payloads"], numbers))


def numbers_of(place: Place, wanted: JobFilter, order: Literal["ASC", "DESC"], after: int = 0) -> Statement:
    """The statement that finds numbers in one place; with a limit, unless payloads are to be asked too."""
    text, values = _select(place.number, place, wanted)
    if after:
        text += f" AND {place.number} > :after"
        values["after"] = after
    if wanted.before is not None:
        text += f" AND {place.number} < :before"
        values["before"] = wanted.before
    text += f" ORDER BY {place.number} {order}"
    if not wanted.args:
        text += " LIMIT :limit"
        values["limit"] = max(0, wanted.limit)
    return Statement(text, values)


def _select(columns: str, place: Place, wanted: JobFilter) -> tuple[str, dict[str, Any]]:
    given = {name: value for name, value in structs.asdict(wanted).items() if value is not None}
    asked = [place.condition, *(condition for name, condition in CONDITIONS.items() if name in given)]
    values = {name: given[name] for name in CONDITIONS if name in given}
    if wanted.worker is not None:
        id = worker_id(wanted.worker)
        values["worker_id"] = None if id is None else id.bytes
    if wanted.error is not None:
        asked.append(f"instr(lower({place.error}), :error) > 0")
        values["error"] = folded(wanted.error)
    tables = [place.table]
    lanes = not OF_LANES.isdisjoint(given)
    bodies = (lanes and place.lane == "b.lane") or wanted.args or not OF_BODIES.isdisjoint(given)
    if bodies and place.number != "b.number":
        tables.append("shigoto_job b ON b.number = s.number")
    if lanes:
        tables.append(f"shigoto_lane l ON l.lane = {place.lane}")
    return f"SELECT {columns} FROM {' CROSS JOIN '.join(tables)} WHERE {' AND '.join(asked)}", values
