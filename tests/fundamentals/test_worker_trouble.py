"""When the store cannot be reached, or a worker is gone: nothing is lost, nothing is run in vain."""

import asyncio
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import pytest
from msgspec import structs

from shigoto import NotReady, State, StoreBusy, StoreUnavailable
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.ids import uuid7
from shigoto.model.worker import Announcement, SweepOrder, Verdict, Want
from shigoto.observe import events
from shigoto.testing.store import START, VirtualClock
from shigoto.worker import Stopped
from tests.fundamentals.stage import DAY, DeafToBeats, Stage

T = TypeVar("T")


@pytest.fixture
def stage() -> Stage:
    return Stage()


# Trouble with the store


class Shaky(MemoryEngine):
    """A store that cannot be reached while `down` is set; `lose` commits, but loses that many answers of settle."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.down = False
        self.lose = 0
        self.settled: list[list[int]] = []

    def run(self, op: Op[T]) -> T:
        if self.down:
            raise StoreUnavailable("the disk is gone")
        return super().run(op)

    def settle(self, worker: UUID, settlements: Any) -> Op[list[Verdict]]:
        self.settled.append([settlement.number for settlement in settlements])
        return super().settle(worker, settlements)

    async def arun(self, op: Op[T]) -> T:
        value = self.run(op)
        if self.lose and isinstance(value, list) and value and isinstance(value[0], Verdict):
            self.lose -= 1
            raise StoreUnavailable("the answer was lost")
        return value


@pytest.fixture
def shaky() -> Stage:
    return Stage(Shaky)


def store(stage: Stage) -> Shaky:
    assert isinstance(stage.engine, Shaky)
    return stage.engine


def test_an_outage_of_five_minutes_costs_no_rerun(shaky: Stage) -> None:
    """Semantics §4: keep running, settle when the store is back; nobody is fenced meanwhile."""
    runs: list[int] = []

    @shaky.app.task
    async def work() -> str:
        runs.append(shaky.now)
        await asyncio.sleep(60)
        return "kept"

    async def main() -> None:
        job = await work.aenqueue()
        async with shaky.working(), shaky.working(name="2", random=Random(9)):
            await shaky.until(events.JobStarted)
            await asyncio.sleep(1)
            store(shaky).down = True
            await asyncio.sleep(300)
            store(shaky).down = False
            assert await job.aresult() == "kept"
            await asyncio.sleep(120)

    shaky.play(main)

    assert runs == [0]
    assert not shaky.all(events.WorkersFenced)
    assert shaky.job().attempt == 1
    assert {event.part for event in shaky.all(events.StoreTrouble)} >= {
        "keeper",
        "settler",
        "promoter",
        "sweeper",
    }
    assert shaky.all(events.StoreRecovered)


class ShortOfBreath(MemoryEngine):
    """A store that cannot be reached when a worker announces itself, until so many milliseconds have passed."""

    def __init__(self, clock: VirtualClock, milliseconds: int) -> None:
        super().__init__(clock=clock)
        self._time = clock
        self._until = START + milliseconds

    def announce(self, announcement: Announcement) -> Op[None]:
        if self._time.now < self._until:
            raise StoreUnavailable("the answer was lost")
        return super().announce(announcement)


@pytest.mark.parametrize("milliseconds", [1, 1_000, 4_000])
def test_a_worker_that_cannot_announce_itself_tries_again_for_a_while(milliseconds: int) -> None:
    """F40: a connection that breaks just then must not end the process."""
    stage = Stage(lambda clock: ShortOfBreath(clock, milliseconds))

    @stage.app.task
    async def work() -> None: ...

    work.enqueue()

    assert stage.drain().reason == "drained"
    assert stage.job().state is State.COMPLETED
    assert milliseconds <= stage.now < milliseconds + 1_500


def test_a_worker_that_cannot_announce_itself_for_five_seconds_says_so_and_ends() -> None:
    stage = Stage(lambda clock: ShortOfBreath(clock, 10_000))

    with pytest.raises(NotReady, match=r"The worker cannot begin\. the answer was lost"):
        stage.drain()

    assert 4_000 < stage.now <= 5_000
    assert stage.engine.run(stage.engine.workers()) == []


def test_a_worker_that_is_stopped_while_it_cannot_announce_itself_ends_at_once() -> None:
    stage = Stage(lambda clock: ShortOfBreath(clock, 10_000))

    async def main() -> None:
        worker = stage.worker()
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(1)
        worker.stop()
        assert (await running).reason == "stopped"

    stage.play(main)

    assert stage.now < 2_000


def test_a_settlement_whose_answer_was_lost_is_sent_again_and_recognised(shaky: Stage) -> None:
    """C9: the store knows what it has accepted."""

    @shaky.app.task
    async def work() -> None: ...

    async def main() -> None:
        store(shaky).lose = 3
        for _ in range(5):
            await work.aenqueue()
        async with shaky.working():
            await shaky.until(events.JobCompleted, 5)

    shaky.play(main)

    assert not shaky.all(events.LeaseLostEvent)
    assert [job.state for job in shaky.app.find()] == [State.COMPLETED] * 5
    first, *others = store(shaky).settled
    assert all(batch == first for batch in others[:3])


class Locked(MemoryEngine):
    """A store in which somebody has locked job 1, until so many milliseconds have passed."""

    def __init__(self, clock: VirtualClock, milliseconds: int) -> None:
        super().__init__(clock=clock)
        self._time = clock
        self._until = START + milliseconds

    def settle(self, worker: UUID, settlements: Any) -> Op[list[Verdict]]:
        free = [one for one in settlements if one.number != 1 or self._time.now >= self._until]
        op = super().settle(worker, free)
        if len(free) == len(settlements):
            return op
        if len(settlements) == 1:
            raise StoreBusy("locked")

        def steps() -> Any:
            verdicts = iter((yield from op.start()))
            return [next(verdicts) if one in free else Verdict.BUSY for one in settlements]

        return structs.replace(op, start=steps)


@pytest.mark.parametrize("together", [True, False])
def test_a_job_that_somebody_has_locked_is_settled_later_and_holds_up_nobody(together: bool) -> None:
    """E18: a transaction whose client is gone keeps its rows locked until the server finds out."""
    stage = Stage(lambda clock: Locked(clock, 60_000))

    @stage.app.task
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def main() -> None:
        await work.aenqueue(1)
        for _ in range(5):
            await work.aenqueue(1 if together else 2)
        async with stage.working():
            await stage.until(events.JobCompleted, 5)
            assert stage.now < 4_000
            await stage.until(events.JobCompleted, 6)

    stage.play(main)

    assert 60_000 <= stage.now < 63_000
    assert {job.attempt for job in stage.app.find()} == {1}
    assert not stage.all(events.StoreTrouble)


def test_a_drain_and_a_stop_wait_for_a_job_that_somebody_has_locked() -> None:
    stage = Stage(lambda clock: Locked(clock, 10_000))

    @stage.app.task
    async def work() -> None: ...

    work.enqueue()
    work.enqueue()

    assert stage.drain().reason == "drained"
    assert 10_000 <= stage.now < 13_000
    assert {job.state for job in stage.app.find()} == {State.COMPLETED}


def test_a_worker_that_stops_settles_what_was_locked_as_soon_as_it_can() -> None:
    stage = Stage(lambda clock: Locked(clock, 5_000))

    @stage.app.task
    async def work() -> None: ...

    async def main() -> None:
        await work.aenqueue()
        await work.aenqueue()
        async with stage.working():
            await stage.until(events.JobCompleted, 1)

    stage.play(main)

    assert 5_000 <= stage.now < 7_000
    assert {job.state for job in stage.app.find()} == {State.COMPLETED}


@pytest.mark.parametrize("error", [ValueError("a fault of ours"), StoreUnavailable("not now")])
def test_that_the_store_cannot_tell_what_became_of_a_job_keeps_nobody_from_hearing_of_its_end(
    shaky: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    @shaky.app.task(retries=0)
    async def work() -> None:
        raise RuntimeError("as always")

    def broken(_: object) -> Op[Any]:
        raise error

    monkeypatch.setattr(shaky.engine, "get", broken)
    work.enqueue()
    store(shaky).lose = 1

    assert shaky.drain() == Stopped(reason="drained")
    [told] = shaky.all(events.JobFailedEvent)
    assert told.error == "RuntimeError: as always"


def test_a_drain_is_not_over_before_the_store_has_told_what_became_of_every_job(
    shaky: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    @shaky.app.task(retries=0)
    async def work() -> None:
        raise RuntimeError("as always")

    asked: list[int] = []
    arun = shaky.engine.arun

    async def slowly(op: Op[Any]) -> Any:
        if op.mode == "read" and store(shaky).settled:
            asked.append(shaky.now)
            await asyncio.sleep(60)
        return await arun(op)

    monkeypatch.setattr(shaky.engine, "arun", slowly)
    work.enqueue()
    store(shaky).lose = 1

    assert shaky.drain() == Stopped(reason="drained")
    assert asked
    assert len(shaky.all(events.JobFailedEvent)) == 1
    assert shaky.times(events.JobFailedEvent)[0] >= asked[0] + 60_000


def test_a_worker_out_of_touch_claims_no_more_but_runs_on(shaky: Stage) -> None:
    """Semantics §4: no claims from 2/3 of a lease after the last confirmed beat."""
    shaky = Stage(DeafToBeats)
    assert isinstance(shaky.engine, DeafToBeats)
    engine = shaky.engine

    @shaky.app.task
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def main() -> None:
        async with shaky.working(name="1"):
            await work.aenqueue(90)
            await shaky.until(events.JobStarted)
            engine.deaf = True
            await asyncio.sleep(25)
            await work.aenqueue(1)
            await asyncio.sleep(5)
            assert len(shaky.all(events.JobStarted)) == 1
            engine.deaf = False
            await shaky.until(events.JobCompleted, 2)

    shaky.play(main)

    assert shaky.times(events.JobCompleted)[-1] == 90_000


class Silence:
    """A doorbell that is never heard."""

    async def wait(self, timeout: float) -> bool:
        await asyncio.sleep(timeout)
        return False

    def close(self) -> None: ...


def test_a_worker_that_is_in_touch_again_looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Done-when of the PostgreSQL store: picked up within 5 seconds of its return, though the ring was missed."""
    monkeypatch.setattr(MemoryEngine, "listen", lambda _: Silence())
    stage = Stage(DeafToBeats)
    assert isinstance(stage.engine, DeafToBeats)
    engine = stage.engine

    @stage.app.task
    async def work() -> None: ...

    async def main() -> int:
        async with stage.working(poll=DAY):
            await asyncio.sleep(15)
            engine.deaf = True
            await asyncio.sleep(60)
            await work.aenqueue()
            engine.deaf = False
            back_at = stage.now
            await stage.until(events.JobCompleted)
            return stage.now - back_at

    assert stage.play(main) <= 5_000


