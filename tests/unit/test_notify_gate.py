"""A target that does not answer, and the threads of a worker."""

from contextlib import suppress
from threading import Event, Thread

import pytest

from shigoto import Snooze
from shigoto.notify import gate
from shigoto.notify.gate import MOST, Gate
from shigoto.notify.targets import Undelivered


def test_no_more_than_a_few_are_held_up_by_one_target_and_the_others_come_again() -> None:
    door, held, release = Gate(), [Event() for _ in range(MOST)], Event()

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
    monkeypatch.setattr(gate, "monotonic", lambda: now)
    door = Gate()
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
