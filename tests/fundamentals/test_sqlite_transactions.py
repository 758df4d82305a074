"""Transaction blocks on SQLite, where a block holds the only write lock and the file is ours.

What holds for every store is in `test_transactions.py` and `test_transactions_async.py`.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from shigoto import (
    Context,
    JobError,
    LeaseLost,
    Shigoto,
    State,
    StoreRefused,
    StoreUnavailable,
    TransactionTooLong,
)
from shigoto.context import JobServices
from shigoto.engine.sql import block
from shigoto.engine.sqlite import driver, file
from tests.fundamentals.shop import SqliteShop, apay, pay, until

pytestmark = pytest.mark.engine("sqlite")

GIVES_UP_A_BLOCK = """
import asyncio, sys
from shigoto.engine.sqlite import SqliteEngine

async def main() -> None:
    async def enter() -> None:
        async with SqliteEngine(sys.argv[1]).block(lambda: None, limit=5.0):
            print("entered")

    task = asyncio.create_task(enter())
    await asyncio.wait([task], timeout=0.2)
    task.cancel()

asyncio.run(main())
"""


class TestTheConnection:
    def test_it_is_the_drivers_own_and_goes_where_such_connections_go(self, shop: SqliteShop) -> None:
        def library(connection: sqlite3.Connection) -> list[Any]:
            cursor = connection.cursor()
            cursor.row_factory = sqlite3.Row
            cursor.executemany("INSERT INTO paid VALUES (?)", ((number,) for number in range(5)))
            found = cursor.execute("SELECT invoice FROM paid ORDER BY invoice")
            return [
                cursor.fetchone()["invoice"],
                *(row["invoice"] for row in cursor.fetchmany()),
                next(cursor)["invoice"],
                *(row["invoice"] for row in found),
                cursor.fetchall(),
            ]

        run = shop.start()
        with run.context.transaction() as tx:
            assert isinstance(tx, sqlite3.Connection)
            assert library(tx) == [0, 1, 2, 3, 4, []]

        assert shop.paid() == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "BEGIN", "END", "  commit -- now"])
    def test_what_would_part_effects_from_completion_is_refused(
        self, shop: SqliteShop, statement: str
    ) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")
            with pytest.raises(JobError, match=r"not ended by hand: leave the block .* there are savepoints"):
                tx.execute(statement)
            with pytest.raises(JobError, match="not ended by hand"):
                tx.cursor().execute(statement)
            with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                sqlite3.Cursor(tx).execute(statement)
            tx.execute("INSERT INTO paid VALUES (2)")

        assert (shop.paid(), run.state) == ([1, 2], State.COMPLETED)

    @pytest.mark.parametrize("pragma", ["query_only", "locking_mode", "journal_mode", "WAL_autocheckpoint"])
    def test_so_is_what_would_keep_the_completion_from_being_written(
        self, shop: SqliteShop, pragma: str
    ) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            with pytest.raises(
                JobError, match=f"PRAGMA {pragma.lower()} cannot be set in a transaction block"
            ):
                tx.execute(f"PRAGMA {pragma} = 1")
            tx.execute(f"PRAGMA {pragma}")
            with pytest.raises(JobError, match="an authorizer of its own"):
                tx.set_authorizer(None)
            with pytest.raises(JobError, match="not ended by hand"):
                tx.execute("COMMIT")
            tx.execute("INSERT INTO paid VALUES (1)")

        assert (shop.paid(), run.state) == ([1], State.COMPLETED)

    def test_so_is_what_runs_several_statements_or_brings_cursors_of_its_own(self, shop: SqliteShop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            for script in (tx.executescript, tx.cursor().executescript):
                with pytest.raises(JobError, match="one by one"):
                    script("SELECT 1")
            with pytest.raises(JobError, match="without a factory"):
                tx.cursor(sqlite3.Cursor)

        assert run.state is State.COMPLETED

    def test_foreign_keys_are_enforced(self, shop: SqliteShop) -> None:
        """SQLite ignores the PRAGMA inside a transaction, so nobody could turn them on there."""
        with closing(shop.connect()) as connection, connection:
            connection.execute("CREATE TABLE refund (invoice REFERENCES paid (invoice))")
        run = shop.start()
        with run.context.transaction() as tx:
            with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
                tx.execute("INSERT INTO refund VALUES (99)")
            tx.execute("PRAGMA defer_foreign_keys = ON")
            tx.execute("INSERT INTO refund VALUES (1)")
            tx.execute("INSERT INTO paid VALUES (1)")

        with (
            closing(shop.connect()) as connection,
            pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"),
        ):
            connection.execute("INSERT INTO refund VALUES (99)")
        assert (shop.paid(), run.state) == ([1], State.COMPLETED)

    def test_its_errors_are_those_of_sqlite(self, shop: SqliteShop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            with pytest.raises(sqlite3.OperationalError, match="no such table"):
                tx.execute("INSERT INTO unpaid VALUES (1)")
            tx.execute("INSERT INTO paid VALUES (1)")

        assert shop.paid() == [1]

    def test_after_a_rollback_by_sqlite_itself_nothing_more_is_written(self, shop: SqliteShop) -> None:
        """Such a statement would be a transaction of its own: an effect without a completion."""
        run = shop.start()

        def go_on() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                with pytest.raises(sqlite3.IntegrityError):
                    tx.execute("INSERT OR ROLLBACK INTO paid VALUES (1)")
                with pytest.raises(JobError, match="SQLite has rolled the transaction back"):
                    tx.execute("INSERT INTO paid VALUES (2)")

        with pytest.raises(JobError, match="SQLite has rolled the transaction back"):
            go_on()

        assert (shop.paid(), run.state) == ([], State.PROCESSING)


class TestWaitingForOneself:
    """What would wait for the block that it is in is refused at once."""

    def test_a_write_beside_the_block_is_refused(self, shop: SqliteShop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            for write in (
                lambda: shop.receipt.enqueue(1),
                lambda: run.context.checkpoint(1),
                lambda: shop.app.pause("default"),
            ):
                with pytest.raises(
                    JobError, match=r"would wait for the transaction block .* using\(connection=tx\)"
                ):
                    write()
            tx.execute("INSERT INTO paid VALUES (1)")

        shop.receipt.enqueue(1)
        assert (shop.paid(), shop.receipts(), run.state) == ([1], 1, State.COMPLETED)

    def test_what_only_looks_is_not(self, shop: SqliteShop) -> None:
        run = shop.start()
        with run.context.transaction():
            assert run.handle.status() is State.PROCESSING

    def test_nor_is_a_write_to_another_store(self, shop: SqliteShop, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        other = SqliteShop(elsewhere)
        run = shop.start()
        with run.context.transaction():
            other.receipt.enqueue(1)

        assert other.receipts() == 1
        other.engine.close()

    def test_but_one_by_another_app_on_the_same_file_is(self, shop: SqliteShop) -> None:
        other = Shigoto(shop.path)

        @other.task
        def receipt(invoice: int) -> None: ...

        run = shop.start()
        with closing(other), run.context.transaction() as tx:
            with pytest.raises(JobError, match="would wait for the transaction block"):
                receipt.enqueue(1)
            receipt.using(connection=tx).enqueue(2)

        assert (shop.receipts(), run.state) == (1, State.COMPLETED)

    def test_other_threads_wait_their_turn(self, shop: SqliteShop) -> None:
        run = shop.start()
        other = threading.Thread(target=lambda: shop.receipt.enqueue(2))
        with run.context.transaction() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")
            other.start()
            other.join(0.05)
            assert other.is_alive()

        other.join(10)
        assert (shop.paid(), shop.receipts()) == ([1], 1)


@pytest.mark.usefixtures("short_blocks")
class TestLimit:
    """A block holds the only write lock, so it may not last."""

    def test_it_strikes_at_statements_that_were_half_read(self, shop: SqliteShop) -> None:
        run = shop.start()

        def count() -> None:
            with run.context.transaction() as tx:
                half_read = tx.execute("SELECT 1 UNION SELECT 2")
                assert half_read.fetchone() == (1,)
                with pytest.raises(TransactionTooLong):
                    tx.execute(shop.endless).fetchone()
                with pytest.raises(TransactionTooLong):
                    half_read.fetchone()

        with pytest.raises(TransactionTooLong):
            count()

        shop.receipt.enqueue(1)

    def test_a_cursor_made_past_the_connection_cannot_write_afterwards(self, shop: SqliteShop) -> None:
        run = shop.start()

        def write() -> None:
            with run.context.transaction() as tx:
                cursor = sqlite3.Cursor(tx)
                cursor.execute("INSERT INTO paid VALUES (1)")
                until(lambda: not tx.in_transaction)
                with pytest.raises(sqlite3.OperationalError, match="readonly"):
                    until(lambda: bool(cursor.execute("INSERT INTO paid VALUES (2)")))

        with pytest.raises(TransactionTooLong):
            write()

        assert shop.paid() == []

    def test_rows_that_are_slow_in_coming_do_not_keep_it_open(self, shop: SqliteShop) -> None:
        run = shop.start()

        def rows() -> Iterator[tuple[int]]:
            yield (1,)
            shop_is_free = threading.Thread(target=lambda: shop.receipt.enqueue(2))
            shop_is_free.start()
            shop_is_free.join(10)
            yield (2,)

        with pytest.raises(TransactionTooLong), run.context.transaction() as tx:
            tx.executemany("INSERT INTO paid VALUES (?)", rows())

        assert (shop.paid(), shop.receipts()) == ([], 1)


class TestTrouble:
    def test_a_write_lock_that_does_not_come_is_an_error_and_the_run_may_try_again(
        self, shop: SqliteShop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driver, "LOCK_DEADLINE", 0.1)
        run = shop.start()
        with closing(shop.connect()) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="locked"):
                pay(run)
            other.rollback()

        pay(run)

        assert (shop.paid(), run.state) == ([1], State.COMPLETED)

    def test_a_store_that_is_gone_is_an_error(self, shop: SqliteShop) -> None:
        run = shop.start()
        shop.path.rename(shop.path.with_suffix(".old"))

        with pytest.raises(StoreUnavailable, match="moved, deleted or replaced"):
            pay(run)

        shop.path.with_suffix(".old").rename(shop.path)
        pay(run)
        assert run.state is State.COMPLETED

    def test_what_fails_after_the_commit_does_not_make_it_look_failed(
        self, shop: SqliteShop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def no_bell(path: str) -> None:
            raise RuntimeError("no bell")

        monkeypatch.setattr("os.utime", no_bell)
        run = shop.start(delay=0)
        caplog.clear()

        pay(run)

        assert (shop.paid(), run.state, run.signals.ended) == ([1], State.COMPLETED, "committed")
        assert "A step after a commit" in caplog.text

    def test_a_long_log_is_written_back_when_the_block_is_over(
        self, shop: SqliteShop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = shop.start()
        with closing(shop.connect()) as connection:
            before = shop.path.stat().st_size
            monkeypatch.setattr(file, "WAL_LIMIT", 0)
            with run.context.transaction() as tx:
                tx.execute("CREATE TABLE large AS SELECT zeroblob(1000000) AS bytes")
            assert connection.in_transaction is False
            assert shop.path.stat().st_size > before + 1_000_000

    def test_the_watchdog_is_there_only_while_it_is_needed(
        self, shop: SqliteShop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def watchdogs() -> list[threading.Thread]:
            return [thread for thread in threading.enumerate() if thread.name == "shigoto-watchdog"]

        monkeypatch.setattr(block, "LOOK_EVERY", 0.01)
        monkeypatch.setattr(block, "IDLE_FOR", 0.05)
        until(lambda: not watchdogs())  # of earlier tests
        run = shop.start()
        with run.context.transaction():
            assert len(watchdogs()) == 1
        until(lambda: not watchdogs())

        monkeypatch.setattr(block, "IDLE_FOR", 60.0)
        pay(shop.start(), 2)
        assert len(watchdogs()) == 1
        shop.engine.close()
        until(lambda: not watchdogs())


class TestShield:
    def test_exceptions_from_outside_are_kept_away_while_a_block_is_entered_and_left(
        self, shop: SqliteShop
    ) -> None:
        """Else one could strike between the commit and the news of it, or leave the write lock with nobody."""
        run = shop.start()
        shielded: list[bool] = [False]
        seen: list[tuple[str, bool]] = []

        @contextmanager
        def shield() -> Iterator[None]:
            shielded[0] = True
            yield
            shielded[0] = False

        def watch(statement: str) -> None:
            if statement.split(maxsplit=1)[0] in ("COMMIT", "INSERT"):
                seen.append((statement.split(maxsplit=1)[0], shielded[0]))

        encode = shop.pay.signature.encode_result
        context = Context(run.lease, run.signals, JobServices(shop.engine, shop.worker, None, shield), encode)
        with context.transaction() as tx:
            tx.set_trace_callback(watch)
            tx.execute("INSERT INTO paid VALUES (1)")

        assert (seen[0], seen[-1]) == (("INSERT", False), ("COMMIT", True))
        assert run.state is State.COMPLETED


class TestTheCallersOwn:
    """What `ctx.transaction(connection)` and `using(connection=…)` take for a connection."""

    @pytest.fixture
    def connection(self, shop: SqliteShop) -> Iterator[sqlite3.Connection]:
        with closing(shop.connect()) as connection:
            yield connection

    def test_its_transaction_stays_open(self, shop: SqliteShop, connection: sqlite3.Connection) -> None:
        run = shop.start()
        with run.context.transaction(connection):
            pass

        assert connection.in_transaction

    def test_one_to_another_file_is_refused(self, shop: SqliteShop, tmp_path: Path) -> None:
        run = shop.start()
        with (
            closing(sqlite3.connect(tmp_path / "other.db")) as other,
            pytest.raises(StoreRefused, match="not open on the store's file"),
            run.context.transaction(other),
        ):
            other.execute("CREATE TABLE t (n)")

        assert run.state is State.PROCESSING

    def test_what_libraries_wrap_around_it_is_taken_off(
        self, shop: SqliteShop, connection: sqlite3.Connection
    ) -> None:
        """By its looks: a session has a method that gives a connection, which has one of the driver's."""

        class Pooled:
            driver_connection = connection

        class Wrapper:
            connection = Pooled()

        class Session:
            def connection(self) -> Wrapper:
                return Wrapper()

        run, wrapper = shop.start(), Wrapper()
        with run.context.transaction(Session()):
            shop.receipt.using(connection=wrapper).enqueue(1)
        connection.commit()

        assert (shop.receipts(), run.state) == (1, State.COMPLETED)

    def test_so_it_is_where_it_is_an_attribute_as_with_django(
        self, shop: SqliteShop, connection: sqlite3.Connection
    ) -> None:
        connection.isolation_level = None
        connection.execute("BEGIN")

        shop.receipt.using(connection=SimpleNamespace(connection=connection)).enqueue(1)
        connection.execute("COMMIT")

        assert shop.receipts() == 1

    def test_what_has_none_inside_is_refused(self, shop: SqliteShop) -> None:
        with pytest.raises(StoreRefused, match="connection= got a object"):
            shop.receipt.using(connection=object()).enqueue(1)


