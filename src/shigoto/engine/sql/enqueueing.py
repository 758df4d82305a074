"""Unique keys, and runs of equal jobs: the part of enqueueing (T1, T17) that all SQL engines share.

If some jobs have unique keys, a thousand take as many statements as one. First all keys are locked, in an order that is
the same for all; then no other transaction can change who holds them. `KeyPlan` decides about each spec in list order,
by what the store has answered and what the specs before have left (rule A1). Then it is written: what is replaced, what
is superseded, what is new, and at last who holds the keys now.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, TypeVar
from uuid import UUID

from msgspec import Struct, json
from msgspec.structs import replace

from shigoto.engine.sql.commands import Steps, Submit, sql, sql_each
from shigoto.engine.sql.looking import Key, KeyHolder, holders
from shigoto.engine.sql.managing import locked_states
from shigoto.engine.sql.settling import Waiting, count, find_waiting, wait_again
from shigoto.model.job import Enqueued, JobSpec, State
from shigoto.model.states import meeting, renewed
from shigoto.model.time import Millis

AT_ONCE = 1_000  # jobs of one portion
MOST_TEXT = 32 * 1024 * 1024  # characters of payloads in one portion; PostgreSQL takes less than a gigabyte

Lane = tuple[str, str, bool]  # queue, task, alone
T = TypeVar("T")


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


def equal_runs(specs: Sequence[JobSpec], shared: Callable[[JobSpec], T]) -> list[tuple[T, Sequence[JobSpec]]]:
    """Cut them where one differs from the one before in more than id and payload; each run with what its jobs share."""
    runs: list[tuple[T, Sequence[JobSpec]]] = []
    first, same, template = 0, shared(specs[0]), specs[0].template
    for at, spec in enumerate(specs):
        if spec.template is not template or template is None:
            own = shared(spec)
            if own != same:
                runs.append((same, specs[first:at]))
                first, same, template = at, own, spec.template
    return [*runs, (same, specs[first:])]


def lanes(specs: Iterable[JobSpec]) -> set[Lane]:
    return {(spec.queue, spec.task, spec.alone) for spec in specs}


def add_lanes(wanted: set[Lane]) -> Steps[None]:
    """Make the lanes that are missing, in an order that is the same for all."""
    text = json.encode(sorted(wanted)).decode()
    yield sql("add_queues", text)
    yield sql("add_lanes", text)


class KeyDecision(Struct, frozen=True):
    """What becomes of one spec, before the new jobs have their numbers."""

    holder: KeyHolder
    status: Literal["inserted", "existing", "replaced"]


class KeyPlan:
    """What becomes of the specs, one after the other."""

    def __init__(self, now: Millis, known: dict[UUID, int], holders: dict[Key, KeyHolder]) -> None:
        self._now = now
        self._known = {id: KeyHolder(id, number, State.PENDING) for id, number in known.items()}
        self._holders = holders
        self.new: list[JobSpec] = []
        self.replacing: dict[int, list[JobSpec]] = {}
        self.superseded: list[int] = []
        self.taken: dict[Key, KeyHolder] = {}

    def add(self, spec: JobSpec) -> KeyDecision:
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
        self.new[holder.place] = replace(spec, id=before.id, run_at=run_at)


class KeyWays(Struct, frozen=True):
    """The ways of one engine.

    `insert`: store jobs without looking at their keys.
    `numbers`: of those of the jobs that are known.
    `lock_keys`: no other transaction can change who holds these keys, which come in order.
    `count_before`: what the counters need before pending jobs change their queues.
    """

    insert: Submit
    numbers: Callable[[Collection[UUID]], Steps[dict[UUID, int]]]
    lock_keys: Callable[[Sequence[Key]], Steps[None]]
    count_before: Callable[[], Steps[None]]


class StoredMeanwhile(Exception):
    """Another transaction has stored a job of the plan meanwhile, and what was decided after it may be wrong."""


def enqueue_keyed(ways: KeyWays, now: Millis, specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    """Store jobs of which some have keys, in list order, and answer for each. Raises StoredMeanwhile."""
    yield from add_lanes(lanes(specs))
    yield from ways.lock_keys(sorted(_keys(specs)))
    cut = portions(specs)
    if len(cut) > 1:  # lock also all jobs that they are going to change, or each portion would lock by itself
        yield from _holders(specs)
    answers: list[Enqueued] = []
    for some in cut:
        answers += yield from _carry_out(ways, now, some)
    return answers


def _carry_out(ways: KeyWays, now: Millis, specs: Sequence[JobSpec]) -> Steps[list[Enqueued]]:
    known = yield from ways.numbers([spec.id for spec in specs])
    plan = KeyPlan(now, known, (yield from _holders(specs)))
    decisions = [plan.add(spec) for spec in specs]
    if plan.replacing:
        yield from _replace(ways, now, plan.replacing)
    if plan.superseded:
        yield sql("supersede", json.encode(plan.superseded).decode())
    stored = (yield from ways.insert(now, plan.new)) if plan.new else []
    if plan.taken:
        numbers = {key: stored[holder.place or 0].number for key, holder in plan.taken.items()}
        yield sql_each("take_keys", [(*key, number) for key, number in numbers.items()])
    return [_answered(decision, stored) for decision in decisions]


def _keys(specs: Sequence[JobSpec]) -> set[Key]:
    return {(spec.tenant, spec.key) for spec in specs if spec.key is not None}


def _holders(specs: Sequence[JobSpec]) -> Steps[dict[Key, KeyHolder]]:
    """Who holds the keys: stored jobs. Those that a spec would replace or supersede are locked, wherever they are; all
    others are only looked at."""
    found = yield from holders(sorted(_keys(specs)))
    changing = _keys([spec for spec in specs if spec.key_mode in ("replace", "preserve_run_at")])
    wanted = {key: held for key, held in found.items() if key in changing and not held.state.terminal}
    states = yield from locked_states([held.number for held in wanted.values()])
    for key, held in wanted.items():
        if held.number in states:
            found[key] = replace(held, state=states[held.number][0])
        else:
            del found[key]
    return found


def _replace(ways: KeyWays, now: Millis, replacing: dict[int, list[JobSpec]]) -> Steps[None]:
    """Put what the last spec of each says in the place of the waiting job, which keeps its id, number and history."""
    before = yield from find_waiting(sorted(replacing))
    wanted = sorted(lanes(spec for specs in replacing.values() for spec in specs))
    found: dict[int, int] = dict((yield sql_each("lanes_of", wanted)).fetchall())
    lane_of = {lane: found[place] for place, lane in enumerate(wanted)}
    after = [_replaced(now, was, replacing[was.number], lane_of) for was in before]
    queues = [(was.queue, replacing[was.number][-1].queue) for was in before]
    moved = [(old, new) for old, new in queues if old != new]
    if moved:
        yield from ways.count_before()
    replaced = json.encode(sorted(replacing)).decode()
    for name in ("delete_ready", "delete_scheduled", "delete_expiries", "delete_progress"):
        yield sql(name, replaced)
    yield sql_each("replace_jobs", [_body(again, replacing[again.number][-1]) for again in after])
    expiries = [(again.expires_at, again.number) for again in after if again.expires_at is not None]
    if expiries:
        yield sql_each("add_expiries", expiries)
    yield from count(moved=moved)
    yield from wait_again(now, after)


def _replaced(now: Millis, was: Waiting, specs: Sequence[JobSpec], lane_of: dict[Lane, int]) -> Waiting:
    run_at, counters = was.run_at, was.counters
    for spec in specs:
        if spec.key_mode != "preserve_run_at" or counters.failures:
            run_at = spec.due(now)
        counters = renewed(counters)
    last = specs[-1]
    return replace(
        was,
        lane=lane_of[last.queue, last.task, last.alone],
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


def _answered(decision: KeyDecision, stored: Sequence[Enqueued]) -> Enqueued:
    holder = decision.holder
    if holder.place is None:
        return Enqueued(holder.id, holder.number, decision.status)
    made = stored[holder.place]
    if decision.status == "inserted":
        return made
    if made.status == "existing":
        raise StoredMeanwhile(f"job {made.id} was stored by another transaction meanwhile")
    return Enqueued(made.id, made.number, decision.status)
