"""Looking at jobs and managing them: handles, results, finding, counting, redriving, pausing."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from shigoto import (
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    JobNotRetryable,
    KeyTaken,
    OptionInvalid,
    ResultInvalid,
    ResultPruned,
    ResultTimeout,
    Shigoto,
    State,
)
from shigoto.bulk import PAGE
from shigoto.handle import _warn_of_waiting
from shigoto.model.job import FailureKind, JobFilter, LogLine, QueueSettings
from shigoto.model.worker import Ending, LogTail, Settlement, Want
from tests.unit.shop import Shop, numbers, opened_shop

DAY = 86_400_000


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture(params=["memory", "sqlite"])
def any_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """On either engine: what is said must not depend on it."""
    with opened_shop(str(request.param), tmp_path) as shop:
        yield shop


async def test_a_handle_tells_the_state_of_its_job_as_it_is_now(shop: Shop) -> None:
    """S1-3, S1-25"""
    handle = shop.price.enqueue("tea")
    assert handle.status() is State.PENDING

    lease = shop.claim()
    assert (lease.id, await handle.astatus()) == (handle.id, State.PROCESSING)
    assert (await handle.ajob()) == handle.job()


async def test_a_result_arrives_in_the_type_of_the_return_annotation(shop: Shop) -> None:
    handle = shop.price.enqueue("tea")
    identity = uuid4()
    shop.settle(Ending.COMPLETED, result=f'["tea","{identity}"]')

    assert handle.result() == ("tea", identity)
    assert await handle.aresult(timeout=timedelta(seconds=1)) == ("tea", identity)
    assert shop.app.job(handle.id).result() == ("tea", identity)


def test_a_result_of_a_task_that_is_not_known_here_is_plain_json(shop: Shop) -> None:
    handle = shop.price.enqueue("tea")
    shop.settle(Ending.COMPLETED, result='["tea",null]')

    assert Shigoto(engine=shop.engine).job(handle.id).result() == ["tea", None]


def test_a_result_that_does_not_fit_the_annotation_is_an_error_of_its_own(shop: Shop) -> None:
    handle = shop.price.enqueue("tea")
    shop.settle(Ending.COMPLETED, result='{"no":"tuple"}')

    with pytest.raises(ResultInvalid):
        handle.result()


def test_a_job_without_a_stored_result_returned_none(shop: Shop) -> None:
    handle = shop.price.enqueue("tea")
    shop.settle(Ending.COMPLETED)

    assert handle.result() is None


def fail(shop: Shop) -> None:
    shop.settle(Ending.FAILED, error="ValueError: no such item")


def cancel(shop: Shop) -> None:
    shop.settle(Ending.CANCELLED)


def expire(shop: Shop) -> None:
    shop.clock.now += 61_000
    shop.sweep()


def prune(shop: Shop) -> None:
    shop.settle(Ending.COMPLETED)
    shop.clock.now += 8 * DAY
    shop.sweep()


@pytest.mark.parametrize(
    ("end", "error", "text"),
    [
        (fail, JobFailed, r"Job #1 \(price, .*\) failed \(error\): ValueError: no such item"),
        (cancel, JobCancelled, r"Job #1 \(price, .*\) was cancelled"),
        (expire, JobExpired, r"Job #1 \(price, .*\) expired before a worker could start it"),
        (prune, ResultPruned, "is not in the store"),
    ],
)
async def test_a_job_without_a_result_raises_an_error_that_says_why(
    shop: Shop, end: Callable[[Shop], None], error: type[Exception], text: str
) -> None:
    handle = shop.price.using(expires=60).enqueue("tea")

    end(shop)

    with pytest.raises(error, match=text):
        handle.result()
    with pytest.raises(error, match=text):
        await handle.aresult()


async def test_waiting_ends_when_the_caller_has_waited_long_enough(shop: Shop) -> None:
    handle = shop.price.enqueue("tea")

    for timeout, told in ((0, "0 s"), (0.005, "0.005 s"), (timedelta(milliseconds=5), "0.005 s")):
        with pytest.raises(ResultTimeout, match=f"not ended within {told}; it goes on by itself"):
            handle.result(timeout=timeout)
        with pytest.raises(ResultTimeout):
            await handle.aresult(timeout=timeout)
    assert issubclass(ResultTimeout, TimeoutError)


def test_a_result_is_waited_for(shop: Shop) -> None:
    handle = shop.price.enqueue("tea")
    worker = threading.Timer(0.02, shop.settle, [Ending.COMPLETED], {"result": '["tea",null]'})
    worker.start()

    assert handle.result(timeout=10) == ("tea", None)
    worker.join()


async def test_a_result_is_waited_for_without_blocking_the_loop(shop: Shop) -> None:
    handle = shop.price.enqueue("tea")
    waiting = asyncio.create_task(handle.aresult(timeout=10))
    await asyncio.sleep(0)

    shop.settle(Ending.COMPLETED, result='["tea",null]')

    assert await waiting == ("tea", None)


def test_looks_are_frequent_at_first_and_rare_later(shop: Shop) -> None:
    looks = shop.price.enqueue("tea")._looks(None)

    assert [next(looks) for _ in range(9)] == [0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.25, 0.25]


async def test_cancelling_takes_a_pending_job_at_once_and_asks_a_running_one(shop: Shop) -> None:
    """S1-3"""
    first, second = shop.price.enqueue("tea"), shop.price.enqueue("milk")
    lease = shop.claim()

    assert lease.id == first.id
    assert first.cancel() is State.PROCESSING
    assert first.job().cancel_requested_at is not None
    assert await second.acancel() is State.CANCELLED


async def test_a_failed_job_is_made_ready_again(shop: Shop) -> None:
    """S1-3"""
    handle = shop.price.enqueue("tea")
    fail(shop)

    handle.retry()
    assert (handle.status(), handle.job().failures) == (State.PENDING, 0)
    fail(shop)
    await handle.aretry()
    assert handle.status() is State.PENDING
    with pytest.raises(JobNotRetryable):
        handle.retry()


async def test_cancelling_by_force_takes_a_running_job_from_its_worker(any_shop: Shop) -> None:
    shop = any_shop
    first, second = shop.price.enqueue("tea"), shop.price.enqueue("milk")
    leases = [shop.claim(), shop.claim()]

    assert first.cancel(force=True) is State.CANCELLED
    assert await second.acancel(force=True) is State.CANCELLED

    ends = [
        Settlement(number=lease.number, token=lease.token, queue=lease.queue, ending=Ending.COMPLETED)
        for lease in leases
    ]
    assert shop.engine.run(shop.engine.settle(shop.worker, ends)) == ["lost", "lost"]
    assert (first.status(), second.status()) == (State.CANCELLED, State.CANCELLED)


async def test_a_handle_tells_of_the_runs_that_did_not_complete(any_shop: Shop) -> None:
    handle = any_shop.price.enqueue("tea")
    assert handle.attempts() == []

    any_shop.settle(Ending.ERRORED, error="ValueError: sold out", traceback="Traceback …", delay=0)
    any_shop.settle(Ending.COMPLETED)

    [attempt] = handle.attempts()
    assert (attempt.token, attempt.outcome, attempt.error) == (1, "errored", "ValueError: sold out")
    assert attempt.traceback == "Traceback …"
    assert await handle.aattempts() == [attempt]


async def test_a_handle_tells_what_the_runs_have_written(any_shop: Shop) -> None:
    handle = any_shop.price.enqueue("tea")
    lines = (
        LogLine(1, any_shop.clock.now, "INFO", "weighing"),
        LogLine(2, any_shop.clock.now, "WARNING", "wet"),
    )

    any_shop.settle(Ending.COMPLETED, log=LogTail(1, lines))

    assert [(line.token, line.line, line.level, line.text) for line in handle.logs()] == [
        (1, 1, "INFO", "weighing"),
        (1, 2, "WARNING", "wet"),
    ]
    assert await handle.alogs() == handle.logs()


async def test_a_refusal_to_retry_is_the_same_on_every_engine(any_shop: Shop) -> None:
    """A completed job is rerun, not retried."""
    handle = any_shop.price.enqueue("tea")
    name = rf"Job #1 \(price, {handle.id}\)"

    with pytest.raises(JobNotRetryable, match=f"^{name} is pending; only failed and cancelled jobs can be"):
        handle.retry()
    any_shop.settle(Ending.COMPLETED)

    text = f"^{name} is completed; only failed and cancelled jobs can be retried. Use rerun, which makes a new job"
    with pytest.raises(JobNotRetryable, match=text):
        handle.retry()
    with pytest.raises(JobNotRetryable, match=text):
        await handle.aretry()


def test_a_retry_is_refused_when_another_job_has_the_key(any_shop: Shop) -> None:
    handle = any_shop.price.using(key="k").enqueue("tea")
    any_shop.settle(Ending.FAILED)
    other = any_shop.price.using(key="k").enqueue("milk")

    with pytest.raises(KeyTaken) as refused:
        handle.retry()

    assert str(refused.value) == (
        f"Job #1 (price, {handle.id}) cannot be retried: Job #2 (price, {other.id}), which is pending, holds its"
        " unique key 'k' now. Wait until that one has ended, or cancel it."
    )
    assert handle.status() is State.FAILED


async def test_a_rerun_is_a_new_job_like_the_old_one_without_its_key(any_shop: Shop) -> None:
    shop = any_shop
    options: dict[str, Any] = {"queue": "fast", "priority": 7, "tenant": "acme", "tags": ["a", "b"]}
    options |= {"meta": {"order": 5}, "retries": 2, "max_crashes": 9, "expires": 3_600, "key": "k"}
    handle = shop.price.using(**options).enqueue("tea")
    shop.settle(Ending.COMPLETED, result='["tea",null]')
    shop.clock.now += 5_000

    again = handle.rerun()
    twin = await handle.arerun()

    old, new = handle.job(), again.job()
    assert (again.number, twin.number, again.enqueued) == (2, 3, "inserted")
    for field in ("task", "queue", "payload", "priority", "tenant", "tags", "meta", "retry", "alone"):
        assert getattr(new, field) == getattr(old, field)
    for field in ("max_failures", "max_crashes", "timeout", "soft_timeout"):
        assert getattr(new, field) == getattr(old, field)
    assert (new.key, new.expires_at, new.state) == (None, None, State.PENDING)
    assert new.run_at == new.created_at > old.created_at
    shop.settle(Ending.COMPLETED, result='["milk",null]')
    assert again.result() == ("milk", None)


@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.FAILED, Ending.CANCELLED])
def test_every_job_that_has_ended_can_be_rerun(shop: Shop, ending: Ending) -> None:
    handle = shop.price.enqueue("tea")
    shop.settle(ending)

    assert handle.rerun().status() is State.PENDING


def test_a_job_that_waits_or_runs_is_not_rerun(any_shop: Shop) -> None:
    handle = any_shop.price.enqueue("tea")

    with pytest.raises(JobNotRetryable, match=r"is pending; only jobs that have ended can be rerun\. Wait"):
        handle.rerun()
    any_shop.claim()
    with pytest.raises(JobNotRetryable, match="is processing; only jobs that have ended can be rerun"):
        handle.rerun()
    assert len(any_shop.app.find()) == 1


async def test_a_job_that_is_not_there_is_an_error_with_its_id(shop: Shop) -> None:
    missing = uuid4()
    handle = shop.price.using(id=missing, expires=1).enqueue("tea")
    shop.app.clear(state="pending")

    actions: list[Callable[[], object]] = [handle.job, handle.status, handle.attempts, handle.logs]
    actions += [handle.cancel, handle.retry, handle.rerun, lambda: shop.app.job(missing)]
    for action in actions:
        with pytest.raises(JobNotFound, match=str(missing)):
            action()
    with pytest.raises(JobNotFound):
        await shop.app.ajob(missing)
    with pytest.raises(JobNotFound):
        await handle.alogs()


async def test_waiting_for_a_result_on_an_event_loop_is_warned_of_once(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    handle = shop.price.enqueue("tea")
    shop.settle(Ending.COMPLETED)
    _warn_of_waiting.cache_clear()

    with caplog.at_level(logging.WARNING, "shigoto"):
        await asyncio.to_thread(handle.result)
        await handle.aresult()
        assert caplog.messages == []
        handle.result()
        handle.result()

    [line] = caplog.messages
    assert line.startswith("result() was called on an event loop and blocks it until the job has ended")


async def test_a_handle_is_found_by_the_id_alone(shop: Shop) -> None:
    """S1-25"""
    handle = shop.price.enqueue("tea")

    found, twin = shop.app.job(handle.id), await shop.app.ajob(handle.id)

    assert found.number == twin.number == handle.number
    assert (found.enqueued, found.status()) == ("existing", State.PENDING)
    assert repr(found) == f"<JobHandle #1 {handle.id} existing>"


async def test_the_id_of_a_job_may_be_its_text(shop: Shop) -> None:
    handle = shop.price.enqueue("tea")

    assert shop.app.job(str(handle.id)).id == handle.id
    assert (await shop.app.ajob(str(handle.id))).id == handle.id
    for wrong in ("1", "", 1, None):
        given: Any = wrong
        with pytest.raises(OptionInvalid, match="The id of a job is a UUID or its text, not"):
            shop.app.job(given)


@pytest.mark.parametrize("timeout", ["1", True, float("nan"), [1]])
async def test_a_time_to_wait_that_is_none_is_refused(shop: Shop, timeout: Any) -> None:
    handle = shop.price.enqueue("tea")

    with pytest.raises(OptionInvalid, match="timeout must be a timedelta or a number of seconds, not"):
        handle.result(timeout)
    with pytest.raises(OptionInvalid, match="timeout must be a timedelta or a number of seconds, not"):
        await handle.aresult(timeout)


@pytest.mark.parametrize("timeout", [None, float("inf"), 10**400], ids=["None", "infinite", "huge"])
def test_one_can_wait_for_as_long_as_it_takes(shop: Shop, timeout: Any) -> None:
    handle = shop.price.enqueue("tea")
    shop.settle(Ending.COMPLETED, result='["tea",null]')

    assert handle.result(timeout) == ("tea", None)


async def test_jobs_are_found_newest_first_by_any_mix_of_filters(shop: Shop) -> None:
    """S0-41"""
    price, app = shop.price, shop.app
    price.using(queue="a", tags=["x"], key="k").enqueue("tea")
    price.using(queue="a", tenant="t").enqueue("milk")
    price.using(queue="b", tags=["x", "y"], delay=60).enqueue("rice")

    assert numbers(app.find()) == [3, 2, 1]
    assert numbers(app.find(queue="a")) == [2, 1]
    assert numbers(app.find(tag="x", queue="a")) == [1]
    assert numbers(app.find(tenant="t")) == [2]
    assert numbers(app.find(key="k")) == [1]
    assert numbers(app.find(task="price", limit=2)) == [3, 2]
    assert numbers(app.find(before=2)) == [1]
    assert numbers(await app.afind(state="scheduled")) == [3]


def test_states_have_the_names_of_other_systems_too(shop: Shop) -> None:
    """S0-6, S1-9"""
    app = shop.app
    for item in ("tea", "milk", "rice", "salt"):
        shop.price.enqueue(item)
    shop.settle(Ending.COMPLETED)
    shop.settle(Ending.ERRORED, delay=5_000)
    shop.claim()

    assert numbers(app.find(state="succeeded")) == numbers(app.find(state="completed")) == [1]
    assert numbers(app.find(state="retrying")) == [2]
    assert numbers(app.find(state="running")) == numbers(app.find(state=State.PROCESSING)) == [3]
    assert numbers(app.find(state="waiting")) == numbers(app.find(state="pending")) == [4, 2]


def test_jobs_are_found_by_why_they_failed(any_shop: Shop) -> None:
    for kind in (FailureKind.TIMEOUT, FailureKind.REJECTED):
        any_shop.price.enqueue("tea")
        any_shop.settle(Ending.FAILED, failure_kind=kind)
    any_shop.price.enqueue("milk")

    assert numbers(any_shop.app.find(failure_kind="timeout")) == [1]
    assert numbers(any_shop.app.find(failure_kind=FailureKind.REJECTED, state="failed")) == [2]
    assert numbers(any_shop.app.find(failure_kind="timeout", state="cancelled")) == []


def test_a_filter_that_cannot_be_meant_is_refused(shop: Shop) -> None:
    def refused(**filters: Any) -> str:
        with pytest.raises(OptionInvalid) as caught:
            shop.app.find(**filters)
        return str(caught.value)

    assert "There is no filter 'sate'. Did you mean 'state'?" in refused(sate="failed")
    assert "There is no state 'complete'. Did you mean 'completed'?" in refused(state="complete")
    for limit in (0, 1_001, "5", 1.5, True, None):
        assert "limit must be a whole number from 1 to 1000" in refused(limit=limit)
    for before in (2**70, -1, "5", 1.5, True):
        assert f"before must be the number of a job, not {before!r}" in refused(before=before)
    assert "A state is one of pending, processing" in refused(state=5)
    assert "There is no kind of failure 'timout'. Did you mean 'timeout'?" in refused(failure_kind="timout")
    assert "A kind of failure is one of error, timeout" in refused(failure_kind=5)
    for name in ("queue", "task", "tag", "key", "tenant"):
        assert f"{name} must be a string, not ['a']" in refused(**{name: ["a"]})
        assert f"{name} is not valid text" in refused(**{name: "\ud800"})


async def test_jobs_are_counted_by_queue_and_state(shop: Shop) -> None:
    """S0-40"""
    shop.price.enqueue("tea")
    shop.price.using(queue="b", delay=60).enqueue("milk")
    shop.settle(Ending.FAILED, failure_kind=FailureKind.REJECTED)

    counts = shop.app.stats()

    assert (counts["default"].failed, counts["default"].pending) == (1, 0)
    assert (counts["b"].pending, counts["b"].scheduled) == (1, 1)
    assert await shop.app.astats() == counts


async def test_an_app_tells_of_the_workers(any_shop: Shop) -> None:
    any_shop.price.enqueue("tea")
    any_shop.claim()

    [worker] = any_shop.app.workers()

    assert (worker.id, worker.name, worker.tasks, worker.processing) == (any_shop.worker, "w", ("price",), 1)
    assert await any_shop.app.aworkers() == [worker]


# Redrive


def failed(shop: Shop, *kinds: FailureKind, **options: Any) -> None:
    """A failed job for each kind."""
    for kind in kinds:
        shop.price.using(**options).enqueue("tea")
        shop.settle(Ending.FAILED, failure_kind=kind)


def taken(jobs: list[Any]) -> list[int]:
    return [handle.number for handle in jobs]


async def test_a_redrive_retries_what_has_failed(any_shop: Shop) -> None:
    """S0-72"""
    shop = any_shop
    failed(shop, FailureKind.ERROR, FailureKind.TIMEOUT)
    failed(shop, FailureKind.ERROR, queue="other")
    shop.price.enqueue("milk")
    shop.settle(Ending.COMPLETED)

    redriven = shop.app.redrive(queue="default")

    assert taken(redriven.retried) == [1, 2]
    assert [handle.status() for handle in redriven.retried] == [State.PENDING, State.PENDING]
    assert taken((await shop.app.aredrive()).retried) == [3]
    assert (await shop.app.aredrive()).retried == []


def test_a_dry_redrive_changes_nothing(any_shop: Shop) -> None:
    failed(any_shop, FailureKind.ERROR, FailureKind.CRASH_LOOP)

    redriven = any_shop.app.redrive(dry_run=True)

    assert (taken(redriven.retried), taken(redriven.quarantined)) == ([1], [2])
    assert numbers(any_shop.app.find(state="failed")) == [2, 1]


def test_quarantined_jobs_are_redriven_only_by_name(any_shop: Shop) -> None:
    failed(any_shop, FailureKind.ERROR, FailureKind.CRASH_LOOP)

    first = any_shop.app.redrive()
    assert (taken(first.retried), taken(first.quarantined)) == ([1], [2])

    second = any_shop.app.redrive(failure_kind="crash_loop")
    assert (taken(second.retried), second.quarantined) == ([2], [])


def test_cancelled_jobs_are_redriven_when_asked_for(any_shop: Shop) -> None:
    failed(any_shop, FailureKind.ERROR)
    any_shop.price.enqueue("tea").cancel()

    assert taken(any_shop.app.redrive(state="cancelled").retried) == [2]


def test_a_redrive_with_a_limit_takes_the_newest_in_their_old_order(any_shop: Shop) -> None:
    failed(any_shop, *[FailureKind.ERROR] * 5)

    assert taken(any_shop.app.redrive(limit=3).retried) == [3, 4, 5]
    assert any_shop.claim().number == 3


def test_a_redrive_goes_on_page_by_page(any_shop: Shop) -> None:
    count = 2 * PAGE + 10
    for _ in range(count):
        any_shop.price.enqueue("tea")
    for _ in range(count):
        any_shop.settle(Ending.FAILED)

    assert taken(any_shop.app.redrive().retried) == list(range(1, count + 1))


def test_a_job_whose_key_is_taken_is_told_and_holds_up_nobody(any_shop: Shop) -> None:
    shop = any_shop
    failed(shop, FailureKind.ERROR)
    failed(shop, FailureKind.ERROR, FailureKind.ERROR, key="k")
    failed(shop, FailureKind.ERROR)
    shop.price.using(key="k").enqueue("milk")

    redriven = shop.app.redrive()

    assert (taken(redriven.retried), taken(redriven.key_taken)) == ([1, 4], [2, 3])
    assert numbers(shop.app.find(state="failed")) == [3, 2]


def test_a_job_that_somebody_else_has_retried_meanwhile_is_told(any_shop: Shop) -> None:
    from shigoto.bulk import carry_out, choose_plan, retry_plan

    failed(any_shop, FailureKind.ERROR, FailureKind.ERROR, FailureKind.ERROR)
    chosen = carry_out(any_shop.engine, choose_plan(any_shop.engine, {}, decoder=lambda _: None))
    chosen.jobs[1].retry()
    seen: list[int] = []

    def watch(done: int) -> bool:
        seen.append(done)
        return True

    redriven = carry_out(any_shop.engine, retry_plan(any_shop.engine, chosen, after_batch=watch))

    assert (taken(redriven.retried), taken(redriven.gone), seen) == ([1, 3], [2], [3])


def test_a_redrive_that_cannot_be_meant_is_refused_before_it_starts(shop: Shop) -> None:
    failed(shop, FailureKind.ERROR)

    def refused(**filters: Any) -> str:
        with pytest.raises(OptionInvalid) as caught:
            shop.app.redrive(**filters)
        return str(caught.value)

    assert "Only failed and cancelled jobs can be redriven, not those that are completed." in refused(
        state="completed"
    )
    for limit in (0, -1, True, "5"):
        assert "limit must be a whole number from 1 on" in refused(limit=limit)
    assert "There is no filter 'tasks'" in refused(tasks="price")
    assert len(shop.engine.run(shop.engine.find(JobFilter(state=State.FAILED)))) == 1


def test_pausing_is_one_transaction_on_a_file_too(tmp_path: Path) -> None:
    app = Shigoto(f"sqlite:///{tmp_path}/jobs.db")
    settings = app.engine.settings
    app.engine.run(app.engine.configure(QueueSettings(name="mail", keep_failed_for=DAY)))

    app.pause("mail")
    assert app.engine.run(settings()) == [QueueSettings(name="mail", paused=True, keep_failed_for=DAY)]
    app.resume("mail")
    assert app.engine.run(settings()) == [QueueSettings(name="mail", keep_failed_for=DAY)]
    app.close()


async def test_a_paused_queue_gives_no_jobs_and_keeps_its_other_settings(shop: Shop) -> None:
    app, engine = shop.app, shop.engine
    engine.run(engine.configure(QueueSettings(name="default", keep_failed_for=DAY)))
    shop.price.enqueue("tea")
    want = Want(tasks=("price",), queues=None, limit=1)

    app.pause("default")
    assert engine.run(engine.claim(shop.worker, [want])) == []
    assert engine.run(engine.settings()) == [
        QueueSettings(name="default", paused=True, keep_failed_for=DAY),
    ]

    app.resume("default")
    assert shop.claim().number == 1

    await app.apause("new")
    assert QueueSettings(name="new", paused=True) in engine.run(engine.settings())
    await app.aresume("new")
    assert QueueSettings(name="new") in engine.run(engine.settings())


async def test_a_queue_that_cannot_be_one_cannot_be_paused(shop: Shop) -> None:
    for name in ("Bad Queue", "\ud800", ""):
        with pytest.raises(OptionInvalid, match=r"The queue .* must be kebab-case"):
            shop.app.pause(name)
        with pytest.raises(OptionInvalid, match=r"The queue .* must be kebab-case"):
            await shop.app.aresume(name)
    assert shop.engine.run(shop.engine.settings()) == []
