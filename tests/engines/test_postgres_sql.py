"""The SQL of the PostgreSQL engine by itself: statements can be prepared, functions keep their promises in a crowd.

The suite of all engines says what the verbs mean; here it is what only several sessions at once can show.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import psycopg
import pytest
from msgspec import json
from psycopg import RawCursor, errors

from devtools.postgres import Server
from shigoto.engine.postgres.schema import REMEMBER, shipped
from shigoto.engine.postgres.wire import load_texts
from shigoto.engine.sqlite.dialect import SQL as SQLITE
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.time import Millis
from shigoto.model.worker import CLAIM_BYTES
from tests.postgres import Yard

pytestmark = pytest.mark.engine("postgres")

SQL = load_texts("shigoto")
# What the SQLite engine needs beyond: one writer at a time, numbers that would repeat, counters that count later.
ONLY_ON_SQLITE = {
    "add_husk", "by_queue", "complete_plain", "delete_husk", "drop_ready_row", "fold", "front", "heads", "highest",
    "make_husk", "next_due", "number_of_id", "queue_of_lane", "start", "take_write_lock", "uncounted", "unready",
    "unschedule_promoted", "watch_jobs", "watch_runs", "watched",
}  # fmt: skip
ONLY_HERE = {
    "claim", "complete_by_itself", "enqueue", "enqueue_each", "enqueue_one", "fold_tally", "go_on_after", "known_ids",
    "lock_free", "lock_keys", "now", "renew_clock", "ring",
}  # fmt: skip
# What jobs have in common, in the order of the statements.
SHARED: dict[str, Any] = {
    "tenant": "", "queue": "default", "task": "a", "alone": False, "priority": 0, "delay": 0, "run_at": None,
    "expires_in": None, "expires_at": None, "max_failures": 6, "max_crashes": 3, "retry": None,
    "timeout": None, "soft_timeout": None, "tags": None, "meta": None,
}  # fmt: skip
TIMEOUT = 20.0
MIB = 1024 * 1024

Row = tuple[Any, ...]


class Session:
    """One connection, which runs statements by name."""

    def __init__(self, address: str) -> None:
        self.connection = psycopg.connect(address, autocommit=True, cursor_factory=RawCursor)

    def run(self, name: str, *values: object) -> list[Row]:
        cursor = self.connection.execute(SQL[name], values)
        return [] if cursor.description is None else cursor.fetchall()

    def one(self, name: str, *values: object) -> Any:
        [[value]] = self.run(name, *values)
        return value

    def rows(self, text: str, *values: object) -> list[Row]:
        return self.connection.execute(text, values).fetchall()

    def do(self, text: str) -> None:
        self.connection.execute(text)

    def enqueue(self, task: str, ids: Sequence[UUID], *, ring: bool = False, **options: Any) -> list[int]:
        payloads = [options.pop("payload", "{}")] * len(ids)
        shared = SHARED | {"task": task, "alone": 0} | options
        numbers: list[int] = self.one("enqueue", *shared.values(), list(ids), payloads, int(ring))
        return numbers

    def enqueue_one(self, task: str, id: UUID | None = None, *, ring: bool = False, **options: Any) -> int:
        shared = SHARED | {"task": task} | options
        number: int = self.one("enqueue_one", *shared.values(), id or uuid7(), "{}", ring)
        return number

    def enqueue_each(self, *specs: dict[str, Any], ring: bool = False) -> list[Row]:
        return self.run("enqueue_each", json.encode(specs).decode(), int(ring))

    def announce(self) -> UUID:
        worker = uuid7()
        values = ("w", '["a", "b"]', None, 1, "0", 30_000, self.now(), "", 1, 0, 0, None)
        self.run("announce", worker.bytes, *values)
        return worker

    def claim(
        self, worker: UUID, limit: int = 100, tasks: Sequence[str] = ("a",), **want: Any
    ) -> list[Lease]:
        wants = [
            {"tasks": tasks, "queues": None, "limit": limit, "alone": None, "slices": None, "probes": []}
            | want
        ]
        rows = self.run("claim", worker.bytes, json.encode(wants).decode())
        return sorted(
            (Lease(*row[:-1]) for row in rows if row[-1] is None),
            key=lambda one: (-one.priority, one.run_at, one.number),
        )

    def complete(self, worker: UUID, leases: Sequence[Lease], result: str = "null") -> list[int]:
        numbers, tokens = [one.number for one in leases], [one.token for one in leases]
        accepted: list[int] = self.one("complete", worker.bytes, numbers, tokens, [result] * len(leases))
        return accepted

    def now(self) -> Millis:
        now: Millis = self.one("now")
        return now


class Waiter:
    """Something that another session does meanwhile, which is seen to wait for a lock before anything else happens."""

    def __init__(self, watching: Session, session: Session, action: Callable[[], Any]) -> None:
        self._answer: list[Any] = []
        self._error: list[Exception] = []
        self._action = action
        self._thread = Thread(target=self._run)
        self._thread.start()
        pid = session.connection.info.backend_pid
        while not watching.rows("SELECT cardinality(pg_blocking_pids($1::int)) > 0", pid)[0][0]:
            assert self._thread.is_alive(), self._error or "it did not wait for anybody"

    def _run(self) -> None:
        try:
            self._answer.append(self._action())
        except Exception as error:
            self._error.append(error)

    def result(self) -> Any:
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
        if self._error:
            raise self._error[0]
        return self._answer[0]


def spec(task: str = "a", id: UUID | None = None, **options: Any) -> dict[str, Any]:
    asked = {"id": str(id or uuid7()), "task": task, "queue": "default", "payload": "{}"}
    return asked | {"max_failures": 6, "max_crashes": 3} | options


def ids(count: int) -> list[UUID]:
    return [uuid7() for _ in range(count)]


def migrate(address: str) -> None:
    with psycopg.connect(address) as connection:
        connection.execute("CREATE SCHEMA shigoto")
        connection.execute(REMEMBER.encode())
        for migration in shipped():
            connection.execute(migration.sql.encode())


@pytest.fixture
def session(postgres: Server, postgres_yard: Yard, postgres_major: int) -> Iterator[Callable[[], Session]]:
    """Opens sessions on one empty store, with lanes for the tasks a and b in the queue default."""
    assert postgres.running
    opened: list[Session] = []
    with postgres_yard.emptied(postgres_major, migrate) as address:

        def open_one() -> Session:
            opened.append(Session(address))
            opened[-1].do("SET lock_timeout = '15s'")
            return opened[-1]

        lanes = '[["default", "a", false], ["default", "b", false]]'
        open_one().run("add_queues", lanes)
        opened[0].run("add_lanes", lanes)
        yield open_one
        for each in opened:
            each.connection.close()


class TestStatements:
    def test_every_statement_can_be_prepared_on_a_fresh_schema(self, session: Callable[[], Session]) -> None:
        one = session()

        for name, text in SQL.items():
            one.do(f"PREPARE {name}_ AS {text}")

    def test_every_value_is_cast_but_for_those_that_only_our_wire_sends(self) -> None:
        for name, text in SQL.items():
            assert name == "enqueue_one" or not re.findall(r"\$\d+(?!\d|::)", text), name

    def test_the_names_are_those_of_sqlite_but_for_what_only_one_of_them_needs(self) -> None:
        sqlite = set(SQLITE)

        assert set(SQL) - ONLY_HERE == sqlite - ONLY_ON_SQLITE

    def test_a_call_of_shared_python_names_a_statement_that_is_here(self) -> None:
        folder = Path(__file__).parents[2] / "src/shigoto/engine"
        named = {
            name
            for module in (folder / "sql").glob("*.py")
            for name in re.findall(r"""(?:NamedSql|call|sql\w*)\(\s*"(\w+)\"""", module.read_text())
        }

        assert named <= set(SQL)

    def test_another_schema_can_be_named(self, postgres_database: str) -> None:
        from shigoto.engine.postgres.wire import in_schema

        texts = load_texts("Our jobs")
        with psycopg.connect(postgres_database, autocommit=True, cursor_factory=RawCursor) as connection:
            connection.execute('CREATE SCHEMA "Our jobs"')
            for migration in shipped():
                connection.execute(in_schema(migration.sql, "Our jobs").encode())
            connection.execute('LISTEN "Our jobs"')
            each = json.encode([spec()]).decode()

            [row] = connection.execute(texts["enqueue_each"].encode(), [each, 1]).fetchall()
            [ring] = connection.notifies(timeout=TIMEOUT, stop_after=1)

        assert row == (1, 1, True)
        assert (ring.channel, ring.payload) == ("Our jobs", "")


