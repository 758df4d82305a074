"""The corners of a worker that nobody visits on purpose: faults of its own, odd rows, odd moments."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from typing import Any, NoReturn
from uuid import UUID

import pytest
from msgspec import structs

from shigoto import Context, FailureKind, OptionInvalid, Retry, Shigoto, State, StoreUnavailable
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.job import Lease
from shigoto.model.text import fit
from shigoto.model.worker import Orders
from shigoto.observe import events
from shigoto.observe.log import configure_logging
from shigoto.testing.store import VirtualClock
from shigoto.worker import Stopped, Worker
from shigoto.worker.endings import DETAILS_LIMIT, describe
from shigoto.worker.reporting import job_fields
from shigoto.worker.state import start_thread
from tests.fundamentals.stage import DAY, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


# Beats from the thread


class Unheard(MemoryEngine):
    """Raises `errors` in answer to beats, one after the other, and then answers."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.answered = threading.Event()

    def beat(self, worker: UUID, held: Any) -> Op[Orders]:
        if self.errors:
            raise self.errors.pop(0)
        self.answered.set()
        return super().beat(worker, held)


def test_the_beat_thread_tries_again_when_the_store_does_not_answer() -> None:
    stage = Stage(lambda _: Unheard(StoreUnavailable("locked"), StoreUnavailable("locked")))
    assert isinstance(stage.engine, Unheard)
    engine = stage.engine

    async def main() -> None:
        async with Worker(stage.app, lease=1.0):
            assert await asyncio.to_thread(engine.answered.wait, 5)
            await stage.until(events.StoreRecovered)

    asyncio.run(main())

    assert [event.part for event in stage.all(events.StoreTrouble)] == ["keeper", "keeper"]


def test_a_fault_in_the_beat_thread_ends_the_worker_instead_of_its_lease() -> None:
    engine = Unheard(TypeError("a fault of ours"))

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(Worker(Shigoto(engine=engine), lease=1.0).run())

    assert raised.group_contains(TypeError, match="a fault of ours")
    assert engine.run(engine.workers()) == []


# Odd rows


class Altered(MemoryEngine):
    """Changes leases on their way to the worker."""

    def __init__(self, clock: VirtualClock, **changes: Any) -> None:
        super().__init__(clock=clock)
        self.changes = changes

    async def arun(self, op: Op[Any]) -> Any:
        value = self.run(op)
        if isinstance(value, list) and value and isinstance(value[0], Lease):
            return [structs.replace(lease, **self.changes) for lease in value]
        return value


def test_a_stored_policy_that_cannot_be_read_falls_back_to_that_of_the_task() -> None:
    stage = Stage(lambda clock: Altered(clock, retry="from the future"))

    @stage.app.task(retry=Retry.linear(seconds=9))
    async def fail() -> NoReturn:
        raise ValueError("again")

    fail.enqueue()
    stage.drain()

    assert [event.delay for event in stage.all(events.JobRetried)] == [9_000]


def test_a_job_that_no_worker_should_have_been_given_goes_back_for_a_minute() -> None:
    stage = Stage(lambda clock: Altered(clock, task="never heard of"))

    @stage.app.task
    async def on_loop() -> None: ...

    on_loop.enqueue()
    stage.drain()

    job = stage.job()
    assert (job.state, job.releases) == (State.PENDING, 1)
    assert job.run_at.timestamp() * 1000 - stage.clock.now == 60_000


def test_a_thread_gives_back_what_it_does_not_know() -> None:
    stage = Stage(lambda clock: Altered(clock, task="never heard of"))

    @stage.app.task
    def in_thread() -> None: ...

    in_thread.enqueue()
    stage.drain_with_threads()

    assert (stage.job().state, stage.job().releases) == (State.PENDING, 1)


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_arguments_that_cannot_be_read_at_all_fail_at_once(sync: bool) -> None:
    stage = Stage(lambda clock: Altered(clock, payload="{nonsense"))

    if sync:

        @stage.app.task(name="read")
        def read_sync(word: str) -> None: ...
    else:

        @stage.app.task(name="read")
        async def read_async(word: str) -> None: ...

    stage.app.enqueue_by_name("read", {"word": "x"})
    stage.drain_with_threads()

    assert (stage.job().state, stage.job().failure_kind) == (State.FAILED, FailureKind.PAYLOAD_INVALID)


