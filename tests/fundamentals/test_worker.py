"""What a worker promises: what runs, when, how often, and how much at once."""

import asyncio
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn
from uuid import UUID

import pytest

from shigoto import (
    Context,
    FailureKind,
    OptionInvalid,
    Retry,
    Shigoto,
    State,
    current,
)
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.job import Lease
from shigoto.model.worker import Ending, Settlement, Verdict, Want
from shigoto.observe import events
from shigoto.worker import Stopped, Worker
from tests.fundamentals.stage import DAY, HOUR, Running, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


# Running jobs


def test_async_and_sync_tasks_run_and_their_results_are_stored(stage: Stage) -> None:
    """S0-20, S1-16: fetch, mark, decode, look up, run, complete."""

    @stage.app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @stage.app.task
    def join(words: list[str]) -> str:
        return " ".join(words)

    total, sentence = add.enqueue(1, 2), join.enqueue(["good", "morning"])

    assert stage.drain_with_threads() == Stopped(reason="drained")

    assert total.result() == 3
    assert sentence.result() == "good morning"
    assert [job.attempt for job in stage.app.find()] == [1, 1]


def test_a_handler_gets_its_context_by_parameter_or_by_asking(stage: Stage) -> None:
    seen: list[tuple[str, int, int, str]] = []

    @stage.app.task
    async def by_parameter(ctx: Context, word: str) -> None:
        seen.append((word, ctx.number, ctx.attempt, ctx.tenant))

    @stage.app.task
    def by_asking() -> None:
        ctx = current()
        seen.append(("asked", ctx.number, ctx.attempt, ctx.tenant))

    by_parameter.using(tenant="acme").enqueue("given")
    stage.drain_with_threads()
    by_asking.enqueue()
    stage.drain_with_threads()

    assert seen == [("given", 1, 1, "acme"), ("asked", 2, 1, "")]


def test_an_alias_runs_the_renamed_task(stage: Stage) -> None:
    @stage.app.task(aliases=["old_name"])
    async def new_name() -> str:
        return "ran"

    handle = stage.app.enqueue_by_name("old_name", {}, allow_unknown=True)
    stage.drain()

    assert handle.job().state is State.COMPLETED


def test_a_job_of_an_unknown_task_is_never_claimed(stage: Stage) -> None:
    @stage.app.task
    async def known() -> None: ...

    unknown = stage.app.enqueue_by_name("somewhere_else", {}, allow_unknown=True)
    known.enqueue()
    stage.drain()

    assert unknown.job().state is State.PENDING
    assert unknown.job().attempt == 0
    assert [event.task for event in stage.all(events.JobCompleted)] == ["known"]


def test_only_the_named_queues_are_served(stage: Stage) -> None:
    @stage.app.task
    async def note() -> None: ...

    note.using(queue="mail").enqueue()
    note.using(queue="reports").enqueue()
    stage.drain(queues=["mail"])

    assert [job.queue for job in stage.app.find(state="completed")] == ["mail"]


def test_a_slow_job_does_not_hold_up_the_next(stage: Stage) -> None:
    """S0-22: the worker polls again at once."""

    @stage.app.task
    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)

    slow, quick = wait.enqueue(60), wait.enqueue(1)
    stage.drain()

    ended = {event.job_id: at for at, event in stage.told if isinstance(event, events.JobCompleted)}
    assert ended == {quick.id: 1_000, slow.id: 60_000}


@pytest.mark.parametrize("concurrency", [1, 3, 20])
def test_no_more_jobs_run_at_once_than_were_allowed(stage: Stage, concurrency: int) -> None:
    """S0-60."""
    running = Running()

    @stage.app.task
    async def work() -> None:
        with running:
            await asyncio.sleep(1)

    for _ in range(20):
        work.enqueue()
    stage.drain(concurrency=concurrency)

    assert running.most == concurrency
    assert len(stage.all(events.JobCompleted)) == 20


