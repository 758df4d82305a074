"""Jobs that kill their process: each harms nobody but itself, and after a few tries it is put away."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from shigoto import FailureKind, State
from shigoto.observe import events
from shigoto.worker import Stopped, process_pool
from shigoto.worker import child_process as childprocess
from shigoto.worker.process import launch
from tests.fundamentals.nursery import Nursery, alive, make, own_children, until, until_gone

CODE = """
def die(how):
    match how:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "null":
            ctypes.string_at(0)
        case "group":
            os.killpg(0, signal.SIGKILL)
        case "abort":
            os.abort()


@app.task(executor="process", max_crashes=2)
def dies(ctx: Context, how: str) -> None:
    for line in range(30):
        ctx.log(f"line {line}")
    die(how)


@app.task(max_crashes=2)
async def suspect(ctx: Context) -> int:
    if ctx.meta.get("dies"):
        die("null")
    return os.getpid()


@app.task(executor="process")
def bystander() -> str:
    note("bystander", os.getpid())
    while not (FOLDER / "go").exists():
        time.sleep(0.005)
    return "unharmed"


@app.task
async def on_loop() -> str:
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.005)
    return "unharmed"


@app.task
def in_thread() -> str:
    while not (FOLDER / "go").exists():
        time.sleep(0.005)
    return "unharmed"


@app.task(executor="process", max_crashes=1)
def leaves_others_behind() -> None:
    if not (pid := os.fork()):
        time.sleep(60)
        os._exit(0)
    note("left", pid)
    os._exit(1)


@app.task(executor="process", max_crashes=1)
def closes_everything() -> None:
    os.closerange(3, 256)
    time.sleep(60)


@app.task(executor="process", max_crashes=1)
def talks_nonsense() -> None:
    for fd in range(3, 256):
        try:
            os.write(fd, b"nonsense" * 100)
        except OSError:
            pass
    time.sleep(60)


@app.task(executor="process", timeout=60)
def waits() -> None:
    note("waits", os.getpid())
    re.match("(a+)+$", "a" * 64 + "b")
"""


@pytest.fixture
def kids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    nursery = make(tmp_path, monkeypatch, CODE)
    yield nursery
    nursery.close()


@pytest.mark.parametrize(
    ("how", "text", "stack"),
    [
        ("exit", "ended with exit code 3", None),
        ("kill", "killed by SIGKILL. The system does that when memory runs out", None),
        ("group", "killed by SIGKILL", None),
        ("null", "killed by SIGSEGV", "Fatal Python error: Segmentation fault"),
        ("abort", "killed by SIGABRT", "Fatal Python error: Aborted"),
    ],
)
def test_a_job_that_kills_its_process_is_put_away_after_so_many_crashes_and_nobody_else_is(
    kids: Nursery, how: str, text: str, stack: str | None
) -> None:
    """S1-26: a crash is no failure; `max_crashes` decides. I13: bystanders are never punished."""
    poison = kids.dies.enqueue(how)

    async def main() -> None:
        bystanders = [await task.aenqueue() for task in (kids.bystander, kids.on_loop, kids.in_thread)]
        async with kids.working():
            await kids.noted("bystander")
            await kids.until(events.JobCrashed)
            assert poison.job().state is State.PENDING
            kids.module.ahead += 10_000
            await kids.until(events.JobFailedEvent)
            (kids.folder / "go").touch()
            await kids.until(events.JobCompleted, 3)
        for handle in bystanders:
            job = handle.job()
            assert (job.state, job.crashes, job.attempt) == (State.COMPLETED, 0, 1)

    kids.play(main)

    job = poison.job()
    assert (job.state, job.failure_kind, job.crashes, job.failures) == (
        State.FAILED,
        FailureKind.CRASH_LOOP,
        2,
        0,
    )
    assert [event.kind for event in kids.all(events.JobFailedEvent)] == [FailureKind.CRASH_LOOP]
    for attempt in kids.attempts(poison):
        assert text in (attempt.error or "")
        trace = attempt.traceback or ""
        assert (stack or "last log lines") in trace
        assert trace.endswith("last log lines:\n" + "\n".join(f"info: line {line}" for line in range(10, 30)))
        assert len((attempt.error or "").encode()) + len(trace.encode()) <= 16 * 1024
        if how == "null":
            assert "in string_at" in trace
            assert "in die" in trace
            assert "shigoto/worker" not in trace
    assert len(kids.attempts(poison)) == 2
    assert own_children() == set()


@pytest.mark.parametrize("dies", [False, True])
def test_a_suspect_runs_alone_in_a_child_and_a_clean_run_clears_it(kids: Nursery, *, dies: bool) -> None:
    """Semantics §7: what may have killed a crowd runs alone next, whatever it was written for."""
    handle = kids.suspect.using(meta={"dies": dies}).enqueue()
    crash(kids, handle.job().number)
    assert handle.job().suspect

    async def main() -> None:
        async with kids.working():
            if dies:
                await kids.until(events.JobCrashed)
                kids.module.ahead += 10_000
                await kids.until(events.JobFailedEvent)
            else:
                await kids.until(events.JobCompleted)

    kids.play(main)
    job = handle.job()
    if dies:
        assert (job.failure_kind, job.crashes) == (FailureKind.CRASH_LOOP, 3)
    else:
        assert (job.state, job.suspect, job.crashes) == (State.COMPLETED, False, 1)
        assert handle.result() != os.getpid()


def crash(kids: Nursery, number: int) -> None:
    """What becomes of a job whose worker process was killed with it inside."""
    from shigoto.model.ids import uuid7
    from shigoto.model.worker import Announcement, Death, Want

    engine, id = kids.app.engine, uuid7()
    tasks = tuple(kids.app.tasks)
    engine.run(engine.announce(Announcement(id=id, name="0", tasks=tasks, queues=None, slots=1, version="0")))
    assert engine.run(engine.claim(id, [Want(tasks=tasks, queues=None, limit=1)]))
    engine.run(engine.report_dead(id, [Death(number=number, error="killed")]))


def test_what_a_crashed_handler_has_started_is_killed_with_it(kids: Nursery) -> None:
    """Even if it holds the socket of its parent open."""
    handle = kids.leaves_others_behind.enqueue()

    async def main() -> None:
        async with kids.working():
            pid = int(await kids.noted("left"))
            await kids.until(events.JobFailedEvent)
            await until_gone(pid)

    kids.play(main)
    assert "exit code 1" in (handle.job().error or "")


@pytest.mark.parametrize("task", ["closes_everything", "talks_nonsense"])
def test_a_child_that_can_no_longer_be_understood_is_killed(kids: Nursery, task: str) -> None:
    handle = getattr(kids, task).enqueue()

    async def main() -> None:
        async with kids.working():
            await kids.until(events.JobFailedEvent)

    kids.play(main)
    assert handle.job().failure_kind is FailureKind.CRASH_LOOP
    assert own_children() == set()


def test_children_die_within_a_second_when_their_worker_is_killed(kids: Nursery, tmp_path: Path) -> None:
    """C15; even one that is inside native code, which lets no other thread run."""
    kids.waits.enqueue()
    script = dedent(f"""
        import asyncio, sys
        sys.path.insert(0, {str(tmp_path)!r})
        from {kids.module.__name__} import app
        from shigoto.worker import Worker
        asyncio.run(Worker(app, children=2).run())
    """)
    with subprocess.Popen([sys.executable, "-c", script]) as worker:

        async def main() -> None:
            pid = int(await kids.noted("waits"))
            worker.kill()
            async with asyncio.timeout(1):
                await until_gone(pid)

        try:
            kids.play(main)
        finally:
            worker.kill()


def test_a_signal_for_all_processes_of_a_service_leaves_the_child_to_its_worker(kids: Nursery) -> None:
    """A service manager tells everybody; how long a job may still take is for the worker to say."""

    async def main() -> None:
        handle = await kids.bystander.aenqueue()
        async with kids.working():
            pid = int(await kids.noted("bystander"))
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                os.kill(pid, number)
            (kids.folder / "go").touch()
            await kids.until(events.JobCompleted)
            assert await handle.aresult() == "unharmed"
            assert alive(pid)

    kids.play(main)


UNFIT = """
if os.getppid() != {parent} and not (FOLDER / "fit").exists():
    {error}


