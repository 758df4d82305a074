"""How often we go to the server: for many jobs no more often than for a few."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from time import sleep
from typing import Any
from uuid import UUID

import pytest

from conformance.engine_under_test import EngineUnderTest, ended
from devtools.postgres import Server
from shigoto.engine.op import Op
from shigoto.engine.postgres import PostgresEngine
from shigoto.engine.postgres.connection import LoopConnection, ThreadConnection
from shigoto.model.job import JobSpec, KeyMode, Lease, LogLine, State
from shigoto.model.worker import Ending, LogTail, Orders, Promoted, Report, SweepOrder, Swept
from shigoto.testing.store import VirtualClock
from tests.postgres import Yard, make_store

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

FEW, MANY = 3, 300


@pytest.fixture
def store(postgres: Server, postgres_yard: Yard, postgres_major: int) -> Iterator[EngineUnderTest]:
    assert postgres.running
    with postgres_yard.emptied(postgres_major, make_store) as address:
        engine = PostgresEngine(f"{address}?prepare=off")  # which takes a trip, once
        yield EngineUnderTest(engine, VirtualClock())
        engine.close()


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """Counts the trips of what is done; but for the doorbell, which is rung at most twenty times in a second."""
    made: list[bytes] = []
    ask = ThreadConnection.ask

    def counted(self: ThreadConnection, request: Any, until: float) -> Any:
        if b"pg_notify" not in request.text:
            made.append(request.text)
        return ask(self, request, until)

    monkeypatch.setattr(ThreadConnection, "ask", counted)

    def count(deed: Callable[[], object]) -> int:
        made.clear()
        deed()
        return len(made)

    return count


Trips = Callable[[Callable[[], object]], int]


def started(store: EngineUnderTest, worker: UUID, many: int) -> list[Lease]:
    store.engine.run(store.engine.enqueue_many([store.spec() for _ in range(many)]))
    return store.claim(worker, limit=many)


def tail(first: int) -> LogTail:
    return LogTail(
        first=first, lines=tuple(LogLine(line, 1, "info", "x") for line in range(first, first + 3))
    )


def test_reports_of_many_jobs_are_as_few_trips_as_of_a_few(store: EngineUnderTest, trips: Trips) -> None:
    worker = store.announce()

    def report(many: int) -> int:
        reports = [
            Report(
                number=lease.number, token=lease.token, progress=0.5, progress_text="half", log=tail(first),
                checkpoint="1",
            )
            for lease in started(store, worker, many)
            for first in (1, 3)
        ]  # fmt: skip
        told: list[list[bool]] = []
        made = trips(lambda: told.append(store.engine.run(store.engine.report(worker, reports))))
        assert told == [[True] * (2 * many)]
        return made

    assert report(FEW) == report(MANY)


@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.ERRORED, Ending.FAILED])
def test_settlements_of_many_jobs_are_as_few_trips_as_of_a_few(
    store: EngineUnderTest, trips: Trips, ending: Ending
) -> None:
    worker = store.announce()

    def settle(many: int) -> int:
        settlements = [
            ended(lease, ending, progress=1.0, progress_text="done", log=tail(2))
            for lease in started(store, worker, many)
        ]
        return trips(lambda: store.engine.run(store.engine.settle(worker, settlements)))

    assert settle(FEW) == settle(MANY)


def test_a_sweep_that_finds_many_unknown_tasks_is_no_more_trips(store: EngineUnderTest, trips: Trips) -> None:
    def sweep(many: int) -> int:
        specs = [store.spec(f"unknown_{index}") for index in range(many)]
        store.engine.run(store.engine.enqueue_many(specs))
        return trips(lambda: store.sweep(SweepOrder(unknown_after=60_000)))

    assert sweep(FEW) == sweep(MANY)


def test_a_sweep_that_frees_many_jobs_is_no_more_trips(store: EngineUnderTest, trips: Trips) -> None:
    """Over a network, a sweep of a trip for each job would not end in its time, and would never get any further."""

    def sweep(many: int) -> int:
        dead = [store.announce(lease=1, isolates=False) for _ in range(2)]
        for worker, half in zip(dead, (many // 2, many - many // 2), strict=True):
            assert len(started(store, worker, half)) == half
        sleep(0.005)
        swept: list[Swept] = []
        made = trips(lambda: swept.append(store.sweep(SweepOrder(fence=tuple(dead)))))
        assert (len(swept[0].fenced), len(swept[0].rescued)) == (2, many)
        assert len(store.claim(store.announce(), limit=many)) == many
        return made

    assert sweep(10) == sweep(MANY)


def test_a_sweep_that_expires_many_jobs_is_no_more_trips(store: EngineUnderTest, trips: Trips) -> None:
    """T16."""

    def sweep(many: int) -> int:
        specs = [store.spec(expires_in=1, queue=f"{many}-{index % 7}") for index in range(many)]
        store.engine.run(store.engine.enqueue_many(specs))
        sleep(0.005)
        swept: list[Swept] = []
        made = trips(lambda: swept.append(store.sweep()))
        assert swept[0].expired == many
        return made

    assert sweep(10) == sweep(MANY)


@pytest.mark.parametrize("force", [False, True])
def test_cancelling_retrying_and_getting_many_jobs_is_no_more_trips(
    store: EngineUnderTest, trips: Trips, force: bool
) -> None:
    """T11, T12, T14, T15."""
    worker = store.announce()

    def manage(many: int) -> list[int]:
        specs = [store.spec(key=f"{many}-{index}", expires_in=60_000) for index in range(2 * many)]
        jobs = [job.id for job in store.engine.run(store.engine.enqueue_many(specs))]
        assert len(store.claim(worker, limit=many)) == many
        heard = State.CANCELLED if force else State.PROCESSING
        told: list[Any] = []
        ops: list[Op[Any]] = [
            store.engine.cancel(jobs, force=force), store.engine.retry(jobs[many:]), store.engine.get(jobs),
        ]  # fmt: skip

        def tell(op: Op[Any]) -> None:
            told.extend(store.engine.run(op))

        made = [trips(partial(tell, op)) for op in ops]
        assert told[: 2 * many] == [heard] * many + [State.CANCELLED] * many
        assert [job.state for job in told[4 * many :]] == [State.PENDING] * many
        store.engine.run(store.engine.cancel(jobs, force=True))
        return made

    assert manage(10) == manage(MANY)


def test_a_beat_that_has_lost_many_jobs_is_no_more_trips(store: EngineUnderTest, trips: Trips) -> None:
    worker = store.announce()

    def beat(many: int) -> int:
        leases = started(store, worker, many)
        store.engine.run(store.engine.cancel([lease.id for lease in leases], force=True))
        orders: list[Orders] = []
        made = trips(lambda: orders.append(store.beat(worker, *leases)))
        assert len(orders[0].lost) == many
        return made

    assert beat(FEW) == beat(MANY)


def test_a_promotion_is_one_trip(store: EngineUnderTest, trips: Trips) -> None:
    """What is half promoted is seen by nobody, and a client in the midst of it may be slow."""
    store.engine.run(store.engine.enqueue_many([store.spec(delay=5) for _ in range(MANY)]))
    sleep(0.01)
    told: list[Promoted] = []

    assert trips(lambda: told.append(store.promote())) == 1
    assert trips(lambda: told.append(store.promote())) == 1
    assert told == [Promoted(MANY, None), Promoted(0, None)]


@pytest.mark.parametrize("mode", ["keep", "replace", "preserve_run_at", "unsafe_dedupe"])
def test_many_keys_are_as_few_trips_as_a_few(store: EngineUnderTest, trips: Trips, mode: KeyMode) -> None:
    """A2: some are new, some are held by jobs that wait, run or have ended, and some come twice."""
    worker = store.announce()

    def specs(many: int, name: str) -> list[JobSpec]:
        return [store.spec(key=f"{name}-{index}", key_mode=mode, expires_in=9_000) for index in range(many)]

    def enqueue(many: int) -> int:
        name = f"{mode}-{many}"
        ended_jobs, running, waiting = (
            specs(many, f"ended-{name}"),
            specs(many, f"run-{name}"),
            specs(many, name),
        )
        store.engine.run(store.engine.enqueue_many(ended_jobs))
        leases = store.claim(worker, limit=many)
        store.engine.run(store.engine.settle(worker, [ended(lease, Ending.FAILED) for lease in leases]))
        store.engine.run(store.engine.enqueue_many(running))
        assert len(store.claim(worker, limit=many)) == many
        store.engine.run(store.engine.enqueue_many(waiting))
        asked = [*specs(many, f"ended-{name}"), *specs(many, f"run-{name}"), *specs(many, name)]
        asked += [*specs(many, f"new-{name}"), *specs(many, f"new-{name}")]
        made = trips(lambda: store.engine.run(store.engine.enqueue_many(asked[: 3 * many + 90])))
        for lease in store.claim(worker, limit=9_999):
            store.settle(worker, lease, Ending.COMPLETED)
        return made

    assert enqueue(FEW) == enqueue(MANY)


def test_callers_who_wait_together_are_two_trips(
    store: EngineUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first goes by itself, and all who come meanwhile go by one statement."""
    store.engine.run(store.engine.enqueue_many([store.spec()]))  # so that there is a lane
    made: list[bytes] = []
    ask = LoopConnection.ask

    async def counted(self: LoopConnection, request: Any, until: float) -> Any:
        if b"pg_notify" not in request.text:
            made.append(request.text)
        return await ask(self, request, until)

    async def enqueue() -> None:
        ops = [store.engine.enqueue_many([store.spec()]) for _ in range(1 + MANY)]
        await asyncio.gather(*map(store.engine.arun, ops))

    monkeypatch.setattr(LoopConnection, "ask", counted)
    asyncio.run(enqueue())

    made = [text for text in made if b"pg_backend_pid" not in text]  # which each new connection asks once
    assert len(made) == 2
    assert store.counts().pending == 2 + MANY
