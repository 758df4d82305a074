"""Jobs of a schedule that somebody asks for: one now, beside its ticks, and those of ticks that have not fired."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import islice, takewhile
from uuid import UUID

from msgspec.structs import replace

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.errors import ScheduleInvalid
from shigoto.model.schedule import KEPT, Change, Entry, Firing, Schedule, TickOutcome
from shigoto.model.time import Millis
from shigoto.queues import ticking
from shigoto.schedule.deciding import counted, left_of
from shigoto.schedule.declaring import Maker
from shigoto.schedule.definition import Definition, read
from shigoto.schedule.firing import fired
from shigoto.schedule.managing import TRIES, contended, found

MOST_BACKFILLED = 1_000


def running(engine: Engine, name: str, maker: Maker | None) -> Op[UUID]:
    """Store a job now, beside the ticks, and tell its id. Raises ScheduleNotFound, ScheduleInvalid, or
    QueueFull."""

    def steps() -> Steps[UUID]:
        for _ in range(TRIES):
            now = yield from engine.time().start()
            schedule = yield from found(engine, name)
            definition = read(schedule.definition)
            known = yield from engine.history(name, before=now + KEPT, limit=KEPT).start()
            at = _free_from(now, definition, {entry.at for entry in known})
            entry = Entry(at=at, outcome=TickOutcome.RUN_NOW, decided_at=now)
            change = _with(schedule, [fired(schedule, definition, entry, maker)])
            if all((yield from ticking(engine, [change]).start())):
                return (yield from _jobs(engine, schedule, [at]))[0]
        raise contended(name)

    return Op(start=steps, rings=lambda _: True)


def backfilling(engine: Engine, name: str, since: Millis, to: Millis, maker: Maker | None) -> Op[list[UUID]]:
    """Fire what has not fired of the ticks from `since` to `to`, both included, and tell the jobs.

    Asked for again, it does nothing more, as far back as there are entries, or jobs are kept. Raises ScheduleNotFound,
    ScheduleInvalid, or QueueFull if there is no room for all of them.
    """

    def steps() -> Steps[list[UUID]]:
        for _ in range(TRIES):
            now = yield from engine.time().start()
            schedule = yield from found(engine, name)
            definition = read(schedule.definition)
            wanted = _few(name, definition, since, min(to, now))
            known = yield from engine.history(name, limit=2 * KEPT).start()
            done = {entry.at for entry in known if entry.outcome.fires}
            missing = [at for at in wanted if at not in done]
            if not missing:
                return []
            entries = [Entry(at=at, outcome=TickOutcome.BACKFILLED, decided_at=now) for at in missing]
            firings = [fired(schedule, definition, entry, maker) for entry in entries]
            stretches = [each for each in known if each.until and any(map(each.spans, missing))]
            before = {
                each.at for each in known if each.at in done and each.outcome is not TickOutcome.RUN_NOW
            }
            parts = {each.at: _left(definition, each, missing, before) for each in stretches}
            left = [Firing(entry=part, known=part.count) for some in parts.values() for part in some or ()]
            counts = Counter(schedule.counts) - _undone(known, missing, parts)
            change = replace(
                _with(replace(schedule, stretch=None, counts=dict(counts)), firings, left),
                forgets=tuple(at for at, some in parts.items() if some == [] and at not in missing),
            )
            if all((yield from ticking(engine, [change]).start())):
                return (yield from _jobs(engine, schedule, missing))
        raise contended(name)

    return Op(start=steps, rings=bool)


def _left(
    definition: Definition, stretch: Entry, missing: Sequence[Millis], before: Collection[Millis]
) -> list[Entry] | None:
    """What stays written down of a stretch (`left_of`). None, if it tells of other ticks and stays as it is: but where
    one that is filled in has the place in the history at which it begins, it gives that up."""
    left = left_of(definition, stretch, missing, before)
    if left is not None or stretch.at not in missing:
        return left
    return [replace(stretch, at=stretch.at + 1, count=stretch.count - 1)] if stretch.count > 1 else []


def _undone(
    known: Sequence[Entry], missing: Sequence[Millis], parts: Mapping[Millis, list[Entry] | None]
) -> Counter[str]:
    """How many ticks are no longer what was written down of them, by outcome: those that are filled in, by themselves
    or out of an entry of which `parts` are left."""
    undone = Counter[str]()
    for entry in known:
        left = parts.get(entry.at)
        if entry.until is None and not entry.outcome.fires and entry.at in missing:
            undone[entry.outcome] += entry.count
        elif entry.until is not None and left is not None:
            undone[entry.outcome] += entry.count - sum(part.count for part in left)
    return undone


def _jobs(engine: Engine, schedule: Schedule, ticks: Sequence[Millis]) -> Steps[list[UUID]]:
    """The jobs that stand for ticks, which are others than usual where a unique key says so."""
    entries = yield from engine.history(schedule.name, before=ticks[-1] + 1, limit=2 * KEPT).start()
    stored = {entry.at: entry.job for entry in entries}
    return [stored.get(at) or schedule.job_id(at) for at in ticks]


def _free_from(now: Millis, definition: Definition, taken: set[Millis]) -> Millis:
    """The first instant at which nothing is written down, nor ever will be for a tick."""
    return next(
        at for at in range(now, now + 2 * KEPT) if at not in taken and definition.next_after(at - 1) != at
    )


def _few(name: str, definition: Definition, since: Millis, to: Millis) -> list[Millis]:
    """The ticks from `since` to `to`. Raises ScheduleInvalid if these are too many."""
    end = to if definition.until is None else min(to, definition.until)
    ticks = takewhile(lambda at: at <= end, definition.recurrence.after(since - 1))
    wanted = list(islice(ticks, MOST_BACKFILLED + 1))
    if len(wanted) > MOST_BACKFILLED:
        raise ScheduleInvalid(
            f"schedule {name!r}: these are more than {MOST_BACKFILLED} ticks, the most that are filled in at a time."
            " Choose a shorter time.",
            "to",
        )
    return wanted


def _with(schedule: Schedule, firings: Sequence[Firing], left: Sequence[Firing] = ()) -> Change:
    changed = replace(schedule, counts=counted(schedule, [firing.entry for firing in firings]))
    return Change(schedule=changed, seen=schedule.revision, firings=(*left, *firings))
