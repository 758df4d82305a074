"""A supervisor that meets what nobody has foreseen: it says so, and goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shigoto import State
from tests.journeys.yard import Yard, ended_within, eventually, is_alive, runners_of

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the runner processes in /proc"),
]

# The supervisor alone is changed: its runners are programs of their own.
BROKEN = """
import sys
from shigoto.cli import main
from shigoto.model import states
from shigoto.worker.supervisor import host, store, supervisor

store.CRASH_DELAY = states.CRASH_DELAY = 100  # who waits here waits for nothing

def break_once(module, name):
    whole, calls = getattr(module, name), []
    def breaking(*arguments, **options):
        calls.append(1)
        if len(calls) == 1:
            raise LookupError(f"{name} is broken")
        return whole(*arguments, **options)
    setattr(module, name, breaking)

WHAT
main(sys.argv[1:])
"""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.end()


@pytest.mark.parametrize(
    "what",
    [
        "break_once(store, 'open_engine')",
        "break_once(store, 'Sweeper')",
        "break_once(store, 'tell_counts')",
        "break_once(store, 'end_groups')",
        "break_once(host, 'is_paused')",
        "break_once(supervisor, 'memory_of')",
        "break_once(supervisor, 'RunnerProcess')",
        "break_once(supervisor, 'deaths_in')",
    ],
)
def test_one_mistake_does_not_end_the_supervisor(yard: Yard, what: str) -> None:
    yard.command = [sys.executable, "-c", BROKEN.replace("WHAT", what)]
    process = yard.start("--lease", "1", "--max-memory", "4000", "--stats-every", "0.1")
    handle = yard.enqueue("wait", file="go")
    yard.until_it_began()
    os.kill(runners_of(process)[0], signal.SIGKILL)

    yard.until_logged("LookupError: .* is broken")
    yard.until_it_began(2)
    yard.touch("go")

    yard.until_done(handle)
    assert "Traceback" in yard.log()
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert ended_within(process, 5) == 0


def test_a_runner_whose_line_is_broken_ends_and_is_replaced(yard: Yard) -> None:
    (yard.folder / "shop.py").write_text(
        (yard.folder / "shop.py").read_text()
        + """
@app.task
async def spoil() -> None:
    # What else a handler could do to make the next message unreadable is not so sure to do it.
    import gc
    from __main__ import RunnerMain
    gc.unfreeze()
    [program] = [thing for thing in gc.get_objects() if isinstance(thing, RunnerMain)]
    program._line._inbox._data += b"\\0" * 6
"""
    )
    process = yard.start("--stop-timeout", "3")
    yard.until_at_work(1)
    [runner] = runners_of(process)
    yard.until_done(yard.enqueue("spoil"))

    process.send_signal(signal.SIGTERM)

    eventually(lambda: not is_alive(runner), yard.log, within=1.5)
    assert ended_within(process, 3) == 0


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_process_is_gone_before_the_job_of_its_thread_runs_again_even_if_nobody_reads_the_log(
    yard: Yard, processes: str
) -> None:
    """R10, X6."""
    handle = yard.enqueue("in_thread")
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*yard.command, "--app", "shop", "worker", "--processes", processes, "--stop-timeout", "3"],
        cwd=yard.folder,
        env=yard.environment,
        stdin=subprocess.DEVNULL,
        stderr=writing,
    )
    yard.until_it_began()
    [pid] = [int(line.split()[0]) for line in yard.notes("began")]

    process.send_signal(signal.SIGTERM)
    log = b""
    while b"received stop signal" not in log:
        log += os.read(reading, 65_536)
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4_096)
    except BlockingIOError:
        os.set_blocking(writing, True)

    eventually(lambda: handle.status() is State.PENDING, within=10)
    eventually(lambda: not is_alive(pid), within=10)
    assert processes == "1" or datetime.now(UTC) < handle.job().run_at, "others have it now"
    process.wait(5)
    os.close(reading)
    os.close(writing)
    assert handle.job().releases == 1


def test_a_runner_that_leaves_is_not_taken_for_fenced(yard: Yard) -> None:
    """With a beat every few milliseconds there is always one between its leave and its end."""
    yard.command = [
        sys.executable,
        "-c",
        BROKEN.replace("WHAT", "store._until_next = lambda hello, state: 0.002"),
    ]
    process = yard.start("--max-jobs", "1")
    for number in range(1, 6):
        yard.until_done(yard.enqueue("count", number=number))
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)

    assert ended_within(process, 5) == 0
    assert "fenced" not in yard.log()
