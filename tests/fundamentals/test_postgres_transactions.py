"""Transaction blocks on PostgreSQL: what only a server does, and what only a server can do to them.

What holds for every store is in `test_transactions.py` and `test_transactions_async.py`.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest

from shigoto import (
    AsyncTransaction,
    Context,
    JobError,
    State,
    StoreUnavailable,
    TransactionConflict,
    TransactionTooLong,
)
from shigoto.engine.postgres import PostgresEngine
from shigoto.model.worker import Ending, Verdict
from shigoto.worker import Stopped, Worker, endings
from tests.fundamentals.postgres_shop import PostgresShop
from tests.fundamentals.shop import apay, pay, until

pytestmark = pytest.mark.engine("postgres")

OpenShop = Callable[..., PostgresShop]


class TestTheConnection:
    def test_it_is_psycopgs_own_and_goes_where_such_connections_go(self, shop: PostgresShop) -> None:
        def library(connection: psycopg.Connection) -> list[Any]:
            with connection.cursor() as cursor:
                cursor.executemany(shop.insert, [(number,) for number in range(5)])
                with cursor.copy("COPY paid FROM STDIN") as copy:
                    copy.write_row((5,))
            with connection.transaction(), connection.pipeline():
                connection.execute(shop.insert, (6,))
            with connection.cursor(name="server_side") as cursor:
                cursor.execute("SELECT invoice FROM paid ORDER BY invoice")
                return [row[0] for row in cursor]

        run = shop.start()
        with run.context.transaction() as tx:
            assert isinstance(tx, psycopg.Connection)
            assert library(tx) == [0, 1, 2, 3, 4, 5, 6]
            [[isolation]] = tx.execute("SHOW transaction_isolation").fetchall()
            assert isolation == "read committed"
            many: Any = tx
            assert many.executemany(shop.insert, [(7,), (8,)]).rowcount == 2

        assert (shop.paid(), run.state) == (list(range(9)), State.COMPLETED)

    def test_it_does_not_begin_to_commit_each_statement(self, shop: PostgresShop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")
            with pytest.raises(JobError, match=r"not ended by hand: leave the block .* there are savepoints"):
                tx.set_autocommit(True)
            with pytest.raises(JobError, match="not ended by hand"):
                tx.autocommit = True
            assert not tx.autocommit

        assert (shop.paid(), run.state) == ([1], State.COMPLETED)

    @pytest.mark.parametrize("statement", ["COMMIT", "END", "  commit -- now", "ROLLBACK"])
    def test_a_statement_that_has_ended_it_is_noticed_and_nothing_more_is_taken(
        self, shop: PostgresShop, statement: str
    ) -> None:
        run = shop.start()

        def end_it() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                with pytest.raises(JobError, match="not ended by hand"):
                    tx.execute(statement)
                with pytest.raises(JobError, match="not ended by hand"):
                    tx.execute("INSERT INTO paid VALUES (2)")
                with pytest.raises(JobError, match="not ended by hand"):
                    shop.receipt.using(connection=tx).enqueue(1)

        with pytest.raises(JobError, match="not ended by hand"):
            end_it()

        assert (shop.receipts(), run.state) == (0, State.PROCESSING)
        assert shop.paid() == ([] if statement == "ROLLBACK" else [1])

    @pytest.mark.parametrize("statement", ["COMMIT; BEGIN", "ROLLBACK; BEGIN", "COMMIT AND CHAIN"])
    def test_one_that_has_begun_another_is_noticed_at_the_end(
        self, shop: PostgresShop, statement: str
    ) -> None:
        run = shop.start()

        def begin_another() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                tx.execute(statement)
                tx.execute("INSERT INTO paid VALUES (2)")
                shop.receipt.using(connection=tx).enqueue(2)

        with pytest.raises(JobError, match="not ended by hand"):
            begin_another()

        assert (shop.receipts(), run.state) == (0, State.PROCESSING)
        assert 2 not in shop.paid()

    def test_psycopgs_blocks_are_savepoints_for_a_part_that_may_fail(self, shop: PostgresShop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            with suppress(psycopg.errors.UniqueViolation), tx.transaction():
                tx.executemany(shop.insert, [(1,), (1,)])
            tx.execute("INSERT INTO paid VALUES (2)")

        assert (shop.paid(), run.state) == ([2], State.COMPLETED)

    def test_after_an_error_without_one_the_block_cannot_be_committed(self, shop: PostgresShop) -> None:
        run = shop.start()

        def swallow() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                with pytest.raises(psycopg.errors.UndefinedTable):
                    tx.execute("INSERT INTO unpaid VALUES (1)")
                with pytest.raises(JobError, match="has failed"):
                    shop.receipt.using(connection=tx).enqueue(1)

        with pytest.raises(JobError, match=r"takes nothing more after an error .* there are savepoints"):
            swallow()

        assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PROCESSING)

    def test_what_a_block_leaves_on_the_session_is_not_there_in_the_next(self, open_shop: OpenShop) -> None:
        shop = open_shop("pool=1")
        run = shop.start()
        with run.context.transaction() as tx:
            [[pid]] = tx.execute("SELECT pg_backend_pid()").fetchall()
            tx.execute("SET work_mem = '3MB'")
            tx.execute("CREATE TEMP TABLE mine (n int)")
            tx.execute("SELECT pg_advisory_lock(7)")
            tx.execute("SELECT 1", prepare=True)
            tx.execute("LISTEN mine")
            tx.row_factory = psycopg.rows.dict_row

        with shop.start().context.transaction() as tx:
            assert tx.execute("SELECT pg_backend_pid()").fetchall() == [(pid,)]
            assert tx.execute("SHOW work_mem").fetchall() != [("3MB",)]
            assert tx.execute("SELECT to_regclass('mine')").fetchall() == [(None,)]
            assert tx.execute("SELECT count(*) FROM pg_prepared_statements").fetchall() == [(0,)]
            locks = (
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )
            assert tx.execute(locks).fetchall() == [(0,)]
            assert tx.execute("SELECT pg_listening_channels()").fetchall() == []
            tx.execute("SELECT 2", prepare=True)


class TestBesides:
    """A block on PostgreSQL locks the rows that it has written, and nothing else."""

    def test_writes_beside_the_block_are_taken_at_once(self, shop: PostgresShop) -> None:
        run = shop.start()
        with run.context.transaction() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")
            shop.receipt.enqueue(1)
            run.context.checkpoint({"at": 1})
            shop.app.pause("elsewhere")
            shop.engine.run(shop.engine.beat(shop.worker, [(run.lease.number, run.lease.token)]))
            assert (shop.receipts(), shop.paid()) == (1, [])

        assert (shop.paid(), run.state) == ([1], State.COMPLETED)

    def test_two_blocks_of_two_jobs_do_not_wait_for_each_other(self, shop: PostgresShop) -> None:
        one, other = shop.start(), shop.start()
        with one.context.transaction() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")
            pay(other, 2)
            assert (shop.paid(), other.state) == ([2], State.COMPLETED)

        assert (shop.paid(), one.state) == ([1, 2], State.COMPLETED)


class TestExhaustion:
    """S0-76: more handlers in transactions than connections wait in order, while everything else goes on."""

    def test_handlers_wait_in_order_and_beats_and_settles_go_on(self, open_shop: OpenShop) -> None:
        shop = open_shop("pool=1")
        runs = [shop.start() for _ in range(4)]
        engine: Any = shop.engine
        waiting: list[threading.Thread] = []
        order: list[int] = []

        def handle(number: int) -> None:
            with runs[number].context.transaction() as tx:
                order.append(number)
                tx.execute(shop.insert, (number,))

        with runs[0].context.transaction() as tx:
            for number in (1, 2):
                thread = threading.Thread(target=handle, args=(number,))
                thread.start()
                waiting.append(thread)
                until(lambda: len(engine._block_pool.threads._line) == len(waiting))
            assert order == []
            assert runs[3].settle(Ending.ERRORED) is Verdict.ACCEPTED
            orders = shop.engine.run(shop.engine.beat(shop.worker, None))
            assert not orders.fenced
            tx.execute(shop.insert, (0,))
        for thread in waiting:
            thread.join(10)

        assert (order, shop.paid()) == ([1, 2], [0, 1, 2])
        assert [run.state for run in runs[:3]] == [State.COMPLETED] * 3

    def test_one_that_gets_none_in_time_is_told_so_and_may_try_again(self, open_shop: OpenShop) -> None:
        shop = open_shop("pool=1")
        one, other = shop.start(), shop.start()
        assert isinstance(shop.engine, PostgresEngine)
        shop.engine._driver.deadline = 0.2
        with one.context.transaction() as tx:
            with pytest.raises(StoreUnavailable, match=r"all 1 connections .* were in use"):
                pay(other)
            assert isinstance(other.signals.trouble, StoreUnavailable)
            tx.execute("INSERT INTO paid VALUES (1)")

        pay(other, 2)
        assert shop.paid() == [1, 2]

    async def test_so_it_is_on_an_event_loop_with_a_real_worker(self, open_shop: OpenShop) -> None:
        shop = open_shop("pool=2")
        inside, most = 0, 0

        @shop.app.task
        async def book(ctx: Context, invoice: int) -> None:
            nonlocal inside, most
            async with ctx.transaction() as tx:
                inside += 1
                most = max(most, inside)
                await tx.execute(shop.insert, (invoice,))
                await asyncio.sleep(0.01)
                inside -= 1

        await shop.app.aenqueue_many(book.call(number) for number in range(30))
        assert await Worker(shop.app, drain=True, any_role=True).run() == Stopped(reason="drained")

        assert shop.paid() == list(range(30))
        assert most == 2
        assert {job.state for job in shop.app.find(task="book")} == {State.COMPLETED}


class TestConflicts:
    """Serialization failures and deadlocks say nothing about the job."""

    @contextmanager
    def conflicting(self, shop: PostgresShop, tx: psycopg.Connection) -> Iterator[None]:
        """What the block does next is in conflict with what another has committed meanwhile."""
        tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert tx.execute("SELECT * FROM paid").fetchall() == [(1,)]
        with shop.open() as connection:
            connection.execute("UPDATE paid SET invoice = invoice WHERE invoice = 1")
        yield
        tx.execute("DELETE FROM paid WHERE invoice = 1")

    @pytest.fixture
    def shop(self, open_shop: OpenShop) -> PostgresShop:
        shop = open_shop()
        with shop.open() as connection:
            connection.execute("INSERT INTO paid VALUES (1)")
        return shop

    def test_one_in_a_block_is_told_as_what_it_is_and_the_run_may_try_again(self, shop: PostgresShop) -> None:
        run = shop.start()

        with (
            pytest.raises(TransactionConflict, match="in conflict with another transaction") as raised,
            run.context.transaction() as tx,
            self.conflicting(shop, tx),
        ):
            tx.execute("INSERT INTO paid VALUES (2)")

        assert isinstance(raised.value.__cause__, psycopg.errors.SerializationFailure)
        assert run.signals.trouble is raised.value
        assert (shop.paid(), run.state) == ([1], State.PROCESSING)
        pay(run, 3)
        assert (shop.paid(), run.state) == ([1, 3], State.COMPLETED)

    def test_one_that_the_handler_swallows_is_told_at_the_end(self, shop: PostgresShop) -> None:
        run = shop.start()

        with (
            pytest.raises(TransactionConflict),
            run.context.transaction() as tx,
            suppress(psycopg.errors.SerializationFailure),
            self.conflicting(shop, tx),
        ):
            pass

        assert run.state is State.PROCESSING

    def test_a_completion_that_comes_after_a_rescue_has_no_effect(self, shop: PostgresShop) -> None:
        """Semantics §11: in REPEATABLE READ the guard says 40001 where it would say "lost", to the same effect."""
        run = shop.start()

        def come_late() -> None:
            with run.context.transaction() as tx:
                tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                tx.execute("INSERT INTO paid VALUES (2)")
                shop.fence()

        with pytest.raises(TransactionConflict):
            come_late()

        assert (shop.paid(), run.state) == ([1], State.PENDING)

    def test_transact_runs_the_function_again(self, shop: PostgresShop) -> None:
        run, tries = shop.start(), 0

        def book(tx: psycopg.Connection) -> str:
            nonlocal tries
            tries += 1
            tx.execute("INSERT INTO paid VALUES (2)")
            if tries < 3:
                raise psycopg.errors.SerializationFailure("as if")
            return f"after {tries}"

        assert run.context.transact(book) == "after 3"
        assert (shop.paid(), run.handle.result()) == ([1, 2], "after 3")

    async def test_so_does_one_that_is_awaited(self, shop: PostgresShop) -> None:
        run, tries = shop.start(), 0

        async def book(tx: AsyncTransaction) -> str:
            nonlocal tries
            tries += 1
            await tx.execute("INSERT INTO paid VALUES (2)")
            if tries < 3:
                raise psycopg.errors.DeadlockDetected("as if")
            return f"after {tries}"

        assert await run.context.transact(book) == "after 3"
        assert (shop.paid(), run.handle.result()) == ([1, 2], "after 3")

    def test_it_does_so_a_number_of_times_and_no_more(
        self, shop: PostgresShop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shigoto.transactions.LONGEST_PAUSE", 0.001)
        run, tries = shop.start(), 0

        def book(tx: psycopg.Connection) -> str:
            nonlocal tries
            tries += 1
            raise psycopg.errors.SerializationFailure("as if")

        with pytest.raises(TransactionConflict):
            run.context.transact(book)
        assert (tries, run.state) == (11, State.PROCESSING)

    def test_a_worker_gives_the_job_back_and_it_counts_as_nothing(
        self, shop: PostgresShop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A16: form 1 = release (T8)."""
        monkeypatch.setattr(endings, "TROUBLE_DELAY", 0)  # this clock stands still
        tries = 0

        @shop.app.task(retries=0)
        def book(ctx: Context) -> None:
            nonlocal tries
            tries += 1
            with ctx.transaction() as tx:
                if tries == 1:
                    with self.conflicting(shop, tx):
                        pass
                tx.execute("INSERT INTO paid VALUES (2)")

        handle = book.enqueue()
        drained = asyncio.run(Worker(shop.app, drain=True, any_role=True).run())

        job = handle.job()
        assert (drained, tries) == (Stopped(reason="drained"), 2)
        assert (job.state, job.failures, job.releases) == (State.COMPLETED, 0, 1)
        assert shop.paid() == [1, 2]


