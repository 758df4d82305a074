"""Ending runs in child processes: time limits, cancels, lost leases and stops, and handlers that will not give in."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from shigoto import FailureKind, State, StoreUnavailable
from shigoto.model.worker import SweepOrder
from shigoto.observe import events
from shigoto.worker import Stopped, process_pool
from tests.fundamentals.nursery import Nursery, alive, make, own_children, until, until_gone

CODE = """
while (FOLDER / "hold").exists():
    time.sleep(0.005)


def wait_for_ever(stubborn):
    while True:
        try:
            time.sleep(60)
        except Exception as error:
            note(f"told-{type(error).__name__}")
            if not stubborn:
                raise


@app.task(executor="process", retries=0)
def sync(ctx: Context, stubborn: bool = False) -> None:
    note("began", os.getpid())
    ctx.log("before the end")
    wait_for_ever(stubborn)


@app.task(executor="process", retries=0)
async def on_loop(ctx: Context, stubborn: bool = False) -> None:
    note("began", os.getpid())
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("told-CancelledError")
            if not stubborn:
                raise


@app.task(executor="process", retries=0)
def cleans_up() -> str:
    note("began", os.getpid())
    try:
        time.sleep(60)
    finally:
        note("cleaned", "up")


@app.task(executor="process", retries=0)
def succeeds_anyway() -> str:
    note("began", os.getpid())
    try:
        time.sleep(60)
    except JobCancelled:
        return "done all the same"


@app.task(timeout=0.3, retries=0)
def regex() -> bool:
    note("began", os.getpid())
    return re.match("(a+)+$", "a" * 64 + "b") is not None


@app.task(timeout=60, soft_timeout=0.2, retries=0)
def soft(ctx: Context, catch: bool) -> str:
    try:
        time.sleep(60)
    except SoftTimeout as error:
        assert ctx.overdue
        if not catch:
            raise
        return str(error)


@app.task(executor="process", soft_timeout=0.2, retries=0)
async def soft_on_loop(ctx: Context, catch: bool) -> str:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        assert ctx.overdue
        if not catch:
            raise
        return "caught"


@app.task
def in_thread(seconds: float) -> None:
    time.sleep(seconds)


@app.task(executor="process")
def until_stopped(ctx: Context) -> str:
    note("began", os.getpid())
    while not ctx.stopping:
        time.sleep(0.005)
    return "saw it"


@app.task(executor="process", exclusive=True)
def exclusive() -> None:
    note("began", os.getpid())
    wait_for_ever(True)


@app.task(executor="process")
def takes_over_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@app.task(executor="process")
def quick() -> int:
    return os.getpid()
