"""The decisions of a supervisor, by themselves; its processes are seen at work among the journeys."""

import asyncio
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import shigoto
from shigoto import Shigoto
from shigoto.engine.open import HasPath, expect_shared, name_of_store, open_engine
from shigoto.model.errors import OptionInvalid, StoreRefused, Unsupported
from shigoto.model.ids import uuid7
from shigoto.model.states import CRASH_DELAY
from shigoto.worker.process import Inbox, RunningJobs, Source, WorkerFlag, command, encode, how_it_ended
from shigoto.worker.process_main import StopLevels, Watchdog
from shigoto.worker.supervisor import host, runner_process
from shigoto.worker.supervisor.host import Watch, own_files
from shigoto.worker.supervisor.runner_process import (
    RunnerEnded,
    RunnerHello,
    RunnerNews,
    RunnerProcess,
    Start,
    StartFailed,
    Stop,
)
from shigoto.worker.supervisor.store import MOST_TRACE, deaths_in, end_groups
from shigoto.worker.supervisor.supervisor import RunnerSlot, room_for_runners

# Death


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-99, "was killed by signal 99"),
    ],
)
def test_an_end_is_told_in_words(code: int, words: str) -> None:
    assert how_it_ended(code) == words


def test_one_job_alone_in_a_dead_process_waits_before_it_runs_again() -> None:
    [death] = deaths_in(7, -signal.SIGSEGV, inside=[42], in_children=[], trace="Fatal Python error")

    assert (death.number, death.delay, death.traceback) == (42, CRASH_DELAY, "Fatal Python error")
    assert death.error == "The runner process 7 was killed by SIGSEGV with 1 job inside."


def test_several_jobs_in_a_dead_process_run_again_at_once() -> None:
    deaths = deaths_in(7, -signal.SIGKILL, inside=[1, 2], in_children=[], trace="")

    assert [(death.number, death.delay, death.traceback) for death in deaths] == [
        (1, None, None),
        (2, None, None),
    ]
    assert deaths[0].error == "The runner process 7 was killed by SIGKILL with 2 jobs inside."


def test_jobs_in_child_processes_die_with_the_runner_and_nothing_is_said_of_their_number() -> None:
    inside, child = deaths_in(7, 1, inside=[1], in_children=[2], trace="x" * 2 * MOST_TRACE)

    assert len((inside.traceback or "").encode()) == MOST_TRACE
    assert (inside.delay, child.number, child.delay, child.traceback) == (CRASH_DELAY, 2, None, None)
    assert child.error is not None
    assert "together with the runner process 7, which ended with exit code 1" in child.error


def test_the_only_job_there_was_is_blamed_even_in_a_child_process() -> None:
    [death] = deaths_in(7, -signal.SIGKILL, inside=[], in_children=[2], trace="")

    assert (death.number, death.delay, death.alone) == (2, CRASH_DELAY, True)


@pytest.mark.parametrize(("inside", "in_children"), [([1], []), ([1, 2], []), ([1], [2]), ([], [1, 2])])
def test_nobody_else_is_blamed_for_the_death_of_a_runner(inside: list[int], in_children: list[int]) -> None:
    """I13: those in the runner itself will be known when they have run alone."""
    deaths = deaths_in(7, -signal.SIGKILL, inside=inside, in_children=in_children, trace="")

    assert not any(death.alone for death in deaths)


async def test_a_process_group_is_dead_when_it_was_ended() -> None:
    head = await asyncio.create_subprocess_exec("sleep", "60", process_group=0)

    await end_groups([head.pid, 0, 1, os.getpgrp(), 2**22 + 1])

    with pytest.raises(ProcessLookupError):
        os.killpg(head.pid, 0)
    assert await head.wait() == -signal.SIGKILL


def test_running_jobs_show_the_processes_of_children_and_flags_that_only_grow() -> None:
    created = RunningJobs.create(3)
    assert created.fd is not None
    attached = RunningJobs.attach(created.fd, 3)
    attached.pids[1] = 4711
    assert (created.children(), created.in_children()) == ([], [])

    attached.numbers[1] = -42
    attached.raise_flag(WorkerFlag.OVERDUE)

    assert (created.children(), created.in_children()) == ([4711], [42])
    assert (created.has(WorkerFlag.OVERDUE), created.has(WorkerFlag.LEAVING)) == (True, False)
    created.close()


