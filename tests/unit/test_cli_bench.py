"""`shigoto bench` within the test's own process: what it says, what it refuses, and what it leaves alone."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shigoto import Shigoto
from shigoto.bench import MEASURES
from shigoto.bench.figures import BenchFailed
from shigoto.bench.place import QUEUE, open_place
from shigoto.bench.running import expect_completed
from shigoto.bench.storing import expect_stored, fill
from shigoto.bench.tasks import declare
from shigoto.cli.completion import answer
from tests.unit.commands import Command, Store

TINY = ("--jobs", "2", "--rounds", "1")


@pytest.fixture
def complaints() -> list[str]:
    return []


def test_figures_are_told_in_json_with_all_that_they_depend_on(shigoto: Command, tmp_path: Path) -> None:
    done = shigoto("--url", "memory:", "bench", "--jobs", "3", "--rounds", "2", "--json")

    assert (done.code, done.err) == (0, "")
    told = done.json
    assert told.keys() >= {"shigoto", "python", "system", "cores", "uvloop", "at", "settings"}
    assert (told["engine"], told["sqlite"], told["processes"]) == ("memory", None, 0)
    assert (told["jobs"], told["rounds"]) == (3, 2)
    assert list(told["rates"]) == [name for name in MEASURES if name != "latency"]
    for name, rate in told["rates"].items():
        assert rate["lowest"] <= rate["median"] <= rate["highest"]
        assert len(rate["rounds"]) == 2
        assert rate["times_bare"] is None
        assert (rate["peak_memory_bytes"] is None) == (not name.startswith("drain"))
    assert told["rates"]["drain"]["rounds"][0]["jobs"] == 60
    latency = told["latency"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"] == max(latency["each"])
    assert latency["jobs"] == len(latency["each"]) == 20
    assert told["verified_jobs"] == 2 * (3 + 30 + 60 + 60 + 60 + 10)
    assert list(tmp_path.iterdir()) == []


def test_without_a_terminal_there_are_no_bars_and_a_line_for_each_figure(
    shigoto: Command, tmp_path: Path
) -> None:
    done = shigoto("bench", *TINY, "--only", "bulk,enqueue")

    assert done.code == 0
    first, second, blank, titles, bare, enqueue, bulk, *_ = done.out.splitlines()
    assert first.startswith("Shigoto ")
    assert second.startswith(
        f"sqlite, synchronous=full, new files in {tmp_path}; 1 runner process; 1 round, "
    )
    assert blank == ""
    assert titles.split()[:4] == ["measure", "jobs/s", "lowest", "highest"]
    assert [line.split("  ")[0] for line in (bare, enqueue, bulk)] == [
        "bare insert and commit",
        MEASURES["enqueue"],
        MEASURES["bulk"],
    ]
    assert "█" not in done.out
    assert "\x1b" not in done.out + done.err
    assert [line.split(": ")[1] for line in done.err.splitlines()] == [
        "bare insert and commit",
        MEASURES["enqueue"],
        MEASURES["bulk"],
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--jobs", "0"], "0 is not in the range"),
        (["--rounds", "0"], "0 is not in the range"),
        (["--processes", "0"], "0 is not in the range"),
        (["--only", "enqueue,drian"], "There is no measure 'drian'. Did you mean 'drain'?"),
        (["--only", "xyz"], "There are: enqueue, aenqueue, bulk, drain, drain-sync, latency."),
        (["--only", " , "], "names no measure"),
        (["--picture", "speed.png"], "name a file that ends in .svg, not speed.png"),
        (["--picture", "absent/speed.svg"], "needs a folder that is there, not absent"),
        (["--picture", "folder.svg"], "folder.svg is a folder"),
        (["memory:", "--processes", "2"], "--processes needs a store that several processes can open"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_measured(
    shigoto: Command, tmp_path: Path, words: list[str], complaint: str
) -> None:
    (tmp_path / "folder.svg").mkdir()

    done = shigoto("bench", *words)

    assert done.code == 2
    assert complaint in done.err
    assert "round 1" not in done.err


def test_a_file_that_is_no_store_is_left_as_it_is(shigoto: Command, tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("Dear Ada, " * 100)
    (tmp_path / "empty.db").touch()

    letter, empty = shigoto("bench", "letter.db", *TINY), shigoto("bench", "empty.db", *TINY)

    assert (letter.code, empty.code) == (1, 1)
    assert "is not an SQLite database" in letter.err
    assert "migrate" in empty.err
    assert (tmp_path / "letter.db").read_text().startswith("Dear Ada")
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_a_store_that_was_not_there_is_gone_afterwards(shigoto: Command, tmp_path: Path) -> None:
    done = shigoto("--url", "sqlite:///new.db?synchronous=normal", "bench", *TINY, "--only", "enqueue")

    assert done.code == 0
    assert f"sqlite, synchronous=normal, {tmp_path / 'new.db'};" in done.out
    assert list(tmp_path.iterdir()) == []


def test_the_store_of_the_app_is_measured_if_no_other_is_named(
    shigoto: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bakery.py").write_text("from shigoto import Shigoto\napp = Shigoto('sqlite:///bread.db')\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    done = shigoto("--app", "bakery", "bench", *TINY, "--only", "enqueue")

    assert (done.code, f"{tmp_path / 'bread.db'};" in done.out) == (0, True)
    assert not (tmp_path / "bread.db").exists()


def test_a_store_in_use_has_the_same_jobs_afterwards(shigoto: Command, store: Store) -> None:
    store.enqueue()
    running = store.claim()
    store.enqueue()
    before = store.jobs()

    done = shigoto("bench", "jobs.db", *TINY, "--only", "enqueue,aenqueue,bulk")

    assert done.code == 0
    assert store.jobs() == before
    assert [job.number for job in store.jobs() if job.state == "processing"] == [running.number]
    stats = store.engine.run(store.engine.stats())
    assert {name for name, counts in stats.items() if counts.pending} == {"mail"}


def test_jobs_that_somebody_deletes_are_missed(shigoto: Command, store: Store) -> None:
    app = Shigoto("sqlite:///jobs.db")
    enough = threading.Event()

    def delete() -> None:
        while not enough.is_set():
            app.clear(state="pending", queue=QUEUE)

    vandal = threading.Thread(target=delete)
    vandal.start()
    try:
        # So many that the other thread gets its turn meanwhile.
        done = shigoto("bench", "jobs.db", "--jobs", "2000", "--rounds", "1", "--only", "enqueue", "--json")
    finally:
        enough.set()
        vandal.join()
        app.close()

    assert (done.code, done.out) == (1, "")
    assert '"BENCH.FAILED"' in done.err
    assert re.search(r"\d+ jobs were stored, and the store has", done.err)


# Places


def test_two_benches_on_one_store_have_a_queue_each(store: Store, complaints: list[str]) -> None:
    with (
        open_place("jobs.db", is_new=False, complain=complaints.append) as first,
        open_place("jobs.db", is_new=False, complain=complaints.append) as second,
        first.stage() as one,
        second.stage() as two,
    ):
        fill(one, 3, sync=False)
        fill(two, 2, sync=True)

        assert (one.queue, two.queue) == (QUEUE, f"{QUEUE}-2")
        assert (len(one.numbers()), len(two.numbers())) == (3, 2)
        [complaint] = complaints
        assert "`shigoto clear all queue:shigoto-bench`" in complaint

    assert store.jobs() == []
    with open_place("jobs.db", is_new=False, complain=complaints.append) as third, third.stage() as stage:
        assert stage.queue == QUEUE


def test_jobs_that_a_dead_worker_still_holds_are_deleted_too(store: Store, complaints: list[str]) -> None:
    with (
        open_place("jobs.db", is_new=False, complain=complaints.append) as place,
        place.stage() as stage,
    ):
        fill(stage, 3, sync=False)
        store.announce(tasks=(stage.tasks.noop.name,))
        store.claim(stage.tasks.noop.name)

    assert store.jobs() == []


def test_a_new_file_stays_if_somebody_else_has_begun_to_use_it(
    shigoto: Command, tmp_path: Path, complaints: list[str]
) -> None:
    with open_place("shared.db", is_new=True, complain=complaints.append) as place, place.stage() as stage:
        fill(stage, 3, sync=False)
        other = Shigoto("sqlite:///shared.db")
        other.enqueue_by_name("send", {}, allow_unknown=True)

    assert complaints == [f"{tmp_path / 'shared.db'} stays: somebody else has begun to use it."]
    assert [job.task for job in other.find()] == ["send"]
    other.close()


def test_without_a_folder_to_measure_in_it_says_what_to_do(
    shigoto: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    done = shigoto("bench", *TINY)

    assert done.code == 1
    assert "No folder can be made in the current folder (No such file or directory)." in done.err


def test_figures_count_only_if_all_jobs_are_there(complaints: list[str]) -> None:
    with open_place("memory:", is_new=True, complain=complaints.append) as place, place.stage() as stage:
        fill(stage, 3, sync=False)

        expect_stored(stage, 3)
        with pytest.raises(BenchFailed, match="4 jobs were stored, and the store has 3"):
            expect_stored(stage, 4)
        with pytest.raises(BenchFailed, match=r"3 jobs .* the store has 0 completed, 0 failed, 3 pending"):
            expect_completed(stage, 3)


# What it costs to have it


def test_its_help_imports_none_of_what_measures() -> None:
    code = "import sys; from shigoto.cli import execute; execute(['bench', '--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    names = set(done.stdout.splitlines()[-1].split())
    assert "shigoto.cli.bench" in names
    assert {name for name in names if name.startswith("shigoto.bench")} == {"shigoto.bench"}
    assert not names & {"asyncio", "sqlite3", "subprocess", "shigoto.worker"}


def test_a_shell_completes_the_measures(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from shigoto.cli import program

    monkeypatch.setenv("_SHIGOTO_COMPLETE", "bash_complete")
    monkeypatch.setenv("_SHIGOTO_LINE", "shigoto bench --only enqueue,dr")

    assert answer(program) == 0
    assert capsys.readouterr().out.split() == ["plain,enqueue,drain", "plain,enqueue,drain-sync"]


def test_its_tasks_have_names_of_their_own() -> None:
    tasks = declare(Shigoto("memory:"))

    assert all(task.name.startswith("shigoto.bench.") for task in (tasks.noop, tasks.noop_sync, tasks.moment))
