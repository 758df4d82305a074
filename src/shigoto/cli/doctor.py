"""The doctor: gathers what is to be known of a store and its surroundings, and says what is wrong and what helps."""

import platform
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import click
from msgspec import structs

from shigoto.cli import doctor_checks, doctor_postgres, output
from shigoto.cli.doctor_checks import DoctorFacts, Finding, Level
from shigoto.cli.target import answers, expect_there, suggest, target_of
from shigoto.engine.op import Op, Steps
from shigoto.model.checkup import Checkup
from shigoto.model.job import FailureKind, JobFilter, State
from shigoto.schedule.definition import trouble_with

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

CHECKS: tuple[Callable[[DoctorFacts], Finding | None], ...] = (
    doctor_checks.python,
    doctor_checks.store,
    doctor_checks.move,
    doctor_checks.version,
    doctor_checks.file_system,
    doctor_checks.permissions,
    doctor_checks.space,
    doctor_checks.log,
    doctor_checks.journal,
    doctor_checks.integrity,
    doctor_checks.clock,
    doctor_postgres.version,
    doctor_postgres.encoding,
    doctor_postgres.role,
    doctor_postgres.standby,
    doctor_postgres.clock,
    doctor_postgres.durability,
    doctor_postgres.autovacuum,
    doctor_postgres.holders,
    doctor_postgres.dead_rows,
    doctor_postgres.indexes,
    doctor_postgres.connections,
    doctor_postgres.pooler,
    doctor_postgres.doorbell,
    doctor_postgres.timeouts,
    doctor_checks.live_workers,
    doctor_checks.orphaned_jobs,
    doctor_checks.unserved_lanes,
    doctor_checks.paused_queues,
    doctor_checks.isolated_jobs,
    doctor_checks.quarantined_jobs,
    doctor_checks.backlog,
    doctor_checks.failed_schedules,
    doctor_checks.overdue_schedules,
    doctor_checks.undeclared_schedules,
    doctor_checks.unreadable_schedules,
)
PAGE = 100
COLOURS = {Level.OK: "green", Level.NOTE: "blue", Level.WARNING: "yellow", Level.PROBLEM: "red"}
INDENT = " " * 11


@runtime_checkable
class Checkable(Protocol):
    """An engine that can tell of its store's health."""

    def checkup(self, *, deep: bool = False) -> Checkup:
        """What there is to know; changes nothing, and says so if the store cannot be opened."""
        ...


@click.command()
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option("--deep", is_flag=True, help="Read the whole file to look for damage, which may take a while.")
@answers
def doctor(ctx: click.Context, store: str | None, *, deep: bool, as_json: bool) -> int:
    """Look for what is wrong with a store, its surroundings and its workers, and say what helps.

    Nothing is changed. The exit code is 1 if there is a problem; notes and warnings do not count.
    """
    target = target_of(ctx)
    with closing(target.store(store)) as engine:
        expect_there(engine, unnamed=target.names_nothing(store))
        facts = gather(engine, datetime.now(UTC), deep=deep)
    found = examine(structs.replace(facts, hint=target.hint(store)))

    if as_json:
        output.print_json({"findings": found})
    else:
        output.print_lines(report(found, output.width_of()))
    return 1 if any(finding.level is Level.PROBLEM for finding in found) else 0


def examine(facts: DoctorFacts) -> list[Finding]:
    """What all checks find; one that does not apply finds nothing."""
    return [finding for check in CHECKS if (finding := check(facts)) is not None]


def gather(engine: "Engine", now: datetime, *, deep: bool) -> DoctorFacts:
    checkup = engine.checkup(deep=deep) if isinstance(engine, Checkable) else None
    if checkup is not None and checkup.server is not None:
        now = checkup.server.now  # leases go by the server's clock
    facts = DoctorFacts(
        now=now, python=platform.python_version(), engine=engine.capabilities.name, checkup=checkup
    )
    return facts if facts.refused else engine.run(_ask_op(engine, facts))


def _ask_op(engine: "Engine", facts: DoctorFacts) -> Op[DoctorFacts]:
    def steps() -> Steps[DoctorFacts]:
        schedules = yield from engine.schedules().start()
        troubles = {each.name: trouble_with(each) for each in schedules}
        return DoctorFacts(
            now=facts.now,
            python=facts.python,
            engine=facts.engine,
            checkup=facts.checkup,
            queues=(yield from engine.stats().start()),
            settings=(yield from engine.settings().start()),
            workers=(yield from engine.workers().start()),
            quarantined=(yield from _quarantined(engine)),
            schedules=schedules,
            unreadable={name: trouble for name, trouble in troubles.items() if trouble is not None},
        )

    return Op(start=steps, mode="read")


def _quarantined(engine: "Engine") -> Steps[int]:
    """How many jobs are in quarantine, found page by page: there are few."""
    count, before = 0, None
    while True:
        page = JobFilter(state=State.FAILED, failure_kind=FailureKind.CRASH_LOOP, before=before, limit=PAGE)
        jobs = yield from engine.find(page).start()
        count += len(jobs)
        if len(jobs) < PAGE:
            return count
        before = jobs[-1].number


def report(found: Sequence[Finding], width: int | None) -> list[str]:
    """A line or more per finding, with the remedy below, and the sum."""
    lines: list[str] = []
    for finding in found:
        lines += _told(finding, width)
    counts = [
        f"{count} {level}{'' if count == 1 else 's'}"
        for level in (Level.PROBLEM, Level.WARNING, Level.NOTE)
        if (count := sum(finding.level is level for finding in found))
    ]
    return [*lines, "", f"{', '.join(counts)}." if counts else "All is well."]


def _told(finding: Finding, width: int | None) -> list[str]:
    text = output.one_line(f"{finding.check}: {finding.text}")
    first, *more = output.wrapped(text, width, first=f"{finding.level:<9}  ", later=INDENT)
    level = click.style(finding.level, fg=COLOURS[finding.level])
    lines = [level + first[len(finding.level) :], *more]
    if finding.remedy is not None:
        lines += output.wrapped(
            output.one_line(finding.remedy), width, first=f"{INDENT}→ ", later=f"{INDENT}  "
        )
    return lines
