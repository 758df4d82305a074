"""The bus: who hears what, in which order, and what happens to those who fail."""

import asyncio
import logging
from uuid import UUID

import pytest

from shigoto.observe.bus import Bus
from shigoto.observe.events import (
    Event,
    JobCompleted,
    JobEvent,
    JobsPromoted,
    JobStarted,
    WorkerStopping,
)

STARTED = JobStarted("1", UUID(int=1), 1, "resize", "default", "", 1)
COMPLETED = JobCompleted("1", UUID(int=1), 1, "resize", "default", "", 1, 0.5)
PROMOTED = JobsPromoted("1", 3)


def test_a_subscriber_hears_every_event_in_order() -> None:
    bus, heard = Bus(), list[Event]()
    bus.subscribe(heard.append)

    for event in (STARTED, PROMOTED, COMPLETED):
        bus.publish(event)

    assert heard == [STARTED, PROMOTED, COMPLETED]


def test_a_subscriber_of_one_kind_hears_only_that() -> None:
    bus, heard = Bus(), list[JobCompleted]()
    bus.subscribe(heard.append, JobCompleted)

    for event in (STARTED, PROMOTED, COMPLETED):
        bus.publish(event)

    assert heard == [COMPLETED]


def test_a_subscriber_of_a_family_hears_all_its_members() -> None:
    bus, heard = Bus(), list[JobEvent]()
    bus.subscribe(heard.append, JobEvent)

    for event in (STARTED, PROMOTED, COMPLETED):
        bus.publish(event)

    assert heard == [STARTED, COMPLETED]


def test_a_subscriber_to_batches_hears_at_once_what_comes_at_once() -> None:
    bus, at_once, single = Bus(), list[list[JobCompleted]](), list[JobCompleted]()
    end = bus.subscribe_batches(lambda batch: at_once.append(list(batch)), JobCompleted)
    bus.subscribe(single.append, JobCompleted)

    bus.publish_all([COMPLETED, COMPLETED])
    bus.publish(COMPLETED)
    bus.publish_all([])
    bus.publish(STARTED)
    bus.publish_all([STARTED])

    assert at_once == [[COMPLETED, COMPLETED], [COMPLETED]]
    assert single == [COMPLETED] * 3

    end()
    bus.publish_all([COMPLETED])

    assert len(at_once) == 2
    assert len(single) == 4


def test_whoever_unsubscribes_in_the_midst_of_a_batch_hears_no_more_of_it() -> None:
    bus, heard = Bus(), list[JobCompleted]()

    def once(event: JobCompleted) -> None:
        heard.append(event)
        end()

    end = bus.subscribe(once, JobCompleted)
    bus.publish_all([COMPLETED, COMPLETED])

    assert heard == [COMPLETED]


def test_nobody_can_change_a_batch_for_others() -> None:
    bus, heard = Bus(), list[object]()
    bus.subscribe_batches(heard.append, JobCompleted)
    bus.publish_all([COMPLETED, COMPLETED])
    bus.publish(COMPLETED)

    assert heard == [(COMPLETED, COMPLETED), (COMPLETED,)]


def test_whoever_fails_on_a_batch_is_in_nobodys_way(caplog: pytest.LogCaptureFixture) -> None:
    bus, heard = Bus(), list[JobCompleted]()

    def fail(batch: object) -> None:
        raise ValueError("on purpose")

    bus.subscribe_batches(fail, JobCompleted)
    bus.subscribe(heard.append, JobCompleted)
    bus.publish_all([COMPLETED, COMPLETED])
    bus.publish(COMPLETED)

    assert len(heard) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "A subscriber failed on JobCompleted and missed it; the worker goes on"
    ] * 2


def test_a_bus_knows_whether_an_event_would_be_heard() -> None:
    bus = Bus()

    def heard() -> tuple[bool, bool, bool]:
        return bus.active, bus.wants(JobStarted), bus.wants(JobCompleted)

    assert heard() == (False, False, False)

    unsubscribe = bus.subscribe(lambda _: None, JobCompleted)

    assert heard() == (True, False, True)

    unsubscribe()

    assert heard() == (False, False, False)


def test_unsubscribing_ends_one_subscription_and_twice_is_fine() -> None:
    bus, heard = Bus(), list[Event]()
    first = bus.subscribe(heard.append)
    bus.subscribe(heard.append)

    bus.publish(PROMOTED)
    first()
    first()
    bus.publish(PROMOTED)

    assert len(heard) == 3
    assert bus.hears(heard.append)


def test_somebody_who_comes_later_hears_what_comes_later() -> None:
    bus, heard = Bus(), list[Event]()
    bus.publish(PROMOTED)
    bus.subscribe(lambda _: None)
    bus.publish(PROMOTED)

    bus.subscribe(heard.append)
    bus.publish(WorkerStopping("1", "stopped"))

    assert heard == [WorkerStopping("1", "stopped")]


@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError()])
def test_what_a_subscriber_raises_is_logged_once_and_keeps_nothing_from_the_others(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    bus, heard = Bus(), list[Event]()

    def broken(event: Event) -> None:
        raise error

    bus.subscribe(broken)
    bus.subscribe(heard.append)
    with caplog.at_level(logging.ERROR):
        bus.publish(COMPLETED)

    assert heard == [COMPLETED]
    assert [record.getMessage() for record in caplog.records] == [
        "A subscriber failed on JobCompleted and missed it; the worker goes on"
    ]


def test_a_subscriber_may_come_and_go_while_an_event_is_being_told() -> None:
    bus, heard = Bus(), list[str]()

    def once(event: Event) -> None:
        heard.append("once")
        leave()
        bus.subscribe(lambda _: heard.append("new"))

    leave = bus.subscribe(once)
    bus.publish(PROMOTED)
    bus.publish(PROMOTED)

    assert heard == ["once", "new"]