@pytest.mark.usefixtures("short_blocks")
class TestLimit:
    def test_a_stream_that_nobody_exhausts_does_not_keep_it_open(self, shop: PostgresShop) -> None:
        run = shop.start()
        kept: list[Any] = []

        def leave() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                kept.append(tx.cursor().stream("SELECT generate_series(1, 100000)"))
                next(kept[0])

        with pytest.raises(TransactionTooLong):
            leave()

        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        pay(shop.start(), 2)
        assert shop.paid() == [2]

    async def test_nor_does_one_on_an_event_loop(self, shop: PostgresShop) -> None:
        run = shop.start()

        async def leave() -> Any:
            async with run.context.transaction() as tx:
                connection: Any = tx
                stream = connection.cursor().stream("SELECT generate_series(1, 100000)")
                assert await anext(stream) == (1,)
            return stream

        with pytest.raises(TransactionTooLong):
            await leave()

        assert run.state is State.PROCESSING


class TestTrouble:
    def test_a_connection_that_is_lost_in_the_block_is_trouble_of_the_store(self, shop: PostgresShop) -> None:
        run = shop.start()

        def lose() -> None:
            with run.context.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")
                tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

        with pytest.raises(StoreUnavailable, match="cannot be reached") as raised:
            lose()

        assert run.signals.trouble is raised.value
        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        pay(shop.start(), 2)  # on another connection

    def test_so_is_one_that_is_lost_before_the_end(self, shop: PostgresShop) -> None:
        run = shop.start()

        def lose() -> None:
            with run.context.transaction() as tx:
                [[pid]] = tx.execute("SELECT pg_backend_pid()").fetchall()
                tx.execute("INSERT INTO paid VALUES (1)")
                with shop.open() as connection:
                    connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
                until(lambda: shop.backends(f"pid = {pid}") == 0)

        with pytest.raises(StoreUnavailable):
            lose()

        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        assert run.settle(Ending.RELEASED) is Verdict.ACCEPTED

    def test_idle_connections_that_are_gone_are_replaced(self, shop: PostgresShop) -> None:
        pay(shop.start(), 1)
        with shop.open() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND usename = current_user"
                " AND application_name = 'shigoto'"
            )

        pay(shop.start(), 2)

        assert shop.paid() == [1, 2]

    def test_a_run_that_ends_inside_its_block_has_done_nothing(self, shop: PostgresShop) -> None:
        kept: list[Any] = []

        @shop.app.task(retries=0)
        def book(ctx: Context) -> None:
            def steps() -> Iterator[int]:
                with ctx.transaction() as tx:
                    tx.execute("INSERT INTO paid VALUES (1)")
                    tx.finish("paid")
                    yield 1

            kept.append(steps())
            next(kept[0])

        handle = book.enqueue()
        asyncio.run(Worker(shop.app, drain=True, any_role=True).run())
        shop.until_free()

        assert (shop.paid(), handle.status()) == ([], State.FAILED)
        with pytest.raises(JobError, match="has returned while this transaction block was open"):
            next(kept[0])