class TestEnqueue:
    def test_numbers_come_in_the_order_of_the_ids(self, session: Callable[[], Session]) -> None:
        one, new = session(), ids(50)

        numbers = one.enqueue("a", new)

        assert numbers == sorted(numbers)
        known: dict[bytes, int] = dict(one.run("known_ids", json.encode([id.hex for id in new]).decode()))
        assert [known[id.bytes] for id in new] == numbers
        assert one.run("counters") == [("default", 50, 0, 0, 0)]

    def test_a_known_id_fails_the_whole(self, session: Callable[[], Session]) -> None:
        one = session()
        known = ids(1)
        one.enqueue("a", known)

        with pytest.raises(errors.UniqueViolation):
            one.enqueue("a", ids(2) + known)

        assert one.run("counters") == [("default", 1, 0, 0, 0)]
        assert one.rows("SELECT count(*) FROM shigoto.ready") == [(1,)]

    def test_an_unknown_lane_is_an_error(self, session: Callable[[], Session]) -> None:
        one = session()

        with pytest.raises(errors.NoDataFound, match="task c in queue default"):
            one.enqueue("c", ids(1))

    def test_what_is_due_later_is_scheduled_and_what_expires_is_noted(
        self, session: Callable[[], Session]
    ) -> None:
        one = session()

        [late] = one.enqueue("a", ids(1), delay=60_000, expires_in=90_000)
        [soon] = one.enqueue("a", ids(1), run_at=1, expires_at=2)

        assert one.rows("SELECT number FROM shigoto.scheduled") == [(late,)]
        assert one.rows("SELECT number, run_at, expires_at FROM shigoto.ready") == [(soon, 1, 2)]
        assert one.rows("SELECT number FROM shigoto.expiry ORDER BY number") == [(late,), (soon,)]
        assert one.run("due_expiries", one.now(), 10) == [(2, soon, 1)]

    def test_the_doorbell_rings_only_if_it_shall_and_after_the_commit(
        self, session: Callable[[], Session]
    ) -> None:
        one, other = session(), session()
        other.do("LISTEN shigoto")

        one.enqueue("a", ids(1))
        assert list(other.connection.notifies(timeout=0)) == []
        with one.connection.transaction():
            one.enqueue("a", ids(1), ring=True)
            assert list(other.connection.notifies(timeout=0)) == []

        assert [ring.payload for ring in other.connection.notifies(timeout=TIMEOUT, stop_after=1)] == [""]


