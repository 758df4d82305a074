"""The monkey: what it does is decided by a seed, is written down, and is over at the end."""

import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random
from subprocess import Popen

import pytest

from faults.evidence.records import read
from faults.experiment import Setting
from faults.stage import Stage
from faults.tools.kinship import state_of
from faults.tools.monkey import DEEDS, Monkey, schedule

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")

# A worker with one child, that ends in good order.
IDLER = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
def leave(*_):
    child.kill()
    sys.exit()
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(Setting(engine="sqlite", folder=tmp_path, seed=1, full=False), audited=False)


def idler(stage: Stage) -> Popen[bytes]:
    """Returns when it would obey."""
    output = stage.folder / f"{len(stage.processes)}.txt"
    process = stage.start([sys.executable, "-c", IDLER], output=output)
    assert stage.wait_until(output.read_text, seconds=30, what="no idler")
    return process


def test_a_seed_gives_the_same_story_again() -> None:
    """E01: a failing seed can be run again."""
    deeds = {"kill": 3, "stop": 1, "term": 1}

    story, again, other = (
        list(islice(schedule(Random(seed), deeds, (1, 5), (2, 3)), 200)) for seed in (7, 7, 8)
    )

    assert story == again != other
    assert all(
        1 <= action.pause <= 5 and 2 <= action.length <= 3 and 0 <= action.whom < 1 for action in story
    )
    counts = Counter(action.deed for action in story)
    assert set(counts) == set(deeds)
    assert counts["kill"] > counts["stop"] > 0, "the deeds have weights"


@pytest.mark.parametrize("deeds", [{"bite": 1}, {}])
def test_a_monkey_refuses_deeds_it_does_not_know(deeds: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="A monkey knows kill, term, restart, stop, cont"):
        next(schedule(Random(1), deeds, (1, 5), (1, 1)))


@linux
def test_every_deed_is_done_and_written_down_and_workers_are_at_work_in_the_end(stage: Stage) -> None:
    with stage:
        workers = [idler(stage) for _ in range(3)]
        monkey = Monkey(
            stage,
            stage.setting.random("monkey"),
            start=lambda: idler(stage),
            workers=workers,
            deeds=dict.fromkeys(DEEDS, 1),
            pause=(0.0, 0.02),
            stopped_for=(0.05, 0.1),
        )
        monkey.run(until=lambda: set(DEEDS) <= set(monkey.done) and sum(monkey.done.values()) >= 12)

        faults = [record for record in read(stage.ledger) if record.what == "fault"]
        assert len(monkey.workers) == 3
        assert stage.wait_until(
            lambda: {state_of(worker.pid) for worker in monkey.workers} == {"S"},
            seconds=10,
            what="still stopped",
        )
        assert monkey.ended == []

    deeds = Counter(record.deed for record in faults if record.pid == record.parent)
    assert deeds["kill"] == monkey.done["kill"]
    assert deeds["term"] == monkey.done["term"] + monkey.done["restart"]
    assert deeds["stop"] == monkey.done["stop"]
    killed = [record for record in faults if record.deed == "kill"]
    assert len(killed) == 2 * monkey.done["kill"], "the whole tree is killed"
    assert all(worker.poll() is not None for worker in workers if worker not in monkey.workers)


@linux
def test_a_monkey_in_a_thread_ends_with_its_block_and_replaces_whoever_ends_by_itself(stage: Stage) -> None:
    with stage:
        worker = idler(stage)
        with Monkey(
            stage,
            Random(1),
            start=lambda: idler(stage),
            workers=[worker],
            deeds={"stop": 1},
            pause=(0.1, 0.1),
            stopped_for=(60, 60),
        ) as monkey:
            worker.kill()
            assert stage.wait_until(lambda: monkey.done["stop"], seconds=30, what="nothing was stopped")

        assert monkey.ended == [-9]
        assert worker not in monkey.workers
        assert state_of(monkey.workers[0].pid) != "T"


@linux
def test_an_error_of_a_monkey_in_a_thread_is_raised_at_the_end_of_its_block(stage: Stage) -> None:
    def refuse() -> Popen[bytes]:
        raise RuntimeError("no more workers")

    with stage:
        worker = idler(stage)
        monkey = Monkey(stage, Random(1), start=refuse, workers=[worker], deeds={"kill": 1}, pause=(0.0, 0.0))
        with pytest.raises(RuntimeError, match="no more workers"), monkey:
            worker.wait(30)