def test_no_more_threads_work_at_once_than_were_allowed(stage: Stage) -> None:
    running = Running()
    lock = threading.Lock()
    all_here = threading.Barrier(3)

    @stage.app.task
    def work() -> None:
        with lock:
            running.__enter__()
        all_here.wait(5)
        with lock:
            running.__exit__()

    for _ in range(9):
        work.enqueue()
    asyncio.run(Worker(stage.app, threads=3, drain=True).run())

    assert running.most == 3
    assert len(stage.all(events.JobCompleted)) == 9


def test_higher_priority_runs_first_and_then_the_older_job(stage: Stage) -> None:
    order: list[str] = []

    @stage.app.task
    async def note(word: str) -> None:
        order.append(word)

    note.enqueue("first")
    note.enqueue("second")
    note.using(priority=5).enqueue("urgent")
    stage.drain(concurrency=1)

    assert order == ["urgent", "first", "second"]


def test_a_job_of_a_day_runs_once_and_costs_no_wall_time(stage: Stage) -> None:
    """S1-4: nothing may assume short jobs."""
    began = time.perf_counter()

    @stage.app.task
    async def slow() -> str:
        await asyncio.sleep(DAY)
        return "done"

    handle = slow.enqueue()
    stage.drain(lease=HOUR, poll=HOUR)

    assert handle.result() == "done"
    assert stage.times(events.JobCompleted) == [86_400_000]
    assert handle.job().attempt == 1
    assert time.perf_counter() - began < 5


def test_a_job_that_outlives_many_leases_keeps_its_lease(stage: Stage) -> None:
    """The worker's lease is renewed by beats, whatever its jobs do."""

    @stage.app.task
    async def slow() -> None:
        await asyncio.sleep(600)

    async def main() -> None:
        slow.enqueue()
        async with stage.working():
            await stage.until(events.JobCompleted)

    stage.play(main)

    assert not stage.all(events.WorkersFenced)
    assert stage.job().attempt == 1


# Waking up


def test_a_job_is_picked_up_when_the_doorbell_rings(stage: Stage) -> None:
    """S3-48: within five seconds; here, at once."""

    @stage.app.task
    async def note() -> None: ...

    async def main() -> None:
        async with stage.working():
            await asyncio.sleep(100)
            await note.aenqueue()
            await stage.until(events.JobCompleted)

    stage.play(main)

    assert stage.times(events.JobStarted) == [100_000]


class Deaf(MemoryEngine):
    """A store whose doorbell never rings: polling alone must be correct."""

    def listen(self) -> Any:
        class Bell:
            async def wait(self, timeout: float) -> bool:
                await asyncio.sleep(timeout)
                return False

            def close(self) -> None: ...

        return Bell()


@pytest.mark.parametrize(("poll", "latest"), [(1.0, 1_000), (0.01, 10), (HOUR, 3_600_000)])
def test_without_a_doorbell_the_poll_finds_the_job(poll: float, latest: int) -> None:
    """S0-19, S0-58, S1-22: once a second, or as often as is asked for."""
    stage = Stage(lambda clock: Deaf(clock=clock))

    @stage.app.task
    async def note() -> None: ...

    async def main() -> None:
        async with stage.working(poll=poll):
            await asyncio.sleep(50.003)
            await note.aenqueue()
            await stage.until(events.JobCompleted)

    stage.play(main)

    [started] = stage.times(events.JobStarted)
    assert started - 50_003 <= latest


@pytest.mark.parametrize("poll", [0.009, 86_401, 0, -1, "1", True])
def test_a_poll_that_cannot_be_meant_is_refused(stage: Stage, poll: Any) -> None:
    """S1-22: from ten milliseconds to a day."""
    with pytest.raises(OptionInvalid, match="poll"):
        Worker(stage.app, poll=poll)


def test_a_scheduled_job_starts_at_its_instant(stage: Stage) -> None:
    @stage.app.task
    async def note() -> None: ...

    async def main() -> None:
        async with stage.working():
            await note.using(delay=90.5).aenqueue()
            await note.using(delay=0.123).aenqueue()
            await stage.until(events.JobCompleted, 2)

    stage.play(main)

    assert stage.times(events.JobStarted) == [123, 90_500]


