"""Transactions in async handlers: the same promises, and a cancel may strike anywhere."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

from shigoto import AsyncTransaction, JobError, LeaseLost, ResultInvalid, State, TransactionTooLong
from shigoto.model.worker import Ending, Verdict
from tests.fundamentals.shop import Shop, apay

OpenShop = Callable[..., Shop]


async def test_effects_completion_and_further_jobs_happen_together(shop: Shop) -> None:
    """I9, C8: exactly once."""
    run = shop.start()

    async with run.context.transaction() as tx:
        await tx.execute(shop.insert, (1,))
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
        written = await tx.executemany(shop.insert, [(number,) for number in range(3)])
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
    await apay(run, 2)
    assert (shop.paid(), run.state) == ([2], State.COMPLETED)


async def test_a_worker_that_lost_the_job_has_no_effect(shop: Shop) -> None:
    run = shop.start()
    shop.fence()

    with pytest.raises(LeaseLost):
        await apay(run)

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


async def test_an_idle_worker_hears_of_the_jobs_that_were_enqueued_inside(shop: Shop) -> None:
    run = shop.start()
    doorbell = shop.engine.listen()
    try:
        while await doorbell.wait(0.2):
            pass
        await apay(run)
        assert await doorbell.wait(10)
    finally:
        doorbell.close()


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

    await apay(run)
    assert run.state is State.COMPLETED


async def test_its_connection_is_not_for_sync_calls(shop: Shop) -> None:
    run = shop.start()
    async with run.context.transaction() as tx:
        with pytest.raises(
            JobError, match=r"must be( awaited: use aenqueue\(\) with it|, too: write `await)"
        ):
            shop.receipt.using(connection=tx).enqueue(1)


async def test_after_the_block_it_is_of_no_use(shop: Shop) -> None:
    run = shop.start()
    async with run.context.transaction() as tx:
        pass

    with pytest.raises(JobError, match="The transaction block is over"):
        await tx.execute("SELECT 1")
    with pytest.raises(JobError, match="The transaction block is over"):
        await shop.receipt.using(connection=tx).aenqueue(1)


@pytest.mark.usefixtures("short_blocks")
class TestLimit:
    async def test_it_is_rolled_back_while_the_handler_waits(self, shop: Shop) -> None:
        run = shop.start()

        async def wait() -> None:
            async with run.context.transaction() as tx:
                await tx.execute("INSERT INTO paid VALUES (1)")
                others = threading.Thread(target=lambda: shop.receipt.enqueue(2))  # with no block around it
                others.start()
                await asyncio.to_thread(others.join, 10)
                await asyncio.to_thread(shop.until_free)
                with pytest.raises(TransactionTooLong):
                    await tx.execute("INSERT INTO paid VALUES (2)")
                with pytest.raises(TransactionTooLong):
                    await shop.receipt.using(connection=tx).aenqueue(1)

        with pytest.raises(TransactionTooLong):
            await wait()

        assert (shop.paid(), shop.receipts(), run.state) == ([], 1, State.PROCESSING)

    async def test_it_strikes_in_the_middle_of_a_statement(self, shop: Shop) -> None:
        run = shop.start()

        async def count() -> None:
            async with run.context.transaction() as tx:
                await tx.execute("INSERT INTO paid VALUES (1)")
                with pytest.raises(TransactionTooLong):
                    await tx.execute(shop.endless)

        with pytest.raises(TransactionTooLong):
            await count()

        await asyncio.to_thread(shop.until_free)
        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        await apay(run)
        assert run.state is State.COMPLETED


class TestCancel:
    async def test_it_rolls_back(self, shop: Shop) -> None:
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

        await asyncio.to_thread(shop.until_free)
        assert (shop.paid(), run.state, run.signals.ended) == ([], State.PROCESSING, None)
        assert run.settle(Ending.CANCELLED) is Verdict.ACCEPTED

    async def test_while_it_commits_it_waits_for_the_outcome(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether the job is completed must be known to whoever hears of the cancel."""
        run = shop.start()
        committing, go_on = threading.Event(), threading.Event()
        shop.hold_commits(monkeypatch, committing, go_on)
        task = asyncio.create_task(apay(run))
        assert await asyncio.to_thread(committing.wait, 10)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert (shop.paid(), run.state, run.signals.ended) == ([1], State.COMPLETED, "committed")

    async def test_a_handler_that_is_thrown_away_rolls_back(self, open_shop: OpenShop) -> None:
        shop = open_shop("pool=1")
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

        await asyncio.to_thread(shop.until_free)
        assert (shop.paid(), run.state) == ([], State.PROCESSING)
        await apay(run, 2)
        assert shop.paid() == [2]


class Forever:
    """What never ends, and needs no event loop for it."""

    def __await__(self) -> Any:
        yield None
