"""Promises about the lines that runs write: kept in order, as many as are wanted, for as long as the job."""

import pytest

from conformance.engine_under_test import EngineUnderTest, ended
from shigoto.model.job import JobFilter, LoggedLine, LogLine, State
from shigoto.model.time import to_datetime
from shigoto.model.worker import Ending, LogTail, Report, Verdict


def tail(*lines: int, first: int = 1, text: str = "line") -> LogTail:
    """New lines of a run, and which of all are still to be kept."""
    return LogTail(first, tuple(LogLine(line, 1_000 + line, "INFO", f"{text} {line}") for line in lines))


class TestLogs:
    """A8: written with reports and settlements, under the same guard."""

    def test_lines_are_kept_as_they_were_written(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        line = LogLine(1, 1_234, "WARNING", "the text, the *whole* text\nand 日本語")

        assert store.report(worker, lease, log=LogTail(1, (line,)))

        assert store.engine.run(store.engine.logs(lease.id)) == [
            LoggedLine(
                token=lease.token,
                line=1,
                at=to_datetime(1_234),
                level="WARNING",
                text="the text, the *whole* text\nand 日本語",
            )
        ]

    def test_they_come_by_run_and_in_order(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        job = store.enqueue()
        [first] = store.claim(worker)
        store.report(worker, first, log=tail(2, 1))
        store.settle(worker, first, Ending.ERRORED, log=tail(3))
        [second] = store.claim(worker)
        store.report(worker, second, log=tail(1))

        assert [(token, line) for token, line, _ in store.logs(job)] == [(1, 1), (1, 2), (1, 3), (2, 1)]

    def test_a_settlement_brings_the_last_ones(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        leases = [store.start(worker) for _ in range(3)]
        quiet = store.start(worker)
        endings = (Ending.COMPLETED, Ending.FAILED, Ending.RELEASED)
        settlements = [ended(lease, end, log=tail(1)) for lease, end in zip(leases, endings, strict=True)]

        store.engine.run(store.engine.settle(worker, [*settlements, ended(quiet, Ending.COMPLETED)]))

        assert [len(store.logs(lease)) for lease in (*leases, quiet)] == [1, 1, 1, 0]

    def test_a_line_that_is_told_twice_is_there_once(self, store: EngineUnderTest) -> None:
        """The answer to a report may be lost after its commit."""
        worker = store.announce()
        lease = store.start(worker)
        store.report(worker, lease, log=tail(1, 2))

        store.report(worker, lease, log=tail(2, 3, text="again"))

        assert [text for _, _, text in store.logs(lease)] == ["line 1", "line 2", "again 3"]

    def test_only_the_last_lines_of_a_run_are_kept(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        job = store.enqueue()
        [lease] = store.claim(worker)
        store.report(worker, lease, log=tail(1, 2, 3))
        store.settle(worker, lease, Ending.ERRORED)
        [lease] = store.claim(worker)
        store.report(worker, lease, log=tail(1, 2, 3))

        store.report(worker, lease, log=tail(4, first=3))

        kept = [(token, line) for token, line, _ in store.logs(job)]
        assert kept == [(1, 1), (1, 2), (1, 3), (2, 3), (2, 4)], "of the other run, all"

    def test_lines_and_progress_come_together(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease, other = store.start(worker), store.start(worker)
        store.report(worker, lease, progress=0.5, checkpoint="1", log=tail(1))
        reports = [
            Report(number=one.number, token=one.token, log=tail(2), progress_text="half")
            for one in (lease, other)
        ]

        assert store.engine.run(store.engine.report(worker, reports)) == [True, True]

        assert [len(store.logs(one)) for one in (lease, other)] == [2, 1]
        assert (store.job(lease).progress, store.job(lease).progress_text) == (0.5, "half")

    def test_a_lost_lease_writes_nothing(self, store: EngineUnderTest) -> None:
        """I4."""
        worker, stranger = store.announce(), store.announce()
        lease = store.start(worker)

        assert not store.report(stranger, lease, log=tail(1))
        assert store.settle(stranger, lease, Ending.COMPLETED, log=tail(1)) is Verdict.LOST
        store.cancel(lease, force=True)
        assert store.settle(worker, lease, Ending.COMPLETED, log=tail(1)) is Verdict.LOST

        assert store.logs(lease) == []

    @pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.ERRORED])
    def test_a_repeated_settlement_brings_what_was_written_since(
        self, store: EngineUnderTest, ending: Ending
    ) -> None:
        """A transaction block ends the job; what its handler writes afterwards comes with the worker's own word."""
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, ending, log=tail(1, 2))

        assert store.settle(worker, lease, Ending.COMPLETED, log=tail(2, 3, first=2)) is Verdict.REPEATED

        assert [line for _, line, _ in store.logs(lease)] == [2, 3]
        assert store.settle(worker, lease, Ending.COMPLETED) is Verdict.REPEATED

    def test_lines_of_the_same_settlement_twice_in_a_batch_are_there_once(
        self, store: EngineUnderTest
    ) -> None:
        worker = store.announce()
        lease = store.start(worker)
        twice = [ended(lease, Ending.COMPLETED, log=tail(1, 2))] * 2

        verdicts = store.engine.run(store.engine.settle(worker, twice))

        assert verdicts == [Verdict.ACCEPTED, Verdict.REPEATED]
        assert [line for _, line, _ in store.logs(lease)] == [1, 2]

    def test_they_go_with_the_job(self, store: EngineUnderTest) -> None:
        worker = store.announce()
        lease = store.start(worker)
        store.settle(worker, lease, Ending.FAILED, log=tail(1))
        assert len(store.logs(lease)) == 1

        store.delete(JobFilter(state=State.FAILED, limit=1))
        again = store.enqueue(id=lease.id)

        assert store.logs(again) == []

    def test_a_job_that_nobody_knows_has_written_nothing(self, store: EngineUnderTest) -> None:
        assert store.engine.run(store.engine.logs(store.new_id())) == []
