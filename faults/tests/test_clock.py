"""The clock that is wrong: how far, for whom, and from when."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults.tools.clock import WrongClock

TELL = """
import datetime, json, sys, time
for _ in sys.stdin:
    print(json.dumps([
        time.time(),
        time.time_ns() / 1e9,
        time.clock_gettime(time.CLOCK_REALTIME),
        datetime.datetime.now().timestamp(),
        datetime.datetime.now(datetime.timezone.utc).timestamp(),
        datetime.datetime.utcnow().replace(tzinfo=datetime.timezone.utc).timestamp(),
        time.monotonic(),
    ]), flush=True)
"""
IN_A_CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-P", "-c", "import time; print(time.time())"])
"""


def started(clock: WrongClock, code: str, *flags: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *flags, "-W", "ignore", "-c", code],
        env=os.environ | clock.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def asked(process: subprocess.Popen[str]) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    told: list[float] = json.loads(process.stdout.readline())
    return told


def test_the_clock_is_off_and_steps_while_the_program_runs(tmp_path: Path) -> None:
    clock = WrongClock(tmp_path / "clock", seconds=3600)
    with started(clock, TELL) as process:
        ahead = asked(process)
        assert ahead[:-1] == pytest.approx([time.time() + 3600] * 6, abs=5)

        clock.step(-3900)
        behind = asked(process)
        process.communicate()

    assert clock.offset == -300
    assert behind[:-1] == pytest.approx([time.time() - 300] * 6, abs=5)
    assert clock.now() == pytest.approx(time.time() - 300, abs=5)
    assert 0 <= behind[-1] - ahead[-1] < 5, "the monotonic clock is left alone"


def test_what_the_program_starts_has_the_same_clock(tmp_path: Path) -> None:
    clock = WrongClock(tmp_path / "clock", seconds=-86_400)
    with started(clock, IN_A_CHILD, "-P") as process:
        said, _ = process.communicate()

    assert float(said) == pytest.approx(time.time() - 86_400, abs=5)


def test_another_sitecustomize_is_not_forgotten(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    clock = WrongClock(tmp_path / "clock")
    given = os.environ | clock.environment([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", "print('here')"], env=given, capture_output=True, text=True, check=True
    )

    assert done.stdout.split("\n")[:2] == ["the other one", "here"]


def test_types_of_dates_stay_what_they_are(tmp_path: Path) -> None:
    """So that everybody who asks for the type, as msgspec does in C, gets the answer it would get without us."""
    clock = WrongClock(tmp_path / "clock", seconds=60)
    code = (
        "import datetime, msgspec, pickle; now = datetime.datetime.now(datetime.UTC);"
        "assert type(now) is datetime.datetime; msgspec.json.encode(now); pickle.loads(pickle.dumps(now));"
        "assert issubclass(datetime.datetime, datetime.date); print(type(datetime.date.today()).__name__)"
    )
    with started(clock, code) as process:
        said, _ = process.communicate()

    assert (process.returncode, said.strip()) == (0, "date")
