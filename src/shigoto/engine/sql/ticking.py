"""Schedules and their histories. Whoever changes a schedule has locked its row first, in the order of names."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from msgspec import json
from msgspec.structs import replace

from shigoto.engine.op import WRITE
from shigoto.engine.sql.commands import Dialect, Steps, sql, sql_each
from shigoto.engine.sql.looking import UNREADABLE, unreadable
from shigoto.engine.sql.managing import cancel
from shigoto.engine.sql.settling import write_if_wanted
from shigoto.model.job import Enqueued
from shigoto.model.notice import of_misses
from shigoto.model.schedule import (
    CLOCK_JUMPED_BACK,
    KEPT,
    Change,
    Due,
    DueSchedule,
    Pause,
    Schedule,
    TickEntry,
    TickOutcome,
)
from shigoto.model.time import Millis

PRUNE_EVERY = KEPT // 10  # changes, of which each adds
MOST_UNPRUNED = 2  # entries, or is followed by a cut
decode_counts = json.Decoder(dict[str, int]).decode
_decode_entry = json.Decoder(TickEntry).decode
decode_pauses = json.Decoder(tuple[Pause, ...]).decode


def schedules(names: Sequence[str] | None) -> Steps[list[Schedule]]:
    if names is None:
        rows = (yield sql("all_schedules")).fetchall()
    else:
        rows = (yield sql("schedules", _names(names))).fetchall()
    return [_schedule(row) for row in rows]


def due(now: Millis, declared: Collection[str], limit: int) -> Steps[Due]:
    soonest, clock_jumped_back = yield from _soonest(now, declared)
    if soonest is None or soonest > now or not limit:
        return Due(now=now, schedules=[], next_in=None if soonest is None else max(0, soonest - now))
    names = _names(declared)
    look = (
        sql("due_and_astray", now, now + CLOCK_JUMPED_BACK, names, limit + 1)
        if clock_jumped_back
        else sql("due_schedules", now, names, limit + 1)
    )
    rows = (yield look).fetchall()
    some = [DueSchedule(schedule=_schedule(row[:-1]), busy=bool(row[-1])) for row in rows[:limit]]
    next_in: Millis | None = 0
    if len(rows) <= limit:
        [later] = (yield sql("later_look", now, names)).fetchone()
        next_in = None if later is None else later - now
    return Due(now=now, schedules=some, next_in=next_in)


def _soonest(now: Millis, declared: Collection[str]) -> Steps[tuple[Millis | None, bool]]:
    """When to look again, and whether any schedule was decided by a clock that has gone back since.

    Only if the first of all schedules is somebody else's it matters how many are declared: then the store has to hear
    all of their names.
    """
    clock_jumped_back, name, origin, look_at = (yield sql("first_look", now + CLOCK_JUMPED_BACK)).fetchone()
    if not clock_jumped_back and (not origin or name in declared):
        return look_at, False
    soonest: Millis | None = (
        yield sql("next_look", now, now + CLOCK_JUMPED_BACK, _names(declared))
    ).fetchone()[0]
    return soonest, bool(clock_jumped_back)


def tick(dialect: Dialect, now: Millis, changes: Sequence[Change]) -> Steps[list[Change | None]]:
    """Change those that are as they were seen, with everything that goes with it."""
    yield WRITE
    heard = yield from _heard(changes)
    changes = yield from _without_later(changes, heard)
    gone = [change for change, each in zip(changes, heard, strict=True) if each and change.forgets]
    for change in gone:
        yield sql("forget_entries", str(change.schedule.id), json.encode(change.forgets).decode())
    fired = yield from _fired([change for change, each in zip(changes, heard, strict=True) if each])
    done = [
        change.without(fired.get(change.schedule.id, ())) if each else None
        for change, each in zip(changes, heard, strict=True)
    ]
    news = [change for change in done if change is not None]
    yield from _make_room(dialect, now, news)
    last = yield from _fire(dialect, now, news)
    yield from _write(news, last)
    yield from _forget({change.schedule.name for change in news if change.removes})
    yield from write_if_wanted(dialect.submit, now, of_misses(now, news))
    return done


def remove(names: Sequence[str]) -> Steps[list[bool]]:
    known = {name for name, _, _ in (yield sql("lock_schedules", _names(names))).fetchall()}
    yield from _forget(known)
    return [name in known for name in names]


def _forget(names: Collection[str]) -> Steps[None]:
    if names:
        yield sql("delete_entries_of", _names(names))
        yield sql("delete_schedules", _names(names))


def declare(now: Millis, names: Collection[str]) -> Steps[int]:
    """Remember that somebody declares them, and tell of how many."""
    return (yield sql("declare_schedules", _names(names), now)).rowcount


def history(name: str, before: Millis | None, limit: int) -> Steps[list[TickEntry]]:
    rows = (yield sql("history", name, before, limit)).fetchall()
    return [_entry(name, row) for row in rows]


def _entry(name: str, row: Sequence[Any]) -> TickEntry:
    at, outcome, decided_at, job, until, count = row
    try:
        known, id = TickOutcome(outcome), None if job is None else UUID(job)
    except UNREADABLE as error:
        raise unreadable("tick", f"{name} {at}", error) from error
    return TickEntry(at=at, outcome=known, decided_at=decided_at, job=id, until=until, count=count)


def _heard(changes: Sequence[Change]) -> Steps[list[bool]]:
    """Which of them have seen the newest, in a store that nobody else can change before we end."""
    names = [change.schedule.name for change in changes]
    locked = (yield sql("lock_schedules", _names(names))).fetchall()
    known: dict[str, tuple[UUID, int] | None] = {name: (UUID(id), revision) for name, revision, id in locked}
    new = [change for change in changes if not change.seen and change.schedule.name not in known]
    inserted: set[str] = set()
    if new:
        rows = [_row(change.schedule, 1) for change in new]
        inserted = {name for (name,) in (yield sql_each("add_schedules", rows)).fetchall()}
    heard: list[bool] = []
    for change in changes:
        name = change.schedule.name
        if change.seen:
            heard.append(known.get(name) == change.sight)
            if heard[-1]:
                known[name] = None  # a second change of the same has seen what is no longer true
        else:
            heard.append(name in inserted)
            inserted.discard(name)
    return heard


def _without_later(changes: Sequence[Change], heard: Sequence[bool]) -> Steps[list[Change]]:
    """The changes, where a clock has gone back without what was written down of later ticks."""
    left: list[Change] = []
    for change, each in zip(changes, heard, strict=True):
        if each and change.back_to is not None:
            later = (yield sql("forget_later", str(change.schedule.id), change.back_to)).fetchall()
            left.append(change.forgetting(later))
        else:
            left.append(change)
    return left


def _fired(news: Sequence[Change]) -> Steps[dict[UUID, set[Millis]]]:
    """The ticks among them that have fired before, by schedule."""
    entries = [(change.schedule.id, firing.entry) for change in news for firing in change.firings]
    asked = [(id, entry.at, entry.until or entry.at) for id, entry in entries]
    rows = (yield sql_each("fired_entries", asked)).fetchall() if asked else ()
    fired: dict[UUID, set[Millis]] = {}
    for schedule, at in rows:
        fired.setdefault(UUID(schedule), set()).add(at)
    return fired


def _make_room(dialect: Dialect, now: Millis, news: Sequence[Change]) -> Steps[None]:
    """Cancel the jobs before: a new one may have the key of its predecessor. Keys are locked before jobs, as by whoever
    enqueues."""
    cancelled = [id for change in news for id in change.cancel]
    if not cancelled:
        return
    specs = [firing.spec for change in news for firing in change.firings if firing.spec is not None]
    yield from dialect.lock_keys(sorted({(spec.tenant, spec.key) for spec in specs if spec.key is not None}))
    yield from cancel(dialect, now, cancelled, force=False)


def _fire(dialect: Dialect, now: Millis, news: Sequence[Change]) -> Steps[dict[UUID, Enqueued]]:
    """Store the jobs, and the entries that name them; tells the last job of each schedule."""
    wanted = [(change, firing) for change in news for firing in change.firings]
    specs = [firing.spec for _, firing in wanted if firing.spec is not None]
    answers = iter((yield from dialect.submit(now, specs)) if specs else ())
    last: dict[UUID, Enqueued] = {}
    entries: list[tuple[UUID, TickEntry]] = []
    for change, firing in wanted:
        entry = firing.entry
        if firing.spec is not None:
            stored = next(answers)
            entry = replace(entry, job=stored.id)
            if entry.outcome.leads:
                last[change.schedule.id] = stored
        entries.append((change.schedule.id, entry))
    if entries:
        yield sql_each("put_entries", [_line(id, entry) for id, entry in entries])
    return last


def _write(news: Sequence[Change], last: dict[UUID, Enqueued]) -> Steps[None]:
    """The schedules themselves, and their histories cut to length now and then."""
    rows: list[tuple[object, ...]] = []
    for change in news:
        stored = last.get(change.schedule.id)
        job = (None, None) if stored is None else (stored.id, stored.number)
        rows.append((*_row(change.schedule, change.seen + 1), *job))
    if rows:
        yield sql_each("change_schedules", rows)
    long = [change.schedule.id for change in news if _is_long(change)]
    if long:
        yield sql("prune_histories", json.encode(long).decode(), KEPT)


def _is_long(change: Change) -> bool:
    """Whether there may be too many entries by now. Every revision is somebody's change, with entries or without."""
    return len(change.firings) > MOST_UNPRUNED or not (change.seen + 1) % PRUNE_EVERY


