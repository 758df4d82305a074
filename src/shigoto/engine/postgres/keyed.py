"""T1, T17: enqueues of which some have unique keys: as many trips to the server for a thousand as for one.

First all keys are locked, in an order that is everybody's; then nobody else can change who holds them. What each spec
comes to is decided here, in list order, by what the store has told and what the specs before have left (rule A1). Then
it is written: what is replaced, what is superseded, what is new, and at last who holds the keys now.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Literal
from uuid import UUID

import psycopg
from msgspec import Struct, json, structs

from shigoto.engine.sql.commands import Steps, sql, sql_each
from shigoto.engine.sql.keys import Holder, Key, holders
from shigoto.engine.sql.managing import locked_states
from shigoto.engine.sql.settling import Waiting, count, find_waiting, wait_again
from shigoto.model.job import Enqueued, JobSpec, State
from shigoto.model.states import meeting, renewed
from shigoto.model.time import Millis

Insert = Callable[[Sequence[JobSpec]], Steps[list[Enqueued]]]


class Answer(Struct, frozen=True):
    """What one spec has come to, before the new jobs have their numbers."""

    holder: Holder
    status: Literal["inserted", "existing", "replaced"]


class Plan:
    """What the specs come to, one after the other."""

    def __init__(self, now: Millis, known: dict[UUID, int], holders: dict[Key, Holder]) -> None:
        self._now = now
        self._known = {id: Holder(id, number, State.PENDING) for id, number in known.items()}
        self._holders = holders
        self.new: list[JobSpec] = []
        self.replacing: dict[int, list[JobSpec]] = {}
        self.superseded: list[int] = []
        self.taken: dict[Key, Holder] = {}

    def add(self, spec: JobSpec) -> Answer:
        """Decide for the next one."""
        known = self._known.get(spec.id)
        if known is not None:
            return Answer(known, "existing")
        if spec.key is None:
            return self._insert(spec)
        holder = self._holders.get((spec.tenant, spec.key))
        if holder is None:
            return self._insert(spec)
        match meeting(spec.key_mode, holder.state):
            case "existing":
                return Answer(holder, "existing")
            case "replaced":
                self._replace(holder, spec)
                return Answer(holder, "replaced")
            case "superseded":
                self.superseded.append(holder.number)
                return self._insert(spec)
            case _:
                return self._insert(spec)

    def _insert(self, spec: JobSpec) -> Answer:
        holder = self._known[spec.id] = Holder(spec.id, 0, State.PENDING, len(self.new))
        self.new.append(spec)
        if spec.key is not None:
            self._holders[spec.tenant, spec.key] = self.taken[spec.tenant, spec.key] = holder
        return Answer(holder, "inserted")

    def _replace(self, holder: Holder, spec: JobSpec) -> None:
        if holder.place is None:
            self.replacing.setdefault(holder.number, []).append(spec)
            return
        before = self.new[holder.place]  # not stored yet: it is stored as it is replaced
        run_at = before.due(self._now) if spec.key_mode == "preserve_run_at" else spec.run_at
        self.new[holder.place] = structs.replace(spec, id=before.id, run_at=run_at)


def enqueue(now: Millis, specs: Sequence[JobSpec], insert: Insert) -> Steps[list[Enqueued]]:
    """Store the jobs in list order and answer for each. Their lanes are there and their keys are locked."""
    plan = Plan(now, (yield from numbers([spec.id for spec in specs])), (yield from _holders(specs)))
    answers = [plan.add(spec) for spec in specs]
    if plan.replacing:
        yield from _replace(now, plan.replacing)
    if plan.superseded:
        yield sql("supersede_all", json.encode(plan.superseded).decode())
    stored = (yield from insert(plan.new)) if plan.new else []
    if plan.taken:
        yield from _take(plan.taken, stored)
    return [_told(answer, stored) for answer in answers]


def lock(specs: Sequence[JobSpec], *, in_portions: bool) -> Steps[None]:
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


def _holders(specs: Sequence[JobSpec]) -> Steps[dict[Key, Holder]]:
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


def _take(taken: dict[Key, Holder], stored: Sequence[Enqueued]) -> Steps[None]:
    yield sql_each("take_keys", [(*key, stored[holder.place or 0].number) for key, holder in taken.items()])


def _told(answer: Answer, stored: Sequence[Enqueued]) -> Enqueued:
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
