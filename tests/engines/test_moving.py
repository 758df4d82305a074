"""Whole stores: exported, imported and moved, between all engines that keep jobs (S0-70)."""

import io
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest

from shigoto.cli.doctor import examine, gather
from shigoto.cli.doctor_checks import Level
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.movable import MoveLock, mover_of
from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError, StoreMoved, StoreMoving, StoreRefused, Unsupported
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec, Lease, QueueSettings, State
from shigoto.model.record import JobRecord
from shigoto.model.worker import Ending, SweepOrder, Verdict
from shigoto.moving.files import BadLine, End, Header, Line, encode, export, load
from shigoto.moving.move import MoveProgress, StoreMove
from tests.engines.moved_jobs import (
    announced,
    claimed,
    ended,
    every_kind,
    exported,
    live_through,
    record,
    told,
)
from tests.engines.moved_stores import ALL_PAIRS, EACH, Stores, moved


def lines_of(jobs: list[JobRecord], highest: int = 0, at: int = 5) -> io.BytesIO:
    header = Header(format=1, shigoto="0.1", engine="sqlite", exported_at=at, highest=highest)
    lines: list[Line] = [header, *jobs, End(jobs=len(jobs))]
    return io.BytesIO(b"".join(map(encode, lines)))


def imported(engine: Engine, stream: io.BytesIO) -> int:
    return load(engine, stream, "jobs.jsonl", tell=lambda done: None).jobs


def spec(**more: Any) -> JobSpec:
    usual: dict[str, Any] = {"id": uuid7(), "payload": "{}", "task": "do", "queue": "work"}
    return JobSpec(**(usual | more))


# Files


@EACH
def test_everything_that_a_job_can_have_comes_back_to_the_letter(
    kind: str, other: str, opened: Stores
) -> None:
    """S0-70."""
    engine = opened(f"{kind} a")
    jobs = every_kind()

    assert imported(engine, lines_of(jobs, highest=20)) == len(jobs)

    assert list(exported(engine)) == jobs
    [there] = engine.run(engine.enqueue_many([spec()]))
    assert there.number == 21


@ALL_PAIRS
def test_a_store_that_has_lived_is_the_same_after_an_export_and_an_import(
    kind: str, other: str, opened: Stores
) -> None:
    """S0-70."""
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    live_through(old)
    file = io.BytesIO()

    jobs = export(old, file, tell=lambda done: None).jobs
    file.seek(0)

    assert imported(new, file) == jobs == 9
    assert told(new) == told(old)
    again = io.BytesIO()
    export(new, again, tell=lambda done: None)
    assert again.getvalue().split(b"\n")[1:] == file.getvalue().split(b"\n")[1:]


@EACH
def test_an_imported_job_is_claimed_with_the_next_token_and_its_key_is_still_held(
    kind: str, other: str, opened: Stores
) -> None:
    engine = opened(f"{kind} a")
    jobs = [
        record(4, State.PENDING, token=2, settled_token=2, failures=2, key="k", holds_key=True),
        record(5, State.COMPLETED, key="l", holds_key=True),
    ]
    imported(engine, lines_of(jobs))

    [held, free] = engine.run(engine.enqueue_many([spec(key="k", queue="mail"), spec(key="l", queue="mail")]))
    [lease] = claimed(engine, announced(engine, "send"), "send", 5)

    assert (held.number, held.status) == (4, "existing")
    assert (free.number, free.status) == (6, "inserted")
    assert (lease.number, lease.token, lease.failures, lease.attempt) == (4, 3, 2, 3)


@EACH
def test_a_job_that_was_processing_is_given_back_and_its_token_goes_on(
    kind: str, other: str, opened: Stores
) -> None:
    engine = opened(f"{kind} a")
    running = {"token": 3, "settled_token": 2, "started_at": 7}
    jobs = [
        record(1, State.PROCESSING, **running),
        record(2, State.PROCESSING, **running, cancel_requested_at=8),
        record(3, State.PROCESSING, **running, superseded=True),
    ]

    imported(engine, lines_of(jobs, at=99))

    back, cancelled, superseded = exported(engine)
    assert (back.state, back.token, back.releases) == (State.PENDING, 3, 1)
    assert (cancelled.state, cancelled.finished_at) == (State.CANCELLED, 99)
    assert (superseded.state, superseded.failure_kind) == (State.FAILED, "superseded")


