"""What handlers and systems do to child processes: memory that runs out, folders, groups, files and signals."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shigoto import DeclarationError, FailureKind, State
from shigoto.observe import events
from shigoto.worker import process_pool
from shigoto.worker.child_process import ChildProcess
from tests.fundamentals.nursery import Nursery, alive, make, own_children, until, until_gone

CODE = """
@app.task(executor="process")
def badness() -> int:
    return int(Path("/proc/self/oom_score_adj").read_text())


@app.task(timeout=0.3, retries=0)
def leaves_its_group() -> None:
    os.setpgid(0, os.getpgid(os.getppid()))
    note("began", os.getpid())
    while True:
        try:
            time.sleep(60)
        except Exception:
            pass


@app.task(executor="process", retries=0)
def waits() -> str:
    note("began", os.getpid())
    while not (FOLDER / "go").exists():
        time.sleep(0.005)
    return "done"
"""


@pytest.fixture
def kids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    monkeypatch.setattr(process_pool, "GRACE", 0.3)
    nursery = make(tmp_path, monkeypatch, CODE)
    yield nursery
    nursery.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ChildProcess]:
    """The child processes that were started."""
    known: list[ChildProcess] = []

    class Known(ChildProcess):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            known.append(self)

    monkeypatch.setattr(process_pool, "ChildProcess", Known)
    return known


# Memory


def test_a_child_is_killed_no_sooner_than_its_worker_when_memory_ends(kids: Nursery) -> None:
    """When memory runs out the system shall choose by size, and not a small bystander."""
    handle = kids.badness.enqueue()

    kids.drain()

    assert handle.result() == int(Path("/proc/self/oom_score_adj").read_text())


# Folders

WANDERING = """
app = Shigoto("sqlite:///jobs.db")


@app.task
async def wander(to: str) -> None:
    os.chdir(to)


@app.task
async def after() -> None: ...


@app.task(executor="process")
def fan() -> str:
    after.enqueue()
    return os.getcwd()
"""

OPENS_WHEN_IMPORTED = """
app = Shigoto("sqlite:///jobs.db" if (FOLDER / "first").exists() else "sqlite:///other.db")
(FOLDER / "first").unlink(missing_ok=True)
app.stats()


@app.task(executor="process")
def fan() -> None: ...
"""

ODD = """
app = Shigoto(engine=SqliteEngine(FOLDER / "odd\\udcff" / "jobs.db"))


@app.task(timeout=5)
def limited() -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_child_uses_the_store_and_the_folder_of_its_worker_wherever_a_handler_has_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kids = make(folder, monkeypatch, WANDERING)

    async def main() -> None:
        async with kids.working():
            await kids.wander.aenqueue(str(folder / "elsewhere"))
            await kids.until(events.JobCompleted)
            for child in own_children():
                os.kill(child, signal.SIGKILL)
            fanned = await kids.fan.aenqueue()
            await kids.until(events.JobCompleted, 3)
            assert await fanned.aresult() == str(folder)

    kids.play(main)

    assert list((folder / "elsewhere").iterdir()) == []
    assert [job.state for job in kids.jobs()] == [State.COMPLETED] * 3
    kids.close()


def test_a_child_whose_app_has_opened_another_store_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "first").touch()
    kids = make(folder, monkeypatch, OPENS_WHEN_IMPORTED)

    async def main() -> None:
        await kids.fan.aenqueue()
        async with kids.working():
            await kids.until(events.ChildFailed)

    kids.play(main)

    [failed] = kids.all(events.ChildFailed)
    assert "The app uses sqlite:///other.db already" in failed.error
    assert [job.state for job in kids.jobs()] == [State.PENDING]
    kids.close()


def test_a_store_that_no_other_process_could_be_told_of_has_no_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd\udcff").mkdir()
    kids = make(tmp_path, monkeypatch, ODD)

    with pytest.raises(
        DeclarationError, match=r"'limited' needs a process of its own, .* but the path of the"
    ):
        kids.drain()

    kids.close()


# Groups, files and signals


def test_a_child_that_has_left_its_process_group_is_killed_all_the_same(
    kids: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "SLACK", 60.0)
    handle = kids.leaves_its_group.enqueue()

    kids.drain()

    assert handle.job().failure_kind is FailureKind.TIMEOUT
    assert not alive(int((kids.folder / "began").read_text()))


def test_the_end_of_a_child_is_noticed_though_somebody_has_taken_its_files(
    kids: Nursery, made: list[ChildProcess]
) -> None:
    """A handler in the worker's own process that closes every open file closes ours, too."""
    kids.waits.enqueue()

    async def main() -> None:
        async with kids.working(children=1):
            pid = int(await kids.noted("began"))
            nothing = os.open(os.devnull, os.O_WRONLY)
            for fd in (made[0]._crash_report, made[0]._line.fileno()):
                os.dup2(nothing, fd, inheritable=False)
            os.close(nothing)
            os.kill(pid, signal.SIGKILL)
            await kids.until(events.JobCrashed)
            await kids.badness.aenqueue()
            await kids.until(events.JobCompleted)

    kids.play(main)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTTOU, signal.SIGTTIN])
def test_what_a_terminal_sends_to_a_child_is_left_to_its_worker(
    kids: Nursery, number: signal.Signals
) -> None:
    handle = kids.waits.enqueue()

    async def main() -> None:
        async with kids.working():
            pid = int(await kids.noted("began"))
            os.kill(pid, number)
            (kids.folder / "go").touch()
            assert await handle.aresult() == "done"

    kids.play(main)
    assert handle.job().attempt == 1


def test_an_idle_child_that_is_killed_before_its_first_job_is_replaced_without_a_rest(
    kids: Nursery, made: list[ChildProcess]
) -> None:
    async def main() -> None:
        async with kids.working(children=1):
            await until(lambda: bool(made) and made[0].ready)
            os.kill(made[0].pid, signal.SIGKILL)
            await until_gone(made[0].pid)
            await kids.badness.aenqueue()
            await kids.until(events.JobCompleted)

    kids.play(main)
    assert not kids.all(events.ChildFailed)