# Retries


POLICIES = {
    "S0-38 linear 5/10/15 minutes": (Retry.linear(minutes=5, retries=3), [300_000, 600_000, 900_000]),
    "S1-18 S1-19 five at once": (Retry.immediate(retries=5), [0, 0, 0, 0, 0]),
    "S2-4 never": (Retry.never(), []),
    "attempts, e^n seconds": (Retry.attempts(4), [2_718, 7_389, 20_086]),
    "exponential with a cap": (
        Retry.exponential(retries=4, cap=20, jitter=False),
        [5_000, 10_000, 20_000, 20_000],
    ),
    "a list": (Retry.delays([1, HOUR]), [1_000, 3_600_000]),
}


@pytest.mark.parametrize(("policy", "delays"), POLICIES.values(), ids=POLICIES.keys())
def test_a_failing_job_runs_again_after_exactly_the_delays_of_its_policy(
    stage: Stage, policy: Retry, delays: list[int]
) -> None:
    """S0-37, S0-38, S0-39, S0-54, S1-17, S1-19: counted, delayed, and failed for good in the end."""

    @stage.app.task(retry=policy)
    async def fail() -> NoReturn:
        raise ConnectionError("no route")

    async def main() -> None:
        fail.enqueue()
        async with stage.working(lease=HOUR, poll=HOUR):
            await stage.until(events.JobFailedEvent)

    stage.play(main)

    starts = stage.times(events.JobStarted)
    assert [later - earlier for earlier, later in pairwise(starts)] == delays
    assert [event.delay for event in stage.all(events.JobRetried)] == delays
    job = stage.job()
    assert (job.state, job.failure_kind) == (State.FAILED, FailureKind.ERROR)
    assert (job.failures, job.attempt) == (len(delays) + 1, len(delays) + 1)
    assert job.error == "ConnectionError: no route"


def test_the_default_policy_waits_between_half_and_all_of_its_curve(stage: Stage) -> None:
    @stage.app.task
    async def fail() -> NoReturn:
        raise ValueError

    async def main() -> None:
        fail.enqueue()
        async with stage.working(lease=HOUR, poll=HOUR):
            await stage.until(events.JobFailedEvent)

    stage.play(main)

    delays = [event.delay for event in stage.all(events.JobRetried)]
    assert len(delays) == 5
    for delay, most in zip(delays, [5_000, 10_000, 20_000, 40_000, 80_000], strict=True):
        assert most / 2 <= delay <= most


def test_a_policy_given_for_one_job_wins_over_that_of_the_task(stage: Stage) -> None:
    @stage.app.task(retry=Retry.never())
    async def fail() -> NoReturn:
        raise ValueError("again")

    async def main() -> None:
        fail.using(retry=Retry.linear(seconds=7, retries=2)).enqueue()
        async with stage.working(lease=HOUR, poll=HOUR):
            await stage.until(events.JobFailedEvent)

    stage.play(main)

    assert [event.delay for event in stage.all(events.JobRetried)] == [7_000, 14_000]


def test_a_broken_policy_does_not_cost_the_job_its_retries(stage: Stage) -> None:
    def broken(failures: int, error: BaseException | None) -> float:
        raise ZeroDivisionError

    @stage.app.task(retry=Retry.custom(broken, retries=2))
    async def fail() -> NoReturn:
        raise ValueError("again")

    async def main() -> None:
        fail.enqueue()
        async with stage.working(lease=HOUR, poll=HOUR):
            await stage.until(events.JobFailedEvent)

    stage.play(main)

    assert len(stage.all(events.JobRetried)) == 2


# Looking ahead