@EACH
def test_an_export_of_a_working_store_tells_of_one_instant(kind: str, other: str, opened: Stores) -> None:
    engine = opened(f"{kind} a")
    engine.run(engine.enqueue_many([spec() for _ in range(2_500)]))
    more = iter(range(3))
    file = io.BytesIO()

    def meanwhile(done: int) -> None:
        if next(more, None) is not None:
            engine.run(engine.enqueue_many([spec()]))

    assert export(engine, file, tell=meanwhile).jobs == 2_500
    assert len(file.getvalue().splitlines()) == 2_500 + 3


BAD = [
    (b"", 1, "ends here"),
    (b"no json\n", 1, "not what `shigoto export` writes"),
    (b'{"kind":"end","jobs":0}\n', 1, "begins with a header"),
]


@EACH
def test_a_line_that_cannot_be_read_is_named_and_leaves_the_store_empty(
    kind: str, other: str, opened: Stores
) -> None:
    engine = opened(f"{kind} a")
    good = lines_of([record(1, State.PENDING), record(2, State.PENDING)]).getvalue()
    header, first, second, end = good.splitlines(keepends=True)
    later = first.replace(b'"number":1', b'"number":3')
    cases = [
        *BAD,
        (header + first, 3, "ends here"),
        (header + first + header, 3, "second header"),
        (header + second + first + end, 3, "must rise"),
        (header + first + end, 3, "counts 2 jobs, and there were 1"),
        (good + first, 5, "follows after the end"),
        (header + first + b"{\n", 3, "no JSON"),
        (header + first.replace(b'"send"', b"7"), 2, "$.task"),
        (header + first.replace(b'"pending"', b'"completed"'), 2, "no finished_at"),
        (header + first.replace(b'"task"', b'"colour":1,"task"'), 2, "unknown field `colour`"),
        (header + first.replace(b'"max_failures":6', b'"max_failures":99999999999'), 2, "max_failures"),
        (header + first + later + end, 2, "has the id, or holds the key, of another"),
        (header.replace(b'"format":1', b'"format":2'), 1, "format 2"),
    ]

    for text, line, reason in cases:
        with pytest.raises(BadLine, match=f"^Line {line} of jobs.jsonl cannot be imported: ") as raised:
            imported(engine, io.BytesIO(text))
        assert reason in str(raised.value)
        assert list(exported(engine)) == []
        assert engine.run(engine.stats()) == {}

    assert imported(engine, io.BytesIO(good)) == 2


@EACH
def test_only_an_empty_store_can_be_filled(kind: str, other: str, opened: Stores) -> None:
    engine = opened(f"{kind} a")
    engine.run(engine.enqueue_many([spec()]))

    with pytest.raises(StoreRefused, match=r"has jobs or schedules already.*Name a new file"):
        imported(engine, lines_of(every_kind()))

    assert len(list(exported(engine))) == 1


@EACH
def test_an_import_that_was_killed_keeps_everybody_out_and_is_begun_anew(
    kind: str, other: str, opened: Stores
) -> None:
    engine = opened(f"{kind} a")
    mover = mover_of(engine)
    mover.run(mover.shut(MoveLock(kind="filling", move="m", other="a file")))
    mover.run(mover.put(every_kind()[:7]))

    with pytest.raises(StoreMoving, match="is being filled with the jobs of a file"):
        engine.run(engine.enqueue_many([spec()]))
    with pytest.raises(StoreMoving):
        announced(engine, "send")

    assert imported(engine, lines_of(every_kind())) == len(every_kind())
    assert list(exported(engine)) == every_kind()


def test_a_store_in_memory_cannot_be_moved() -> None:
    with pytest.raises(Unsupported, match="memory store cannot be moved"):
        mover_of(MemoryEngine())


@pytest.mark.engine("postgres")
@pytest.mark.newest_postgres
def test_text_that_postgresql_has_no_place_for_is_spelt_out_or_refused(opened: Stores) -> None:
    """What describes is kept; what is found again by its name cannot be another."""
    engine = opened("postgres a")
    odd = record(1, State.FAILED, error="a\0b", failure_kind="error")

    imported(engine, lines_of([odd]))
    assert next(exported(engine)).error == "a\\x00b"

    other = opened("postgres b")
    with pytest.raises(Exception, match="Job 1 cannot be stored in PostgreSQL: its key has U\\+0000"):
        imported(other, lines_of([record(1, State.PENDING, key="a\0")]))


