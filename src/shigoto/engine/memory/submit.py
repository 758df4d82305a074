"""Enqueue: the id decides first, then the unique key by its mode (T1, T17)."""

from collections.abc import Sequence

from msgspec import structs

from shigoto.engine.memory.row import Row
from shigoto.engine.memory.store import Store
from shigoto.model.job import Enqueued, JobSpec
from shigoto.model.states import meeting, renewed
from shigoto.model.time import Millis


def enqueue_many(store: Store, specs: Sequence[JobSpec]) -> list[Enqueued]:
    """Store the jobs in list order, so that a later spec meets what an earlier one has left."""
    now = store.now()
    return [_enqueue(store, spec, now) for spec in specs]


def _enqueue(store: Store, spec: JobSpec, now: Millis) -> Enqueued:
    known = store.by_id.get(spec.id)
    if known is not None:
        return Enqueued(known.spec.id, known.number, "existing")
    holder = store.holder(spec)
    if holder is None:
        return _insert(store, spec, now)
    met = meeting(spec.key_mode, holder.state)
    if met == "existing":
        return Enqueued(holder.spec.id, holder.number, "existing")
    if met == "replaced":
        return _replace(store, holder, spec, now)
    if met == "superseded":
        holder.superseded = True
    return _insert(store, spec, now)


def _insert(store: Store, spec: JobSpec, now: Millis) -> Enqueued:
    row = store.insert(spec, spec.due(now), spec.expiry(now), now)
    return Enqueued(spec.id, row.number, "inserted")


def _replace(store: Store, row: Row, spec: JobSpec, now: Millis) -> Enqueued:
    """The job keeps its id, number and history; what belonged to the old payload goes with it."""
    preserved = spec.key_mode == "preserve_run_at" and row.counters.failures == 0
    with store.moving(row, row.state, now):
        row.spec = structs.replace(spec, id=row.spec.id)
        row.run_at = row.run_at if preserved else spec.due(now)
        row.expires_at = spec.expiry(now)
        row.counters = renewed(row.counters)
        row.progress = row.progress_text = row.checkpoint = None
    return Enqueued(row.spec.id, row.number, "replaced")
