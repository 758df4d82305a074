"""Jobs of every kind, for tests that move, export and import them."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from shigoto.engine.movable import mover_of
from shigoto.engine.protocol import Engine
from shigoto.model.ids import uuid7
from shigoto.model.job import FailureKind, Job, JobFilter, JobSpec, Lease, LogLine, QueueSettings, State
from shigoto.model.record import AttemptRecord, JobRecord, LineRecord
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.worker import Announcement, Ending, LogTail, Report, Settlement, SweepOrder, Verdict, Want

NOW = 1_700_000_000_000
LONG_AGO, LATER = NOW - 86_400_000, 4_000_000_000_000
HUGE = '{"text":"' + "ü" * 700_000 + '"}'
ODD = "tab\t, line\nbreak\r, back\\slash, \\N, \\., quote'\", 仕事 🎌"


def record(number: int, state: State, **more: Any) -> JobRecord:
    """One job with little about it."""
    fields: dict[str, Any] = {
        "number": number,
        "id": UUID(int=number),
        "task": "send",
        "queue": "mail",
        "state": state,
        "payload": '{"to": 7.10}',
        "created_at": LONG_AGO,
        "run_at": LONG_AGO,
        "max_failures": 6,
        "max_crashes": 3,
    }
    if state.terminal:
        fields |= {"token": 1, "settled_token": 1, "started_at": LONG_AGO + 5, "finished_at": LONG_AGO + 9}
    return JobRecord(**(fields | more))


def every_kind() -> list[JobRecord]:
    """Jobs of every state, with everything that a job can have."""
    run = AttemptRecord(
        token=1, outcome="errored", error=ODD, traceback=ODD, started_at=LONG_AGO, finished_at=NOW
    )
    lines = tuple(
        LineRecord(token=1, line=line, at=NOW, level="INFO", text=f"{ODD} {line}") for line in (3, 4)
    )
    return [
        record(1, State.COMPLETED, result='{"sum": 1.50}', log=lines, progress=1.0, progress_text=ODD),
        record(2, State.FAILED, failure_kind=FailureKind.ERROR, error=ODD, failures=1, attempts=(run,)),
        record(3, State.FAILED, failure_kind=FailureKind.EXPIRED, token=0, settled_token=0, started_at=None,
               expires_at=LONG_AGO + 1),
        record(4, State.CANCELLED, cancel_requested_at=NOW, releases=2, token=3, settled_token=0),
        record(5, State.FAILED, failure_kind=FailureKind.CRASH_LOOP, crashes=3, suspect=True, error="dead"),
        record(9, State.PENDING, priority=9, payload=HUGE),
        record(10, State.PENDING, run_at=LATER, queue="odd 仕事", task="仕事", tags='["a","b"]', meta='{"x":1}'),
        record(11, State.PENDING, key="k", holds_key=True, tenant="t", expires_at=LATER, checkpoint='{"at":3}'),
        record(12, State.PENDING, token=4, settled_token=3, failures=1, crashes=2, solo_crashes=1, releases=1,
               snoozes=1, suspect=True, attempts=(run,), log=lines),
        record(13, State.PENDING, alone=True, timeout=5_000, soft_timeout=4_000, retry='{"kind":"linear"}'),
        record(14, State.BLOCKED, unmet=2),
        record(15, State.COMPLETED, key="k", tenant="t", result="null"),
        record(16, State.PENDING, max_crashes=None, run_at=LATER, failures=2, token=2, settled_token=2),
    ]  # fmt: skip


def announced(engine: Engine, *tasks: str, lease: int = 30_000) -> UUID:
    """A worker at the store."""
    id = uuid7()
    announcement = Announcement(
        id=id, name=f"worker {id}", tasks=tasks, queues=None, slots=10, version="1", lease=lease, host="h", pid=1,
        isolates=True,
    )  # fmt: skip
    engine.run(engine.announce(announcement))
    return id


def claimed(engine: Engine, worker: UUID, task: str, limit: int) -> list[Lease]:
    return engine.run(engine.claim(worker, [Want(tasks=(task,), queues=None, limit=limit)]))


def ended(engine: Engine, worker: UUID, lease: Lease, ending: Ending, **more: Any) -> Verdict:
    settlement = Settlement(number=lease.number, token=lease.token, queue=lease.queue, ending=ending, **more)
    [verdict] = engine.run(engine.settle(worker, [settlement]))
    return verdict


def live_through(engine: Engine) -> None:
    """Jobs that were enqueued, run and ended by the engine itself, in every way; none runs at the end."""
    specs = [JobSpec(id=uuid7(), payload=f'{{"n":{n}}}', task="do", queue="work") for n in range(8)]
    engine.run(engine.enqueue_many(specs))
    worker = announced(engine, "do")
    leases = claimed(engine, worker, "do", 6)
    tail = LogTail(first=1, lines=(LogLine(1, NOW, "INFO", ODD),))
    engine.run(
        engine.report(worker, [Report(number=leases[0].number, token=1, progress=0.5, checkpoint='{"a":1}')])
    )
    ended(engine, worker, leases[0], Ending.COMPLETED, result='"done"', log=tail)
    ended(engine, worker, leases[1], Ending.ERRORED, error=ODD, traceback="trace", delay=0)
    ended(engine, worker, leases[2], Ending.ERRORED, error="later", delay=10_000_000)
    ended(engine, worker, leases[3], Ending.FAILED, error="no", failure_kind=FailureKind.REJECTED)
    ended(engine, worker, leases[4], Ending.SNOOZED, delay=20_000_000)
    ended(engine, worker, leases[5], Ending.RELEASED)
    engine.run(engine.cancel([specs[6].id]))
    keyed = JobSpec(
        id=uuid7(), payload="{}", task="do", queue="keys", key="only", tenant="a", delay=5_000_000
    )
    engine.run(engine.enqueue_many([keyed]))
    plan(engine, keyed)
    engine.run(engine.configure(QueueSettings(name="work", paused=True, keep_failed_for=50_000_000)))
    engine.run(engine.configure(QueueSettings(name="unused", keep_completed_for=70_000_000, max_pending=9)))
    engine.run(engine.leave(worker))
    engine.run(engine.sweep(SweepOrder()))


EVERY_HOUR = '{"recurrence":{"type":"every","interval":3600000}}'


def schedule(name: str, **more: Any) -> Schedule:
    """One schedule with little about it."""
    usual: dict[str, Any] = {
        "id": uuid7(), "definition": EVERY_HOUR, "look_at": LATER, "decided_to": NOW, "created_at": LONG_AGO,
    }  # fmt: skip
    return Schedule(name=name, **(usual | more))


def plan(engine: Engine, keyed: JobSpec) -> None:
    """Schedules with everything that one can have; the job of the first is the one that has that key."""
    nightly = schedule(
        "nightly",
        origin="shop:nightly",
        waiting_for_overlap=True,
        look_at=NOW + 5,
        declared_at=NOW,
        counts={"fired": 3},
    )
    broken = schedule(
        "broken 仕事", failed=True, errors=6, error=ODD, look_at=None, paused_at=7, pauses=((5, 6),)
    )
    engine.run(engine.tick([Change(schedule=each, seen=0) for each in (nightly, broken, schedule("plain"))]))
    again = replace(keyed, id=nightly.job_id(NOW))
    entries = (
        Firing(
            entry=TickEntry(at=LONG_AGO, outcome=TickOutcome.MISSED, decided_at=NOW, until=NOW - 1, count=23)
        ),
        Firing(
            entry=TickEntry(at=NOW, outcome=TickOutcome.CAUGHT_UP, decided_at=NOW, job=again.id), spec=again
        ),
    )
    change = Change(schedule=nightly, seen=1, firings=entries)
    assert engine.run(engine.tick([change])) == [change]


def busy(engine: Engine) -> dict[str, bool]:
    """Of which schedules that are due the last job has not ended."""
    return {each.schedule.name: each.busy for each in engine.run(engine.due(["nightly"], 100)).schedules}


def told(engine: Engine) -> dict[str, object]:
    """Everything that a store tells of itself."""
    jobs = all_jobs(engine)
    return {
        "jobs": jobs,
        "attempts": {job.number: engine.run(engine.attempts(job.id)) for job in jobs},
        "logs": {job.number: engine.run(engine.logs(job.id)) for job in jobs},
        "stats": engine.run(engine.stats()),
        "settings": engine.run(engine.settings()),
        "schedules": (schedules := engine.run(engine.schedules())),
        "histories": {each.name: engine.run(engine.history(each.name, limit=10_000)) for each in schedules},
        "busy": busy(engine),
    }


def all_jobs(engine: Engine) -> list[Job]:
    return engine.run(engine.find(JobFilter(limit=100_000)))


def exported(engine: Engine) -> Iterator[JobRecord]:
    """Every job, whole."""
    mover = mover_of(engine)
    found: list[JobRecord] = []
    mover.run(mover.export(lambda highest, queues: None, lambda schedules: None, found.extend))
    yield from found
