"""The doctor on a real file. tests/unit/cli/test_doctor_findings.py has every check on made-up facts."""

import json
import os
import platform
import sqlite3
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shigoto import cli
from shigoto.cli import doctor_checks
from shigoto.cli.doctor import examine, gather
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.sqlite import SqliteEngine, file
from shigoto.engine.sqlite.checkup import look_at
from shigoto.model.ids import uuid7
from shigoto.model.job import FailureKind, JobSpec, QueueSettings
from shigoto.model.schedule import Change
from shigoto.model.time import to_datetime, to_millis
from shigoto.model.worker import Ending
from shigoto.schedule.definition import Definition, written
from shigoto.schedule.recurrence import Cron, Every
from tests.unit.cli.test_doctor_findings import schedule
from tests.unit.commands import Command, Store


def diagnosis(shigoto: Command, *words: str) -> dict[str, dict[str, Any]]:
    """What the doctor found in jobs.db, by the name of the check."""
    return {finding["check"]: finding for finding in shigoto("doctor", *words, "--json").json["findings"]}


def sql(*statements: str, path: str = "jobs.db") -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_the_doctor_finds_a_working_store_well(shigoto: Command, store: Store) -> None:
    store.ended(Ending.COMPLETED)
    store.engine.run(store.engine.beat(store.worker, None))

    outcome = shigoto("doctor", "jobs.db", "--deep")
    found = diagnosis(shigoto, "jobs.db", "--deep")

    assert outcome.code == 0
    assert platform.python_version() in found["python"]["text"]
    assert sqlite3.sqlite_version in found["sqlite"]["text"]
    assert file.file_system(Path.cwd()) in found["file system"]["text"]
    for check in (
        "store",
        "permissions",
        "disk",
        "log",
        "journal",
        "integrity",
        "clock",
        "workers",
        "backlog",
    ):
        assert found[check]["level"] == "ok", found[check]


def test_a_job_has_waited_since_it_could_run_and_not_since_it_was_due(shigoto: Command, store: Store) -> None:
    """One may be due for a time before it was made, and one that was given back has run in between."""
    an_hour_ago = to_millis(datetime.now(UTC) - timedelta(hours=1))
    store.enqueue(run_at=an_hour_ago)
    found = diagnosis(shigoto, "jobs.db")
    assert found["backlog"]["level"] == "ok", found["backlog"]

    sql(f"UPDATE shigoto_job SET created_at = {an_hour_ago}")
    store.engine.run(store.engine.beat(store.worker, None))
    assert diagnosis(shigoto, "jobs.db")["backlog"]["level"] == "warning"

    store.settle(store.claim(), Ending.RELEASED)
    store.engine.run(store.engine.beat(store.worker, None))
    found = diagnosis(shigoto, "jobs.db")
    assert found["backlog"]["level"] == "ok", found["backlog"]


def test_looking_changes_nothing(shigoto: Command, store: Store) -> None:
    store.enqueue()
    store.engine.close()
    before = [(path.name, path.read_bytes()) for path in sorted(Path().iterdir())]

    assert shigoto("doctor", "jobs.db", "--deep").code == 0

    assert [(path.name, path.read_bytes()) for path in sorted(Path().iterdir())] == before


def test_somebody_elses_database_is_a_problem_and_stays_as_it_is(shigoto: Command) -> None:
    sql("CREATE TABLE mine (x)", path="other.db")

    outcome = shigoto("doctor", "other.db")

    assert outcome.code == 1
    assert "problem    store: " in outcome.out
    assert "Run `shigoto migrate`" in outcome.out
    connection = sqlite3.connect("other.db")
    assert connection.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]
    connection.close()


def test_a_file_that_is_no_database_is_a_problem(shigoto: Command) -> None:
    Path("text.db").write_text("no database" * 100)

    assert shigoto("doctor", "text.db").code == 1
    assert "is not an SQLite database" in diagnosis(shigoto, "text.db")["store"]["text"]


def test_a_store_on_a_network_is_a_problem(
    shigoto: Command, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "file_system", lambda folder: "nfs4")

    found = diagnosis(shigoto, "jobs.db")

    assert found["store"]["level"] == "problem"
    assert "network file system (nfs4)" in found["store"]["text"]
    assert "nfs4" in found["file system"]["text"]


