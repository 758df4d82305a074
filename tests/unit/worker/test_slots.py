"""How many jobs a pool asks for: free slots always, look-ahead when it has been earned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shigoto.worker.slots import HORIZON, MOST_AHEAD, PATIENCE, Slots


class Pool:
    """A pool in a test's hands: it says what it holds, and time passes when it is told to."""

    def __init__(self, size: int) -> None:
        self.now = 0.0
        self.slots = Slots(size, self.now)
        self.buffered = 0
        self.running = 0

    def want(self) -> int:
        return self.slots.want(self.now, buffered=self.buffered, running=self.running)

    def give(self, count: int) -> None:
        self.slots.gave(self.now, count)
        self.buffered += count
        self.start()

    def start(self) -> None:
        started = min(self.buffered, self.slots.size - self.running)
        self.buffered -= started
        self.running += started

    def finish(self, count: int, seconds: float) -> None:
        """So many end within so many seconds, and others take their places."""
        self.now += seconds
        for _ in range(count):
            assert self.running
            self.running -= 1
            self.start()

    def late(self) -> bool:
        return self.slots.late(self.now, self.buffered)


def warm(pool: Pool, *, per_second: float) -> None:
    """Run so fast for half a second."""
    ends_at = pool.now + 0.5
    while pool.now < ends_at:
        pool.give(pool.want())
        batch = min(pool.running + pool.buffered, max(1, round(per_second / 1_000)))
        pool.finish(batch, batch / per_second)


def test_a_cold_pool_asks_for_its_free_slots_and_no_more() -> None:
    pool = Pool(10)

    assert pool.want() == 10

    pool.give(4)

    assert pool.want() == 6

    pool.give(6)

    assert pool.want() == 0


def asked_until(pool: Pool, end: float, *, at_once: int, every: float) -> list[int]:
    """What it asks for while so many end every so often."""
    asked: list[int] = []
    while pool.now < end:
        asked.append(pool.want())
        pool.give(asked[-1])
        pool.finish(min(at_once, pool.running + pool.buffered), every)
    return asked


def test_look_ahead_is_earned_by_two_measures_of_a_tenth_of_a_second() -> None:
    pool = Pool(50)

    asked = asked_until(pool, 0.5, at_once=9, every=0.01)

    assert asked[1:20] == [9] * 19, "0.2 s"
    assert max(asked[20:]) > 9
    assert pool.slots.ahead == pytest.approx(900 * HORIZON, rel=0.5)


def test_look_ahead_is_earned_sooner_by_so_many_jobs_that_they_are_no_chance() -> None:
    pool = Pool(100)

    asked = asked_until(pool, 0.5, at_once=100, every=0.002)

    assert asked[:2] == [100] * 2, "2 rounds of all slots"
    assert max(asked[:13]) > 100
    assert max(asked) <= 100 + MOST_AHEAD


def test_what_a_pool_waits_for_its_claims_does_not_make_its_jobs_look_slow() -> None:
    quick, kept_waiting = Pool(100), Pool(100)
    for pool, claim_takes in ((quick, 0.0), (kept_waiting, 0.030)):
        for _ in range(12):
            count = pool.want()
            pool.now += claim_takes
            pool.give(count)
            held = pool.running + pool.buffered
            pool.finish(held, held / 25_000)

    assert quick.slots.ahead == pytest.approx(25_000 * HORIZON, rel=0.3)
    assert kept_waiting.slots.ahead == pytest.approx(25_000 * HORIZON, rel=0.3)


def test_what_ends_in_no_time_at_all_is_not_measured() -> None:
    pool = Pool(100)
    for _ in range(20):
        pool.give(pool.want())
        pool.finish(100, 0.0)

    assert pool.slots.ahead == 0


def test_a_small_pool_does_not_take_its_first_few_jobs_for_a_rate() -> None:
    pool = Pool(1)

    asked = asked_until(pool, 0.09, at_once=1, every=0.001)

    assert set(asked) == {1}


def test_jobs_that_end_together_are_not_taken_for_fast_ones() -> None:
    pool = Pool(100)
    for _ in range(20):
        pool.give(pool.want())
        pool.now += 0.1
        pool.finish(100, 0.001)

    assert pool.slots.ahead == 0


@pytest.mark.parametrize("per_second", [1_000, 5_000, 20_000])
def test_a_warm_pool_looks_ahead_as_far_as_it_gets_in_thirty_milliseconds(per_second: int) -> None:
    pool = Pool(10)
    warm(pool, per_second=per_second)
    pool.want()

    assert pool.slots.ahead == pytest.approx(per_second * HORIZON, rel=0.2)


def test_look_ahead_has_a_bound() -> None:
    pool = Pool(100)
    warm(pool, per_second=1_000_000)
    pool.want()

    assert pool.slots.ahead == MOST_AHEAD


