"""Where a claim begins while a snapshot is held: mostly near the end, and past nothing for longer than a second."""

from bisect import bisect_right, insort
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shigoto.engine.postgres.claiming import (
    FEW,
    FRONT,
    LAST_PRIORITY,
    LONGEST,
    MOST_STARTS,
    STEP,
    SUSPICIOUS,
    LinePosition,
    ScanStarts,
    Slice,
)
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.worker import Want

MANY = 4_000
ID = uuid7()
EVERYTHING: Slice = (*FRONT, LAST_PRIORITY)
END = 2**63 - 1


class Shop:
    """A line as the server has it, with the places of what is gone, and time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.starts = ScanStarts(lambda: self.now)
        self.held = True
        self.live: list[LinePosition] = []
        self.gone: list[LinePosition] = []
        self.number = 0
        self.dead = 0  # that the last claim met
        self.slices: tuple[Slice, ...] | None = None

    def put(self, count: int = 1, *, priority: int = 0, late: float = 0.0) -> list[LinePosition]:
        """Enqueue, by a transaction that was so many seconds on its way."""
        places: list[LinePosition] = []
        for _ in range(count):
            self.number += 1
            places.append((-priority, int(1_000 * (self.now - late)), self.number))
            insort(self.live, places[-1])
        return places

    def claim(self, limit: int = 20, *, thorough: bool = False) -> list[LinePosition]:
        want = Want(tasks=("t",), queues=None, limit=limit, thorough=thorough)
        self.slices = self.starts.slices(want)
        taken: list[LinePosition] = []
        met: list[LinePosition] = []
        for *place, last_priority in self.slices or (EVERYTHING,):
            low, high = (place[0], place[1], place[2]), (last_priority, END, END)
            found = between(self.live, low, high)[: limit - len(taken)]
            taken += found
            met += between(self.gone, low, found[-1] if len(taken) == limit and found else high)
            if len(taken) == limit:
                break
        self.dead = len(met)
        for one in taken:
            del self.live[bisect_right(self.live, one) - 1]
        for gone in [] if self.held else set(met):
            del self.gone[bisect_right(self.gone, gone) - 1]
        for one in taken:
            insort(self.gone, one)
        self.starts.note(
            want, self.slices, [lease(place) for place in taken], self.dead, int(1_000 * self.now)
        )
        return taken

    def bury(self, count: int = MANY, *, priority: int = 0) -> None:
        """Others have enqueued so many and taken them."""
        first = self.number + 1
        self.number += count
        self.gone += [(-priority, int(1_000 * self.now), number) for number in range(first, first + count)]
        self.gone.sort()
        self.now += 0.001

    def hold(self, *priorities: int) -> None:
        """Let it notice that a snapshot is held."""
        for priority in priorities or (0,):
            self.bury(MANY, priority=priority)
        for _ in range(SUSPICIOUS):
            for priority in priorities or (0,):
                self.put(priority=priority)
            self.claim()
            self.now += 0.001

    def until_found(self, place: LinePosition, every: float) -> float:
        """In how many seconds it is found by somebody who claims so often, while work goes on."""
        began = self.now
        while place in self.live:
            self.now += every
            self.put()
            self.claim()
        return self.now - began


def between(places: list[LinePosition], low: LinePosition, high: LinePosition) -> list[LinePosition]:
    return places[bisect_right(places, low) : bisect_right(places, high)]


def lease(place: LinePosition) -> Lease:
    priority, run_at, number = place
    return Lease(number, 1, ID, "t", "default", 1, 0, 0, 6, -priority, run_at, run_at)


@pytest.fixture
def shop() -> Shop:
    shop = Shop()
    shop.hold()
    return shop


def test_without_dead_entries_everything_is_looked_at() -> None:
    shop = Shop()
    shop.held = False
    for _ in range(200):
        shop.put(10)
        shop.claim()
        shop.now += 0.005

        assert shop.slices is None


def test_now_and_then_many_dead_entries_prove_nothing() -> None:
    shop = Shop()
    shop.held = False
    for _ in range(20):
        shop.bury()
        for _ in range(SUSPICIOUS):
            shop.put()
            shop.claim()

            assert shop.slices is None


def test_once_a_snapshot_is_seen_to_be_held_most_claims_meet_few_dead_entries(shop: Shop) -> None:
    """X8, E24: three hundred a second, of which somebody else takes half."""
    met: list[int] = []
    began = shop.now
    while shop.now < began + 10:
        shop.bury(3)
        shop.put(3)
        shop.claim()
        shop.now += 0.02
        met.append(shop.dead)
    met.sort()

    assert len(shop.gone) > 3 * MANY / 2
    assert met[len(met) // 2] <= 2 * STEP + 50
    assert len([dead for dead in met if dead > 2 * STEP + 50]) <= 10 / LONGEST + 1


def test_what_is_taken_in_large_portions_is_left_behind_at_once(shop: Shop) -> None:
    """A drain: the scan starts follow every claim."""
    shop.put(30_000)
    met: list[int] = []
    for _ in range(30):
        assert len(shop.claim(1_000)) == 1_000
        shop.now += 0.02
        met.append(shop.dead)

    assert sorted(met)[15] <= 1_000


@pytest.mark.parametrize("priority", [-5, 1, 7, 100])
def test_what_is_new_is_found_at_once_whatever_its_priority(priority: int) -> None:
    """X8: an urgent newcomer."""
    shop = Shop()
    shop.hold(1, 7)
    for _ in range(50):
        [place] = shop.put(priority=priority)

        assert shop.claim() == [place]

        shop.now += 0.03


@pytest.mark.parametrize("every", [0.005, 0.02, 0.05, 0.1, 0.19, 0.3, 0.4, 0.5, 0.7, 0.9, 1.1])
@pytest.mark.parametrize("late", [0.5, 1.9, 60.0])
def test_a_late_committer_is_found_within_a_second(shop: Shop, every: float, late: float) -> None:
    """X8, I2: its place is before that of others that were taken already."""
    for _ in range(7):
        shop.bury(1_000)
        shop.put()
        shop.claim()
        shop.now += every

    for _ in range(5):
        [place] = shop.put(late=late)

        assert shop.until_found(place, every) <= max(1.0, every) + 0.001


def test_a_poll_finds_what_came_late(shop: Shop) -> None:
    """Somebody who has nothing to do looks once a second."""
    for _ in range(5):
        [place] = shop.put(late=30)
        shop.now += 1.0

        assert place in shop.claim()


def test_what_is_asked_thoroughly_is_answered_from_the_front(shop: Shop) -> None:
    [place] = shop.put(late=30)
    shop.now += 0.001

    assert shop.claim() == []
    assert shop.claim(thorough=True) == [place]


def test_of_much_that_came_late_all_is_found_once_some_is(shop: Shop) -> None:
    """No second for each batch."""
    late = set(shop.put(2_000, late=30))
    shop.now += 1.0
    while late:
        found = shop.claim(100)
        late -= set(found)
        shop.now += 0.001

        assert len(found) == 100


def test_urgent_work_without_end_does_not_make_every_claim_dear() -> None:
    shop = Shop()
    shop.hold(1, 7)
    shop.put(8_000, priority=7)
    met: list[int] = []
    for _ in range(400):
        shop.claim(20)
        shop.now += 0.02
        met.append(shop.dead)

    assert len([dead for dead in met if dead > 3 * STEP]) <= 400 * 0.02 / LONGEST + 1


def test_once_the_snapshot_is_gone_so_are_the_scan_starts(shop: Shop) -> None:
    """E24: within two minutes, without a restart; here it takes two full scans."""
    shop.held = False
    began = shop.now
    full_scans = 0  # one after the other
    while full_scans < 2:
        shop.put(3)
        shop.claim()
        full_scans = full_scans + 1 if shop.slices is None else 0
        shop.now += 0.02

        assert shop.now < began + 3
    for _ in range(100):
        shop.put(3)
        shop.claim()
        shop.now += 0.02

        assert shop.slices is None
        assert shop.dead <= FEW


def test_a_clock_that_was_set_back_ends_the_scan_starts(shop: Shop) -> None:
    """What is enqueued from then on stands before all of them."""
    shop.claim()
    before = shop.now
    shop.now -= 3_600
    late = shop.put()
    shop.now = before + 0.01
    want = Want(tasks=("t",), queues=None, limit=20)
    slices = shop.starts.slices(want)
    shop.starts.note(want, slices, [], 0, int(1_000 * (shop.now - 3_600)))

    assert slices is not None
    assert shop.claim() == late


def test_each_line_has_its_own_scan_starts(shop: Shop) -> None:
    for other in (
        Want(tasks=("u",), queues=None, limit=1),
        Want(tasks=("t",), queues=("q",), limit=1),
        Want(tasks=("t",), queues=None, limit=1, alone=False),
    ):
        assert shop.starts.slices(other) is None
    assert shop.starts.slices(Want(tasks=("t",), queues=None, limit=1)) is not None


def test_of_very_many_priorities_only_some_have_scan_starts() -> None:
    shop = Shop()
    shop.hold(*range(3 * MOST_STARTS))
    shop.now += 0.001
    shop.claim()

    assert shop.slices is not None
    assert len(shop.slices) == MOST_STARTS + 1


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(0, 40), st.floats(0.001, 0.4), st.floats(0, 5), st.integers(1, 30)
        ),
        max_size=60,
    )
)
def test_whatever_happens_slices_are_apart_and_in_order_and_nothing_stays_behind(
    moves: Iterable[tuple[int, int, float, float, int]],
) -> None:
    shop = Shop()
    shop.bury(1_000)
    shop.bury(1_000, priority=2)
    for priority, count, pause, late, limit in moves:
        shop.put(count, priority=priority, late=late)
        before = list(shop.live)
        taken = shop.claim(limit)
        slices = shop.slices or (EVERYTHING,)

        assert slices[0][:3] == FRONT
        assert slices[-1][3] == LAST_PRIORITY
        assert all(last[3] == next[0] - 1 for last, next in pairwise(slices))
        assert len(taken) == len(set(taken))
        assert set(taken) <= set(before)
        shop.now += pause
    for _ in range(2):  # what waited behind something urgent is looked for once that is done
        shop.now += 1.0
        while shop.claim(30):
            shop.now += 0.001

    assert shop.live == []
