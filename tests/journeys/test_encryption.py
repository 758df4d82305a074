"""Encrypted jobs on their whole way, on every store: nothing of them is to be read there, and everything works."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import json

from shigoto import Encryption, EncryptionKeyMissing, Job, JobFailed, OptionInvalid, Shigoto, State
from shigoto.engine.open import open_engine
from shigoto.model.job import JobFilter, KeyMode
from shigoto.model.secrets import is_encrypted
from shigoto.rotation import Rotation
from shigoto.worker import Worker
from tests.journeys.encrypted import CANARY, DURABLE, NEW, OLD, STORES, Shop, connect, dumped, opened

KEYS = Encryption({"old": OLD})
BOTH = Encryption({"old": OLD, "new": NEW}, current="new")
ONLY_NEW = Encryption({"new": NEW})


@pytest.fixture(params=STORES)
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    with opened(request.param, request, KEYS) as shop:
        yield shop


@pytest.fixture(params=DURABLE)
def durable(request: pytest.FixtureRequest) -> Iterator[Shop]:
    with opened(request.param, request, KEYS) as shop:
        yield shop


def stored(shop: Shop) -> list[Job]:
    return shop.app.find(state="all", limit=1_000)


def test_s0_67_a_dump_of_the_database_shows_nothing_of_an_encrypted_job(
    durable: Shop, tmp_path: Path
) -> None:
    """S0-67, S23: arguments, results, checkpoints, progress, errors, tracebacks, lines; the file, its log, all rows."""
    good, bad = durable.talk.enqueue(CANARY), durable.talk.enqueue(CANARY, fail=True)
    durable.app.schedules.add("later", durable.talk.call(CANARY), every="1h")
    durable.talk.using(delay=3_600).enqueue(CANARY)
    durable.drain()

    # What a thief sees while somebody has the store open, before anything is tidied up.
    seen = dumped(durable, tmp_path)

    assert CANARY not in seen
    assert seen.count("$shigoto") > 12
    assert good.result() == {"said": CANARY}
    with pytest.raises(JobFailed, match=f"ValueError: no {CANARY}"):
        bad.result()


def test_a_dump_of_a_plain_job_does_show_it(durable: Shop, tmp_path: Path) -> None:
    """The look that finds nothing above finds what is there."""
    durable.talk.using(encrypt=False).enqueue(CANARY)

    assert CANARY in dumped(durable, tmp_path)


def test_a_run_has_its_arguments_and_what_it_says_is_encrypted(shop: Shop) -> None:
    job = shop.talk.enqueue(CANARY)

    shop.drain()

    now = job.job()
    assert now.state is State.COMPLETED
    assert all(is_encrypted(text) for text in (now.payload, now.result, now.progress_text))
    assert [is_encrypted(line.text) for line in job.logs()] == [True, True]
    assert job.result() == {"said": CANARY}
    assert shop.app.job(job.id).result() == {"said": CANARY}


def test_a_failure_is_told_by_its_type_and_in_full_to_who_has_the_key(shop: Shop) -> None:
    job = shop.talk.enqueue(CANARY, fail=True)

    shop.drain()

    [attempt] = job.attempts()
    assert is_encrypted(attempt.error)
    assert is_encrypted(attempt.traceback)
    assert json.decode(attempt.error or "")["t"] == "ValueError"
    with pytest.raises(JobFailed, match=f"ValueError: no {CANARY}"):
        job.result()
    with pytest.raises(JobFailed, match=r"ValueError \(encrypted\)"):
        shop.with_keys(None).app.job(job.id).result()


def test_a_checkpoint_is_read_by_the_next_run(shop: Shop) -> None:
    job = shop.resume.using(retries=1).enqueue(CANARY)

    shop.drain()
    shop.app.job(job.id).job()
    deadline = time.monotonic() + 30
    while job.status() is not State.COMPLETED and time.monotonic() < deadline:
        if job.status() is State.FAILED:
            job.retry()
        shop.drain()
        time.sleep(0.05)

    assert job.result() == {"at": CANARY}


def test_the_result_of_a_transaction_is_encrypted(durable: Shop) -> None:
    job = durable.finish.enqueue(CANARY)

    durable.drain()

    assert is_encrypted(job.job().result)
    assert job.result() == CANARY


def test_a_rerun_and_a_retry_have_the_same_arguments(shop: Shop) -> None:
    """Also by somebody who has no key: the arguments go on as they are."""
    job = shop.talk.enqueue(CANARY)
    failed = shop.talk.enqueue(CANARY, fail=True)
    shop.drain()

    again = shop.with_keys(None).app.job(job.id).rerun()
    failed.retry()
    shop.drain()

    assert again.id != job.id
    assert shop.app.job(again.id).result() == {"said": CANARY}
    assert failed.status() is State.FAILED
    assert len(failed.attempts()) == 2


@pytest.mark.parametrize("mode", ["replace", "preserve_run_at"])
def test_arguments_that_take_the_place_of_others_are_read(shop: Shop, mode: KeyMode) -> None:
    """The job keeps its id, and has the arguments that were encrypted for another."""
    first = shop.talk.using(key="k").enqueue("first")
    second = shop.talk.using(key="k", key_mode=mode).enqueue(CANARY)
    assert (second.id, second.enqueued) == (first.id, "replaced")

    shop.drain()

    assert first.result() == {"said": CANARY}


def test_a_schedule_makes_encrypted_jobs_also_where_nobody_has_the_key(shop: Shop) -> None:
    shop.app.schedules.add("hourly", shop.talk.call(CANARY), every="1h")
    keyless = shop.with_keys(None)

    made = keyless.app.schedules.run_now("hourly")

    assert shop.app.schedules.get("hourly").payload == '"encrypted"'
    shop.drain()
    assert shop.app.job(made).result() == {"said": CANARY}


def test_children_of_a_fan_out_are_encrypted_for_their_tenants(shop: Shop) -> None:
    from shigoto.context import Context as Run
    from shigoto.context import Signals
    from shigoto.model.ids import uuid7
    from shigoto.model.job import Lease

    lease = Lease(
        number=1, token=1, id=uuid7(), task="all", queue="default", payload="{}", attempt=1, failures=0, snoozes=0,
        max_failures=1, priority=0, run_at=0, claimed_at=0,
    )  # fmt: skip
    Run(lease, Signals()).fan_out(["acme", "umbrella"], shop.talk.call)

    shop.drain()

    assert {shop.app.job(job.id).result()["said"] for job in stored(shop)} == {"acme", "umbrella"}


def test_a_joined_transaction_has_encrypted_jobs(durable: Shop) -> None:
    with closing(connect(durable)) as connection:
        connection.execute("BEGIN")
        job = durable.talk.using(connection=connection).enqueue(CANARY)
        connection.execute("COMMIT")

    durable.drain()

    assert is_encrypted(job.job().payload)
    assert job.result() == {"said": CANARY}


class TestWithoutTheKey:
    """Whoever has no key harms no job."""

    @pytest.mark.parametrize(
        "keys", [None, ONLY_NEW, Encryption({"old": NEW})], ids=["none", "other", "wrong"]
    )
    def test_a_worker_gives_the_job_back_and_says_what_is_missing(
        self, shop: Shop, keys: Encryption | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        job = shop.talk.enqueue(CANARY)

        shop.with_keys(keys).drain()

        now = job.job()
        assert (now.state, now.failures, now.releases) == (State.PENDING, 0, 1)
        assert (now.run_at - now.created_at).total_seconds() > 50
        [attempt] = job.attempts()
        assert attempt.outcome == "released"
        assert "key" in (attempt.error or "")
        assert any("is given back" in record.message for record in caplog.records)
        assert CANARY not in caplog.text

    def test_the_job_runs_as_soon_as_somebody_has_it(self, shop: Shop) -> None:
        job = shop.talk.enqueue(CANARY)
        shop.with_keys(None).drain()
        shop.app.job(job.id).cancel()
        shop.app.job(job.id).retry()

        shop.drain()

        assert job.result() == {"said": CANARY}

    def test_who_waits_for_a_result_is_told(self, shop: Shop) -> None:
        job = shop.talk.enqueue(CANARY)
        shop.drain()

        with pytest.raises(EncryptionKeyMissing, match="has no key at all"):
            shop.with_keys(None).app.job(job.id).result()


def test_x15_arguments_that_are_encrypted_cannot_be_looked_for(shop: Shop) -> None:
    """X15: which wins is said, and nothing is left out in silence."""
    shop.talk.enqueue(CANARY)
    plain = shop.login.enqueue("token-1234")

    with pytest.raises(OptionInvalid, match="of this app are encrypted"):
        shop.app.find(args={"word": CANARY})
    with pytest.raises(OptionInvalid, match="of the task 'talk' are encrypted"):
        shop.app.count(f"task:talk args.word:{CANARY}")
    with pytest.raises(OptionInvalid):
        shop.app.clear(state="completed", args={"word": CANARY})
    assert [job.id for job in shop.app.find(task="login", args={"token": "token-1234"})] == [plain.id]


def test_a_rotation_leaves_nothing_to_the_old_key(shop: Shop) -> None:
    jobs = [shop.talk.enqueue(f"{CANARY} {number}", fail=number % 2 == 1) for number in range(7)]
    shop.drain()
    jobs += [shop.talk.using(delay=3_600).enqueue(CANARY)]
    shop.app.schedules.add("hourly", shop.talk.call(CANARY), every="1h")
    told = list[int]()

    rotated = Rotation(shop.app.engine, BOTH, page=3, tell=lambda each: told.append(each.at)).run()

    assert rotated.changed > 40
    assert (rotated.schedules, rotated.unreadable) == (1, {})
    once = told[:3]
    assert once == sorted(once)
    assert told == once * 2  # the second time there was nothing left to do
    later = shop.with_keys(ONLY_NEW)
    assert later.app.job(jobs[0].id).result() == {"said": f"{CANARY} 0"}
    with pytest.raises(JobFailed, match=f"no {CANARY} 1"):
        later.app.job(jobs[1].id).result()
    made = later.app.schedules.run_now("hourly")
    later.drain()
    assert later.app.job(made).result() == {"said": CANARY}
    assert Rotation(shop.app.engine, BOTH).run().changed == 0


def test_a_rotation_tells_what_it_could_not_read(shop: Shop) -> None:
    shop.talk.enqueue(CANARY)

    rotated = Rotation(shop.app.engine, ONLY_NEW).run()

    assert (rotated.changed, rotated.unreadable) == (0, {"old": 1})


@pytest.mark.timeout(180)
def test_a_rotation_under_load_harms_no_job(durable: Shop) -> None:
    """Two producers and a worker go on while everything is encrypted anew, twice; nothing fails, nothing is lost."""
    rolled = durable.with_keys(BOTH)
    handles = [durable.talk.using(retries=2).enqueue(f"before {number}") for number in range(150)]
    stop, errors = threading.Event(), list[BaseException]()

    def produce(shop: Shop, name: str) -> None:
        try:
            number = 0
            while not stop.is_set():
                mode = {"key": f"{name} {number % 7}", "key_mode": "replace"} if number % 3 == 0 else {}
                handles.append(shop.talk.using(retries=2, **mode).enqueue(f"{name} {number}"))  # type: ignore[arg-type]
                number += 1
        except BaseException as error:
            errors.append(error)

    def rotate() -> None:
        engine = open_engine(durable.app.engine.address)
        try:
            for _ in range(2):
                Rotation(engine, BOTH, page=20).run()
        except BaseException as error:
            errors.append(error)
        finally:
            engine.close()
            stop.set()

    threads = [
        threading.Thread(target=produce, args=(durable, "old key")),
        threading.Thread(target=produce, args=(rolled, "new key")),
        threading.Thread(target=rotate),
    ]

    async def work() -> None:
        async with Worker(rolled.app, any_role=True):
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
        await Worker(rolled.app, drain=True, any_role=True).run()

    asyncio.run(work())

    assert errors == []
    jobs = _all(rolled.app)
    assert len(jobs) > 150
    assert {job.state for job in jobs} == {State.COMPLETED}
    assert [job.number for job in jobs if job.failures] == []
    Rotation(rolled.app.engine, BOTH).run()
    later = durable.with_keys(ONLY_NEW)
    said = {later.app.job(handle.id).result()["said"] for handle in handles[:150]}
    assert said == {f"before {number}" for number in range(150)}
    assert all('"k":"old"' not in f"{job.payload}{job.result}{job.progress_text}" for job in _all(later.app))


def _all(app: Shigoto) -> list[Job]:
    jobs: list[Job] = []
    while page := app.engine.run(
        app.engine.find(JobFilter(limit=500, before=jobs[-1].number if jobs else None))
    ):
        jobs += page
    return jobs
