"""What specifications S0 and S1 ask of a queue and its workers, told in their own order."""

import asyncio
import errno
from datetime import timedelta
from itertools import pairwise
from typing import Any, NoReturn

import pytest

from shigoto import Context, FailureKind, OptionInvalid, ResultTimeout, Retry, Shigoto, State
from shigoto.demo import RETRY
from shigoto.engine.memory import MemoryEngine
from shigoto.observe import events
from shigoto.testing.store import VirtualClock
from shigoto.worker import Stopped
from tests.fundamentals.stage import DAY, HOUR, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


# A worker


def test_a_worker_is_made_started_stopped_and_waited_for(stage: Stage) -> None:
    """S0-17, S0-18, S0-21: it has an id of its own; a stop is asked for in one place, and waited for in another until
    the job in flight has ended."""

    @stage.app.task
    async def long() -> str:
        await asyncio.sleep(5)
        return "ended"

    handle = long.enqueue()

    async def main() -> Stopped:
        async with stage.worker() as worker:
            [record] = stage.app.workers()
            assert (record.id, record.name) == (worker.id, "1")
            await stage.until(events.JobStarted)
            worker.stop()
            return await worker.wait()

    assert stage.play(main) == Stopped(reason="stopped")
    assert handle.result(timeout=1) == "ended"
    assert stage.times(events.WorkerStopping) == [0]
    assert stage.times(events.WorkerStopped) == [5_000]
    assert stage.app.workers() == []
    assert stage.worker().id != stage.worker().id


def test_a_worker_can_be_told_to_process_the_next_job_only(stage: Stage) -> None:
    """S0-18, S0-33: exactly one, and that the most urgent."""

    @stage.app.task
    async def note(word: str) -> str:
        return word

    usual, urgent = note.enqueue("usual"), note.using(priority=1).enqueue("urgent")

    stage.play(lambda: stage.worker(max_jobs=1, concurrency=1, threads=1).run())

    assert urgent.status() is State.COMPLETED
    assert usual.status() is State.PENDING