"""


@pytest.fixture
def kids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    monkeypatch.setattr(process_pool, "GRACE", 0.3)
    nursery = make(tmp_path, monkeypatch, CODE)
    yield nursery
    nursery.close()


@pytest.mark.parametrize("task", ["sync", "on_loop"])
@pytest.mark.parametrize("stubborn", [False, True])
def test_at_its_limit_a_run_is_told_and_then_killed_and_has_failed(
    kids: Nursery, task: str, *, stubborn: bool
) -> None:
    """S0-71: a long job cannot hold back others for ever."""
    handle = getattr(kids, task).using(timeout=0.3).enqueue(stubborn)
    kids.drain()

    job = handle.job()
    assert (job.state, job.failure_kind, job.failures) == (State.FAILED, FailureKind.TIMEOUT, 1)
    assert (job.crashes, job.releases) == (0, 0)
    assert job.error == "TimeoutError: the run took longer than its limit of 0.3 s"
    trace = kids.attempts(handle)[0].traceback or ""
    assert ("wait_for_ever" if task == "sync" else "on_loop" if not stubborn else "select") in trace
    if task == "sync":
        assert kids.lines(handle) == ["before the end"]
        assert ("last log lines:\ninfo: before the end" in trace) == stubborn
    told = "told-JobCancelled" if task == "sync" else "told-CancelledError"
    assert (kids.folder / told).exists()
    assert own_children() == set()


def test_native_code_that_keeps_the_interpreter_lock_is_killed_at_its_limit(kids: Nursery) -> None:
    handle = kids.regex.enqueue()
    kids.drain()

    job = handle.job()
    assert (job.state, job.failure_kind) == (State.FAILED, FailureKind.TIMEOUT)
    trace = kids.attempts(handle)[0].traceback or ""
    assert " in match" in trace
    assert " in regex" in trace


def test_a_handler_may_clean_up_or_even_succeed_when_it_is_told(kids: Nursery) -> None:
    cleaned = kids.cleans_up.using(timeout=0.3).enqueue()
    done = kids.succeeds_anyway.using(timeout=0.3).enqueue()
    kids.drain()

    assert (kids.folder / "cleaned").read_text() == "up"
    assert cleaned.job().failure_kind is FailureKind.TIMEOUT
    assert done.result() == "done all the same"


def test_a_limit_of_the_task_can_be_lifted_for_one_call(kids: Nursery) -> None:
    handle = kids.soft.using(timeout=None, soft_timeout=None).enqueue(True)

    async def main() -> None:
        async with kids.working(stop_timeout=0.3):
            await kids.until(events.JobStarted)
            await asyncio.sleep(0.5)
            assert handle.job().state is State.PROCESSING

    kids.play(main)
    assert handle.job().state is State.PENDING


@pytest.mark.parametrize("task", ["soft", "soft_on_loop"])
def test_the_soft_limit_is_raised_in_the_handler_which_may_go_on(kids: Nursery, task: str) -> None:
    caught, passed = (getattr(kids, task).enqueue(catch) for catch in (True, False))
    kids.drain()

    text = "the run took longer than its soft limit of 0.2 s"
    assert caught.result() == (text if task == "soft" else "caught")
    job = passed.job()
    assert (job.state, job.failure_kind, job.error) == (
        State.FAILED,
        FailureKind.TIMEOUT,
        f"SoftTimeout: {text}",
    )


@pytest.mark.parametrize("task", ["sync", "on_loop"])
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_cancelled_run_is_told_and_then_killed_and_counts_as_nothing(
    kids: Nursery, task: str, *, stubborn: bool
) -> None:
    handle = getattr(kids, task).enqueue(stubborn)

    async def main() -> None:
        async with kids.working():
            pid = int(await kids.noted("began"))
            await handle.acancel()
            await kids.until(events.JobCancelledEvent)
            if stubborn:
                await until_gone(pid)

    kids.play(main)
    job = handle.job()
    assert (job.state, job.failures, job.crashes) == (State.CANCELLED, 0, 0)


def test_a_cancel_that_comes_before_the_child_is_ready_ends_the_job_at_once(kids: Nursery) -> None:
    handle = kids.quick.enqueue()
    (kids.folder / "hold").touch()

    async def main() -> None:
        async with kids.working():
            await until(lambda: handle.job().state is not State.PENDING)
            await handle.acancel()
            await kids.until(events.JobCancelledEvent)
        assert not kids.all(events.JobStarted)

    kids.play(main)
    assert handle.job().state is State.CANCELLED


def test_a_run_whose_lease_was_taken_by_force_is_killed(kids: Nursery) -> None:
    handle = kids.sync.enqueue(True)

    async def main() -> None:
        engine = kids.app.engine
        async with kids.working():
            pid = int(await kids.noted("began"))
            assert await engine.arun(engine.cancel([handle.id], force=True)) == [State.CANCELLED]
            await until_gone(pid)
            await kids.until(events.LeaseLostEvent)

    kids.play(main)
    assert handle.job().state is State.CANCELLED


def test_the_children_of_a_fenced_worker_are_killed_at_once(kids: Nursery) -> None:
    handle = kids.sync.enqueue(True)

    async def main() -> None:
        engine = kids.app.engine
        worker = kids.worker(lease=1.0)
        run = asyncio.create_task(worker.run())
        pid = int(await kids.noted("began"))
        kids.module.ahead += 2_000
        await engine.arun(engine.sweep(SweepOrder(fence=(worker.id,))))
        assert await run == Stopped(reason="fenced")
        assert not alive(pid)

    kids.play(main)
    job = handle.job()
    assert (job.state, job.crashes, job.suspect) == (State.PENDING, 1, True)


def test_an_exclusive_run_in_a_child_is_killed_before_its_lease_is_over(
    kids: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = kids.exclusive.enqueue()

    def deaf(*_: object) -> NoReturn:
        raise StoreUnavailable("no answer")

    async def main() -> None:
        time = asyncio.get_running_loop().time
        async with kids.working(lease=4.0):
            pid = int(await kids.noted("began"))
            with monkeypatch.context() as patch:
                patch.setattr(kids.app.engine, "beat", deaf)
                began = time()
                await until_gone(pid)
                assert 2.0 <= time() - began <= 4.0
            await kids.until(events.JobReleased)

    kids.play(main)
    assert (handle.job().failures, handle.job().crashes) == (0, 0)


def test_a_child_that_was_interrupted_is_not_used_again(kids: Nursery) -> None:
    kids.cleans_up.using(timeout=0.3).enqueue()
    handle = kids.quick.enqueue()
    kids.drain(children=1)
    assert handle.result() != int((kids.folder / "began").read_text())


def test_what_one_handler_does_to_signals_does_not_protect_the_next(kids: Nursery) -> None:
    kids.takes_over_signals.enqueue()
    handle = kids.cleans_up.using(timeout=0.3).enqueue()
    kids.drain(children=1)

    assert (kids.folder / "cleaned").read_text() == "up"
    assert handle.job().failure_kind is FailureKind.TIMEOUT


def test_an_order_for_one_job_never_reaches_the_next(kids: Nursery) -> None:
    """Words and runs cross on the wire: a job that ends at its limit, exactly."""
    late = [kids.in_thread.using(timeout=0.02, retries=0).enqueue(0.02) for _ in range(30)]
    others = [kids.quick.enqueue() for _ in range(30)]
    kids.drain(children=2)

    assert {handle.job().state for handle in late} <= {State.COMPLETED, State.FAILED}
    assert {handle.job().failure_kind for handle in late} <= {None, FailureKind.TIMEOUT}
    assert [handle.job().state for handle in others] == [State.COMPLETED] * 30
    assert not kids.all(events.JobCrashed)


# Stops


def test_a_stop_is_seen_in_the_child_and_what_ends_in_time_is_completed(kids: Nursery) -> None:
    handle = kids.until_stopped.enqueue()

    async def main() -> Stopped:
        worker = kids.worker()
        run = asyncio.create_task(worker.run())
        await kids.noted("began")
        worker.stop()
        return await run

    assert kids.play(main) == Stopped(reason="stopped")
    assert handle.result() == "saw it"


@pytest.mark.parametrize("task", ["sync", "on_loop"])
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_stop_releases_at_once_what_it_has_ended_or_killed(
    kids: Nursery, task: str, *, stubborn: bool
) -> None:
    """X6: the process is surely dead before anybody else can begin, so there is no need to wait."""
    handle = getattr(kids, task).enqueue(stubborn)

    async def main() -> int:
        worker = kids.worker(stop_timeout=0.6)
        run = asyncio.create_task(worker.run())
        pid = int(await kids.noted("began"))
        worker.stop()
        assert await run == Stopped(reason="stopped")
        assert not alive(pid)
        return pid

    kids.play(main)
    job = handle.job()
    assert (job.state, job.releases, job.failures, job.crashes) == (State.PENDING, 1, 0, 0)
    assert job.run_at == job.created_at
    told = "told-JobCancelled" if task == "sync" else "told-CancelledError"
    assert (kids.folder / told).exists()


def test_a_second_stop_kills_without_asking(kids: Nursery) -> None:
    handle = kids.sync.enqueue(True)

    async def main() -> Any:
        worker = kids.worker()
        run = asyncio.create_task(worker.run())
        await kids.noted("began")
        began = asyncio.get_running_loop().time()
        worker.stop()
        await asyncio.sleep(0.01)
        worker.stop()
        assert await run == Stopped(reason="stopped")
        assert asyncio.get_running_loop().time() - began < 1.5

    kids.play(main)
    assert (handle.job().state, handle.job().releases) == (State.PENDING, 1)
    assert own_children() == set()


def test_an_idle_worker_with_a_warm_child_stops_within_a_second(kids: Nursery) -> None:
    async def main() -> None:
        worker = kids.worker()
        run = asyncio.create_task(worker.run())
        await kids.quick.aenqueue()
        await kids.until(events.JobCompleted)
        began = asyncio.get_running_loop().time()
        worker.stop()
        assert await run == Stopped(reason="stopped")
        assert asyncio.get_running_loop().time() - began < 1.0

    kids.play(main)
    assert own_children() == set()
