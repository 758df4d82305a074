"""What people do to schedules, as operations: each reads, decides and changes in one transaction."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.clock import Millis
from shigoto.model.errors import ScheduleInvalid, ScheduleNotFound, ScheduleTaken, StoreUnavailable, nearest
from shigoto.model.schedule import KEPT, Change, Entry, Firing, Schedule, TickOutcome
from shigoto.schedule.deciding import left_of, passed_over
from shigoto.schedule.declaring import HEARD_WITHIN, Maker
from shigoto.schedule.definition import Definition, read, written
from shigoto.schedule.firing import carried_out, fired
from shigoto.schedule.options import expect_future

T = TypeVar("T")

MOST_BACKFILLED = 1_000
TRIES = 10

Alter = Callable[[Schedule, Millis], Change]


def adding(engine: Engine, name: str, definition: Definition, id: UUID) -> Op[Schedule]:
    """Store a new schedule, due from now on. Raises ScheduleTaken, ScheduleInvalid."""

    def steps() -> Steps[Schedule]:
        now = (yield from engine.due((), 0).start()).now
        schedule = Schedule(
            id=id,
            name=name,
            definition=written(definition),
            look_at=expect_future(f"schedule {name!r}", definition, now),
            decided_to=now,
            created_at=now,
        )
        if not all((yield from engine.tick([Change(schedule=schedule, seen=0)]).start())):
            raise ScheduleTaken(f"There is a schedule {name!r} already. Update it, or choose another name.")
        return replace(schedule, revision=1)

    return Op(start=steps, rings=lambda _: True)


def altering(engine: Engine, name: str, alter: Alter) -> Op[Schedule]:
    """Change a schedule as it is at that moment. Raises ScheduleNotFound, and whatever `alter` does."""

    def steps() -> Steps[Schedule]:
        for _ in range(TRIES):
            now = (yield from engine.due((), 0).start()).now
            change = alter((yield from found(engine, name)), now)
            if all((yield from engine.tick([change]).start())):
                return replace(change.schedule, revision=change.seen + 1)
        raise StoreUnavailable(f"The schedule {name!r} is changed by others all the time. Try again.")

    return Op(start=steps, rings=lambda _: True)


def found(engine: Engine, name: str) -> Steps[Schedule]:
    """The schedule. Raises ScheduleNotFound."""
    known = yield from engine.schedules([name]).start()
    if not known:
        names = [each.name for each in (yield from engine.schedules().start())]
        raise ScheduleNotFound(f"There is no schedule {name!r}.{nearest(name, names)}")
    return known[0]


def removing(engine: Engine, name: str) -> Op[None]:
    """Forget a schedule with its ledger. Raises ScheduleNotFound, or ScheduleTaken if living code declares it."""

    def steps() -> Steps[None]:
        now = (yield from engine.due((), 0).start()).now
        schedule = yield from found(engine, name)
        expect_free(schedule, now, "removed")
        yield from engine.remove_schedules([name]).start()

    return Op(start=steps)


def expect_free(schedule: Schedule, now: Millis, what: str) -> None:
    """Raise ScheduleTaken if living code declares the schedule: it would be as before at its next start."""
    if schedule.origin and schedule.declared_at >= now - HEARD_WITHIN:
        raise ScheduleTaken(
            f"The schedule {schedule.name!r} is declared by {schedule.origin}, and can be {what} only there."
            " You can pause it."
        )


def redefined(definition: Definition) -> Alter:
    """Another definition, from now on."""

    def alter(schedule: Schedule, now: Millis) -> Change:
        expect_free(schedule, now, "changed")
        look_at = expect_future(f"schedule {schedule.name!r}", definition, now)
        changed = replace(
            schedule, definition=written(definition), look_at=look_at, decided_to=now, held=False, errors=0, error=None,
            failed=False,
        )  # fmt: skip
        return Change(schedule=changed, seen=schedule.revision)

    return alter


def paused(schedule: Schedule, now: Millis) -> Change:
    """Ticks are suppressed from now on; those before are decided as usual, by whoever looks next."""
    return Change(schedule=replace(schedule, paused=True, held=False), seen=schedule.revision)


def resumed(schedule: Schedule, now: Millis) -> Change:
    """It fires again from now on, and the ledger tells of what has not."""
    definition = read(schedule.definition)
    outcome = TickOutcome.SUPPRESSED if schedule.paused else TickOutcome.MISSED
    decision = passed_over(definition, schedule.decided_to, now, outcome)
    going = replace(schedule, paused=False, failed=False)
    return carried_out(going, definition, decision, None)


def run_at_once(maker: Maker | None) -> Alter:
    """A job now, beside the ticks."""

    def alter(schedule: Schedule, now: Millis) -> Change:
        entry = Entry(at=now, outcome=TickOutcome.RUN_NOW, decided_at=now)
        return _with(schedule, [fired(schedule, read(schedule.definition), entry, maker)])

    return alter


def backfilling(engine: Engine, name: str, since: Millis, to: Millis, maker: Maker | None) -> Op[list[UUID]]:
    """Fire what has not fired of the ticks from `since` to `to`, both included, and tell the jobs. Asked for again, it
    does nothing more: what has fired stays fired. Raises ScheduleNotFound, ScheduleInvalid."""

    def steps() -> Steps[list[UUID]]:
        now = (yield from engine.due((), 0).start()).now
        schedule = yield from found(engine, name)
        definition = read(schedule.definition)
        wanted = definition.between(since - 1, min(to, now))
        _expect_few(name, wanted)
        known = yield from engine.ledger(name, before=to + 1, limit=KEPT + MOST_BACKFILLED).start()
        done = {entry.at for entry in known if entry.outcome.fires}
        missing = [at for at in wanted if at not in done]
        stretches = [
            each for each in known if each.until and any(each.at <= at <= each.until for at in missing)
        ]
        left = [Firing(entry=part) for each in stretches for part in left_of(definition, each, missing)]
        entries = [Entry(at=at, outcome=TickOutcome.BACKFILLED, decided_at=now) for at in missing]
        change = _with(schedule, [fired(schedule, definition, entry, maker) for entry in entries])
        change = replace(change, firings=(*left, *change.firings))
        if not missing or not all((yield from engine.tick([change]).start())):
            return []
        return [schedule.job_id(at) for at in missing]

    return Op(start=steps, rings=bool)


def _with(schedule: Schedule, firings: Sequence[Firing]) -> Change:
    counts = Counter(schedule.counts)
    for firing in firings:
        counts[firing.entry.outcome] += 1
    return Change(
        schedule=replace(schedule, counts=dict(counts)), seen=schedule.revision, firings=tuple(firings)
    )


def _expect_few(name: str, wanted: Sequence[Millis]) -> None:
    if len(wanted) > MOST_BACKFILLED:
        raise ScheduleInvalid(
            f"schedule {name!r}: that are {len(wanted)} ticks, and at most {MOST_BACKFILLED} are filled in at a time."
            " Choose a shorter time.",
            "to",
        )
