"""The doctor: every check on made-up facts, and every check once on a real file."""

import json
import os
import platform
import sqlite3
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from msgspec import structs

from shigoto import cli
from shigoto.cli import doctor_checks, output
from shigoto.cli.doctor import examine, gather, report
from shigoto.cli.doctor_checks import DoctorFacts, Finding, Level
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.sqlite import SqliteEngine, file
from shigoto.engine.sqlite.checkup import look_at
from shigoto.model.checkup import Checkup, FileFacts, LaneFacts, StoreFacts
from shigoto.model.ids import uuid7
from shigoto.model.job import Counts, FailureKind, JobSpec, QueueSettings
from shigoto.model.time import to_millis
from shigoto.model.worker import Ending, WorkerRecord
from tests.unit.commands import Command, Store

NOW = datetime(2030, 5, 6, 12, tzinfo=UTC)
MIB = 1024 * 1024


def ago(**length: float) -> datetime:
    return NOW - timedelta(**length)


def file_facts(**changes: Any) -> FileFacts:
    fields: dict[str, Any] = {"path": "/data/jobs.db", "file_system": "ext4", "size": 5 * MIB}
    return FileFacts(**{**fields, "log_size": MIB, "free": 9_000 * MIB, **changes})


def inside(**changes: Any) -> StoreFacts:
    fields: dict[str, Any] = {
        "journal_mode": "wal",
        "synchronous": "full",
        "clock": to_millis(ago(seconds=2)),
    }
    return StoreFacts(**{**fields, **changes})


def lane(**changes: Any) -> LaneFacts:
    fields: dict[str, Any] = {"queue": "mail", "task": "send", "alone": False, "ready": 3}
    return LaneFacts(**{**fields, "oldest": ago(seconds=20), **changes})


def worker(**changes: Any) -> WorkerRecord:
    fields: dict[str, Any] = {"id": uuid7(), "name": "anvil", "tasks": ("send",), "queues": None, "slots": 4}
    fields |= {"version": "1.2", "host": "smithy", "pid": 4711, "isolates": True, "stopping": False}
    fields |= {"started_at": ago(hours=1), "lease_until": NOW + timedelta(seconds=20), "fenced_at": None}
    return WorkerRecord(**{**fields, "processing": 1, **changes})


def facts(
    *,
    version: str = "3.51.3",
    outside: FileFacts | None = None,
    store: StoreFacts | None = None,
    **changes: Any,
) -> DoctorFacts:
    checkup = Checkup(version=version, file=outside or file_facts(), store=store or inside())
    fields: dict[str, Any] = {"now": NOW, "python": "3.13.1", "engine": "sqlite", "checkup": checkup}
    return DoctorFacts(**{**fields, "workers": [worker()], **changes})


def refused(text: str) -> DoctorFacts:
    return structs.replace(
        facts(), checkup=Checkup(version="3.51.3", file=file_facts(), refusal=text), workers=[]
    )


def no_store() -> DoctorFacts:
    """What is known of an engine that does not look after itself."""
    return structs.replace(facts(), checkup=None, engine="other")


def level(finding: Finding | None) -> Level:
    assert finding is not None
    assert (finding.remedy is None) == (finding.level is Level.OK)
    return finding.level


# The checks, on made-up facts


def test_a_healthy_store_has_nothing_but_good_findings() -> None:
    found = examine(facts(store=inside(lanes=(lane(),), damage=())))

    assert {finding.level for finding in found} == {Level.OK}
    assert [finding.check for finding in found] == [
        *("python", "store", "sqlite", "file system", "permissions", "disk", "log", "journal", "integrity"),
        *("clock", "workers", "backlog"),
    ]
    assert all(finding.text.endswith(".") for finding in found)


def test_of_a_store_that_cannot_be_opened_only_its_surroundings_are_told() -> None:
    found = examine(refused("/data/jobs.db is damaged."))

    assert [finding.check for finding in found] == [
        *("python", "store", "sqlite", "file system", "permissions", "disk", "log")
    ]
    assert level(found[1]) is Level.PROBLEM
    assert found[1].text == "/data/jobs.db is damaged."


def test_an_engine_that_does_not_look_after_itself_gets_the_common_checks() -> None:
    known = structs.replace(
        no_store(),
        queues={"mail": Counts(pending=5, scheduled=2)},
        settings=[QueueSettings(name="mail", paused=True)],
        quarantined=1,
    )

    assert [finding.check for finding in examine(known)] == ["python", "workers", "queues", "quarantine"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.40.1", Level.NOTE),
        ("3.51.2", Level.NOTE),
        ("3.51.3", Level.OK),
        ("3.53.0", Level.OK),
        ("4.0.0", Level.OK),
    ],
)
def test_an_sqlite_with_the_wal_reset_bug_is_noted(version: str, expected: Level) -> None:
    finding = doctor_checks.version(facts(version=version))

    assert level(finding) is expected
    assert finding is not None
    assert version in finding.text
    if expected is Level.NOTE:
        assert "Shigoto's own checkpoints keep writers out." in finding.text
        assert "app.connect()" in str(finding.remedy)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("ext4", Level.OK), ("", Level.OK), ("overlay", Level.WARNING), ("tmpfs", Level.WARNING)],
)
def test_a_file_system_that_forgets_is_warned_of(kind: str, expected: Level) -> None:
    assert level(doctor_checks.file_system(facts(outside=file_facts(file_system=kind)))) is expected