def test_damage_is_found_in_the_file(shigoto: Command, store: Store) -> None:
    for _ in range(300):
        store.enqueue(payload=json.dumps({"to": "x" * 500}))
    store.engine.close()
    connection = sqlite3.connect("jobs.db")
    [root] = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'shigoto_job_by_id'"
    ).fetchone()
    [size] = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with Path("jobs.db").open("r+b") as opened:
        opened.seek((root - 1) * size)
        opened.write(b"\x00" * size)

    found = diagnosis(shigoto, "jobs.db", "--deep")

    assert shigoto("doctor", "jobs.db", "--deep").code == 1
    assert "integrity" not in diagnosis(shigoto, "jobs.db")
    assert found["integrity"]["level"] == "problem"


def test_another_journal_mode_is_a_problem(shigoto: Command, store: Store) -> None:
    store.engine.close()
    sql("PRAGMA journal_mode = delete")

    assert diagnosis(shigoto, "jobs.db")["journal"]["level"] == "problem"


def test_remedies_that_are_commands_name_the_store_as_the_doctor_was_told_it(
    shigoto: Command, store: Store
) -> None:
    store.enqueue()
    store.settle(store.claim(), Ending.FAILED, failure_kind=FailureKind.CRASH_LOOP)
    store.enqueue(queue="idle")
    store.engine.run(store.engine.configure(QueueSettings(name="idle", paused=True)))
    store.enqueue()
    store.engine.run(store.engine.leave(store.worker))

    by_word, by_flag = diagnosis(shigoto, "jobs.db"), diagnosis(shigoto, "--url", "./jobs.db")

    assert by_word["workers"]["remedy"] == "Start one: shigoto worker jobs.db."
    assert by_flag["workers"]["remedy"] == "Start one: shigoto --url ./jobs.db worker."
    assert by_word["queues"]["remedy"] == "shigoto resume jobs.db idle lets them run."
    assert "shigoto list jobs.db --kind crash_loop names them" in by_word["quarantine"]["remedy"]
    assert "then shigoto --url ./jobs.db redrive --kind crash_loop." in by_flag["quarantine"]["remedy"]


def test_fewer_syncs_are_noted(shigoto: Command, store: Store) -> None:
    assert diagnosis(shigoto, "sqlite:///jobs.db?synchronous=normal")["journal"]["level"] == "note"


