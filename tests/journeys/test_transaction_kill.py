"""`kill -9` at every system call of a transactional handler leaves effects and completion both, or neither."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.tools.programs import NOT_ALLOWED

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.skipif(sys.platform != "linux", reason="steps through system calls with Linux's ptrace"),
    pytest.mark.timeout(900),
]

ROOT = Path(__file__).parents[2]
EVERYWHERE = os.environ.get("SHIGOTO_KILL_EVERYWHERE") == "1"


def kill_everywhere(folder: Path, mode: str, seconds: float) -> dict[str, int]:
    """Kill in as many places as there is time for; tells in how many, and what was left each time."""
    limit = 3_600.0 if EVERYWHERE else seconds
    ended = subprocess.run(
        [sys.executable, "-m", "tests.journeys.killing", str(folder), mode, str(limit)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    if ended.returncode == NOT_ALLOWED:
        pytest.skip("this system does not let a process trace its own children")
    assert ended.returncode == 0, ended.stderr
    seen: dict[str, int] = json.loads(ended.stdout)
    print(f"{mode}: killed {seen['killed']} times in a block of {seen['calls']} system calls: {seen}")
    return seen


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_handler_killed_anywhere_in_its_transaction_leaves_all_or_nothing(
    tmp_path: Path, mode: str
) -> None:
    """I9, C8: no deviation, and exactly one effect after the job was run again."""
    seen = kill_everywhere(tmp_path, mode, seconds=8)

    assert (seen["torn"], seen["repeated"]) == (0, 0)
    assert seen["killed"] >= 20
    assert min(seen["nothing"], seen["all"]) >= 1


def test_a_handler_without_a_transaction_is_caught_in_between(tmp_path: Path) -> None:
    """C7: the effect has happened and the completion has not, so it happens again. Else the test above sees nothing."""
    seen = kill_everywhere(tmp_path, "apart", seconds=3)

    assert min(seen["torn"], seen["repeated"]) >= 1
