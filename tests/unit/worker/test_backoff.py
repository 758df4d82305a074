"""How long a part of a worker leaves the store alone: not at all if trips are quick, longer if they wait for others."""

from random import Random

import pytest

from shigoto.worker.backoff import FIRST, LONGEST, MANY, Backoff


def paused(backoff: Backoff) -> float:
    return backoff.pause(Random(1))


def after(*trips: tuple[float, int]) -> Backoff:
    backoff = Backoff()
    for seconds, jobs in trips:
        backoff.note(seconds, jobs)
    return backoff


def test_there_is_no_pause_before_the_first_trip() -> None:
    assert paused(Backoff()) == 0.0


def test_trips_that_take_what_they_took_before_bring_no_pause() -> None:
    assert paused(after(*[(0.002, 10), (0.003, 50), (0.002, 1)] * 20)) == 0.0


def test_a_trip_may_take_longer_for_each_job_that_it_moves() -> None:
    assert paused(after((0.002, 10), *[(0.02, 2_000), (0.1, 10_000)] * 20)) == 0.0


def test_trips_that_wait_for_others_bring_longer_and_longer_pauses() -> None:
    pauses = [paused(after((0.002, 10), *[(0.050, 50)] * count)) for count in range(1, 6)]

    assert pauses == sorted(pauses)
    assert 0 < pauses[0] <= 1.25 * FIRST
    assert pauses[4] > 10 * pauses[0]


def test_the_pause_grows_with_the_square_of_what_trips_wait() -> None:
    few, many = (paused(after((0.002, 10), *[(0.002 + wait, 50)] * 20)) for wait in (0.020, 0.040))

    assert many / few == pytest.approx(4, rel=0.1)


def test_one_long_trip_as_after_an_outage_says_little() -> None:
    assert paused(after(*[(0.002, 10)] * 20, (5.0, 10))) <= 1.25 * FIRST


def test_the_pause_is_over_with_the_first_quick_trip() -> None:
    assert paused(after((0.002, 10), *[(0.1, 10)] * 20, (0.002, 10))) == 0.0


def test_the_pause_has_a_bound() -> None:
    assert paused(after((0.002, 10), *[(10.0, 10)] * 20)) <= 1.25 * LONGEST


def test_a_store_that_became_slower_for_good_is_taken_as_it_is() -> None:
    backoff = after((0.001, 10), *[(0.020, 10)] * 200)

    assert paused(backoff) == 0.0


def test_pauses_of_workers_that_see_the_same_differ_a_little() -> None:
    backoff, random = after((0.002, MANY), *[(0.1, MANY)] * 20), Random(1)
    pauses = [backoff.pause(random) for _ in range(100)]

    assert max(pauses) > 1.3 * min(pauses)
    assert max(pauses) < 1.7 * min(pauses)