# How processes are started


def test_a_module_of_the_working_directory_never_stands_before_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert command("shigoto.x", [3, 4]) == [sys.executable, "-P", "-m", "shigoto.x", "3", "4"]


def test_where_the_working_directory_has_this_package_itself_it_is_looked_for_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(Path(shigoto.__file__).parents[1])

    assert command("shigoto.x", [3]) == [sys.executable, "-m", "shigoto.x", "3"]


async def test_a_runner_that_dies_before_it_has_heard_anything_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dead(*_: object, files: tuple[int, ...], **__: object) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(["true"], pass_fds=files)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return process

    monkeypatch.setattr(runner_process, "launch", dead)
    before = set(os.listdir("/proc/self/fd"))

    with pytest.raises(BrokenPipeError):
        RunnerProcess(Start(source=Source(reference="shop:app"), slots=1), lambda *_: None)

    assert set(os.listdir("/proc/self/fd")) == before
    os.waitpid(-1, 0)


# When to start the next one


def ended_runner(**facts: Any) -> RunnerProcess:
    ready_for: float = facts.pop("ready_for", 0.0)
    defaults = {"failed": None, "ended": None, "is_replaced": False, "ready_for": lambda: ready_for}
    return cast(RunnerProcess, SimpleNamespace(**(defaults | facts)))


def test_a_runner_that_had_worked_is_replaced_at_once() -> None:
    slot = RunnerSlot(None)

    for runner in (
        ended_runner(ready_for=1.0),
        ended_runner(ended=RunnerEnded("recycled", 0)),
        ended_runner(is_replaced=True),
    ):
        assert slot.pause(runner, wait_for_change=False) == 0


def test_starts_in_vain_make_the_pauses_longer_until_one_is_good() -> None:
    slot = RunnerSlot(None)

    pauses = [slot.pause(ended_runner(), wait_for_change=False) for _ in range(9)]

    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    slot.pause(ended_runner(ready_for=2), wait_for_change=False)
    assert slot.pause(ended_runner(ended=RunnerEnded("fenced", 0)), wait_for_change=False) == 0.5


def test_a_runner_that_got_to_work_is_forgiven_two_early_deaths_and_never_waited_for_long() -> None:
    slot = RunnerSlot(None)

    pauses = [slot.pause(ended_runner(ready_for=0.1), wait_for_change=False) for _ in range(4)]

    assert pauses == [0, 0, 1, 1]


def test_a_mistake_in_the_code_is_waited_out_if_changes_are_watched_for() -> None:
    runner = ended_runner(failed=StartFailed("WORKER.DECLARATION", "no"))

    assert RunnerSlot(None).pause(runner, wait_for_change=True) == inf
    assert RunnerSlot(None).pause(runner, wait_for_change=False) == 0.5


@pytest.mark.parametrize(("limit", "room"), [(28, 26), (6, 4), (3, 2), (0, 0)])
def test_runners_get_less_time_to_stop_than_the_whole_has(limit: float, room: float) -> None:
    assert room_for_runners(limit) == room


# Stopping


def test_a_request_that_arrives_on_two_ways_is_one() -> None:
    asked: list[str] = []
    with Watchdog() as watchdog:
        stop_levels = StopLevels(lambda: asked.append("stop"), 60, watchdog)

        stop_levels.ask(1)
        stop_levels.ask(1)
        assert asked == ["stop"]
        stop_levels.ask(2)
        assert asked == ["stop"] * 2
        stop_levels.ask_more()
        assert (asked, stop_levels.level) == (["stop"] * 2, 2)


def test_a_request_to_hurry_that_comes_first_is_both() -> None:
    asked: list[str] = []
    with Watchdog() as watchdog:
        StopLevels(lambda: asked.append("stop"), 60, watchdog).ask(2)

    assert asked == ["stop"] * 2


