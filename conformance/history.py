"""Promises about what is told of runs: progress and checkpoints while they last, history afterwards."""

import pytest

from conformance.engine_under_test import EngineUnderTest
from shigoto.model.job import Attempt, State
from shigoto.model.time import to_datetime
from shigoto.model.worker import KEPT_RELEASES, Ending


class TestHistory:
    """One row for each run that did not end completed."""

    @pytest.mark.parametrize("ending", [ending for ending in Ending if ending is not Ending.COMPLETED])
    def test_the_run_is_written_down_as_it_ended(self, store: EngineUnderTest, ending: Ending) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.clock.advance(70)

        store.settle(worker, lease, ending, error="broke", traceback="line 1")

        assert store.engine.run(store.engine.attempts(lease.id)) == [
            Attempt(
                token=lease.token,
                outcome=ending.name.lower(),
                error="broke",
                traceback="line 1",
                started_at=to_datetime(store.clock.now - 70),
                finished_at=to_datetime(store.clock.now),
            )
        ]

    def test_rows_come_oldest_first(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        job = store.enqueue()
        for ending in (Ending.RELEASED, Ending.ERRORED, Ending.SNOOZED, Ending.FAILED):
            [lease] = store.claim(worker)
            store.settle(worker, lease, ending)

        assert store.outcomes(job) == ["released", "errored", "snoozed", "failed"]

    def test_a_lease_that_was_given_back_unrun_leaves_no_row(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)

        store.settle(worker, lease, Ending.RELEASED, ran=False)

        assert store.outcomes(lease) == []
        assert (store.job(lease).state, store.job(lease).releases) == (State.PENDING, 1)

    @pytest.mark.parametrize("ending", [Ending.ERRORED, Ending.CANCELLED])
    def test_any_other_end_leaves_one_even_if_nothing_ran(
        self, store: EngineUnderTest, ending: Ending
    ) -> None:
        worker = store.announce()
        lease = store.start(worker)

        store.settle(worker, lease, ending, ran=False)

        assert store.outcomes(lease) == [ending.name.lower()]

    def test_of_released_runs_only_those_of_the_last_hundred_claims_are_kept(
        self, store: EngineUnderTest
    ) -> None:
        """A job that is cut short every few seconds for a year must not fill the store."""
        worker = store.announce()
        job, other = store.enqueue(), store.enqueue(task="other")
        [lease] = store.claim(worker)
        store.settle(worker, lease, Ending.ERRORED)
        [untouched] = store.claim(worker, tasks=("other",))
        store.settle(worker, untouched, Ending.RELEASED)
        for _ in range(KEPT_RELEASES + 5):
            [lease] = store.claim(worker)
            store.settle(worker, lease, Ending.RELEASED)

        attempts = store.engine.run(store.engine.attempts(job.id))
        assert attempts[0].outcome == "errored"
        assert [attempt.token for attempt in attempts[1:]] == list(
            range(lease.token - KEPT_RELEASES + 1, lease.token + 1)
        )
        assert store.outcomes(other) == ["released"]
        assert store.job(job).releases == KEPT_RELEASES + 5

    def test_a_refused_settlement_leaves_no_row(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)

        store.settle(store.announce(), lease, Ending.ERRORED)

        assert store.outcomes(lease) == []


class TestReport:
    """T3: news of a run in progress."""

    def test_progress_is_seen_at_once(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)

        assert store.report(worker, lease, progress=0.25, progress_text="Page 1/4")

        job = store.job(lease)
        assert (job.progress, job.progress_text, job.state) == (0.25, "Page 1/4", State.PROCESSING)

    def test_what_is_not_said_stays(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.report(worker, lease, progress=0.25, progress_text="Page 1/4")

        store.report(worker, lease, progress=0.5)

        assert (store.job(lease).progress, store.job(lease).progress_text) == (0.5, "Page 1/4")

    @pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.FAILED, Ending.CANCELLED, Ending.ERRORED])
    def test_progress_stays_after_the_end(self, store: EngineUnderTest, ending: Ending) -> None:
        """S2-21."""
        worker = store.announce()
        lease = store.start(worker)
        store.report(worker, lease, progress=0.25, progress_text="Page 1/4")

        store.settle(worker, lease, ending)

        assert (store.job(lease).progress, store.job(lease).progress_text) == (0.25, "Page 1/4")

    def test_a_settlement_brings_the_last_progress(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.report(worker, lease, progress=0.25, progress_text="Page 1/4")

        store.settle(worker, lease, Ending.COMPLETED, progress=1.0, progress_text="done")

        assert (store.job(lease).progress, store.job(lease).progress_text) == (1.0, "done")

    @pytest.mark.parametrize("ending", [Ending.ERRORED, Ending.RELEASED, Ending.SNOOZED, Ending.CRASHED])
    def test_the_next_run_gets_the_checkpoint(self, store: EngineUnderTest, ending: Ending) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.report(worker, lease, checkpoint='{"page":1}')
        store.report(worker, lease, checkpoint='{"page":2}', progress=0.5)

        store.settle(worker, lease, ending)

        [again] = store.claim(worker)
        assert again.checkpoint == '{"page":2}'

    def test_a_lost_lease_is_told_so(self, store: EngineUnderTest) -> None:
        worker, stranger = store.announce(), store.announce()
        lease = store.start(worker)

        assert not store.report(stranger, lease, progress=0.9)
        store.settle(worker, lease, Ending.RELEASED)
        assert not store.report(worker, lease, progress=0.9)
        store.claim(worker)
        assert not store.report(worker, lease, progress=0.9)

        assert store.job(lease).progress is None