# Paused for longer than the lease


@pytest.mark.parametrize("taken", [False, True])
def test_a_worker_that_was_paused_past_its_lease_starts_nothing_it_may_have_lost(
    stage: Stage, *, taken: bool
) -> None:
    """I3: on waking, the leases in the buffer may be those of jobs that others have completed."""
    runs: list[int] = []

    @stage.app.task
    async def work(number: int) -> None:
        runs.append(number)
        if number == 1:
            # The machine stands still in here, while the store and the others go on.
            stage.clock.now += 40_000
            if taken:
                stage.engine.run(stage.engine.sweep(SweepOrder(fence=(worker.id,))))

    for number in range(1, 8):
        work.enqueue(number)
    worker = stage.worker(drain=not taken, concurrency=10)
    stopped = stage.play(worker.run)

    if taken:
        assert stopped == Stopped(reason="fenced")
        assert runs == [1]
    else:
        assert runs == list(range(1, 8))
        assert [job.releases for job in stage.app.find()] == [1] * 6 + [0]
        assert len(stage.all(events.JobStarted)) == 7


# Fencing and rescue


def ghost(stage: Stage, tasks: tuple[str, ...]) -> UUID:
    """A worker that announces itself, takes a job, and is never heard of again."""
    engine, name = stage.engine, uuid7()
    announcement = Announcement(id=name, name="ghost", tasks=tasks, queues=None, slots=1, version="0")
    engine.run(engine.announce(announcement))
    assert engine.run(engine.claim(name, [Want(tasks=tasks, queues=None, limit=1)]))
    return name