class TestAsync:
    async def test_the_connection_is_psycopgs_own(self, shop: PostgresShop) -> None:
        run = shop.start()
        async with run.context.transaction() as tx:
            connection: object = tx
            assert isinstance(connection, psycopg.AsyncConnection)
            await tx.execute("INSERT INTO paid VALUES (%(invoice)s)", {"invoice": 1})

        assert shop.paid() == [1]

    async def test_it_is_not_ended_by_hand(self, shop: PostgresShop) -> None:
        run = shop.start()

        async def end() -> None:
            async with run.context.transaction() as tx:
                connection: Any = tx
                await connection.execute("INSERT INTO paid VALUES (1)")
                for method in (
                    connection.commit,
                    connection.rollback,
                    connection.close,
                    lambda: connection.set_autocommit(True),
                ):
                    with pytest.raises(JobError, match="not ended by hand"):
                        await method()
                with pytest.raises(JobError, match=r"must be, too"):
                    shop.receipt.using(connection=connection).enqueue(1)
                with pytest.raises(JobError, match="not ended by hand"):
                    await connection.execute("COMMIT")

        with pytest.raises(JobError, match="not ended by hand"):
            await end()

        assert (shop.paid(), run.state) == ([1], State.PROCESSING)

    async def test_writes_beside_the_block_are_taken_at_once(self, shop: PostgresShop) -> None:
        run = shop.start()
        async with run.context.transaction() as tx:
            await tx.execute("INSERT INTO paid VALUES (1)")
            await shop.receipt.aenqueue(1)
            await run.context.acheckpoint(1)
            assert (shop.receipts(), shop.paid()) == (1, [])

        assert shop.paid() == [1]

    async def test_a_connection_that_is_lost_is_trouble_of_the_store(self, shop: PostgresShop) -> None:
        run = shop.start()

        async def lose() -> None:
            async with run.context.transaction() as tx:
                await tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await lose()

        await apay(shop.start(), 2)
        assert shop.paid() == [2]

    async def test_leaving_waits_for_a_statement_of_another_task(self, shop: PostgresShop) -> None:
        run = shop.start()
        async with run.context.transaction() as tx:
            slow = asyncio.create_task(tx.execute("INSERT INTO paid SELECT 1 FROM pg_sleep(0.2)"))
            await asyncio.sleep(0)

        assert slow.done()
        assert (shop.paid(), run.state) == ([1], State.COMPLETED)

    async def test_a_cancel_at_a_statement_rolls_back(self, shop: PostgresShop) -> None:
        run = shop.start()

        async def handler() -> None:
            async with run.context.transaction() as tx:
                await tx.execute("INSERT INTO paid VALUES (1)")
                await tx.execute(shop.endless)

        task = asyncio.create_task(handler())
        await asyncio.to_thread(shop.until_asleep)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await asyncio.to_thread(shop.until_free)
        assert (shop.paid(), run.state, run.signals.ended) == ([], State.PROCESSING, None)
        assert run.settle(Ending.CANCELLED) is Verdict.ACCEPTED

    async def test_one_that_is_cancelled_while_it_waits_for_a_connection_leaves_the_line(
        self, open_shop: OpenShop
    ) -> None:
        shop = open_shop("pool=1")
        one, other = shop.start(), shop.start()
        async with one.context.transaction() as tx:
            await tx.execute("INSERT INTO paid VALUES (1)")
            task = asyncio.create_task(apay(other, 2))
            await asyncio.wait([task], timeout=0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        await apay(other, 2)
        assert shop.paid() == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_of_a_block_writes_on_a_connection_of_its_own(shop: PostgresShop) -> None:
    """A22."""
    run = shop.start()
    with run.context.transaction() as tx:
        tx.execute("INSERT INTO paid VALUES (1)")
        child = os.fork()
        if not child:
            code = 1
            try:
                shop.receipt.enqueue(5)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert (shop.paid(), shop.receipts(), run.state) == ([1], 1, State.COMPLETED)


def test_nobody_who_beats_waits_for_a_caller_that_does_not_commit(shop: PostgresShop) -> None:
    """`ctx.transaction(connection)`; all kinds of connections are in `tests/engines/test_postgres_joins.py`."""
    run = shop.start()
    with shop.connect() as connection:
        with run.context.transaction(connection):
            connection.execute("INSERT INTO paid VALUES (1)")
        orders = shop.engine.run(shop.engine.beat(shop.worker, [(run.lease.number, run.lease.token)]))
        assert not orders.fenced

    assert (shop.paid(), run.state) == ([1], State.COMPLETED)