# Gates


def refused(engine: Engine, worker: UUID, error: type[StoreError]) -> None:
    """Everything that changes a store is refused, and everything that looks is not."""
    id = spec().id
    changes: list[Op[Any]] = [
        engine.enqueue_many([spec()]),
        engine.enqueue_many([spec() for _ in range(300)]),
        engine.enqueue_many([spec(key="k")]),
        engine.configure(QueueSettings(name="work", paused=True)),
        engine.beat(worker, None),
    ]
    for op in changes:
        with pytest.raises(error):
            engine.run(op)
    with pytest.raises(error):
        announced(engine, "do")
    engine.run(engine.stats())
    engine.run(engine.get([id]))


def assert_too_late(engine: Engine, worker: UUID, lease: Lease) -> None:
    """Its worker cannot settle it any more: it hears that the lease is lost, or why."""
    with suppress(StoreMoving, StoreMoved):
        assert ended(engine, worker, lease, Ending.COMPLETED, result="1") is Verdict.LOST


@EACH
def test_a_store_that_drains_gives_out_no_jobs_and_takes_them(kind: str, other: str, opened: Stores) -> None:
    engine = opened(f"{kind} a")
    mover = mover_of(engine)
    engine.run(engine.enqueue_many([spec(), spec()]))
    worker = announced(engine, "do")
    [lease] = claimed(engine, worker, "do", 1)

    mover.run(mover.shut(MoveLock(kind="draining", move="m", other="elsewhere")))

    with pytest.raises(StoreMoving, match=r"is being moved to elsewhere\. Try again in a moment"):
        claimed(engine, worker, "do", 1)
    engine.run(engine.enqueue_many([spec()]))
    assert not engine.run(engine.beat(worker, None)).fenced
    ended(engine, worker, lease, Ending.COMPLETED, result="1")
    assert mover.run(mover.running()) == 0

    mover.run(mover.open())
    assert len(claimed(engine, worker, "do", 5)) == 2


@EACH
def test_a_closed_store_changes_no_more_and_its_runs_are_given_back(
    kind: str, other: str, opened: Stores
) -> None:
    """S0-70: no worker can settle after the cut-over."""
    engine = opened(f"{kind} a")
    mover = mover_of(engine)
    engine.run(engine.enqueue_many([spec(), spec()]))
    worker, idle = announced(engine, "do"), announced(engine, "do")
    [lease] = claimed(engine, worker, "do", 1)

    assert mover.run(mover.shut(MoveLock(kind="closed", move="m", other="elsewhere"))) == 1

    before = list(exported(engine))
    assert [(job.state, job.token, job.releases) for job in before] == [("pending", 1, 1), ("pending", 0, 0)]
    refused(engine, idle, StoreMoving)
    assert_too_late(engine, worker, lease)
    assert engine.run(engine.beat(worker, [(lease.number, lease.token)])).fenced
    assert list(exported(engine)) == before

    mover.run(mover.shut(MoveLock(kind="moved", move="m", other="elsewhere")))
    refused(engine, idle, StoreMoved)
    with pytest.raises(
        StoreMoved, match=r"was moved to elsewhere, where its jobs are now\. Use that address"
    ):
        mover.run(mover.open())
    for move_lock in (
        MoveLock(kind="closed", move="m", other="x"),
        MoveLock(kind="draining", move="n", other="x"),
    ):
        with pytest.raises(StoreMoved):
            mover.run(mover.shut(move_lock))
    assert list(exported(engine)) == before


@EACH
def test_the_runs_of_a_worker_that_was_fenced_are_given_back_too(
    kind: str, other: str, opened: Stores
) -> None:
    """S0-70: a sweep frees so many of them at once, and a store may be closed before the next one."""
    engine, new = opened(f"{kind} a"), opened(f"{other} b")
    engine.run(engine.enqueue_many([spec() for _ in range(5)]))
    worker, gone = announced(engine, "do", lease=1), announced(engine, "do")
    assert len(claimed(engine, worker, "do", 3)) == 3
    assert len(claimed(engine, gone, "do", 2)) == 2
    while not engine.run(engine.sweep(SweepOrder(fence=(worker,), batch=1))).fenced:
        pass
    engine.run(engine.leave(gone))

    assert moved(engine, new).released >= 2

    assert [job.state for job in exported(new)] == [State.PENDING] * 5
    assert len(claimed(new, announced(new, "do"), "do", 9)) == 5


