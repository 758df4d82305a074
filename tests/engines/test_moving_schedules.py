"""Schedules and their histories travel with the jobs: moved, exported and imported (S0-70, S4-2 to S4-15)."""

import io
import threading
from typing import Any

import psycopg
import pytest
from msgspec import json
from msgspec.structs import replace

from shigoto.engine.movable import MoveLock, mover_of
from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError, StoreMoved, StoreMoving, StoreRefused
from shigoto.model.job import JobSpec, State
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.moving.files import BadLine, Carried, End, Header, Line, encode, export, load
from shigoto.moving.move import MoveProgress
from tests.engines.moved_jobs import LATER, NOW, live_through, record, schedule, told
from tests.engines.moved_stores import ALL_PAIRS, EACH, Stores, moved

SECOND = 1_000
LINES: list[Line] = [
    Header(format=1, shigoto="0.1", engine="sqlite", exported_at=5, highest=9),
    record(1, State.COMPLETED),
    record(2, State.PENDING),
    End(jobs=2),
]
JOBS = b"".join(map(encode, LINES))


def planned(engine: Engine, *names: str, **more: Any) -> list[Schedule]:
    engine.run(engine.tick([Change(schedule=schedule(name, **more), seen=0) for name in names]))
    return engine.run(engine.schedules(names))


def fire(engine: Engine, name: str, at: int) -> bool:
    """Fire a tick as a scheduler does that has just seen the schedule."""
    [known] = engine.run(engine.schedules([name]))
    spec = JobSpec(id=known.job_id(at), payload="{}", task="do", queue="work")
    firing = Firing(
        entry=TickEntry(at=at, outcome=TickOutcome.FIRED, decided_at=at + 7, job=spec.id), spec=spec
    )
    counts = {"fired": known.counts.get("fired", 0) + 1}
    changed = replace(known, decided_to=at, look_at=at + SECOND, counts=counts)
    [done] = engine.run(engine.tick([Change(schedule=changed, seen=known.revision, firings=(firing,))]))
    return done is not None


def of_schedules(engine: Engine) -> dict[str, object]:
    everything = told(engine)
    return {part: everything[part] for part in ("schedules", "histories", "busy")}


def exported(engine: Engine) -> bytes:
    file = io.BytesIO()
    export(engine, file, tell=lambda done: None)
    return file.getvalue()


def imported(engine: Engine, text: bytes) -> Carried:
    return load(engine, io.BytesIO(text), "jobs.jsonl", tell=lambda done: None)


@ALL_PAIRS
def test_a_move_takes_schedules_and_their_ledgers_along(kind: str, other: str, opened: Stores) -> None:
    """S0-70: how far each is decided, its revision, last job, counts, pause, errors and history."""
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    live_through(old)
    before = of_schedules(old)
    assert before["busy"] == {"nightly": True}

    assert moved(old, new).schedules == 3

    assert of_schedules(new) == before
    assert before == of_schedules(old)
    nightly = next(each for each in new.run(new.schedules()) if each.name == "nightly")
    assert fire(new, "nightly", NOW), "its tick is known to have fired there"
    [again] = new.run(new.schedules(["nightly"]))
    assert again.job == nightly.job
    assert fire(new, "nightly", NOW + SECOND)


@ALL_PAIRS
def test_what_ticks_while_a_store_is_copied_is_neither_lost_nor_fired_again(
    kind: str, other: str, opened: Stores
) -> None:
    """S0-70: schedules are fired, added, paused, declared and removed while it goes on."""
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    imported(old, JOBS)
    planned(old, "busy", "declared", "gone", "renewed", "silent", look_at=NOW)
    assert all(fire(old, name, NOW) for name in ("busy", "gone", "renewed", "silent"))
    phases: list[str] = []

    def meanwhile(progress: MoveProgress) -> None:
        phases.append(progress.phase)
        if phases == ["copying"]:
            assert all(fire(old, "busy", NOW + n * SECOND) for n in range(1, 200))
            planned(old, "added", paused_at=1)
            old.run(old.declare(["declared"]))
            old.run(old.remove_schedules(["gone", "renewed"]))
            planned(old, "renewed")
        if progress.phase == "closing":
            with pytest.raises(StoreMoving):
                fire(old, "busy", NOW + 900 * SECOND)

    moved(old, new, tell=meanwhile)

    assert set(phases) == {"copying", "closing", "moved"}
    assert of_schedules(new) == of_schedules(old)
    assert [each.name for each in new.run(new.schedules())] == [
        "added", "busy", "declared", "renewed", "silent"
    ]  # fmt: skip
    assert len(new.run(new.history("busy", limit=10_000))) == 200
    assert new.run(new.history("renewed", limit=10)) == []
    with pytest.raises(StoreMoved):
        fire(old, "busy", NOW + 900 * SECOND)
    assert fire(new, "busy", NOW + 900 * SECOND)


