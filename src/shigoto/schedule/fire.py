"""The firing of due ticks: from a decision to the jobs and the change that are stored."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

from msgspec.structs import replace

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.errors import ScheduleInvalid
from shigoto.model.job import JobSpec
from shigoto.model.schedule import KEPT, Change, Due, DueSchedule, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.time import Millis, to_datetime
from shigoto.schedule.decide import Decision, clock_jumped_back, counted, cut_off, decide, joined_to
from shigoto.schedule.declare import Declared, Maker, checked_call
from shigoto.schedule.definition import Definition, read
from shigoto.schedule.tick import Tick

AT_ONCE = 200  # schedules that are looked at together, and whose changes are one transaction
MOST_JOBS = 1_000  # that go into the store at once; whatever else is due has to wait for the next look
# Jobs of a schedule that is behind, at least, if there is room for any: each look begins with finding its ticks.
PORTION = 100


def carried_out(
    schedule: Schedule,
    definition: Definition,
    decision: Decision,
    maker: Maker | None,
    known: Sequence[TickEntry] = (),
) -> Change:
    """The change that a decision makes; `known` is the history, for a clock that has gone back. Whatever `maker` raises
    is for the caller."""
    firings = [fired(schedule, definition, entry, maker) for entry in decision.entries]
    stretch = schedule.stretch
    if firings:
        first = firings[0]
        entry = joined_to(stretch, first.entry)
        if entry is not first.entry:
            joined, since = entry.count - first.entry.count, first.entry.at
            firings[0] = replace(first, entry=entry, known=joined, since=since)
        newest = firings[-1].entry
        stretch = None if newest.outcome.fires else newest
    change = Change(
        schedule=replace(
            schedule,
            waiting_for_overlap=decision.waiting_for_overlap,
            pauses=decision.pauses,
            decided_to=decision.decided_to,
            look_at=decision.look_at,
            errors=0,
            error=None,
            counts=counted(schedule, decision.entries),
            stretch=stretch,
        ),
        seen=schedule.revision,
        firings=tuple(firings),
        cancel=(schedule.job,) if decision.cancels and schedule.job is not None else (),
    )
    has_gone_back = decision.decided_to < schedule.decided_to
    return _gone_back(change, definition, known) if has_gone_back else change


def _gone_back(change: Change, definition: Definition, known: Sequence[TickEntry]) -> Change:
    """The same with what is left of entries that reach over the time that it is now: one tick has one outcome."""
    schedule, to = change.schedule, change.schedule.decided_to
    over = [each for each in known if not each.outcome.fires and each.at <= to < (each.until or each.at)]
    done = {each.at for each in known if each.outcome.fires and each.outcome is not TickOutcome.RUN_NOW}
    left = {each.at: cut_off(definition, each, to, done) for each in over}
    counts, stretch = Counter(schedule.counts), schedule.stretch
    for each in over:
        rest = left[each.at]
        counts[each.outcome] -= each.count - (0 if rest is None else rest.count)
    if stretch is not None:
        stretch = left.get(stretch.at, stretch if stretch.at <= to else None)
    return replace(
        change,
        schedule=replace(schedule, counts=dict(+counts), stretch=stretch),
        firings=tuple(Firing(entry=rest, known=rest.count) for rest in left.values() if rest is not None),
        back_to=to,
        forgets=tuple(at for at, rest in left.items() if rest is None),
    )


def fired(schedule: Schedule, definition: Definition, entry: TickEntry, maker: Maker | None) -> Firing:
    """The entry, with its job if it has one."""
    if not entry.outcome.fires:
        return Firing(entry=entry)
    spec = _spec(schedule, definition, entry.at, maker)
    if entry.outcome is TickOutcome.RUN_NOW:
        run_at = entry.decided_at + spec.delay
    else:
        run_at = entry.at + jitter_of(schedule, definition, entry.at) + spec.delay
    return Firing(entry=replace(entry, job=spec.id), spec=replace(spec, run_at=run_at, delay=0))


def jitter_of(schedule: Schedule, definition: Definition, at: Millis) -> Millis:
    """How much later than its tick a job may start: by chance, but the same for everybody who asks."""
    if not definition.jitter:
        return 0
    drawn = blake2b(f"{schedule.id}/{at}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn) % (definition.jitter + 1)


def _spec(schedule: Schedule, definition: Definition, at: Millis, maker: Maker | None) -> JobSpec:
    id = schedule.job_id(at)
    if maker is None:
        if definition.job is None:
            raise ScheduleInvalid(
                f"schedule {schedule.name!r}: its jobs are made by {schedule.origin}, which is not in this process."
                " Ask where that code is.",
                "call",
            )
        return definition.job.spec(id)
    made = maker(Tick(to_datetime(at), definition.zone, schedule.name))
    call = checked_call(f"schedule {schedule.name!r}", made, definition.overlap)
    return replace(call.spec(id), id=id, template=None)


def due_op(engine: Engine, declared: Collection[str], limit: int) -> Op[Due]:
    """What somebody has to look at (`engine.due`), with all that whoever looks must know."""

    op = engine.due(declared, limit)

    def steps() -> Steps[Due]:
        due = yield from op.start()
        known: list[DueSchedule] = []
        for each in due.schedules:
            if clock_jumped_back(each.schedule, due.now):
                entries = yield from engine.history(each.schedule.name, limit=2 * KEPT).start()
                each = replace(each, known=tuple(entries))
            known.append(each)
        return replace(due, schedules=known)

    return replace(op, start=steps)


def looked_at(
    due: DueSchedule, declared: Mapping[str, Declared], now: Millis, *, most: int = MOST_JOBS
) -> Change:
    """What becomes of it, with so many jobs at most. Its code may raise anything, which is for the caller
    (`after_failure`); ZoneMissing says nothing of the schedule, but that it is for others to look at."""
    schedule = due.schedule
    definition = read(schedule.definition)
    decision = portion(schedule, decide(schedule, definition, now, busy=due.busy), most)
    mine = declared.get(schedule.name)
    return carried_out(schedule, definition, decision, None if mine is None else mine.call, due.known)


def portion(schedule: Schedule, decision: Decision, most: int) -> Decision:
    """As much of a decision as has no more jobs than that, from the oldest tick on; the rest stays due."""
    fires = decision.fires
    if len(fires) <= most:
        return decision
    end = fires[most - 1].at
    entries = tuple(entry for entry in decision.entries if entry.at <= end)
    # Not before now: the clock may go back by hours, and what is left is due all the same.
    return replace(decision, entries=entries, decided_to=end, look_at=end, pauses=schedule.pauses)
