"""A target that does not answer, and the threads of a worker."""

from collections import Counter
from contextlib import AbstractContextManager, suppress
from heapq import heappop, heappush
from itertools import count
from queue import SimpleQueue
from threading import Event, Thread

import pytest

from shigoto import Snooze
from shigoto.model.states import MAX_SNOOZES
from shigoto.notify import notifier
from shigoto.notify.notifier import LATEST, MOST_AT_ONCE, MOST_WAITING, DeliverySlots
from shigoto.notify.targets import Undelivered

MANY = 20


class Hands:
    """The hands of a clock that stands still unless it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(notifier, "monotonic", lambda: self.now)


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    return Hands(monkeypatch)


class Crowd:
    """Many threads at a door: who is let in stays until the release, and each says what has become of it."""

    def __init__(self, door: DeliverySlots) -> None:
        self.ends: SimpleQueue[str] = SimpleQueue()
        self.release = Event()
        self._door = door
        self._threads = [Thread(target=self._deliver) for _ in range(MANY)]
        for thread in self._threads:
            thread.start()

    def let_go(self) -> list[str]:
        self.release.set()
        for thread in self._threads:
            thread.join(30)
        return [self.ends.get_nowait() for _ in range(self.ends.qsize())]

    def _deliver(self) -> None:
        try:
            with self._door.entered():
                self.release.wait(30)
            self.ends.put("delivered")
        except Snooze:
            self.ends.put("turned away")


def test_no_more_than_a_few_are_held_up_by_one_target_and_the_others_come_again() -> None:
    door, held, release = DeliverySlots(), [Event() for _ in range(MOST_AT_ONCE)], Event()

    def deliver(inside: Event) -> None:
        with door.entered():
            inside.set()
            release.wait(30)

    threads = [Thread(target=deliver, args=(inside,)) for inside in held]
    for thread in threads:
        thread.start()
    assert all(inside.wait(30) for inside in held)

    with pytest.raises(Snooze), door.entered():
        pass

    release.set()
    for thread in threads:
        thread.join()
    with door.entered():
        pass


def test_one_that_has_failed_is_left_alone_for_as_long_as_that_was_costly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1_000.0
    monkeypatch.setattr(notifier, "monotonic", lambda: now)
    door = DeliverySlots()
    with suppress(Undelivered), door.entered():
        now += 10
        raise Undelivered("nobody there")

    with pytest.raises(Snooze) as refused, door.entered():
        pass
    assert 41_000 <= refused.value.delay <= 45_000
    now += 41

    with suppress(LookupError), door.entered():
        now += 10
        raise LookupError("of another kind: the target has answered")
    with door.entered():
        pass


def test_at_a_slow_target_few_wait_and_all_others_are_turned_away_at_once(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that waits holds a thread, which a job of the worker wants."""
    monkeypatch.setattr(notifier, "LONGEST_WAIT", 30.0)
    door = DeliverySlots()
    with door.entered():
        hands.now += 0.3
    crowd = Crowd(door)

    refused = [crowd.ends.get(timeout=20) for _ in range(MANY - MOST_AT_ONCE - MOST_WAITING)]
    others = crowd.let_go()

    assert MOST_WAITING <= 2
    assert set(refused) == {"turned away"}
    assert others == ["delivered"] * (MOST_AT_ONCE + MOST_WAITING)


def test_at_one_that_answers_at_once_a_crowd_may_wait(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """To come again a second later would be slower than to wait for all that are before."""
    monkeypatch.setattr(notifier, "SHORT_WAIT", 30.0)
    door = DeliverySlots()
    with door.entered():
        hands.now += 0.001

    assert Crowd(door).let_go() == ["delivered"] * MANY


def test_who_is_turned_away_comes_again_the_later_the_more_are_before(hands: Hands) -> None:
    door, pauses = DeliverySlots(), []
    with door.entered():
        hands.now += 1.0
    with door.entered(), door.entered():
        hands.now += 1.0
        for _ in range(5_000):
            with pytest.raises(Snooze) as refused, door.entered():
                pass
            pauses.append(refused.value.delay / 1000)

    assert min(pauses) >= 1
    assert max(pauses) <= LATEST
    assert 50 <= pauses[199] <= 100
    assert min(pauses[600:]) >= LATEST / 2


@pytest.mark.parametrize("takes", [0.3, 3.0])
def test_in_a_storm_of_five_thousand_nobody_is_put_off_too_often(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, takes: float
) -> None:
    """All come at once, nobody waits at the door, and whoever is turned away comes again exactly when it was told to.
    To one that takes 30 s, the longest that mail may, it is 370 times at most; that is too long for a test."""
    monkeypatch.setattr(notifier, "MOST_WAITING", 0)
    monkeypatch.setattr(notifier, "SHORT_WAIT", 0.0)
    door, order, storm = DeliverySlots(), count(), 5_000
    begun, put_off = hands.now, Counter[int]()
    steps: list[tuple[float, int, int, AbstractContextManager[None] | None]] = [
        (hands.now, next(order), message, None) for message in range(storm)
    ]

    delivered = 0
    while steps:
        hands.now, _, message, inside = heappop(steps)
        if inside is not None:
            inside.__exit__(None, None, None)
            delivered += 1
            continue
        inside = door.entered()
        try:
            inside.__enter__()
        except Snooze as refused:
            put_off[message] += 1
            heappush(steps, (hands.now + refused.delay / 1000, next(order), message, None))
        else:
            heappush(steps, (hands.now + takes, next(order), message, inside))

    assert delivered == storm
    assert max(put_off.values()) < MAX_SNOOZES / 10
    assert hands.now - begun < storm * takes / MOST_AT_ONCE * 2 + LATEST