class Silent(MemoryEngine):
    """A store whose doorbell never rings; `looks` are the waits after which a worker looked by itself."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.looks: list[float] = []

    def listen(self) -> Any:
        looks = self.looks

        class Bell:
            async def wait(self, timeout: float) -> bool:
                await asyncio.sleep(timeout)
                looks.append(timeout)
                return False

            def close(self) -> None: ...

        return Bell()


def test_a_worker_that_starts_knows_its_handlers_and_looks_once_a_second() -> None:
    """S0-19, S0-58: a little earlier each time, so that workers part ways, and whether or not anything tells it to."""
    stage = Stage(Silent)

    @stage.app.task
    async def first() -> None: ...

    @stage.app.task(name="second-task")
    async def second() -> None: ...

    async def main() -> None:
        async with stage.working():
            [record] = stage.app.workers()
            assert set(record.tasks) == {"first", "second-task"}
            await asyncio.sleep(60.5)
            await first.aenqueue()
            await stage.until(events.JobCompleted)

    stage.play(main)

    assert isinstance(stage.engine, Silent)
    assert 60 <= len(stage.engine.looks) <= 77
    assert all(0.8 <= wait <= 1 for wait in stage.engine.looks)
    [started] = stage.times(events.JobStarted)
    assert 60_500 <= started <= 61_500


def test_a_worker_may_look_once_a_day() -> None:
    """S1-22: where jobs are rare, looks are too."""
    stage = Stage(Silent)

    @stage.app.task
    async def rare() -> None: ...

    async def main() -> None:
        async with stage.working(poll=DAY, lease=DAY):
            await asyncio.sleep(3.5 * DAY)
            await rare.aenqueue()
            await stage.until(events.JobCompleted)

    stage.play(main)

    assert isinstance(stage.engine, Silent)
    assert 3 <= len(stage.engine.looks) <= 6
    assert all(0.8 * DAY <= wait <= DAY for wait in stage.engine.looks)
    [started] = stage.times(events.JobStarted)
    assert 3.5 * DAY * 1000 <= started <= 4.5 * DAY * 1000


def test_a_job_is_fetched_marked_decoded_matched_run_and_ended_in_this_order(stage: Stage) -> None:
    """S0-20, S0-24, S0-34: the handler of that type gets the job and its payload, while the store says processing."""
    seen: list[tuple[str, object]] = []

    @stage.app.task
    async def measure(ctx: Context, length: int) -> None:
        job = await (await stage.app.ajob(ctx.job_id)).ajob()
        seen.append(
            ("measure", (length, job.state, job.attempt, job.started_at is not None, job.finished_at))
        )

    @stage.app.task
    async def weigh(weight: int) -> NoReturn:
        seen.append(("weigh", weight))
        raise ValueError("too heavy")

    elsewhere = Shigoto(engine=stage.engine)
    unreadable = elsewhere.enqueue_by_name("measure", {"length": "long"}, allow_unknown=True)
    good, bad = measure.enqueue(3), weigh.using(retries=0).enqueue(9)
    stage.drain()

    assert sorted(seen, key=str) == [("measure", (3, State.PROCESSING, 1, True, None)), ("weigh", 9)]
    assert good.status() is State.COMPLETED
    assert (bad.job().state, bad.job().error) == (State.FAILED, "ValueError: too heavy")
    assert unreadable.job().failure_kind is FailureKind.PAYLOAD_INVALID


def test_jobs_wait_in_the_queue_and_are_taken_one_after_another(stage: Stage) -> None:
    """S1-2, S1-6: they enter it without any worker, and one that takes one at a time takes them in order."""

    @stage.app.task
    async def work(number: int) -> None:
        await asyncio.sleep(1)

    handles = [work.enqueue(number) for number in range(5)]
    assert {handle.status() for handle in handles} == {State.PENDING}
    stage.drain(concurrency=1)

    started = [event.number for event in stage.all(events.JobStarted)]
    assert started == [handle.number for handle in handles]
    jobs = [handle.job() for handle in handles]
    assert all(
        earlier.finished_at is not None
        and later.started_at is not None
        and earlier.finished_at <= later.started_at
        for earlier, later in pairwise(jobs)
    )


# When jobs run


def test_a_job_can_run_now_later_or_again_and_again(stage: Stage) -> None:
    """S0-65: by enqueueing the next one on completion."""

    @stage.app.task
    async def once() -> None: ...

    @stage.app.task
    async def hourly(times: int) -> None:
        if times > 1:
            await hourly.using(delay=timedelta(hours=1)).aenqueue(times - 1)

    async def main() -> None:
        async with stage.working():
            await once.aenqueue()
            await once.using(delay=timedelta(hours=1)).aenqueue()
            await hourly.aenqueue(3)
            await stage.until(events.JobCompleted, 5)

    stage.play(main)

    ran = [(at, event.task) for at, event in stage.told if isinstance(event, events.JobStarted)]
    assert sorted(ran) == [
        (0, "hourly"),
        (0, "once"),
        (HOUR * 1000, "hourly"),
        (HOUR * 1000, "once"),
        (2 * HOUR * 1000, "hourly"),
    ]


TEMPORARY: list[Exception] = [
    ConnectionResetError("peer is gone"),
    ConnectionRefusedError("nobody listens"),
    TimeoutError("no answer"),
    MemoryError(),
    OSError(errno.EMFILE, "too many open files"),
]


@pytest.mark.parametrize("error", TEMPORARY, ids=lambda error: type(error).__name__)
def test_what_may_pass_by_itself_is_retried(stage: Stage, error: Exception) -> None:
    """S0-54, S0-55: networks, other services and shortage of resources; by the policy of specification S0."""

    @stage.app.task(retry=RETRY)
    async def call() -> None:
        if len(stage.all(events.JobStarted)) == 1:
            raise error

    async def main() -> None:
        async with stage.working(), asyncio.timeout(HOUR):
            await call.aenqueue()
            await stage.until(events.JobCompleted)

    stage.play(main)

    assert stage.times(events.JobStarted) == [0, 300_000]
    assert stage.job().failures == 1


def test_what_its_policy_gives_up_on_is_not_retried(stage: Stage) -> None:
    """S0-54: the error must allow it; the retries that are left do not count."""

    @stage.app.task(retry=Retry.immediate(retries=3, give_up_on=PermissionError))
    async def call(error: str) -> NoReturn:
        raise PermissionError(error) if error == "forbidden" else ConnectionError(error)

    forbidden, lost = call.enqueue("forbidden"), call.enqueue("lost")
    stage.drain()

    job = forbidden.job()
    assert (job.state, job.failures, job.max_failures) == (State.FAILED, 1, 4)
    assert job.error == "PermissionError: forbidden"
    assert lost.job().failures == 4


def test_a_job_that_fails_with_five_retries_used_has_failed(stage: Stage) -> None:
    """S1-17, S1-18, S1-19, S1-20, but for the mail, which notifications will bring: the failures are counted, five send
    it back to waiting, the sixth is the last, and that is told once, with the reason."""

    @stage.app.task(retry=Retry.immediate(retries=5))
    async def call() -> NoReturn:
        raise ConnectionError(f"no answer to call {len(stage.all(events.JobStarted))}")

    handle = call.enqueue()
    stage.drain()

    assert [event.attempt for event in stage.all(events.JobRetried)] == [1, 2, 3, 4, 5]
    [failed] = stage.all(events.JobFailedEvent)
    assert (failed.job_id, failed.attempt, failed.error) == (
        handle.id,
        6,
        "ConnectionError: no answer to call 6",
    )
    job = handle.job()
    assert (job.state, job.failures, job.failure_kind) == (State.FAILED, 6, FailureKind.ERROR)
    assert job.error == failed.error
    assert len(handle.attempts()) == 6
    stage.drain()
    assert len(stage.all(events.JobStarted)) == 6, "it is not run again"


def test_a_job_that_has_failed_for_good_is_kept_and_can_be_driven_again(stage: Stage) -> None:
    """S0-72: four weeks later it is there, with its reason, and runs when somebody wants it to."""
    repaired: list[bool] = []

    @stage.app.task(retries=0)
    async def call() -> None:
        if not repaired:
            raise ConnectionError("no answer")

    handle = call.enqueue()
    stage.drain()
    stage.clock.advance(round(28 * DAY * 1000))

    async def main() -> None:
        async with stage.working():
            await asyncio.sleep(60)
            job = handle.job()
            assert (job.state, job.error) == (State.FAILED, "ConnectionError: no answer")
            repaired.append(True)
            redriven = await stage.app.aredrive(task="call")
            assert [each.id for each in redriven.retried] == [handle.id]
            await stage.until(events.JobCompleted)

    stage.play(main)

    assert handle.status() is State.COMPLETED
    assert len(stage.all(events.JobStarted)) == 2


@pytest.mark.parametrize("retries", [0, 1, 4])
@pytest.mark.parametrize(
    "policy", [Retry.immediate(retries=2), Retry.immediate(retries=2, give_up_on=PermissionError)]
)
def test_the_number_of_retries_can_be_set_for_each_job(stage: Stage, policy: Retry, retries: int) -> None:
    """S0-61: more than the task's own policy has, or fewer; whether or not that policy can be stored with the job."""

    @stage.app.task(retry=policy)
    async def call() -> NoReturn:
        raise ConnectionError("no answer")

    usual, special = call.enqueue(), call.using(retries=retries).enqueue()
    stage.drain()

    assert (usual.job().state, usual.job().attempt) == (State.FAILED, 3)
    assert (special.job().state, special.job().attempt) == (State.FAILED, 1 + retries)


