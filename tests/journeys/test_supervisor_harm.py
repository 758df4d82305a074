"""What handlers and the surroundings do to a worker's processes without killing them outright: none of it may hold up
the supervisor, go uncounted, or outlive it."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from shigoto import FailureKind, State
from tests.journeys.yard import SHIGOTO, SHOP, Yard, ended_within, eventually, is_alive, runners_of

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the runner processes in /proc"),
]

HARM = """
import subprocess

def sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                yield int(name)
        except OSError:
            pass

async def leave():
    sys.exit(1)

@app.task
async def stop_the_loop() -> None:
    note("began")
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)

@app.task
async def leak_an_exit() -> None:
    note("began")
    app.leak = asyncio.create_task(leave())
    await asyncio.sleep(60)

@app.task
def with_helpers() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    note(f"helper {shell.pid}")
    note(f"helper {int(shell.stdout.readline())}")
    daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
    note(f"daemon {daemon.pid}")
    note("began")
    shell.wait()

@app.task
def garble() -> None:
    note("began")
    for fd in sockets():
        try:
            os.write(fd, b"\\xff" * 64)
        except OSError:
            pass
    block()

@app.task
def close_the_line() -> None:
    note("began")
    for fd in sockets():
        os.close(fd)
    block()

@app.task(executor="process", exclusive=True)
def by_itself() -> None:
    note("began")
    block()
"""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path, SHOP + HARM)
    yield yard
    yard.end()
    for line in yard.notes("daemon"):
        with suppress(ProcessLookupError):
            os.kill(int(line.split()[2]), signal.SIGKILL)


# The log


def test_a_log_that_nobody_reads_holds_up_neither_the_supervisor_nor_a_stop(yard: Yard) -> None:
    """The pipe is full when the runner dies, and stays full."""
    log, end = os.pipe()
    process = subprocess.Popen(
        [*SHIGOTO, "--app", "shop", "worker", "--stop-timeout", "3"],
        cwd=yard.folder,
        env=yard.environment,
        stdin=subprocess.DEVNULL,
        stderr=end,
        start_new_session=True,
    )
    try:
        yard.until_at_work(1)
        fill(end)
        [runner] = runners_of(process)
        os.kill(runner, signal.SIGKILL)

        eventually(lambda: runners_of(process) not in ([], [runner]), within=5)
        process.send_signal(signal.SIGTERM)

        assert ended_within(process, 3) == 0
        assert yard.workers() == []
    finally:
        process.kill()
        process.wait()
        os.close(log)
        os.close(end)


def fill(pipe: int) -> None:
    """Until nothing goes in any more. Whoever else writes there shall still block, so it is opened once more."""
    fd = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    for size in (fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ), 1):
        with suppress(BlockingIOError):
            while True:
                os.write(fd, b"x" * size)
    os.close(fd)


def test_a_supervisor_that_is_stuck_ends_at_the_limit_of_a_stop_all_the_same(yard: Yard) -> None:
    """S0-21: here it waits for ever to write a ready file that somebody has replaced by a pipe."""
    process = yard.start("--stop-timeout", "1", "--ready-file", "ready")
    eventually(lambda: bool(runners_of(process)))
    os.mkfifo(yard.folder / "ready")
    yard.until_at_work(1)
    yard.until_logged("Worker .* started")
    family = runners_of(process)
    time.sleep(0.5)

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 1.3) == 1
    eventually(lambda: not any(map(is_alive, family)), within=5)


def test_requests_without_number_end_a_worker_no_worse_than_three(yard: Yard) -> None:
    """Also those that come when everything is done already."""
    handle = yard.enqueue("in_thread")
    process = yard.start()
    yard.until_it_began()

    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        # Some hundreds of them: without a pause the signals alone would keep a small machine busy.
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.005)

    assert process.returncode == 0
    assert (handle.job().state, handle.job().crashes) == (State.PENDING, 0)


def test_a_stop_without_any_time_gives_everything_back(yard: Yard) -> None:
    handles = [yard.enqueue("in_thread"), yard.enqueue("stubborn"), yard.enqueue("apart", file="never")]
    process = yard.start("--stop-timeout", "0")
    yard.until_it_began(3)

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 1) == 0
    assert [(handle.job().state, handle.job().crashes) for handle in handles] == [(State.PENDING, 0)] * 3
    assert yard.workers() == []


# What handlers do to the event loop


@pytest.mark.timeout(120)
@pytest.mark.parametrize("task", ["stop_the_loop", "leak_an_exit"])
def test_a_handler_that_ends_the_event_loop_has_crashed_and_is_quarantined(yard: Yard, task: str) -> None:
    """S1-26: first together with others, which are suspected too; then alone in a process of its own."""
    other = yard.enqueue("wait", file="go")
    process = yard.start()
    yard.until_it_began()

    handle = yard.app.enqueue_by_name(task, {}, allow_unknown=True, max_crashes=1)

    eventually(lambda: handle.job().crashes >= 1, yard.log)
    yard.touch("go")
    yard.until_done(other)
    eventually(lambda: handle.status().terminal, yard.log, within=40)
    job = handle.job()
    assert (job.state, job.failure_kind) == (State.FAILED, FailureKind.CRASH_LOOP)
    assert {attempt.outcome for attempt in handle.attempts()} == {"crashed"}
    assert "The event loop was ended" in yard.log()
    yard.until_done(yard.enqueue("count", number=1))
    assert process.poll() is None


# What handlers have started


def test_what_a_handler_has_started_ends_with_a_killed_runner_before_its_job_is_free(yard: Yard) -> None:
    """R10: in a thread it is in the supervisor's own process group. Who has left that is none of ours."""
    handle = yard.enqueue("with_helpers")
    process = yard.start()
    yard.until_it_began()
    helpers, [daemon] = pids(yard, "helper"), pids(yard, "daemon")
    assert all(map(is_alive, [*helpers, daemon]))

    os.kill(runners_of(process)[0], signal.SIGKILL)

    eventually(lambda: handle.status() is State.PENDING, yard.log, within=5)
    assert not any(map(is_alive, helpers))
    assert is_alive(daemon)
    assert process.poll() is None