@app.task(executor="process")
def work() -> str:
    return "done"
"""


def test_a_child_that_cannot_begin_says_why_once_and_costs_the_job_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "FIRST_REST", 0.05)
    kids = make(tmp_path, monkeypatch, UNFIT.format(parent=os.getppid(), error=ERRORS[0][0]))
    handle = kids.work.enqueue()

    async def main() -> None:
        async with kids.working():
            await kids.until(events.ChildFailed)
            await until(lambda: handle.job().releases >= 2)
            assert len(kids.all(events.ChildFailed)) == 1
            (kids.folder / "fit").touch()
            await kids.until(events.JobCompleted)

    kids.play(main)
    [failed] = kids.all(events.ChildFailed)
    assert "RuntimeError: not in a child" in failed.error
    job = handle.job()
    assert (job.state, job.failures, job.crashes, job.attempt) == (State.COMPLETED, 0, 0, 1)
    kids.close()


ERRORS = [
    ('raise RuntimeError("not in a child")', "RuntimeError: not in a child"),
    ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    ('sys.exit("no licence for a child")', "ended the program (sys.exit('no licence for a child')"),
    (
        'app.lifespan(lambda app: (_ for _ in ()).throw(ValueError("no resources")))',
        "lifespan failed at the start: ValueError: no resources",
    ),
    ("Shigoto.engine = property(lambda app: 1 / 0)", "ZeroDivisionError: division by zero"),
]


@pytest.mark.parametrize(("error", "told"), ERRORS)
def test_whatever_keeps_a_child_from_beginning_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, told: str
) -> None:
    kids = make(tmp_path, monkeypatch, UNFIT.format(parent=os.getppid(), error=error))
    kids.work.enqueue()

    async def main() -> None:
        async with kids.working():
            await kids.until(events.ChildFailed)

    kids.play(main)
    assert told in kids.all(events.ChildFailed)[0].error
    kids.close()


def test_a_child_that_cannot_even_be_started_is_tried_again_later(
    kids: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_processes(*_: object, **__: object) -> "subprocess.Popen[bytes]":
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(childprocess, "launch", out_of_processes)
    handle = kids.suspect.enqueue()
    crash(kids, handle.job().number)

    async def main() -> Stopped:
        worker = kids.worker()
        run = asyncio.create_task(worker.run())
        await kids.until(events.ChildFailed)
        monkeypatch.setattr(childprocess, "launch", launch)
        await kids.until(events.JobCompleted)
        worker.stop()
        stopped: Stopped = await run
        return stopped

    assert kids.play(main) == Stopped(reason="stopped")
    assert "Resource temporarily unavailable" in kids.all(events.ChildFailed)[0].error
