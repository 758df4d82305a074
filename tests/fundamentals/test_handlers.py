"""What handlers do with their context, run by a real worker on a real file."""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shigoto import AsyncTransaction, Context, Retry, RetryLater, Shigoto, State
from shigoto.worker import Stopped, Worker


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = Shigoto(tmp_path / "jobs.db")
    with closing(app.connect()) as connection, connection:
        connection.execute("CREATE TABLE paid (invoice INTEGER)")
    yield app
    app.close()


def drain(app: Shigoto) -> None:
    assert asyncio.run(Worker(app, drain=True).run()) == Stopped(reason="drained")


def paid(app: Shigoto) -> list[int]:
    with closing(app.connect()) as connection:
        return [row[0] for row in connection.execute("SELECT invoice FROM paid")]


def lines(app: Shigoto, task: str) -> list[tuple[int, str, str]]:
    [job] = app.find(task=task)
    return [(line.token, line.level, line.text) for line in app.engine.run(app.engine.logs(job.id))]


class TestTransactions:
    def test_handlers_of_both_kinds_have_exactly_one_effect(self, app: Shigoto) -> None:
        """I9: each fails once in its block, and once after it has written outside of it."""

        @app.task(retry=Retry.immediate(retries=5))
        def plain(ctx: Context, invoice: int) -> str:
            with ctx.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (?)", (invoice,))
                receipt.using(connection=tx).enqueue(invoice)
                tx.finish(f"attempt {ctx.attempt}")
                if ctx.attempt < 3:
                    raise RetryLater(0)
            return "nobody reads this"

        @app.task(retry=Retry.immediate(retries=5))
        async def coroutine(ctx: Context, invoice: int) -> None:
            async with ctx.transaction() as tx:
                await tx.execute("INSERT INTO paid VALUES (?)", (invoice,))
                await receipt.using(connection=tx).aenqueue(invoice)
                tx.finish(f"attempt {ctx.attempt}")
                if ctx.attempt < 3:
                    raise RetryLater(0)

        @app.task
        async def receipt(invoice: int) -> int:
            return invoice

        one, other = plain.enqueue(1), coroutine.enqueue(2)
        drain(app)

        assert sorted(paid(app)) == [1, 2]
        assert (one.job().result, other.job().result) == ('"attempt 3"', '"attempt 3"')
        assert sorted(job.result or "" for job in app.find(task="receipt")) == ["1", "2"]

    def test_what_is_returned_or_raised_afterwards_changes_nothing(
        self, app: Shigoto, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A16"""

        @app.task
        async def returns(ctx: Context) -> str:
            async with ctx.transaction() as tx:
                tx.finish("finished")
            return "returned"

        @app.task
        def raises(ctx: Context) -> None:
            with ctx.transaction() as tx:
                tx.finish("finished")
            raise ValueError("too late")

        handles = [returns.enqueue(), raises.enqueue()]
        drain(app)

        assert [handle.job().result for handle in handles] == ['"finished"', '"finished"']
        assert [handle.status() for handle in handles] == [State.COMPLETED, State.COMPLETED]
        said = [(record.levelname, record.getMessage()) for record in caplog.records]
        assert any(
            level == "WARNING" and "is dropped. Give it to tx.finish()" in text for level, text in said
        )
        assert any(level == "ERROR" and "too late" in text for level, text in said)

    def test_a_handler_may_go_on_after_its_block(self, app: Shigoto) -> None:
        """Its job has ended, but nobody has taken it away: no beat may disturb it."""
        said: list[str] = []

        @app.task
        async def coroutine(ctx: Context) -> None:
            async with ctx.transaction() as tx:
                tx.finish("finished")
            for _ in range(3):  # each commit rings, and each ring makes the worker beat
                await (await other.aenqueue()).aresult(timeout=10)
            said.append(f"cancelled: {ctx.cancelled}")

        @app.task
        async def other() -> None: ...

        coroutine.enqueue()
        drain(app)

        assert said == ["cancelled: False"]

    def test_the_value_of_transact_may_be_returned(
        self, app: Shigoto, caplog: pytest.LogCaptureFixture
    ) -> None:
        def book(tx: sqlite3.Connection) -> int:
            tx.execute("INSERT INTO paid VALUES (1)")
            return 1

        async def book_later(tx: AsyncTransaction) -> int:
            await tx.execute("INSERT INTO paid VALUES (2)")
            return 2

        @app.task
        def plain(ctx: Context) -> int:
            return ctx.transact(book)

        @app.task
        async def coroutine(ctx: Context) -> int:
            return await ctx.transact(book_later)

        handles = [plain.enqueue(), coroutine.enqueue()]
        drain(app)

        assert [handle.result() for handle in handles] == [1, 2]
        assert sorted(paid(app)) == [1, 2]
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    @pytest.mark.parametrize("committed", [True, False])
    def test_the_callers_own_transaction_decides_when_it_is_committed_or_not(
        self, app: Shigoto, committed: bool
    ) -> None:
        @app.task(retries=0)
        def plain(ctx: Context) -> str:
            with closing(app.connect()) as connection:
                with ctx.transaction(connection) as tx:
                    connection.execute("INSERT INTO paid VALUES (1)")
                    tx.finish("joined")
                if committed:
                    connection.commit()
            return "returned"

        handle = plain.enqueue()
        drain(app)

        assert paid(app) == ([1] if committed else [])
        assert handle.status() is (State.COMPLETED if committed else State.FAILED)
        assert handle.job().result == ('"joined"' if committed else None)

    def test_a_worker_that_is_forced_to_let_go_has_no_effect(self, app: Shigoto) -> None:
        """T14: cancelled by force while its handler prepares."""

        @app.task
        def plain(ctx: Context) -> None:
            app.engine.run(app.engine.cancel([ctx.job_id], force=True))
            with ctx.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (1)")

        handle = plain.enqueue()
        drain(app)

        assert (paid(app), handle.status()) == ([], State.CANCELLED)


class TestLogLines:
    def test_what_a_handler_says_is_kept_with_its_job(self, app: Shigoto) -> None:
        """A8: in the order it was said, whichever way, for each run."""
        logging.getLogger().setLevel(logging.INFO)
        shop = logging.getLogger("shop")

        @app.task(retry=Retry.immediate(retries=1))
        def plain(ctx: Context) -> None:
            ctx.log("by the context")
            shop.warning("by %s", "logging")
            shop.debug("not this")
            if ctx.attempt == 1:
                raise RetryLater(0)

        @app.task
        async def coroutine(ctx: Context) -> None:
            shop.info("on the loop")

        plain.enqueue()
        coroutine.enqueue()
        drain(app)

        assert lines(app, "plain") == [
            (1, "info", "by the context"),
            (1, "warning", "by logging"),
            (2, "info", "by the context"),
            (2, "warning", "by logging"),
        ]
        assert lines(app, "coroutine") == [(1, "info", "on the loop")]


class TestState:
    def test_what_the_lifespan_opens_is_there_for_handlers_and_closed_after_them(self, app: Shigoto) -> None:
        said: list[str] = []

        @app.lifespan
        async def resources(app: Shigoto) -> AsyncIterator[dict[str, str]]:
            said.append("open")
            yield {"greeting": "Hello"}
            said.append("close")

        @app.task
        def plain(ctx: Context) -> None:
            said.append(f"{ctx.state['greeting']}, thread")

        @app.task
        async def coroutine(ctx: Context) -> None:
            said.append(f"{ctx.state['greeting']}, loop")

        plain.enqueue()
        coroutine.enqueue()
        drain(app)

        assert (said[0], sorted(said[1:3]), said[3]) == ("open", ["Hello, loop", "Hello, thread"], "close")

    def test_a_checkpoint_is_where_the_next_run_resumes(self, app: Shigoto) -> None:
        seen: list[tuple[str, object]] = []

        @app.task(retry=Retry.immediate(retries=1))
        def plain(ctx: Context) -> None:
            seen.append(("plain", ctx.resume_from))
            ctx.checkpoint({"page": 2})
            if ctx.attempt == 1:
                raise RetryLater(0)

        @app.task(retry=Retry.immediate(retries=1))
        async def coroutine(ctx: Context) -> None:
            seen.append(("coroutine", ctx.resume_from))
            await ctx.acheckpoint(3)
            if ctx.attempt == 1:
                raise RetryLater(0)

        plain.enqueue()
        coroutine.enqueue()
        drain(app)

        assert [value for task, value in seen if task == "plain"] == [None, {"page": 2}]
        assert [value for task, value in seen if task == "coroutine"] == [None, 3]
