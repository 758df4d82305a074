"""Enqueueing (T1, T17): jobs come in.

Jobs that differ only in id and payload go in together, by the function `enqueue`: what they share is told once, and ids
and payloads are two arrays; one by itself goes in by `enqueue_one`, which needs no arrays. Both expect the best; a
known id, or a lane that is not there yet, is an error, and then `enqueue_each` does the same with more care. So do
callers' transactions, which an error would end, and batches in which hardly two jobs are the same.

If some have unique keys, it is as many trips to the server for a thousand as for one. First all keys are locked, in an
order that is everybody's; then nobody else can change who holds them. What each spec comes to is decided here, in list
order, by what the store has told and what the specs before have left (rule A1). Then it is written: what is replaced,
what is superseded, what is new, and at last who holds the keys now.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal
from uuid import UUID

import psycopg
from msgspec import Struct, json, structs

from shigoto.engine.op import WRITE
from shigoto.engine.postgres.wire import RING, text_array, uuid_array
from shigoto.engine.sql.commands import SqlText, Steps, sql, sql_each
from shigoto.engine.sql.looking import Key, KeyHolder, holders
from shigoto.engine.sql.managing import locked_states
from shigoto.engine.sql.settling import Waiting, count, find_waiting, wait_again
from shigoto.model.job import Enqueued, JobSpec, State
from shigoto.model.states import meeting, renewed
from shigoto.model.time import Millis

Insert = Callable[[Sequence[JobSpec]], Steps[list[Enqueued]]]

AT_ONCE = 1_000  # jobs of one statement
MOST_TEXT = 32 * 1024 * 1024  # characters of payloads in one statement; PostgreSQL takes less than a gigabyte
EQUAL = 50  # jobs of a run of equal ones on average, for which it is worth a statement of its own
Lane = tuple[str, str, bool]
UNEXPECTED = (psycopg.errors.UniqueViolation, psycopg.errors.NoDataFound)

TOLD = tuple(name for name in JobSpec.__struct_fields__ if name not in ("key_mode", "template"))


class KeyDecision(Struct, frozen=True):
    """What one spec has come to, before the new jobs have their numbers."""

    holder: KeyHolder
    status: Literal["inserted", "existing", "replaced"]


class KeyPlan:
    """What the specs come to, one after the other."""

    def __init__(self, now: Millis, known: dict[UUID, int], holders: dict[Key, KeyHolder]) -> None:
        self._now = now
        self._known = {id: KeyHolder(id, number, State.PENDING) for id, number in known.items()}
        self._holders = holders
        self.new: list[JobSpec] = []
        self.replacing: dict[int, list[JobSpec]] = {}
        self.superseded: list[int] = []
        self.taken: dict[Key, KeyHolder] = {}

    def add(self, spec: JobSpec) -> KeyDecision:
        """Decide for the next one."""
        known = self._known.get(spec.id)
        if known is not None:
            return KeyDecision(known, "existing")
        if spec.key is None:
            return self._insert(spec)
        holder = self._holders.get((spec.tenant, spec.key))
        if holder is None:
            return self._insert(spec)
        match meeting(spec.key_mode, holder.state):
            case "existing":
                return KeyDecision(holder, "existing")
            case "replaced":
                self._replace(holder, spec)
                return KeyDecision(holder, "replaced")
            case "superseded":
                self.superseded.append(holder.number)
                return self._insert(spec)
            case _:
                return self._insert(spec)

    def _insert(self, spec: JobSpec) -> KeyDecision:
        holder = self._known[spec.id] = KeyHolder(spec.id, 0, State.PENDING, len(self.new))
        self.new.append(spec)
        if spec.key is not None:
            self._holders[spec.tenant, spec.key] = self.taken[spec.tenant, spec.key] = holder
        return KeyDecision(holder, "inserted")

    def _replace(self, holder: KeyHolder, spec: JobSpec) -> None:
        if holder.place is None:
            self.replacing.setdefault(holder.number, []).append(spec)
            return
        before = self.new[holder.place]  # not stored yet: it is stored as it is replaced
        run_at = before.due(self._now) if spec.key_mode == "preserve_run_at" else spec.run_at
        self.new[holder.place] = structs.replace(spec, id=before.id, run_at=run_at)


def enqueue_keyed(now: Millis, specs: Sequence[JobSpec], insert: Insert) -> Steps[list[Enqueued]]:
    """Store the jobs in list order and answer for each. Their lanes are there and their keys are locked."""
    plan = KeyPlan(now, (yield from numbers([spec.id for spec in specs])), (yield from _holders(specs)))
    answers = [plan.add(spec) for spec in specs]
    if plan.replacing:
        yield from _replace(now, plan.replacing)
    if plan.superseded:
        yield sql("supersede_all", json.encode(plan.superseded).decode())
    stored = (yield from insert(plan.new)) if plan.new else []
    if plan.taken:
        yield from _take(plan.taken, stored)
    return [_answered(answer, stored) for answer in answers]


def lock_keys_of(specs: Sequence[JobSpec], *, in_portions: bool) -> Steps[None]:
    """Lock all keys, in an order that is everybody's. If the specs come in portions, so that each would lock by itself,
    also all jobs that they are going to change."""
    yield from lock_keys(sorted(_keys(specs)))
    if in_portions:
        yield from _holders(specs)


def lock_keys(keys: Sequence[Key]) -> Steps[None]:
    """Lock keys, which come in order."""
    if keys:
        yield sql_each("lock_keys", keys)


def _keys(specs: Sequence[JobSpec]) -> set[Key]:
    return {(spec.tenant, spec.key) for spec in specs if spec.key is not None}


def numbers(ids: Collection[UUID]) -> Steps[dict[UUID, int]]:
    """The numbers of those of the jobs that are known."""
    rows = (yield sql_each("known_ids", [id.hex for id in dict.fromkeys(ids)])).fetchall()
    return {UUID(bytes=id): number for id, number in rows}


def _holders(specs: Sequence[JobSpec]) -> Steps[dict[Key, KeyHolder]]:
    """Who holds the keys: stored jobs. Those that a spec would replace or supersede are locked, wherever they are; all
    others are only looked at."""
    found = yield from holders(sorted(_keys(specs)))
    changing = _keys([spec for spec in specs if spec.key_mode in ("replace", "preserve_run_at")])
    wanted = {key: held for key, held in found.items() if key in changing and not held.state.terminal}
    states = yield from locked_states([held.number for held in wanted.values()])
    for key, held in wanted.items():
        if held.number in states:
            found[key] = structs.replace(held, state=states[held.number][0])
        else:
            del found[key]
    return found


def _replace(now: Millis, replacing: dict[int, list[JobSpec]]) -> Steps[None]:
    """Put what the last spec of each says in the place of the waiting job, which keeps its id, number and history."""
    replaced = json.encode(sorted(replacing)).decode()
    before = yield from find_waiting(sorted(replacing))
    lanes = yield from _lanes([spec for specs in replacing.values() for spec in specs])
    after = [_replaced(now, was, replacing[was.number], lanes) for was in before]
    for name in ("delete_ready", "delete_scheduled", "delete_expiries", "delete_progress"):
        yield sql(name, replaced)
    yield sql_each("replace_jobs", [_body(again, replacing[again.number][-1]) for again in after])
    expiries = [(again.expires_at, again.number) for again in after if again.expires_at is not None]
    if expiries:
        yield sql_each("add_expiries", expiries)
    moved = [(was.queue, replacing[was.number][-1].queue) for was in before]
    yield from count(moved=[(old, new) for old, new in moved if old != new])
    yield from wait_again(now, after)


def _replaced(
    now: Millis, was: Waiting, specs: Sequence[JobSpec], lanes: dict[tuple[str, str, bool], int]
) -> Waiting:
    run_at, counters = was.run_at, was.counters
    for spec in specs:
        if spec.key_mode != "preserve_run_at" or counters.failures:
            run_at = spec.due(now)
        counters = renewed(counters)
    last = specs[-1]
    return structs.replace(
        was,
        lane=lanes[last.queue, last.task, last.alone],
        lane_alone=last.alone,
        alone=last.alone,
        priority=last.priority,
        run_at=run_at,
        expires_at=last.expiry(now),
        counters=counters,
    )


def _body(again: Waiting, spec: JobSpec) -> tuple[object, ...]:
    return (
        again.number, again.lane, spec.payload, spec.priority, again.run_at, spec.max_failures, spec.max_crashes,
        again.expires_at, spec.retry, spec.timeout, spec.soft_timeout, spec.tags, spec.meta, spec.alone,
    )  # fmt: skip


def _lanes(specs: Sequence[JobSpec]) -> Steps[dict[tuple[str, str, bool], int]]:
    wanted = sorted({(spec.queue, spec.task, spec.alone) for spec in specs})
    rows = (yield sql_each("lanes_of", wanted)).fetchall()
    return {(queue, task, alone): lane for queue, task, alone, lane in rows}


def _take(taken: dict[Key, KeyHolder], stored: Sequence[Enqueued]) -> Steps[None]:
    yield sql_each("take_keys", [(*key, stored[holder.place or 0].number) for key, holder in taken.items()])


def _answered(answer: KeyDecision, stored: Sequence[Enqueued]) -> Enqueued:
    holder = answer.holder
    if holder.place is None:
        return Enqueued(holder.id, holder.number, answer.status)
    made = stored[holder.place]
    if answer.status == "inserted":
        return made
    if made.status == "existing":
        # Somebody has stored this very id since we looked, and what was decided after it may be wrong.
        raise psycopg.errors.SerializationFailure(f"job {made.id} was stored by somebody else meanwhile")
    return Enqueued(made.id, made.number, answer.status)


def is_single(specs: Sequence[JobSpec]) -> bool:
    """Whether one statement is enough, in the ordinary case."""
    return all(spec.key is None for spec in specs) and len(portions(specs)) == 1


def portions(specs: Sequence[JobSpec]) -> list[Sequence[JobSpec]]:
    """Cut them where they would be too much for one statement."""
    if len(specs) == 1:
        return [specs]
    cut: list[Sequence[JobSpec]] = []
    first, size = 0, 0
    for at, spec in enumerate(specs):
        size += len(spec.payload)
        if at > first and (at - first == AT_ONCE or size > MOST_TEXT):
            cut.append(specs[first:at])
            first, size = at, len(spec.payload)
    return [*cut, specs[first:]]


def enqueue_one(spec: JobSpec) -> Steps[list[Enqueued]]:
    """Store one job without a key; never inside a transaction."""
    try:
        row = (yield sql("enqueue_one", *_shared(spec), spec.id.bytes, spec.payload, RING)).fetchone()
    except UNEXPECTED:
        return (yield from enqueue_each([spec]))
    return [Enqueued(spec.id, row[0], "inserted")]


def enqueue(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Store the jobs in list order and answer for each."""
    if any(spec.key is not None for spec in specs):
        return (yield from _keyed(specs))
    runs = _equal_runs(specs)
    if len(runs) * EQUAL > len(specs) and len(runs) > 1:
        return (yield from enqueue_each(specs))
    if is_single(specs) and len(runs) == 1:
        try:
            return (yield from _enqueue_equal(specs))
        except UNEXPECTED:
            return (yield from enqueue_each(specs))
    return (yield from _enqueue_runs(specs, runs))


