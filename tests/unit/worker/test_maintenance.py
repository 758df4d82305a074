"""How often a sweeper looks, and when it believes what it sees."""

from uuid import uuid4

import pytest

from shigoto.worker.maintenance import FenceDecision, pace


@pytest.mark.parametrize(
    ("shortest", "lease"),
    [(None, 30.0), (30_000, 30.0), (60_000, 30.0), (10_000, 10.0), (6_000, 6.0), (1_000, 6.0), (1, 6.0)],
)
def test_who_sweeps_for_others_does_it_by_the_shortest_lease(shortest: int | None, lease: float) -> None:
    """C3: every second is often enough."""
    assert pace(30.0, shortest) == lease


def test_nobody_sweeps_by_a_longer_lease_than_its_own() -> None:
    assert pace(3.0, 1_000) == 3.0


def test_two_looks_are_as_far_apart_as_is_said() -> None:
    decision, dead = FenceDecision(uuid4(), 30.0), uuid4()
    decision.apart = 2.0
    decision.saw(100.0, (dead,))
    assert (decision.to_fence, decision.next_look(100.0)) == ((), 2.0)

    decision.saw(102.0, (dead,))
    assert decision.to_fence == (dead,)


def test_after_an_outage_a_whole_lease_of_its_own_passes_first() -> None:
    decision, dead = FenceDecision(uuid4(), 30.0), uuid4()
    decision.apart = 2.0
    decision.lost_contact()
    for at in (100.0, 110.0, 129.0):
        decision.saw(at, (dead,))
        assert decision.to_fence == ()

    decision.saw(130.0, (dead,))
    assert decision.to_fence == (dead,)


def test_who_was_asleep_waits_for_the_others_to_wake_up() -> None:
    """E04: what it has seen before, and a second look soon afterwards, are not enough."""
    decision, sleeper = FenceDecision(uuid4(), 3.0), uuid4()
    decision.saw(100.0, (sleeper,))

    for at in (106.0, 107.1, 110.9):
        decision.saw(at, (sleeper,))
        assert decision.to_fence == ()

    decision.saw(111.0, (sleeper,))
    assert decision.to_fence == (sleeper,)


def test_who_looks_a_little_late_was_not_asleep() -> None:
    decision, dead = FenceDecision(uuid4(), 3.0), uuid4()
    decision.saw(100.0, (dead,))

    decision.saw(105.0, (dead,))

    assert decision.to_fence == (dead,)
