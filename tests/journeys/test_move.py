"""`shigoto move`, `export` and `import` as people use them: real processes, real signals, under load (S0-70)."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from shigoto import Shigoto, State, StoreMoved
from shigoto.engine.movable import mover_of
from shigoto.engine.open import open_engine
from shigoto.engine.protocol import Engine
from shigoto.moving.files import load
from shigoto.moving.move import StoreMove
from shigoto.observe.events import ScheduleFailed, TickFired
from shigoto.worker import Worker
from shigoto.worker.keeper import Beats
from tests.engines.moved_jobs import announced, claimed, exported, live_through, told
from tests.journeys.ground import Ground
from tests.journeys.ground import opened as opened_ground
from tests.journeys.yard import SHIGOTO, ended_within, eventually

# Ends itself by the signal that nobody can catch, before the n-th thing that a move asks of a store.
KILLED = """
import os, signal, sys
from shigoto import cli
from shigoto.engine.sql.moving import SqlMover

left, plainly = int(sys.argv[1]), SqlMover.run

def run(self, op):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return plainly(self, op)

SqlMover.run = run
cli.main(sys.argv[2:])
"""

SHOP = """
import os, time
from pathlib import Path
from shigoto import Shigoto

app = Shigoto(os.environ["SHIGOTO_URL"])

@app.task
async def count(number: int) -> int:
    with open("ran", "a") as file:
        file.write(f"{number}\\n")
    return number

@app.task
def until(file: str) -> None:
    Path("began").touch()
    while not Path(file).exists():
        time.sleep(0.01)
"""

# Enqueues until it is told to stop, and writes down what was acknowledged; goes where the old store sends it.
PRODUCER = """
import sys, time
from pathlib import Path
from shigoto import Shigoto, StoreMoved, StoreUnavailable

old, new, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
app = Shigoto(old)
moved = False
with open(f"acked{first}", "w") as acked:
    number = first
    while not Path("enough").exists():
        try:
            job = app.enqueue_by_name("count", {"number": number}, allow_unknown=True)
        except StoreMoved as error:
            assert "hunter" not in str(error) and "was moved to" in str(error), error
            app.close()
            app = Shigoto(new)
            continue
        except StoreUnavailable:
            time.sleep(0.02)
            continue
        acked.write(f"{number} {job.id}\\n")
        acked.flush()
        number += 1
        time.sleep(0.002)
