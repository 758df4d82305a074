"""The life of a worker: when it is ready, what it opens and closes, how it retires, and what it leaves to be read."""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shigoto import Context, DeclarationError, Shigoto, Snooze, State, StoreUnavailable
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.job import Lease
from shigoto.model.worker import POLL
from shigoto.observe import events
from shigoto.testing.store import VirtualClock
from shigoto.worker import Stopped, Worker
from shigoto.worker.health import Signs, judge
from shigoto.worker.reporting import Capture
from tests.fundamentals.stage import DAY, HOUR, Stage

T = TypeVar("T")


@pytest.fixture
def stage() -> Stage:
    return Stage()


# Ready


class Late(MemoryEngine):
    """A store that takes a second for every operation."""

    async def arun(self, op: Op[T]) -> T:
        await asyncio.sleep(1)
        return self.run(op)


def test_a_worker_is_ready_from_the_first_answered_claim_to_the_first_request_to_stop() -> None:
    stage = Stage(lambda clock: Late(clock=clock))
    ready: list[bool] = []

    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(10)

    async def main() -> None:
        work.enqueue()
        worker = stage.worker()
        ready.append(worker.ready)
        run = asyncio.create_task(worker.run())
        await stage.until(events.WorkerStarted)
        ready.append(worker.ready)
        await stage.until(events.JobStarted)
        ready.append(worker.ready)
        worker.stop()
        await stage.until(events.WorkerStopping)
        ready.append(worker.ready)
        [record] = stage.engine.run(stage.engine.workers())
        assert not record.stopping
        await asyncio.sleep(2)
        [record] = stage.engine.run(stage.engine.workers())
        assert record.stopping
        await run

    stage.play(main)
    assert ready == [False, False, True, False]


class Counting(MemoryEngine):
    """A store that counts how often it is asked for jobs."""

    claims = 0

    def claim(self, worker: Any, wants: Any) -> Op[list[Lease]]:
        self.claims += 1
        return super().claim(worker, wants)


def test_a_worker_without_room_is_ready_although_it_claims_nothing() -> None:
    """S3-11: a claim cycle finished recently, or there was no room for one, an hour long."""
    store: list[Counting] = []

    def made(clock: VirtualClock) -> Counting:
        store.append(Counting(clock=clock))
        return store[0]

    stage = Stage(made)
    ages: list[float] = []

    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(HOUR)

    async def main() -> None:
        time = asyncio.get_running_loop().time
        work.enqueue()
        work.enqueue()  # there would be more to do
        async with stage.working(concurrency=1) as worker:
            await stage.until(events.JobStarted)
            asked = store[0].claims
            while time() < HOUR - 10:
                await asyncio.sleep(5)
                cycled_at = worker.cycled_at()
                assert cycled_at is not None
                ages.append(time() - cycled_at)
            assert store[0].claims == asked, "it had no room"

    stage.play(main)
    assert judge(Signs(cycles=ages, poll=POLL / 1000)) == (True, ())


def test_people_can_see_where_a_worker_runs(stage: Stage) -> None:
    @stage.app.task
    async def work() -> None: ...

    async def main() -> None:
        async with stage.working():
            [record] = await stage.app.aworkers()
            assert (record.host, record.pid) == (socket.gethostname(), os.getpid())
            assert (record.isolates, record.stopping) == (False, False)

    stage.play(main)


class Mute(MemoryEngine):
    """A store that never answers a second announcement."""

    announced = 0

    def announce(self, announcement: Any) -> Op[None]:
        self.announced += 1
        return super().announce(announcement)

    async def arun(self, op: Op[T]) -> T:
        if self.announced == 2:
            self.announced = 3
            await asyncio.sleep(DAY)
        return self.run(op)


def test_a_store_that_does_not_hear_of_the_stop_does_not_delay_it() -> None:
    stage = Stage(lambda clock: Mute(clock=clock))

    @stage.app.task
    async def work() -> None: ...

    async def main() -> Stopped:
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await stage.until(events.WorkerStarted)
        await asyncio.sleep(1)
        worker.stop()
        return await run

    assert stage.play(main).reason == "stopped"
    assert stage.now <= 5_000


