"""Jobs that would take their worker, or other jobs, down with them: each harms nobody but itself."""

import asyncio
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

import pytest

from shigoto import Cancel, Fail, FailureKind, Retry, RetryLater, Snooze, State, StoreUnavailable
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.time import LONGEST
from shigoto.model.worker import Ending, Verdict
from shigoto.observe import events
from shigoto.testing.store import VirtualClock
from shigoto.worker import Stopped
from tests.fundamentals.stage import DAY, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


# Exceptions that say nonsense


@pytest.mark.parametrize("kind", [Snooze, RetryLater])
@pytest.mark.parametrize("delay", [timedelta(seconds=5), "soon", -1, True, 1.5, None])
def test_a_delay_without_sense_is_a_failure_like_any_other(
    stage: Stage, kind: type[Snooze | RetryLater], delay: Any
) -> None:
    @stage.app.task(retry=Retry.immediate(retries=1))
    async def nonsense() -> NoReturn:
        error = kind(1)
        error.delay = delay
        raise error

    nonsense.enqueue()
    stage.drain()

    job = stage.job()
    assert (job.state, job.failures, job.snoozes) == (State.FAILED, 2, 0)
    assert "delay" in (job.error or "")


def test_an_outcome_that_never_got_a_delay_is_a_failure(stage: Stage) -> None:
    class Bare(Snooze):
        def __init__(self) -> None:
            Exception.__init__(self)

    @stage.app.task(retries=0)
    async def nonsense() -> NoReturn:
        raise Bare

    nonsense.enqueue()
    stage.drain()

    assert stage.job().state is State.FAILED


def test_a_delay_beyond_all_calendars_is_a_hundred_years(stage: Stage) -> None:
    @stage.app.task
    async def forever() -> NoReturn:
        error = Snooze(1)
        error.delay = 10**30
        raise error

    forever.enqueue()
    stage.drain()

    [snoozed] = stage.all(events.JobSnoozed)
    assert snoozed.delay == LONGEST


@pytest.mark.parametrize("reason", [5, None, ValueError("x"), ["a", "list"]])
def test_a_reason_need_not_be_a_string(stage: Stage, reason: Any) -> None:
    @stage.app.task
    async def cancel() -> NoReturn:
        raise Cancel(reason)

    @stage.app.task
    async def fail() -> NoReturn:
        raise Fail(reason)

    cancelled, failed = cancel.enqueue(), fail.enqueue()
    stage.drain()

    assert cancelled.job().state is State.CANCELLED
    assert (failed.job().state, failed.job().failure_kind) == (State.FAILED, FailureKind.REJECTED)
    if reason is not None:
        assert str(reason) in (failed.job().error or "")


class Slippery(Exception):
    """Cannot be described."""

    def __init__(self, way_out: type[BaseException]) -> None:
        self.way_out = way_out

    def __str__(self) -> str:
        raise self.way_out