def test_the_jobs_of_a_dead_worker_are_rescued_within_45_seconds(stage: Stage) -> None:
    """S1-13, S1-14: the lease, one sweep, and a second look a third of a lease later."""

    @stage.app.task
    async def work() -> None: ...

    async def main() -> None:
        await work.aenqueue()
        dead = ghost(stage, ("work",))
        async with stage.working():
            await stage.until(events.JobsRescued)
            await stage.until(events.JobCompleted)
        assert stage.all(events.WorkersFenced) == [events.WorkersFenced("1", (dead,))]

    stage.play(main)

    [fenced] = stage.times(events.WorkersFenced)
    assert 40_000 < fenced <= 45_100
    assert stage.job().crashes == 1


def test_after_an_outage_nobody_is_fenced_before_a_whole_lease_of_contact(shaky: Stage) -> None:
    @shaky.app.task
    async def work() -> None: ...

    async def main() -> None:
        await work.aenqueue()
        ghost(shaky, ("work",))
        async with shaky.working():
            store(shaky).down = True
            await asyncio.sleep(300)
            store(shaky).down = False
            await shaky.until(events.WorkersFenced)

    shaky.play(main)

    [fenced] = shaky.times(events.WorkersFenced)
    assert fenced >= 330_000


def test_after_an_outage_a_worker_with_a_short_lease_gives_the_others_five_seconds_to_come_back(
    shaky: Stage,
) -> None:
    """Semantics §4: others have made pauses meanwhile, which may be longer than a lease of a second."""

    @shaky.app.task
    async def work() -> None: ...

    async def main() -> None:
        await work.aenqueue()
        ghost(shaky, ("work",))
        async with shaky.working(lease=1.0):
            store(shaky).down = True
            await asyncio.sleep(300)
            store(shaky).down = False
            await shaky.until(events.WorkersFenced)

    shaky.play(main)

    [fenced] = shaky.times(events.WorkersFenced)
    assert 305_000 <= fenced < 309_000