def test_a_long_log_is_warned_of(shigoto: Command, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.enqueue()
    monkeypatch.setattr(doctor_checks, "LONG_LOG", 100)

    assert Path("jobs.db-wal").stat().st_size > 100
    assert diagnosis(shigoto, "jobs.db")["log"]["level"] == "warning"


def test_rights_are_looked_at(shigoto: Command, store: Store) -> None:
    os.chmod("jobs.db", 0o666)

    found = diagnosis(shigoto, "jobs.db")["permissions"]

    assert found["level"] == "warning"
    assert found["text"].endswith("jobs.db.")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_folder_that_we_may_not_write_is_a_problem(shigoto: Command, store: Store) -> None:
    Path().chmod(0o500)
    try:
        assert diagnosis(shigoto, "jobs.db")["permissions"]["level"] == "problem"
    finally:
        Path().chmod(0o700)


def test_a_shared_folder_where_files_cannot_be_replaced_is_fine(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    assert look_at(folder / "jobs.db").exposed == (str(folder),)

    folder.chmod(0o777 | stat.S_ISVTX)
    assert look_at(folder / "jobs.db").exposed == ()


def test_what_is_not_there_can_be_looked_at(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "absent" / "jobs.db")

    found = engine.checkup()

    assert found.refusal == f"There is no such file: {tmp_path}/absent/jobs.db."
    assert found.file is not None
    assert (found.file.free, found.file.size, found.store) == (None, 0, None)
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_was_ahead_is_a_problem(shigoto: Command, store: Store) -> None:
    ahead = int(time.time() * 1_000) + 3_600_000
    sql(f"UPDATE shigoto_meta SET value = {ahead} WHERE name = 'clock'")

    assert diagnosis(shigoto, "jobs.db")["clock"]["level"] == "problem"
    assert shigoto("doctor", "jobs.db").code == 1


def test_work_that_nobody_does_is_found(shigoto: Command, store: Store) -> None:
    long_ago = int(time.time() * 1_000) - 3_600_000
    store.enqueue(run_at=long_ago)
    store.enqueue(task="unheard_of", run_at=long_ago)
    store.enqueue(queue="idle")
    store.engine.run(store.engine.configure(QueueSettings(name="idle", paused=True)))
    sql(f"UPDATE shigoto_job SET created_at = {long_ago}")

    found = diagnosis(shigoto, "jobs.db")
    assert found["tasks"]["level"] == "problem"
    assert "unheard_of in mail (1 job, for 60 min, nobody knows the task)" in found["tasks"]["text"]
    assert found["queues"]["text"] == "Jobs wait in paused queues: idle (1 job)."
    assert found["backlog"]["level"] == "warning"

    store.engine.run(store.engine.leave(store.worker))
    found = diagnosis(shigoto, "jobs.db")
    assert found["workers"]["level"] == "problem"
    assert found["workers"]["text"] == "No worker is alive, and 2 jobs could run."


def test_workers_that_are_gone_and_what_they_left_are_found(shigoto: Command, store: Store) -> None:
    store.enqueue()
    store.claim()
    sql("UPDATE shigoto_worker SET lease_until = 1")

    overdue = diagnosis(shigoto, "jobs.db")["workers"]
    assert overdue["level"] == "warning"
    assert "No sign of life from anvil" in overdue["text"]
    assert overdue["text"].endswith("; 1 job in hand.")

    sql("UPDATE shigoto_worker SET fenced_at = 2")
    assert diagnosis(shigoto, "jobs.db")["leases"]["level"] == "warning"


def test_suspects_and_quarantined_jobs_are_found(shigoto: Command, store: Store) -> None:
    store.enqueue()
    store.settle(store.claim(), Ending.CRASHED, delay=0)
    store.announce(tasks=("send", "burn"))
    for _ in range(2):
        store.enqueue(task="burn")
        store.settle(store.claim("burn"), Ending.FAILED, failure_kind=FailureKind.CRASH_LOOP)

    found = diagnosis(shigoto, "jobs.db")

    assert found["isolation"]["level"] == "warning"
    assert found["isolation"]["text"].startswith("1 job must run in a process of its own")
    assert found["quarantine"]["text"].startswith("2 jobs killed their process")
    store.announce(isolates=True)
    assert "isolation" not in diagnosis(shigoto, "jobs.db")


def test_more_quarantined_jobs_than_a_page_holds_are_counted() -> None:
    engine = MemoryEngine()
    many = Store(engine)
    for _ in range(101):
        many.enqueue()
        many.settle(many.claim(), Ending.FAILED, failure_kind=FailureKind.CRASH_LOOP)

    known = gather(engine, datetime.now(UTC), deep=False)

    assert (known.quarantined, known.checkup, known.engine) == (101, None, "memory")
    assert doctor_checks.quarantined_jobs(known) is not None


def test_the_exit_code_tells_programs_of_a_problem(shigoto: Command, store: Store) -> None:
    store.engine.close()
    sql("PRAGMA journal_mode = delete")

    outcome = shigoto("doctor", "jobs.db", "--json")

    assert outcome.code == 1
    assert {"check", "level", "text", "remedy"} == outcome.json["findings"][0].keys()
    assert cli.execute(["doctor", "--help"]) == 0


def test_jobs_without_a_due_time_are_no_lane(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db")
    later = JobSpec(id=uuid7(), task="send", queue="mail", payload="{}", delay=60_000)
    engine.run(engine.enqueue_many([later]))

    found = engine.checkup().store

    assert found is not None
    assert found.lanes == ()
    engine.close()


def test_the_doctor_reads_schedules_from_the_store(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "jobs.db")
    now = engine.now()
    text = written(Definition(recurrence=Cron("0 3 * * *", "Mars/Olympus")))
    for name, definition in (("nightly", written(Definition(recurrence=Every(1_000)))), ("tokyo", text)):
        late = schedule(name=name, look_at=now - 90_000, decided_to=now - 100_000, definition=definition)
        engine.run(engine.tick([Change(schedule=late, seen=0)]))

    overdue, unreadable = (
        finding
        for finding in examine(gather(engine, to_datetime(now), deep=False))
        if finding.check == "schedules"
    )

    assert overdue.text == "2 schedules are overdue: nightly (by 90 s), tokyo (by 90 s)."
    assert unreadable.text.startswith("1 schedule is not understood here")
    engine.close()