class TestSqlAlchemy:
    """Its sessions and connections are taken as they are."""

    @pytest.fixture
    def database(self, shop: SqliteShop) -> Iterator[sqlalchemy.Engine]:
        database = sqlalchemy.create_engine(f"sqlite:///{shop.path}")
        yield database
        database.dispose()

    def test_a_session_commits_the_job_with_its_own_rows(
        self, shop: SqliteShop, database: sqlalchemy.Engine
    ) -> None:
        run = shop.start()
        with Session(database) as session, session.begin():
            session.execute(sqlalchemy.text("INSERT INTO paid VALUES (1)"))
            with run.context.transaction(session) as tx:
                shop.receipt.using(connection=session).enqueue(1)
                tx.finish("by the session")
            assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PROCESSING)

        assert (shop.paid(), shop.receipts(), run.state) == ([1], 1, State.COMPLETED)
        assert run.handle.result() == "by the session"

    def test_a_session_that_rolls_back_unmakes_it(
        self, shop: SqliteShop, database: sqlalchemy.Engine
    ) -> None:
        run = shop.start()
        with Session(database) as session:
            with run.context.transaction(session):
                session.execute(sqlalchemy.text("INSERT INTO paid VALUES (1)"))
                shop.receipt.using(connection=session).enqueue(1)
            session.rollback()

        assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PROCESSING)

    def test_a_connection_does_as_well(self, shop: SqliteShop, database: sqlalchemy.Engine) -> None:
        run = shop.start()
        with database.begin() as connection, run.context.transaction(connection):
            connection.execute(sqlalchemy.text("INSERT INTO paid VALUES (1)"))

        assert (shop.paid(), run.state) == ([1], State.COMPLETED)

    def test_what_has_not_begun_begins_as_before_a_statement_of_its_own(
        self, shop: SqliteShop, database: sqlalchemy.Engine
    ) -> None:
        """Else its commit would be none, and the job be gone without a word."""
        with database.connect() as connection:
            shop.receipt.using(connection=connection).enqueue(1)
            assert connection.in_transaction()
            assert shop.receipts() == 0
            connection.commit()
        assert shop.receipts() == 1
        with database.connect() as connection:
            shop.receipt.using(connection=connection).enqueue(2)
            connection.rollback()
        with Session(database) as session:
            shop.receipt.using(connection=session).enqueue(3)
            session.rollback()
        assert shop.receipts() == 1
        with Session(database) as session:
            shop.receipt.using(connection=session).enqueue(4)
            session.commit()
        assert shop.receipts() == 2

    def test_what_must_be_awaited_is_refused(self, shop: SqliteShop) -> None:
        with pytest.raises(StoreRefused, match=r"got a AsyncSession.*is not async"):
            shop.receipt.using(connection=AsyncSession()).enqueue(1)

    def test_what_commits_each_statement_is_refused(
        self, shop: SqliteShop, database: sqlalchemy.Engine
    ) -> None:
        at_once = database.execution_options(isolation_level="AUTOCOMMIT")
        with at_once.connect() as connection, pytest.raises(JobError, match="in no transaction"):
            shop.receipt.using(connection=connection).enqueue(1)

        assert shop.receipts() == 0

    def test_a_worker_that_lost_the_job_is_told_before_the_commit(
        self, shop: SqliteShop, database: sqlalchemy.Engine
    ) -> None:
        run = shop.start()
        shop.fence()

        with pytest.raises(LeaseLost), database.begin() as connection, run.context.transaction(connection):
            connection.execute(sqlalchemy.text("INSERT INTO paid VALUES (1)"))

        assert (shop.paid(), run.state) == ([], State.PENDING)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
