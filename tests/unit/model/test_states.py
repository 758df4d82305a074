"""The state machine by itself: where each end of a run leads, and which moves there are at all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from shigoto.model.job import TERMINAL, FailureKind, State
from shigoto.model.states import (
    CRASH_DELAY,
    MAX_SNOOZES,
    MOVES,
    Counters,
    Held,
    Move,
    after,
    attempt,
    died,
    forced,
    orphaned,
)
from shigoto.model.worker import Death, Ending, Settlement

NOT_A_SUCCESS = [ending for ending in Ending if ending is not Ending.COMPLETED]


def held(counters: Counters | None = None, **changes: Any) -> Held:
    """A running job that nothing special is known of."""
    return structs.replace(Held(counters or Counters(), max_failures=3, max_crashes=3), **changes)


def end(ending: Ending, **options: Any) -> Settlement:
    """A run's end."""
    return Settlement(number=1, token=1, queue="default", ending=ending, **options)


class TestTransitions:
    """Each row of the table that starts at processing."""

    def test_t4_completed(self) -> None:
        counters = Counters(failures=2, crashes=1, releases=3)

        assert after(held(counters), end(Ending.COMPLETED)) == Move(State.COMPLETED, counters)
        suspect = structs.replace(counters, solo=True, solo_crashes=1)
        assert after(held(suspect), end(Ending.COMPLETED)) == Move(State.COMPLETED, counters)

    def test_t5_errored_with_budget_left(self) -> None:
        assert after(held(), end(Ending.ERRORED, delay=5_000)) == Move(
            State.PENDING, Counters(failures=1), delay=5_000
        )

    def test_t5_without_a_delay_means_now(self) -> None:
        assert after(held(), end(Ending.ERRORED)).delay == 0

    def test_t6_errored_with_the_budget_spent(self) -> None:
        move = after(
            held(Counters(failures=2)), end(Ending.ERRORED, delay=5_000, failure_kind=FailureKind.TIMEOUT)
        )

        assert move == Move(State.FAILED, Counters(failures=3), FailureKind.TIMEOUT)

    def test_t6_failed_for_good(self) -> None:
        move = after(held(), end(Ending.FAILED, failure_kind=FailureKind.REJECTED))

        assert move == Move(State.FAILED, Counters(failures=1), FailureKind.REJECTED)

    def test_t7_snoozed(self) -> None:
        assert after(held(), end(Ending.SNOOZED, delay=700)) == Move(
            State.PENDING, Counters(snoozes=1), delay=700
        )

    def test_t7_snoozed_once_too_often(self) -> None:
        last = after(held(Counters(snoozes=MAX_SNOOZES - 1)), end(Ending.SNOOZED))
        over = after(held(Counters(snoozes=MAX_SNOOZES)), end(Ending.SNOOZED))

        assert last.state is State.PENDING
        assert (over.state, over.failure_kind) == (State.FAILED, FailureKind.SNOOZED_OUT)

    def test_t8_released_keeps_run_at(self) -> None:
        assert after(held(), end(Ending.RELEASED)) == Move(State.PENDING, Counters(releases=1), delay=None)

    def test_t8_released_with_a_delay(self) -> None:
        assert after(held(), end(Ending.RELEASED, delay=2_000)).delay == 2_000

    def test_t9_t10_crashed(self) -> None:
        assert after(held(), end(Ending.CRASHED)) == Move(
            State.PENDING, Counters(crashes=1, solo=True), delay=None
        )

    def test_t9_crashed_with_a_delay(self) -> None:
        assert after(held(), end(Ending.CRASHED, delay=10_000)).delay == 10_000

    def test_t13_cancelled_by_the_handler_itself(self) -> None:
        assert after(held(), end(Ending.CANCELLED)) == Move(State.CANCELLED, Counters())

    @pytest.mark.parametrize("ending", NOT_A_SUCCESS)
    def test_t13_once_asked_every_end_but_success_is_cancelled(self, ending: Ending) -> None:
        move = after(held(cancel_requested=True, superseded=True), end(ending, delay=5))

        assert (move.state, move.failure_kind, move.delay) == (State.CANCELLED, None, None)

    def test_t13_success_wins(self) -> None:
        assert after(held(cancel_requested=True), end(Ending.COMPLETED)).state is State.COMPLETED