def test_a_warm_pool_that_starves_need_not_wait_to_look_further_ahead() -> None:
    pool = Pool(100)
    warm(pool, per_second=2_000)
    believed = pool.slots.ahead
    for _ in range(10):
        pool.finish(pool.running + pool.buffered, 0.004)
        count = pool.want()
        pool.slots.gave(pool.now, count, starved=True)
        pool.buffered += count
        pool.start()
    pool.want()

    assert pool.slots.ahead > 5 * believed, "after 40 ms"


def test_a_warm_pool_asks_again_when_its_buffer_is_down_to_three_quarters() -> None:
    pool = Pool(10)
    warm(pool, per_second=5_000)
    pool.give(pool.want())
    ahead = pool.slots.ahead

    most = ahead * 3 // 4

    assert pool.buffered > most
    assert pool.slots.want(pool.now, buffered=most + 1, running=10) == 0
    assert pool.slots.want(pool.now, buffered=most, running=10) == ahead - most
    assert pool.slots.low_water == most


def test_jobs_longer_than_the_horizon_are_never_claimed_ahead() -> None:
    """S1-4: however many slots there are, and however many jobs end per second."""
    pool = Pool(1_000)
    for _ in range(50):
        pool.give(pool.want())
        pool.finish(200, 0.1)

    assert pool.want() == 200
    assert pool.slots.ahead == 0


def test_a_pool_that_stood_still_is_cold_again() -> None:
    pool = Pool(10)
    warm(pool, per_second=5_000)
    pool.finish(pool.running + pool.buffered, 1)

    pool.want()
    pool.now += 60
    pool.want()

    assert pool.want() == 10


def test_a_lease_that_lies_unstarted_is_late_after_a_quarter_of_a_second() -> None:
    pool = Pool(2)
    pool.slots.gave(pool.now, 3)
    pool.buffered, pool.running = 1, 2

    assert not pool.late()
    assert pool.slots.next_deadline == PATIENCE

    pool.now += PATIENCE - 0.001
    assert not pool.late()

    pool.now += 0.001
    assert pool.late()


def test_what_has_started_is_not_late() -> None:
    pool = Pool(2)
    pool.give(2)
    pool.now += 10

    assert not pool.late()
    assert pool.slots.next_deadline is None


def test_lateness_is_counted_for_each_claim_by_itself() -> None:
    pool = Pool(2)
    pool.slots.gave(0.0, 3)
    pool.slots.gave(0.2, 3)
    pool.buffered, pool.running = 3, 2

    assert pool.slots.late(0.3, buffered=3) is False
    assert pool.slots.next_deadline == pytest.approx(0.45)
    assert pool.slots.late(0.45, buffered=1) is True


def test_after_being_late_a_pool_is_cold_and_asks_for_one_at_a_time() -> None:
    pool = Pool(100)
    warm(pool, per_second=20_000)
    pool.give(pool.want())
    unstarted, pool.buffered = pool.buffered, 0

    pool.slots.took_back(unstarted)
    pool.slots.collapse()

    assert pool.slots.ahead == 0
    assert pool.slots.want(pool.now, buffered=0, running=0) == 1
    assert not pool.late()


def test_long_jobs_in_some_slots_do_not_keep_the_others_empty_after_it() -> None:
    """S1-4: a day-long job must not stop the rest for a day."""
    pool = Pool(100)
    pool.give(5)
    assert not pool.late()
    pool.slots.collapse()
    asked: list[int] = []
    for _ in range(8):
        asked.append(pool.want())
        pool.give(asked[-1])
        assert not pool.late()

    assert asked[:4] == [1, 2, 4, 8]
    assert sum(asked) == 95


def test_the_window_opens_again_with_every_claim_that_starts_in_time() -> None:
    pool = Pool(8)
    pool.slots.collapse()
    asked: list[int] = []
    for _ in range(5):
        asked.append(pool.want())
        pool.give(asked[-1])
        assert not pool.late()
        pool.finish(pool.running, 0.2)

    assert asked == [1, 2, 4, 8, 8]


steps = st.lists(
    st.tuples(st.sampled_from(["give", "finish", "late", "wait"]), st.integers(0, 200)), max_size=60
)


@given(st.integers(1, 200), steps)
def test_a_pool_never_holds_more_than_its_slots_and_its_look_ahead(
    size: int, steps: list[tuple[str, int]]
) -> None:
    """S0-60: bounded, whatever happens."""
    pool = Pool(size)
    for step, amount in steps:
        match step:
            case "give":
                want = pool.want()
                assert 0 <= want <= size + MOST_AHEAD
                pool.give(min(want, amount))
                assert pool.running <= size
                assert pool.running + pool.buffered <= size + MOST_AHEAD
            case "finish":
                pool.finish(min(amount, pool.running), 0.001)
            case "late":
                if pool.late():
                    pool.slots.took_back(pool.buffered)
                    pool.buffered = 0
                    pool.slots.collapse()
            case _:
                pool.now += amount / 100
    assert pool.want() <= size + MOST_AHEAD