def _row(schedule: Schedule, revision: int) -> tuple[object, ...]:
    return (
        schedule.id, schedule.name, revision, schedule.definition, schedule.origin, schedule.paused_at,
        int(schedule.failed), int(schedule.waiting_for_overlap), schedule.look_at, schedule.decided_to, schedule.job,
        schedule.errors, schedule.error, json.encode(schedule.counts).decode(), schedule.created_at,
        schedule.declared_at, None if schedule.stretch is None else json.encode(schedule.stretch).decode(),
        json.encode(schedule.pauses).decode(),
    )  # fmt: skip


def _schedule(row: Sequence[Any]) -> Schedule:
    id, name, revision, definition, origin, paused_at, failed, held, look_at, decided_to = row[:10]
    job, errors, error, counts, created_at, declared_at, stretch, pauses = row[10:]
    try:
        return Schedule(
            id=UUID(id), name=name, revision=revision, definition=definition, origin=origin, paused_at=paused_at,
            failed=bool(failed), waiting_for_overlap=bool(held), look_at=look_at, decided_to=decided_to,
            job=None if job is None else UUID(job), errors=errors, error=error, counts=decode_counts(counts),
            created_at=created_at, declared_at=declared_at,
            stretch=None if stretch is None else _decode_entry(stretch), pauses=decode_pauses(pauses),
        )  # fmt: skip
    except UNREADABLE as failed_to_read:
        raise unreadable("schedule", name, failed_to_read) from failed_to_read


def _line(schedule: UUID, entry: TickEntry) -> tuple[object, ...]:
    return schedule, entry.at, entry.outcome, entry.decided_at, entry.job, entry.until, entry.count


def _names(names: Collection[str]) -> str:
    return json.encode(sorted(set(names))).decode()
