"""One doorbell for all who wait for work: who is woken, and how often the store is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID, uuid4

import pytest
from fastapi import Request
from starlette.types import Message

from shigoto import Shigoto
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.engine.protocol import Doorbell, Relay
from shigoto.model.errors import StoreUnavailable
from shigoto.model.job import JobSpec, Lease
from shigoto.model.worker import Announcement, Want
from shigoto.server import long_poll
from shigoto.server.long_poll import WorkWaiters
from shigoto.server.service import Service

T = TypeVar("T")

PATIENCE = 20.0


class Hand:
    """A doorbell that a test rings."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()
        self.begun = asyncio.Event()
        self.closed = False

    async def wait(self, timeout: float) -> bool:
        self.begun.set()
        await self.rung.wait()
        self.rung.clear()
        return True

    def close(self) -> None:
        self.closed = True


class Belled(Relay):
    """An engine whose doorbell is in a test's hand."""

    def __init__(self, doorbell: Callable[[], Doorbell]) -> None:
        super().__init__(MemoryEngine())
        self._doorbell = doorbell

    def listen(self) -> Doorbell:
        return self._doorbell()


@asynccontextmanager
async def listening_waiters() -> AsyncIterator[tuple[WorkWaiters, Hand]]:
    """Waiters that listen, and the doorbell."""
    doorbell = Hand()
    engine = Belled(lambda: doorbell)
    waiters = WorkWaiters(lambda: engine, first=5)
    running = asyncio.create_task(waiters.run())
    await doorbell.begun.wait()
    yield waiters, doorbell
    waiters.close()
    await asyncio.wait_for(running, PATIENCE)
    assert doorbell.closed


def until() -> float:
    return asyncio.get_running_loop().time() + PATIENCE