def test_files_that_we_may_not_write_are_a_problem_and_those_that_all_may_a_warning() -> None:
    assert level(doctor_checks.permissions(facts(outside=file_facts(forbidden=("/data",))))) is Level.PROBLEM
    assert level(doctor_checks.permissions(facts(outside=file_facts(exposed=("/data",))))) is Level.WARNING


@pytest.mark.parametrize(
    ("free", "expected"), [(10 * MIB, Level.PROBLEM), (100 * MIB, Level.WARNING), (600 * MIB, Level.OK)]
)
def test_a_disk_that_fills_up_is_noticed(free: int, expected: Level) -> None:
    assert level(doctor_checks.space(facts(outside=file_facts(free=free)))) is expected


def test_a_disk_of_which_nothing_is_known_is_passed_over() -> None:
    assert doctor_checks.space(facts(outside=file_facts(free=None))) is None


@pytest.mark.parametrize(("size", "expected"), [(17 * MIB, Level.OK), (64 * MIB, Level.WARNING)])
def test_a_log_that_only_grows_is_warned_of(size: int, expected: Level) -> None:
    finding = doctor_checks.log(facts(outside=file_facts(log_size=size)))

    assert level(finding) is expected
    assert finding is not None
    if expected is Level.WARNING:  # from one look nobody can tell which
        assert "by one large commit, or because somebody reads" in finding.text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Level.OK),
        ({"journal_mode": "delete"}, Level.PROBLEM),
        ({"synchronous": "normal"}, Level.NOTE),
    ],
)
def test_how_safe_a_commit_is_is_told(changes: dict[str, Any], expected: Level) -> None:
    assert level(doctor_checks.journal(facts(store=inside(**changes)))) is expected


def test_damage_is_told_only_if_somebody_has_looked() -> None:
    assert doctor_checks.integrity(facts()) is None
    assert level(doctor_checks.integrity(facts(store=inside(damage=())))) is Level.OK
    found = doctor_checks.integrity(facts(store=inside(damage=("Page 5 is never used",))))
    assert level(found) is Level.PROBLEM
    assert found is not None
    assert "Page 5 is never used" in found.text


@pytest.mark.parametrize(
    ("lead", "expected", "text"),
    [
        (timedelta(hours=3), Level.PROBLEM, "a time that lies 3 h 0 min ahead of this machine's clock"),
        (timedelta(seconds=30), Level.WARNING, "for the next 30 s time stands still"),
        (timedelta(milliseconds=500), Level.OK, "agrees with this machine's."),
        (timedelta(seconds=-90), Level.OK, "and was last heard of 90 s ago"),
    ],
)
def test_a_clock_that_went_back_is_noticed(lead: timedelta, expected: Level, text: str) -> None:
    finding = doctor_checks.clock(facts(store=inside(clock=to_millis(NOW + lead))))

    assert level(finding) is expected
    assert finding is not None
    assert text in finding.text


def test_a_store_that_no_worker_has_used_has_no_clock() -> None:
    assert doctor_checks.clock(facts(store=inside(clock=0))) is None


@pytest.mark.parametrize(
    ("oldest", "expected"), [(ago(seconds=20), Level.WARNING), (ago(minutes=2), Level.PROBLEM)]
)
def test_work_without_workers_is_a_problem_once_it_has_waited(oldest: datetime, expected: Level) -> None:
    dead = facts(store=inside(lanes=(lane(oldest=oldest),)), workers=[worker(lease_until=ago(minutes=9))])

    finding = doctor_checks.live_workers(dead)

    assert level(finding) is expected
    assert finding is not None
    assert finding.text == "No worker is alive, and 3 jobs could run."


def test_work_in_a_paused_queue_needs_no_worker() -> None:
    paused = facts(
        store=inside(lanes=(lane(oldest=ago(hours=1)),)),
        workers=[],
        settings=[QueueSettings(name="mail", paused=True)],
        queues={"mail": Counts(pending=3), "other": Counts(pending=3)},
    )

    assert level(doctor_checks.live_workers(paused)) is Level.OK
    finding = doctor_checks.paused_queues(paused)
    assert level(finding) is Level.NOTE
    assert finding is not None
    assert finding.text == "Jobs wait in paused queues: mail (3 jobs)."


def test_where_only_counts_are_known_they_tell_of_work_without_workers() -> None:
    waiting = structs.replace(no_store(), workers=[], queues={"mail": Counts(pending=3, scheduled=1)})

    finding = doctor_checks.live_workers(waiting)

    assert level(finding) is Level.PROBLEM
    assert finding is not None
    assert "2 jobs could run" in finding.text
    assert level(doctor_checks.live_workers(structs.replace(waiting, queues={}))) is Level.OK


