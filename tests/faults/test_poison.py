"""Jobs that kill their process are run alone, then put away; those around them complete."""

from pathlib import Path

import pytest

from faults.experiment import Setting
from faults.stage import Stage
from faults.tools.cgroup import small_memory
from shigoto import FailureKind, State

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(300)]

MAX_CRASHES = 2
MIB = 1024 * 1024
POISONS = (
    "kills_itself",
    "follows_a_null_pointer",
    "exits",
    "exits_like_a_watchdog",
    "exits_like_an_orphan",
    "exits_in_a_process",
)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(engine="sqlite", folder=tmp_path, seed=1, full=False)


def test_poison_is_quarantined_and_bystanders_never_are(setting: Setting) -> None:
    """S1-26: each kind of poison takes one crowd down, then only itself, and ends as failed(crash_loop) after
    `max_crashes` runs alone; its signal or exit code, its stack and its last lines are kept."""
    with Stage(setting, "poison") as stage:
        app = stage.app
        innocents = [app.tasks["innocent"].call(milliseconds=20) for _ in range(400)]
        app.enqueue_many(innocents[:200])
        handles = {name: app.tasks[name].using(max_crashes=MAX_CRASHES).enqueue() for name in POISONS}
        app.enqueue_many(innocents[200:])

        stage.worker("--processes", "2")
        assert stage.wait_until(
            lambda: all(handle.status().terminal for handle in handles.values()),
            seconds=200,
            what="not put away",
        )
        assert stage.wait_until(
            lambda: app.stats()["default"].completed == 400, seconds=60, what="innocents wait"
        )

        for name, handle in handles.items():
            job = handle.job()
            # Those that lay in the buffer of a runner that died were given back, which is no run.
            attempts = [attempt for attempt in handle.attempts() if attempt.outcome != "released"]
            alone = MAX_CRASHES if name == "exits_in_a_process" else MAX_CRASHES + 1
            assert job.failure_kind is FailureKind.CRASH_LOOP, name
            assert (job.failures, job.crashes, len(attempts)) == (0, alone, alone), name
            assert {attempt.outcome for attempt in attempts} == {"crashed"}
        last = {name: handle.attempts()[-1] for name, handle in handles.items()}
        others = [job for job in stage.jobs() if job.task == "innocent"]
    assert "SIGKILL" in str(last["kills_itself"].error)
    assert "SIGSEGV" in str(last["follows_a_null_pointer"].error)
    assert "follows_a_null_pointer" in str(last["follows_a_null_pointer"].traceback), "the stack"
    assert "about to read address 0" in str(last["follows_a_null_pointer"].traceback), "the last lines"
    assert "3" in str(last["exits"].error)
    assert {job.state for job in others} == {State.COMPLETED}


def test_a_job_that_takes_all_memory_is_quarantined(setting: Setting) -> None:
    """S1-26: the system kills the process that has grown, not the supervisor."""
    with small_memory(400 * MIB) as wrap:
        if wrap is None:
            pytest.skip("control groups with a memory limit cannot be made here")
        with Stage(setting, "poison") as stage:
            app = stage.app
            glutton = app.tasks["takes_all_memory"].using(max_crashes=1).enqueue()
            innocents = app.enqueue_many([app.tasks["innocent"].call(milliseconds=20)] * 50)

            worker = stage.worker(wrap=wrap)
            assert stage.wait_until(lambda: glutton.status().terminal, seconds=120, what="not put away")
            assert stage.wait_until(
                lambda: all(one.status().terminal for one in innocents), seconds=60, what="innocents wait"
            )
            assert worker.poll() is None, "the supervisor lives"

            assert glutton.job().failure_kind is FailureKind.CRASH_LOOP
            assert {one.status() for one in innocents} == {State.COMPLETED}