class TestSuperseded:
    """A job whose key has moved on may end, but does not run again."""

    @pytest.mark.parametrize("ending", [Ending.ERRORED, Ending.SNOOZED, Ending.RELEASED, Ending.CRASHED])
    def test_it_fails_instead_of_waiting(self, ending: Ending) -> None:
        move = after(held(superseded=True), end(ending))

        assert (move.state, move.failure_kind) == (State.FAILED, FailureKind.SUPERSEDED)

    def test_it_may_complete(self) -> None:
        assert after(held(superseded=True), end(Ending.COMPLETED)).state is State.COMPLETED

    def test_a_failure_of_its_own_keeps_its_kind(self) -> None:
        move = after(held(superseded=True), end(Ending.FAILED, failure_kind=FailureKind.REJECTED))

        assert move.failure_kind is FailureKind.REJECTED


class TestCrashAccounting:
    """Only deaths alone count towards quarantine, so bystanders never get there."""

    def test_a_death_among_others_makes_a_suspect_and_costs_nothing(self) -> None:
        counters = after(held(), end(Ending.CRASHED)).counters

        assert (counters.solo, counters.solo_crashes, counters.failures) == (True, 0, 0)

    def test_deaths_in_company_never_count_not_even_those_of_a_suspect(self) -> None:
        counters = Counters()
        for crashes in range(1, 20):
            move = after(held(counters, max_crashes=1), end(Ending.CRASHED))
            assert move == Move(State.PENDING, Counters(crashes=crashes, solo=True))
            counters = move.counters

    def test_a_death_alone_counts_and_waits(self) -> None:
        move = after(held(Counters(crashes=1, solo=True)), end(Ending.CRASHED, alone=True, delay=CRASH_DELAY))

        assert move == Move(State.PENDING, Counters(crashes=2, solo_crashes=1, solo=True), delay=CRASH_DELAY)

    def test_a_first_death_alone_counts_too(self) -> None:
        """A job that asked for a process of its own need not be a suspect first."""
        move = after(held(), end(Ending.CRASHED, alone=True))

        assert move == Move(State.PENDING, Counters(crashes=1, solo_crashes=1, solo=True))

    @pytest.mark.parametrize("max_crashes", [1, 2, 3])
    def test_so_many_deaths_alone_end_in_quarantine(self, max_crashes: int) -> None:
        """S1-26."""
        counters = after(held(max_crashes=max_crashes), end(Ending.CRASHED)).counters
        for _ in range(max_crashes - 1):
            move = after(held(counters, max_crashes=max_crashes), end(Ending.CRASHED, alone=True))
            assert move.state is State.PENDING
            counters = move.counters

        move = after(held(counters, max_crashes=max_crashes), end(Ending.CRASHED, alone=True))

        assert (move.state, move.failure_kind) == (State.FAILED, FailureKind.CRASH_LOOP)
        assert (move.counters.crashes, move.counters.solo_crashes) == (max_crashes + 1, max_crashes)

    def test_a_clean_run_in_between_starts_the_count_again(self) -> None:
        counters = Counters()
        for ending in (Ending.CRASHED, Ending.CRASHED, Ending.ERRORED, Ending.CRASHED, Ending.CRASHED):
            move = after(held(counters), end(ending, alone=True))
            assert move.state is State.PENDING
            counters = move.counters

        assert (counters.crashes, counters.solo_crashes) == (4, 2)

    def test_a_request_to_cancel_wins_over_quarantine(self) -> None:
        """A10, T13."""
        suspect = Counters(crashes=3, solo_crashes=2, solo=True)

        move = after(held(suspect, cancel_requested=True), end(Ending.CRASHED, alone=True))

        assert (move.state, move.failure_kind) == (State.CANCELLED, None)

    def test_without_a_bound_there_is_no_quarantine(self) -> None:
        """S1-26."""
        suspect = Counters(crashes=500, solo_crashes=499, solo=True)

        move = after(held(suspect, max_crashes=None), end(Ending.CRASHED, alone=True))

        assert move.state is State.PENDING

    @pytest.mark.parametrize("ending", [Ending.ERRORED, Ending.SNOOZED])
    def test_a_run_that_came_back_clears_the_suspicion(self, ending: Ending) -> None:
        suspect = Counters(crashes=3, solo_crashes=2, solo=True)

        counters = after(held(suspect), end(ending)).counters

        assert (counters.solo, counters.solo_crashes, counters.crashes) == (False, 0, 3)

    def test_a_release_proves_nothing(self) -> None:
        suspect = Counters(crashes=3, solo_crashes=2, solo=True)

        counters = after(held(suspect), end(Ending.RELEASED)).counters

        assert (counters.solo, counters.solo_crashes) == (True, 2)


