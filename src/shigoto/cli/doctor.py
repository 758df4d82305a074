"""The doctor: gathers what is to be known of a store and its surroundings, and says what is wrong and what helps."""

import platform
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import click
from msgspec import structs

from shigoto.cli import check_schedules, check_server, check_store, check_work, output
from shigoto.cli.findings import Facts, Finding, Level
from shigoto.cli.target import expect_there, suggest, takes_target, target_of
from shigoto.engine.op import Op, Steps
from shigoto.model.checkup import Checkup
from shigoto.model.job import FailureKind, JobFilter, State
from shigoto.schedule.definition import trouble_with

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

CHECKS: tuple[Callable[[Facts], Finding | None], ...] = (
    check_store.python,
    check_store.store,
    check_store.move,
    check_store.version,
    check_store.file_system,
    check_store.permissions,
    check_store.space,
    check_store.log,
    check_store.journal,
    check_store.integrity,
    check_store.clock,
    check_server.version,
    check_server.encoding,
    check_server.role,
    check_server.standby,
    check_server.clock,
    check_server.durability,
    check_server.autovacuum,
    check_server.holders,
    check_server.dead_rows,
    check_server.indexes,
    check_server.connections,
    check_server.pooler,
    check_server.doorbell,
    check_server.timeouts,
    check_work.workers,
    check_work.orphans,
    check_work.unserved,
    check_work.paused,
    check_work.alone,
    check_work.quarantined,
    check_work.backlog,
    check_schedules.failed,
    check_schedules.overdue,
    check_schedules.undeclared,
    check_schedules.unreadable,
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
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@takes_target
def doctor(ctx: click.Context, store: str | None, *, deep: bool, as_json: bool) -> int:
    """Look for what is wrong with a store, its surroundings and its workers, and say what helps.

    Nothing is changed. The exit code is 1 if there is a problem; notes and warnings do not count.
    """
    target = target_of(ctx)
    with closing(target.store(store)) as engine:
        expect_there(engine, unnamed=target.names_nothing(store))
        facts = gather(engine, datetime.now(UTC), deep=deep)
    found = examine(structs.replace(facts, said=target.said(store)))

    if as_json:
        output.print_json({"findings": found})
    else:
        click.echo("\n".join(report(found, output.width_of())), color=output.in_colour())
    return 1 if any(finding.level is Level.PROBLEM for finding in found) else 0


def examine(facts: Facts) -> list[Finding]:
    """What all checks find; one that does not apply finds nothing."""
    return [finding for check in CHECKS if (finding := check(facts)) is not None]


def gather(engine: "Engine", now: datetime, *, deep: bool) -> Facts:
    """The facts: what the engine knows of its store, and, if that can be opened, what any engine tells."""
    checkup = engine.checkup(deep=deep) if isinstance(engine, Checkable) else None
    if checkup is not None and checkup.server is not None:
        now = checkup.server.now  # leases go by the server's clock
    facts = Facts(now=now, python=platform.python_version(), engine=engine.capabilities.name, checkup=checkup)
    return facts if facts.refused else engine.run(_asking(engine, facts))


def _asking(engine: "Engine", facts: Facts) -> Op[Facts]:
    def steps() -> Steps[Facts]:
        schedules = yield from engine.schedules().start()
        troubles = {each.name: trouble_with(each) for each in schedules}
        return Facts(
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
