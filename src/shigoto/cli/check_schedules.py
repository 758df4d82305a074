"""What can be wrong with schedules: one pure function per question, from facts to a finding."""

from collections.abc import Sequence
from datetime import timedelta

from shigoto.cli.confirm import names
from shigoto.cli.findings import Facts, Finding, Level
from shigoto.cli.output import span
from shigoto.model.schedule import Schedule
from shigoto.model.time import Millis, to_datetime, to_millis
from shigoto.schedule.declare import HEARD_WITHIN

OVERDUE: Millis = 60_000


def failed(facts: Facts) -> Finding | None:
    """Whether there are schedules that are not tried any more."""
    broken = [each for each in facts.schedules if each.failed]
    if not broken:
        return None
    told = names([f"{each.name} ({each.error})" for each in broken])
    return Finding(
        check="schedules",
        level=Level.PROBLEM,
        text=f"{_schedules(broken)} not fired any more, after too many errors: {told}.",
        remedy=f"Mend the cause, then: shigoto schedules resume {broken[0].name}.",
    )


def overdue(facts: Facts) -> Finding | None:
    """Whether somebody ticks at all."""
    late = [each for each in facts.schedules if _is_overdue(each, facts)]
    if facts.live:
        late = [
            each for each in late if not _is_undeclared(each, facts) and each.name not in facts.unreadable
        ]
    if not late:
        return None
    late.sort(key=lambda each: (each.look_at or 0, each.name))
    told = names([f"{each.name} (by {span(_late_by(each, facts))})" for each in late])
    remedy = (
        "None of the workers ticks, or none knows their code: some are told not to, and one that drains never does."
        f" Start one that does: {facts.said.command('worker')}."
        if facts.live
        else f"Nobody is there to tick: start a worker, {facts.said.command('worker')}."
    )
    return Finding(
        check="schedules",
        level=Level.PROBLEM,
        text=f"{_schedules(late)} overdue: {told}.",
        remedy=remedy,
    )


def undeclared(facts: Facts) -> Finding | None:
    """Whether there are schedules whose code is gone, so that nobody fires them."""
    lost = [each for each in facts.schedules if _is_undeclared(each, facts)]
    if not facts.live or not lost:  # without a worker nobody could declare them
        return None
    told = names([f"{each.name} (by {each.origin})" for each in lost])
    return Finding(
        check="schedules",
        level=Level.WARNING,
        text=f"{_schedules(lost)} declared in code that no process has any more, and not fired: {told}.",
        remedy=(
            "Start a worker whose app has that code. If it is gone for good: shigoto schedules remove"
            f" {lost[0].name}."
        ),
    )


def unreadable(facts: Facts) -> Finding | None:
    """Whether there are schedules of which nobody here can tell when they are due; and elsewhere neither, if no worker
    has fired them."""
    waiting = [each for each in facts.schedules if each.look_at is not None and not each.failed]
    lost = [each for each in waiting if each.name in facts.unreadable]
    if not lost:
        return None
    told = names([f"{each.name} ({facts.unreadable[each.name].rstrip('.')})" for each in lost])
    return Finding(
        check="schedules",
        level=Level.PROBLEM if any(_is_overdue(each, facts) for each in lost) else Level.WARNING,
        text=f"{_schedules(lost)} not understood here, and fired by no such process: {told}.",
        remedy=(
            "Install tzdata where workers and schedulers run, or give it another time zone: shigoto schedules update"
            f" {lost[0].name} --tz ZONE. One that code declares gets it there."
        ),
    )


def _is_overdue(schedule: Schedule, facts: Facts) -> bool:
    return schedule.look_at is not None and schedule.look_at < to_millis(facts.now) - OVERDUE


def _is_undeclared(schedule: Schedule, facts: Facts) -> bool:
    return bool(schedule.origin) and schedule.declared_at < to_millis(facts.now) - HEARD_WITHIN


def _late_by(schedule: Schedule, facts: Facts) -> timedelta:
    return facts.now - to_datetime(schedule.look_at or 0)


def _schedules(some: Sequence[Schedule]) -> str:
    return "1 schedule is" if len(some) == 1 else f"{len(some)} schedules are"