class TestEnqueueOne:
    def test_it_stores_what_enqueue_stores(self, session: Callable[[], Session]) -> None:
        one = session()
        plain: dict[str, Any] = {}
        full: dict[str, Any] = {
            "tenant": "t", "priority": 5, "alone": True, "run_at": 1, "expires_at": 2, "max_failures": 1,
            "max_crashes": None, "retry": "r", "timeout": 3, "soft_timeout": 4, "tags": '["x"]', "meta": "{}",
        }  # fmt: skip
        later: dict[str, Any] = {"delay": 60_000, "expires_in": 90_000}
        one.run("add_lanes", '[["default", "a", true]]')

        for options in plain, full, later:
            [first] = one.enqueue("a", ids(1), **options | {"alone": int(options.get("alone", False))})
            second = one.enqueue_one("a", **options)

            assert second == first + 1
            assert rows_of(one, second) == rows_of(one, first)
        assert one.run("counters") == [("default", 6, 0, 0, 0)]

    def test_a_known_id_and_an_unknown_lane_are_errors(self, session: Callable[[], Session]) -> None:
        one, known = session(), uuid7()
        one.enqueue_one("a", known)

        with pytest.raises(errors.UniqueViolation):
            one.enqueue_one("a", known)
        with pytest.raises(errors.NoDataFound, match="task c in queue default"):
            one.enqueue_one("c")

        assert one.run("counters") == [("default", 1, 0, 0, 0)]
        assert one.rows("SELECT count(*) FROM shigoto.ready") == [(1,)]

    def test_the_doorbell_rings_only_if_it_shall(self, session: Callable[[], Session]) -> None:
        one, other = session(), session()
        other.do("LISTEN shigoto")

        one.enqueue_one("a")
        assert list(other.connection.notifies(timeout=0)) == []
        one.enqueue_one("a", ring=True)

        assert [ring.payload for ring in other.connection.notifies(timeout=TIMEOUT, stop_after=1)] == [""]

    def test_one_of_thousands_folds_the_counts(self, session: Callable[[], Session]) -> None:
        one = session()
        one.do("ALTER TABLE shigoto.job ALTER number RESTART WITH 4999")

        one.enqueue_one("a")
        assert one.rows("SELECT count(*) FROM shigoto.tally") == [(1,)]
        one.enqueue_one("a")

        assert one.rows("SELECT count(*) FROM shigoto.tally") == [(0,)]
        assert one.rows("SELECT queue, total FROM shigoto.counter") == [("default", 2)]


def rows_of(one: Session, number: int) -> list[list[Row]]:
    """All that is stored of a job, but for its id, its number and the hour."""
    body = (
        "run_at - created_at * (run_at > 1)::int, expires_at - created_at * (expires_at > 2)::int, timeout,"
        " soft_timeout, lane, max_failures, max_crashes, priority, alone, tenant, key, retry, tags, meta, payload"
    )
    ready = "lane, priority, token, settled_token, failures, crashes, solo_crashes, releases, snoozes, solo"
    wanted = {
        "job": body, "ready": ready, "scheduled": ready.replace("priority, ", ""), "expiry": "1"
    }  # fmt: skip
    return [
        one.rows(f"SELECT {columns} FROM shigoto.{table} WHERE number = $1", number)
        for table, columns in wanted.items()
    ]


class TestEnqueueEach:
    def test_jobs_of_any_kind_are_answered_in_order(self, session: Callable[[], Session]) -> None:
        one = session()

        first = one.enqueue_each(
            spec("new", queue="other", alone=True, priority=-5, key="k", tenant="t", expires_in=5_000),
            spec("a", delay=60_000),
            spec("b", max_crashes=None, tags='["x"]', meta="{}", retry="r", timeout=1, soft_timeout=2),
        )

        assert first == [(1, 1, True), (2, 2, True), (3, 3, True)]
        rows = one.run("details", "[3, 1]")
        assert [row[0] for row in rows] == [3, 1]
        assert rows[0][10:19] == (6, None, False, "r", 1, 2, None, '["x"]', "{}")
        assert rows[1][2:7] == ("new", "other", "t", "{}", -5)
        assert (rows[1][12], rows[1][16]) == (True, "k")
        assert sorted(one.run("counters")) == [("default", 2, 0, 0, 0), ("other", 1, 0, 0, 0)]
        assert one.run("scheduled_by_queue") == [("default", 1)]
        assert [row[0] for row in one.run("settings")] == ["default", "other"]

    def test_a_known_id_is_answered_with_the_job_that_has_it(self, session: Callable[[], Session]) -> None:
        one = session()
        known, twice = ids(2)
        [number] = one.enqueue("a", [known])

        rows = one.enqueue_each(spec(id=twice), spec(id=known), spec(id=twice), spec())

        stored = [row[0] for row in one.rows("SELECT number FROM shigoto.job ORDER BY number")]
        first, last = stored[1], stored[2]
        assert rows == [(1, first, True), (2, number, False), (3, first, False), (4, last, True)]
        assert one.run("counters") == [("default", 3, 0, 0, 0)]

    def test_an_id_that_another_has_inserted_meanwhile_is_found_when_that_commits(
        self, session: Callable[[], Session]
    ) -> None:
        one, other, watching = session(), session(), session()
        contested = uuid7()
        with one.connection.transaction():
            [number] = one.enqueue("a", [contested])
            waiter = Waiter(watching, other, lambda: other.enqueue_each(spec(), spec(id=contested)))

        [first, second] = waiter.result()

        assert (first[0], first[2]) == (1, True)
        assert second == (2, number, False)
        assert one.run("counters") == [("default", 2, 0, 0, 0)]

    def test_an_id_that_another_has_given_up_meanwhile_is_inserted(
        self, session: Callable[[], Session]
    ) -> None:
        one, other, watching = session(), session(), session()
        contested = uuid7()
        one.do("BEGIN")
        one.enqueue("a", [contested])
        waiter = Waiter(watching, other, lambda: other.enqueue_each(spec(id=contested)))
        one.do("ROLLBACK")

        [[place, number, inserted]] = waiter.result()

        assert (place, inserted) == (1, True)
        assert one.run("known_ids", f'["{contested.hex}"]') == [(contested.bytes, number)]

    def test_two_who_add_one_lane_get_the_same(self, session: Callable[[], Session]) -> None:
        one, other, watching = session(), session(), session()
        with one.connection.transaction():
            one.enqueue_each(spec("new", queue="q"))
            waiter = Waiter(watching, other, lambda: other.enqueue_each(spec("new", queue="q")))

        assert waiter.result()[0][2]
        assert len(one.rows("SELECT lane FROM shigoto.lane WHERE task = 'new'")) == 1
        assert one.run("counters") == [("q", 2, 0, 0, 0)]


