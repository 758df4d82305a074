"""The book of a simulated world (E57) is held against its store: what nobody began must not have ended."""

from uuid import UUID

import pytest

from faults.simulation.book import CRASHES, Book
from faults.simulation.store import Seen
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