@EACH
def test_a_job_in_a_transaction_of_the_callers_own_is_refused_in_our_words(
    kind: str, other: str, opened: Stores
) -> None:
    engine = opened(f"{kind} a")
    engine.run(engine.enqueue_many([spec()]))
    mover = mover_of(engine)
    mover.run(mover.shut(MoveLock(kind="closed", move="m", other="elsewhere")))
    mover.run(mover.shut(MoveLock(kind="moved", move="m", other="elsewhere")))
    connection = _connected(engine, opened.database)

    with pytest.raises(StoreMoved, match="was moved to elsewhere"):
        engine.join(connection, engine.enqueue_many([spec()]))

    connection.close()


def _connected(engine: Any, database: str) -> Any:
    if engine.capabilities.name == "sqlite":
        return engine.connect()
    connection = psycopg.connect(database)
    connection.execute("SELECT 1")
    return connection


@EACH
def test_nobody_can_empty_or_fill_a_store_that_others_use(kind: str, other: str, opened: Stores) -> None:
    engine = opened(f"{kind} a")
    mover = mover_of(engine)
    engine.run(engine.enqueue_many([spec()]))

    for op in (mover.wipe(), mover.put(every_kind()[:1]), mover.remove([1]), mover.open_filled(7)):
        with pytest.raises(StoreRefused, match="Another process has gone on"):
            mover.run(op)

    assert len(list(exported(engine))) == 1


# Moves


@ALL_PAIRS
def test_a_move_takes_everything_along(kind: str, other: str, opened: Stores) -> None:
    """S0-70: jobs, keys, history, ids and numbers."""
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    live_through(old)
    before = told(old)
    seen: list[MoveProgress] = []

    done = moved(old, new, tell=seen.append)

    assert told(new) == before == told(old)
    assert done.jobs == 9
    assert done.released == 0
    assert seen[-1] == MoveProgress("moved", 9, 9)
    with pytest.raises(StoreMoved, match=f"was moved to {re.escape(mover_of(new).shown)}"):
        old.run(old.enqueue_many([spec()]))
    [next_one] = new.run(new.enqueue_many([spec()]))
    assert next_one.number == mover_of(old).run(mover_of(old).highest()) + 1
    worker = announced(new, "do")
    new.run(new.configure(QueueSettings(name="work")))
    new.run(new.sweep(SweepOrder()))
    assert len(claimed(new, worker, "do", 50)) > 0
    assert moved(old, new).already


@ALL_PAIRS
def test_what_changes_while_a_store_is_copied_is_not_missed(kind: str, other: str, opened: Stores) -> None:
    """S0-70: load during the move loses nothing: jobs end, are retried, deleted, and enqueued."""
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    imported(old, lines_of([record(n, State.FAILED, failure_kind="error") for n in range(1, 2_600)]))
    worker = announced(old, "send")
    ids = [job.id for job in exported(old)]
    copied: list[int] = []

    def meanwhile(progress: MoveProgress) -> None:
        copied.append(progress.done)
        if progress.phase == "copying" and len(copied) == 2:
            old.run(old.retry([ids[0], ids[1], ids[1_500]]))
            old.run(old.delete([3, 4, 2_000], [State.FAILED]))
            [lease] = claimed(old, worker, "send", 1)
            ended(old, worker, lease, Ending.COMPLETED, result="1")
            # An id that comes back under another number.
            old.run(old.enqueue_many([spec(id=ids[2]), *(spec() for _ in range(20))]))
        if progress.phase == "closing":
            with pytest.raises(StoreMoving):
                old.run(old.enqueue_many([spec()]))

    moved(old, new, tell=meanwhile)

    assert list(exported(new)) == list(exported(old))
    assert new.run(new.stats()) == old.run(old.stats())


