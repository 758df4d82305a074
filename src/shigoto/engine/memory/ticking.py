"""Schedules and their histories."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from shigoto.engine.memory import people, work
from shigoto.engine.memory.store import Store
from shigoto.model.notice import of_misses
from shigoto.model.schedule import (
    CLOCK_JUMPED_BACK,
    KEPT,
    Change,
    Due,
    DueSchedule,
    Schedule,
    TickEntry,
    TickOutcome,
)
from shigoto.model.time import Millis


def schedules(store: Store, names: Sequence[str] | None) -> list[Schedule]:
    known = store.schedules
    wanted = known if names is None else known.keys() & set(names)
    return [known[name] for name in sorted(wanted)]


def due(store: Store, declared: Collection[str], limit: int) -> Due:
    now = store.now()
    mine = [each for each in store.schedules.values() if not each.origin or each.name in declared]
    looks = ((_look_at(each, now), each.name) for each in mine)
    waiting = sorted((at, name) for at, name in looks if at is not None)
    some = [store.schedules[name] for at, name in waiting if at <= now][:limit]
    left = waiting[len(some) :]
    return Due(
        now=now,
        schedules=[DueSchedule(schedule=each, busy=_is_busy(store, each)) for each in some],
        next_in=max(0, left[0][0] - now) if left else None,
    )


def tick(store: Store, changes: Sequence[Change]) -> list[Change | None]:
    heard = _heard(store, changes)
    done = [_new(store, change) if each else None for change, each in zip(changes, heard, strict=True)]
    news = [change for change in done if change is not None]
    # First, since a new job may have the key of the one that makes room for it.
    people.cancel(store, [id for change in news for id in change.cancel], force=False)
    for change in news:
        _change(store, change)
    remove(store, [change.schedule.name for change in news if change.removes])
    now = store.now()
    store.write_notices(of_misses(now, news), now)
    return done


def remove(store: Store, names: Sequence[str]) -> list[bool]:
    known = [store.schedules.pop(name, None) for name in names]
    for schedule in known:
        if schedule is not None:
            store.histories.pop(schedule.id, None)
    return [schedule is not None for schedule in known]


def declare(store: Store, names: Collection[str]) -> int:
    now = store.now()
    known = store.schedules.keys() & set(names)
    for name in known:
        store.schedules[name] = replace(store.schedules[name], declared_at=now)
    return len(known)


def history(store: Store, name: str, before: Millis | None, limit: int) -> list[TickEntry]:
    schedule = store.schedules.get(name)
    entries = {} if schedule is None else store.histories[schedule.id]
    wanted = [entry for at, entry in entries.items() if before is None or at < before]
    return sorted(wanted, key=lambda entry: -entry.at)[:limit]


def _heard(store: Store, changes: Sequence[Change]) -> list[bool]:
    """Which of them have seen the newest; a second change of the same has not."""
    heard: list[bool] = []
    changed = set[str]()
    for change in changes:
        name = change.schedule.name
        known = store.schedules.get(name)
        now = None if known is None else (known.id, known.revision)
        heard.append(name not in changed and now == change.sight)
        if heard[-1]:
            changed.add(name)
    return heard


def _new(store: Store, change: Change) -> Change:
    """What of it has not happened before."""
    entries = store.histories[change.schedule.id]
    if change.back_to is not None:
        later = [each for each in entries.values() if each.at > change.back_to and not each.outcome.fires]
        for entry in later:
            del entries[entry.at]
        change = change.forgetting((entry.outcome, entry.count) for entry in later)
    for at in change.forgets:
        if at in entries and not entries[at].outcome.fires:
            del entries[at]
    instants = {firing.entry.at for firing in change.firings}
    fired = [each for each in entries.values() if each.outcome.fires]
    return change.without(
        {each.at for each in fired if each.at in instants or each.outcome is not TickOutcome.RUN_NOW}
    )


def _change(store: Store, change: Change) -> None:
    schedule = change.schedule
    known = store.schedules.get(schedule.name)
    entries = store.histories[schedule.id]
    last = schedule.job
    for firing in change.firings:
        entry = firing.entry
        if firing.spec is not None:
            [stored] = work.enqueue_many(store, (firing.spec,))
            entry = replace(entry, job=stored.id)
            last = stored.id if entry.outcome.leads else last
        entries[entry.at] = entry
    oldest = sorted(entries)[-KEPT:][:1]
    for entry in [each for each in entries.values() if oldest and max(each.at, each.until or 0) < oldest[0]]:
        del entries[entry.at]
    declared_at = schedule.declared_at if known is None else max(known.declared_at, schedule.declared_at)
    store.schedules[schedule.name] = replace(
        schedule,
        revision=change.seen + 1,
        declared_at=declared_at,
        job=last,
        counts={str(outcome): count for outcome, count in schedule.counts.items()},
    )


def _look_at(schedule: Schedule, now: Millis) -> Millis | None:
    """When to look at it: at once, if the clock has gone back."""
    clock_jumped_back = schedule.reached > now + CLOCK_JUMPED_BACK and not schedule.failed
    return now if clock_jumped_back else schedule.look_at


def _is_busy(store: Store, schedule: Schedule) -> bool:
    row = None if schedule.job is None else store.by_id.get(schedule.job)
    return row is not None and not row.state.terminal
