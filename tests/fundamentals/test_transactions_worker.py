"""Transaction blocks that end in unusual ways, run by a real worker on a real file."""

import asyncio
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from shigoto import Context, JobError, Shigoto, State, StoreUnavailable
from shigoto.engine.sqlite.transaction import Block
from shigoto.worker import Stopped, Worker

LEFT_OPEN = "returned inside its transaction block: nothing of it was committed"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = Shigoto(tmp_path / "jobs.db", defaults={"retries": 0})
    with closing(app.connect()) as connection, connection:
        connection.execute("CREATE TABLE paid (invoice INTEGER)")
    yield app
    app.close()


def drain(app: Shigoto) -> None:
    assert asyncio.run(Worker(app, drain=True).run()) == Stopped(reason="drained")


def paid(app: Shigoto) -> list[int]:
    with closing(app.connect()) as connection:
        return [row[0] for row in connection.execute("SELECT invoice FROM paid")]


def write_now(app: Shigoto) -> None:
    """Take the write lock, which an open block would have."""
    with closing(app.connect()) as connection:
        connection.execute("PRAGMA busy_timeout = 2000")
        connection.execute("BEGIN IMMEDIATE")


async def in_its_thread(connection: Any, action: Callable[[], Any]) -> Any:
    return await connection.call(action)


class TestLeftOpen:
    """A run that ends inside its block has done nothing, and must not count as done."""

    def test_a_generator_that_is_kept(self, app: Shigoto) -> None:
        kept: list[Any] = []

        @app.task
        def pay(ctx: Context) -> None:
            def steps() -> Iterator[int]:
                with ctx.transaction() as tx:
                    tx.execute("INSERT INTO paid VALUES (1)")
                    tx.finish("paid")
                    yield 1
                    yield 2

            kept.append(steps())
            next(kept[0])

        handle = pay.enqueue()
        drain(app)

        assert (paid(app), handle.status()) == ([], State.FAILED)
        assert LEFT_OPEN in (handle.job().error or "")
        write_now(app)
        with suppress(JobError):
            next(kept[0])
            next(kept[0])
        kept.clear()
        assert (paid(app), handle.status()) == ([], State.FAILED)

    def test_a_generator_that_is_thrown_away(self, app: Shigoto) -> None:
        @app.task
        def pay(ctx: Context) -> None:
            def steps() -> Iterator[int]:
                with ctx.transaction() as tx:
                    tx.execute("INSERT INTO paid VALUES (1)")
                    tx.finish("paid")
                    yield 1

            for _ in steps():
                break

        handle = pay.enqueue()
        drain(app)

        assert (paid(app), handle.status()) == ([], State.FAILED)
        assert LEFT_OPEN in (handle.job().error or "")

    def test_a_run_that_then_commits_another_block_is_completed(self, app: Shigoto) -> None:
        @app.task
        def pay(ctx: Context) -> None:
            def steps() -> Iterator[int]:
                with ctx.transaction() as tx:
                    tx.execute("INSERT INTO paid VALUES (1)")
                    yield 1

            for _ in steps():
                break
            with ctx.transaction() as tx:
                tx.execute("INSERT INTO paid VALUES (2)")

        handle = pay.enqueue()
        drain(app)

        assert (paid(app), handle.status()) == ([2], State.COMPLETED)

    def test_a_task_that_outlives_its_handler(self, app: Shigoto) -> None:
        kept: list[asyncio.Task[None]] = []

        @app.task
        async def pay(ctx: Context) -> None:
            inside = asyncio.Event()

            async def go_on() -> None:
                with suppress(JobError):
                    async with ctx.transaction() as tx:
                        await tx.execute("INSERT INTO paid VALUES (1)")
                        tx.finish("paid")
                        inside.set()
                        await asyncio.sleep(1)

            kept.append(asyncio.create_task(go_on()))
            await inside.wait()

        handle = pay.enqueue()
        drain(app)

        assert (paid(app), handle.status()) == ([], State.FAILED)
        assert LEFT_OPEN in (handle.job().error or "")
        write_now(app)

    def test_a_block_in_the_callers_own_transaction(self, app: Shigoto, tmp_path: Path) -> None:
        kept: list[Any] = []

        @app.task
        def pay(ctx: Context) -> None:
            connection = sqlite3.connect(tmp_path / "jobs.db", check_same_thread=False)
            block = ctx.transaction(connection)
            kept.extend((connection, block, block.__enter__()))

        handle = pay.enqueue()
        drain(app)
        kept[0].close()

        assert handle.status() is State.FAILED
        assert LEFT_OPEN in (handle.job().error or "")


