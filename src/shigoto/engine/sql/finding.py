"""Which jobs a filter means: walks through the tables that hold them, newest or oldest first, that stop early.

The state of a job is the table that holds its number, so much of what a filter says tells first where to look. What
only the payload can tell is asked last, in Python, for jobs that match in everything else.
"""

from typing import Any, Literal

from msgspec.structs import asdict, replace

from shigoto.engine.sql.command import Statement, Steps
from shigoto.engine.sql.dialect import Dialect
from shigoto.engine.sql.one_by_one import one_by_one
from shigoto.engine.sql.places import Place
from shigoto.model.job import JobFilter, State, View, folded, has_args, worker_id
from shigoto.model.states import DELETABLE

EVERYWHERE: tuple[State | View, ...] = tuple(State)
NEVER_IN_ERROR = (State.COMPLETED, State.BLOCKED)
OF_LANES = frozenset({"queue", "task"})
OF_BODIES = frozenset({"tenant", "key", "tag", "since"})

# With more pending jobs than this, walking the newest bodies finds a page of them sooner than sorting them all.
MANY = 20_000
PORTION = 500  # of jobs whose payloads are asked for at once
# Of numbers at a time, while payloads decide. Some places sort all they have for each portion, so portions grow.
FIRST_NUMBERS, MOST_NUMBERS = 2_000, 128_000
ALL = 2**62

Order = Literal["ASC", "DESC"]


def newest(dialect: Dialect, wanted: JobFilter) -> Steps[list[int]]:
    """The numbers of a page."""
    states = states_of(wanted)
    places = dialect.places
    if states == EVERYWHERE:
        chosen = [places.everywhere]
    elif states == (State.PENDING,) and wanted.error is None:
        [ready] = (yield dialect.statement(places.many, {"many": MANY})).fetchone()
        chosen = [places.many_pending if ready == MANY else places.by_state[State.PENDING]]
    else:
        chosen = [places.by_state[state] for state in states]
    found: list[int] = []
    for place in chosen:
        found += yield from _walk(dialect, place, wanted, "DESC", wanted.limit)
    return sorted(found, reverse=True)[: max(0, wanted.limit)]


def deletable(dialect: Dialect, wanted: JobFilter, after: int) -> Steps[list[int]]:
    """The numbers of the oldest that have ended or have not begun."""
    found: list[int] = []
    for state in states_of(wanted):
        if state in DELETABLE or not isinstance(state, State):
            place = dialect.places.by_state[state]
            found += yield from _walk(dialect, place, wanted, "ASC", wanted.limit, after)
    return sorted(found)[: max(0, wanted.limit)]


def counted_one_by_one(dialect: Dialect, wanted: JobFilter) -> Steps[int]:
    """How many match, when no counter tells."""
    states = states_of(wanted)
    places = dialect.places
    wanted = replace(wanted, before=None)
    total = 0
    for place in (
        [places.everywhere] if states == EVERYWHERE else [places.by_state[state] for state in states]
    ):
        if wanted.args:
            total += len((yield from _walk(dialect, place, wanted, "ASC", ALL)))
        else:
            text, values = _select(dialect, "count(*)", place, wanted)
            total += (yield dialect.statement(text, values)).fetchone()[0]
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


def _walk(
    dialect: Dialect, place: Place, wanted: JobFilter, order: Order, limit: int, after: int = 0
) -> Steps[list[int]]:
    if not wanted.args:
        rows = (yield numbers_of(dialect, place, wanted, order, limit, after)).fetchall()
        return [number for (number,) in rows]
    found: list[int] = []
    at_once, full = FIRST_NUMBERS, True
    while full and len(found) < limit:
        rows = (yield numbers_of(dialect, place, wanted, order, at_once, after)).fetchall()
        numbers: list[int] = [number for (number,) in rows]
        for first in range(0, len(numbers), PORTION):
            found += yield from _fitting(dialect, numbers[first : first + PORTION], wanted)
            if len(found) >= limit:
                break
        full = len(numbers) == at_once
        if numbers and order == "DESC":
            wanted = replace(wanted, before=numbers[-1])
        elif numbers:
            after = numbers[-1]
        at_once = min(2 * at_once, MOST_NUMBERS)
    return found


def _fitting(dialect: Dialect, numbers: list[int], wanted: JobFilter) -> Steps[list[int]]:
    payloads = yield from one_by_one(dialect, "payloads", numbers)
    fitting = {number for number, payload in payloads if has_args(payload, wanted.args)}
    return [number for number in numbers if number in fitting]


def numbers_of(
    dialect: Dialect, place: Place, wanted: JobFilter, order: Order, limit: int, after: int = 0
) -> Statement:
    """The statement that finds numbers in one place."""
    text, values = _select(dialect, place.number, place, wanted)
    if after:
        text += f" AND {place.number} > :after"
        values["after"] = after
    if wanted.before is not None:
        text += f" AND {place.number} < :before"
        values["before"] = wanted.before
    text += f" ORDER BY {place.number} {order} LIMIT :limit"
    values["limit"] = max(0, limit)
    return dialect.statement(text, values)


def _select(dialect: Dialect, columns: str, place: Place, wanted: JobFilter) -> tuple[str, dict[str, Any]]:
    places = dialect.places
    given = {name: value for name, value in asdict(wanted).items() if value is not None}
    asked = [place.condition, *(text for name, text in places.conditions.items() if name in given)]
    values = {name: given[name] for name in places.conditions if name in given}
    if wanted.worker is not None:
        id = worker_id(wanted.worker)
        values["worker_id"] = None if id is None else id.bytes
    if wanted.error is not None:
        asked.append(places.has_error.format(error=place.error))
        values["error"] = folded(wanted.error)
    tables = [place.table]
    lanes = not OF_LANES.isdisjoint(given)
    bodies = (lanes and place.lane == "b.lane") or not OF_BODIES.isdisjoint(given)
    if bodies and place.number != "b.number":
        tables.append(places.bodies)
    if lanes:
        tables.append(places.lanes.format(lane=place.lane))
    return f"SELECT {columns} FROM {places.join.join(tables)} WHERE {' AND '.join(asked)}", values
