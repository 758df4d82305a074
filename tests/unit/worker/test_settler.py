"""Settlements that cannot be stored while the worker ends or is fenced: none spins, none is forgotten."""

import asyncio
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreBusy
from shigoto.model.job import Lease
from shigoto.model.worker import Ending, Settlement, Verdict
from shigoto.observe.bus import Bus
from shigoto.worker.settler import Settler
from shigoto.worker.state import WorkerState


class Store:
    """Answers each settle as `answer` says; all that it accepted is in `stored`."""

    def __init__(self, answer: Callable[[Sequence[Settlement]], list[Verdict]]) -> None:
        self.answer = answer
        self.stored: list[tuple[int, Ending]] = []
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    def settle(self, worker: UUID, settlements: Sequence[Settlement]) -> Op[list[Verdict]]:
        def start() -> Steps[list[Verdict]]:
            yield from ()
            verdicts = self.answer(settlements)
            told = zip(settlements, verdicts, strict=True)
            self.stored += [(s.number, s.ending) for s, verdict in told if verdict is Verdict.ACCEPTED]
            return verdicts

        return Op(start=start)

    def get(self, ids: Sequence[UUID]) -> Op[list[None]]:
        def start() -> Steps[list[None]]:
            yield from ()
            return [None for _ in ids]

        return Op(start=start)

    async def arun(self, op: Op[Any]) -> Any:
        self.asked.set()
        await self.may_answer.wait()
        try:
            next(op.start())
        except StopIteration as stop:
            return stop.value


def settler_on(store: Store) -> tuple[Settler, WorkerState]:
    state = WorkerState(
        id=uuid4(),
        name="w",
        opening=lambda: cast("Engine", store),
        bus=Bus(),
        random=Random(1),
        lease=30.0,
        poll=1.0,
        clock=time.monotonic,
        announced_at=time.monotonic(),
    )
    return Settler(state, lambda delays: None), state


def complete(settler: Settler, state: WorkerState, *numbers: int) -> None:
    for number in numbers:
        lease = Lease(number, 1, uuid4(), "t", "q", 1, 0, 0, 6, 0, 0, 0)
        state.held[number] = lease
        settlement = Settlement(number=number, token=1, queue="q", ending=Ending.COMPLETED, result="1")
        settler.add(lease, settlement, 0.1)


def refuse(settlements: Sequence[Settlement]) -> list[Verdict]:
    raise ValueError("cannot be encoded")


async def test_a_batch_that_cannot_be_stored_is_forgotten_if_the_worker_was_fenced_meanwhile() -> None:
    store = Store(refuse)
    settler, state = settler_on(store)
    complete(settler, state, 1, 2)
    running = asyncio.create_task(settler.run())
    await store.asked.wait()

    settler.drop(lost=True)
    store.may_answer.set()
    for _ in range(50):
        await asyncio.sleep(0)

    assert settler.backlog == 0
    assert not running.done()
    running.cancel()


def find_locked(settlements: Sequence[Settlement]) -> list[Verdict]:
    return [Verdict.BUSY for _ in settlements]


def refuse_locked(settlements: Sequence[Settlement]) -> list[Verdict]:
    raise StoreBusy("locked")


@pytest.mark.parametrize("answer", [find_locked, refuse_locked])
async def test_a_job_that_is_locked_when_its_worker_is_fenced_is_forgotten(
    answer: Callable[[Sequence[Settlement]], list[Verdict]],
) -> None:
    store = Store(answer)
    settler, state = settler_on(store)
    complete(settler, state, 1)
    flushing = asyncio.create_task(settler.flush())
    await store.asked.wait()

    settler.drop(lost=True)
    store.may_answer.set()

    await asyncio.wait_for(flushing, 5.0)
    assert settler.backlog == 0


async def test_a_fenced_worker_that_leaves_gives_nothing_back_and_comes_to_its_end() -> None:
    store = Store(lambda settlements: [Verdict.LOST for _ in settlements])
    store.may_answer.set()
    settler, state = settler_on(store)
    complete(settler, state, 1)

    settler.drop(lost=True)
    settler.release_last(list(state.held.values()), 0)

    assert settler.backlog == 0
    await asyncio.wait_for(settler.flush(), 5.0)
    assert store.stored == []


async def test_a_locked_job_that_cannot_be_stored_later_ends_as_failed_before_the_worker_leaves() -> None:
    answers = iter([[Verdict.BUSY]])

    def answer(settlements: Sequence[Settlement]) -> list[Verdict]:
        if first := next(answers, None):
            return first
        if settlements[0].ending is Ending.COMPLETED:
            return refuse(settlements)
        return [Verdict.ACCEPTED]

    store = Store(answer)
    store.may_answer.set()
    settler, state = settler_on(store)
    complete(settler, state, 1)

    await settler.flush()

    assert store.stored == [(1, Ending.FAILED)]
    assert settler.backlog == 0
