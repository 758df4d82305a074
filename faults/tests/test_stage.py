"""What the stage writes down of a fault stands before whatever follows from it."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from faults.evidence.records import read
from faults.experiment import Setting
from faults.stage import Stage

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")

PARENT = """
import signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("whole_tree", [True, False])
def test_a_fault_has_the_time_before_it_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_tree: bool
) -> None:
    """Else a crash that is known at once would seem to come before its cause."""
    done: list[float] = []
    really = os.kill

    def kill(pid: int, number: int) -> None:
        if number == signal.SIGKILL:
            done.append(time.monotonic())
        really(pid, number)

    with Stage(Setting(engine="sqlite", folder=tmp_path, seed=1, full=False), audited=False) as stage:
        output = tmp_path / "parent.txt"
        process = stage.start([sys.executable, "-c", PARENT], output=output)
        assert stage.wait_until(output.read_text, seconds=30, what="no process")
        monkeypatch.setattr(os, "kill", kill)
        killed = stage.do("kill", process, whole_tree=whole_tree)
        monkeypatch.undo()
        faults = [record for record in read(stage.ledger) if record.what == "fault"]
        for pid in {record.pid for record in faults} - {*killed}:
            really(pid, signal.SIGKILL)

    assert [record.deed for record in faults] == ["kill", "kill" if whole_tree else "bereave"]
    assert len(done) == len(killed) == 1 + whole_tree
    assert all(record.at <= at for record, at in zip(faults, done, strict=False))
    assert faults[-1].at <= done[-1]
