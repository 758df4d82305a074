"""A handler's own SQL and the completion of its job are one commit: both happen, or neither does.

Semantics §11, §8 C8-C10, rules A16. What async code does differently is in `test_transactions_async.py`.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
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
    ResultInvalid,
    Shigoto,
    State,
    StoreRefused,
    StoreUnavailable,
    TransactionTooLong,
)
from shigoto import transaction as face
from shigoto.context import Desk
from shigoto.engine.sql import watchdog
from shigoto.engine.sqlite import checkpoint, driver
from shigoto.engine.sqlite.transaction import Block
from shigoto.model.outcome import Ending, Verdict
from tests.fundamentals.shop import Run, Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.engine.close()


def pay(run: Run, invoice: int = 1) -> None:
    """What a handler does: an effect, a further job, a result."""
    with run.context.transaction() as tx:
        tx.execute(run.shop.insert, (invoice,))
        run.shop.receipt.using(connection=tx).enqueue(invoice)
        tx.finish(f"paid {invoice}")


class TestOneCommit:
    def test_effects_completion_and_further_jobs_happen_together(self, shop: Shop) -> None:
        """I9, C8: exactly once."""
        run = shop.start()

        with run.context.transaction() as tx:
            tx.execute(shop.insert, (1,))
            shop.receipt.using(connection=tx).enqueue(1)
            tx.finish("thank you")
            assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PROCESSING)

        assert (shop.paid(), shop.receipts(), run.state) == ([1], 1, State.COMPLETED)
        assert run.handle.result() == "thank you"
        assert (run.signals.ended, run.signals.result) == ("committed", '"thank you"')

    def test_a_block_that_raises_leaves_nothing_behind(self, shop: Shop) -> None:
        run = shop.start()

        def fail() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                shop.receipt.using(connection=tx).enqueue(1)
                raise KeyError("no such invoice")

        with pytest.raises(KeyError, match="no such invoice"):
            fail()

        assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PROCESSING)
        assert run.signals.ended is None
        assert run.settle(Ending.ERRORED) is Verdict.ACCEPTED

    def test_after_one_that_was_rolled_back_a_run_may_try_another(self, shop: Shop) -> None:
        run = shop.start()
        with suppress(shop.integrity_error), run.context.transaction() as tx:
            tx.executemany(shop.insert, [(1,), (1,)])

        pay(run, 2)

        assert (shop.paid(), run.state) == ([2], State.COMPLETED)

    def test_a_worker_that_lost_the_job_has_no_effect(self, shop: Shop) -> None:
        """C10: a zombie comes back, and is refused."""
        run = shop.start()
        shop.fence()

        with pytest.raises(LeaseLost, match=r"task 'pay': job \d+ is no longer this worker's"):
            pay(run)

        assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PENDING)
        assert run.context.cancelled
        assert run.settle(Ending.ERRORED) is Verdict.LOST

    def test_an_expired_lease_that_nobody_has_fenced_still_counts(self, shop: Shop) -> None:
        run = shop.start()
        shop.clock.advance(3_600_000)

        pay(run)

        assert (shop.paid(), run.state) == ([1], State.COMPLETED)

    def test_what_the_worker_says_afterwards_changes_nothing(self, shop: Shop) -> None:
        """C9: the ordinary settlement follows, and the store knows this lease as settled."""
        run = shop.start()
        pay(run)

        assert run.settle(Ending.ERRORED) is Verdict.REPEATED

        assert (run.state, run.handle.result()) == (State.COMPLETED, "paid 1")

    def test_progress_and_log_lines_are_stored_with_it(self, shop: Shop) -> None:
        run = shop.start()
        run.context.progress(0.5, "half")
        run.context.log("about to pay")

        pay(run)

        assert (run.handle.job().progress, run.handle.job().progress_text) == (0.5, "half")
        lines = shop.engine.run(shop.engine.logs(run.handle.id))
        assert [(line.token, line.text) for line in lines] == [(1, "about to pay")]

    async def test_an_idle_worker_hears_of_the_jobs_that_were_enqueued_inside(self, shop: Shop) -> None:
        run = shop.start()
        doorbell = shop.engine.listen()
        try:
            while await doorbell.wait(0.01):
                pass
            await asyncio.to_thread(pay, run)
            assert await doorbell.wait(10)
        finally:
            doorbell.close()


class TestResult:
    def test_without_finish_the_result_is_none(self, shop: Shop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")

        assert run.handle.job().result == "null"

    def test_the_last_word_counts(self, shop: Shop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            tx.finish("first")
            tx.finish("second")

        assert run.handle.result() == "second"

    def test_one_that_cannot_be_stored_raises_where_everything_can_still_be_rolled_back(
        self, shop: Shop
    ) -> None:
        """Unlike a return value: nothing has happened yet, so this is a failure like any other, and retried."""
        run = shop.start()

        def finish() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                tx.finish(object())

        with pytest.raises(ResultInvalid):
            finish()

        assert (shop.paid(), run.state) == ([], State.PROCESSING)

    def test_after_the_block_it_comes_too_late(self, shop: Shop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            pass

        with pytest.raises(JobError, match="finish\\(\\) comes too late"):
            tx.finish("late")


class TestTheConnection:
    def test_it_is_the_drivers_own_and_goes_where_such_connections_go(self, shop: Shop) -> None:
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
    def test_what_would_part_effects_from_completion_is_refused(self, shop: Shop, statement: str) -> None:
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
    def test_so_is_what_would_keep_the_completion_from_being_written(self, shop: Shop, pragma: str) -> None:
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

    def test_so_are_the_methods_that_do_it(self, shop: Shop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            for method in (tx.commit, tx.rollback, tx.close):
                with pytest.raises(JobError, match="not ended by hand"):
                    method()
            with pytest.raises(JobError, match="not ended by hand"), tx:
                pass
            for script in (tx.executescript, tx.cursor().executescript):
                with pytest.raises(JobError, match="one by one"):
                    script("SELECT 1")
            with pytest.raises(JobError, match="without a factory"):
                tx.cursor(sqlite3.Cursor)

        assert run.state is State.COMPLETED

    def test_foreign_keys_are_enforced(self, shop: Shop) -> None:
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

    def test_a_part_that_may_fail_has_a_savepoint(self, shop: Shop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            tx.execute("SAVEPOINT part")
            tx.execute("INSERT INTO paid VALUES (1)")
            tx.execute("ROLLBACK TO part")
            tx.execute("RELEASE part")
            tx.execute("INSERT INTO paid VALUES (2)")

        assert (shop.paid(), run.state) == ([2], State.COMPLETED)

    def test_its_errors_are_those_of_sqlite(self, shop: Shop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            with pytest.raises(sqlite3.OperationalError, match="no such table"):
                tx.execute("INSERT INTO unpaid VALUES (1)")
            tx.execute("INSERT INTO paid VALUES (1)")

        assert shop.paid() == [1]

    def test_after_a_rollback_by_sqlite_itself_nothing_more_is_written(self, shop: Shop) -> None:
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

    def test_after_the_block_it_is_of_no_use(self, shop: Shop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            pass

        with pytest.raises(JobError, match="The transaction block is over"):
            tx.execute("SELECT 1")
        with pytest.raises(JobError, match="The transaction block is over"):
            shop.receipt.using(connection=tx).enqueue(1)


class TestOneBlock:
    def test_a_block_ends_the_job_so_there_is_no_second_one(self, shop: Shop) -> None:
        run = shop.start()
        pay(run)

        with pytest.raises(JobError, match=r"task 'pay': .* and this one has committed one"):
            pay(run, 2)
        with pytest.raises(JobError, match="has committed one"), run.context.transaction(object()):
            pass

        assert shop.paid() == [1]

    def test_nor_one_inside_another(self, shop: Shop) -> None:
        run = shop.start()
        with (
            run.context.transaction() as tx,
            pytest.raises(JobError, match="is already in one"),
            run.context.transaction(),
        ):
            tx.execute("INSERT INTO paid VALUES (1)")

        assert (shop.paid(), run.state) == ([], State.COMPLETED)

    def test_one_object_is_one_block(self, shop: Shop) -> None:
        run = shop.start()
        transaction = run.context.transaction()
        with suppress(KeyError), transaction:
            raise KeyError

        with pytest.raises(JobError, match="entered once"), transaction:
            pass


class TestLostAnswer:
    @pytest.mark.parametrize("committed", [True, False])
    def test_when_nobody_knows_whether_it_was_committed_the_store_does(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch, committed: bool
    ) -> None:
        """C9: the answer to the commit is lost; it is never told as success, and never done twice."""
        run = shop.start()
        plainly = Block._plainly

        def lose_the_answer(block: Block, statement: str) -> None:
            if statement != "COMMIT" or committed:
                plainly(block, statement)
            if statement == "COMMIT":
                raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(Block, "_plainly", lose_the_answer)
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            pay(run)
        monkeypatch.undo()

        assert run.signals.ended is None
        with pytest.raises(JobError, match="has left one of which nobody knows"):
            pay(run)
        verdict = run.settle(Ending.ERRORED)
        assert verdict is (Verdict.REPEATED if committed else Verdict.ACCEPTED)
        assert shop.paid() == ([1] if committed else [])
        assert run.state is (State.COMPLETED if committed else State.PENDING)


class TestWaitingForOneself:
    """What would wait for the block that it is in is refused at once."""

    def test_a_write_beside_the_block_is_refused(self, shop: Shop) -> None:
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

    def test_what_only_looks_is_not(self, shop: Shop) -> None:
        run = shop.start()
        with run.context.transaction():
            assert run.handle.status() is State.PROCESSING

    def test_nor_is_a_write_to_another_store(self, shop: Shop, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        other = Shop(elsewhere)
        run = shop.start()
        with run.context.transaction():
            other.receipt.enqueue(1)

        assert other.receipts() == 1
        other.engine.close()

    def test_but_one_by_another_app_on_the_same_file_is(self, shop: Shop) -> None:
        other = Shigoto(shop.path)

        @other.task
        def receipt(invoice: int) -> None: ...

        run = shop.start()
        with closing(other), run.context.transaction() as tx:
            with pytest.raises(JobError, match="would wait for the transaction block"):
                receipt.enqueue(1)
            receipt.using(connection=tx).enqueue(2)

        assert (shop.receipts(), run.state) == (1, State.COMPLETED)

    def test_other_threads_wait_their_turn(self, shop: Shop) -> None:
        run = shop.start()
        other = threading.Thread(target=lambda: shop.receipt.enqueue(2))
        with run.context.transaction() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")
            other.start()
            other.join(0.05)
            assert other.is_alive()

        other.join(10)
        assert (shop.paid(), shop.receipts()) == ([1], 1)


class TestLimit:
    """On SQLite a block holds the only write lock, so it may not last."""

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert face.LIMIT == 5.0
        monkeypatch.setattr(face, "LIMIT", 0.2)

    def test_it_is_rolled_back_while_the_handler_sleeps(self, shop: Shop) -> None:
        run = shop.start()
        others = threading.Thread(target=lambda: shop.receipt.enqueue(2))

        def sleep() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                others.start()
                others.join(10)  # which takes the write lock
                assert (shop.receipts(), shop.paid()) == (1, [])
                for use in (
                    lambda: tx.execute("INSERT INTO paid VALUES (2)"),
                    lambda: shop.receipt.using(connection=tx).enqueue(2),
                    lambda: tx.execute("SELECT 1"),
                ):
                    with pytest.raises(TransactionTooLong, match=r"0\.2 s .* Do slow work before the block"):
                        use()

        with pytest.raises(TransactionTooLong):
            sleep()

        assert (shop.paid(), shop.receipts(), run.state) == ([], 1, State.PROCESSING)
        assert run.settle(Ending.ERRORED) is Verdict.ACCEPTED

    def test_it_strikes_in_the_middle_of_a_statement(self, shop: Shop) -> None:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        run = shop.start()

        def count() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                half_read = tx.execute("SELECT 1 UNION SELECT 2")
                assert half_read.fetchone() == (1,)
                with pytest.raises(TransactionTooLong):
                    tx.execute(endless).fetchone()
                with pytest.raises(TransactionTooLong):
                    half_read.fetchone()

        with pytest.raises(TransactionTooLong):
            count()

        shop.receipt.enqueue(1)
        assert (shop.paid(), run.state) == ([], State.PROCESSING)

    def test_it_strikes_while_the_block_waits_for_a_statement_of_another_thread(self, shop: Shop) -> None:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        run = shop.start()
        raised: list[Exception] = []
        running = threading.Event()

        def count(tx: sqlite3.Connection) -> None:
            try:
                tx.execute(endless).fetchone()
            except Exception as error:
                raised.append(error)

        def leave() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                tx.set_progress_handler(running.set, 1_000)
                other = threading.Thread(target=count, args=(tx,), daemon=True)
                other.start()
                assert running.wait(10)
                tx.finish("paid")

        with pytest.raises(TransactionTooLong):
            leave()

        until(lambda: bool(raised))
        assert isinstance(raised[0], TransactionTooLong)
        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        shop.receipt.enqueue(1)

    def test_a_cursor_made_past_the_connection_cannot_write_afterwards(self, shop: Shop) -> None:
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

    def test_rows_that_are_slow_in_coming_do_not_keep_it_open(self, shop: Shop) -> None:
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

    def test_an_error_of_the_handlers_own_passes(self, shop: Shop) -> None:
        run = shop.start()

        def fail() -> None:
            with run.context.transaction() as tx:
                until(lambda: not tx.in_transaction)
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fail()

    def test_the_run_may_try_again(self, shop: Shop) -> None:
        run = shop.start()
        with suppress(TransactionTooLong), run.context.transaction() as tx:
            until(lambda: not tx.in_transaction)

        pay(run)

        assert (shop.paid(), run.state) == ([1], State.COMPLETED)


class TestTrouble:
    def test_a_write_lock_that_does_not_come_is_an_error_and_the_run_may_try_again(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
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

    def test_a_store_that_is_gone_is_an_error(self, shop: Shop) -> None:
        run = shop.start()
        shop.path.rename(shop.path.with_suffix(".old"))

        with pytest.raises(StoreUnavailable, match="moved, deleted or replaced"):
            pay(run)

        shop.path.with_suffix(".old").rename(shop.path)
        pay(run)
        assert run.state is State.COMPLETED

    def test_a_completion_that_cannot_be_written_rolls_everything_back(self, shop: Shop) -> None:
        run = shop.start()

        def destroy() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                tx.execute("ALTER TABLE shigoto_done RENAME TO gone")

        with pytest.raises(JobError, match="cannot be written after what the block did: no such table"):
            destroy()

        assert (shop.paid(), run.state) == ([], State.PROCESSING)

    def test_what_fails_after_the_commit_does_not_make_it_look_failed(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = shop.start()
        with closing(shop.connect()) as connection:
            before = shop.path.stat().st_size
            monkeypatch.setattr(checkpoint, "WAL_LIMIT", 0)
            with run.context.transaction() as tx:
                tx.execute("CREATE TABLE large AS SELECT zeroblob(1000000) AS bytes")
            assert connection.in_transaction is False
            assert shop.path.stat().st_size > before + 1_000_000

    def test_the_watchdog_is_there_only_while_it_is_needed(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def watchdogs() -> list[threading.Thread]:
            return [thread for thread in threading.enumerate() if thread.name == "shigoto-watchdog"]

        monkeypatch.setattr(watchdog, "LOOK_EVERY", 0.01)
        monkeypatch.setattr(watchdog, "IDLE_FOR", 0.05)
        until(lambda: not watchdogs())  # of earlier tests
        run = shop.start()
        with run.context.transaction():
            assert len(watchdogs()) == 1
        until(lambda: not watchdogs())

        monkeypatch.setattr(watchdog, "IDLE_FOR", 60.0)
        pay(shop.start(), 2)
        assert len(watchdogs()) == 1
        shop.engine.close()
        until(lambda: not watchdogs())


class TestShield:
    def test_exceptions_from_outside_are_kept_away_while_a_block_is_entered_and_left(
        self, shop: Shop
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
        context = Context(run.lease, run.signals, Desk(shop.engine, shop.worker, None, shield), encode)
        with context.transaction() as tx:
            tx.set_trace_callback(watch)
            tx.execute("INSERT INTO paid VALUES (1)")

        assert (seen[0], seen[-1]) == (("INSERT", False), ("COMMIT", True))
        assert run.state is State.COMPLETED


class TestTransact:
    def test_what_the_function_returns_is_the_result(self, shop: Shop) -> None:
        run = shop.start()

        def book(tx: sqlite3.Connection) -> str:
            tx.execute("INSERT INTO paid VALUES (1)")
            return "booked"

        assert run.context.transact(book) == "booked"
        assert (shop.paid(), run.handle.result()) == ([1], "booked")

    def test_an_error_rolls_back(self, shop: Shop) -> None:
        run = shop.start()

        def book(tx: sqlite3.Connection) -> str:
            tx.execute("INSERT INTO paid VALUES (1)")
            raise KeyError("sold out")

        with pytest.raises(KeyError, match="sold out"):
            run.context.transact(book)
        assert (shop.paid(), run.state) == ([], State.PROCESSING)

    def test_a_function_that_only_looks_sync_is_refused(self, shop: Shop) -> None:
        run = shop.start()

        async def book() -> str:
            return "booked"

        with pytest.raises(JobError, match="make it async def"):
            _ = run.context.transact(lambda tx: book())
        assert run.state is State.PROCESSING


class TestTheCallersOwn:
    """`ctx.transaction(connection)`: the completion is written, the commit is left to the caller."""

    @pytest.fixture
    def connection(self, shop: Shop) -> Iterator[sqlite3.Connection]:
        with closing(shop.connect()) as connection:
            yield connection

    def test_the_commit_is_the_callers(self, shop: Shop, connection: sqlite3.Connection) -> None:
        run = shop.start()
        connection.execute("INSERT INTO paid VALUES (1)")
        with run.context.transaction(connection) as tx:
            assert tx.connection is connection
            shop.receipt.using(connection=tx.connection).enqueue(1)
            tx.finish("mine")

        assert connection.in_transaction
        assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PROCESSING)
        assert (run.signals.ended, run.signals.result) == ("joined", '"mine"')

        connection.commit()

        assert (shop.paid(), shop.receipts(), run.state) == ([1], 1, State.COMPLETED)
        assert run.handle.result() == "mine"
        assert run.settle(Ending.ERRORED) is Verdict.REPEATED

    def test_a_rollback_unmakes_it(self, shop: Shop, connection: sqlite3.Connection) -> None:
        run = shop.start()
        with run.context.transaction(connection):
            connection.execute("INSERT INTO paid VALUES (1)")
        connection.rollback()

        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        assert run.settle(Ending.ERRORED) is Verdict.ACCEPTED

    def test_a_block_that_raises_writes_nothing_and_ends_nothing(
        self, shop: Shop, connection: sqlite3.Connection
    ) -> None:
        run = shop.start()
        with suppress(KeyError), run.context.transaction(connection):
            connection.execute("INSERT INTO paid VALUES (1)")
            raise KeyError
        connection.commit()

        assert (shop.paid(), run.state) == ([1], State.PROCESSING)

    def test_a_worker_that_lost_the_job_is_told(self, shop: Shop, connection: sqlite3.Connection) -> None:
        run = shop.start()
        shop.fence()

        with pytest.raises(LeaseLost), connection, run.context.transaction(connection):
            connection.execute("INSERT INTO paid VALUES (1)")

        assert (shop.paid(), run.state) == ([], State.PENDING)

    def test_one_to_another_file_is_refused(self, shop: Shop, tmp_path: Path) -> None:
        run = shop.start()
        with (
            closing(sqlite3.connect(tmp_path / "other.db")) as other,
            pytest.raises(StoreRefused, match="not open on the store's file"),
            run.context.transaction(other),
        ):
            other.execute("CREATE TABLE t (n)")

        assert run.state is State.PROCESSING

    def test_what_libraries_wrap_around_it_is_taken_off(
        self, shop: Shop, connection: sqlite3.Connection
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
        self, shop: Shop, connection: sqlite3.Connection
    ) -> None:
        connection.isolation_level = None
        connection.execute("BEGIN")

        shop.receipt.using(connection=SimpleNamespace(connection=connection)).enqueue(1)
        connection.execute("COMMIT")

        assert shop.receipts() == 1

    def test_what_has_none_inside_is_refused(self, shop: Shop) -> None:
        with pytest.raises(StoreRefused, match="connection= got a object"):
            shop.receipt.using(connection=object()).enqueue(1)


class TestSqlAlchemy:
    """Its sessions and connections are taken as they are."""

    @pytest.fixture
    def database(self, shop: Shop) -> Iterator[sqlalchemy.Engine]:
        database = sqlalchemy.create_engine(f"sqlite:///{shop.path}")
        yield database
        database.dispose()

    def test_a_session_commits_the_job_with_its_own_rows(
        self, shop: Shop, database: sqlalchemy.Engine
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

    def test_a_session_that_rolls_back_unmakes_it(self, shop: Shop, database: sqlalchemy.Engine) -> None:
        run = shop.start()
        with Session(database) as session:
            with run.context.transaction(session):
                session.execute(sqlalchemy.text("INSERT INTO paid VALUES (1)"))
                shop.receipt.using(connection=session).enqueue(1)
            session.rollback()

        assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PROCESSING)

    def test_a_connection_does_as_well(self, shop: Shop, database: sqlalchemy.Engine) -> None:
        run = shop.start()
        with database.begin() as connection, run.context.transaction(connection):
            connection.execute(sqlalchemy.text("INSERT INTO paid VALUES (1)"))

        assert (shop.paid(), run.state) == ([1], State.COMPLETED)

    def test_what_has_not_begun_begins_as_before_a_statement_of_its_own(
        self, shop: Shop, database: sqlalchemy.Engine
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

    def test_what_must_be_awaited_is_refused(self, shop: Shop) -> None:
        with pytest.raises(StoreRefused, match=r"got a AsyncSession.*is not async"):
            shop.receipt.using(connection=AsyncSession()).enqueue(1)

    def test_what_commits_each_statement_is_refused(self, shop: Shop, database: sqlalchemy.Engine) -> None:
        at_once = database.execution_options(isolation_level="AUTOCOMMIT")
        with at_once.connect() as connection, pytest.raises(JobError, match="in no transaction"):
            shop.receipt.using(connection=connection).enqueue(1)

        assert shop.receipts() == 0

    def test_a_worker_that_lost_the_job_is_told_before_the_commit(
        self, shop: Shop, database: sqlalchemy.Engine
    ) -> None:
        run = shop.start()
        shop.fence()

        with pytest.raises(LeaseLost), database.begin() as connection, run.context.transaction(connection):
            connection.execute(sqlalchemy.text("INSERT INTO paid VALUES (1)"))

        assert (shop.paid(), run.state) == ([], State.PENDING)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
class TestForks:
    """SQLite's locks stay with the process that took them."""

    @pytest.mark.parametrize("leave", ["exit", "raise", "return"])
    def test_a_child_of_the_block_does_not_disturb_it(self, shop: Shop, leave: str) -> None:
        run = shop.start()
        tell, told = os.pipe()[::-1]
        child = 0
        try:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                child = os.fork()
                if child:
                    assert os.read(told, 1) == b"x"
                else:
                    with suppress(Exception):
                        tx.execute("INSERT INTO paid VALUES (2)")
                        os._exit(3)
                    os.write(tell, b"x")
                    if leave == "exit":
                        os._exit(0)
                    if leave == "raise":
                        raise SystemExit
        except (SystemExit, StoreUnavailable) as error:
            expected = SystemExit if leave == "raise" else StoreUnavailable
            os._exit(0 if not child and isinstance(error, expected) else 4)
        if not child:
            os._exit(5)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (shop.paid(), run.state) == ([1], State.COMPLETED)
        with closing(shop.connect()) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    def test_a_fork_elsewhere_waits_for_the_block(self, shop: Shop) -> None:
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


def until(condition: Any, seconds: float = 10.0) -> None:
    """Wait for what the watchdog does by itself."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
