"""`shigoto worker` as a family of processes: who works, who vouches for whom, who takes over the jobs of the dead."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import State
from tests.journeys.yard import SHOP, Yard, ended_within, eventually, is_alive, runners_of

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the runner processes in /proc"),
]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.end()


def runner_of(yard: Yard, process: "subprocess.Popen[bytes]") -> int:
    """The one runner process, once it is at work."""
    eventually(lambda: len(runners_of(process)) == 1, yard.log)
    [pid] = runners_of(process)
    return pid


# The family


def test_as_many_runner_processes_work_as_asked_for(yard: Yard) -> None:
    """S0-57: each is a worker of its own, with a name that tells them apart."""
    process = yard.start("--processes", "3", "--name", "shop")
    yard.until_at_work(3)

    assert [name for name, _ in yard.workers()] == ["shop-1", "shop-2", "shop-3"]
    assert sorted(pid for _, pid in yard.workers()) == sorted(runners_of(process))
    handles = [yard.enqueue("wait", file=str(number)) for number in range(6)]
    for number in range(6):
        yard.touch(str(number))
    yard.until_done(*handles)
    process.send_signal(signal.SIGTERM)
    assert ended_within(process, 3) == 0
    assert yard.workers() == []


@pytest.mark.parametrize(("count", "expected"), [(None, 3), ("2", 2)])
def test_without_an_app_three_workers_run_or_as_many_as_the_environment_says(
    yard: Yard, count: str | None, expected: int
) -> None:
    """S0-23, S0-52."""
    if count is not None:
        yard.environment["WORKER_COUNT"] = count

    yard.start("shop.db", app=None)

    yard.until_at_work(expected)


def test_the_supervisor_never_imports_the_app(yard: Yard) -> None:
    (yard.folder / "shop.py").write_text(SHOP + "\nnote('imported')\n")
    process = yard.start("--processes", "2")
    yard.until_at_work(2)

    importers = {int(line.split()[0]) for line in yard.notes("imported")}

    assert importers >= set(runners_of(process)), "and perhaps a child of one, already"
    assert process.pid not in importers


def test_the_supervisor_is_small(yard: Yard) -> None:
    process = yard.start()
    yard.until_at_work(1)

    status = Path(f"/proc/{process.pid}/status").read_text()

    [kilobytes] = re.findall(r"VmRSS:\s+(\d+) kB", status)
    assert int(kilobytes) < 60_000


# Death


def test_r4_a_killed_runner_is_replaced_and_only_what_ran_in_it_is_suspected(yard: Yard) -> None:
    """R4, S1-19: a runner with one job running and others in its buffers is killed. Those others run at once in
    the next one, and nothing is counted against them."""
    first = yard.enqueue("block_loop")
    others = [yard.enqueue("count", number=number) for number in range(1, 10)]
    process = yard.start()
    yard.until_it_began()
    assert all(handle.status() is State.PROCESSING for handle in others), "they were claimed together"
    runner = runner_of(yard, process)

    os.kill(runner, signal.SIGKILL)
    killed_at = time.monotonic()

    eventually(lambda: first.status() is State.PENDING, yard.log, within=3)
    assert time.monotonic() - killed_at < 1
    yard.until_done(*others, within=5)
    assert {int(line.split()[0]) for line in yard.notes("ran")} == {pid for _, pid in yard.workers()}
    assert [(job.crashes, job.failures, job.attempt) for job in (handle.job() for handle in others)] == [
        (0, 0, 1)
    ] * 9
    assert (first.job().crashes, first.job().failures) == (1, 0)
    [attempt] = first.attempts()
    assert f"The runner process {runner} was killed by SIGKILL with 1 job inside." in (attempt.error or "")


def test_jobs_of_a_killed_runner_are_free_within_a_second_and_run_again_alone(yard: Yard) -> None:
    """S1-19: several were running, so each of them is suspected, and runs in a process of its own."""
    process = yard.start("--processes", "2", "--children", "6")
    yard.until_at_work(2)
    handles = [yard.enqueue("wait", file="go") for _ in range(6)]
    yard.until_it_began(6)
    runners = [int(line.split()[0]) for line in yard.notes("began")]
    victim = max(runners, key=runners.count)
    hit = runners.count(victim)

    os.kill(victim, signal.SIGKILL)

    crashes = [0] * (6 - hit) + [1] * hit
    eventually(lambda: sorted(handle.job().crashes for handle in handles) == crashes, yard.log, within=1)
    yard.until_it_began(6 + hit)
    yard.touch("go")
    yard.until_done(*handles)
    assert all(handle.job().failures == 0 for handle in handles)
    assert process.poll() is None


def test_a_crash_leaves_its_signal_and_its_stack_with_the_job(yard: Yard) -> None:
    handle = yard.enqueue("crash")
    yard.start()
    yard.until_it_began()

    eventually(lambda: len(handle.attempts()) == 1, yard.log)

    [attempt] = handle.attempts()
    assert "was killed by SIGSEGV with 1 job inside" in (attempt.error or "")
    assert "Segmentation fault" in (attempt.traceback or "")
    assert "shop.py" in (attempt.traceback or "")
    assert handle.status() is State.PENDING
    assert handle.job().run_at > handle.job().created_at, "it waits before it runs again"


def test_a_death_is_told_to_a_store_that_could_not_listen_at_first(yard: Yard) -> None:
    handle = yard.enqueue("wait", file="go")
    process = yard.start()
    yard.until_it_began()
    holder = sqlite3.connect(yard.folder / "shop.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    os.kill(runner_of(yard, process), signal.SIGKILL)
    yard.until_logged("Tasks:", times=2)
    assert handle.status() is State.PROCESSING
    holder.execute("ROLLBACK")
    holder.close()

    eventually(lambda: handle.status() is State.PENDING, yard.log, within=5)
    assert handle.job().crashes == 1


def test_nobody_outlives_a_killed_supervisor(yard: Yard) -> None:
    """C15: children of runners neither."""
    process = yard.start("--processes", "2")
    yard.until_at_work(2)
    handles = [yard.enqueue("apart", file="never")]
    yard.until_it_began()
    handles.append(yard.enqueue("hold_the_interpreter", seconds=30))
    yard.until_it_began(2)
    family = family_of(process.pid)
    assert len(family) >= 4

    process.kill()
    process.wait()

    eventually(lambda: not any(map(is_alive, family)), within=1)
    assert [handle.status() for handle in handles] == [State.PROCESSING] * 2


def family_of(pid: int) -> set[int]:
    """A process and all that descend from it."""
    found, new = {pid}, {pid}
    while new:
        new = {
            int(child)
            for parent in new
            for task in Path(f"/proc/{parent}/task").glob("*")
            for child in (task / "children").read_text().split()
        } - found
        found |= new
    return found


# Who vouches for whom


@pytest.mark.parametrize("task", ["hold_the_interpreter", "block_loop"])
def test_r8_a_handler_that_stops_everything_in_its_process_for_three_leases_keeps_its_job(
    yard: Yard, task: str
) -> None:
    """R8: inside one long call of native code, or asleep on the event loop, with another worker waiting for it."""
    yard.start("--lease", "1", log="first")
    yard.until_at_work(1)
    handle = yard.enqueue(task, seconds=3.0)
    yard.until_it_began()
    yard.start("--lease", "1", log="second")

    yard.until_done(handle, within=60)

    assert [line.split()[1] for line in yard.notes()] == ["began", "ended"]
    job = handle.job()  # a slow machine may have given it back before it began, which counts as nothing
    assert (job.attempt, job.crashes, job.failures) == (1, 0, 0)
    assert "fenced" not in yard.log("first") + yard.log("second")


def test_a_whole_worker_that_wakes_up_after_its_lease_is_refused_and_its_handler_is_told(yard: Yard) -> None:
    """I3, S1-19: SIGSTOP of supervisor and runner for longer than the lease, with another worker at hand."""
    paused = yard.start("--lease", "1.5", log="paused")
    yard.until_at_work(1)
    handle = yard.enqueue("wait", file="go")
    yard.until_it_began()
    runner = runner_of(yard, paused)
    yard.pause(paused.pid, runner)
    yard.start("--lease", "1.5", log="other")
    yard.until_it_began(2)
    yard.touch("go")
    yard.until_done(handle)
    result = handle.result()

    for pid in (paused.pid, runner):
        os.kill(pid, signal.SIGCONT)

    eventually(lambda: not is_alive(runner), lambda: yard.log("paused"), within=10)
    assert handle.result() == result != str(runner)
    assert handle.job().crashes == 1
    eventually(lambda: runners_of(paused) not in ([], [runner]), lambda: yard.log("paused"))
    assert paused.poll() is None


def test_a_supervisor_that_slept_with_its_runner_lets_it_wake_up_a_moment_later(yard: Yard) -> None:
    """E04, S1-4: stopped together for longer than the lease, as by Ctrl-Z, and continued one after the other."""
    process = yard.start("--lease", "6", "--ready-file", "ready")
    eventually((yard.folder / "ready").exists, yard.log)  # the supervisor vouches for it
    handle = yard.enqueue("wait", file="go")
    yard.until_it_began()
    runner = runner_of(yard, process)
    yard.pause(process.pid, runner)
    time.sleep(6.1)  # longer than the lease

    os.kill(process.pid, signal.SIGCONT)
    yard.until_logged("is stopped by a signal")
    os.kill(runner, signal.SIGCONT)

    yard.touch("go")
    yard.until_done(handle)
    assert handle.result() == str(runner), yard.log()
    job = handle.job()
    assert (job.attempt, job.crashes, job.failures, job.releases) == (1, 0, 0, 0)


def test_a_runner_that_is_stopped_by_a_signal_for_longer_than_its_lease_is_replaced(yard: Yard) -> None:
    paused = yard.start("--lease", "1.5", log="paused")
    yard.until_at_work(1)
    handle = yard.enqueue("wait", file="go")
    yard.until_it_began()
    runner = runner_of(yard, paused)
    yard.pause(runner)
    yard.start("--lease", "1.5", log="other")

    yard.until_it_began(2)

    yard.until_logged("is stopped by a signal", log="paused")
    eventually(lambda: not is_alive(runner), lambda: yard.log("paused"), within=10)
    yard.touch("go")
    yard.until_done(handle)
    assert handle.result() != str(runner)
    assert handle.job().attempt + handle.job().releases == 2
    yard.until_at_work(2)
    assert runner_of(yard, paused) != runner
    yard.until_logged("is replaced: it was stopped by a signal for nearly as long as its lease", log="paused")


def test_a_runner_that_is_continued_before_its_lease_is_over_goes_on(yard: Yard) -> None:
    process = yard.start("--lease", "6")
    yard.until_at_work(1)
    handle = yard.enqueue("wait", file="go")
    yard.until_it_began()
    runner = runner_of(yard, process)
    yard.pause(runner)
    yard.until_logged("is stopped by a signal")

    os.kill(runner, signal.SIGCONT)
    yard.touch("go")

    yard.until_done(handle)
    assert handle.result() == str(runner)
    assert runners_of(process) == [runner]


# The start


@pytest.mark.parametrize("processes", ["1", "3"])
def test_an_app_that_cannot_be_loaded_is_told_once_and_ends_everything(yard: Yard, processes: str) -> None:
    process = yard.start("--processes", processes, app="absent:app")

    assert ended_within(process, 10) == 1
    assert re.fullmatch(r"Error \[WORKER.DECLARATION\]: .*No module named 'absent'.*\n", yard.log())


def test_an_app_that_exits_while_it_is_loaded_is_told_too(yard: Yard) -> None:
    (yard.folder / "shop.py").write_text("raise SystemExit('no configuration')")

    process = yard.start()

    assert ended_within(process, 10) == 1
    assert "no configuration" in yard.log()


def test_a_runner_that_dies_at_the_start_is_started_again_ever_more_slowly(yard: Yard) -> None:
    (yard.folder / "shop.py").write_text(
        SHOP + "\nnote('imported')\nif not Path('fixed').exists(): os._exit(3)\n"
    )
    process = yard.start()

    eventually(lambda: len(re.findall("exit code 3 ", yard.log())) >= 2, yard.log)
    pauses = re.findall(r"ended with exit code 3 .*retry_in=([0-9.]+)", yard.log())
    assert [float(pause) for pause in pauses] == [0.5, 1.0]
    yard.touch("fixed")
    yard.until_at_work(1)
    assert process.poll() is None


def test_a_runner_that_has_worked_and_cannot_be_loaded_any_more_is_tried_again(yard: Yard) -> None:
    """A file that is being deployed, perhaps."""
    process = yard.start()
    yard.until_logged("started worker=")
    (yard.folder / "shop.py").write_text("this is no Python")

    os.kill(runner_of(yard, process), signal.SIGKILL)
    yard.until_logged("could not begin")
    (yard.folder / "shop.py").write_text(SHOP)

    handle = yard.enqueue("count", number=1)
    yard.until_done(handle)


def test_the_ready_file_is_there_while_all_runners_are_ready(yard: Yard) -> None:
    ready = yard.folder / "ready"
    ready.write_text("left behind")
    (yard.folder / "shop.py").write_text("import time\ntime.sleep(1)\n" + SHOP)

    process = yard.start("--processes", "2", "--ready-file", "ready")
    eventually(lambda: not ready.exists())
    eventually(ready.exists, yard.log)
    assert len(yard.workers()) == 2
    handle = yard.enqueue("wait", file="go")
    yard.until_it_began()
    process.send_signal(signal.SIGTERM)

    eventually(lambda: not ready.exists(), within=1)
    assert process.poll() is None
    yard.touch("go")
    assert ended_within(process, 5) == 0
    assert handle.status() is State.COMPLETED


@pytest.mark.parametrize("stdin", ["a file", "nothing"])
def test_standard_input_that_has_no_end_to_wait_for_is_refused(yard: Yard, stdin: str) -> None:
    with Path(yard.folder / "shop.py" if stdin == "a file" else os.devnull).open("rb") as file:
        process = yard.start("--stop-on-eof", stdin=file.fileno())

    assert ended_within(process, 5) == 2
    assert "--stop-on-eof needs a pipe, a socket or a terminal" in yard.log()
    assert "Traceback" not in yard.log()


# Child processes


def test_r9_a_killed_child_process_is_noticed_within_a_second(yard: Yard) -> None:
    """R9, C5: it dies of a signal from outside, and the job's record says so; its runner lives on."""
    handle = yard.enqueue("apart", file="never")
    process = yard.start()
    yard.until_it_began()
    runner = runner_of(yard, process)
    [child] = [int(line.split()[0]) for line in yard.notes("began")]
    assert child != runner

    os.kill(child, signal.SIGKILL)

    eventually(lambda: len(handle.attempts()) == 1, yard.log, within=1)
    [attempt] = handle.attempts()
    assert "SIGKILL" in (attempt.error or "")
    assert (handle.status(), handle.job().crashes) == (State.PENDING, 1)
    assert runners_of(process) == [runner]
