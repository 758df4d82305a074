"""`shigoto bench` as people meet it: real processes, real stores, a real terminal."""

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from shigoto import Shigoto
from shigoto.bench import MEASURES
from shigoto.bench.crew import Crew
from shigoto.bench.figures import BenchFailed
from shigoto.bench.place import QUEUE, open_place
from shigoto.bench.program import Begin
from tests.journeys.yard import SHIGOTO, Yard, eventually, is_alive, read_to_the_end, runners_of

pytestmark = pytest.mark.engine("sqlite")

SMALL = ("--jobs", "50", "--rounds", "1")
LONG = ("--jobs", "2000", "--rounds", "50")

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.end()


@pytest.fixture
def start(yard: Yard) -> Iterator[Start]:
    """Starts a command in the yard; it never outlives the test."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(*words: str, out: int = subprocess.PIPE, **environment: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [*SHIGOTO, *words],
            cwd=yard.folder,
            env={**yard.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE if out == subprocess.PIPE else out,
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def ours(yard: Yard) -> int:
    """How many jobs of a bench there are in the shop's store."""
    return yard.app.count(queue=QUEUE)


def test_it_measures_the_disk_here_and_leaves_nothing_behind(start: Start, yard: Yard) -> None:
    process = start("bench", *SMALL, "--json", "--picture", "speed.svg")
    out, err = process.communicate(timeout=90)

    assert (process.returncode, err) == (0, b"")
    told = json.loads(out)
    assert (told["engine"], told["settings"], told["processes"]) == ("sqlite", {"synchronous": "full"}, 1)
    assert list(told["rates"]) == ["bare", *(name for name in MEASURES if name != "latency")]
    assert all(rate["median"] > 0 and rate["times_bare"] > 0 for rate in told["rates"].values())
    for name in ("drain", "drain-sync"):
        [one] = told["rates"][name]["rounds"]
        assert one["jobs"] == 1_000
        assert one["cpu_us_per_job"] > 0
        assert one["peak_memory_bytes"] > 10_000_000
    assert told["latency"]["p50"] > 0
    ElementTree.parse(yard.folder / "speed.svg")
    assert names_in(yard.folder) == {"shop.py", "speed.svg"}


def test_a_store_in_use_goes_on_as_if_nothing_had_been(start: Start, yard: Yard) -> None:
    worker = yard.start()
    before = [yard.enqueue("until", file="open") for _ in range(3)]
    later = yard.app.enqueue_by_name("wait", {"file": "open"}, delay=3_600, allow_unknown=True)
    yard.until_it_began(3)

    process = start("bench", "shop.db", *SMALL, "--processes", "2")
    out, err = process.communicate(timeout=90)

    assert process.returncode == 0, err
    assert "2 runner processes" in out.decode()
    assert ours(yard) == 0
    assert [name for name, _ in yard.workers()] == [name for name, _ in yard.workers() if QUEUE not in name]
    yard.touch("open")
    yard.until_done(*before)
    assert {job.id for job in yard.app.find()} == {handle.id for handle in (*before, later)}
    assert "shigoto.bench" not in yard.log()
    assert not [name for name in names_in(yard.folder) if name.startswith("shigoto-bench")]
    worker.terminate()
    assert worker.wait(30) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("measure", ["enqueue", "aenqueue", "drain", "latency"])
def test_an_interrupted_bench_deletes_what_it_has_stored(
    start: Start, yard: Yard, measure: str, number: signal.Signals
) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("a shell that runs programs in the background makes them ignore this signal")
    kept = yard.enqueue("count", number=1)
    process = start("bench", "shop.db", *LONG, "--only", measure)
    eventually(lambda: ours(yard) > 1)
    runners = runners_of(process)

    process.send_signal(number)

    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.decode().splitlines()[-1] == "Interrupted. What was stored is deleted."
    assert b"Traceback" not in err
    assert [job.id for job in yard.app.find()] == [kept.id]
    assert yard.workers() == []
    assert not any(is_alive(pid) for pid in runners)
    assert names_in(yard.folder) <= {"shop.py", "shop.db", "shop.db-wal", "shop.db-shm", "shop.db-bell"}


def test_an_interrupted_bench_on_files_of_its_own_removes_them(start: Start, yard: Yard) -> None:
    process = start("bench", *LONG, "--only", "drain")
    eventually(lambda: bool(list(yard.folder.glob("shigoto-bench-*/*.db-bell"))))

    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 130
    assert names_in(yard.folder) == {"shop.py"}


def test_the_runners_of_a_bench_that_was_killed_end_by_themselves(start: Start, yard: Yard) -> None:
    process = start("bench", "shop.db", *LONG, "--only", "latency")
    eventually(lambda: bool(yard.workers()))
    runners = runners_of(process)

    process.kill()

    eventually(lambda: not any(is_alive(pid) for pid in runners))
    assert len(runners) == 1
    process.communicate()
    following = start("bench", "shop.db", *SMALL, "--only", "enqueue")
    _, err = following.communicate(timeout=60)
    assert following.returncode == 0
    assert b"belongs to another bench" in err
    left = start("clear", "shop.db", "all", f"queue:{QUEUE}", "--yes")
    assert left.wait(30) == 0
    assert yard.app.count() == 0


def test_on_a_terminal_there_are_bars_without_colours_if_those_are_not_wanted(start: Start) -> None:
    terminal, inner = pty.openpty()
    process = start(
        "bench", *SMALL, "--only", "enqueue,drain", out=inner, TERM="xterm", NO_COLOR="1", COLUMNS="80"
    )
    os.close(inner)

    seen = read_to_the_end(terminal)

    assert process.wait(30) == 0
    assert "round 1 of 1: drain, async functions" in seen
    table = seen.rpartition("\r\x1b[K")[2]
    assert "\x1b" not in table
    assert [line.split("  ")[0] for line in table.split("\r\n") if "█" in line] == [
        "bare insert and commit",
        MEASURES["enqueue"],
        MEASURES["drain"],
    ]


def test_a_runner_that_cannot_begin_says_why(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match=r"(?s)ended with exit code 1.*The folder of .* does not exist"):
        Crew(Begin(f"sqlite:///{tmp_path / 'absent' / 'jobs.db'}", QUEUE), 1).__enter__()


def test_a_runner_that_is_killed_is_missed(tmp_path: Path) -> None:
    app = Shigoto(tmp_path / "jobs.db")
    with Crew(Begin(app.engine.address, QUEUE), 1) as crew:
        crew.serve()
        eventually(lambda: bool(app.workers()))
        os.kill(app.workers()[0].pid, signal.SIGKILL)

        with pytest.raises(BenchFailed, match="was killed by SIGKILL"):
            crew.hear(30)
    app.close()


def test_a_runner_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    app = Shigoto(tmp_path / "jobs.db")
    with Crew(Begin(app.engine.address, QUEUE), 1) as crew:
        crew.serve()
        began = time.monotonic()

        with pytest.raises(BenchFailed, match="did not answer in time"):
            crew.hear(0.05)

        assert time.monotonic() - began < 10
    app.close()


def test_all_jobs_of_a_stage_are_run_by_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shigoto.bench.running import drain

    monkeypatch.chdir(tmp_path)
    with open_place(None, is_new=True, complain=print) as place, place.stage() as stage:
        rate = drain(stage, 500, sync=True, processes=2)

    assert rate.jobs == 500
    assert rate.memory is not None
    assert list(tmp_path.iterdir()) == []