class TestTheStoresOwnWord:
    """What the store says of runs whose worker cannot speak for them."""

    def test_what_was_running_when_a_worker_died_has_crashed_in_company(self) -> None:
        death = Death(number=1, error="killed", traceback="stack", delay=5)

        assert died(1, 2, "q", death) == Settlement(
            number=1, token=2, queue="q", ending=Ending.CRASHED, error="killed", traceback="stack", delay=5
        )

    def test_what_was_not_running_is_released(self) -> None:
        assert died(1, 2, "q", None).ending is Ending.RELEASED

    def test_what_was_alone_when_a_worker_died_has_crashed_alone(self) -> None:
        assert died(1, 2, "q", Death(number=1, alone=True)).alone

    @pytest.mark.parametrize("only", [False, True])
    @pytest.mark.parametrize("isolates", [False, True])
    @pytest.mark.parametrize("solo", [False, True])
    def test_an_orphan_is_blamed_only_if_it_was_suspected_and_nobody_kept_it_apart_or_nobody_else_was_there(
        self, solo: bool, isolates: bool, only: bool
    ) -> None:
        """A18."""
        crash = orphaned(1, 2, "q", Counters(solo=solo), worker="w", isolates=isolates, only=only)

        assert crash.ending is Ending.CRASHED
        assert crash.alone == (solo and (only or not isolates))
        assert crash.delay == (CRASH_DELAY if crash.alone else None)
        assert crash.error == "the worker w did not beat for its whole lease and was fenced"

    def test_an_orphan_of_a_worker_that_nobody_remembers_has_not_run(self) -> None:
        end = orphaned(1, 2, "q", Counters(solo=True), worker=None, isolates=False, only=True)

        assert (end.ending, end.ran, end.alone, end.error) == (Ending.RELEASED, False, False, None)

    def test_force_is_written_down_as_such(self) -> None:
        end_by_force = forced(1, 2, "q")

        assert end_by_force.ending is Ending.CANCELLED
        assert end_by_force.error == "cancelled by force; its effects may have happened"


class TestAnyStory:
    """Whatever the runs do, the accounts add up."""

    @given(
        st.lists(st.tuples(st.sampled_from(Ending), st.booleans()), max_size=40),
        st.integers(1, 6),
        st.integers(1, 4),
    )
    def test_failures_never_exceed_max_failures(
        self, endings: list[tuple[Ending, bool]], max_failures: int, max_crashes: int
    ) -> None:
        counters = Counters()
        for token, (ending, alone) in enumerate(endings, start=1):
            job = held(counters, max_failures=max_failures, max_crashes=max_crashes)
            move = after(job, end(ending, alone=alone))
            counters = move.counters

            assert move.state in MOVES[State.PROCESSING]
            assert counters.failures <= max_failures
            assert counters.solo_crashes <= min(max_crashes, counters.crashes)
            assert (move.failure_kind is not None) == (move.state is State.FAILED)
            assert attempt(token, counters) == token - counters.releases - counters.snoozes >= 0
            if move.state.terminal:
                return

    @given(st.sampled_from(Ending), st.booleans(), st.booleans())
    def test_a_wait_belongs_to_a_pending_job_only(
        self, ending: Ending, cancel_requested: bool, superseded: bool
    ) -> None:
        job = held(cancel_requested=cancel_requested, superseded=superseded)
        move = after(job, end(ending, delay=9))

        assert move.delay is None or move.state is State.PENDING


class TestMoves:
    """The table of all moves."""

    def test_every_state_has_its_row(self) -> None:
        assert set(MOVES) == {None, *State}

    def test_nothing_leads_out_of_completed_but_pruning(self) -> None:
        """I3."""
        assert MOVES[State.COMPLETED] == {None}

    def test_only_failed_and_cancelled_can_be_retried(self) -> None:
        """T15."""
        assert {state for state in TERMINAL if State.PENDING in MOVES[state]} == {
            State.FAILED,
            State.CANCELLED,
        }

    def test_only_pending_can_be_claimed(self) -> None:
        """T2."""
        claimable = {state for state, to in MOVES.items() if State.PROCESSING in to}
        assert claimable == {State.PENDING, State.PROCESSING}

    def test_only_a_run_completes(self) -> None:
        """T4."""
        assert {state for state, to in MOVES.items() if State.COMPLETED in to} == {State.PROCESSING}

    def test_a_running_job_never_vanishes(self) -> None:
        """I1."""
        assert None not in MOVES[State.PROCESSING]

    def test_a_new_job_waits(self) -> None:
        """T1, T19."""
        assert MOVES[None] == {State.PENDING, State.BLOCKED}

    def test_terminal_is_what_has_no_way_on_by_itself(self) -> None:
        assert {state for state in State if state.terminal} == TERMINAL
        assert {State.COMPLETED, State.FAILED, State.CANCELLED} == TERMINAL