# What clients learn


def test_whoever_has_the_id_asks_for_the_state_and_the_result(stage: Stage) -> None:
    """S1-3, S1-23, S1-24, S1-25: the worker reports under the job's id; a client polls with it, or waits."""

    @stage.app.task
    async def render(pages: int) -> str:
        await asyncio.sleep(24 * HOUR)
        return f"{pages} pages"

    job_id = str(render.enqueue(3).id)
    client = Shigoto(engine=stage.engine)
    polled: list[State] = []

    async def main() -> str:
        async with stage.working(lease=HOUR, poll=HOUR):
            polled.append((await client.ajob(job_id)).job().state)
            await stage.until(events.JobStarted)
            polled.append((await client.ajob(job_id)).job().state)
            with pytest.raises(ResultTimeout):
                await (await client.ajob(job_id)).aresult(timeout=0)
            await stage.until(events.JobCompleted)
            polled.append((await client.ajob(job_id)).job().state)
            result: str = await (await client.ajob(job_id)).aresult(timeout=1)
            return result

    assert stage.play(main) == "3 pages"
    assert polled == [State.PENDING, State.PROCESSING, State.COMPLETED]
    [completed] = stage.all(events.JobCompleted)
    assert str(completed.job_id) == job_id


# Tasks that nobody knows