class TestClaim:
    def test_best_first_over_lanes_and_priorities(self, session: Callable[[], Session]) -> None:
        one = session()
        worker = one.announce()
        order = [("b", 5, 3), ("a", 5, 4), ("a", 0, 1), ("b", 0, 2), ("a", -1, 0)]
        for task, priority, run_at in reversed(order):
            one.enqueue(task, ids(1), priority=priority, run_at=run_at)

        first = one.claim(worker, limit=3, tasks=("a", "b"))
        rest = one.claim(worker, tasks=("b", "a"))

        assert [(lease.task, lease.priority, lease.run_at) for lease in first] == order[:3]
        assert [(lease.task, lease.priority, lease.run_at) for lease in rest] == order[3:]

    def test_a_lease_tells_all_that_a_worker_needs(self, session: Callable[[], Session]) -> None:
        one = session()
        worker, id = one.announce(), uuid7()
        one.enqueue_each(
            spec("a", id, tenant="t", key="k", retry="r", timeout=1, soft_timeout=2, tags='["x"]', meta="{}",
                 alone=True, payload='{"n": 1}', priority=7, run_at=9)
        )  # fmt: skip
        [number] = [row[0] for row in one.rows("SELECT number FROM shigoto.job")]
        one.run("note_progress", json.encode([(number, 0.5, "half", "there")]).decode())
        one.do("UPDATE shigoto.ready SET token = 5, failures = 1, releases = 2, snoozes = 1")

        [lease] = one.claim(worker)

        assert lease == Lease(
            number, 6, id, "a", "default", 3, 1, 1, 6, 7, 9, lease.claimed_at, False, "t", "k", "r", 1, 2, '["x"]',
            "{}", "there", True, '{"n": 1}',
        )  # fmt: skip
        assert lease.claimed_at <= one.now()
        assert one.run("holds", f"[[{number},6],[{number},5]]", worker.bytes) == [(number, 6)]
        assert one.run("running_by_queue") == [("default", 1)]

    def test_what_is_not_wanted_is_not_given(self, session: Callable[[], Session]) -> None:
        one = session()
        worker = one.announce()
        [wanted] = one.enqueue("a", ids(1))
        one.enqueue("b", ids(1))
        one.enqueue_each(spec("a", queue="other"), spec("a", alone=True))

        leases = one.claim(worker, queues=["default"], alone=False)

        assert [lease.number for lease in leases] == [wanted]
        assert one.claim(worker, limit=0, tasks=("a", "b")) == []

    def test_each_want_is_answered_by_itself(self, session: Callable[[], Session]) -> None:
        one = session()
        worker = one.announce()
        one.enqueue("a", ids(3))
        one.enqueue("b", ids(3))
        wants = [
            {"tasks": [task], "queues": None, "limit": 2, "alone": None, "slices": None, "probes": []}
            for task in "ab"
        ]

        rows = one.run("claim", worker.bytes, json.encode(wants).decode())

        assert [row[3] for row in rows] == ["a", "a", None, "b", "b", None]
        assert [row[-1] is None for row in rows] == [True, True, False, True, True, False]

    def test_a_paused_queue_and_expired_jobs_are_passed_over(self, session: Callable[[], Session]) -> None:
        one = session()
        worker = one.announce()
        one.enqueue("a", ids(1), expires_at=1)
        [good] = one.enqueue("a", ids(1), expires_in=60_000)
        one.run("configure", "default", 1, None, None, None, None)

        assert one.claim(worker) == []
        one.run("configure", "default", 0, None, None, None, None)

        assert [lease.number for lease in one.claim(worker)] == [good]

    def test_a_fenced_or_unknown_worker_gets_nothing(self, session: Callable[[], Session]) -> None:
        one = session()
        worker = one.announce()
        one.enqueue("a", ids(1))
        one.do("UPDATE shigoto.worker SET fenced_at = 1")

        assert one.claim(worker) == []
        assert one.claim(uuid7()) == []

    @pytest.mark.parametrize("tasks", [("a",), ("a", "b")])
    def test_only_what_is_in_a_slice_is_looked_at(
        self, session: Callable[[], Session], tasks: tuple[str, ...]
    ) -> None:
        one = session()
        worker = one.announce()
        for task in tasks:
            for priority in (2, 1, 0):
                one.enqueue(task, ids(3), priority=priority, run_at=5)
        line = [
            (row[0], row[1]) for row in one.rows("SELECT priority, number FROM shigoto.ready ORDER BY 1, 2")
        ]
        first, second, third = (
            [number for priority, number in line if priority == each] for each in (-2, -1, 0)
        )

        slices = [[-2, 5, first[1], -2], [0, 5, third[-2], 9]]
        leases = one.claim(worker, tasks=tasks, slices=slices)
        rest = one.claim(worker, tasks=tasks)

        assert [lease.number for lease in leases] == [*first[2:], third[-1]]
        assert [lease.number for lease in rest] == [*first[:2], *second, *third[:-1]]

    @pytest.mark.parametrize("tasks", [("a",), ("a", "b")])
    def test_everything_is_looked_at_if_there_is_anything_in_a_probe(
        self, session: Callable[[], Session], tasks: tuple[str, ...]
    ) -> None:
        one = session()
        worker = one.announce()
        for task in tasks:
            one.enqueue(task, ids(3), priority=4, run_at=5)
        slices = [[-4, 5, 10**9, 9]]
        last = one.rows("SELECT max(number) FROM shigoto.ready")[0][0]
        vain = [[-4, 5, last, 9, 0], [-5, 0, 0, 9, 0], [-4, 0, 0, 5, 0]]

        assert one.claim(worker, tasks=tasks, slices=slices, probes=vain) == []
        assert len(
            one.claim(worker, tasks=tasks, slices=slices, probes=[*vain, [-4, 5, last - 1, 5, last]])
        ) == (3 * len(tasks))

    @pytest.mark.parametrize("tasks", [("a",), ("a", "b")])
    def test_a_claim_tells_how_many_places_are_left_of_what_is_gone(
        self, session: Callable[[], Session], tasks: tuple[str, ...]
    ) -> None:
        """X8: a snapshot keeps them in the index, and a look from the front walks over all of them."""
        one, holder = session(), session()
        worker = one.announce()
        holder.do("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.rows("SELECT 1")
        for task in tasks:
            one.enqueue(task, ids(600), run_at=5)
        taken = [lease for task in tasks for lease in one.claim(worker, limit=500, tasks=(task,))]
        last = [0, 5, taken[499].number]

        def dead(slices: Any) -> int:
            want = {
                "tasks": tasks,
                "queues": None,
                "limit": 10,
                "alone": None,
                "slices": slices,
                "probes": [],
            }
            rows = one.run("claim", worker.bytes, json.encode([want]).decode())
            assert len(rows) == 11
            told: int = rows[-1][-1]
            return told

        assert len(taken) == 500 * len(tasks)
        assert dead(None) >= 500 * len(tasks)
        assert dead([[*last, 1]]) <= (10 if tasks == ("a",) else 2_000)
        holder.do("ROLLBACK")

    @pytest.mark.parametrize("tasks", [("a",), ("a", "b")])
    def test_two_at_once_never_get_one_job(
        self, session: Callable[[], Session], tasks: tuple[str, ...]
    ) -> None:
        one, other = session(), session()
        for task in tasks:
            one.enqueue(task, ids(5))
        worker, second = one.announce(), one.announce()
        with one.connection.transaction():
            mine = one.claim(worker, limit=5, tasks=tasks)
            theirs = other.claim(second, tasks=tasks)
            nothing = other.claim(second, tasks=tasks)

        assert len(mine) == 5
        assert len(theirs) == 5 * len(tasks) - 5
        assert nothing == []
        assert not {lease.number for lease in mine} & {lease.number for lease in theirs}

    def test_a_lane_whose_best_are_taken_does_not_hide_the_others(
        self, session: Callable[[], Session]
    ) -> None:
        one, other = session(), session()
        worker, second = one.announce(), one.announce()
        one.enqueue("a", ids(5), priority=9)
        one.enqueue("b", ids(5))

        with one.connection.transaction():
            assert len(one.claim(worker)) == 5
            theirs = other.claim(second, limit=3, tasks=("a", "b"))

        assert [lease.task for lease in theirs] == ["b"] * 3

    @pytest.mark.parametrize("tasks", [("a",), ("a", "b")])
    def test_large_payloads_end_a_claim_early_with_the_best_of_all_lanes(
        self, session: Callable[[], Session], tasks: tuple[str, ...]
    ) -> None:
        one = session()
        worker = one.announce()
        for run_at in range(1, 7):
            for task in tasks:
                one.enqueue(task, ids(1), run_at=run_at, payload=f'"{"x" * (3 * MIB)}"')

        first = one.claim(worker, tasks=tasks)

        assert len(first) == 3
        assert sum(len(lease.payload) for lease in first[:-1]) < CLAIM_BYTES
        assert [lease.run_at for lease in first] == ([1, 2, 3] if len(tasks) == 1 else [1, 1, 2])
        assert len(one.claim(worker, tasks=tasks)) == 3

    def test_the_best_come_first_however_unequal_the_lanes_are(self, session: Callable[[], Session]) -> None:
        """S0-16: of many lanes one may have nearly all of the best."""
        one = session()
        worker = one.announce()
        jobs = [("t0", at) for at in range(1, 41)]
        jobs += [(f"t{lane}", 30 + 7 * at + lane) for lane in range(1, 24) for at in range(6)]
        one.enqueue_each(*[spec(task, run_at=at, payload=f"{at}") for task, at in jobs])
        tasks = [f"t{lane}" for lane in range(24)]
        taken: list[int] = []
        for limit in (1, 20, 30, 3, 200):
            found = [lease.run_at for lease in one.claim(worker, limit=limit, tasks=tasks)]
            assert len(found) == min(limit, len(jobs) - len(taken))
            taken += found

        assert taken == sorted(at for _, at in jobs)


class TestComplete:
    def test_only_what_is_held_by_this_very_lease_is_accepted(self, session: Callable[[], Session]) -> None:
        one = session()
        worker, second = one.announce(), one.announce()
        one.enqueue("a", ids(4))
        first = one.claim(worker, limit=3)
        theirs = one.claim(second)

        accepted = one.complete(worker, [first[0], theirs[0]], result='"fine"')
        wrong_token = one.one("complete", worker.bytes, [first[1].number], [first[1].token + 1], ["null"])

        assert accepted == [first[0].number]
        assert wrong_token == []
        assert one.rows("SELECT number, state, token, settled_token, result FROM shigoto.done") == [
            (first[0].number, 3, 1, 1, '"fine"')
        ]
        assert one.complete(worker, first) == [first[1].number, first[2].number]
        assert one.run("settled_tokens", f"[{first[0].number}]") == [(first[0].number, 1)]
        assert one.run("counters") == [("default", 4, 3, 0, 0)]
        assert one.rows("SELECT number FROM shigoto.running") == [(theirs[0].number,)]

    def test_a_request_to_cancel_that_comes_in_between_is_kept(self, session: Callable[[], Session]) -> None:
        one, other, watching = session(), session(), session()
        worker = one.announce()
        one.enqueue("a", ids(2))
        leases = one.claim(worker)
        with one.connection.transaction():
            one.run("request_cancel", f"[{leases[0].number}]", 77)
            waiter = Waiter(watching, other, lambda: other.complete(worker, leases))

        assert waiter.result() == [lease.number for lease in leases]
        assert one.rows("SELECT cancel_requested_at FROM shigoto.done ORDER BY number") == [(77,), (None,)]
        assert one.rows("SELECT count(*) FROM shigoto.running") == [(0,)]

    def test_what_was_taken_away_meanwhile_is_refused(self, session: Callable[[], Session]) -> None:
        one, other, watching = session(), session(), session()
        worker = one.announce()
        one.enqueue("a", ids(2))
        leases = one.claim(worker)
        with one.connection.transaction():
            one.run("held", json.encode([(leases[0].number, 1)]).decode(), worker.bytes)
            one.run("stop_running", f"[{leases[0].number}]")
            waiter = Waiter(watching, other, lambda: other.complete(worker, leases))

        assert waiter.result() == [leases[1].number]


class TestLocks:
    def test_the_state_is_that_of_the_table_which_holds_the_job(self, session: Callable[[], Session]) -> None:
        one = session()
        worker = one.announce()
        [running] = one.enqueue("a", ids(1))
        leases = one.claim(worker)
        [ready], [scheduled] = one.enqueue("a", ids(1)), one.enqueue("a", ids(1), delay=60_000)
        [blocked], [nowhere] = one.enqueue("a", ids(1)), one.enqueue("a", ids(1))
        one.do(f"DELETE FROM shigoto.ready WHERE number IN ({blocked}, {nowhere})")
        one.do(f"INSERT INTO shigoto.blocked VALUES ({blocked}, 1)")

        states = one.run("states_of", json.encode([running, ready, scheduled, blocked, nowhere, 99]).decode())

        assert sorted(states) == [
            (running, 2, "default"), (ready, 1, "default"), (scheduled, 1, "default"), (blocked, 6, "default"),
        ]  # fmt: skip
        text = f"SELECT * FROM shigoto.%s(ARRAY[{running}, {ready}, {scheduled}, {blocked}, {nowhere}, 99]) s"
        every = [(running, 2), (ready, 1), (scheduled, 1), (blocked, 6)]
        assert one.rows(text % "seen_states") == [*every, (nowhere, None), (99, None)]
        assert one.rows(text % "free_states") == [*every, (nowhere, 0), (99, 0)]
        one.complete(worker, leases)
        assert one.run("states_of", f"[{running}]") == [(running, 3, "default")]

    def test_a_job_that_moves_while_it_is_waited_for_is_found_where_it_went(
        self, session: Callable[[], Session]
    ) -> None:
        one, other, watching = session(), session(), session()
        worker = one.announce()
        [number] = one.enqueue("a", ids(1))
        with one.connection.transaction():
            leases = one.claim(worker)
            waiter = Waiter(watching, other, lambda: other.run("states_of", f"[{number}]"))
        assert waiter.result() == [(number, 2, "default")]

        with one.connection.transaction():
            one.complete(worker, leases)
            waiter = Waiter(watching, other, lambda: other.run("states_of", f"[{number}]"))
        assert waiter.result() == [(number, 3, "default")]

    def test_what_was_asked_for_stays_as_it_is_until_the_end(self, session: Callable[[], Session]) -> None:
        one, other, watching = session(), session(), session()
        worker = one.announce()
        [number] = one.enqueue("a", ids(1))
        with one.connection.transaction():
            assert one.run("states_of", f"[{number}]") == [(number, 1, "default")]
            assert other.claim(worker) == []
            assert other.rows(f"SELECT * FROM shigoto.free_states(ARRAY[{number}])") == []
        leases = other.claim(worker)
        with one.connection.transaction():
            assert one.run("states_of", f"[{number}]") == [(number, 2, "default")]
            waiter = Waiter(watching, other, lambda: other.complete(worker, leases))
            one.run("request_cancel", f"[{number}]", 5)

        assert waiter.result() == [number]

    def test_enqueues_of_one_key_queue_up_and_the_second_sees_the_first(
        self, session: Callable[[], Session]
    ) -> None:
        one, other, watching = session(), session(), session()
        id = uuid7()
        with one.connection.transaction():
            one.run("lock_keys", '[["t", "k"]]')
            assert one.run("key_holders", '[["t", "k"]]') == []
            waiter = Waiter(watching, other, lambda: other.run("lock_keys", '[["t", "j"], ["t", "k"]]'))
            [[_, number, _]] = one.enqueue_each(spec(id=id, key="k", tenant="t"))
            one.run("take_keys", json.encode([("t", "k", number)]).decode())

        waiter.result()
        assert other.run("key_holders", '[["t", "j"], ["t", "k"]]') == [(1, number, id.bytes, 1)]

    def test_a_waiting_row_is_found_where_it_waits(self, session: Callable[[], Session]) -> None:
        one = session()
        worker = one.announce()
        [ready], [scheduled] = one.enqueue("a", ids(1), run_at=5), one.enqueue("a", ids(1), run_at=2**50)
        asked = json.encode([ready, scheduled]).decode()

        assert [row[4:7] for row in one.run("waiting_rows", asked)] == [(0, 5, None), (0, 2**50, None)]

        one.claim(worker)

        assert [row[0] for row in one.run("waiting_rows", asked)] == [scheduled]


class TestRepair:
    def test_promotion_moves_what_is_due_in_order(self, session: Callable[[], Session]) -> None:
        one, other = session(), session()
        assert one.run("promote", 10) == [(0, None)]
        due = one.now() + 60_000
        numbers = [one.enqueue("a", ids(1), run_at=due + at, priority=3)[0] for at in (2, 1, 3, 600_000)]
        [[moved, next_in]] = one.run("promote", 10)
        assert (moved, 50_000 < next_in <= 60_001) == (0, True)
        one.do("UPDATE shigoto.job SET run_at = run_at - 100000")
        one.do("UPDATE shigoto.scheduled SET run_at = run_at - 100000")
        with one.connection.transaction():
            assert one.run("promote", 1) == [(1, 0)]
            [[moved, _]] = other.run("promote", 10)

        assert moved == 2
        assert one.rows("SELECT number, priority FROM shigoto.ready ORDER BY run_at") == [
            (numbers[1], -3), (numbers[0], -3), (numbers[2], -3),
        ]  # fmt: skip
        [[moved, next_in]] = one.run("promote", 10)
        assert (moved, 500_000 < next_in < 600_000) == (0, True)

    def test_sweeps_at_once_count_everything_once(self, session: Callable[[], Session]) -> None:
        one, other = session(), session()
        worker = one.announce()
        one.enqueue("a", ids(5))
        one.complete(worker, one.claim(worker, limit=2))
        with one.connection.transaction():
            one.run("fold_tally")
            other.enqueue("a", ids(1))
            other.run("fold_tally")
            assert other.run("counters") == [("default", 6, 2, 0, 0)]
            assert one.run("counters") == [("default", 6, 2, 0, 0)]

        other.run("fold_tally")

        assert one.rows("SELECT count(*) FROM shigoto.tally") == [(0,)]
        assert one.run("counters") == [("default", 6, 2, 0, 0)]

    def test_producers_fold_now_and_then_since_nobody_else_may_be_there(
        self, session: Callable[[], Session]
    ) -> None:
        one = session()
        tally = "SELECT count(*) FROM shigoto.tally"
        one.rows("SELECT setval('shigoto.job_number_seq', 4997)")
        one.enqueue("a", ids(2))
        assert one.rows(tally) == [(1,)]
        one.enqueue("a", ids(1))
        assert one.rows(tally) == [(0,)]
        one.enqueue("a", ids(1))
        assert one.rows(tally) == [(1,)]
        one.rows("SELECT setval('shigoto.job_number_seq', 9990)")
        one.enqueue("a", ids(30))

        assert one.rows(tally) == [(0,)]
        assert one.run("counters") == [("default", 34, 0, 0, 0)]

    def test_a_step_back_of_the_clock_is_told_to_one_only(self, session: Callable[[], Session]) -> None:
        one, other = session(), session()
        assert one.run("renew_clock")[0][0] == 0
        [[mark]] = one.rows("SELECT mark FROM shigoto.clock")
        assert abs(mark - one.now()) < 5_000
        one.do("UPDATE shigoto.clock SET mark = mark + 3600000")
        with one.connection.transaction():
            step = one.run("renew_clock")[0][0]
            assert other.run("renew_clock")[0][0] == 0

        assert 3_590_000 < step <= 3_600_000
        assert other.run("renew_clock")[0][0] == 0
        assert abs(one.run("meta", "clock")[0][0] - one.now()) < 5_000

    def test_a_small_step_back_stands_still(self, session: Callable[[], Session]) -> None:
        one = session()
        mark = one.now() + 50_000
        one.do(f"UPDATE shigoto.clock SET mark = {mark}")

        assert (one.now(), one.run("renew_clock")[0][0], one.now()) == (mark, 0, mark)

    def test_history_that_somebody_has_locked_is_kept_and_the_rest_is_told(
        self, session: Callable[[], Session]
    ) -> None:
        one, other = session(), session()
        worker = one.announce()
        numbers = one.enqueue("a", ids(3))
        one.complete(worker, one.claim(worker))
        one.do("UPDATE shigoto.done SET finished_at = 5")
        one.do(f"UPDATE shigoto.done SET finished_at = 2^50 WHERE number = {numbers[2]}")
        with one.connection.transaction():
            one.run("states_of", f"[{numbers[0]}]")
            with other.connection.transaction():
                rows = other.run("history_from", 0, 10, 1_000, 1, 1)
                assert other.rows("SELECT number FROM shigoto.done FOR UPDATE SKIP LOCKED") == [
                    (numbers[1],), (numbers[2],),
                ]  # fmt: skip

        assert [row[0] for row in rows] == numbers
        assert [row[4] == 1_000 for row in rows] == [False, True, True]
        assert rows[0][2] + rows[0][4] > one.now()

    def test_history_that_is_no_job_is_walked_over(self, session: Callable[[], Session]) -> None:
        one = session()
        worker = one.announce()
        numbers = one.enqueue("a", ids(3))
        one.complete(worker, one.claim(worker))
        one.do("UPDATE shigoto.done SET finished_at = 5")
        one.do(f"DELETE FROM shigoto.job WHERE number = {numbers[0]}")

        rows = one.run("history_from", 0, 2, 1, 1, 1)

        assert [row[0] for row in rows] == numbers[:2]
        assert [row[2] + row[4] < one.now() for row in rows] == [False, True]

    def test_deletion_leaves_nothing_behind(self, session: Callable[[], Session]) -> None:
        one = session()
        one.enqueue_each(spec(key="k", expires_in=5), spec(key="k", delay=9_000, expires_in=5))
        one.run("take_keys", '[["", "k", 2]]')
        for number in (1, 2):
            one.run("add_log_line", json.encode([(number, 1, 1, 1, "info", "x")]).decode())
            one.run("add_attempt", json.encode([(number, 1, "errored", "x", None, 1, 2)]).decode())
            one.run("note_progress", json.encode([(number, None, None, "c")]).decode())
        done = (1, 4, 0, 0, 0, 0, 0, 0, 0, None, 5, None, "error", "x")
        one.run("add_done", json.encode([done]).decode())
        for name in (
            "keys",
            "expiries",
            "ready",
            "scheduled",
            "attempts",
            "logs",
            "progress",
            "done",
            "jobs",
        ):
            one.run(f"delete_{name}", "[1, 2]")

        for table in ("key", "expiry", "ready", "scheduled", "attempt", "log", "progress", "done", "job"):
            assert one.rows(f"SELECT count(*) FROM shigoto.{table}") == [(0,)], table

    def test_what_nobody_knows_is_found_by_lane_and_priority(self, session: Callable[[], Session]) -> None:
        one, other = session(), session()
        one.enqueue_each(*[spec("c", run_at=at, priority=p) for p in (1, 2) for at in (1, 2)], spec("a"))
        one.do("UPDATE shigoto.job SET created_at = 0")
        one.announce()
        [[lane, task]] = one.run("unknown_lanes")
        one.run("note_unknown", json.encode([task]).decode(), 0)
        with one.connection.transaction():
            found = one.run("overdue_unknown", f"[{lane}]", 2, 5, 10)
            assert other.run("overdue_unknown", f"[{lane}]", 2, 5, 10) == []

        assert task == "c"
        assert found == [(3, "c"), (1, "c")]

    def test_orphans_are_given_to_one_sweep(self, session: Callable[[], Session]) -> None:
        one, other = session(), session()
        worker = one.announce()
        one.enqueue("a", ids(2))
        one.claim(worker)
        assert one.run("orphans", 10) == []
        one.do("UPDATE shigoto.worker SET fenced_at = 1")
        with one.connection.transaction():
            assert one.run("orphans", 10) == [(n, worker.bytes, "w", False) for n in (1, 2)]
            assert other.run("orphans", 10) == []
        assert one.one("count_orphans") == 2


def test_the_view_of_s0_tells_of_every_job(session: Callable[[], Session]) -> None:
    """S0-1."""
    one = session()
    worker = one.announce()
    one.enqueue("a", ids(2), max_failures=4)
    one.complete(worker, one.claim(worker, limit=1))
    one.enqueue("b", ids(1), delay=60_000)

    rows = one.rows(
        "SELECT id, job_type, payload, status, priority, max_retries, retry_count, error_message,"
        " started_at IS NULL, completed_at IS NULL, scheduled_at >= created_at FROM shigoto.job_queue ORDER BY id"
    )

    assert rows == [
        (1, "a", "{}", "completed", 0, 3, 0, None, False, False, True),
        (2, "a", "{}", "pending", 0, 3, 0, None, True, True, True),
        (3, "b", "{}", "pending", 0, 5, 0, None, True, True, True),
    ]