"""


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("SHIGOTO_", "PG"))}


def killed(*words: str, folder: Path, before: int) -> int:
    """The exit code of a command that is killed before that step of it, 0 if it has fewer."""
    program = [sys.executable, "-c", KILLED, str(before), *words]
    told = subprocess.run(
        program, cwd=folder, env=environment(), capture_output=True, timeout=120, check=False
    )
    assert told.returncode in (0, -signal.SIGKILL), told.stderr
    return told.returncode


@pytest.fixture
def lived(tmp_path: Path) -> Path:
    """A file with jobs of every kind, some of which are running; closed, so that it can be copied."""
    path = tmp_path / "lived.db"
    engine = open_engine(f"sqlite:///{path}?synchronous=normal")
    live_through(engine)
    worker = announced(engine, "do", "other")
    app = Shigoto(f"sqlite:///{path}")
    for number in range(3):
        app.enqueue_by_name("other", {"n": number}, allow_unknown=True)
    assert len(claimed(engine, worker, "other", 2)) == 2
    app.close()
    engine.close()
    return path


def assert_moved(old: Engine, new: Engine) -> None:
    """All jobs are in the new store, nobody can do anything in the old one, and all can in the new."""
    assert told(new) == told(old)
    move_lock = mover_of(old).run(mover_of(old).move_lock())
    assert move_lock is not None
    assert move_lock.kind == "moved"
    assert mover_of(new).run(mover_of(new).move_lock()) is None
    worker = announced(new, "other")
    assert len(claimed(new, worker, "other", 5)) == 3


def killed_anywhere(folder: Path, lived: Path, target: str, kill_before: int) -> bool:
    """Move a copy, killed before that step, then again to the end; False if the first was over before."""
    path = folder / f"old{kill_before}.db"
    shutil.copy(lived, path)
    target = target.format(kill_before)

    first = killed(
        "move", "--from", str(path), "--to", target, "--wait", "0", folder=folder, before=kill_before
    )

    old, new = open_engine(f"sqlite:///{path}"), open_engine(target)
    StoreMove(old, new, wait=0.0, tell=lambda progress: None).run()
    assert_moved(old, new)
    old.close()
    new.close()
    return first != 0


@pytest.mark.engine("sqlite")
def test_a_move_between_files_that_is_killed_before_any_of_its_steps_is_finished_by_the_next(
    tmp_path: Path, lived: Path
) -> None:
    """S0-70: interrupted anywhere it can be run again."""
    step = 1
    while killed_anywhere(tmp_path, lived, f"sqlite:///{tmp_path}/new{{}}.db", step):
        step += 1

    assert step > 15, "there are more steps than that"


@pytest.mark.engine("postgres")
@pytest.mark.newest_postgres
@pytest.mark.parametrize("step", [4, 9, 13, 16, 18, 20])
def test_a_move_to_postgresql_that_is_killed_is_finished_by_the_next(
    tmp_path: Path, lived: Path, postgres_database: str, step: int
) -> None:
    """S0-70: interrupted anywhere it can be run again."""
    killed_anywhere(tmp_path, lived, f"{postgres_database}?schema=s{{}}", step)


@pytest.fixture
def ground(tmp_path: Path, postgres_database: str) -> Iterator[Ground]:
    with opened_ground(tmp_path, postgres_database) as ground:
        (tmp_path / "shop.py").write_text(SHOP)
        yield ground


class Crowd:
    """Workers and producers of a journey, all of which end with it."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, log: str, *words: str, url: str) -> "subprocess.Popen[bytes]":
        with (self._ground.folder / log).open("wb") as file:
            process = subprocess.Popen(
                words,
                cwd=self._ground.folder,
                env=self._ground.environment | {"SHIGOTO_URL": url},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._processes.append(process)
        return process

    def worker(self, log: str, url: str) -> "subprocess.Popen[bytes]":
        return self.start(log, *SHIGOTO, "--app", "shop", "worker", "--lease", "3", url=url)

    def log(self, name: str) -> str:
        return (self._ground.folder / name).read_text()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def crowd(ground: Ground) -> Iterator[Crowd]:
    crowd = Crowd(ground)
    yield crowd
    crowd.end()


@pytest.mark.engine("postgres")
@pytest.mark.newest_postgres
def test_a_move_under_load_loses_nothing_and_tells_everybody_where_to_go(
    ground: Ground, crowd: Crowd
) -> None:
    """S0-70: each job that was acknowledged, before, during or after, is in one place, and ran there or before."""
    folder, old = ground.folder, f"sqlite:///{ground.folder / 'old.db'}"
    ground.bootstrap()
    old_app = Shigoto(old)
    slow = old_app.enqueue_by_name("until", {"file": "never"}, allow_unknown=True)
    workers = [crowd.worker(f"worker{n}", old) for n in range(2)]
    producers = [
        crowd.start(f"producer{n}", sys.executable, "-c", PRODUCER, old, ground.runtime_url, str(n), url=old)
        for n in (0, 1_000_000)
    ]
    acked = [folder / "acked0", folder / "acked1000000"]
    eventually(lambda: all(f.exists() and len(f.read_text().splitlines()) > 100 for f in acked))
    eventually((folder / "began").exists)

    done = ground.shigoto("move", "--from", old, "--to", ground.migrator_url, "--wait", "1", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["released"] == 1
    assert "hunter" not in done.stdout + done.stderr
    for number, worker in enumerate(workers):
        assert ended_within(worker, 30) == 1
        assert "Error [STORE.MOVED]" in crowd.log(f"worker{number}")
        assert f"was moved to postgresql://{ground.migrator}:***@" in crowd.log(f"worker{number}")
    crowd.worker("new", ground.runtime_url)
    lines = [len(f.read_text().splitlines()) for f in acked]
    eventually(
        lambda: all(len(f.read_text().splitlines()) > n + 50 for f, n in zip(acked, lines, strict=True))
    )
    (folder / "enough").touch()
    (folder / "never").touch()
    assert [ended_within(producer, 10) for producer in producers] == [0, 0], crowd.log("producer0")

    new_app = Shigoto(ground.runtime_url)
    eventually(lambda: not new_app.find(state=State.PENDING) and not new_app.find(state=State.PROCESSING))
    told_of: dict[str, str] = dict(line.split() for f in acked for line in f.read_text().splitlines())
    stored = {job.payload: job for job in exported(new_app.engine) if job.task == "count"}
    ran = Counter((folder / "ran").read_text().split())
    assert len(stored) >= len(told_of) > 300
    for said, id in told_of.items():
        job = stored[f'{{"number":{said}}}']
        assert str(job.id) == id
        assert job.state is State.COMPLETED
        assert ran[said] >= 1
    assert new_app.job(slow.id).status() is State.COMPLETED
    in_old = {job.number: job for job in exported(old_app.engine)}
    in_new = {job.number: job for job in exported(new_app.engine)}
    assert in_old.keys() <= in_new.keys()
    ended_there = [number for number, job in in_old.items() if job.state.terminal]
    assert ended_there
    assert all(in_new[number] == in_old[number] for number in ended_there)
    with pytest.raises(StoreMoved):
        old_app.enqueue_by_name("count", {"number": 1}, allow_unknown=True)
    old_app.close()
    new_app.close()


@pytest.mark.engine("sqlite")
@pytest.mark.parametrize("beats", ["thread", "loop"])
async def test_a_worker_in_ones_own_process_ends_when_its_store_was_moved(
    tmp_path: Path, beats: Beats, caplog: pytest.LogCaptureFixture
) -> None:
    """S0-70: it is told where to go; a job that came before is in the new store."""
    app = Shigoto(f"sqlite:///{tmp_path}/old.db")
    new = open_engine(f"sqlite:///{tmp_path}/new.db")
    waiting = app.enqueue_by_name("nobody", {}, allow_unknown=True)

    async with Worker(app, lease=1.0, beats=beats) as worker:
        move = StoreMove(app.engine, new, wait=5.0, tell=lambda progress: None)
        await asyncio.to_thread(move.run)
        stopped = await asyncio.wait_for(worker.wait(), 20)

    assert stopped.reason == "fenced"
    assert f"ends: {tmp_path}/old.db was moved to {tmp_path}/new.db" in caplog.text
    [there] = new.run(new.get([waiting.id]))
    assert there is not None
    assert there.state is State.PENDING
    new.close()
    app.close()


@pytest.mark.engine("sqlite")
async def test_each_tick_of_a_schedule_fires_once_when_its_store_is_moved_under_it(tmp_path: Path) -> None:
    """S0-70: workers of the old store are refused when they tick, and those of the new one catch up."""
    old, new = (Shigoto(f"sqlite:///{tmp_path}/{name}.db") for name in ("old", "new"))
    for app in (old, new):
        app.every("1s", catch_up="all", name="tick")(beat)
    events: list[object] = []
    old.bus.subscribe(events.append, ScheduleFailed)

    async with Worker(old) as worker, asyncio.timeout(20):
        await fired(old, 2, events)
        await asyncio.to_thread(StoreMove(old.engine, new.engine, wait=5.0, tell=lambda progress: None).run)
        assert (await worker.wait()).reason == "fenced"
    before = old.schedules.history("tick")
    async with Worker(new), asyncio.timeout(20):
        await fired(new, 2, [])

    assert all(isinstance(event, TickFired) for event in events), events
    assert len(before) == len(events)
    after = new.schedules.history("tick")
    assert after[-len(before) :] == before
    instants = [entry.at for entry in reversed(after)]
    assert {later - earlier for earlier, later in pairwise(instants)} == {timedelta(seconds=1)}
    assert len({entry.job for entry in after}) == len(new.find(task="tick")) == len(after)
    old.close()
    new.close()


async def beat() -> None:
    """Nothing to do."""


async def fired(app: Shigoto, ticks: int, events: list[object]) -> None:
    """Wait for so many; all that is fired is written down."""
    enough = asyncio.Event()

    def count(event: TickFired) -> None:
        events.append(event)
        if len(events) >= ticks:
            enough.set()

    app.bus.subscribe(count, TickFired)
    await enough.wait()


@pytest.mark.engine("sqlite")
def test_a_store_goes_through_a_file(tmp_path: Path, lived: Path) -> None:
    """S0-70: as line-delimited JSON, to a file or to standard output."""

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*SHIGOTO, *words],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    out = run("export", "lived.db", "--output", "jobs.jsonl")
    assert (out.returncode, out.stderr) == (0, "12 jobs and 3 schedules exported.\n")
    assert (tmp_path / "jobs.jsonl").stat().st_mode & 0o777 == 0o600
    printed = run("export", "lived.db")
    assert printed.stdout.splitlines()[1:] == (tmp_path / "jobs.jsonl").read_text().splitlines()[1:]
    assert "is there already" in run("export", "lived.db", "--output", "jobs.jsonl").stderr

    back = run("import", "jobs.jsonl", "new.db")
    assert (back.returncode, back.stdout) == (0, "12 jobs and 3 schedules imported.\n")
    again = run("import", "jobs.jsonl", "new.db")
    assert again.returncode == 1
    assert "Error [STORE.REFUSED]" in again.stderr
    assert "has jobs or schedules already" in again.stderr
    (tmp_path / "half.jsonl").write_text("\n".join(printed.stdout.splitlines()[:5]) + "\n")
    half = run("import", "half.jsonl", "other.db")
    assert half.returncode == 1
    assert "Line 6 of half.jsonl cannot be imported: the file ends here" in half.stderr
    assert run("stats", "other.db", "--json").stdout.count("0") > 0


@pytest.mark.engine("sqlite")
def test_an_import_that_is_killed_is_begun_anew(tmp_path: Path, lived: Path) -> None:
    words = ["export", str(lived), "--output", "jobs.jsonl"]
    subprocess.run([*SHIGOTO, *words], cwd=tmp_path, env=environment(), check=True, capture_output=True)
    step = 1
    while killed("import", "jobs.jsonl", f"new{step}.db", folder=tmp_path, before=step):
        engine = open_engine(f"sqlite:///{tmp_path / f'new{step}.db'}")
        with (tmp_path / "jobs.jsonl").open("rb") as file:
            assert load(engine, file, "jobs.jsonl", tell=lambda done: None).jobs == 12
        assert len(list(exported(engine))) == 12
        engine.close()
        step += 1

    assert step > 5, "there are more steps than that"