def test_what_a_handler_has_started_does_not_outlive_a_stop(yard: Yard) -> None:
    yard.enqueue("with_helpers")
    process = yard.start("--stop-timeout", "2")
    yard.until_it_began()
    helpers, [daemon] = pids(yard, "helper"), pids(yard, "daemon")

    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 2) == 0
    assert not any(map(is_alive, helpers))
    assert is_alive(daemon)


def test_processes_that_were_there_before_the_worker_are_left_alone(yard: Yard) -> None:
    """A shell may start something, and then become the worker."""
    words = " ".join([*SHIGOTO, "--app", "shop", "worker"])
    with (yard.folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", f"sleep 600 & echo $!; exec {words}"],
            cwd=yard.folder,
            env=yard.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdout is not None
    before = int(process.stdout.readline())
    try:
        yard.until_at_work(1)
        [runner] = [pid for _, pid in yard.workers()]
        os.kill(runner, signal.SIGKILL)
        eventually(lambda: [pid for _, pid in yard.workers()] not in ([], [runner]), yard.log)
        process.send_signal(signal.SIGTERM)

        assert ended_within(process, 2) == 0
        assert is_alive(before)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.kill(before, signal.SIGKILL)


def pids(yard: Yard, word: str) -> list[int]:
    return [int(line.split()[2]) for line in yard.notes(word)]


# The line


@pytest.mark.parametrize("task", ["garble", "close_the_line"])
def test_a_runner_whose_line_is_broken_has_died(yard: Yard, task: str) -> None:
    """S1-26: whoever ran in it has crashed, and it is replaced."""
    handle = yard.enqueue(task)
    process = yard.start()
    yard.until_it_began()
    runner = int(yard.notes("began")[0].split()[0])  # another may have taken its place by now

    eventually(lambda: handle.job().crashes == 1, yard.log, within=10)
    assert not is_alive(runner)
    assert (handle.job().suspect, handle.job().releases) == (True, 0)
    yard.until_done(yard.enqueue("count", number=1))
    assert process.poll() is None


# A pause


def test_an_exclusive_job_does_not_outlive_the_lease_of_a_paused_runner(yard: Yard) -> None:
    """Nobody beats for it, so another may get the job; the process that still runs it must be dead by then."""
    handle = yard.enqueue("by_itself")
    first = yard.start("--lease", "3", "--processes", "1")
    yard.until_it_began()
    [runner] = runners_of(first)
    [child] = [int(line.split()[0]) for line in yard.notes("began")]

    yard.pause(runner)

    eventually(lambda: not is_alive(runner) and not is_alive(child), yard.log, within=10)
    yard.until_it_began(2)
    assert (handle.job().crashes, handle.job().releases) == (0, 1)


# The app


@pytest.mark.parametrize(
    "text",
    ["raise KeyboardInterrupt", "import os; os._exit(0)", "import os; os.kill(os.getpid(), 11)"],
)
def test_an_app_that_ends_every_first_runner_ends_the_worker(yard: Yard, text: str) -> None:
    """Three times in a row before anything has worked; whoever made this mistake waits for an answer."""
    (yard.folder / "shop.py").write_text(text)

    process = yard.start()

    assert process.wait(20) == 1
    assert "Error [WORKER.NO_START]: " in yard.log()
    assert yard.log().count("with 0 jobs running") <= 3


def test_a_runner_that_dies_during_a_stop_is_not_said_to_wait_for_anything(yard: Yard) -> None:
    yard.enqueue("wait", file="never")
    process = yard.start()
    yard.until_it_began()
    [runner] = runners_of(process)
    process.send_signal(signal.SIGTERM)
    yard.until_logged("received stop signal")

    os.kill(runner, signal.SIGKILL)

    assert ended_within(process, 5) == 0
    assert f"Runner process {runner} was killed by SIGKILL" in yard.log()
    assert "until something changes" not in yard.log()
