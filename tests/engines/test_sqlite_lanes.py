"""Where the SQLite engine keeps jobs that run alone, and that nobody else pays for them."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shigoto.engine.op import Op, Write, drive
from shigoto.engine.sql.commands import Command, NamedSql, SqlText
from shigoto.engine.sqlite import SqliteEngine, file
from shigoto.engine.sqlite.dialect import SQL, execute
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec, Lease, LogLine, State
from shigoto.model.worker import Announcement, Ending, LogTail, Settlement, Want

pytestmark = pytest.mark.engine("sqlite")

WORKER = uuid7()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "jobs.db")
    engine.run(
        engine.announce(
            Announcement(id=WORKER, name="w", tasks=("a",), queues=None, slots=1, version="0", isolates=True)
        )
    )
    yield engine
    engine.close()


def enqueue(engine: SqliteEngine, *, alone: bool = False) -> None:
    engine.run(engine.enqueue_many([JobSpec(id=uuid7(), task="a", queue="q", payload="{}", alone=alone)]))


def claim(engine: SqliteEngine) -> list[Lease]:
    return engine.run(engine.claim(WORKER, [Want(tasks=("a",), queues=None, limit=9)]))


def end(lease: Lease, ending: Ending, log: LogTail | None = None) -> Settlement:
    return Settlement(number=lease.number, token=lease.token, queue=lease.queue, ending=ending, log=log)


def look(engine: SqliteEngine, statement: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(engine.path) as connection:
        rows = connection.execute(statement).fetchall()
    connection.close()
    return rows


def statements_of(engine: SqliteEngine, op: Op[Any]) -> list[str]:
    """The statements that an op runs; nothing is committed."""
    connection = file.connect(engine.path, synchronous="normal")
    texts: list[str] = []

    def run(command: Command) -> sqlite3.Cursor:
        match command:
            case NamedSql():
                texts.append(SQL[command.name])
            case SqlText():
                texts.append(command.text)
            case Write():
                texts.append("")
        return execute(connection, command)

    connection.execute("BEGIN IMMEDIATE")
    drive(op.start(), run)
    connection.close()
    return texts


LANES = "SELECT queue, task, alone FROM shigoto_lane ORDER BY alone"


class TestLanes:
    def test_the_lane_for_suspects_is_made_when_there_is_one(self, engine: SqliteEngine) -> None:
        enqueue(engine)
        assert look(engine, LANES) == [("q", "a", 0)]

        engine.run(engine.settle(WORKER, [end(lease, Ending.CRASHED) for lease in claim(engine)]))

        assert look(engine, LANES) == [("q", "a", 0), ("q", "a", 1)]

    @pytest.mark.parametrize("ending", [Ending.CRASHED, Ending.ERRORED, Ending.RELEASED])
    def test_a_body_always_knows_the_lane_that_its_job_waits_in(
        self, engine: SqliteEngine, ending: Ending
    ) -> None:
        for alone in (False, True):
            enqueue(engine, alone=alone)
        for each in (Ending.CRASHED, ending):
            engine.run(engine.settle(WORKER, [end(lease, each) for lease in claim(engine)]))

        suspect = ending is not Ending.ERRORED
        assert look(
            engine,
            "SELECT l.alone, b.alone FROM shigoto_ready r JOIN shigoto_job b USING (number, lane)"
            " JOIN shigoto_lane l USING (lane) ORDER BY number",
        ) == [(int(suspect), 0), (1, 1)]

    def test_the_table_of_specification_s0_shows_each_job_once(self, engine: SqliteEngine) -> None:
        """S0-6."""
        for alone in (False, True, False):
            enqueue(engine, alone=alone)
        suspect, *_, last = claim(engine)
        engine.run(engine.settle(WORKER, [end(suspect, Ending.CRASHED), end(last, Ending.COMPLETED)]))

        assert look(engine, "SELECT id, job_type, status FROM job_queue ORDER BY id") == [
            (1, "a", "pending"),
            (2, "a", "processing"),
            (3, "a", "completed"),
        ]


class TestWhatOthersPay:
    def test_a_settlement_without_lines_does_not_ask_for_the_log(self, engine: SqliteEngine) -> None:
        enqueue(engine)
        [lease] = claim(engine)
        line = LogLine(1, 0, "INFO", "text")

        quiet = statements_of(engine, engine.settle(WORKER, [end(lease, Ending.COMPLETED)]))
        short = statements_of(
            engine, engine.settle(WORKER, [end(lease, Ending.COMPLETED, LogTail(1, (line,)))])
        )

        assert not any("shigoto_log" in text for text in quiet)
        assert len(short) == len(quiet) + 1

    def test_a_crash_that_changes_nothing_does_not_look_for_a_lane(self, engine: SqliteEngine) -> None:
        enqueue(engine, alone=True)

        texts = statements_of(
            engine, engine.settle(WORKER, [end(lease, Ending.CRASHED) for lease in claim(engine)])
        )

        assert not any("shigoto_lane (" in text or "SET lane" in text for text in texts)


def test_lines_of_a_deleted_job_do_not_stay_in_the_file(engine: SqliteEngine) -> None:
    """I18."""
    for _ in range(2):
        enqueue(engine)
    tail = LogTail(1, (LogLine(1, 0, "INFO", "text"),))
    engine.run(engine.settle(WORKER, [end(lease, Ending.FAILED, tail) for lease in claim(engine)]))
    assert look(engine, "SELECT count(*) FROM shigoto_log") == [(2,)]

    assert engine.run(engine.delete([1, 2], [State.FAILED])) == 2

    assert look(engine, "SELECT count(*) FROM shigoto_log") == [(0,)]
