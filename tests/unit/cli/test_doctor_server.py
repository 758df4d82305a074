"""What the doctor makes of a server: every check on made-up facts."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shigoto.cli import doctor_checks, doctor_postgres
from shigoto.cli.doctor import examine
from shigoto.cli.doctor_checks import DoctorFacts, Finding, Level
from shigoto.model.checkup import Checkup, HolderFacts, ServerFacts, StoreFacts, TableFacts
from shigoto.model.ids import uuid7
from shigoto.model.time import to_millis
from shigoto.model.worker import WorkerRecord

NOW = datetime(2030, 5, 6, 12, tzinfo=UTC)
SAFE = {
    "server_encoding": "UTF8",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "track_counts": "on",
    "statement_timeout": "1min",
    "idle_in_transaction_session_timeout": "1min",
}
Check = Callable[[DoctorFacts], Finding | None]


def server(**changes: Any) -> ServerFacts:
    fields: dict[str, Any] = {"number": 180_001, "now": NOW, "skew": 0.01, "doubt": 0.001, "role": "hand"}
    fields |= {"superuser": False, "owner": False, "bypasses": False, "standby": False, "settings": SAFE}
    return ServerFacts(
        **{**fields, "places": 97, "used": 5, "most": 25, "heard": True, "size": 2**20, **changes}
    )


def facts(*, clock: int | None = None, workers: int = 1, **changes: Any) -> DoctorFacts:
    return DoctorFacts(
        now=NOW,
        python="3.13.1",
        engine="postgres",
        checkup=Checkup(
            name="postgresql://hand:***@db/shop",
            version="18.1",
            server=server(**changes),
            store=StoreFacts(clock=to_millis(NOW) if clock is None else clock),
        ),
        workers=[worker() for _ in range(workers)],
    )


def worker() -> WorkerRecord:
    fields: dict[str, Any] = {"id": uuid7(), "name": "anvil", "tasks": ("send",), "queues": None, "slots": 4}
    fields |= {"version": "1.2", "host": "smithy", "pid": 4711, "isolates": True, "stopping": False}
    fields |= {"started_at": NOW, "lease_until": NOW + timedelta(seconds=20), "fenced_at": None}
    return WorkerRecord(**fields, processing=1)


def table(**changes: Any) -> TableFacts:
    fields: dict[str, Any] = {
        "name": "ready",
        "live": 10,
        "dead": 10,
        "vacuumed_at": NOW - timedelta(hours=3),
    }
    return TableFacts(**{**fields, "autovacuum": True, "busy": True, **changes})


def test_all_is_well_where_nothing_is_wrong() -> None:
    found = examine(facts(tables=(table(),)))

    assert {finding.level for finding in found} == {Level.OK}
    assert not {"sqlite", "file system", "permissions", "disk", "log", "journal"} & {
        each.check for each in found
    }
    assert doctor_checks.store(facts()) == Finding(
        check="store", level=Level.OK, text="postgresql://hand:***@db/shop is up to date and has 1.0 MiB."
    )


@pytest.mark.parametrize(
    ("check", "changes", "level", "text"),
    [
        (doctor_postgres.version, {"number": 130_010}, Level.PROBLEM, "PostgreSQL"),
        (doctor_postgres.version, {"number": 190_000}, Level.NOTE, "PostgreSQL"),
        (doctor_postgres.role, {"superuser": True}, Level.WARNING, "is a superuser"),
        (doctor_postgres.role, {"owner": True}, Level.WARNING, "owns the schema"),
        (doctor_postgres.role, {"bypasses": True}, Level.WARNING, "Row security does not apply"),
        (doctor_postgres.role, {"rights": ("job: SELECT",)}, Level.PROBLEM, "lacks rights: job: SELECT"),
        (
            doctor_postgres.encoding,
            {"settings": SAFE | {"server_encoding": "LATIN1"}},
            Level.PROBLEM,
            "The encoding of the database is LATIN1",
        ),
        (doctor_postgres.encoding, {}, Level.OK, "UTF8"),
        (doctor_postgres.standby, {"standby": True}, Level.PROBLEM, "is a standby"),
        (doctor_postgres.clock, {"skew": 5.0}, Level.NOTE, "5.0 s ahead of this machine's"),
        (doctor_postgres.clock, {"skew": -120.0}, Level.WARNING, "2 min behind this machine's"),
        (doctor_postgres.clock, {"skew": 1.5, "doubt": 1.0}, Level.OK, "agrees"),
        (
            doctor_postgres.clock,
            {"clock": to_millis(NOW) + 90_000},
            Level.PROBLEM,
            "90 s ahead of the server's",
        ),
        (doctor_postgres.durability, {"settings": SAFE | {"fsync": "off"}}, Level.PROBLEM, "fsync is off"),
        (
            doctor_postgres.durability,
            {"settings": SAFE | {"synchronous_commit": "off"}},
            Level.WARNING,
            "moments",
        ),
        (
            doctor_postgres.autovacuum,
            {"settings": SAFE | {"track_counts": "off"}},
            Level.PROBLEM,
            "track_counts is off",
        ),
        (doctor_postgres.autovacuum, {"tables": (table(autovacuum=False),)}, Level.PROBLEM, "off for ready"),
        (
            doctor_postgres.dead_rows,
            {"tables": (table(dead=200_000),)},
            Level.WARNING,
            "200000 in ready (last vacuumed 3 h",
        ),
        (
            doctor_postgres.dead_rows,
            {"tables": (table(dead=200_000, busy=False, vacuumed_at=None),)},
            Level.WARNING,
            "never vacuumed",
        ),
        (
            doctor_postgres.dead_rows,
            {"tables": (table(dead=200_000, live=10**6, busy=False),)},
            Level.OK,
            "in time",
        ),
        (doctor_postgres.indexes, {"missing": ("job_by_id",)}, Level.PROBLEM, "Missing: job_by_id"),
        (doctor_postgres.indexes, {"invalid": ("a", "b", "c", "d")}, Level.PROBLEM, "a, b, c and 1 more"),
        (doctor_postgres.connections, {"used": 90}, Level.WARNING, "soon nobody can connect"),
        (doctor_postgres.connections, {"workers": 3}, Level.WARNING, "100 in all, and there are 97."),
        (doctor_postgres.connections, {"limit": 20}, Level.WARNING, "there are 20 for this role"),
        (doctor_postgres.pooler, {"pooled": True}, Level.OK, "A pooler is in between"),
        (doctor_postgres.pooler, {"pooled": True, "prepares": True}, Level.PROBLEM, "prepare=on"),
        (doctor_postgres.doorbell, {"heard": None}, Level.NOTE, "listen=off"),
        (doctor_postgres.doorbell, {"heard": False, "pooled": True}, Level.WARNING, "through this pooler"),
        (doctor_postgres.doorbell, {"queue": 0.6}, Level.WARNING, "full by 60%"),
        (doctor_postgres.doorbell, {"queue": 0.9}, Level.PROBLEM, "full by 90%"),
        (
            doctor_postgres.timeouts,
            {"settings": SAFE | {"idle_in_transaction_session_timeout": "0"}},
            Level.NOTE,
            "keeps its locks for ever",
        ),
    ],
)
def test_what_is_wrong_is_said(check: Check, changes: dict[str, Any], level: Level, text: str) -> None:
    found = check(facts(**changes))

    assert found is not None
    assert found.level is level
    assert text in found.text
    assert found.remedy or level in (Level.OK, Level.NOTE)


@pytest.mark.parametrize(
    ("holder", "level", "remedy"),
    [
        (HolderFacts(kind="session", name="process 1", seconds=200.0), Level.OK, ""),
        (HolderFacts(kind="session", name="process 1", seconds=400.0), Level.WARNING, "pg_terminate_backend"),
        (HolderFacts(kind="session", name="process 1", seconds=90.0, idle=True), Level.WARNING, "Mend"),
        (HolderFacts(kind="session", name="process 1", seconds=90_000.0), Level.PROBLEM, "Mend"),
        (
            HolderFacts(kind="prepared", name="gid", seconds=90.0, idle=True),
            Level.WARNING,
            "ROLLBACK PREPARED",
        ),
        (HolderFacts(kind="slot", name="slot", idle=True), Level.WARNING, "pg_drop_replication_slot"),
        (HolderFacts(kind="slot", name="slot"), Level.OK, ""),
    ],
)
def test_who_keeps_dead_rows_is_named(holder: HolderFacts, level: Level, remedy: str) -> None:
    found = doctor_postgres.holders(facts(holders=(holder,)))

    assert found is not None
    assert found.level is level
    assert remedy in (found.remedy or "")
    assert (holder.name in found.text) == (level is not Level.OK)


def test_what_could_not_be_seen_is_said() -> None:
    found = doctor_postgres.holders(facts(unseen=2, hidden=("replication slots",)))

    assert found is not None
    assert found.level is Level.NOTE
    assert "2 sessions of others, replication slots" in found.text
    assert "pg_read_all_stats" in (found.remedy or "")


def test_a_server_that_was_never_reached_has_no_findings_of_its_own() -> None:
    nobody = DoctorFacts(
        now=NOW,
        python="3.13.1",
        engine="postgres",
        checkup=Checkup(name="x", version="", refusal="It is gone."),
    )

    assert [finding.check for finding in examine(nobody)] == ["python", "store"]
