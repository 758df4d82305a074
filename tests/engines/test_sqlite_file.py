"""What is special to the SQLite engine: one file, many processes, and everything that can be wrong with a file."""

import asyncio
import contextlib
import faulthandler
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from shigoto.engine.op import Op, drive
from shigoto.engine.open import open_engine
from shigoto.engine.sql.commands import SqlText, Steps
from shigoto.engine.sqlite import SqliteEngine, doorbell, file
from shigoto.engine.sqlite.dialect import execute
from shigoto.model.errors import JobError, SchemaMissing, SchemaTooNew, StoreRefused, StoreUnavailable
from shigoto.model.ids import uuid7
from shigoto.model.job import Enqueued, JobFilter, JobSpec, State
from shigoto.model.worker import Announcement, Ending, Settlement, SweepOrder, Want

pytestmark = pytest.mark.engine("sqlite")

spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def engine(path: Path) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(path)
    yield engine
    engine.close()


def spec(task: str = "a", **changes: object) -> JobSpec:
    return JobSpec(**{"id": uuid7(), "task": task, "queue": "default", "payload": "{}", **changes})  # type: ignore[arg-type]


def announcement(worker: UUID) -> Announcement:
    return Announcement(id=worker, name="w", tasks=("a",), queues=None, slots=1, version="0", lease=30_000)


def work(engine: SqliteEngine, *endings: Ending) -> None:
    """Claim one job per ending and end it so."""
    worker = uuid7()
    engine.run(engine.announce(announcement(worker)))
    for ending in endings:
        (lease,) = engine.run(engine.claim(worker, [Want(tasks=("a",), queues=None, limit=1)]))
        settlement = Settlement(
            number=lease.number,
            token=lease.token,
            queue=lease.queue,
            ending=ending,
            result='"ok"' if ending is Ending.COMPLETED else None,
            error=None if ending is Ending.COMPLETED else "ValueError: no",
            delay=300_000,
        )
        engine.run(engine.settle(worker, [settlement]))


class TestTheFile:
    def test_is_created_with_its_schema_by_the_first_operation(
        self, engine: SqliteEngine, path: Path
    ) -> None:
        """S0-48: initialisation connects, checks and creates the tables if they do not exist."""
        assert not path.exists()

        assert engine.run(engine.stats()) == {}
        assert path.exists()

    def test_migrating_twice_applies_once(self, path: Path) -> None:
        assert SqliteEngine(path).migrate() == ["0001_spine", "0002_schedules", "0003_service"]
        assert SqliteEngine(path).migrate() == []

    def test_a_store_that_is_in_use_gets_what_the_service_needs(self, path: Path) -> None:
        engine = SqliteEngine(path)
        engine.migrate()
        [job] = engine.run(engine.enqueue_many([spec()]))
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(
                "DROP TABLE shigoto_token; DROP TABLE shigoto_audit;"
                " DELETE FROM shigoto_migration WHERE name = 'service'"
            )
        engine.close()

        again = SqliteEngine(path)
        assert again.migrate() == ["0003_service"]
        assert again.run(again.registry.tokens()) == []
        assert again.run(again.get([job.id])) != [None]
        again.close()

    def test_eight_processes_that_open_it_at_once_migrate_it_once(self, path: Path) -> None:
        with spawn.Pool(4) as pool:
            applied = pool.map(migrate, [path] * 8)

        assert sorted(applied, reverse=True) == [["0001_spine", "0002_schedules", "0003_service"], *[[]] * 7]

    def test_keeps_every_commit_on_disk_by_default(self, engine: SqliteEngine) -> None:
        def look() -> Steps[list[object]]:
            synchronous = (yield SqlText("PRAGMA synchronous")).fetchone()[0]
            journal_mode = (yield SqlText("PRAGMA journal_mode")).fetchone()[0]
            wal_autocheckpoint = (yield SqlText("PRAGMA wal_autocheckpoint")).fetchone()[0]
            return [synchronous, journal_mode, wal_autocheckpoint]

        theirs = engine.connect()
        expected = [2, "wal", 0]
        assert engine.run(Op(start=look, mode="read")) == expected
        assert engine.run(Op(start=look)) == expected
        assert drive(look(), lambda command: execute(theirs, command)) == expected
        assert theirs.isolation_level == "IMMEDIATE"
        theirs.close()

    def test_is_checkpointed_once_for_each_limit_of_new_log(
        self, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file, "WAL_LIMIT", 6 * 1024 * 1024)
        runs: list[object] = []
        run = file.Checkpointer.run

        def counted(self: file.Checkpointer, *args: Any) -> None:
            runs.append(args)
            run(self, *args)

        monkeypatch.setattr(file.Checkpointer, "run", counted)
        big = spec(payload='"' + "x" * 500_000 + '"')
        engine.run(engine.enqueue_many([structs.replace(big, id=uuid7()) for _ in range(20)]))

        for _ in range(1_000):
            engine.run(engine.enqueue_many([spec()]))

        assert 1 <= len(runs) <= 4

    def test_synchronous_normal_is_an_option_of_the_address(self, path: Path) -> None:
        engine = open_engine(f"sqlite:///{path}?synchronous=normal")
        assert isinstance(engine, SqliteEngine)
        with engine.connect() as connection:
            assert connection.execute("PRAGMA synchronous").fetchone() == (1,)
        connection.close()
        engine.close()

    def test_the_write_ahead_log_stays_bounded_under_load(
        self, engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file, "WAL_LIMIT", 200_000)

        for _ in range(300):
            engine.run(engine.enqueue_many([spec(payload='"' + "x" * 10_000 + '"')]))

        assert path.with_name("jobs.db-wal").stat().st_size < 1_000_000
        assert path.stat().st_size > 3_000_000


