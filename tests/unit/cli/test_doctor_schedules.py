"""What the doctor says of schedules: on made-up facts, and on a real file."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from shigoto.cli import doctor_checks
from shigoto.cli.confirm import SHOWN
from shigoto.cli.doctor import examine, gather
from shigoto.cli.doctor_checks import DoctorFacts, Finding, Level
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.ids import uuid7
from shigoto.model.schedule import Change, Schedule
from shigoto.model.time import to_datetime, to_millis
from shigoto.schedule.definition import Definition, written
from shigoto.schedule.recurrence import Cron, Every
from tests.unit.cli.test_doctor import NOW, ago, facts, worker

SOON = to_millis(NOW + timedelta(seconds=30))


def schedule(**changes: Any) -> Schedule:
    usual: dict[str, Any] = {"id": uuid7(), "name": "nightly", "definition": "{}", "look_at": SOON}
    usual |= {"decided_to": to_millis(ago(hours=1)), "created_at": to_millis(ago(days=1))}
    return Schedule(**(usual | changes))


def declared(**changes: Any) -> Schedule:
    return schedule(**({"origin": "shop:nightly", "declared_at": to_millis(ago(seconds=40))} | changes))


def found(these: DoctorFacts) -> list[Finding]:
    return [finding for finding in examine(these) if finding.check == "schedules"]


def test_schedules_that_are_in_order_are_not_worth_a_word() -> None:
    late = to_millis(ago(seconds=59))
    fine = [schedule(), declared(), schedule(look_at=None), schedule(paused_at=1), schedule(look_at=late)]

    assert found(facts(schedules=fine)) == []
    assert found(facts()) == []


def test_a_schedule_that_has_failed_is_a_problem_and_its_error_is_told() -> None:
    broken = declared(failed=True, look_at=None, errors=6, error="ConnectionError: no host")

    [finding] = found(facts(schedules=[broken, schedule()]))

    assert finding.level is Level.PROBLEM
    assert finding.text == (
        "1 schedule is not fired any more, after too many errors: nightly (ConnectionError: no host)."
    )
    assert finding.remedy == "Mend the cause, then: shigoto schedules resume nightly."


def test_a_schedule_that_nobody_looks_at_is_a_problem() -> None:
    """S4-14: never silence."""
    late = [schedule(name=f"s{n}", look_at=to_millis(ago(minutes=n))) for n in range(2, 40)]

    [finding] = found(facts(schedules=late))
    [nobody] = found(facts(schedules=[schedule(look_at=to_millis(ago(minutes=5)))], workers=[]))

    assert finding.level is nobody.level is Level.PROBLEM
    assert finding.text.startswith("38 schedules are overdue: s39 (by 39 min), s38 (by 38 min)")
    assert finding.text.endswith(f"and {38 - SHOWN} more.")
    assert "None of the workers ticks" in str(finding.remedy)
    assert nobody.remedy == "Nobody is there to tick: start a worker, shigoto worker."


def test_a_schedule_whose_code_is_gone_is_a_warning_and_not_overdue() -> None:
    gone = declared(declared_at=to_millis(ago(minutes=3)), look_at=to_millis(ago(minutes=2)))

    [finding] = found(facts(schedules=[gone]))

    assert finding.level is Level.WARNING
    assert finding.text == (
        "1 schedule is declared in code that no process has any more, and not fired: nightly (by shop:nightly)."
    )
    assert "shigoto schedules remove nightly" in str(finding.remedy)


def test_without_a_worker_what_is_declared_is_overdue_and_not_gone() -> None:
    """Nobody could declare it."""
    late = declared(declared_at=to_millis(ago(hours=3)), look_at=to_millis(ago(hours=2)))

    [finding] = found(facts(schedules=[late], workers=[worker(lease_until=ago(seconds=5))]))

    assert finding.text == "1 schedule is overdue: nightly (by 2 h 0 min)."
    assert doctor_checks.undeclared_schedules(facts(schedules=[late], workers=[])) is None


def test_a_schedule_that_nobody_here_understands_is_told_with_what_to_do() -> None:
    """S4-14: and not as overdue, for which another worker would be no remedy."""
    late = schedule(look_at=to_millis(ago(minutes=5)))
    unreadable = {"nightly": "This system does not know the time zone 'Mars/Olympus'."}

    [problem] = found(facts(schedules=[late, schedule(name="sound")], unreadable=unreadable))
    [warning] = found(facts(schedules=[schedule()], unreadable=unreadable))

    assert (problem.level, warning.level) == (Level.PROBLEM, Level.WARNING)
    assert problem.text == (
        "1 schedule is not understood here, and fired by no such process: nightly (This system does not know the time"
        " zone 'Mars/Olympus')."
    )
    assert "shigoto schedules update nightly --tz ZONE" in str(problem.remedy)
    assert found(facts(schedules=[schedule(look_at=None)], unreadable=unreadable)) == []


def test_the_doctor_reads_schedules_from_the_store(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db")
    now = engine.now()
    text = written(Definition(recurrence=Cron("0 3 * * *", "Mars/Olympus")))
    for name, definition in (("nightly", written(Definition(recurrence=Every(1_000)))), ("tokyo", text)):
        late = schedule(name=name, look_at=now - 90_000, decided_to=now - 100_000, definition=definition)
        engine.run(engine.tick([Change(schedule=late, seen=0)]))

    overdue, unreadable = found(gather(engine, to_datetime(now), deep=False))

    assert overdue.text == "2 schedules are overdue: nightly (by 90 s), tokyo (by 90 s)."
    assert unreadable.text.startswith("1 schedule is not understood here")
    engine.close()