class TestForks:
    """SQLite's locks stay with the process that took them."""

    def test_a_fork_elsewhere_waits_for_the_block(self, shop: SqliteShop) -> None:
        run = shop.start()
        children: list[int] = []

        def fork() -> None:
            child = os.fork()
            if not child:
                code = 1
                try:
                    shop.receipt.enqueue(2)
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)

        other = threading.Thread(target=fork)
        with run.context.transaction() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")
            other.start()
            other.join(0.05)
            assert not children
            assert run.handle.status() is State.PROCESSING  # a look does not wait for the fork

        other.join(10)
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
        assert (shop.paid(), shop.receipts(), run.state) == ([1], 1, State.COMPLETED)


class TestAsync:
    async def test_an_error_of_a_statement_passes_and_the_block_goes_on(self, shop: SqliteShop) -> None:
        run = shop.start()
        async with run.context.transaction() as tx:
            with pytest.raises(sqlite3.OperationalError, match="no such table"):
                await tx.execute("INSERT INTO unpaid VALUES (1)")
            with pytest.raises(JobError, match="not ended by hand"):
                await tx.execute("COMMIT")
            await tx.execute("INSERT INTO paid VALUES (:invoice)", {"invoice": 1})

        assert shop.paid() == [1]

    async def test_a_write_beside_the_block_is_refused_in_all_its_tasks(self, shop: SqliteShop) -> None:
        run = shop.start()
        async with run.context.transaction() as tx:
            for write in (
                lambda: shop.receipt.aenqueue(1),
                lambda: run.context.acheckpoint(1),
                lambda: asyncio.create_task(run.context.acheckpoint(1)),
                lambda: asyncio.to_thread(shop.receipt.enqueue, 1),
            ):
                with pytest.raises(JobError, match="would wait for the transaction block"):
                    await write()
            assert (await run.handle.ajob()).state is State.PROCESSING
            await tx.execute("INSERT INTO paid VALUES (1)")

        await shop.receipt.aenqueue(1)
        assert (shop.paid(), shop.receipts()) == ([1], 1)

    async def test_a_task_that_outlives_the_block_may_write_then(self, shop: SqliteShop) -> None:
        run, over = shop.start(), asyncio.Event()

        async def later() -> None:
            await over.wait()
            await shop.receipt.aenqueue(1)

        async with run.context.transaction():
            task = asyncio.create_task(later())
        over.set()
        await task

        assert shop.receipts() == 1

    async def test_other_tasks_wait_their_turn_and_the_loop_goes_on(self, shop: SqliteShop) -> None:
        run = shop.start()
        beside = asyncio.Event()

        async def other() -> None:
            await beside.wait()
            await shop.receipt.aenqueue(2)

        task = asyncio.create_task(other())
        async with run.context.transaction() as tx:
            beside.set()
            await asyncio.wait([task], timeout=0.05)
            assert not task.done()
            await tx.execute("INSERT INTO paid VALUES (1)")

        await asyncio.wait_for(task, 10)
        assert (shop.paid(), shop.receipts()) == ([1], 1)

    async def test_a_cancel_while_it_waits_for_the_write_lock_leaves_nothing_open(
        self, shop: SqliteShop
    ) -> None:
        run = shop.start()
        with closing(shop.connect()) as other:
            other.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(apay(run))
            await asyncio.wait([task], timeout=0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            other.rollback()

        await asyncio.wait_for(shop.receipt.aenqueue(1), 10)
        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        await apay(run)
        assert run.state is State.COMPLETED

    def test_a_process_ends_although_a_thread_of_it_waits_for_the_write_lock(self, shop: SqliteShop) -> None:
        with closing(shop.connect()) as other:
            other.execute("BEGIN IMMEDIATE")
            command = (sys.executable, "-c", GIVES_UP_A_BLOCK, str(shop.path))
            ended = subprocess.run(command, capture_output=True, check=False, text=True, timeout=30)
            other.rollback()

        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
