"""The judges of a simulated world (E57): what nobody began must not have ended, and what has room must not wait."""

from uuid import UUID

import pytest

from faults.simulation.book import CRASHES, Book
from faults.simulation.store import Seen
from faults.simulation.waiting import SETTLED_AFTER, STARTS_WITHIN, Waiting
from shigoto import State
from shigoto.model.ids import uuid7

ID = uuid7()


def seen(state: State, *, crashes: int = 0, id: UUID = ID) -> Seen:
    return Seen(id, state, 1, 1, None, 0, crashes, 0, 0, 0, "a", 4)


def wrong(book: Book, *jobs: Seen) -> list[str]:
    return list(book.judge(dict(enumerate(jobs, 1))))


def test_a_job_that_ran_may_end_in_any_way() -> None:
    book = Book(tried={ID: True}, started={ID}, done={(ID, 1)})

    for state in (State.COMPLETED, State.FAILED, State.CANCELLED):
        assert wrong(book, seen(state)) == []


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
def test_a_job_that_was_never_begun_must_not_have_ended(state: State) -> None:
    """I2: and neither does the excuse of the one serve the other."""
    assert wrong(Book(tried={ID: True}), seen(state)) == [f"job 1 is {state.value}, and was never begun (I2)"]
    assert len(wrong(Book(tried={ID: True}, started={uuid7()}), seen(state))) == 1
    expired, cancelled = Book(expiring={ID}), Book(cancelled={ID})
    assert bool(wrong(expired, seen(state))) is (state is State.CANCELLED)
    assert bool(wrong(cancelled, seen(state))) is (state is State.FAILED)


def test_processes_that_die_before_they_begin_put_a_job_away() -> None:
    """C4."""
    assert wrong(Book(), seen(State.FAILED, crashes=CRASHES)) == []
    assert len(wrong(Book(), seen(State.FAILED, crashes=CRASHES - 1))) == 1


def test_what_was_acknowledged_is_there_and_what_is_completed_has_returned() -> None:
    assert wrong(Book(tried={ID: True})) == [f"an acknowledged job is not there: {ID} (I1)"]
    assert wrong(Book(tried={ID: False})) == [], "nobody was told that it is"
    assert wrong(Book(started={ID}, done={(ID, 2)}), seen(State.COMPLETED)) == [
        "job 1 is completed, but token 1 never returned (I2)"
    ]


POLL = 10.0


def waiting_since(*, calm: float = 0.0, staffed: float = 0.0) -> Waiting:
    waiting = Waiting(POLL)
    waiting.calm(calm)
    waiting.staffed(staffed)
    return waiting


def blamed(waiting: Waiting, due_at: float, claimed_at: float) -> bool:
    """Whether a job that waited so has waited for too long."""
    waiting.is_pending(1, due_at - 20)
    return bool(waiting.was_claimed(1, claimed_at, claimed_at - due_at))


def test_where_there_is_room_no_job_waits_for_longer_than_the_poll() -> None:
    """I16."""
    waiting = waiting_since()

    assert not blamed(waiting, 100, 100 + POLL)
    assert blamed(waiting, 100, 100.1 + POLL)
    assert not waiting.was_claimed(1, 10_000, 5_000), "it was claimed a moment ago, and is not pending since"


def test_nobody_is_blamed_before_all_has_been_well_for_long() -> None:
    waiting = Waiting(POLL)
    waiting.staffed(0)
    assert not blamed(waiting, 500, 600)
    waiting.calm(500)

    assert not blamed(waiting, 500 + SETTLED_AFTER, 700)
    assert blamed(waiting, 501 + SETTLED_AFTER, 700)


def test_a_job_waits_from_when_a_worker_has_come_that_stays() -> None:
    """One before it may take long to stop, and takes no jobs meanwhile."""
    unstaffed = Waiting(POLL)
    unstaffed.calm(0)
    assert not blamed(unstaffed, 500, 600)
    waiting = waiting_since(staffed=400)
    waiting.staffed(600)
    at_work = 400 + STARTS_WITHIN

    assert not blamed(waiting, 50, at_work + POLL)
    assert blamed(waiting, 50, at_work + POLL + 0.1), "one worker is enough"


def test_a_job_waits_from_when_its_queue_was_opened() -> None:
    waiting = waiting_since()
    waiting.queues_changed(310)
    waiting.queues_changed(350)

    assert not blamed(waiting, 300, 350 + POLL)
    assert blamed(waiting, 300, 350.1 + POLL)


def test_a_job_waits_from_when_it_is_pending_again_and_due() -> None:
    """A retry may leave it due since long ago; a step of the clock changes when that is."""
    waiting = waiting_since()
    waiting.is_pending(1, 500)
    waiting.is_pending(2, 500)

    assert not waiting.was_claimed(1, 500 + POLL, 300)
    assert not waiting.was_claimed(2, 700, POLL)