@EACH
def test_a_move_that_was_interrupted_takes_what_has_ticked_since(
    kind: str, other: str, opened: Stores
) -> None:
    """S0-70: interrupted anywhere it can be run again."""
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    imported(old, JOBS)
    planned(old, "busy", "gone", look_at=NOW)
    assert fire(old, "busy", NOW)

    def fail(progress: MoveProgress) -> None:
        if progress.phase == "closing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        moved(old, new, tell=fail)
    assert fire(old, "busy", NOW + SECOND)
    old.run(old.remove_schedules(["gone"]))
    with pytest.raises(StoreMoving):
        new.run(new.tick([Change(schedule=schedule("other"), seen=0)]))

    assert moved(old, new).schedules == 1
    assert of_schedules(new) == of_schedules(old)


@EACH
@pytest.mark.parametrize(("move_lock", "error"), [("closed", StoreMoving), ("moved", StoreMoved)])
def test_nothing_about_schedules_changes_in_a_store_that_is_closed(
    kind: str, other: str, opened: Stores, move_lock: Any, error: type[StoreError]
) -> None:
    """S0-70: no tick in the old store after the cut-over; looking is allowed."""
    engine = opened(f"{kind} a")
    planned(engine, "nightly", look_at=NOW)
    mover = mover_of(engine)
    mover.run(mover.shut(MoveLock(kind="closed", move="m", other="elsewhere")))
    if move_lock == "moved":
        mover.run(mover.shut(MoveLock(kind="moved", move="m", other="elsewhere")))
    [nightly] = engine.run(engine.schedules())
    missed = Firing(entry=TickEntry(at=NOW, outcome=TickOutcome.MISSED, decided_at=NOW))

    changes: list[Op[Any]] = [
        engine.tick([Change(schedule=nightly, seen=1)]),
        engine.tick([Change(schedule=nightly, seen=1, firings=(missed,))]),
        engine.tick([Change(schedule=schedule("other"), seen=0)]),
        engine.declare(["nightly"]),
        engine.remove_schedules(["nightly"]),
    ]
    for op in changes:
        with pytest.raises(error):
            engine.run(op)
    with pytest.raises(error):
        fire(engine, "nightly", NOW)

    assert engine.run(engine.schedules()) == [nightly]
    assert engine.run(engine.history("nightly", limit=5)) == []
    assert [each.schedule for each in engine.run(engine.due([], 5)).schedules] == [nightly]


@EACH
def test_a_store_that_drains_still_ticks(kind: str, other: str, opened: Stores) -> None:
    """It takes jobs until it is closed, and a tick is nothing else."""
    engine = opened(f"{kind} a")
    planned(engine, "nightly", look_at=NOW)
    mover = mover_of(engine)

    mover.run(mover.shut(MoveLock(kind="draining", move="m", other="elsewhere")))

    assert fire(engine, "nightly", NOW)


@EACH
def test_a_store_with_schedules_is_not_empty_and_one_that_was_given_up_is(
    kind: str, other: str, opened: Stores
) -> None:
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    planned(old, "nightly")
    planned(new, "nightly")

    with pytest.raises(StoreRefused, match="has jobs or schedules already"):
        moved(old, new)
    with pytest.raises(StoreRefused, match="has jobs or schedules already"):
        imported(new, JOBS)

    third = opened(f"{other} c")
    mover = mover_of(third)
    mover.run(mover.shut(MoveLock(kind="filling", move="m", other="a file")))
    some = mover_of(old).run(mover_of(old).schedules(["nightly"]))
    mover.run(mover.put_schedules(some))
    assert imported(third, JOBS) == Carried(2, 0)
    assert third.run(third.schedules()) == []


