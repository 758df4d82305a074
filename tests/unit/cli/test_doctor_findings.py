"""Every check of the doctor on made-up facts. tests/unit/cli/snapshots/doctor.txt holds the findings."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from msgspec import structs

from shigoto.cli import doctor_checks, doctor_postgres, output
from shigoto.cli.confirm import SHOWN
from shigoto.cli.doctor import examine, report
from shigoto.cli.doctor_checks import DoctorFacts, Finding, Level
from shigoto.model.checkup import (
    Checkup,
    FileFacts,
    HolderFacts,
    LaneFacts,
    ServerFacts,
    StoreFacts,
    TableFacts,
)
from shigoto.model.ids import uuid7
from shigoto.model.job import Counts, QueueSettings
from shigoto.model.schedule import Schedule
from shigoto.model.time import to_millis
from shigoto.model.worker import WorkerRecord
from tests.unit.cli.pages import SnapshotCheck

NOW = datetime(2030, 5, 6, 12, tzinfo=UTC)
MIB = 1024 * 1024
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
Findings = Sequence[Finding | None]


def ago(**length: float) -> datetime:
    return NOW - timedelta(**length)


def file_facts(**changes: Any) -> FileFacts:
    fields: dict[str, Any] = {"path": "/data/jobs.db", "file_system": "ext4", "size": 5 * MIB}
    return FileFacts(**{**fields, "log_size": MIB, "free": 9_000 * MIB, **changes})


def inside(**changes: Any) -> StoreFacts:
    fields: dict[str, Any] = {"journal_mode": "wal", "synchronous": "full"}
    return StoreFacts(**{**fields, "clock": to_millis(ago(seconds=2)), **changes})


def lane(**changes: Any) -> LaneFacts:
    fields: dict[str, Any] = {"queue": "mail", "task": "send", "alone": False, "ready": 3}
    return LaneFacts(**{**fields, "oldest": ago(seconds=20), **changes})


def worker(**changes: Any) -> WorkerRecord:
    fields: dict[str, Any] = {"id": uuid7(), "name": "anvil", "tasks": ("send",), "queues": None, "slots": 4}
    fields |= {"version": "1.2", "host": "smithy", "pid": 4711, "isolates": True, "stopping": False}
    fields |= {"started_at": ago(hours=1), "lease_until": NOW + timedelta(seconds=20), "fenced_at": None}
    return WorkerRecord(**{**fields, "processing": 1, **changes})


def facts(
    *, version: str = "3.51.3", file: FileFacts | None = None, store: StoreFacts | None = None, **changes: Any
) -> DoctorFacts:
    """What is known of a file."""
    checkup = Checkup(version=version, file=file or file_facts(), store=store or inside())
    fields: dict[str, Any] = {"now": NOW, "python": "3.13.1", "engine": "sqlite", "checkup": checkup}
    return DoctorFacts(**{**fields, "workers": [worker()], **changes})


def waiting(*lanes: LaneFacts, **changes: Any) -> DoctorFacts:
    """What is known of a file with jobs that could run."""
    return facts(store=inside(lanes=lanes or (lane(),)), **changes)


def no_store(**changes: Any) -> DoctorFacts:
    """What is known of an engine that does not look after itself."""
    return structs.replace(facts(), checkup=None, engine="other", **changes)


def at_server(*, clock: int | None = None, workers: int = 1, **changes: Any) -> DoctorFacts:
    """What is known of a database on a server."""
    fields: dict[str, Any] = {"number": 180_001, "now": NOW, "skew": 0.01, "doubt": 0.001, "role": "hand"}
    fields |= {"superuser": False, "owner": False, "bypasses": False, "standby": False, "settings": SAFE}
    fields |= {"places": 97, "used": 5, "most": 25, "heard": True, "size": 2**20}
    checkup = Checkup(
        name="postgresql://hand:***@db/shop",
        version="18.1",
        server=ServerFacts(**{**fields, **changes}),
        store=StoreFacts(clock=to_millis(NOW) if clock is None else clock),
    )
    return facts(engine="postgres", workers=[worker() for _ in range(workers)], checkup=checkup)


def setting(name: str, value: str) -> DoctorFacts:
    return at_server(settings=SAFE | {name: value})


def table(**changes: Any) -> TableFacts:
    fields: dict[str, Any] = {"name": "ready", "live": 10, "dead": 10, "vacuumed_at": ago(hours=3)}
    return TableFacts(**{**fields, "autovacuum": True, "busy": True, **changes})


def holder(kind: Any, name: str, **changes: Any) -> Finding | None:
    return doctor_postgres.holders(at_server(holders=(HolderFacts(kind=kind, name=name, **changes),)))


def schedule(**changes: Any) -> Schedule:
    usual: dict[str, Any] = {"id": uuid7(), "name": "nightly", "definition": "{}"}
    usual |= {"look_at": to_millis(NOW + timedelta(seconds=30)), "created_at": to_millis(ago(days=1))}
    return Schedule(**(usual | {"decided_to": to_millis(ago(hours=1))} | changes))


def overdue(**changes: Any) -> Schedule:
    return schedule(**({"look_at": to_millis(ago(minutes=5))} | changes))


def declared(**changes: Any) -> Schedule:
    return schedule(**({"origin": "shop:nightly", "declared_at": to_millis(ago(seconds=40))} | changes))


def scheduled(*schedules: Schedule, **changes: Any) -> Findings:
    """What is found of schedules, of which nothing is said if they are in order."""
    found = examine(facts(schedules=list(schedules), **changes))
    return [finding for finding in found if finding.check == "schedules"] or [None]


def page(findings: Findings) -> str:
    lines: list[str] = []
    for finding in findings:
        if finding is None:
            lines.append("nothing to say")
            continue
        lines.append(f"{finding.level:<8} {finding.check}: {finding.text}")
        lines += [f"         → {finding.remedy}"] if finding.remedy else []
    return "\n".join(lines)


def of_a_file() -> dict[str, Findings]:
    checks = doctor_checks
    paused = waiting(
        lane(oldest=ago(hours=1)),
        workers=[],
        settings=[QueueSettings(name="mail", paused=True)],
        queues={"mail": Counts(pending=3), "other": Counts(pending=3)},
    )
    counted = no_store(workers=[], queues={"mail": Counts(pending=3, scheduled=1)})
    refused = Checkup(version="3.51.3", file=file_facts(), refusal="/data/jobs.db is damaged.")
    unserved = (lane(task="sand", oldest=ago(minutes=2), ready=1), lane(queue="slow", oldest=ago(minutes=1)))
    many = [lane(task=f"task{number}", oldest=ago(hours=2)) for number in range(7)]
    bound, elsewhere = worker(isolates=False), worker(tasks=("other",))
    late = (lane(), lane(queue="slow", oldest=ago(minutes=12)))
    return {
        "A healthy store has nothing but good findings": examine(
            facts(store=inside(lanes=(lane(),), damage=()))
        ),
        "Of a store that cannot be opened only its surroundings are told": examine(
            facts(checkup=refused, workers=[])
        ),
        "An engine that does not look after itself gets the common checks": examine(
            no_store(
                queues={"mail": Counts(pending=5, scheduled=2)},
                settings=[QueueSettings(name="mail", paused=True)],
                quarantined=1,
            )
        ),
        "An SQLite with the WAL-reset bug is noted": [
            checks.version(facts(version=version))
            for version in ("3.40.1", "3.51.2", "3.51.3", "3.53.0", "4.0.0")
        ],
        "A file system that forgets is warned of": [
            checks.file_system(facts(file=file_facts(file_system=kind)))
            for kind in ("ext4", "", "overlay", "tmpfs")
        ],
        "Files that we may not write are a problem, and those that all may a warning": [
            checks.permissions(facts(file=file_facts(forbidden=("/data",)))),
            checks.permissions(facts(file=file_facts(exposed=("/data",)))),
        ],
        "A disk that fills up is noticed, and one of which nothing is known is passed over": [
            checks.space(facts(file=file_facts(free=free))) for free in (10 * MIB, 100 * MIB, 600 * MIB, None)
        ],
        "A log that only grows is warned of": [
            checks.log(facts(file=file_facts(log_size=size))) for size in (17 * MIB, 64 * MIB)
        ],
        "How safe a commit is is told": [
            checks.journal(facts(store=inside(**changes)))
            for changes in ({}, {"journal_mode": "delete"}, {"synchronous": "normal"})
        ],
        "Damage is told only if somebody has looked": [
            checks.integrity(facts(store=inside(**changes)))
            for changes in ({}, {"damage": ()}, {"damage": ("Page 5 is never used",)})
        ],
        "A clock that went back is noticed": [
            checks.clock(facts(store=inside(clock=to_millis(NOW + timedelta(seconds=lead)))))
            for lead in (10_800, 30, 0.5, -90)
        ],
        "A store that no worker has used has no clock": [checks.clock(facts(store=inside(clock=0)))],
        "Work without workers is a problem once it has waited": [
            checks.live_workers(waiting(lane(oldest=oldest), workers=[worker(lease_until=ago(minutes=9))]))
            for oldest in (ago(seconds=20), ago(minutes=2))
        ],
        "Work in a paused queue needs no worker": [checks.live_workers(paused), checks.paused_queues(paused)],
        "Where only counts are known they tell of work without workers": [
            checks.live_workers(counted),
            checks.live_workers(structs.replace(counted, queues={})),
        ],
        "A worker without a sign of life is warned of": [
            checks.live_workers(facts(workers=[worker(lease_until=ago(seconds=40)), *others]))
            for others in ([worker()], [])
        ],
        "Jobs of workers that are gone are told": [
            checks.orphaned_jobs(facts()),
            checks.orphaned_jobs(facts(store=inside(orphans=2))),
            checks.orphaned_jobs(facts(store=inside(orphans=2), workers=[])),
        ],
        "Jobs that no live worker would take are told with the reason": [
            checks.unserved_lanes(waiting(*unserved, lane(), workers=[worker(queues=("mail",))]))
        ],
        "Jobs that nobody has taken for long are a problem": [
            checks.unserved_lanes(waiting(*many)),
            checks.unserved_lanes(waiting(*many, workers=[])),
        ],
        "Suspects that no live worker can isolate are warned of": [
            checks.isolated_jobs(waiting(lane(alone=True), lane(), workers=workers))
            for workers in ([bound], [worker()], [], [bound, elsewhere], [elsewhere])
        ],
        "Without a suspect no worker needs to isolate": [checks.isolated_jobs(facts(workers=[bound]))],
        "One is not many": [
            checks.isolated_jobs(waiting(lane(alone=True, ready=1), workers=[bound])),
            checks.isolated_jobs(waiting(lane(alone=True, ready=2), workers=[bound])),
            checks.quarantined_jobs(facts(quarantined=1)),
            checks.quarantined_jobs(facts(quarantined=2)),
        ],
        "Workers that do not keep up are noticed": [
            checks.backlog(waiting(*late)),
            checks.backlog(waiting(*late, workers=[worker(queues=("mail",))])),
        ],
    }


def of_a_server() -> dict[str, Findings]:
    checks = doctor_postgres
    full = table(dead=200_000)
    never_reached = facts(
        engine="postgres", workers=[], checkup=Checkup(name="x", version="", refusal="It is gone.")
    )
    return {
        "All is well on a server where nothing is wrong": examine(at_server(tables=(table(),))),
        "A server that was never reached has no findings of its own": examine(never_reached),
        "A version that is too old is a problem, and one that is too new a note": [
            checks.version(at_server(number=number)) for number in (130_010, 190_000)
        ],
        "A role with too many or too few rights is told": [
            checks.role(at_server(**changes))
            for changes in (
                {"superuser": True},
                {"owner": True},
                {"bypasses": True},
                {"rights": ("job: SELECT",)},
            )
        ],
        "The encoding must be UTF-8": [checks.encoding(setting("server_encoding", "LATIN1"))],
        "A standby takes no jobs": [checks.standby(at_server(standby=True))],
        "The clock of the server is compared with this machine's and with the store's": [
            checks.clock(at_server(skew=5.0)),
            checks.clock(at_server(skew=-120.0)),
            checks.clock(at_server(skew=1.5, doubt=1.0)),
            checks.clock(at_server(clock=to_millis(NOW) + 90_000)),
        ],
        "Settings that lose commits are told": [
            checks.durability(setting("fsync", "off")),
            checks.durability(setting("synchronous_commit", "off")),
        ],
        "Without autovacuum there is a problem": [
            checks.autovacuum(setting("track_counts", "off")),
            checks.autovacuum(at_server(tables=(table(autovacuum=False),))),
        ],
        "Dead rows are warned of, if they are many beside the live ones": [
            checks.dead_rows(at_server(tables=(each,)))
            for each in (
                full,
                structs.replace(full, busy=False, vacuumed_at=None),
                structs.replace(full, live=10**6, busy=False),
            )
        ],
        "Indexes that are missing or invalid are a problem": [
            checks.indexes(at_server(missing=("job_by_id",))),
            checks.indexes(at_server(invalid=("a", "b", "c", "d"))),
        ],
        "Connections that run short are warned of": [
            checks.connections(at_server(**changes))
            for changes in ({"used": 90}, {"workers": 3}, {"limit": 20})
        ],
        "A pooler must not get prepared statements": [
            checks.pooler(at_server(pooled=True)),
            checks.pooler(at_server(pooled=True, prepares=True)),
        ],
        "A doorbell that is not heard is told": [
            checks.doorbell(at_server(**changes))
            for changes in ({"heard": None}, {"heard": False, "pooled": True}, {"queue": 0.6}, {"queue": 0.9})
        ],
        "Sessions without a limit of time are noted": [
            checks.timeouts(setting("idle_in_transaction_session_timeout", "0"))
        ],
        "What keeps dead rows is named": [
            holder("session", "process 1", seconds=200.0),
            holder("session", "process 1", seconds=400.0),
            holder("session", "process 1", seconds=90.0, idle=True),
            holder("session", "process 1", seconds=90_000.0),
            holder("prepared", "gid", seconds=90.0, idle=True),
            holder("slot", "slot", idle=True),
            holder("slot", "slot"),
        ],
        "What could not be seen is said": [
            checks.holders(at_server(unseen=2, hidden=("replication slots",)))
        ],
    }


def of_schedules() -> dict[str, Findings]:
    late = [overdue(name=f"s{n}", look_at=to_millis(ago(minutes=n))) for n in range(2, 40)]
    gone = declared(declared_at=to_millis(ago(minutes=3)), look_at=to_millis(ago(minutes=2)))
    left = declared(declared_at=to_millis(ago(hours=3)), look_at=to_millis(ago(hours=2)))
    unreadable = {"nightly": "This system does not know the time zone 'Mars/Olympus'."}
    return {
        "Schedules that are in order are not worth a word": [
            *scheduled(),
            *scheduled(
                schedule(),
                declared(),
                schedule(look_at=None),
                schedule(paused_at=1),
                schedule(look_at=to_millis(ago(seconds=59))),
            ),
        ],
        "A schedule that has failed is a problem and its error is told": scheduled(
            declared(failed=True, look_at=None, errors=6, error="ConnectionError: no host"), schedule()
        ),
        f"Of schedules that are overdue {SHOWN} are named": scheduled(*late),
        "An overdue schedule without a worker needs one": scheduled(overdue(), workers=[]),
        "A schedule whose code is gone is a warning and not overdue": scheduled(gone),
        "Without a worker what is declared is overdue and not gone": [
            *scheduled(left, workers=[worker(lease_until=ago(seconds=5))]),
            *scheduled(left, workers=[]),
        ],
        "A schedule that nobody here understands is told with what to do, and not as overdue": [
            *scheduled(overdue(), schedule(name="sound"), unreadable=unreadable),
            *scheduled(schedule(), unreadable=unreadable),
            *scheduled(schedule(look_at=None), unreadable=unreadable),
        ],
    }


def test_what_the_doctor_finds_is_said_in_these_words(snapshot: SnapshotCheck) -> None:
    """S4-14: a schedule that has failed, is overdue or is not understood is told, and never silence."""
    found = of_a_file() | of_a_server() | of_schedules()

    snapshot("doctor", {title: page(findings) for title, findings in found.items()})


def test_whatever_is_wrong_has_a_remedy_and_whatever_is_well_has_none() -> None:
    for findings in (of_a_file() | of_a_server() | of_schedules()).values():
        for finding in filter(None, findings):
            assert finding.text.endswith(".") or finding.level is not Level.OK
            if finding.level is not Level.NOTE:
                assert (finding.remedy is None) == (finding.level is Level.OK), finding


@pytest.mark.parametrize("width", [40, 80, None])
def test_a_report_fits_the_terminal_and_sums_up(width: int | None) -> None:
    found = examine(facts(version="3.40.1", file=file_facts(free=MIB), store=inside(synchronous="normal")))

    lines = [click.unstyle(line) for line in report(found, width)]

    assert lines[-1] == "1 problem, 2 notes."
    assert any(line.startswith("           → ") for line in lines)
    if width is not None:
        assert max(output.cells(line) for line in lines) <= width
    assert report([], width)[-1] == "All is well."