@pytest.mark.parametrize("way_out", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("sync", [False, True])
def test_an_error_whose_text_exits_has_failed(
    stage: Stage, way_out: type[BaseException], *, sync: bool
) -> None:
    if sync:

        @stage.app.task(name="slip", retries=0)
        def slip() -> NoReturn:
            raise Slippery(way_out)
    else:

        @stage.app.task(name="slip", retries=0)
        async def slip_on_loop() -> NoReturn:
            raise Slippery(way_out)

    stage.app.enqueue_by_name("slip", {})
    assert stage.drain_with_threads() == Stopped(reason="drained")

    job = stage.job()
    assert (job.state, job.failures, job.failure_kind) == (State.FAILED, 1, FailureKind.ERROR)
    assert "Slippery" in (job.error or "")


def test_a_retry_policy_that_exits_is_replaced_by_the_usual_one(stage: Stage) -> None:
    def leave(failures: int, error: BaseException | None) -> NoReturn:
        raise SystemExit

    @stage.app.task(retry=Retry.custom(leave, retries=1))
    async def work() -> NoReturn:
        raise ValueError("x")

    work.enqueue()
    stage.drain()

    job = stage.job()
    assert (job.state, job.failures) == (State.PENDING, 1)


# Settlements that cannot be stored


class Picky(MemoryEngine):
    """A store that cannot write settlements with some endings; `busy` makes it unreachable as often first."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.refuses: set[Ending] = {Ending.ERRORED}
        self.numbers: set[int] = set()
        self.busy = 0
        self.sizes: list[int] = []

    def settle(self, worker: UUID, settlements: Any) -> Op[list[Verdict]]:
        self.sizes.append(len(settlements))
        if len(settlements) == 1 and self.busy:
            self.busy -= 1
            raise StoreUnavailable("not now")
        for settlement in settlements:
            if settlement.ending in self.refuses and settlement.number in self.numbers:
                raise OverflowError("int too big to convert")
        return super().settle(worker, settlements)


@pytest.fixture
def picky() -> Stage:
    return Stage(Picky)


def store(stage: Stage) -> Picky:
    assert isinstance(stage.engine, Picky)
    return stage.engine


@pytest.mark.parametrize("busy", [0, 2])
def test_a_settlement_that_cannot_be_stored_fails_its_job_and_no_other(picky: Stage, busy: int) -> None:
    @picky.app.task
    async def work(number: int) -> None:
        if number == 3:
            raise ValueError("three")

    for number in range(1, 6):
        work.enqueue(number)
    store(picky).numbers = {3}
    store(picky).busy = busy
    assert picky.drain() == Stopped(reason="drained")

    states = [picky.job(number).state for number in range(1, 6)]
    assert states == [State.COMPLETED] * 2 + [State.FAILED] + [State.COMPLETED] * 2
    error = picky.job(3).error or ""
    assert "OverflowError" in error
    assert "ValueError: three" in error
    assert len(picky.all(events.JobCompleted)) == 4
    assert len(picky.all(events.JobFailedEvent)) == 1


def test_a_result_that_cannot_be_stored_is_not_run_for_again(picky: Stage) -> None:
    runs: list[int] = []

    @picky.app.task
    async def work() -> str:
        runs.append(1)
        return "x"

    work.enqueue()
    store(picky).refuses = {Ending.COMPLETED}
    store(picky).numbers = {1}
    picky.drain()

    assert runs == [1]
    assert (picky.job().state, picky.job().failure_kind) == (State.FAILED, FailureKind.RESULT_INVALID)


def test_a_job_whose_end_cannot_be_stored_at_all_comes_back_and_the_worker_lives(picky: Stage) -> None:
    runs: list[int] = []

    @picky.app.task
    async def work() -> None:
        runs.append(picky.now)

    @picky.app.task
    async def other() -> None: ...

    async def main() -> None:
        store(picky).refuses = set(Ending)
        store(picky).numbers = {1}
        await work.aenqueue()
        async with picky.working():
            await asyncio.sleep(1)
            await other.aenqueue()
            await picky.until(events.JobCompleted)
            store(picky).numbers = set()
            await picky.until(events.JobCompleted, 2)

    picky.play(main)

    assert len(runs) == 2
    assert picky.job().state is State.COMPLETED


# What one job leaves behind for the next in its strand


class Ambiguous:
    """Compares like an array of numpy's: to something that is neither true nor false."""

    def __eq__(self, other: object) -> "Ambiguous":  # type: ignore[override]
        return self

    def __bool__(self) -> bool:
        raise ValueError("The truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_values_of_context_variables_are_never_compared(stage: Stage) -> None:
    variable: ContextVar[object] = ContextVar("variable")

    @stage.app.task
    async def work() -> str:
        variable.set(Ambiguous())
        return "done"

    async def main() -> Stopped:
        variable.set(Ambiguous())
        return await stage.worker(drain=True, concurrency=1).run()

    handles = [work.enqueue() for _ in range(3)]
    stage.play(main)

    assert [handle.job().state for handle in handles] == [State.COMPLETED] * 3


def test_a_fresh_value_that_equals_the_old_one_does_not_reach_the_next_job(stage: Stage) -> None:
    variable: ContextVar[list[int]] = ContextVar("variable")
    base: list[int] = []
    seen: list[list[int]] = []

    @stage.app.task
    async def work() -> None:
        seen.append(variable.get())
        variable.set([])

    async def main() -> Stopped:
        variable.set(base)
        return await stage.worker(drain=True, concurrency=1).run()

    for _ in range(3):
        work.enqueue()
    stage.play(main)

    assert all(value is base for value in seen)


def test_a_variable_that_is_set_and_reset_costs_no_strand(stage: Stage) -> None:
    variable: ContextVar[int] = ContextVar("variable")
    tasks: set[object] = set()

    @stage.app.task
    async def work() -> None:
        tasks.add(asyncio.current_task())
        token = variable.set(2)
        variable.reset(token)

    async def main() -> Stopped:
        variable.set(1)
        return await stage.worker(drain=True, concurrency=1).run()

    for _ in range(3):
        work.enqueue()
    stage.play(main)

    assert len(tasks) == 1


def test_a_cancel_that_an_earlier_job_left_behind_is_not_held_against_the_next(stage: Stage) -> None:
    @stage.app.task
    async def leave_a_bomb() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(5, task.cancel)

    @stage.app.task(retries=0)
    async def victim() -> str:
        await asyncio.sleep(10)
        return "unharmed"

    leave_a_bomb.enqueue()
    handle = victim.enqueue()
    stage.drain(concurrency=1)

    job = handle.job()
    assert (job.state, job.failures, job.releases) == (State.COMPLETED, 0, 1)


def test_a_handler_that_always_cancels_itself_does_not_run_for_ever(stage: Stage) -> None:
    runs: list[int] = []

    @stage.app.task(retries=0)
    async def self_cancel() -> None:
        runs.append(stage.now)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(DAY)

    self_cancel.enqueue()
    stage.drain()

    assert len(runs) == 2
    assert (stage.job().state, stage.job().failures) == (State.FAILED, 1)
