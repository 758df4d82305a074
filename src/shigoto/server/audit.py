"""Operators' actions that write the audit: who has done what, in the same transaction as the action (S0-66).

What an action has not changed is not noted, and what was refused has not happened. Before and after are states,
settings and counts: never arguments, results or errors, which are nobody's business but the job's.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from msgspec import json, structs

from shigoto.engine.op import Op, Steps, extended
from shigoto.engine.protocol import Engine, Relay
from shigoto.handle import rerun_op as again
from shigoto.model.job import Enqueued, QueueSettings, State
from shigoto.model.schedule import Change, Schedule, TickOutcome
from shigoto.model.service import AuditEntry
from shigoto.queues import change_op, store_within_limits

T = TypeVar("T")

MOST_IDS = 400  # that are named in one entry
AT_ONCE = 20  # jobs that are looked at together: they come with all they have


def noted(
    engine: Engine,
    op: Op[T],
    entries: Callable[[T, Any], Sequence[AuditEntry]],
    before: Callable[[], Steps[Any]] | None = None,
) -> Op[T]:
    """The op, which also writes entries in its own transaction. They are made of its value, and of what `before` has
    seen."""

    def steps() -> Steps[T]:
        seen = None if before is None else (yield from before())
        value = yield from op.start()
        made = entries(value, seen)
        if made:
            yield from engine.registry.note(made).start()
        return value

    return extended(op, steps)


def cancel_op(engine: Engine, ids: Sequence[UUID], *, force: bool, actor: str) -> Op[list[State | None]]:
    """Cancel jobs, one by one; see `Engine.cancel`."""
    return Audited(engine, actor).cancel(ids, force=force)


def rerun_op(engine: Engine, id: UUID, *, actor: str, named: UUID | None = None) -> Op[Enqueued]:
    """Make a new job like one that has ended, if there is room for it; or find the one that was `named` so, if it was
    made before. Raises JobNotFound, JobNotRetryable, QueueFull."""

    def entries(made: Enqueued, _: object) -> list[AuditEntry]:
        if made.status == "existing":
            return []
        after = said({"id": str(made.id), "number": made.number})
        return [AuditEntry(actor=actor, action="job.rerun", target=str(id), after=after)]

    return noted(engine, again(engine, id, named=named, store=partial(store_within_limits, engine)), entries)


def change_queue_op(engine: Engine, queue: str, *, actor: str, **fields: Any) -> Op[QueueSettings]:
    """Change settings of a queue, and leave the others as they are. Raises OptionInvalid."""
    return change_op(Audited(engine, actor), queue, **fields)


def said(value: object) -> str:
    """As the text of an entry."""
    return json.encode(value).decode()


class Audited(Relay):
    """An engine whose operator's verbs note themselves, so that whoever uses it need not think of that.

    With a `filter`, what is done to several jobs at once is one entry about all that match; else it is one for each.
    A store that is a server notes for itself.
    """

    def __init__(self, engine: Engine, actor: str, filter: str | None = None) -> None:
        super().__init__(engine)
        self._actor = actor
        self._filter = filter
        self._notes = not engine.capabilities.served

    def cancel(self, ids: Sequence[UUID], *, force: bool = False) -> Op[list[State | None]]:
        def entries(states: list[State | None], before: dict[UUID, State]) -> list[AuditEntry]:
            after = dict(zip(ids, states, strict=True))
            if self._filter is None:
                return [
                    self._entry(
                        "job.cancel", str(id), {"state": before[id]}, {"state": state, "force": force}
                    )
                    for id, state in after.items()
                    if id in before and not before[id].terminal
                ]
            named = [id for id, state in after.items() if state in (State.CANCELLED, State.PROCESSING)]
            told = {**Counter(str(after[id]) for id in named), "force": force, **_ids(named)}
            return [self._entry("jobs.cancel", self._filter, None, told)] if named else []

        return self._noted(self.engine.cancel(ids, force=force), entries, lambda: self._states(ids))

    def retry(self, ids: Sequence[UUID]) -> Op[list[Enqueued]]:
        def entries(_: object, before: dict[UUID, State]) -> list[AuditEntry]:
            if self._filter is not None:
                after = {"retried": len(ids), **_ids(ids)}
                return [self._entry("jobs.retry", self._filter, None, after)] if ids else []
            return [
                self._entry("job.retry", str(id), {"state": state}, {"state": State.PENDING})
                for id, state in before.items()
            ]

        return self._noted(self.engine.retry(ids), entries, lambda: self._states(ids))

    def delete(self, numbers: Sequence[int], states: Collection[State]) -> Op[int]:
        def entries(count: int, _: object) -> list[AuditEntry]:
            after = {"deleted": count, "of": list(numbers[:MOST_IDS])}
            return [self._entry("jobs.delete", self._filter, None, after)] if count else []

        return self._noted(self.engine.delete(numbers, states), entries)

    def configure(self, settings: QueueSettings) -> Op[None]:
        def entries(_: object, stored: list[QueueSettings]) -> list[AuditEntry]:
            plain = QueueSettings(name=settings.name)
            before = next((each for each in stored if each.name == settings.name), plain)
            return self._configured(before, settings)

        return self._noted(self.engine.configure(settings), entries, lambda: self.engine.settings().start())

    def _configured(self, before: QueueSettings, after: QueueSettings) -> list[AuditEntry]:
        old, new = structs.asdict(before), structs.asdict(after)
        changed = [name for name in new if old[name] != new[name]]
        if not changed:
            return []
        action = "queue.configure"
        if changed == ["paused"]:
            action = "queue.pause" if after.paused else "queue.resume"
        of = {name: old[name] for name in changed}, {name: new[name] for name in changed}
        return [self._entry(action, after.name, *of)]

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        def entries(done: list[Change | None], known: list[Schedule]) -> list[AuditEntry]:
            before = {each.name: each for each in known}
            made = [self._changed(before.get(c.schedule.name), c) for c in done if c is not None]
            return [entry for entry in made if entry is not None]

        names = [change.schedule.name for change in changes]
        return self._noted(self.engine.tick(changes), entries, lambda: self.engine.schedules(names).start())

    def _changed(self, before: Schedule | None, change: Change) -> AuditEntry | None:
        action = _verb(before, change)
        if action is None:
            return None
        jobs = [str(firing.spec.id) for firing in change.firings if firing.spec is not None]
        after = {"revision": change.seen + 1, **({"jobs": jobs[:MOST_IDS]} if jobs else {})}
        of = None if before is None else {"revision": before.revision}
        return self._entry(f"schedule.{action}", change.schedule.name, of, after)

    def remove_schedules(self, names: Sequence[str]) -> Op[list[bool]]:
        def entries(removed: list[bool], _: object) -> list[AuditEntry]:
            gone = [name for name, known in zip(names, removed, strict=True) if known]
            return [self._entry("schedule.remove", name, None, None) for name in gone]

        return self._noted(self.engine.remove_schedules(names), entries)

    def _noted(
        self,
        op: Op[T],
        entries: Callable[[T, Any], Sequence[AuditEntry]],
        before: Callable[[], Steps[Any]] | None = None,
    ) -> Op[T]:
        return noted(self.engine, op, entries, before) if self._notes else op

    def _states(self, ids: Sequence[UUID]) -> Steps[dict[UUID, State]]:
        """The states of jobs, each of which gets an entry of its own."""
        states: dict[UUID, State] = {}
        if self._filter is not None:
            return states
        for start in range(0, len(ids), AT_ONCE):
            jobs = yield from self.engine.get(ids[start : start + AT_ONCE]).start()
            states |= {job.id: job.state for job in jobs if job is not None}
        return states

    def _entry(self, action: str, target: str | None, before: object, after: object) -> AuditEntry:
        return AuditEntry(
            actor=self._actor,
            action=action,
            target=target or "",
            before=None if before is None else said(before),
            after=None if after is None else said(after),
        )


def _verb(before: Schedule | None, change: Change) -> str | None:
    """What somebody has done to a schedule; None if it was not for the audit: a tick that was due."""
    after = change.schedule
    outcomes = {firing.entry.outcome for firing in change.firings}
    if before is None:
        return "add"
    if TickOutcome.RUN_NOW in outcomes:
        return "run"
    if TickOutcome.BACKFILLED in outcomes:
        return "backfill"
    if before.definition != after.definition:
        return "update"
    if before.paused != after.paused:
        return "pause" if after.paused else "resume"
    return "resume" if before.failed and not after.failed else None


def _ids(ids: Sequence[UUID]) -> dict[str, list[str]]:
    return {"ids": [str(id) for id in ids[:MOST_IDS]]}