class TestAFileThatMustNotBeUsed:
    def test_a_newer_schema_is_refused_and_left_alone(self, path: Path) -> None:
        SqliteEngine(path).migrate()
        with sqlite3.connect(path) as connection:
            connection.execute("INSERT INTO shigoto_migration VALUES (9999, 'future', 'x', 0)")
        connection.close()

        with pytest.raises(SchemaTooNew, match=r"version 9999.*Upgrade shigoto"):
            SqliteEngine(path).migrate()

    def test_an_edited_migration_is_refused(self, path: Path) -> None:
        SqliteEngine(path).migrate()
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE shigoto_migration SET checksum = 'x'")
        connection.close()

        with pytest.raises(StoreRefused, match="differs from the one in this release"):
            SqliteEngine(path).migrate()

    def test_a_file_that_is_no_database_is_refused_and_left_alone(self, path: Path) -> None:
        path.write_text("hello, this is a text file and not a database at all " * 50)

        with pytest.raises(StoreRefused, match="not an SQLite database"):
            SqliteEngine(path).migrate()
        assert path.read_text().startswith("hello")

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(StoreRefused, match=r"folder of .* does not exist"):
            SqliteEngine(tmp_path / "nowhere" / "jobs.db").migrate()

    def test_a_folder_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(StoreRefused, match="is a folder"):
            SqliteEngine(tmp_path).migrate()

    @pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
    def test_a_network_file_system_is_refused(
        self, path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file, "file_system", lambda folder: kind)

        with pytest.raises(StoreRefused, match=f"network file system \\({kind}\\)"):
            SqliteEngine(path).migrate()
        assert not path.exists()

    def test_the_file_system_is_read_from_the_innermost_mount(self, tmp_path: Path) -> None:
        mounts = tmp_path / "mountinfo"
        mounts.write_text(
            "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
            f"22 21 0:5 / {tmp_path} rw shared:1 - nfs4 server:/export rw\n"
            f"23 21 0:6 / {tmp_path}-other rw - tmpfs tmpfs rw\n"
        )

        assert file.file_system(tmp_path, mounts) == "nfs4"
        assert file.file_system(Path("/"), mounts) == "ext4"
        odd = tmp_path / "ジョブ \\ x"
        odd.mkdir()
        escaped = os.fsencode(odd).replace(b"\\", rb"\134").replace(b" ", rb"\040")
        mounts.write_bytes(
            b"21 1 8:1 / / rw - ext4 a rw\n22 1 0:5 / "
            + escaped
            + b" rw - cifs b rw\n23 1 0:6 / /\xff rw - x y z\n"
        )
        assert file.file_system(odd, mounts) == "cifs"
        assert file.file_system(tmp_path, tmp_path / "absent") == ""

    @pytest.mark.parametrize(
        ("url", "said"),
        [
            ("sqlite://jobs.db", "three slashes"),
            ("sqlite:///", "names no file"),
            ("sqlite://[::1]/x.db", "three slashes"),
            ("sqlite:///a\0b.db", "cannot be the path of a store"),
            ("sqlite:///:memory:", "memory: for no file"),
            ("sqlite:///x.db?synchronus=normal", "Did you mean 'synchronous'"),
            ("sqlite:///x.db?synchronous=off", "'full' or 'normal'"),
            ("sqllite:///x.db", "Did you mean 'sqlite'"),
        ],
    )
    def test_a_wrong_address_is_explained(self, url: str, said: str) -> None:
        with pytest.raises(StoreRefused, match=said):
            open_engine(url)

    def test_a_name_that_is_too_long_is_explained(self, tmp_path: Path) -> None:
        with pytest.raises(StoreRefused, match="cannot be the path of a store"):
            SqliteEngine(tmp_path / ("x" * 300)).migrate()

    def test_a_file_name_may_hold_what_means_something_in_other_addresses(self, tmp_path: Path) -> None:
        engine = open_engine(f"sqlite:///{tmp_path}/a#b;c%20d.db")
        engine.migrate()
        engine.close()

        assert (tmp_path / "a#b;c d.db").exists()

    def test_a_read_only_file_is_an_error_that_says_so(self, path: Path) -> None:
        SqliteEngine(path).migrate()
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        with pytest.raises(sqlite3.OperationalError) as caught:
            connection.execute("DELETE FROM shigoto_meta")
        connection.close()

        error = file.wrapped(caught.value, path)
        assert isinstance(error, StoreUnavailable)
        assert "cannot be opened for writing" in str(error)