# Odd moments


def test_progress_that_could_not_be_sent_is_sent_later() -> None:
    stage = Stage(Silent)
    assert isinstance(stage.engine, Silent)
    engine = stage.engine

    @stage.app.task
    async def work(ctx: Context) -> None:
        ctx.progress(0.25, "quarter \ud800")
        await asyncio.sleep(60)

    async def main() -> None:
        await work.aenqueue()
        async with stage.working():
            await stage.until(events.StoreTrouble)
            engine.silent = False
            await stage.until(events.StoreRecovered)
            assert stage.job().progress == 0.25
            await stage.until(events.JobCompleted)

    stage.play(main)


class Silent(MemoryEngine):
    """A store that takes no reports."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.silent = True

    def report(self, worker: UUID, reports: Any) -> Op[list[bool]]:
        if self.silent:
            raise StoreUnavailable("busy")
        return super().report(worker, reports)


def test_a_clock_that_was_set_back_is_told_and_fences_nobody(stage: Stage) -> None:
    @stage.app.task
    async def work() -> None:
        await asyncio.sleep(600)

    async def main() -> None:
        await work.aenqueue()
        async with stage.working():
            await stage.until(events.JobStarted)
            await asyncio.sleep(60)
            stage.engine.run(stage.engine.stats())
            stage.clock.now += 3_600_000
            stage.engine.run(stage.engine.promote(1))
            stage.clock.now -= 3_600_000
            await stage.until(events.ClockStepped)
            await stage.until(events.JobCompleted)

    stage.play(main)

    assert stage.job().attempt == 1
    assert not stage.all(events.WorkersFenced)


def test_more_due_jobs_than_one_promotion_takes_are_all_promoted(stage: Stage) -> None:
    @stage.app.task
    async def note() -> None: ...

    stage.app.enqueue_many([note.using(delay=60).call() for _ in range(2_500)])

    async def main() -> None:
        async with stage.working(lease=DAY / 2, poll=DAY / 2):
            await stage.until(events.JobCompleted, 2_500)

    stage.play(main)

    assert [event.count for event in stage.all(events.JobsPromoted)] == [1_000, 1_000, 500]
    assert stage.now < 60_300


def test_a_stop_is_bounded_when_the_store_does_not_answer() -> None:
    stage = Stage(Hanging)
    assert isinstance(stage.engine, Hanging)
    engine = stage.engine

    @stage.app.task
    async def work() -> None:
        engine.hangs = True

    async def main() -> Stopped:
        await work.aenqueue()
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobStarted)
        worker.stop()
        return await run

    assert stage.play(main) == Stopped(reason="stopped", unreleased=1)
    assert stage.now <= 28_100


class Hanging(MemoryEngine):
    """A store that never answers while `hangs` is set."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.hangs = False

    async def arun(self, op: Op[Any]) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        return self.run(op)


def test_a_claim_that_was_answered_too_late_is_given_back_unrun() -> None:
    """After the claim deadline the store may have given the job to somebody else."""
    stage = Stage(Slow)
    ran: list[int] = []

    @stage.app.task
    async def note() -> None:
        ran.append(stage.now)

    async def main() -> None:
        await note.aenqueue()
        async with stage.working():
            await stage.until(events.JobReleased)
            assert ran == []
            await stage.until(events.JobCompleted)

    stage.play(main)

    assert stage.job().releases == 1