@ALL_PAIRS
def test_keys_that_others_take_while_a_store_is_copied_are_theirs_in_the_new_one(
    kind: str, other: str, opened: Stores
) -> None:
    """S0-70: a job that has ended keeps its key until another takes it, waits with it, or ends with it."""
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    finished = [record(n, State.COMPLETED, key=f"k{n}", holds_key=True) for n in range(1, 2_600)]
    imported(old, lines_of(finished))
    worker = announced(old, "do")
    steps = 0

    def meanwhile(progress: MoveProgress) -> None:
        nonlocal steps
        steps += 1
        if progress.phase == "copying" and steps == 2:
            takers = [spec(key=f"k{n}", tenant="") for n in (1, 2, 3, 2_500)]
            stored = old.run(old.enqueue_many(takers))
            assert [one.id for one in stored] == [taker.id for taker in takers]
            for lease in claimed(old, worker, "do", 2):  # ended when its turn to be copied comes
                ended(old, worker, lease, Ending.COMPLETED, result="1")
            old.run(old.cancel([takers[2].id]))
            old.run(old.delete([stored[2].number], [State.CANCELLED]))  # then nobody has that key

    moved(old, new, tell=meanwhile)

    assert list(exported(new)) == list(exported(old))
    held = {job.key for job in exported(new) if job.holds_key}
    assert held == {job.key for job in finished} - {"k3"}


@ALL_PAIRS
def test_of_what_was_copied_before_only_what_has_changed_is_copied_again(
    kind: str, other: str, opened: Stores
) -> None:
    """S0-70: interrupted anywhere it can be run again, which takes no longer than it must."""
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    finished = [record(n, State.COMPLETED, key=f"k{n}", holds_key=True) for n in range(1, 2_600)]
    imported(old, lines_of([*finished, record(3_000, State.PENDING)]))

    def fail(progress: MoveProgress) -> None:
        if progress.phase == "closing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        moved(old, new, tell=fail)
    old.run(old.enqueue_many([spec(key="k7", tenant="")]))
    old.run(old.delete([1_200], [State.COMPLETED]))

    assert moved(old, new).jobs == 3, "two that wait, and the one that has lost its key"
    assert list(exported(new)) == list(exported(old))


