"""A handler's own SQL and the completion of its job are one commit: both happen, or neither does.

Semantics §11, §8 C8-C10, rules A16. Every store keeps these promises; `conftest.py` says which there are. What async
code does differently is in `test_transactions_async.py`, and what only one kind of store does in
`test_sqlite_transactions.py` and `test_postgres_transactions.py`.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from shigoto import JobError, LeaseLost, ResultInvalid, State, StoreUnavailable, TransactionTooLong
from shigoto.model.worker import Ending, Verdict
from tests.fundamentals.shop import Shop, pay, until


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
    def test_the_methods_that_would_part_effects_from_completion_are_refused(self, shop: Shop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")
            for method in (tx.commit, tx.rollback, tx.close):
                with pytest.raises(
                    JobError, match=r"not ended by hand: leave the block .* there are savepoints"
                ):
                    method()
            with pytest.raises(JobError, match="not ended by hand"), tx:
                pass

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

    def test_a_completion_that_cannot_be_written_rolls_everything_back(self, shop: Shop) -> None:
        run = shop.start()

        def destroy() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                tx.execute(f"ALTER TABLE {shop.done} RENAME TO gone")

        with pytest.raises(
            JobError, match=f"cannot be written after what the block did: .*{shop.no_such_table}"
        ):
            destroy()

        assert (shop.paid(), run.state) == ([], State.PROCESSING)

    def test_what_a_constraint_says_at_the_commit_is_the_blocks_own(self, shop: Shop) -> None:
        run = shop.start()
        with closing(shop.connect()) as connection, connection:
            connection.execute(
                "CREATE TABLE refund (invoice INTEGER REFERENCES paid DEFERRABLE INITIALLY DEFERRED)"
            )
        with pytest.raises(shop.integrity_error), run.context.transaction() as tx:
            tx.execute("INSERT INTO refund VALUES (99)")

        assert run.state is State.PROCESSING

    def test_after_the_block_it_is_of_no_use(self, shop: Shop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            cursor = tx.cursor()

        for past in (tx, cursor):
            with pytest.raises(JobError, match="The transaction block is over"):
                past.execute("SELECT 1")
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
        said = shop.lose_the_answer(monkeypatch, committed=committed)
        with pytest.raises(StoreUnavailable, match=said):
            pay(run)
        monkeypatch.undo()

        assert run.signals.ended is None
        with pytest.raises(JobError, match="has left one of which nobody knows"):
            pay(run)
        verdict = run.settle(Ending.ERRORED)
        assert verdict is (Verdict.REPEATED if committed else Verdict.ACCEPTED)
        assert shop.paid() == ([1] if committed else [])
        assert run.state is (State.COMPLETED if committed else State.PENDING)


@pytest.mark.usefixtures("short_blocks")
class TestLimit:
    def test_it_is_rolled_back_while_the_handler_sleeps(self, shop: Shop) -> None:
        run = shop.start()
        others = threading.Thread(target=lambda: shop.receipt.enqueue(2))

        def sleep() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                others.start()
                others.join(10)  # on SQLite it takes the write lock
                shop.until_free()
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
        run = shop.start()

        def count() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                with pytest.raises(TransactionTooLong):
                    tx.execute(shop.endless).fetchone()

        began = time.monotonic()
        with pytest.raises(TransactionTooLong):
            count()
        assert time.monotonic() - began < 10

        shop.until_free()
        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        pay(run)
        assert (shop.paid(), run.state) == ([1], State.COMPLETED)

    def test_it_strikes_while_the_block_waits_for_a_statement_of_another_thread(self, shop: Shop) -> None:
        run = shop.start()
        raised: list[Exception] = []

        def count(tx: Any) -> None:
            try:
                tx.execute(shop.endless).fetchone()
            except Exception as error:
                raised.append(error)

        def leave() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                shop.begin_statement(tx, threading.Thread(target=count, args=(tx,), daemon=True).start)
                tx.finish("paid")

        with pytest.raises(TransactionTooLong):
            leave()

        until(lambda: bool(raised))
        assert isinstance(raised[0], TransactionTooLong)
        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        shop.receipt.enqueue(1)

    def test_the_run_may_try_again_and_an_error_of_its_own_passes(self, shop: Shop) -> None:
        run = shop.start()

        def fail() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                shop.until_free()
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            fail()
        pay(run)

        assert (shop.paid(), run.state) == ([1], State.COMPLETED)


class TestTransact:
    def test_what_the_function_returns_is_the_result(self, shop: Shop) -> None:
        run = shop.start()

        def book(tx: Any) -> str:
            tx.execute("INSERT INTO paid VALUES (1)")
            return "booked"

        assert run.context.transact(book) == "booked"
        assert (shop.paid(), run.handle.result()) == ([1], "booked")

    def test_an_error_rolls_back(self, shop: Shop) -> None:
        run = shop.start()

        def book(tx: Any) -> str:
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
    def connection(self, shop: Shop) -> Iterator[Any]:
        with closing(shop.connect()) as connection:
            yield connection

    def test_the_commit_is_the_callers(self, shop: Shop, connection: Any) -> None:
        run = shop.start()
        connection.execute("INSERT INTO paid VALUES (1)")
        with run.context.transaction(connection) as tx:
            assert tx.connection is connection
            shop.receipt.using(connection=tx.connection).enqueue(1)
            tx.finish("mine")

        assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PROCESSING)
        assert (run.signals.ended, run.signals.result) == ("joined", '"mine"')

        connection.commit()

        assert (shop.paid(), shop.receipts(), run.state) == ([1], 1, State.COMPLETED)
        assert run.handle.result() == "mine"
        assert run.settle(Ending.ERRORED) is Verdict.REPEATED

    def test_a_rollback_unmakes_it(self, shop: Shop, connection: Any) -> None:
        run = shop.start()
        with run.context.transaction(connection):
            connection.execute("INSERT INTO paid VALUES (1)")
        connection.rollback()

        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        assert run.settle(Ending.ERRORED) is Verdict.ACCEPTED

    def test_a_block_that_raises_writes_nothing_and_ends_nothing(self, shop: Shop, connection: Any) -> None:
        run = shop.start()
        with suppress(KeyError), run.context.transaction(connection):
            connection.execute("INSERT INTO paid VALUES (1)")
            raise KeyError
        connection.commit()

        assert (shop.paid(), run.state) == ([1], State.PROCESSING)

    def test_a_worker_that_lost_the_job_is_told(self, shop: Shop, connection: Any) -> None:
        run = shop.start()
        shop.fence()

        with pytest.raises(LeaseLost), connection, run.context.transaction(connection):
            connection.execute("INSERT INTO paid VALUES (1)")

        assert (shop.paid(), run.state) == ([], State.PENDING)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
class TestForks:
    """A22: what a block holds is the parent's, be it the locks of a file or the socket of a connection."""

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
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                else:
                    with suppress(StoreUnavailable):
                        tx.execute("INSERT INTO paid VALUES (2)")
                        os._exit(3)
                    with suppress(StoreUnavailable):
                        shop.receipt.using(connection=tx).enqueue(2)
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

        assert (shop.paid(), shop.receipts(), run.state) == ([1], 0, State.COMPLETED)
        pay(shop.start(), 2)
        assert shop.paid() == [1, 2]
        shop.check()

    @pytest.mark.parametrize("when", ["inside", "after"])
    def test_a_process_that_is_killed_has_done_all_or_nothing(self, shop: Shop, when: str) -> None:
        """C8."""
        run = shop.start()
        tell, told = os.pipe()[::-1]
        child = os.fork()
        if not child:
            with suppress(Exception):
                with run.context.transaction() as tx:
                    tx.execute("INSERT INTO paid VALUES (1)")
                    shop.receipt.using(connection=tx).enqueue(1)
                    if when == "inside":
                        os.write(tell, b"x")
                        signal.pause()
                os.write(tell, b"x")
                signal.pause()
            os._exit(1)
        assert os.read(told, 1) == b"x"
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        shop.until_free()

        if when == "inside":
            assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PROCESSING)
        else:
            assert (shop.paid(), shop.receipts(), run.state) == ([1], 1, State.COMPLETED)