def test_a_fenced_worker_stops_at_once_and_drops_its_results(stage: Stage) -> None:
    ended: list[str] = []

    @stage.app.task
    async def work() -> str:
        try:
            await asyncio.sleep(DAY)
        finally:
            ended.append("cancelled")
        return "never"

    async def main() -> Stopped:
        await work.aenqueue()
        worker = stage.worker()
        run = asyncio.create_task(worker.run())
        await stage.until(events.JobStarted)
        fence(stage, worker.id)
        return await run

    assert stage.play(main) == Stopped(reason="fenced")

    assert ended == ["cancelled"]
    assert stage.now <= 11_000
    assert (stage.job().state, stage.job().crashes) == (State.PENDING, 1)


def test_a_zombie_loses_what_somebody_else_has_taken() -> None:
    """C10: the late outcome is refused and told as lost."""
    stage = Stage(DeafToBeats)
    assert isinstance(stage.engine, DeafToBeats)
    stage.engine.deaf = True

    @stage.app.task
    async def work() -> str:
        await asyncio.sleep(1)
        return "late"

    async def main() -> None:
        await work.aenqueue()
        async with stage.working() as worker:
            await stage.until(events.JobStarted)
            fence(stage, worker.id)
            await stage.until(events.LeaseLostEvent)

    stage.play(main)

    assert not stage.all(events.JobCompleted)
    assert stage.job().state is State.PENDING


def fence(stage: Stage, worker: UUID) -> None:
    """What two sweepers elsewhere would have done, if this worker had been silent for a lease."""
    engine = stage.engine
    now = stage.clock.now
    stage.clock.now += 31_000
    engine.run(engine.sweep(SweepOrder(fence=(worker,))))
    stage.clock.now = now
