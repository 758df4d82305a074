"""Fleets in a model: workers with their real `Slots` and `Backoff`, on virtual time, at a store that does one trip
after another, each for a fixed time and so much more for each job."""

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count
from random import Random

import pytest

from shigoto.worker.backoff import Backoff
from shigoto.worker.slots import Slots

TRIP, JOB = 0.001, 0.000010  # seconds that the store needs for a trip, and for each job in it
SPEED = 100_000  # jobs that a worker runs in a second
SIZE = 50
BEST = 1 / (
    2 * JOB
)  # jobs a second that the store could pass on if trips cost nothing: each is claimed and settled


class Store:
    """Answers one trip after the other, in the order in which they were asked, from a backlog without an end."""

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._line: deque[tuple[int, Callable[[], None]]] = deque()
        self._busy = False
        self.paused_until = 0.0

    def ask(self, jobs: int, answer: Callable[[], None]) -> None:
        self._line.append((jobs, answer))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._line)
        if self._busy:
            jobs, answer = self._line.popleft()
            begins = max(self._clock.now, self.paused_until)

            def done() -> None:
                answer()
                self._next()

            self._clock.at(begins + TRIP + jobs * JOB, done)


class Clock:
    """Virtual time: calls what is due, in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), call))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, call = heapq.heappop(self._due)
            call()
        self.now = until


class Worker:
    """Claims, runs and settles as the claimer and the settler do, with one claim and one settlement on its way."""

    def __init__(self, clock: Clock, store: Store, random: Random) -> None:
        self._clock, self._store, self._random = clock, store, random
        self._slots = Slots(SIZE, clock.now)
        self._claims, self._settlements = Backoff(), Backoff()
        self._held = 0  # claimed and not run
        self._ran_at = clock.now
        self._ended = 0  # run and not settled
        self._settling = False
        self.claimed = self.given_back = self.done = 0
        clock.at(random.uniform(0, 0.005), self._claim)

    def _run(self) -> None:
        """Run what there was time for since the last look."""
        now = self._clock.now
        ran = min(self._held, int((now - self._ran_at) * SPEED))
        self._held -= ran
        self._ended += ran
        self._ran_at = now if not self._held else self._ran_at + ran / SPEED
        self._settle()

    def _claim(self) -> None:
        self._run()
        now, buffered = self._clock.now, max(0, self._held - SIZE)
        if self._slots.late(now, buffered):
            self._slots.took_back(buffered)
            self._slots.collapse()
            self._held -= buffered
            self.given_back += buffered
            buffered = 0
        wanted = self._slots.want(now, buffered=buffered, running=min(SIZE, self._held))
        if not wanted:
            wait = (buffered - max(0, self._slots.low_water)) / SPEED if buffered else self._held / SPEED
            self._clock.at(now + max(0.0005, wait), self._claim)
            return
        self._store.ask(wanted, lambda: self._claimed(wanted, now))

    def _claimed(self, jobs: int, sent_at: float) -> None:
        self._run()
        now = self._clock.now
        self._claims.note(now - sent_at, jobs)
        self._slots.gave(now, jobs, starved=not self._held)
        self._ran_at = self._ran_at if self._held else now
        self._held += jobs
        self.claimed += jobs
        self._clock.at(now + self._claims.pause(self._random), self._claim)
        self._clock.at(now + min(self._held, 1_000) / SPEED, self._run)
        self._clock.at(now + self._held / SPEED + 0.0001, self._room)

    def _room(self) -> None:
        """Tell the ledger that there is room, as the claimer does also while it rests."""
        self._run()
        buffered = max(0, self._held - SIZE)
        self._slots.want(self._clock.now, buffered=buffered, running=min(SIZE, self._held))

    def _settle(self) -> None:
        if self._ended and not self._settling:
            self._settling = True
            jobs, self._ended = min(self._ended, 4_000), max(0, self._ended - 4_000)
            sent_at = self._clock.now
            self._store.ask(jobs, lambda: self._settled(jobs, sent_at))

    def _settled(self, jobs: int, sent_at: float) -> None:
        self.done += jobs
        self._settlements.note(self._clock.now - sent_at, jobs)

        def again() -> None:
            self._settling = False
            self._run()

        self._clock.at(self._clock.now + self._settlements.pause(self._random), again)


class Fleet:
    def __init__(self, size: int) -> None:
        self.clock, random = Clock(), Random(size)
        self.store = Store(self.clock)
        self.workers = [Worker(self.clock, self.store, random) for _ in range(size)]

    def done(self) -> int:
        return sum(worker.done for worker in self.workers)

    def speed(self, seconds: float) -> float:
        """Jobs a second that are settled in the seconds to come."""
        before = self.done()
        self.clock.run(self.clock.now + seconds)
        return (self.done() - before) / seconds


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 64, 128, 256, 1_000])
def test_a_fleet_of_any_size_keeps_the_store_at_work_and_shares_it(size: int) -> None:
    """No collapse: while workers look ahead, trips cost little beside their jobs. A thousand of them can ask for little
    more than their slots, or each would wait for its turn for too long."""
    fleet = Fleet(size)
    fleet.speed(10)
    before = [worker.done for worker in fleet.workers]

    speed = fleet.speed(10)

    done = [worker.done - then for worker, then in zip(fleet.workers, before, strict=True)]
    assert speed >= (0.75 if size <= 256 else 0.3) * BEST
    # Half of its share for each, less what the batches in which they are settled blur.
    assert min(done) >= 0.45 * sum(done) / size
    assert sum(worker.given_back for worker in fleet.workers) <= 0.01 * sum(w.claimed for w in fleet.workers)


@pytest.mark.parametrize("size", [1, 8, 64, 1_000])
def test_a_fleet_is_back_two_seconds_after_its_store(size: int) -> None:
    fleet = Fleet(size)
    fleet.speed(10)
    usual = fleet.speed(10)
    fleet.store.paused_until = fleet.clock.now + 5

    fleet.speed(5 + 2)

    assert fleet.speed(5) >= 0.8 * usual