# Where the store is


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///jobs.db", "sqlite:///{folder}/jobs.db"),
        ("jobs.db", "sqlite:///{folder}/jobs.db"),
        ("sqlite:///jobs.db?synchronous=normal", "sqlite:///{folder}/jobs.db?synchronous=normal"),
        ("a?b #c.db", "sqlite:///{folder}/a%3Fb%20%23c.db"),
    ],
)
def test_the_address_of_a_store_means_the_same_in_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Shigoto(url)
    path = name_of_store(app.engine)

    address = app.engine.address

    assert address == expected.format(folder=tmp_path.resolve())
    monkeypatch.chdir("/")
    engine = open_engine(address)
    assert isinstance(engine, HasPath)
    assert str(engine.path) == path


def test_a_store_of_one_process_is_refused_and_has_no_address() -> None:
    app = Shigoto("memory:")

    assert name_of_store(app.engine) == "memory"
    with pytest.raises(Unsupported, match="this process only"):
        _ = app.engine.address
    with pytest.raises(StoreRefused, match="lives in one process only"):
        expect_shared(app.engine)


def test_a_path_that_cannot_be_told_is_refused() -> None:
    with pytest.raises(OptionInvalid, match="The path of the store"):
        _ = Shigoto("\udcff.db").engine.address


# What is said


def test_every_message_arrives_as_it_was_sent() -> None:
    start = Start(
        source=Source(reference="shop:app", path=(os.fsencode("/a\udcff"),)), slots=3, queues=("a",)
    )
    hello = RunnerHello(worker=uuid7(), name="w", url="sqlite:///x", lease=1.5)

    assert Inbox[Start | Stop](Start | Stop).feed(encode(start) + encode(Stop(2))) == [start, Stop(2)]
    assert Inbox[RunnerNews](RunnerNews).feed(encode(hello) + encode(RunnerEnded("drained", 0))) == [
        hello,
        RunnerEnded("drained", 0),
    ]


# The code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_own_files_are_those_in_the_working_directory_that_were_loaded_or_tried(folder: Path) -> None:
    (folder / "well_made.py").write_text("")
    (folder / "ill_made.py").write_text("this is no Python")
    (folder / "untouched.py").write_text("")

    __import__("well_made")
    with pytest.raises(SyntaxError) as caught:
        __import__("ill_made")

    assert own_files() == {folder / "well_made.py"}
    assert own_files(caught.value) == {folder / "well_made.py", folder / "ill_made.py"}


def test_what_is_installed_in_the_working_directory_is_nobodys_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "venv").mkdir()
    (folder / "venv" / "borrowed.py").write_text("")
    monkeypatch.syspath_prepend(str(folder / "venv"))
    monkeypatch.setattr(sys, "prefix", str(folder / "venv"))

    __import__("borrowed")

    assert own_files() == set()


@pytest.mark.parametrize("change", ["edited", "added beside", "removed"])
async def test_a_change_of_the_code_is_noticed_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr("shigoto.worker.supervisor.host.FILES_LOOK_EVERY", 0.01)
    (folder / "parts").mkdir()
    module = folder / "parts" / "module.py"
    module.write_text("1")
    changed, times = asyncio.Event(), []

    def note() -> None:
        times.append(1)
        changed.set()

    watch = Watch(note)
    watch.add([os.fsencode(module)])
    looking = asyncio.create_task(watch.run())
    await asyncio.sleep(0.05)
    assert times == []

    if change == "edited":
        module.write_text("12")
    elif change == "removed":
        module.unlink()
    else:
        (folder / "parts" / "another.py").touch()

    await asyncio.wait_for(changed.wait(), 5)
    await asyncio.sleep(0.05)
    assert times == [1]
    looking.cancel()


# The system


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_linux_tells_how_a_process_fares() -> None:
    assert not host.is_paused(os.getpid())
    assert (host.memory_of(os.getpid()) or 0) > 1 << 20


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_pages_of_a_file_that_a_process_reads_are_not_its_memory(tmp_path: Path) -> None:
    size = 64 << 20
    path = tmp_path / "large"
    path.write_bytes(bytes(size))
    before = host.memory_of(os.getpid()) or 0

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        assert not any(pages[:: mmap.PAGESIZE])
        after = host.memory_of(os.getpid()) or 0

    assert after - before < size // 4


def test_of_a_process_that_is_not_there_nothing_is_known() -> None:
    assert not host.is_paused(2**30)
    assert host.memory_of(2**30) is None
