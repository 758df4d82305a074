"""Trouble with the store: every try is an event, but the same words are news only now and then."""

from random import Random
from types import SimpleNamespace
from typing import cast

from shigoto.observe.bus import Bus
from shigoto.observe.events import StoreTrouble
from shigoto.worker.state import Trouble, WorkerState


def test_the_same_trouble_is_told_as_a_repetition_for_half_a_minute() -> None:
    told: list[bool] = []
    bus, now = Bus(), [0.0]
    bus.subscribe(lambda event: told.append(event.repeated), StoreTrouble)
    state = SimpleNamespace(bus=bus, name="w", clock=lambda: now[0], random=Random(1))
    trouble = Trouble(cast(WorkerState, state), "settler")

    for at, words in ((100, "full"), (101, "full"), (102, "locked"), (103, "locked"), (133, "locked")):
        now[0] = at
        trouble.met(OSError(words))
    trouble.over()
    trouble.met(OSError("locked"))

    assert told == [False, True, False, True, False, False]