def enqueue_joined(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """The same inside a caller's transaction, which an error would end."""
    if any(spec.key is not None for spec in specs):
        return (yield from _keyed(specs))
    return (yield from enqueue_each(specs))


def enqueue_each(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Store any jobs without looking at their keys; known ids are answered with the jobs that have them."""
    answers: list[Enqueued] = []
    for some in portions(specs):
        text = json.encode([_told(spec) for spec in some]).decode()
        rows = sorted((yield sql("enqueue_each", text, RING)).fetchall())
        answers += [
            Enqueued(spec.id, number, "inserted" if inserted else "existing")
            for spec, (_, number, inserted) in zip(some, rows, strict=True)
        ]
    return answers


def _enqueue_runs(specs: Sequence[JobSpec], runs: Sequence[Sequence[JobSpec]]) -> Steps[list[Enqueued]]:
    yield WRITE
    yield SqlText("SAVEPOINT before_jobs")
    try:
        answers: list[Enqueued] = []
        for equal in runs:
            for some in portions(equal):
                answers += yield from _enqueue_equal(some)
        return answers
    except UNEXPECTED:
        yield SqlText("ROLLBACK TO SAVEPOINT before_jobs")
        return (yield from enqueue_each(specs))


def _enqueue_equal(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    spec = specs[0]
    ids, payloads = uuid_array([s.id for s in specs]), text_array([s.payload for s in specs])
    [numbers] = (yield sql("enqueue", *_shared(spec), ids, payloads, RING)).fetchone()
    return [Enqueued(spec.id, number, "inserted") for spec, number in zip(specs, numbers, strict=True)]


def _equal_runs(specs: Sequence[JobSpec]) -> list[Sequence[JobSpec]]:
    """Cut them where they no longer ask for the same as the one before, but for id and payload."""
    runs: list[Sequence[JobSpec]] = []
    first, shared, template = 0, _shared(specs[0]), specs[0].template
    for at, spec in enumerate(specs):
        if spec.template is not template or template is None:
            own = _shared(spec)
            if own != shared:
                runs.append(specs[first:at])
                first, shared, template = at, own, spec.template
    return [*runs, specs[first:]]


def _shared(spec: JobSpec) -> tuple[object, ...]:
    """What jobs have in common, in the order of the statement."""
    return (
        spec.tenant, spec.queue, spec.task, spec.alone, spec.priority, spec.delay, spec.run_at, spec.expires_in,
        spec.expires_at, spec.max_failures, spec.max_crashes, spec.retry, spec.timeout, spec.soft_timeout, spec.tags,
        spec.meta,
    )  # fmt: skip


def _keyed(specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Jobs of which some have keys."""
    [now] = (yield sql("now")).fetchone()
    yield from add_lanes(lanes(specs))
    cut = portions(specs)
    yield from lock_keys_of(specs, in_portions=len(cut) > 1)
    answers: list[Enqueued] = []
    for some in cut:
        answers += yield from enqueue_keyed(now, some, enqueue_each)
    return answers


def lanes(specs: Sequence[JobSpec]) -> set[Lane]:
    """The lanes that the jobs go into, by queue, task, and whether they run alone."""
    return {(spec.queue, spec.task, spec.alone) for spec in specs}


def add_lanes(wanted: set[Lane]) -> Steps[None]:
    """Make the lanes that are missing, in an order that is everybody's."""
    told = json.encode(sorted(wanted)).decode()
    yield sql("add_queues", told)
    yield sql("add_lanes", told)


def _told(spec: JobSpec) -> dict[str, Any]:
    told = {name: getattr(spec, name) for name in TOLD}
    return {name: value for name, value in told.items() if value is not None}