async def settle() -> None:
    """Let everybody do what he can do now."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_ring_wakes_the_first_of_every_line_and_he_the_next() -> None:
    async with listening_waiters() as (waiters, doorbell):
        lines = {
            name: [asyncio.create_task(waiters.wait(name, until())) for _ in range(3)] for name in ("a", "b")
        }
        await settle()

        doorbell.rung.set()
        await settle()

        assert [[task.done() for task in line] for line in lines.values()] == [[True, False, False]] * 2
        waiters.passed_on("a")
        await settle()
        assert [task.done() for task in lines["a"]] == [True, True, False]
        assert [task.done() for task in lines["b"]] == [True, False, False]
        waiters.close()
        assert [await task for line in lines.values() for task in line] == [
            True,
            True,
            False,
            True,
            False,
            False,
        ]


async def test_a_ring_between_the_look_and_the_wait_is_not_missed() -> None:
    async with listening_waiters() as (waiters, doorbell):
        seen = waiters.rung
        doorbell.rung.set()
        await settle()

        assert await waiters.wait("a", until(), seen=seen)


async def test_who_has_looked_in_vain_is_the_first_still() -> None:
    async with listening_waiters() as (waiters, doorbell):
        other = asyncio.create_task(waiters.wait("a", until()))
        await settle()
        again = asyncio.create_task(waiters.wait("a", until(), seen=waiters.rung, again=True))
        await settle()
        doorbell.rung.set()
        await settle()

        assert (again.done(), other.done()) == (True, False)


async def test_who_goes_away_does_not_keep_the_ring_to_himself() -> None:
    async with listening_waiters() as (waiters, _):
        gone, next_ = (asyncio.create_task(waiters.wait("a", until())) for _ in range(2))
        await settle()
        waiters.passed_on("a")
        gone.cancel()
        await settle()

        assert next_.done()
        assert waiters._lines == {}


async def test_time_that_is_over_ends_the_wait() -> None:
    async with listening_waiters() as (waiters, _):
        assert not await waiters.wait("a", asyncio.get_running_loop().time() + 0.01)
        assert waiters._lines == {}


async def test_rings_are_counted_for_those_who_listen_from_afar() -> None:
    async with listening_waiters() as (waiters, doorbell):
        assert waiters.rung == 5
        await asyncio.wait_for(waiters.rings(4, until()), PATIENCE)  # it has rung since
        one = asyncio.create_task(waiters.rings(5, until()))
        stranger = asyncio.create_task(waiters.rings(123_456_789, until()))  # of another server
        await settle()
        assert not any((one.done(), stranger.done()))
        doorbell.rung.set()
        await settle()

        assert one.done()
        assert stranger.done()
        assert waiters.rung == 6


async def test_a_bell_that_breaks_is_hung_anew() -> None:
    heard: list[int] = []

    class Broken(Hand):
        async def wait(self, timeout: float) -> bool:
            heard.append(1)
            raise StoreUnavailable("no")

    engine = Belled(Broken)
    waiters = WorkWaiters(lambda: engine)
    running = asyncio.create_task(waiters.run())
    waiting = asyncio.create_task(waiters.wait("a", until()))

    assert await asyncio.wait_for(waiting, PATIENCE)  # to look by himself
    waiters.close()
    await asyncio.wait_for(running, PATIENCE)
    assert heard


class Counting(Relay):
    """Counts how often it is asked for work."""

    claims = 0

    def claim(self, worker: UUID, wants: Sequence[Want]) -> Op[list[Lease]]:
        self.claims += 1
        return super().claim(worker, wants)


async def test_a_thousand_who_wait_for_the_same_cost_one_look_per_ring() -> None:
    engine = Counting(MemoryEngine())
    service = Service(Shigoto(engine=engine), housekeeping=False)
    want = Want(tasks=("work",), queues=None, limit=1)
    worker = uuid4()
    await engine.arun(
        engine.announce(Announcement(id=worker, name="w", tasks=("work",), queues=None, slots=1, version="1"))
    )
    async with service:
        found: list[asyncio.Task[list[Lease]]] = [
            asyncio.create_task(long_poll._sought(service, worker, want, PATIENCE)) for _ in range(1_000)
        ]
        await settle()
        assert engine.claims == 1_000  # each has looked once

        specs = [JobSpec(id=uuid4(), task="work", queue="default", payload="{}") for _ in range(3)]
        await engine.arun(engine.enqueue_many(specs))
        while sum(task.done() for task in found) < 3:
            await asyncio.wait([task for task in found if not task.done()], return_when="FIRST_COMPLETED")
        await settle()

        assert engine.claims <= 1_010  # three find one each, and the fourth nothing; a second may have passed
        service.waiters.close()
        assert sum(len(leases) for leases in await asyncio.gather(*found)) == 3


async def test_what_was_found_for_somebody_who_has_gone_goes_back() -> None:
    engine = MemoryEngine()
    service = Service(Shigoto(engine=engine), housekeeping=False)
    worker = uuid4()
    await engine.arun(
        engine.announce(Announcement(id=worker, name="w", tasks=("work",), queues=None, slots=1, version="1"))
    )
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Relay):
        async def arun(self, op: Op[T]) -> T:
            value = await super().arun(op)
            if isinstance(value, list) and value and isinstance(value[0], Lease):
                entered.set()
                await go_on.wait()
            return value

    service.app._engine = Slow(engine)
    async with service:
        [job] = await engine.arun(
            engine.enqueue_many([JobSpec(id=uuid4(), task="work", queue="default", payload="{}")])
        )
        looking = asyncio.create_task(
            long_poll._sought(service, worker, Want(tasks=("work",), queues=None, limit=1), PATIENCE)
        )
        await asyncio.wait_for(entered.wait(), PATIENCE)
        looking.cancel()
        await settle()
        go_on.set()
        await asyncio.wait_for(asyncio.gather(*service._errands), PATIENCE)
    [stored] = engine.run(engine.get([job.id]))
    assert stored is not None
    assert stored.state == "pending"
    assert engine.run(engine.attempts(job.id)) == []


@pytest.mark.parametrize("wait", [0.0, PATIENCE])
async def test_what_was_found_for_a_request_that_is_cut_off_goes_back(
    monkeypatch: pytest.MonkeyPatch, wait: float
) -> None:
    """A second stop signal, or the deadline, in the moment in which there was something."""
    engine = MemoryEngine()
    service = Service(Shigoto(engine=engine), housekeeping=False)
    worker = uuid4()
    await engine.arun(
        engine.announce(Announcement(id=worker, name="w", tasks=("work",), queues=None, slots=1, version="1"))
    )
    [job] = await engine.arun(
        engine.enqueue_many([JobSpec(id=uuid4(), task="work", queue="default", payload="{}")])
    )
    real, got = long_poll._sought, list[Lease]()

    async def sought(*words: Any) -> list[Lease]:
        got.extend(await real(*words))
        asyncio.get_running_loop().call_soon(asking.cancel)  # before anybody hears of it
        return got

    async def silence() -> Message:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    monkeypatch.setattr(long_poll, "_sought", sought)
    request = Request({"type": "http"}, silence)
    want = Want(tasks=("work",), queues=None, limit=1)
    async with service:
        asking = asyncio.create_task(long_poll.leases_for(request, service, worker, want, wait))
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert len(got) == 1

    [stored] = engine.run(engine.get([job.id]))  # the service has not ended before that
    assert stored is not None
    assert stored.state == "pending"
    assert engine.run(engine.attempts(job.id)) == []
