"""Transactions in async handlers: the same promises, and a cancel may strike anywhere."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from shigoto import AsyncTransaction, JobError, LeaseLost, ResultInvalid, State, TransactionTooLong
from shigoto import transaction as face
from shigoto.engine.sqlite.transaction import Block
from shigoto.model.outcome import Ending, Verdict
from tests.fundamentals.shop import Run, Shop


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.engine.close()


async def pay(run: Run, invoice: int = 1) -> None:
    async with run.context.transaction() as tx:
        await tx.execute(run.shop.insert, (invoice,))
        await run.shop.receipt.using(connection=tx).aenqueue(invoice)
        tx.finish(f"paid {invoice}")


async def test_effects_completion_and_further_jobs_happen_together(shop: Shop) -> None:
    """I9, C8: exactly once."""
    run = shop.start()

    async with run.context.transaction() as tx:
        await tx.execute("INSERT INTO paid VALUES (:invoice)", {"invoice": 1})
        await shop.receipt.using(connection=tx).aenqueue(1)
        tx.finish("thank you")
        assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PROCESSING)

    assert (shop.paid(), shop.receipts(), run.state) == ([1], 1, State.COMPLETED)
    assert run.handle.result() == "thank you"
    assert run.signals.ended == "committed"
    assert run.settle(Ending.ERRORED) is Verdict.REPEATED


async def test_rows_are_awaited_like_statements(shop: Shop) -> None:
    run = shop.start()
    async with run.context.transaction() as tx:
        written = await tx.executemany("INSERT INTO paid VALUES (?)", [(number,) for number in range(3)])
        found = await tx.execute("SELECT invoice FROM paid ORDER BY invoice")

        assert written.rowcount == 3
        assert await found.fetchone() == (0,)
        assert await found.fetchall() == [(1,), (2,)]
        assert await found.fetchone() is None


async def test_a_block_that_raises_leaves_nothing_behind(shop: Shop) -> None:
    run = shop.start()

    async def fail() -> None:
        async with run.context.transaction() as tx:
            await tx.execute("INSERT INTO paid VALUES (1)")
            await shop.receipt.using(connection=tx).aenqueue(1)
            raise KeyError("no such invoice")

    with pytest.raises(KeyError, match="no such invoice"):
        await fail()

    assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PROCESSING)
    await pay(run, 2)
    assert (shop.paid(), run.state) == ([2], State.COMPLETED)


async def test_an_error_of_a_statement_passes_and_the_block_goes_on(shop: Shop) -> None:
    run = shop.start()
    async with run.context.transaction() as tx:
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await tx.execute("INSERT INTO unpaid VALUES (1)")
        with pytest.raises(JobError, match="not ended by hand"):
            await tx.execute("COMMIT")
        await tx.execute("INSERT INTO paid VALUES (1)")

    assert shop.paid() == [1]


async def test_a_worker_that_lost_the_job_has_no_effect(shop: Shop) -> None:
    run = shop.start()
    shop.fence()

    with pytest.raises(LeaseLost):
        await pay(run)

    assert (shop.paid(), shop.receipts(), run.state) == ([], 0, State.PENDING)
    assert run.context.cancelled


async def test_a_result_that_cannot_be_stored_rolls_back(shop: Shop) -> None:
    run = shop.start()

    async def finish() -> None:
        async with run.context.transaction() as tx:
            await tx.execute("INSERT INTO paid VALUES (1)")
            tx.finish(object())

    with pytest.raises(ResultInvalid):
        await finish()

    assert (shop.paid(), run.state) == ([], State.PROCESSING)


async def test_transact_commits_what_an_async_function_does_with_what_it_returns(shop: Shop) -> None:
    run = shop.start()

    async def book(tx: AsyncTransaction) -> str:
        await tx.execute("INSERT INTO paid VALUES (1)")
        return "booked"

    assert await run.context.transact(book) == "booked"
    assert (shop.paid(), run.handle.result()) == ([1], "booked")


async def test_the_callers_own_connection_is_joined(shop: Shop) -> None:
    run = shop.start()
    with closing(shop.connect()) as connection:
        async with run.context.transaction(connection) as tx:
            tx.connection.execute("INSERT INTO paid VALUES (1)")
            await shop.receipt.using(connection=connection).aenqueue(1)
            tx.finish("mine")
        assert run.state is State.PROCESSING
        connection.commit()

    assert (shop.paid(), shop.receipts(), run.state) == ([1], 1, State.COMPLETED)

    other = shop.start()
    shop.fence()
    with closing(shop.connect()) as connection:
        with pytest.raises(LeaseLost):
            async with other.context.transaction(connection):
                pass
        connection.rollback()


async def test_a_block_that_would_block_the_event_loop_is_refused(shop: Shop) -> None:
    run = shop.start()

    with pytest.raises(JobError, match="write `async with`"), run.context.transaction():
        pass
    with pytest.raises(JobError, match="write `async with`"):
        run.context.transact(lambda tx: None)

    await pay(run)
    assert run.state is State.COMPLETED


class TestWaitingForOneself:
    async def test_a_write_beside_the_block_is_refused_in_all_its_tasks(self, shop: Shop) -> None:
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

    async def test_a_task_that_outlives_the_block_may_write_then(self, shop: Shop) -> None:
        run, over = shop.start(), asyncio.Event()

        async def later() -> None:
            await over.wait()
            await shop.receipt.aenqueue(1)

        async with run.context.transaction():
            task = asyncio.create_task(later())
        over.set()
        await task

        assert shop.receipts() == 1

    async def test_other_tasks_wait_their_turn_and_the_loop_goes_on(self, shop: Shop) -> None:
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

    async def test_its_connection_is_not_for_sync_calls(self, shop: Shop) -> None:
        run = shop.start()
        async with run.context.transaction() as tx:
            with pytest.raises(JobError, match=r"must be awaited: use aenqueue\(\) with it"):
                shop.receipt.using(connection=tx).enqueue(1)

    async def test_after_the_block_it_is_of_no_use(self, shop: Shop) -> None:
        run = shop.start()
        async with run.context.transaction() as tx:
            pass

        with pytest.raises(JobError, match="The transaction block is over"):
            await tx.execute("SELECT 1")
        with pytest.raises(JobError, match="The transaction block is over"):
            await shop.receipt.using(connection=tx).aenqueue(1)


class TestLimit:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(face, "LIMIT", 0.2)

    async def test_it_is_rolled_back_while_the_handler_waits(self, shop: Shop) -> None:
        run = shop.start()

        async def wait() -> None:
            async with run.context.transaction() as tx:
                await tx.execute("INSERT INTO paid VALUES (1)")
                others = threading.Thread(target=lambda: shop.receipt.enqueue(2))  # with no block around it
                others.start()
                await asyncio.to_thread(others.join, 10)
                with pytest.raises(TransactionTooLong):
                    await tx.execute("INSERT INTO paid VALUES (2)")
                with pytest.raises(TransactionTooLong):
                    await shop.receipt.using(connection=tx).aenqueue(1)

        with pytest.raises(TransactionTooLong):
            await wait()

        assert (shop.paid(), shop.receipts(), run.state) == ([], 1, State.PROCESSING)

    async def test_it_strikes_in_the_middle_of_a_statement(self, shop: Shop) -> None:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        run = shop.start()

        async def count() -> None:
            async with run.context.transaction() as tx:
                await tx.execute(endless)

        with pytest.raises(TransactionTooLong):
            await count()

        assert run.state is State.PROCESSING


class TestCancel:
    async def test_at_a_statement_it_rolls_back(self, shop: Shop) -> None:
        run, begun = shop.start(), asyncio.Event()

        async def handler() -> None:
            async with run.context.transaction() as tx:
                await tx.execute("INSERT INTO paid VALUES (1)")
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(handler())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        await shop.receipt.aenqueue(1)
        assert (shop.paid(), run.state, run.signals.ended) == ([], State.PROCESSING, None)
        assert run.settle(Ending.CANCELLED) is Verdict.ACCEPTED

    async def test_while_it_waits_for_the_write_lock_nothing_is_left_open(self, shop: Shop) -> None:
        run = shop.start()
        with closing(shop.connect()) as other:
            other.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(pay(run))
            await asyncio.wait([task], timeout=0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            other.rollback()

        await asyncio.wait_for(shop.receipt.aenqueue(1), 10)
        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        await pay(run)
        assert run.state is State.COMPLETED

    async def test_while_it_commits_it_waits_for_the_outcome(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether the job is completed must be known to whoever hears of the cancel."""
        run = shop.start()
        committing, go_on = threading.Event(), threading.Event()
        commit = Block._commit

        def slowly(block: Block) -> Any:
            committing.set()
            assert go_on.wait(10)
            return commit(block)

        monkeypatch.setattr(Block, "_commit", slowly)
        task = asyncio.create_task(pay(run))
        await asyncio.to_thread(committing.wait, 10)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert (shop.paid(), run.state, run.signals.ended) == ([1], State.COMPLETED, "committed")

    async def test_a_handler_that_is_thrown_away_rolls_back(self, shop: Shop) -> None:
        run = shop.start()

        async def handler() -> None:
            async with run.context.transaction() as tx:
                await tx.execute("INSERT INTO paid VALUES (1)")
                await Forever()

        coroutine = handler()
        with suppress(StopIteration):
            waiting = coroutine.send(None)
            while waiting is not None:
                await asyncio.wait([waiting])
                waiting = coroutine.send(None)
        coroutine.close()

        await asyncio.wait_for(shop.receipt.aenqueue(1), 10)
        assert (shop.paid(), run.state) == ([], State.PROCESSING)


class Forever:
    """What never ends, and needs no event loop for it."""

    def __await__(self) -> Any:
        yield None
