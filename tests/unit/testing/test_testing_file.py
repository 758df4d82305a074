"""`app.test(store=…)`: the same block on an SQLite file, where transactions are real."""

import asyncio
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shigoto import (
    Context,
    DeclarationError,
    JobError,
    OptionInvalid,
    Retry,
    Shigoto,
    State,
)
from shigoto.testing import Jobs
from tests.unit.testing.testing_shop import EARLY, Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


class Bank:
    """An app with tasks that write into a table of the store's database."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.app = app = Shigoto("sqlite:///never/used.db")

        @app.task(retry=Retry.immediate(retries=1))
        def book(ctx: Context, amount: int) -> str:
            with ctx.transaction() as tx:
                tx.execute("INSERT INTO booking VALUES (?)", (amount,))
                tell.using(connection=tx).enqueue(amount)
                if amount < 0:
                    raise ValueError("less than nothing")
                tx.finish(f"booked {amount}")
            return f"booked {amount}"

        @app.task
        async def abook(ctx: Context, amount: int) -> None:
            async with ctx.transaction() as tx:
                await tx.execute("INSERT INTO booking VALUES (?)", (amount,))
                await tell.using(connection=tx).aenqueue(amount)

        @app.task(retry=Retry.immediate(retries=1))
        def book_by_hand(ctx: Context, end: str) -> None:
            connection = app.connect()
            try:
                connection.execute("BEGIN")
                connection.execute("INSERT INTO booking VALUES (1)")
                with ctx.transaction(connection):
                    pass
                if end == "raise":
                    raise ValueError("too late")
                connection.rollback() if end == "rollback" else connection.commit()
                if end == "raise after the commit":
                    raise ValueError("too late")
            finally:
                connection.close()

        @app.task
        def tell(amount: int) -> None: ...

        self.book, self.abook, self.book_by_hand, self.tell = book, abook, book_by_hand, tell

    def booked(self) -> list[int]:
        connection = self.app.connect()
        try:
            return [amount for (amount,) in connection.execute("SELECT amount FROM booking")]
        finally:
            connection.close()


@pytest.fixture
def bank(file: Path) -> Bank:
    return Bank(file)


@pytest.fixture
def jobs(bank: Bank) -> Iterator[Jobs]:
    with bank.app.test(store=bank.file) as jobs:
        connection = bank.app.connect()
        connection.execute("CREATE TABLE booking (amount INTEGER)")
        connection.close()
        yield jobs


class TestTransactions:
    def test_the_block_of_a_handler_commits_its_rows_its_jobs_and_its_completion(
        self, bank: Bank, jobs: Jobs
    ) -> None:
        handle = bank.book.enqueue(7)

        assert [job.task for job in jobs.run_all().completed] == ["book", "tell"]
        assert bank.booked() == [7]
        assert handle.result() == "booked 7"

    def test_so_does_that_of_an_async_one(self, bank: Bank, jobs: Jobs) -> None:
        bank.abook.enqueue(7)

        assert [job.task for job in jobs.run_all().completed] == ["abook", "tell"]
        assert bank.booked() == [7]

    def test_one_that_raises_has_written_nothing(self, bank: Bank, jobs: Jobs) -> None:
        handle = bank.book.enqueue(-1)

        assert [run.outcome for run in jobs.run_all()] == ["retried", "failed"]
        assert bank.booked() == []
        jobs.refute_enqueued(bank.tell)
        assert handle.job().failures == 2

    def test_a_transaction_of_ones_own_completes_the_job_if_it_is_committed(
        self, bank: Bank, jobs: Jobs
    ) -> None:
        bank.book_by_hand.enqueue("commit")
        bank.book_by_hand.enqueue("raise after the commit")

        assert [run.outcome for run in jobs.run_all()] == ["completed", "completed"]
        assert bank.booked() == [1, 1]

    @pytest.mark.parametrize("end", ["rollback", "raise"])
    def test_and_if_it_is_not_the_run_has_failed(self, bank: Bank, jobs: Jobs, end: str) -> None:
        bank.book_by_hand.enqueue(end)

        assert [run.outcome for run in jobs.run_all()] == ["retried", "failed"]
        assert bank.booked() == []

    def test_a_job_enqueued_in_a_transaction_is_there_if_that_is_committed(
        self, bank: Bank, jobs: Jobs
    ) -> None:
        connection = bank.app.connect()
        for amount in (1, 2):
            connection.execute("BEGIN")
            connection.execute("INSERT INTO booking VALUES (?)", (amount,))
            bank.tell.using(connection=connection, delay=60).enqueue(amount)
            jobs.refute_enqueued(bank.tell.call(amount))
            connection.rollback() if amount == 1 else connection.commit()
        connection.close()

        jobs.assert_enqueued(bank.tell, count=1)
        jobs.assert_enqueued(bank.tell.call(2), delay=60)
        jobs.refute_enqueued(bank.tell.call(1))
        assert bank.booked() == [2]

    def test_a_connection_to_another_file_is_refused(self, bank: Bank, jobs: Jobs) -> None:
        connection = sqlite3.connect(":memory:")
        with pytest.raises(Exception, match="not open on the store's file"):
            bank.tell.using(connection=connection).enqueue(1)
        connection.close()

    def test_a_write_beside_the_block_it_is_in_is_refused(self, bank: Bank, jobs: Jobs) -> None:
        @bank.app.task(retries=0)
        def careless(ctx: Context) -> None:
            with ctx.transaction():
                bank.tell.enqueue(1)

        careless.enqueue()

        with pytest.raises(JobError, match="would wait for the transaction block"):
            jobs.run_all(raise_errors=True)

    def test_a_crash_after_the_commit_changes_nothing(self, bank: Bank, jobs: Jobs) -> None:
        handle = bank.book.enqueue(7)

        assert jobs.crash(handle).state is State.COMPLETED
        jobs.run_all()

        assert bank.booked() == [7]

    def test_inline_what_the_block_has_enqueued_runs_after_it(self, bank: Bank, file: Path) -> None:
        with bank.app.test(store=file, run="inline") as jobs:
            connection = bank.app.connect()
            connection.execute("CREATE TABLE booking (amount INTEGER)")
            connection.close()

            assert bank.book.enqueue(7).result() == "booked 7"
            assert [job.task for job in jobs.runs.completed] == ["book", "tell"]


class TestTheSameAsInMemory:
    def test_the_clock_moves_and_retries_come(self, shop: Shop, file: Path) -> None:
        """S0-75: on a real store, too, a retry takes no time in a test."""
        with shop.app.test(store=file, now=EARLY) as jobs:
            handle = shop.fail.enqueue("boom")
            jobs.run_all()
            assert jobs.now == EARLY
            jobs.advance(minutes=5)
            jobs.run_all()
            jobs.advance_to_next()
            [failed] = jobs.run_all().failed

            assert failed.finished_at == EARLY + timedelta(minutes=15)
            jobs.advance(days=31)
            assert shop.app.find() == []
            [remembered] = jobs.assert_enqueued(shop.fail, state="failed")
            assert remembered.id == handle.id

    def test_crashes_and_checkpoints(self, shop: Shop, file: Path) -> None:
        @shop.app.task
        def count(ctx: Context) -> None:
            for number in range(ctx.resume_from or 0, 3):
                shop.done.append(number)
                ctx.checkpoint(number + 1)

        with shop.app.test(store=file) as jobs:
            count.enqueue()
            assert jobs.crash(count, when="during").crashes == 1
            assert shop.done == [0]
            jobs.run_all()
            shop.note.enqueue("a")
            jobs.crash(shop.note)
            jobs.run_all()

        assert shop.done == [0, 1, 2, "a", "a"]

    def test_chains_inline(self, shop: Shop, file: Path) -> None:
        with shop.app.test(store=file, run="inline") as jobs:
            shop.chain.enqueue(20)
            shop.achain.enqueue(20)

            assert len(jobs.runs.completed) == 42

    async def test_on_an_event_loop(self, shop: Shop, file: Path) -> None:
        async with shop.app.test(store=file) as jobs:
            handle = await shop.anote.aenqueue("a")
            await asyncio.gather(*(shop.note.aenqueue(str(n)) for n in range(5)))
            assert len((await jobs.arun_all()).completed) == 6

            assert await handle.aresult() == "A"


class TestTheFile:
    def test_the_own_store_of_the_app_is_not_even_opened(self, shop: Shop, file: Path) -> None:
        with shop.app.test(store=file):
            shop.note.enqueue("a")
            assert shop.app.url.startswith(f"sqlite:///{file}")

        assert file.exists()
        assert not shop.file.exists()
        assert shop.app.url == f"sqlite:///{shop.file}"

    def test_two_tests_have_two_files_and_one_app(self, shop: Shop, tmp_path: Path) -> None:
        for name in ("one.db", "two.db"):
            with shop.app.test(store=str(tmp_path / name)) as jobs:
                shop.note.enqueue(name)
                assert len(jobs.run_all()) == 1

    def test_one_with_jobs_in_it_is_refused_and_tables_are_not(self, shop: Shop, file: Path) -> None:
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE mine (x)")
        connection.close()
        with shop.app.test(store=file):
            shop.note.enqueue("a")

        with pytest.raises(DeclarationError, match="has jobs in it already"), shop.app.test(store=file):
            pass
        with shop.app.test():
            shop.note.enqueue("the app goes on")

    def test_what_cannot_be_meant_is_refused(self, shop: Shop) -> None:
        wrong: Any
        for wrong in (7, True, "memory:"):
            with pytest.raises(OptionInvalid, match="takes the path of a file"):
                shop.app.test(store=wrong)
        with pytest.raises(OptionInvalid, match="the app's own store"):
            shop.app.test(store=shop.file)

    def test_nothing_is_done_with_it_after_the_block(self, shop: Shop, file: Path) -> None:
        with shop.app.test(store=file) as jobs:
            handle = shop.note.enqueue("a")
            jobs.run_all()

        assert [job.state for job in jobs.enqueued()] == [State.COMPLETED]
        with pytest.raises(DeclarationError, match="whose block is over"):
            handle.job()
