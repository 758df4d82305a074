"""What an experiment has started ends with it, also when it is killed."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from faults.stage import ROOT

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(60)]

EXPERIMENT = """
import sys, time
from pathlib import Path
from faults.experiment import Setting
from faults.stage import Stage

with Stage(Setting(engine="sqlite", folder=Path(sys.argv[1]), seed=1, full=False), audited=False) as stage:
    process = stage.start([sys.executable, "-c", "import time; time.sleep(600)"])
    print(process.pid, flush=True)
    time.sleep(600)
"""


def test_a_killed_experiment_leaves_no_process_behind(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *filter(None, sys.path)])
    experiment = subprocess.Popen(
        [sys.executable, "-c", EXPERIMENT, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert experiment.stdout is not None
    pid = int(experiment.stdout.readline())
    left_behind = os.pidfd_open(pid)

    experiment.send_signal(signal.SIGKILL)
    experiment.wait()

    assert select.select([left_behind], [], [], 30)[0], "it has not ended"
    os.close(left_behind)
    experiment.stdout.close()
