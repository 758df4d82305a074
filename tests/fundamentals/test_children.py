"""Jobs in child processes: what runs there, and what it can do there."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import FailureKind, State
from shigoto.observe import events
from shigoto.observe.log import configure_logging
from shigoto.worker import Stopped
from tests.fundamentals.nursery import Nursery, make, own_children, until, until_gone

CODE = """
log = logging.getLogger("kids")


@app.lifespan
async def resources(app):
    await asyncio.sleep(0)
    yield f"opened by {os.getpid()}"
    note(f"closed-{os.getpid()}")


@app.task(executor="process")
def plain(ctx: Context, number: int) -> list[int]:
    return [os.getpid(), number, ctx.attempt, ctx.number]


@app.task(executor="process")
async def on_loop(ctx: Context, number: int) -> list[int]:
    await asyncio.sleep(0.001)
    return [os.getpid(), number, ctx.attempt, ctx.number]


@app.task(executor="process")
def uses_a_loop() -> str:
    async def inner() -> str:
        return "inner"

    return asyncio.run(inner())


@app.task(executor="process")
def state(ctx: Context) -> list[str]:
    return [ctx.state, f"opened by {os.getpid()}"]


@app.task(executor="process")
def talks(ctx: Context) -> None:
    ctx.progress(0.25, "a quarter")
    ctx.log("by context")
    log.warning("by logging")
    note("talked")
    while not (FOLDER / "enough").exists():
        time.sleep(0.005)
    ctx.progress(0.75, "three quarters")


@app.task(executor="process")
def speaks() -> None:
    log.warning("a word from the child")


@app.task(executor="process")
def resumes(ctx: Context) -> int:
    if ctx.resume_from is None:
        ctx.checkpoint(41)
        raise RetryLater(0)
    return ctx.resume_from + 1


@app.task(executor="process")
def enqueues(ctx: Context) -> None:
    plain.enqueue(7)


@app.task(executor="process", retry=Retry.immediate(retries=1))
def fails(how: str) -> None:
    match how:
        case "error":
            raise ValueError("as asked")
        case "exit":
            sys.exit(3)
        case "memory":
            raise MemoryError
        case "fail":
            raise Fail("enough")
        case "result":
            return object()


@app.task(executor="process")
def pays(ctx: Context, how: str) -> str:
    with ctx.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS paid (number INTEGER)")
        tx.execute("INSERT INTO paid VALUES (?)", (ctx.number,))
        tx.finish("paid")
    if how == "crash":
        os._exit(9)
    if how == "raise":
        raise ValueError("too late")
    return how


@app.task
def in_thread() -> int:
    return os.getpid()


@app.task(timeout=30)
def limited() -> int:
    return os.getpid()


@app.task(executor="process")
def forks() -> str:
    pid = os.fork()
    if pid == 0:
        log.warning("from a process that nobody listens to")
        return "the child of a child"
    os.waitpid(pid, 0)
    return "the child"