@ALL_PAIRS
def test_schedules_come_back_from_a_file_as_they_were(kind: str, other: str, opened: Stores) -> None:
    """S0-70."""
    old, new = opened(f"{kind} a"), opened(f"{other} b")
    live_through(old)
    text = exported(old)

    assert imported(new, text) == Carried(9, 3)

    assert of_schedules(new) == of_schedules(old)
    assert exported(new).splitlines()[1:] == text.splitlines()[1:]


@EACH
def test_a_file_without_schedules_is_read(kind: str, other: str, opened: Stores) -> None:
    """Those that were written before schedules were."""
    engine = opened(f"{kind} a")

    assert imported(engine, JOBS.replace(b',"schedules":0', b"")) == Carried(2, 0)


@EACH
def test_a_damaged_schedule_is_named_and_leaves_the_store_empty(
    kind: str, other: str, opened: Stores
) -> None:
    engine, new = opened(f"{kind} a"), opened(f"{other} b")
    planned(engine, "a", "b", look_at=NOW)
    assert fire(engine, "a", NOW)
    assert fire(engine, "a", NOW + SECOND)
    good = exported(engine)
    header, *queues, first, second, one, two, end = good.splitlines(keepends=True)
    before = header + b"".join(queues)
    line = len(queues) + 2
    line_of = json.decode(first)
    turned = json.encode(line_of | {"history": line_of["history"][::-1]}) + b"\n"
    twice = json.encode(json.decode(second) | {"id": line_of["id"]}) + b"\n"
    cases = [
        (before + second + first, line + 1, "schedule 'a' comes after schedule 'b'; their names must rise"),
        (before + first + first, line + 1, "their names must rise"),
        (before + first + twice, line + 1, "schedule 'b' has the id of another one"),
        (before + first.replace(b'"name":"a"', b'"name":""'), line, "has no name"),
        (before + first.replace(b'"revision":3', b'"revision":0'), line, "$.revision"),
        (before + first.replace(b'"fired","decided', b'"burnt","decided'), line, "burnt"),
        (before + first.replace(b'\\"every\\"', b'\\"never\\"'), line, "definition that cannot be read"),
        (before + first.replace(b'"name"', b'"colour":1,"name"'), line, "unknown field `colour`"),
        (before + turned, line, "instants do not rise"),
        (before + first + one + two + end, line + 3, "counts 2 schedules, and there were 1"),
    ]

    for text, number, reason in cases:
        with pytest.raises(BadLine, match=f"^Line {number} of jobs.jsonl cannot be imported: ") as raised:
            imported(new, text)
        assert reason in str(raised.value)
        assert new.run(new.schedules()) == []

    assert imported(new, good) == Carried(2, 2)


@EACH
def test_many_schedules_are_exported_and_moved_in_portions(kind: str, other: str, opened: Stores) -> None:
    old, new, third = opened(f"{kind} a"), opened(f"{other} b"), opened(f"{other} c")
    planned(old, *(f"s{n:04}" for n in range(2_300)), look_at=LATER)
    text = exported(old)

    assert imported(new, text) == Carried(0, 2_300)
    assert moved(old, third).schedules == 2_300

    assert new.run(new.schedules()) == third.run(third.schedules()) == old.run(old.schedules())


@pytest.mark.engine("postgres")
@pytest.mark.newest_postgres
def test_a_tick_in_hand_and_a_move_do_not_wait_for_each_other(opened: Stores) -> None:
    """Who ticks has locked the schedule when it stores the job, and changes it when that is done."""
    engine = opened("postgres a")
    planned(engine, "nightly")
    mover = mover_of(engine)
    shut = threading.Thread(
        target=lambda: mover.run(mover.shut(MoveLock(kind="closed", move="m", other="elsewhere")))
    )

    with (
        psycopg.connect(opened.database, autocommit=True) as watch,
        psycopg.connect(opened.database) as ticking,
    ):
        ticking.execute("SELECT 1 FROM a.schedule FOR UPDATE")
        shut.start()
        waiting = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        while watch.execute(waiting).fetchone() == (0,):
            pass
        ticking.execute("DELETE FROM a.job")
        ticking.execute("UPDATE a.schedule SET revision = revision + 1")
        ticking.commit()
    shut.join(20)

    [nightly] = engine.run(engine.schedules())
    assert nightly.revision == 2
    with pytest.raises(StoreMoving):
        fire(engine, "nightly", NOW)