class Slow(MemoryEngine):
    """A store whose first claim takes eleven seconds to be answered."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.seconds = 11.0

    async def arun(self, op: Op[Any]) -> Any:
        value = self.run(op)
        if isinstance(value, list) and value and isinstance(value[0], Lease):
            seconds, self.seconds = self.seconds, 0.0
            # Short of the beat that would release the job already in the store.
            await asyncio.sleep(seconds)
        return value


def test_a_block_that_is_cancelled_still_gives_its_jobs_back(stage: Stage) -> None:
    @stage.app.task
    async def endless() -> None:
        await asyncio.sleep(DAY)

    async def main() -> None:
        async with stage.worker():
            await endless.aenqueue()
            await stage.until(events.JobStarted)

    async def cut() -> None:
        block = asyncio.create_task(main())
        await stage.until(events.JobStarted)
        await asyncio.sleep(1)
        block.cancel()
        with pytest.raises(asyncio.CancelledError):
            await block

    stage.play(cut)

    assert (stage.job().state, stage.job().releases) == (State.PENDING, 1)
    assert stage.now < 5_000


def test_an_embedded_worker_can_be_waited_for(stage: Stage) -> None:
    async def main() -> None:
        async with stage.worker(drain=True) as worker:
            assert await worker.wait() == Stopped(reason="drained")

    stage.play(main)


def test_only_an_embedded_worker_can_be_waited_for(stage: Stage) -> None:
    with pytest.raises(RuntimeError, match="async with"):
        stage.play(stage.worker().wait)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": True},
        {"threads": 10_001},
        {"queues": "mail"},
        {"queues": []},
        {"lease": 0},
    ],
    ids=str,
)
def test_options_that_cannot_be_meant_are_refused(stage: Stage, options: dict[str, Any]) -> None:
    with pytest.raises(OptionInvalid, match=next(iter(options))):
        Worker(stage.app, **options)


# Logs and error texts


def test_what_a_handler_logs_names_its_job(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """S3-42: task name, job id, tenant and attempt in every job log."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    @stage.app.task
    def sell() -> None:
        logging.getLogger("shop").warning("no tea left")

    try:
        configure_logging(format="json", fields=job_fields)
        handle = sell.using(tenant="acme").enqueue()
        stage.drain_with_threads()
        logging.getLogger("shop").warning("closing")
    finally:
        root.handlers[:], root.level = handlers, level

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    [inside] = [line for line in lines if line["message"] == "no tea left"]
    assert (inside["job_id"], inside["task"]) == (str(handle.id), "sell")
    assert (inside["tenant"], inside["attempt"]) == ("acme", 1)
    assert "job_id" not in next(line for line in lines if line["message"] == "closing")


def test_an_error_is_described_by_its_type_and_message() -> None:
    class OddError(Exception):
        pass

    assert describe(ValueError("boom")) == ("ValueError: boom", None)
    assert describe(KeyError()) == ("KeyError", None)
    assert describe(OddError("x"))[0].endswith("OddError: x")


def test_the_traceback_starts_in_the_handlers_own_code(stage: Stage) -> None:
    @stage.app.task(retries=0)
    async def fail() -> NoReturn:
        raise ValueError("boom") from KeyError("why")

    fail.enqueue()
    stage.drain()

    [run] = stage.engine.run(stage.engine.attempts(stage.job().id))
    assert run.traceback is not None
    assert "runner.py" not in run.traceback
    assert "in fail" in run.traceback
    assert "KeyError: 'why'" in run.traceback


@pytest.mark.parametrize("keep_end", [False, True])
@pytest.mark.parametrize(
    "text", ["", "short", "ü" * 20_000, "\0" * 20_000, "\ud800" * 20_000, "a" * DETAILS_LIMIT]
)
def test_a_text_is_cut_to_valid_utf8_of_the_right_length(text: str, keep_end: bool) -> None:
    cut = fit(text, DETAILS_LIMIT, keep_end=keep_end)

    assert len(cut.encode()) <= DETAILS_LIMIT
    assert "\0" not in cut
    assert (len(text) > DETAILS_LIMIT or "\0" in text or "\ud800" in text) or cut == text


def test_a_traceback_that_cannot_be_made_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise RecursionError

    monkeypatch.setattr("traceback.TracebackException", broken)
    try:
        raise ValueError("boom")
    except ValueError as error:
        text, trace = describe(error)

    assert text == "ValueError: boom"
    assert trace == "<the traceback cannot be shown: RecursionError>"


def test_the_threads_of_a_worker_are_made_by_whom_it_is_told(stage: Stage) -> None:
    made: list[str] = []

    def spawn(work: Callable[[], None], name: str) -> threading.Thread:
        made.append(name)
        return start_thread(work, name)

    @stage.app.task
    def sync() -> None: ...

    async def main() -> None:
        await sync.aenqueue()
        await Worker(stage.app, drain=True, spawn=spawn).run()

    asyncio.run(main())

    assert made == ["shigoto-beat", "shigoto-thread-1"]
    assert stage.job().state is State.COMPLETED