def test_a_worker_without_a_sign_of_life_is_warned_of() -> None:
    finding = doctor_checks.live_workers(facts(workers=[worker(lease_until=ago(seconds=40)), worker()]))

    assert level(finding) is Level.WARNING
    assert finding is not None
    assert finding.text == "No sign of life from anvil (by 40 s); 1 job in hand."
    assert "any live worker takes their jobs over" in str(finding.remedy)
    alone = doctor_checks.live_workers(facts(workers=[worker(lease_until=ago(seconds=40))]))
    assert alone is not None
    assert "start a worker" in str(alone.remedy)


def test_jobs_of_workers_that_are_gone_are_told() -> None:
    assert doctor_checks.orphaned_jobs(facts()) is None
    assert level(doctor_checks.orphaned_jobs(facts(store=inside(orphans=2)))) is Level.NOTE
    assert level(doctor_checks.orphaned_jobs(facts(store=inside(orphans=2), workers=[]))) is Level.WARNING


def test_jobs_that_no_live_worker_would_take_are_told_with_the_reason() -> None:
    lanes = (
        lane(task="sand", oldest=ago(minutes=2), ready=1),
        lane(queue="slow", oldest=ago(minutes=1)),
        lane(),
    )

    finding = doctor_checks.unserved_lanes(
        facts(store=inside(lanes=lanes), workers=[worker(queues=("mail",))])
    )

    assert level(finding) is Level.WARNING
    assert finding is not None
    assert finding.text == (
        "No live worker takes sand in mail (1 job, for 2 min, nobody knows the task),"
        " send in slow (3 jobs, for 60 s, no worker takes that queue)."
    )


def test_jobs_that_nobody_has_taken_for_long_are_a_problem() -> None:
    lanes = tuple(lane(task=f"task{number}", oldest=ago(hours=2)) for number in range(7))

    finding = doctor_checks.unserved_lanes(facts(store=inside(lanes=lanes)))

    assert level(finding) is Level.PROBLEM
    assert finding is not None
    assert finding.text.endswith(" and 2 more.")
    assert doctor_checks.unserved_lanes(facts(store=inside(lanes=lanes), workers=[])) is None


def test_suspects_that_no_live_worker_can_isolate_are_warned_of() -> None:
    store = inside(lanes=(lane(alone=True), lane()))

    assert (
        level(doctor_checks.isolated_jobs(facts(store=store, workers=[worker(isolates=False)])))
        is Level.WARNING
    )
    assert doctor_checks.isolated_jobs(facts(store=store)) is None
    assert doctor_checks.isolated_jobs(facts(store=store, workers=[])) is None
    assert doctor_checks.isolated_jobs(facts(workers=[worker(isolates=False)])) is None
    elsewhere = worker(tasks=("other",))
    assert level(doctor_checks.isolated_jobs(facts(store=store, workers=[worker(isolates=False), elsewhere])))
    assert doctor_checks.isolated_jobs(facts(store=store, workers=[elsewhere])) is None


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "1 job must run in a process of its own, because"),
        (2, "2 jobs must run in a process of their own, because"),
    ],
)
def test_one_is_not_many(count: int, text: str) -> None:
    lanes = (lane(alone=True, ready=count),)
    finding = doctor_checks.isolated_jobs(facts(store=inside(lanes=lanes), workers=[worker(isolates=False)]))

    assert finding is not None
    assert finding.text.startswith(text)
    put_away = doctor_checks.quarantined_jobs(facts(quarantined=count))
    assert put_away is not None
    assert put_away.text == (
        "1 job killed its process again and again, and was put away."
        if count == 1
        else "2 jobs killed their process again and again, and were put away."
    )


def test_quarantined_jobs_are_told_with_the_way_out() -> None:
    finding = doctor_checks.quarantined_jobs(facts(quarantined=2))

    assert level(finding) is Level.WARNING
    assert finding is not None
    assert "shigoto redrive --kind crash_loop" in str(finding.remedy)


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


def test_workers_that_do_not_keep_up_are_noticed() -> None:
    late = inside(lanes=(lane(), lane(queue="slow", oldest=ago(minutes=12))))

    finding = doctor_checks.backlog(facts(store=late))

    assert level(finding) is Level.WARNING
    assert finding is not None
    assert finding.text == "A job of send in slow has been ready for 12 min."
    assert level(doctor_checks.backlog(facts(store=late, workers=[worker(queues=("mail",))]))) is Level.OK


@pytest.mark.parametrize("width", [40, 80, None])
def test_a_report_fits_the_terminal_and_sums_up(width: int | None) -> None:
    found = examine(facts(version="3.40.1", outside=file_facts(free=MIB), store=inside(synchronous="normal")))

    lines = [click.unstyle(line) for line in report(found, width)]

    assert lines[-1] == "1 problem, 2 notes."
    assert any(line.startswith("           → ") for line in lines)
    if width is not None:
        assert max(output.cells(line) for line in lines) <= width
    assert report([], width)[-1] == "All is well."


# The checks, on a real file


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
    assert level(doctor_checks.quarantined_jobs(known)) is Level.WARNING


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