@EACH
def test_what_still_runs_after_its_time_is_given_back_and_runs_in_the_new_store(
    kind: str, other: str, opened: Stores
) -> None:
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    old.run(old.enqueue_many([spec(), spec()]))
    worker = announced(old, "do")
    slow, quick = claimed(old, worker, "do", 2)
    waits = 0

    def pause(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            ended(old, worker, quick, Ending.COMPLETED, result="1")
        else:
            plan._wait = 0.0

    plan = StoreMove(old, new, wait=0.3, tell=lambda progress: None, pause=pause)
    done = plan.run()

    assert done.released == 1
    with pytest.raises(StoreMoved):
        announced(old, "do")
    assert_too_late(old, worker, slow)
    [lease] = claimed(new, announced(new, "do"), "do", 5)
    assert (lease.number, lease.token, lease.attempt) == (slow.number, 2, 1)


@EACH
def test_a_move_that_fails_lets_the_old_store_work_on(kind: str, other: str, opened: Stores) -> None:
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    live_through(old)
    before = told(old)

    def fail(progress: MoveProgress) -> None:
        if progress.phase == "closing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        moved(old, new, tell=fail)

    assert told(old) == before
    old.run(old.enqueue_many([spec()]))
    with pytest.raises(StoreMoving):
        new.run(new.enqueue_many([spec()]))
    moved(old, new)
    assert told(new) == told(old)


@EACH
def test_a_move_can_be_given_up_until_it_is_done(kind: str, other: str, opened: Stores) -> None:
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    old.run(old.enqueue_many([spec()]))
    mover = mover_of(old)
    shut = mover_of(new)
    shut.run(shut.shut(MoveLock(kind="filling", move="m", other=mover.shown)))
    shut.run(shut.put([record(7, State.COMPLETED)]))
    mover.run(mover.shut(MoveLock(kind="closed", move="m", other=shut.shown)))
    plan = StoreMove(old, new, wait=0.0, tell=lambda progress: None)

    plan.give_up()

    old.run(old.enqueue_many([spec()]))
    assert list(exported(new)) == []
    new.run(new.enqueue_many([spec()]))
    with pytest.raises(StoreRefused, match="has jobs or schedules already"):
        plan.run()


@EACH
def test_two_moves_do_not_meet_in_one_store(kind: str, other: str, opened: Stores) -> None:
    old, new, third = opened(f"{kind} a"), opened(f"{other} b"), opened(f"{other} c")
    old.run(old.enqueue_many([spec()]))
    mover, filled = mover_of(old), mover_of(new)

    with pytest.raises(StoreRefused, match="cannot be moved to itself"):
        moved(old, old)
    filled.run(filled.shut(MoveLock(kind="filling", move="n", other="somewhere")))
    with pytest.raises(StoreRefused, match=r"takes part in something else.*jobs of somewhere"):
        moved(old, new)
    mover.run(mover.shut(MoveLock(kind="draining", move="n", other="somewhere")))
    with pytest.raises(StoreRefused, match=r"is being moved to somewhere.*--give-up"):
        moved(old, third)

    filled.run(filled.open())
    mover.run(mover.open())
    moved(old, new)
    with pytest.raises(StoreRefused, match="was moved to"):
        moved(old, third)


@EACH
@pytest.mark.parametrize("phase", ["copying", "closing"])
def test_of_two_processes_that_move_the_same_store_one_ends_and_nothing_is_lost(
    kind: str, other: str, opened: Stores, phase: str
) -> None:
    """The second goes on where the first is, which must not touch either store any more."""
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    imported(old, lines_of([record(n, State.FAILED, failure_kind="error") for n in range(1, 1_200)]))
    old.run(old.enqueue_many([spec() for _ in range(5)]))
    before = told(old)
    second: list[Any] = []

    def meanwhile(progress: MoveProgress) -> None:
        if progress.phase == phase and not second:
            second.append(moved(old, new))

    with pytest.raises((StoreRefused, StoreMoved)):
        moved(old, new, tell=meanwhile)

    assert not second[0].already
    assert told(new) == before
    with pytest.raises(StoreMoved):
        old.run(old.enqueue_many([spec()]))
    new.run(new.enqueue_many([spec()]))


@EACH
def test_a_store_that_another_has_opened_meanwhile_is_not_given_up_as_moved(
    kind: str, other: str, opened: Stores
) -> None:
    """What was enqueued there since would be nowhere else."""
    engine = opened(f"{kind} a")
    first, second = mover_of(engine), mover_of(engine)
    first.run(first.shut(MoveLock(kind="closed", move="m", other="elsewhere")))
    second.run(second.shut(MoveLock(kind="draining", move="m", other="elsewhere")))
    engine.run(engine.enqueue_many([spec()]))
    second.run(second.shut(MoveLock(kind="closed", move="m", other="elsewhere")))

    late: list[Op[Any]] = [first.shut(MoveLock(kind="moved", move="m", other="elsewhere")), first.open()]
    for op in late:
        with pytest.raises(StoreRefused, match="Another process has gone on"):
            first.run(op)

    second.run(second.open())
    engine.run(engine.enqueue_many([spec()]))


# The doctor


@EACH
def test_the_doctor_tells_of_a_move(opened: Stores, kind: str, other: str) -> None:
    engine: Any = opened(f"{kind} a")
    mover = mover_of(engine)

    def findings() -> list[tuple[Level, str]]:
        found = examine(gather(engine, datetime.now(UTC), deep=False))
        return [(each.level, each.text) for each in found if each.check == "move"]

    assert findings() == []
    for move_lock in ("draining", "closed"):
        mover.run(mover.shut(MoveLock(kind=move_lock, move="m", other="elsewhere")))
        [(level, text)] = findings()
        assert (level, "is being moved to elsewhere" in text) == (Level.WARNING, True)
    mover.run(mover.shut(MoveLock(kind="moved", move="m", other="elsewhere")))
    [(level, text)] = findings()
    assert (level, "was moved to elsewhere" in text) == (Level.PROBLEM, True)


@EACH
def test_the_doctor_tells_of_a_store_that_is_not_full_yet(opened: Stores, kind: str, other: str) -> None:
    engine: Any = opened(f"{kind} a")
    mover = mover_of(engine)
    mover.run(mover.shut(MoveLock(kind="filling", move="m", other="a file")))

    [found] = [
        each for each in examine(gather(engine, datetime.now(UTC), deep=False)) if each.check == "move"
    ]

    assert found.level is Level.WARNING
    assert "is being filled with the jobs of a file" in found.text
    assert "shigoto move" in (found.remedy or "")