def test_a_worker_without_a_supervisor_says_that_it_beats_from_a_thread(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stage.drain_with_threads()
    assert "Worker 1 has no supervisor: it beats from a thread of this process" in caplog.text
    assert [event.supervised for event in stage.all(events.WorkerStarted)] == [False]


# Retiring


def test_a_worker_retires_after_so_many_jobs_and_leaves_the_rest(stage: Stage) -> None:
    @stage.app.task
    async def work(number: int) -> None:
        await asyncio.sleep(1)
        if number == 1:
            raise Snooze(DAY)

    for number in range(10):
        work.enqueue(number)

    assert stage.play(stage.worker(max_jobs=4, concurrency=2).run) == Stopped(reason="recycled")
    states = [stage.job(number).state for number in range(1, 11)]
    assert states.count(State.COMPLETED) == 3
    assert not [job for job in stage.app.find() if job.state is State.PROCESSING]


def test_one_request_to_stop_does_not_hurry_a_worker_that_was_about_to_end(stage: Stage) -> None:
    @stage.app.task
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def main() -> Stopped:
        work.enqueue(1)
        work.enqueue(10)
        worker = stage.worker(max_jobs=1)
        run = asyncio.create_task(worker.run())
        await stage.until(events.WorkerStopping)
        worker.stop()
        return await run

    assert stage.play(main) == Stopped(reason="recycled")
    assert len(stage.all(events.JobCompleted)) == 2


# The lifespan


def test_the_lifespan_surrounds_every_run_in_one_task(stage: Stage) -> None:
    story: list[str] = []
    tasks: set[Any] = set()

    @stage.app.lifespan
    async def resources(app: Shigoto) -> AsyncIterator[str]:
        tasks.add(asyncio.current_task())
        story.append("open")
        async with asyncio.timeout(DAY):
            yield "the state"
        story.append("close")
        tasks.add(asyncio.current_task())

    @stage.app.task
    async def work(ctx: Context) -> None:
        story.append(ctx.state)

    async def main() -> None:
        await work.aenqueue()
        async with stage.working():
            await stage.until(events.JobCompleted)

    stage.play(main)
    assert story == ["open", "the state", "close"]
    assert len(tasks) == 1


def test_a_lifespan_that_fails_at_the_start_ends_the_worker_before_it_begins(stage: Stage) -> None:
    @stage.app.lifespan
    async def resources(app: Shigoto) -> AsyncIterator[None]:
        if not stage.told:
            raise OSError("no such database")
        yield

    @stage.app.task
    async def work() -> None: ...

    work.enqueue()
    with pytest.raises(DeclarationError, match="lifespan failed at the start: OSError: no such database"):
        stage.drain()
    assert stage.engine.run(stage.engine.workers()) == []
    assert stage.job().state is State.PENDING


def test_a_lifespan_that_fails_at_the_end_or_never_ends_is_told_and_not_waited_for(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    @stage.app.lifespan
    async def resources(app: Shigoto) -> AsyncIterator[None]:
        yield
        await asyncio.sleep(DAY)

    @stage.app.task
    async def work() -> None: ...

    assert stage.drain() == Stopped(reason="drained")
    assert stage.now <= 2_000
    assert "did not end within 1 s" in caplog.text


def test_a_worker_whose_lifespan_breaks_stops(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    @stage.app.lifespan
    async def resources(app: Shigoto) -> AsyncIterator[None]:
        async def lose_the_connection() -> None:
            await asyncio.sleep(10)
            raise OSError("the connection is gone")

        async with asyncio.TaskGroup() as group:
            group.create_task(lose_the_connection())
            yield

    @stage.app.task
    async def work() -> None: ...

    assert stage.play(stage.worker().run) == Stopped(reason="stopped")
    assert stage.now == 10_000
    assert "lifespan has failed" in caplog.text


def test_a_stop_during_the_start_of_the_lifespan_is_heard(stage: Stage) -> None:
    closed: list[str] = []

    @stage.app.lifespan
    async def resources(app: Shigoto) -> AsyncIterator[None]:
        try:
            await asyncio.sleep(DAY)
            yield
        finally:
            closed.append("yes")

    async def main() -> Stopped:
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await asyncio.sleep(1)
        worker.stop()
        return await run

    assert stage.play(main) == Stopped(reason="stopped")
    assert closed == ["yes"]
    assert stage.now <= 3_000


# Never two runs at once


@contextmanager
def somebody_at_work() -> Iterator[None]:
    """A thread that is not the worker's."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="somebody")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("hurry", [False, True])
def test_what_a_stop_cuts_short_is_released_last_if_it_may_have_left_a_thread_behind(
    stage: Stage, *, hurry: bool
) -> None:
    """X6: an async handler that gave in may have a thread at work, which nobody can stop."""

    @stage.app.task
    async def endless() -> None:
        await asyncio.sleep(DAY)

    async def main() -> Stopped:
        await endless.aenqueue()
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobStarted)
        worker.stop()
        if hurry:
            worker.stop()
        return await run

    with somebody_at_work():
        assert stage.play(main) == Stopped(reason="stopped")

    job = stage.job()
    assert (job.state, job.releases) == (State.PENDING, 1)
    assert job.run_at.timestamp() * 1000 - stage.clock.now == 2_000
    assert stage.now == (0 if hurry else 20_000)


def test_what_ends_by_itself_is_settled_at_once_all_the_same(stage: Stage) -> None:
    @stage.app.task
    async def work(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            raise ValueError("cut short") from None

    async def main() -> Stopped:
        await work.aenqueue(1)
        await work.aenqueue(DAY)
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobStarted, 2)
        worker.stop()
        return await run

    with somebody_at_work():
        assert stage.play(main) == Stopped(reason="stopped")
    assert stage.job(1).state is State.COMPLETED
    assert stage.job(2).failures == 1


def test_a_cancel_that_was_swallowed_before_the_worker_began_is_not_held_against_jobs(stage: Stage) -> None:
    """Else every job that is cancelled, by whomever, would be given back, uncounted, for ever."""

    @stage.app.task(retries=0)
    async def work() -> None:
        raise asyncio.CancelledError

    async def main() -> Stopped:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)
        return await stage.worker(drain=True).run()

    work.enqueue()
    assert stage.play(main) == Stopped(reason="drained")
    assert (stage.job().state, stage.job().failures) == (State.FAILED, 1)


def test_a_job_that_is_given_back_a_hundred_times_is_talked_about(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """A7."""

    @stage.app.task
    async def endless() -> None:
        await asyncio.sleep(DAY)

    async def briefly() -> None:
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        started = len(stage.all(events.JobStarted))
        await stage.until(events.JobStarted, started + 1)
        worker.stop()
        worker.stop()
        await run

    endless.enqueue()
    for _ in range(201):
        stage.play(briefly)

    assert stage.job().releases == 201
    told = [record.message for record in caplog.records if "was given back" in record.message]
    assert [message.split()[6] for message in told] == ["100", "200"]


# Transactions


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Shigoto]:
    app = Shigoto(engine=SqliteEngine(tmp_path / "jobs.db", synchronous="off"))
    with app.connect() as connection:
        connection.execute("CREATE TABLE paid (number INTEGER)")
    connection.close()
    yield app
    app.close()


def drained(app: Shigoto) -> list[events.Event]:
    told: list[events.Event] = []
    app.bus.subscribe(told.append, events.JobEvent)
    asyncio.run(Worker(app, drain=True, poll=0.05, children=0).run())
    return [event for event in told if not isinstance(event, events.JobStarted)]


@pytest.mark.parametrize("then", ["nothing", "return", "repeat", "raise", "snooze"])
def test_after_a_committed_block_the_job_is_completed_whatever_the_handler_does(
    books: Shigoto, then: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A16."""

    @books.task
    async def pay(ctx: Context) -> str | None:
        async with ctx.transaction() as tx:
            await tx.execute("INSERT INTO paid VALUES (?)", (ctx.number,))
            tx.finish("paid")
        if then == "raise":
            raise ValueError("too late")
        if then == "snooze":
            raise Snooze(10)
        return {"nothing": None, "repeat": "paid", "return": "something else"}[then]

    handle = pay.enqueue()
    [told] = drained(books)

    assert isinstance(told, events.JobCompleted)
    assert handle.result() == "paid"
    assert ("returned afterwards is dropped" in caplog.text) == (then == "return")
    assert ("changes nothing" in caplog.text) == (then in ("raise", "snooze"))


def test_what_a_handler_writes_after_its_block_is_kept(books: Shigoto) -> None:
    """The job has ended with the commit; the worker's own word comes later, and brings the lines."""

    @books.task
    async def pay(ctx: Context) -> None:
        ctx.log("before")
        async with ctx.transaction() as tx:
            tx.finish("paid")
        ctx.log("after")

    handle = pay.enqueue()
    drained(books)

    assert [line.text for line in handle.logs()] == ["before", "after"]


@pytest.mark.parametrize("commits", [True, False])
def test_with_a_connection_of_the_callers_the_store_knows_whether_it_was_committed(
    books: Shigoto, *, commits: bool
) -> None:
    @books.task(retries=0)
    def pay(ctx: Context) -> str:
        connection = books.connect()
        connection.execute("BEGIN IMMEDIATE")
        with ctx.transaction(connection) as tx:
            connection.execute("INSERT INTO paid VALUES (?)", (ctx.number,))
            tx.finish("paid")
        if commits:
            connection.commit()
        else:
            connection.rollback()
        connection.close()
        return "paid"

    handle = pay.enqueue()
    [told] = drained(books)

    job = handle.job()
    if commits:
        assert isinstance(told, events.JobCompleted)
        assert (job.state, handle.result()) == (State.COMPLETED, "paid")
    else:
        assert isinstance(told, events.JobFailedEvent)
        assert job.error == "the transaction that finished this job was not committed"


# Log lines


class Unreachable(MemoryEngine):
    """A store that cannot be told any news."""

    deaf = True

    def report(self, worker: Any, reports: Any) -> Op[list[bool]]:
        if self.deaf:
            raise StoreUnavailable("not now")
        return super().report(worker, reports)


@pytest.mark.parametrize("deaf", [False, True])
def test_log_lines_are_stored_while_the_job_runs_and_none_is_lost_or_doubled(*, deaf: bool) -> None:
    stage = Stage(lambda clock: Unreachable(clock=clock))
    stage.engine.deaf = deaf  # type: ignore[attr-defined]

    @stage.app.task
    async def work(ctx: Context) -> None:
        ctx.log("first")
        await asyncio.sleep(10)
        logging.getLogger("work").warning("second")
        await asyncio.sleep(10)
        stage.engine.deaf = False  # type: ignore[attr-defined]
        ctx.log("third")

    async def main() -> None:
        handle = await work.aenqueue()
        async with stage.working():
            await asyncio.sleep(15)
            lines = await stage.engine.arun(stage.engine.logs(handle.id))
            assert [line.text for line in lines] == ([] if deaf else ["first", "second"])
            await stage.until(events.JobCompleted)
        lines = await stage.engine.arun(stage.engine.logs(handle.id))
        assert [(line.line, line.level, line.text) for line in lines] == [
            (1, "info", "first"),
            (2, "warning", "second"),
            (3, "info", "third"),
        ]

    stage.play(main)


def test_with_two_workers_in_one_process_a_line_is_written_once(stage: Stage) -> None:
    @stage.app.task
    async def work() -> None:
        logging.getLogger("work").warning("once")

    async def main() -> list[str]:
        handle = await work.aenqueue()
        async with stage.working(), stage.working(name="2"):
            await stage.until(events.JobCompleted)
        return [line.text for line in await stage.engine.arun(stage.engine.logs(handle.id))]

    assert stage.play(main) == ["once"]


def test_a_program_that_has_not_set_up_logging_still_sees_warnings(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `logging.lastResort`, which speaks only where there is no handler at all."""
    root = logging.getLogger()
    own = logging.getLogger("work.with.handler")
    own.addHandler(logging.NullHandler())

    @stage.app.task
    async def work() -> None:
        root.handlers[:] = [handler for handler in root.handlers if isinstance(handler, Capture)]
        logging.getLogger("work").warning("seen")
        logging.getLogger("work").info("too quiet")
        own.warning("handled")

    handle = work.enqueue()
    stage.drain()
    own.handlers.clear()

    assert handle.job().state is State.COMPLETED
    assert capsys.readouterr().err == "seen\n"
