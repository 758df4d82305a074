"""The pool of threads: everything that goes in comes out once, on the event loop, and nothing is left behind."""

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from uuid import UUID

import pytest

from shigoto import Shigoto
from shigoto.engine.memory import MemoryEngine
from shigoto.model.job import Lease
from shigoto.model.worker import Ending, Settlement
from shigoto.observe.bus import Bus
from shigoto.worker import thread_pool
from shigoto.worker.runner import Runner
from shigoto.worker.state import WorkerState
from shigoto.worker.thread_pool import ThreadPool


def lease(number: int, task: str = "work") -> Lease:
    return Lease(
        number=number,
        token=1,
        id=UUID(int=number),
        task=task,
        queue="default",
        payload="{}",
        attempt=1,
        failures=0,
        snoozes=0,
        max_failures=1,
        priority=0,
        run_at=0,
        claimed_at=0,
    )


class Desk:
    """Stands where the settler would: collects settlements, and knows in which thread they came."""

    def __init__(self, fn: Callable[[], object], size: int) -> None:
        app = Shigoto(engine=MemoryEngine())
        app.task(name="work")(fn)
        loop = asyncio.get_running_loop()
        state = WorkerState(
            id=UUID(int=0),
            name="1",
            opening=lambda: app.engine,
            bus=Bus(),
            random=Random(1),
            lease=30,
            poll=1,
            clock=loop.time,
            announced_at=loop.time(),
        )
        self.state = state
        self.settled: list[Settlement] = []
        self.threads_of_settle: set[int] = set()
        self.rooms = 0
        self._news = asyncio.Event()
        runner = Runner(app.tasks, state.random)
        self.pool = ThreadPool(state, runner, size=size, settle=self._settle, room=self._room)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.settled) < count:
                self._news.clear()
                await self._news.wait()

    def _settle(self, lease: Lease, settlement: Settlement, seconds: float) -> None:
        self.settled.append(settlement)
        self.threads_of_settle.add(threading.get_ident())
        self._news.set()

    def _room(self) -> None:
        self.rooms += 1


def nothing() -> None: ...


def left() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("shigoto-thread")]


async def test_every_job_is_settled_exactly_once_and_on_the_loop() -> None:
    desk = Desk(nothing, size=4)

    for start in range(0, 2_000, 100):
        desk.pool.give([lease(number) for number in range(start, start + 100)])
        await asyncio.sleep(0)
    await desk.until(2_000)
    desk.pool.close()

    assert Counter(settlement.number for settlement in desk.settled) == Counter(range(2_000))
    assert desk.threads_of_settle == {threading.get_ident()}
    assert left() == []


async def test_the_loop_is_woken_less_often_than_jobs_end() -> None:
    desk = Desk(nothing, size=4)

    desk.pool.give([lease(number) for number in range(2_000)])
    await desk.until(2_000)
    desk.pool.close()

    assert desk.rooms < 1_000


async def test_threads_are_started_only_when_there_is_work_for_them() -> None:
    desk = Desk(nothing, size=16)

    assert left() == []

    desk.pool.give([lease(1), lease(2)])
    await desk.until(2)

    assert len(left()) == 2
    desk.pool.close()


async def test_two_jobs_that_need_each_other_run_at_the_same_time() -> None:
    both = threading.Barrier(2)

    def meet() -> None:
        both.wait(5)

    desk = Desk(meet, size=2)

    desk.pool.give([lease(1)])
    desk.pool.give([lease(2)])
    await desk.until(2)
    desk.pool.close()

    assert [settlement.ending for settlement in desk.settled] == [Ending.COMPLETED] * 2


async def test_what_has_not_been_started_can_be_taken_back() -> None:
    started, let_go = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        let_go.wait(5)

    desk = Desk(block, size=1)
    desk.pool.give([lease(number) for number in range(1, 6)])
    await asyncio.to_thread(started.wait, 5)

    assert desk.pool.buffered == 4
    assert [taken.number for taken in desk.pool.take_back()] == [2, 3, 4, 5]
    assert desk.pool.buffered == 0

    let_go.set()
    await desk.until(1)
    desk.pool.close()
    assert [settlement.number for settlement in desk.settled] == [1]


async def test_a_handler_that_outlives_the_pool_is_left_behind_and_its_outcome_dropped() -> None:
    started, let_go, ended = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        let_go.wait(5)
        ended.set()

    desk = Desk(block, size=2)
    desk.pool.give([lease(1)])
    await asyncio.to_thread(started.wait, 5)

    desk.pool.close()
    let_go.set()
    await asyncio.to_thread(ended.wait, 5)
    await asyncio.sleep(0.01)

    assert desk.settled == []


async def test_threads_that_will_not_end_hold_up_the_loop_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many they are: a thread between two jobs counts as idle, and may yet be kept by something."""
    monkeypatch.setattr(thread_pool, "JOIN_TIMEOUT", 0.2)
    both, let_go = threading.Barrier(8), threading.Event()

    def meet() -> None:
        both.wait(5)

    desk = Desk(meet, size=8)
    desk.pool.give([lease(number) for number in range(1, 9)])
    await desk.until(8)
    for slot in desk.pool._thread_slots:
        # As if each were busy with something that is no job.
        slot.thread = threading.Thread(target=let_go.wait, daemon=True)
        slot.thread.start()

    began = asyncio.get_running_loop().time()
    desk.pool.close()

    assert asyncio.get_running_loop().time() - began < 1.0
    let_go.set()


async def test_a_running_job_is_told_that_it_is_cancelled_and_no_other_is() -> None:
    started, let_go = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        let_go.wait(5)

    desk = Desk(block, size=1)
    running, waiting = lease(1), lease(2)
    desk.pool.give([running, waiting])
    await asyncio.to_thread(started.wait, 5)

    assert desk.pool.cancel(running)
    assert not desk.pool.cancel(waiting)
    [hand] = desk.pool.busy_slots()
    assert hand.signals.cancelled

    let_go.set()
    await desk.until(2)
    desk.pool.close()


async def test_a_thread_starts_nothing_once_the_lease_may_be_lost() -> None:
    runs: list[int] = []

    def note() -> None:
        runs.append(1)
        # As if the machine had stood still in here until after the lease.
        desk.state.may_start_until = 0.0

    desk = Desk(note, size=1)
    desk.pool.give([lease(number) for number in range(1, 5)])
    await desk.until(4)
    desk.pool.close()

    assert runs == [1]
    assert [settlement.ending for settlement in desk.settled] == [Ending.COMPLETED] + [Ending.RELEASED] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("way", "code"), [("return", 0), ("exit", 7), ("words", 1), ("raise", 1)])
async def test_a_forked_child_that_comes_back_from_a_handler_ends_there(way: str, code: int) -> None:
    children: list[int] = []
    read, write = os.pipe()

    def fork() -> None:
        os.write(write, b"x")
        if children:
            return
        child = os.fork()
        if child:
            children.append(child)
        elif way == "exit":
            sys.exit(7)
        elif way == "words":
            sys.exit("words")
        elif way == "raise":
            raise ValueError("in the child")

    desk = Desk(fork, size=1)
    desk.pool.give([lease(1), lease(2), lease(3)])
    await desk.until(3)
    _, status = await asyncio.to_thread(os.waitpid, children[0], 0)
    desk.pool.close()

    assert os.waitstatus_to_exitcode(status) == code
    assert os.read(read, 100) == b"xxx"
    assert [settlement.ending for settlement in desk.settled] == [Ending.COMPLETED] * 3
    os.close(read)
    os.close(write)