"""


@pytest.fixture
def kids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    nursery = make(tmp_path, monkeypatch, CODE)
    yield nursery
    nursery.close()


def test_sync_and_async_functions_run_in_child_processes_which_are_kept(kids: Nursery) -> None:
    handles = [task.enqueue(number) for number in range(10) for task in (kids.plain, kids.on_loop)]

    assert kids.drain() == Stopped(reason="drained")

    results = [handle.result() for handle in handles]
    assert [result[1] for result in results] == [number for number in range(10) for _ in range(2)]
    assert [result[2:] for result in results] == [[1, number] for number in range(1, 21)]
    pids = {result[0] for result in results}
    assert os.getpid() not in pids
    assert len(pids) <= 2
    assert len(kids.all(events.JobStarted)) == len(kids.all(events.JobCompleted)) == 20
    assert own_children() == set()


def test_a_sync_function_may_run_an_event_loop_of_its_own_there(kids: Nursery) -> None:
    handle = kids.uses_a_loop.enqueue()
    kids.drain()
    assert handle.result() == "inner"


def test_each_child_enters_the_lifespan_and_leaves_it_when_it_is_seen_off(kids: Nursery) -> None:
    handle = kids.state.enqueue()
    kids.drain(children=1)

    found, expected = handle.result()
    assert found == expected
    pid = expected.removeprefix("opened by ")
    assert (kids.folder / f"closed-{pid}").exists()
    assert (kids.folder / f"closed-{os.getpid()}").exists()


def test_progress_and_log_lines_are_stored_while_the_job_runs_and_kept_afterwards(kids: Nursery) -> None:
    async def main() -> None:
        handle = await kids.talks.aenqueue()
        async with kids.working():
            await kids.noted("talked")
            await until(lambda: bool(kids.lines(handle)) and handle.job().progress is not None)
            assert handle.job().state is State.PROCESSING
            assert (handle.job().progress, handle.job().progress_text) == (0.25, "a quarter")
            assert kids.lines(handle) == ["by context", "by logging"]
            (kids.folder / "enough").touch()
            await kids.until(events.JobCompleted)
        job = handle.job()
        assert (job.progress, job.progress_text) == (0.75, "three quarters")
        assert kids.lines(handle) == ["by context", "by logging"]

    kids.play(main)


def test_a_checkpoint_of_an_earlier_run_is_there(kids: Nursery) -> None:
    handle = kids.resumes.enqueue()
    kids.drain()
    assert handle.result() == 42


def test_a_handler_in_a_child_may_enqueue(kids: Nursery) -> None:
    kids.enqueues.enqueue()
    kids.drain()
    assert [job.state for job in kids.jobs()] == [State.COMPLETED] * 2


@pytest.mark.parametrize(
    ("how", "kind", "failures", "text"),
    [
        ("error", FailureKind.ERROR, 2, "ValueError: as asked"),
        ("exit", FailureKind.ERROR, 2, "SystemExit: 3"),
        ("memory", FailureKind.ERROR, 2, "MemoryError"),
        ("fail", FailureKind.REJECTED, 1, "Fail: enough"),
        ("result", FailureKind.RESULT_INVALID, 1, "result"),
    ],
)
def test_what_a_handler_raises_there_means_what_it_means_elsewhere(
    kids: Nursery, how: str, kind: FailureKind, failures: int, text: str
) -> None:
    handle = kids.fails.enqueue(how)
    kids.drain()

    job = handle.job()
    assert (job.state, job.failure_kind, job.failures, job.crashes) == (State.FAILED, kind, failures, 0)
    assert text in (job.error or "")
    trace = kids.attempts(handle)[-1].traceback or ""
    assert "shigoto/worker" not in trace


@pytest.mark.parametrize("how", ["paid", "crash", "raise"])
def test_a_job_that_its_transaction_has_completed_is_completed_whatever_happens_next(
    kids: Nursery, how: str
) -> None:
    handle = kids.pays.enqueue(how)
    kids.drain()

    job = handle.job()
    assert (job.state, job.crashes, job.failures, handle.result()) == (State.COMPLETED, 0, 0, "paid")
    assert len(kids.all(events.JobCompleted)) == 1
    assert not kids.all(events.JobCrashed)
    with kids.app.connect() as connection:
        assert connection.execute("SELECT number FROM paid").fetchall() == [(1,)]
    connection.close()


def test_a_sync_task_with_a_time_limit_needs_a_child_and_one_without_does_not(kids: Nursery) -> None:
    handles = [kids.in_thread.enqueue(), kids.limited.enqueue(), kids.in_thread.using(timeout=30).enqueue()]
    kids.drain()

    here, limited, given = (handle.result() for handle in handles)
    assert here == os.getpid()
    assert os.getpid() not in (limited, given)


def test_a_process_that_a_handler_forks_does_not_speak_for_its_job(kids: Nursery) -> None:
    handle = kids.forks.enqueue()
    kids.drain()
    assert handle.result() == "the child"
    assert kids.lines(handle) == []


def test_a_child_writes_its_log_as_its_worker_does(kids: Nursery, capfd: pytest.CaptureFixture[str]) -> None:
    configure_logging(format="json")
    kids.speaks.enqueue()
    kids.drain()

    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    [spoken] = [line for line in lines if line["message"] == "a word from the child"]
    assert (spoken["level"], spoken["logger"], spoken["task"], spoken["number"]) == (
        "warning",
        "kids",
        "speaks",
        1,
    )


def test_a_child_that_dies_idle_is_replaced(kids: Nursery) -> None:
    async def main() -> None:
        async with kids.working(children=1):
            first = await kids.plain.aenqueue(1)
            await kids.until(events.JobCompleted)
            [pid] = own_children()
            os.kill(pid, 9)
            await until_gone(pid)
            second = await kids.plain.aenqueue(2)
            await kids.until(events.JobCompleted, 2)
            assert first.result()[0] == pid != second.result()[0]
        assert not kids.all(events.ChildFailed)
        assert not kids.all(events.JobCrashed)

    kids.play(main)
