"""From a decision to what is stored: the jobs of its ticks, and the change of the schedule."""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from msgspec.structs import replace

from shigoto.model.errors import ScheduleInvalid
from shigoto.model.job import JobSpec
from shigoto.model.schedule import Change, Entry, Firing, Schedule, TickOutcome
from shigoto.model.time import Millis, to_datetime
from shigoto.schedule.deciding import Decision, counted, cut_off, joined_to
from shigoto.schedule.declaring import Maker, checked_call
from shigoto.schedule.definition import Definition
from shigoto.schedule.tick import Tick


def carried_out(
    schedule: Schedule,
    definition: Definition,
    decision: Decision,
    maker: Maker | None,
    known: Sequence[Entry] = (),
) -> Change:
    """The change that a decision makes; `known` is the history, for a clock that has gone back. Whatever `maker` raises
    is for the caller."""
    firings = [fired(schedule, definition, entry, maker) for entry in decision.entries]
    stretch = schedule.stretch
    if firings:
        firings[0] = _continuing(stretch, firings[0])
        newest = firings[-1].entry
        stretch = None if newest.outcome.fires else newest
    change = Change(
        schedule=replace(
            schedule,
            held=decision.held,
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


def _gone_back(change: Change, definition: Definition, known: Sequence[Entry]) -> Change:
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


def fired(schedule: Schedule, definition: Definition, entry: Entry, maker: Maker | None) -> Firing:
    """The entry, with its job if it has one."""
    if not entry.outcome.fires:
        return Firing(entry=entry)
    spec = _spec(schedule, definition, entry.at, maker)
    if entry.outcome is TickOutcome.RUN_NOW:
        run_at = entry.decided_at + spec.delay
    else:
        run_at = entry.at + jitter_of(schedule, definition, entry.at) + spec.delay
    return Firing(entry=replace(entry, job=spec.id), spec=replace(spec, run_at=run_at, delay=0))


def _continuing(stretch: Entry | None, firing: Firing) -> Firing:
    entry = joined_to(stretch, firing.entry)
    if entry is firing.entry:
        return firing
    return replace(firing, entry=entry, known=entry.count - firing.entry.count, since=firing.entry.at)


def jitter_of(schedule: Schedule, definition: Definition, at: Millis) -> Millis:
    """How much later than its tick a job may start: by chance, but the same for everybody who asks."""
    if not definition.jitter:
        return 0
    drawn = blake2b(f"{schedule.id}/{at}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn) % (definition.jitter + 1)


def tick_of(schedule: Schedule, definition: Definition, at: Millis) -> Tick:
    """What a task is told of a tick."""
    return Tick(to_datetime(at), definition.zone, schedule.name)


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
    made = maker(tick_of(schedule, definition, at))
    call = checked_call(f"schedule {schedule.name!r}", made, definition.overlap)
    return replace(call.spec(id), id=id, pattern=None)
