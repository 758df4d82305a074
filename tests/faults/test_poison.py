"""Jobs that kill their process are run alone, then put away; those around them complete."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from shigoto import FailureKind, State
from tests.faults.stage import FULL, all_jobs, app_of, linux, wait_until, working

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(300)]

MAX_CRASHES = 3 if FULL else 2
MIB = 1024 * 1024


def test_poison_is_quarantined_and_bystanders_never_are(tmp_path: Path) -> None:
    """S1-26: each kind of poison takes one crowd down, then only itself, and ends as failed(crash_loop) after
    `max_crashes` runs alone; its signal or exit code, its stack and its last lines are kept."""
    app = app_of("poison", tmp_path / "jobs.db")
    poisons = [
        "kills_itself",
        "follows_a_null_pointer",
        "exits",
        "exits_like_a_watchdog",
        "exits_like_an_orphan",
        "exits_in_a_process",
    ]
    innocents = [app.tasks["innocent"].call(milliseconds=20) for _ in range(400)]
    app.enqueue_many(innocents[:200])
    handles = {name: app.tasks[name].using(max_crashes=MAX_CRASHES).enqueue() for name in poisons}
    app.enqueue_many(innocents[200:])

    with working("poison", tmp_path / "jobs.db", tmp_path, "--processes", "2", "--log-level", "critical"):
        wait_until(
            lambda: all(handle.status().terminal for handle in handles.values()),
            seconds=200,
            what="not put away",
        )
        wait_until(lambda: app.stats()["default"].completed == 400, seconds=60, what="innocents wait")

    for name, handle in handles.items():
        job = handle.job()
        # Those that lay in the buffer of a runner that died were given back, which is no run.
        attempts = [attempt for attempt in handle.attempts() if attempt.outcome != "released"]
        alone = MAX_CRASHES if name == "exits_in_a_process" else MAX_CRASHES + 1
        assert job.failure_kind is FailureKind.CRASH_LOOP, name
        assert (job.failures, job.crashes, len(attempts)) == (0, alone, alone), name
        assert {attempt.outcome for attempt in attempts} == {"crashed"}
    last = {name: handle.attempts()[-1] for name, handle in handles.items()}
    assert "SIGKILL" in str(last["kills_itself"].error)
    assert "SIGSEGV" in str(last["follows_a_null_pointer"].error)
    assert "follows_a_null_pointer" in str(last["follows_a_null_pointer"].traceback), "the stack"
    assert "about to read address 0" in str(last["follows_a_null_pointer"].traceback), "the last lines"
    assert "3" in str(last["exits"].error)
    others = [job for job in all_jobs(app) if job.task == "innocent"]
    assert {job.state for job in others} == {State.COMPLETED}
    app.close()


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group with little memory, where such groups can be made."""
    for parent, limit in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        group = Path(parent, f"shigoto-{uuid4().hex[:8]}")
        try:
            group.mkdir()
            (group / limit).write_text(str(400 * MIB))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        swap = group / ("memory.memsw.limit_in_bytes" if "memory" in parent else "memory.swap.max")
        if swap.exists():
            swap.write_text(str(400 * MIB) if "memory" in parent else "0")
        yield group
        processes = group / "cgroup.procs"
        wait_until(partial(_is_empty, processes), seconds=20, what="the group is not empty")
        group.rmdir()
        return
    pytest.skip("control groups with a memory limit cannot be made here")


@pytest.mark.skipif(not linux, reason="control groups are Linux's")
def test_a_job_that_takes_all_memory_is_quarantined(tmp_path: Path, small_memory: Path) -> None:
    """S1-26: the system kills the process that has grown, not the supervisor."""
    app = app_of("poison", tmp_path / "jobs.db")
    glutton = app.tasks["takes_all_memory"].using(max_crashes=1).enqueue()
    innocents = app.enqueue_many([app.tasks["innocent"].call(milliseconds=20)] * 50)

    with working("poison", tmp_path / "jobs.db", tmp_path, "--log-level", "critical") as worker:
        (small_memory / "cgroup.procs").write_text(str(worker.pid))
        for pid in os.listdir("/proc"):
            if pid.isdigit() and _group_of(pid) == worker.pid:
                (small_memory / "cgroup.procs").write_text(pid)
        wait_until(lambda: glutton.status().terminal, seconds=120, what="not put away")
        wait_until(lambda: all(one.status().terminal for one in innocents), seconds=60, what="innocents wait")
        assert worker.poll() is None, "the supervisor lives"

    assert glutton.job().failure_kind is FailureKind.CRASH_LOOP
    assert {one.status() for one in innocents} == {State.COMPLETED}
    app.close()


def _is_empty(processes: Path) -> bool:
    return not processes.read_text()


def _group_of(pid: str) -> int:
    try:
        return os.getpgid(int(pid))
    except OSError:
        return 0