def unknown_to_all(stage: Stage, after: timedelta | float | None) -> Stage:
    """The stage with an app that has this patience and one task that nobody asks for."""
    stage.app = Shigoto(engine=stage.engine, unknown_after=after)
    stage.app.bus.subscribe(stage._hear)

    @stage.app.task
    async def known() -> None: ...

    return stage


def test_a_job_of_a_type_that_nobody_knows_fails_if_the_app_says_so(stage: Stage) -> None:
    """S0-56: it is not retried, says why, and can be driven again when somebody knows it."""
    stage = unknown_to_all(stage, timedelta(minutes=10))
    handle = stage.app.enqueue_by_name("no_such_type", {}, allow_unknown=True)
    later = stage.app.enqueue_by_name("no_such_type", {}, allow_unknown=True, delay=HOUR)

    async def main() -> None:
        async with stage.working(), asyncio.timeout(HOUR):
            await stage.until(events.TasksUnknown)

    stage.play(main)

    [event] = stage.all(events.TasksUnknown)
    assert event.tasks == ("no_such_type",)
    [told_at] = stage.times(events.TasksUnknown)
    assert 600_000 <= told_at <= 610_000
    job = handle.job()
    assert (job.state, job.failure_kind, job.attempt) == (State.FAILED, FailureKind.UNKNOWN_TASK, 0)
    assert job.finished_at is not None
    assert job.error
    assert later.status() is State.PENDING, "it is not due yet"
    assert stage.all(events.JobRetried) == []
    handle.retry()
    assert handle.status() is State.PENDING


def test_a_worker_that_seldom_sweeps_fails_it_too(stage: Stage) -> None:
    """S0-56: it sweeps some six times per lease, and that it was away in between is not what a pause means."""
    stage = unknown_to_all(stage, timedelta(minutes=10))
    stage.app.enqueue_by_name("no_such_type", {}, allow_unknown=True)

    async def main() -> None:
        async with stage.working(lease=HOUR, poll=HOUR), asyncio.timeout(HOUR):
            await stage.until(events.TasksUnknown)

    stage.play(main)


def test_without_that_it_waits_for_somebody_who_does(stage: Stage) -> None:
    stage = unknown_to_all(stage, None)
    handle = stage.app.enqueue_by_name("no_such_type", {}, allow_unknown=True)

    async def main() -> None:
        async with stage.working(lease=HOUR, poll=HOUR):
            await asyncio.sleep(24 * HOUR)

    stage.play(main)

    assert handle.status() is State.PENDING
    assert stage.all(events.TasksUnknown) == []


def test_a_job_that_some_other_worker_knows_is_left_to_it(stage: Stage) -> None:
    """However long it waits: that worker may be busy."""
    stage = unknown_to_all(stage, 60)
    other = Shigoto(engine=stage.engine)

    @other.task
    async def elsewhere() -> None: ...

    handle = elsewhere.using(queue="quiet").enqueue()

    async def main() -> None:
        from shigoto.worker import Worker

        async with stage.working(), Worker(other, queues=["other"], beats="loop", name="2"):
            await asyncio.sleep(HOUR)

    stage.play(main)

    assert handle.status() is State.PENDING


@pytest.mark.parametrize(
    "patience", [0, -1, timedelta(seconds=-1), float("nan"), float("inf"), "1h", True, 1e12]
)
def test_a_patience_that_cannot_be_meant_is_refused(patience: object) -> None:
    with pytest.raises(OptionInvalid, match="unknown_after"):
        Shigoto("memory:", unknown_after=patience)  # type: ignore[arg-type]