class TestManyUsersOfOneFile:
    def test_what_a_forked_child_enqueues_survives_the_end_of_its_parent(self, path: Path) -> None:
        """A daemon, or a preloading web server: the app was used before the fork, and others come and go."""
        script = f"""
import os, subprocess, sys
from shigoto import Shigoto
app = Shigoto("sqlite:///{path}")
@app.task
def hello(n: int) -> None: ...
hello.enqueue(0)
if os.fork():
    os._exit(0)
subprocess.run([sys.executable, "-m", "shigoto", "stats", "{path}"], stdout=subprocess.DEVNULL, check=True)
for n in range(1, 50):
    hello.enqueue(n)
subprocess.run([sys.executable, "-m", "shigoto", "stats", "{path}"], stdout=subprocess.DEVNULL, check=True)
print("done", flush=True)
os._exit(0)
"""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        child = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        )  # the pipe closes when the grandchild ends

        assert child.stdout == "done\n"
        engine = SqliteEngine(path)
        assert engine.run(engine.stats())["default"].pending == 50
        engine.close()

    def test_a_child_forked_beside_an_open_connection_refuses_the_store(self, engine: SqliteEngine) -> None:
        """It would rely on locks that it does not have, and lose what it acknowledges."""
        engine.run(engine.enqueue_many([spec()]))
        connection = engine.connect()

        child = fork_and_enqueue(engine, expected=StoreUnavailable)
        code = exit_code(engine, child)
        connection.close()
        after = fork_and_enqueue(engine)

        assert code == 0
        assert exit_code(engine, after) == 0
        assert engine.run(engine.stats())["default"].pending == 2

    def test_a_store_that_cannot_be_reached_is_no_matter_to_the_children_of_another(
        self, engine: SqliteEngine, tmp_path: Path
    ) -> None:
        """They had been left waiting for a fork that nobody ended."""
        (tmp_path / "plain").write_text("not a folder")
        unreachable = [SqliteEngine(tmp_path / "plain" / f"{n}.db") for n in range(32)]
        engine.run(engine.enqueue_many([spec()]))

        child = fork_and_enqueue(engine)

        assert exit_code(engine, child) == 0
        assert len(unreachable) == 32  # they lived until here

    def test_a_store_that_fails_in_a_child_is_no_matter_to_the_others(
        self, engine: SqliteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> None:
            raise RuntimeError("This one cannot begin again.")

        failing = [SqliteEngine(tmp_path / f"{n}.db") for n in range(32)]
        for each in failing:
            monkeypatch.setattr(each._driver.connections, "_in_child", fail)
        engine.run(engine.enqueue_many([spec()]))

        child = fork_and_enqueue(engine)

        assert exit_code(engine, child) == 0

    def test_an_interrupt_while_signing_out_does_not_use_up_the_connections(
        self, engine: SqliteEngine
    ) -> None:
        users = engine._driver.connections._users
        for _ in range(40):
            engine.run(engine.enqueue_many([spec()]))
            users[threading.get_ident()] = 0  # as if an interrupt had come in between

        assert exit_code(engine, fork_and_enqueue(engine)) == 0

    def test_who_only_watches_for_commits_is_in_nobody_s_way_when_the_process_forks(
        self, engine: SqliteEngine
    ) -> None:
        engine.migrate()
        watched = engine._driver.connections.version()
        assert watched is not None

        assert exit_code(engine, fork_and_enqueue(engine)) == 0
        assert engine._driver.connections.version() != watched

    def test_a_fork_while_other_threads_write_disturbs_neither_side(self, engine: SqliteEngine) -> None:
        stop = threading.Event()
        written: list[int] = []

        def write() -> None:
            while not stop.is_set():
                written.extend(one.number for one in engine.run(engine.enqueue_many([spec()])))

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        children = [fork_and_enqueue(engine) for _ in range(5)]
        codes = [exit_code(engine, child) for child in children]
        stop.set()
        for thread in threads:
            thread.join()

        assert codes == [0] * 5
        assert engine.run(engine.stats())["default"].pending == len(written) + 5
        with sqlite3.connect(engine.path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()

    def test_a_crowd_of_threads_behind_a_lock_opens_few_connections(self, engine: SqliteEngine) -> None:
        engine.migrate()
        holder = sqlite3.connect(engine.path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        threads = [
            threading.Thread(target=lambda: engine.run(engine.enqueue_many([spec()]))) for _ in range(100)
        ]
        for thread in threads:
            thread.start()

        opened = [fd for fd in os.listdir("/proc/self/fd") if target(fd) == str(engine.path)]
        holder.execute("ROLLBACK")
        for thread in threads:
            thread.join()
        holder.close()

        assert len(opened) <= 20
        assert engine.run(engine.stats())["default"].pending == 100

    async def test_a_lock_that_nobody_lets_go_is_reported_to_all_who_wait_at_once(
        self, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine.migrate()
        monkeypatch.setattr("shigoto.engine.sqlite.driver.LOCK_DEADLINE", 0.2)
        holder = sqlite3.connect(engine.path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")

        started = time.monotonic()
        results = await asyncio.gather(
            *[engine.arun(engine.enqueue_many([spec()])) for _ in range(50)], return_exceptions=True
        )
        holder.close()

        assert {type(result) for result in results} == {StoreUnavailable}
        assert time.monotonic() - started < 50 * 0.2 / 2, "they waited one after the other"

    def test_a_lock_that_is_held_for_long_is_told_of_once(
        self, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine.migrate()
        monkeypatch.setattr("shigoto.engine.sqlite.driver.LOCK_SUSPICION", 0.05)
        monkeypatch.setattr("shigoto.engine.sqlite.driver.LOCK_DEADLINE", 0.2)
        holder = sqlite3.connect(engine.path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable):
            engine.run(engine.enqueue_many([spec()]))
        holder.close()

        [record] = caplog.records
        assert "is locked by another's transaction" in record.getMessage()

    def test_a_file_that_was_replaced_is_noticed_before_anything_is_written(
        self, engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file, "LOOK_EVERY", 0.0)
        engine.run(engine.enqueue_many([spec()]))
        path.rename(path.with_name("moved.db"))

        with pytest.raises(StoreUnavailable, match="moved, deleted or replaced"):
            engine.run(engine.enqueue_many([spec()]))
        assert not path.exists()

    def test_closing_under_others_feet_harms_nobody(self, engine: SqliteEngine) -> None:
        stop = threading.Event()
        stored: list[int] = []

        def write() -> None:
            while not stop.is_set():
                stored.extend(one.number for one in engine.run(engine.enqueue_many([spec()])))

        async def write_async() -> None:
            while not stop.is_set():
                with contextlib.suppress(StoreUnavailable):
                    stored.extend(one.number for one in await engine.arun(engine.enqueue_many([spec()])))

        threads = [threading.Thread(target=write) for _ in range(3)]
        threads.append(threading.Thread(target=lambda: asyncio.run(write_async())))
        for thread in threads:
            thread.start()
        for _ in range(50):
            engine.close()
        stop.set()
        for thread in threads:
            thread.join(60)

        assert not any(thread.is_alive() for thread in threads)
        assert engine.run(engine.stats())["default"].pending == len(stored)

    def test_a_new_file_after_closing_is_a_new_store(self, engine: SqliteEngine, path: Path) -> None:
        engine.run(engine.enqueue_many([spec("a"), spec("b")]))
        engine.close()
        for each in path.parent.iterdir():
            each.unlink()

        engine.run(engine.enqueue_many([spec("b")]))

        assert [job.task for job in engine.run(engine.find(JobFilter()))] == ["b"]

    def test_a_backup_restored_in_place_does_not_mix_up_tasks(
        self, engine: SqliteEngine, tmp_path: Path
    ) -> None:
        older = SqliteEngine(tmp_path / "older.db")
        older.run(older.enqueue_many([spec("b"), spec("a")]))
        older.close()
        engine.run(engine.enqueue_many([spec("a"), spec("b"), spec("c")]))
        with sqlite3.connect(tmp_path / "older.db") as source, sqlite3.connect(engine.path) as goal:
            source.backup(goal)
        source.close()
        goal.close()

        stored = [engine.run(engine.enqueue_many([spec(task)]))[0].id for task in "abc"]

        assert [job and job.task for job in engine.run(engine.get(stored))] == ["a", "b", "c"]

    def test_a_link_and_the_file_it_names_are_one_store(self, path: Path) -> None:
        link = path.with_name("link.db")
        link.symlink_to(path)
        engine, other = SqliteEngine(path), SqliteEngine(link)
        engine.run(engine.enqueue_many([spec()]))

        assert other.run(other.stats())["default"].pending == 1
        assert other.path == engine.path
        engine.close()
        other.close()

    def test_threads_share_a_few_connections_and_lose_nothing(self, engine: SqliteEngine) -> None:
        """S0-57: writers that meet at the file wait for each other; none of them sees a lock error."""
        threads = [
            threading.Thread(target=lambda: [engine.run(engine.enqueue_many([spec()])) for _ in range(25)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert engine.run(engine.stats())["default"].pending == 200

    async def test_one_bad_operation_does_not_spoil_its_group(self, engine: SqliteEngine) -> None:
        def broken() -> Steps[list[Enqueued]]:
            yield SqlText("INSERT INTO shigoto_meta VALUES ('leak', 1)")
            yield SqlText("SELECT * FROM no_such_table")
            return []

        bad: Op[list[Enqueued]] = Op(start=broken)
        results = await asyncio.gather(
            *[engine.arun(engine.enqueue_many([spec()])) for _ in range(20)],
            engine.arun(bad),
            *[engine.arun(engine.enqueue_many([spec()])) for _ in range(20)],
            return_exceptions=True,
        )

        assert isinstance(results[20], StoreUnavailable)
        assert [len(r) for r in results if isinstance(r, list)] == [1] * 40
        assert engine.run(engine.stats())["default"].pending == 40
        with sqlite3.connect(engine.path) as connection:
            assert connection.execute("SELECT count(*) FROM shigoto_meta WHERE name = 'leak'").fetchone() == (
                0,
            )
        connection.close()

    def test_an_interrupt_in_the_middle_leaves_nothing_behind(self, engine: SqliteEngine) -> None:
        def interrupted() -> Steps[None]:
            yield SqlText("INSERT INTO shigoto_meta VALUES ('leak', 1)")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            engine.run(Op(start=interrupted))

        assert len(engine.run(engine.enqueue_many([spec()]))) == 1

    async def test_a_commit_in_another_process_wakes_a_listener(
        self, engine: SqliteEngine, path: Path
    ) -> None:
        """S1-21: workers learn of new jobs by push, not only by polling."""
        listener = engine.listen()
        await listener.wait(0.05)
        producer = spawn.Process(target=enqueue_one, args=(path,))
        producer.start()

        assert await listener.wait(30)
        listener.close()
        producer.join()

    async def test_the_bell_alone_wakes_a_listener(self, engine: SqliteEngine, tmp_path: Path) -> None:
        engine.migrate()
        doorbell.create(engine._doorbell, engine.path)
        listener = doorbell.SqliteDoorbell(engine._doorbell, tmp_path / "no-such-log", lambda: 1)

        assert not await listener.wait(0.01)
        engine.run(engine.enqueue_many([spec()]))

        assert await listener.wait(30)
        listener.close()

    async def test_a_caller_s_own_commit_wakes_a_listener_too(self, engine: SqliteEngine) -> None:
        listener = engine.listen()
        await listener.wait(0.05)
        connection = engine.connect()
        engine.join(connection, engine.enqueue_many([spec()]))
        connection.commit()
        connection.close()

        assert await listener.wait(30)
        listener.close()

    @pytest.mark.skipif(sys.platform != "linux", reason="without inotify every change of the log rings")
    async def test_a_write_to_the_log_rings_only_with_the_commit_that_follows(self, tmp_path: Path) -> None:
        """The write comes first, and a look in vain would be all that it brings."""
        file, log = tmp_path / "bell", tmp_path / "log"
        file.touch()
        log.touch()
        commits = 0
        listener = doorbell.SqliteDoorbell(file, log, lambda: commits)

        log.write_bytes(b"a page")
        assert not await listener.wait(2 * doorbell.LOOK_AGAIN[-1])
        log.write_bytes(b"another page")
        commits += 1

        assert await listener.wait(30)
        assert not await listener.wait(2 * doorbell.LOOK_AGAIN[-1]), "one commit, one ring"
        listener.close()

    async def test_a_listener_that_cannot_see_commits_rings_for_every_write(self, tmp_path: Path) -> None:
        file, log = tmp_path / "bell", tmp_path / "log"
        file.touch()
        log.touch()
        listener = doorbell.SqliteDoorbell(file, log, lambda: None)

        log.write_bytes(b"a page")

        assert await listener.wait(30)
        listener.close()

    @pytest.mark.skipif(sys.platform != "linux", reason="without inotify every change of the log rings")
    async def test_a_commit_of_many_writes_wakes_a_listener_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A busy store writes a thousand times a second, and has many listeners."""
        file, log = tmp_path / "bell", tmp_path / "log"
        file.touch()
        log.touch()
        read, woken = doorbell._Inotify.read, 0

        def count(self: doorbell._Inotify) -> tuple[bool, bool]:
            nonlocal woken
            woken += 1
            return read(self)

        monkeypatch.setattr(doorbell._Inotify, "read", count)
        listener = doorbell.SqliteDoorbell(file, log, lambda: 1)
        waiting = asyncio.create_task(listener.wait(2 * doorbell.LOOK_AGAIN[-1]))

        for _ in range(50):
            await asyncio.sleep(0)
            with log.open("ab") as pages:
                pages.write(b"a page")

        assert not await waiting
        assert 1 <= woken <= 2
        listener.close()

    @pytest.mark.skipif(sys.platform != "linux", reason="without inotify every change of the log rings")
    @pytest.mark.parametrize("missing", [False, True])
    async def test_the_log_is_watched_again_after_each_round(self, tmp_path: Path, missing: bool) -> None:
        file, log = tmp_path / "bell", tmp_path / "log"
        file.touch()
        log.touch()
        commits = 0
        listener = doorbell.SqliteDoorbell(file, log, lambda: commits)
        for _ in range(3):
            if missing:
                log.unlink()
                assert not await listener.wait(2 * doorbell.LOOK_AGAIN[-1])
                log.touch()
                assert not await listener.wait(0.01)
            log.write_bytes(b"a page")
            commits += 1

            assert await listener.wait(30)
            await asyncio.sleep(2 * doorbell.LOOK_AGAIN[-1])
        listener.close()

    def test_every_commit_changes_the_version_of_the_store(self, engine: SqliteEngine, path: Path) -> None:
        engine.migrate()
        version = engine._driver.connections.version
        before = version()
        assert before is not None
        assert version() == before

        engine.run(engine.enqueue_many([spec()]))
        ours = version()
        producer = spawn.Process(target=enqueue_one, args=(path,))
        producer.start()
        producer.join()

        assert before != ours != version()

    def test_the_version_is_not_known_while_the_store_is_closed(self, engine: SqliteEngine) -> None:
        engine.migrate()
        assert engine._driver.connections.version() is not None

        engine.close()

        assert engine._driver.connections.version() is None

    async def test_the_bell_can_be_rung_by_whoever_may_write_the_store(
        self, engine: SqliteEngine, path: Path
    ) -> None:
        engine.migrate()
        path.chmod(0o660)

        engine.listen().close()

        assert path.with_name("jobs.db-bell").stat().st_mode & 0o777 == 0o660

    async def test_a_bell_that_cannot_be_hung_is_no_error(self, engine: SqliteEngine, path: Path) -> None:
        path.with_name("jobs.db-bell").mkdir()
        listener = engine.listen()
        engine.run(engine.enqueue_many([spec()]))

        assert await listener.wait(30), "the log is heard all the same"
        listener.close()

    async def test_without_inotify_the_files_are_looked_at(
        self, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shigoto.engine.sqlite.doorbell.sys.platform", "other")
        listener = engine.listen()
        engine.run(engine.enqueue_many([spec()]))

        assert await listener.wait(30)
        listener.close()


class TestACallersTransaction:
    def test_the_first_enqueue_ever_inside_one_is_told_what_to_do(self, path: Path) -> None:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE mine (x)")
        connection.execute("INSERT INTO mine VALUES (1)")
        engine = SqliteEngine(path)

        with pytest.raises(SchemaMissing, match=r"app.connect\(\)"):
            engine.join(connection, engine.enqueue_many([spec()]))
        connection.close()
        engine.close()

    def test_a_new_connection_for_users_waits_while_the_file_is_locked_for_readers_too(
        self, tmp_path: Path
    ) -> None:
        """As it is while SQLite recovers the log of a process that was killed."""
        path = tmp_path / "users.db"
        holder = sqlite3.connect(path, isolation_level=None)
        holder.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE users (id); PRAGMA locking_mode = EXCLUSIVE"
        )
        holder.execute("BEGIN IMMEDIATE")

        with ThreadPoolExecutor() as pool:
            opening = pool.submit(lambda: file.connect_for_user(path, synchronous="full").close())
            assert not wait([opening], timeout=0.3).done
            holder.execute("ROLLBACK")
            holder.close()
            opening.result(30)

    def test_a_connection_to_another_file_is_refused(self, engine: SqliteEngine, tmp_path: Path) -> None:
        engine.migrate()
        other = sqlite3.connect(tmp_path / "other.db")
        other.execute(f"ATTACH '{engine.path}' AS queue")

        with pytest.raises(StoreRefused, match="attached"):
            engine.join(other, engine.enqueue_many([spec()]))
        other.execute("DETACH queue")
        with pytest.raises(StoreRefused, match="not open on the store's file"):
            engine.join(other, engine.enqueue_many([spec()]))
        with pytest.raises(StoreRefused, match=r"must be a sqlite3.Connection"):
            engine.join("connection", engine.enqueue_many([spec()]))
        other.close()

    @pytest.mark.parametrize("how", ["isolation_level", "autocommit"])
    def test_an_autocommit_connection_without_a_transaction_is_refused(
        self, engine: SqliteEngine, how: str
    ) -> None:
        class Autocommitting(sqlite3.Connection):
            autocommit = True  # as Python 3.12 and newer have it

        engine.migrate()
        if how == "autocommit":
            connection: sqlite3.Connection = sqlite3.connect(engine.path, factory=Autocommitting)
        else:
            connection = sqlite3.connect(engine.path, isolation_level=None)

        with pytest.raises(JobError, match=r"is in no transaction.*Begin one first"):
            engine.join(connection, engine.enqueue_many([spec()]))
        connection.close()

    def test_the_write_lock_is_held_before_the_first_look(self, engine: SqliteEngine) -> None:
        """A key that is looked up without the lock could be taken by somebody else before it is written."""
        engine.run(engine.enqueue_many([spec()]))
        connection = sqlite3.connect(engine.path)

        def look() -> Steps[str]:
            other = sqlite3.connect(engine.path, timeout=0, isolation_level=None)
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                return str(error)
            finally:
                other.close()
            yield SqlText("SELECT 1")
            return "nobody held it"

        assert engine.join(connection, Op(start=look)) == "database is locked"
        connection.close()

    def test_an_operation_that_fails_half_way_leaves_the_rest_of_the_transaction_alone(
        self, engine: SqliteEngine
    ) -> None:
        def broken() -> Steps[None]:
            yield SqlText("INSERT INTO shigoto_meta VALUES ('leak', 1)")
            yield SqlText("SELECT * FROM no_such_table")

        connection = engine.connect()
        connection.execute("CREATE TABLE mine (x)")
        connection.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(sqlite3.OperationalError):
            engine.join(connection, Op(start=broken))
        engine.join(connection, engine.enqueue_many([spec()]))
        connection.commit()

        assert connection.execute("SELECT count(*) FROM shigoto_meta WHERE name = 'leak'").fetchone() == (0,)
        assert connection.execute("SELECT x FROM mine").fetchall() == [(1,)]
        connection.close()
        assert engine.run(engine.stats())["default"].pending == 1

    def test_a_text_factory_of_the_caller_does_not_confuse_us(self, engine: SqliteEngine) -> None:
        connection = engine.connect()
        connection.text_factory = bytes
        with connection:
            engine.join(connection, engine.enqueue_many([spec(key="k", queue="one")]))
            (again,) = engine.join(
                connection, engine.enqueue_many([spec(key="k", queue="two", key_mode="replace")])
            )
        connection.close()

        assert again.status == "replaced"
        assert {
            queue: counts.pending for queue, counts in engine.run(engine.stats()).items() if counts.pending
        } == {"two": 1}

    def test_commits_of_callers_alone_do_not_let_the_log_grow(
        self, engine: SqliteEngine, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file, "WAL_LIMIT", 200_000)
        # A commit gives up the write lock an instant before its snapshot. A checkpoint in that instant is not whole,
        # and the next would come a second later: long enough for all of these commits.
        monkeypatch.setattr(file, "RETRY_AFTER", 0)
        connection = engine.connect()
        for _ in range(300):
            with connection:
                engine.join(connection, engine.enqueue_many([spec(payload='"' + "x" * 10_000 + '"')]))
            for thread in threading.enumerate():
                if thread.name == "shigoto-checkpoint":
                    thread.join()
        connection.close()

        assert path.with_name("jobs.db-wal").stat().st_size < 1_500_000

    def test_a_row_factory_of_the_caller_is_respected_and_not_used(self, engine: SqliteEngine) -> None:
        connection = engine.connect()
        connection.row_factory = lambda cursor, row: {"row": row}
        with connection:
            (enqueued,) = engine.join(connection, engine.enqueue_many([spec(key="k")]))
        assert connection.execute("SELECT 1").fetchone() == {"row": (1,)}
        connection.close()

        assert engine.run(engine.get([enqueued.id]))[0] is not None


class TestTheClock:
    def test_a_small_backward_step_stands_still_and_a_large_one_is_believed(self, path: Path) -> None:
        now = 1_000_000_000_000

        def clock() -> int:
            return now

        engine = SqliteEngine(path, clock=clock)
        worker = uuid7()
        engine.run(engine.announce(announcement(worker)))
        engine.run(engine.sweep(SweepOrder()))

        now -= 30_000
        fresh = SqliteEngine(
            path, clock=clock
        )  # a process that starts after the step knows the mark from the file
        (enqueued,) = fresh.run(fresh.enqueue_many([spec()]))
        job = fresh.run(fresh.get([enqueued.id]))[0]
        assert job is not None
        assert job.created_at.timestamp() == 1_000_000_000

        now -= 3_600_000
        engine.run(engine.promote(1))
        swept = engine.run(engine.sweep(SweepOrder()))
        assert swept.clock_step > 3_600_000
        (record,) = engine.run(engine.workers())
        assert record.lease_until.timestamp() * 1000 == now + 30_000
        assert engine.run(engine.sweep(SweepOrder())).clock_step == 0
        engine.close()
        fresh.close()

    def test_a_process_that_saw_a_later_time_shares_it_with_the_others(self, path: Path) -> None:
        """Else a worker whose clock once ran ahead would renew its lease by a time that others find expired."""
        now = 1_000_000_000_000
        ahead, other = SqliteEngine(path, clock=lambda: now + 55_000), SqliteEngine(path, clock=lambda: now)
        worker = uuid7()
        other.run(other.announce(announcement(worker)))
        ahead.run(ahead.sweep(SweepOrder()))

        other.run(other.beat(worker, []))

        assert ahead.run(ahead.sweep(SweepOrder())).expired_workers == ()
        (record,) = other.run(other.workers())
        assert record.lease_until.timestamp() * 1000 == now + 55_000 + 30_000
        ahead.close()
        other.close()


class TestAClaim:
    def test_of_huge_payloads_stops_when_enough_is_on_its_way(self, engine: SqliteEngine) -> None:
        worker = uuid7()
        engine.run(engine.announce(announcement(worker)))
        big = '"' + "x" * 1_000_000 + '"'
        for _ in range(10):
            engine.run(engine.enqueue_many([spec(payload=big) for _ in range(10)]))
        wants = [Want(tasks=("a",), queues=None, limit=1_000)]

        first = engine.run(engine.claim(worker, wants))
        rest = [lease for _ in range(10) for lease in engine.run(engine.claim(worker, wants))]

        assert len(first) < 50
        assert len({lease.number for lease in first + rest}) == 100


class TestTheTableOfSpecificationS0:
    """`job_queue`, as a view."""

    def test_has_every_column_with_its_meaning(self, engine: SqliteEngine) -> None:
        """S0-3…S0-14: id, job_type, payload, status, priority, max_retries, retry_count, error_message, four times."""
        engine.run(
            engine.enqueue_many(
                [
                    spec(payload='{"n": 1}', priority=5, max_failures=4),
                    spec(max_failures=4),
                    spec(max_failures=4),
                    spec(delay=3_600_000),
                ]
            )
        )
        work(engine, Ending.COMPLETED, Ending.ERRORED, Ending.FAILED)

        with sqlite3.connect(engine.path) as connection:
            connection.row_factory = sqlite3.Row
            rows = [dict(row) for row in connection.execute("SELECT * FROM job_queue ORDER BY id")]
        connection.close()

        assert [row["id"] for row in rows] == [1, 2, 3, 4]
        assert [row["status"] for row in rows] == ["completed", "pending", "failed", "pending"]
        assert [row["job_type"] for row in rows] == ["a"] * 4
        assert [row["payload"] for row in rows] == ['{"n": 1}', "{}", "{}", "{}"]
        assert [row["priority"] for row in rows] == [5, 0, 0, 0]
        assert [row["max_retries"] for row in rows] == [3, 3, 3, 5]
        assert [row["retry_count"] for row in rows] == [0, 1, 1, 0]
        assert [row["error_message"] for row in rows] == [None, "ValueError: no", "ValueError: no", None]
        assert [row["completed_at"] is None for row in rows] == [False, True, False, True]
        assert [row["started_at"] is None for row in rows] == [False, True, False, True]
        assert all(row["scheduled_at"] >= row["created_at"] for row in rows)

    def test_does_not_touch_a_table_of_that_name_that_is_already_there(self, path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE job_queue (mine)")
            connection.execute("INSERT INTO job_queue VALUES ('kept')")
        connection.close()

        engine = SqliteEngine(path)
        engine.run(engine.enqueue_many([spec()]))

        with sqlite3.connect(path) as connection:
            assert connection.execute("SELECT mine FROM job_queue").fetchall() == [("kept",)]
        connection.close()
        engine.close()


class TestNumbers:
    def test_are_never_given_out_twice(self, engine: SqliteEngine) -> None:
        """S0-3: auto-numbered, also when the newest job was deleted."""
        first = engine.run(engine.enqueue_many([spec(), spec()]))
        work(engine, Ending.COMPLETED, Ending.COMPLETED)
        assert engine.run(engine.delete([1, 2], [State.COMPLETED])) == 2
        second = engine.run(engine.enqueue_many([spec()]))

        assert [e.number for e in first + second] == [1, 2, 3]
        assert [job.number for job in engine.run(engine.find(JobFilter()))] == [3]
        assert engine.run(engine.stats())["default"].pending == 1

    def test_of_a_deleted_newest_job_its_id_is_free_again(self, engine: SqliteEngine) -> None:
        job = spec()
        engine.run(engine.enqueue_many([job]))
        engine.run(engine.delete([1], [State.PENDING]))

        (again,) = engine.run(engine.enqueue_many([job]))

        assert again.status == "inserted"


def test_a_migration_script_is_split_where_its_statements_end() -> None:
    script = (
        "-- one;\nCREATE TABLE a (x);\nCREATE TRIGGER t AFTER INSERT ON a BEGIN\n  DELETE FROM a;\nEND;\n"
    )

    assert len(file.split(script)) == 2


def target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def fork_and_enqueue(engine: SqliteEngine, expected: type[Exception] | None = None) -> int:
    """The id of a child that enqueues one job and ends with 0, if that works or fails as expected."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        # A child that hangs says where, and ends.
        faulthandler.dump_traceback_later(30, exit=True, file=stack_of(engine).open("w"))
        engine.run(engine.enqueue_many([spec()]))
        code = 0 if expected is None else 2
    except Exception as error:
        code = 0 if expected is not None and isinstance(error, expected) else 3
    finally:
        os._exit(code)


def exit_code(engine: SqliteEngine, child: int) -> int:
    """How the child ended; if it hung, its stack is the reason of a failure."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if stack_of(engine).exists() and (stack := stack_of(engine).read_text()):
        pytest.fail(f"The child hung:\n{stack}")
    return code


def stack_of(engine: SqliteEngine) -> Path:
    return engine.path.with_name("stack.txt")


def migrate(path: Path) -> list[str]:
    engine = SqliteEngine(path)
    applied = engine.migrate()
    engine.close()
    return applied


def enqueue_one(path: Path) -> None:
    engine = SqliteEngine(path)
    engine.run(engine.enqueue_many([spec()]))
    engine.close()
