"""T1, T17: enqueues with a unique key: who holds it now, and what the mode makes of that (rule A1)."""

from collections.abc import Callable, Sequence
from uuid import UUID

from shigoto.engine.sql.commands import Steps, sql, sql_each
from shigoto.engine.sql.looking import state_of
from shigoto.engine.sql.settling import Waiting, remove_waiting, wait_again
from shigoto.engine.sqlite.counting import count_moved
from shigoto.model.job import Enqueued, JobSpec
from shigoto.model.states import meeting, renewed
from shigoto.model.time import Millis

Insert = Callable[[Millis, JobSpec], Steps[Enqueued]]


def enqueue(now: Millis, specs: Sequence[JobSpec], insert: Insert) -> Steps[list[Enqueued]]:
    """Store jobs of which some have keys, one after the other. Their lanes are there; `insert` stores one, whatever its
    key."""
    answers: list[Enqueued] = []
    for spec in specs:
        stored = yield from insert(now, spec) if spec.key is None else _keyed(now, spec, insert)
        answers.append(stored)
    return answers


def _keyed(now: Millis, spec: JobSpec, insert: Insert) -> Steps[Enqueued]:
    """The key table: who holds the key now, and what the mode makes of it."""
    known = (yield sql("number_of_id", spec.id.bytes)).fetchone()
    if known is not None:
        return Enqueued(spec.id, known[0], "existing")
    holder = (yield sql("key_holder", spec.tenant, spec.key)).fetchone()
    if holder is not None:
        number, holder_id = holder[0], UUID(bytes=holder[1])
        state = state_of(number, (yield sql("state_of", number)).fetchone()[0])
        met = meeting(spec.key_mode, state)
        if met == "existing":
            return Enqueued(holder_id, number, "existing")
        if met == "replaced":
            yield from _replace(now, number, spec)
            return Enqueued(holder_id, number, "replaced")
        if met == "superseded":
            yield sql("supersede", number)
    enqueued = yield from insert(now, spec)
    yield sql("take_key", spec.tenant, spec.key, enqueued.number)
    return enqueued


def _replace(now: Millis, number: int, spec: JobSpec) -> Steps[None]:
    [was] = yield from remove_waiting([number])
    keep_run_at = spec.key_mode == "preserve_run_at" and was.counters.failures == 0
    run_at = was.run_at if keep_run_at else spec.due(now)
    expires_at = spec.expiry(now)
    lane = (yield sql("lane", spec.task, spec.queue, spec.alone)).fetchone()[0]
    if was.queue != spec.queue:
        yield from count_moved(was.queue, spec.queue)
    yield sql("delete_expiries", f"[{number}]")
    yield sql("delete_progress", f"[{number}]")
    yield sql(
        "replace_job", number, lane, spec.payload, spec.priority, run_at, spec.max_failures, spec.max_crashes,
        expires_at, spec.retry, spec.timeout, spec.soft_timeout, spec.tags, spec.meta, spec.alone,
    )  # fmt: skip
    if expires_at is not None:
        yield sql_each("add_expiries", [(expires_at, number)])
    again = Waiting(
        number=number,
        lane=lane,
        lane_alone=spec.alone,
        alone=spec.alone,
        priority=spec.priority,
        run_at=run_at,
        expires_at=expires_at,
        token=was.token,
        settled_token=was.settled_token,
        counters=renewed(was.counters),
    )
    yield from wait_again(now, [again])