class TestTrouble:
    """A store that has no room or no lock to give says nothing about the job: it is given back, and counts nothing."""

    @pytest.mark.parametrize("is_async", [True, False])
    def test_a_lock_that_does_not_come_costs_no_retry(
        self, app: Shigoto, monkeypatch: pytest.MonkeyPatch, is_async: bool
    ) -> None:
        monkeypatch.setattr("shigoto.worker.endings.TROUBLE_DELAY", 0)
        begin, refusals = Block._begin, [StoreUnavailable("locked")]

        def refuse_once(block: Block) -> None:
            if refusals:
                raise refusals.pop()
            begin(block)

        monkeypatch.setattr(Block, "_begin", refuse_once)
        handle = _payer(app, is_async=is_async).enqueue()
        drain(app)

        job = handle.job()
        assert (paid(app), job.state, job.failures, job.releases) == ([1], State.COMPLETED, 0, 1)

    @pytest.mark.parametrize("is_async", [True, False])
    @pytest.mark.parametrize("committed", [True, False])
    def test_a_commit_that_fails_costs_none_either_and_is_never_done_twice(
        self, app: Shigoto, monkeypatch: pytest.MonkeyPatch, is_async: bool, committed: bool
    ) -> None:
        monkeypatch.setattr("shigoto.worker.endings.TROUBLE_DELAY", 0)
        plainly, failures = Block._plainly, [sqlite3.OperationalError("disk I/O error")]

        def fail_once(block: Block, statement: str) -> None:
            if statement != "COMMIT" or not failures or committed:
                plainly(block, statement)
            if statement == "COMMIT" and failures:
                raise failures.pop()

        monkeypatch.setattr(Block, "_plainly", fail_once)
        handle = _payer(app, is_async=is_async).enqueue()
        drain(app)

        job = handle.job()
        releases = 0 if committed else 1
        assert (paid(app), job.state, job.failures, job.releases) == ([1], State.COMPLETED, 0, releases)

    def test_an_error_of_the_store_that_is_not_about_the_block_is_a_failure(self, app: Shigoto) -> None:
        @app.task
        def pay(ctx: Context) -> None:
            raise StoreUnavailable("some other one")

        handle = pay.enqueue()
        drain(app)

        assert handle.status() is State.FAILED

    def test_what_a_constraint_says_at_the_commit_is_the_handlers_own_error(self, app: Shigoto) -> None:
        """Foreign keys are enforced in a block, deferred ones at its end."""
        with closing(app.connect()) as connection, connection:
            connection.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY)")
            connection.execute(
                "CREATE TABLE orders (customer REFERENCES customer (id) DEFERRABLE INITIALLY DEFERRED)"
            )

        @app.task
        def order(ctx: Context) -> None:
            with ctx.transaction() as tx:
                tx.execute("INSERT INTO orders VALUES (99)")

        handle = order.enqueue()
        drain(app)

        job = handle.job()
        assert (job.state, job.releases) == (State.FAILED, 0)
        assert "IntegrityError: FOREIGN KEY constraint failed" in (job.error or "")


def _payer(app: Shigoto, *, is_async: bool) -> Any:
    if is_async:

        @app.task
        async def coroutine(ctx: Context) -> None:
            async with ctx.transaction() as tx:
                await tx.execute("INSERT INTO paid VALUES (1)")

        return coroutine

    @app.task
    def plain(ctx: Context) -> None:
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO paid VALUES (1)")

    return plain


class TestAfterwards:
    """The job is completed, and its handler goes on."""

    def test_what_it_still_says_is_kept(self, app: Shigoto) -> None:
        @app.task
        def pay(ctx: Context) -> None:
            ctx.log("before")
            with ctx.transaction() as tx:
                tx.finish("paid")
            ctx.log("after")

        handle = pay.enqueue()
        drain(app)

        assert [line.text for line in handle.logs()] == ["before", "after"]

    @pytest.mark.parametrize("joined", [True, False])
    def test_a_checkpoint_is_refused_for_what_it_is(self, app: Shigoto, joined: bool) -> None:
        seen: list[tuple[str, bool]] = []

        @app.task
        def pay(ctx: Context) -> None:
            with closing(app.connect()) as connection:
                with ctx.transaction(connection) if joined else ctx.transaction():
                    pass
                try:
                    ctx.checkpoint(1)
                except JobError as error:
                    seen.append((str(error), ctx.cancelled))
                connection.commit()

        handle = pay.enqueue()
        drain(app)

        [(text, cancelled)] = seen
        assert "a transaction block has ended this job" in text
        assert not cancelled
        assert handle.status() is State.COMPLETED


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
class TestExits:
    """SystemExit in the thread of an async block must reach whoever waits for it."""

    @pytest.mark.parametrize("where", ["adapter", "call"])
    def test_a_statement_that_wants_to_exit_fails_its_handler(self, app: Shigoto, where: str) -> None:
        class Leaver:
            def __conform__(self, protocol: object) -> None:
                sys.exit("out")

        @app.task(timeout=20)
        async def pay(ctx: Context) -> None:
            async with ctx.transaction() as tx:
                await tx.execute("INSERT INTO paid VALUES (1)")
                if where == "adapter":
                    await tx.execute("INSERT INTO paid VALUES (?)", (Leaver(),))
                else:
                    await in_its_thread(tx, sys.exit)

        handle = pay.enqueue()
        drain(app)

        job = handle.job()
        assert (paid(app), job.state) == ([], State.FAILED)
        assert "SystemExit" in (job.error or "")
        write_now(app)

    def test_what_was_submitted_behind_it_fails_too(self, app: Shigoto) -> None:
        outcomes: list[Any] = []

        @app.task(timeout=20)
        async def pay(ctx: Context) -> None:
            async with ctx.transaction() as tx:
                outcomes.extend(
                    await asyncio.gather(
                        in_its_thread(tx, sys.exit),
                        tx.execute("INSERT INTO paid VALUES (1)"),
                        return_exceptions=True,
                    )
                )
                with suppress(JobError):
                    outcomes.append(await tx.execute("INSERT INTO paid VALUES (2)"))

        handle = pay.enqueue()
        drain(app)

        assert [isinstance(outcome, BaseException) for outcome in outcomes] == [True, True]
        assert (paid(app), handle.status()) == ([], State.FAILED)
        write_now(app)