def test_leases_that_lie_unstarted_are_given_back_so_that_others_can_run_them(stage: Stage) -> None:
    """Long jobs are never hoarded: what was claimed ahead is free again within a second."""

    @stage.app.task
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def main() -> None:
        for _ in range(2_000):
            await work.aenqueue(0.001)
        for _ in range(50):
            await work.aenqueue(HOUR)
        async with stage.working(concurrency=10):
            await stage.until(events.JobCompleted, 2_000)
            await asyncio.sleep(1)
            counts = (await stage.app.astats())["default"]
            assert counts.processing == 10
            assert counts.pending == 40

    stage.play(main)

    assert len(stage.all(events.JobReleased)) >= 10


def test_what_was_given_back_is_asked_for_thoroughly_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X8: it stands before what was taken since, where an engine may not look every time."""
    told: list[str] = []

    def claim(worker: UUID, wants: Sequence[Want]) -> Op[list[Lease]]:
        told.append("thorough" if any(want.thorough for want in wants) else "plain")
        return taken(worker, wants)

    def settle(worker: UUID, settlements: Sequence[Settlement]) -> Op[list[Verdict]]:
        told.extend("released" for one in settlements if one.ending is Ending.RELEASED)
        return settled(worker, settlements)

    taken, settled = stage.engine.claim, stage.engine.settle
    monkeypatch.setattr(stage.engine, "claim", claim)
    monkeypatch.setattr(stage.engine, "settle", settle)

    @stage.app.task
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def main() -> None:
        for _ in range(2_000):
            await work.aenqueue(0.001)
        for _ in range(50):
            await work.aenqueue(10)
        async with stage.working(concurrency=10):
            await stage.until(events.JobCompleted, 2_050)
            await work.aenqueue(0.001)
            await stage.until(events.JobCompleted, 2_051)

    stage.play(main)

    assert "thorough" not in told[: told.index("released")]
    after = [each for each in told[told.index("released") :] if each != "released"]
    assert after[0] == "thorough"
    assert after[-1] == "plain"


def test_a_drain_ends_with_a_thorough_look(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """X8: or it might leave something behind."""
    told: list[bool] = []

    def claim(worker: UUID, wants: Sequence[Want]) -> Op[list[Lease]]:
        told.append(all(want.thorough for want in wants))
        return taken(worker, wants)

    taken = stage.engine.claim
    monkeypatch.setattr(stage.engine, "claim", claim)

    @stage.app.task
    async def work() -> None: ...

    work.enqueue()
    stage.drain()

    assert told[-1]


def test_handlers_that_block_the_loop_do_not_hoard_jobs(stage: Stage) -> None:
    @stage.app.task
    async def block() -> None:
        stage.clock.advance(1_000)

    for _ in range(100):
        block.enqueue()
    stage.drain(lease=HOUR, poll=HOUR)

    assert len(stage.all(events.JobCompleted)) == 100
    assert max(job.releases for job in stage.app.find(limit=100)) < 20


# Beats from a thread, in real time


def test_a_handler_that_blocks_the_loop_does_not_cost_the_worker_its_lease() -> None:
    app = Shigoto(engine=MemoryEngine())
    renewed: list[bool] = []

    @app.task
    async def block() -> None:
        before = app.engine.run(app.engine.workers())[0].lease_until
        threading.Event().wait(0.8)
        renewed.append(app.engine.run(app.engine.workers())[0].lease_until > before)

    block.enqueue()
    outcome = asyncio.run(Worker(app, drain=True, lease=1.0).run())

    assert outcome == Stopped(reason="drained")
    assert renewed == [True]


def test_a_worker_runs_on_uvloop_too() -> None:
    uvloop = pytest.importorskip("uvloop")
    app = Shigoto(engine=MemoryEngine())

    @app.task
    async def on_loop(number: int) -> int:
        await asyncio.sleep(0)
        return number

    @app.task
    def in_thread(number: int) -> int:
        return number

    handles = [task.enqueue(number) for number in range(100) for task in (on_loop, in_thread)]
    outcome = uvloop.run(Worker(app, drain=True).run())

    assert outcome == Stopped(reason="drained")
    assert sorted(handle.result() for handle in handles) == sorted([*range(100), *range(100)])
