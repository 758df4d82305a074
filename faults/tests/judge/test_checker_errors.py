"""What the store counts as an error, a failure or a success is believed only if that very run has written the same."""

import pytest
from msgspec.structs import replace

from faults.evidence.checker import Evidence, check
from faults.evidence.records import Record
from faults.tests.judge.forged_evidence import (
    Log,
    changed,
    flagged,
    good,
    record,
    with_job,
    with_records,
    without,
)

AGAIN = (record("start", 4.0, "x", 2, pid=10), record("end", 4.5, "x", 2, pid=10, outcome="done"))


def first(outcome: str, ended: float = 1.5) -> tuple[Record, ...]:
    start = record("start", 1.0, "x", 1)
    return (start, record("end", ended, "x", 1, outcome=outcome)) if outcome else (start,)


def erred(*runs: Record) -> Evidence:
    """The first claim of `x` is counted as an error at 2.0; the second one, at 3.9, ends well."""

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.back(2.0, "x", 1, settled=1, failures=1)
        log.claim(3.9, "x", 2, 1, "w10", failures=1)
        log.complete(4.6, "x", 2, settled=1, failures=1)

    return with_job(good(), write, *runs, *AGAIN)


@pytest.mark.parametrize("outcome", ["cancelled", "withdrawn", "trouble", "fenced", "ok"])
def test_only_a_run_that_ended_in_an_error_counts_as_one(outcome: str) -> None:
    """One that was cut short by nobody, or that ended well in the words of its app, must not be run again for that."""
    forged = erred(*first(outcome))

    assert flagged(check(forged)) == {"unlicensed": 1, "bad_settles": 1}
    assert flagged(check(replace(forged, unruly=frozenset("x")))) == {}
    assert flagged(check(erred(*first("error")))) == {}


def test_a_run_that_goes_on_is_no_error_and_is_not_to_be_run_again_meanwhile() -> None:
    forged = erred(*first(""))

    assert flagged(check(forged)) == {"unlicensed": 1, "overlaps": 1, "bad_settles": 1}


def test_an_error_is_not_counted_before_its_run_has_ended() -> None:
    assert flagged(check(erred(*first("error", ended=2.04)))) == {}
    early = check(erred(*first("error", ended=3.0)))

    assert flagged(early) == {"bad_settles": 1}
    assert "its run ended 1.000 s later" in early.bad_settles[0]


def test_a_token_that_never_ran_counts_as_no_error() -> None:
    """The first run fails, the second claim is counted as another failure, and there is nobody who had it."""

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.back(1.6, "x", 1, settled=1, failures=1)
        log.claim(1.9, "x", 2, settled=1, failures=1)
        log.write(2.4, "x", "running", "out", 2, 1, failures=1)
        log.write(2.4, "x", "ready", "in", 2, 2, failures=2)
        log.claim(3.9, "x", 3, 2, "w10", failures=2)
        log.complete(4.6, "x", 3, settled=2, failures=2)

    again = tuple(replace(each, token=3) for each in AGAIN)
    forged = with_job(good(), write, *first("error"), *again)

    assert flagged(check(forged)) == {"bad_settles": 1}
    for excuse in ("refusable", "unruly"):
        assert flagged(check(replace(forged, **{excuse: frozenset("x")}))) == {}


def failed(*runs: Record) -> Evidence:
    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.write(2.0, "x", "done", "in", 1, 1, state="failed", failures=1)
        log.write(2.0, "x", "running", "out", 1, 0)

    return with_job(good(), write, *runs, state="failed")


@pytest.mark.parametrize("outcome", ["", "cancelled", "withdrawn", "trouble"])
def test_a_job_does_not_fail_by_a_run_that_had_no_error(outcome: str) -> None:
    assert flagged(check(failed(*first(outcome)))) == {"bad_settles": 1}
    assert flagged(check(failed(*first("error")))) == {}
    assert flagged(check(failed(*first("error", ended=2.5)))) == {"bad_settles": 1}


def test_a_job_that_has_run_does_not_fail_while_it_waits_unless_it_may_be_refused() -> None:
    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.back(2.0, "x", 1, settled=1, failures=1)
        log.write(2.5, "x", "done", "in", 1, 1, state="failed", failures=1)
        log.write(2.5, "x", "ready", "out", 1, 1, failures=1)

    forged = with_job(good(), write, *first("error"), state="failed")

    assert flagged(check(forged)) == {"bad_settles": 1}
    assert flagged(check(replace(forged, refusable=frozenset("x")))) == {}


def cancelled(*records: Record, settled: int = 1) -> Evidence:
    """A job whose run ends well at 1.5, and which is cancelled at 3.0."""

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.write(3.0, "x", "done", "in", 1, settled, state="cancelled")
        log.write(3.0, "x", "running", "out", 1, 0)

    return with_job(good(), write, *first("done"), *records, state="cancelled")


def test_a_success_is_not_thrown_away_because_somebody_has_asked_to_cancel_it() -> None:
    """T11: every end but success is cancelled then; by force, and by a death, it is over at once."""
    asked, force = record("cancel", 1.2, "x", pid=3), record("cancel", 2.9, "x", pid=3, deed="force")
    late = changed(cancelled(asked), lambda r: r.job == "x" and r.what == "end", at=3.1)

    assert flagged(check(cancelled(asked))) == {"bad_settles": 1}
    assert flagged(check(cancelled(asked, record("fault", 2.0, deed="kill")))) == {}
    assert flagged(check(cancelled(force, settled=0))) == {}
    assert flagged(check(late)) == {}, "a thread that nobody could end"


def test_each_cancellation_takes_a_cancel_of_its_own() -> None:
    def write(log: Log) -> None:
        log.write(1.0, "x", "ready", "out")
        log.write(1.0, "x", "done", "in", state="cancelled")
        log.write(2.0, "x", "done", "out", state="cancelled")
        log.write(2.0, "x", "ready", "in")
        log.claim(2.5, "x", 1)
        log.write(3.0, "x", "done", "in", 1, 1, state="cancelled")
        log.write(3.0, "x", "running", "out", 1, 0)

    ran = (record("start", 2.6, "x", 1), record("end", 2.9, "x", 1, outcome="cancelled"))
    once = (record("cancel", 0.95, "x", pid=3), record("retry", 1.95, "x", pid=3))
    forged = with_job(good(), write, *ran, *once, state="cancelled")

    assert flagged(check(forged)) == {"bad_settles": 1}
    assert flagged(check(with_records(forged, record("cancel", 2.8, "x", pid=3)))) == {}
    by_itself = changed(forged, lambda r: r.job == "x" and r.what == "end", outcome="withdrawn")
    assert flagged(check(by_itself)) == {}


def with_effect(outcome: str, completed: float) -> Evidence:
    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.complete(completed, "x", 1)

    start = record("start", 1.0, "x", 1, effect=True)
    end = (record("end", 1.5, "x", 1, outcome=outcome),) if outcome else ()
    return replace(with_job(good(), write, start, *end), effects={"e": 1, "x": 1})


@pytest.mark.parametrize("outcome", ["error", "withdrawn", "fenced"])
def test_a_transaction_completes_no_job_whose_run_ended_otherwise(outcome: str) -> None:
    assert flagged(check(with_effect(outcome, 1.4))) == {"bad_settles": 1}


@pytest.mark.parametrize("outcome", ["done", "cancelled", "trouble", ""])
def test_a_run_may_be_cut_short_when_its_transaction_was_taken(outcome: str) -> None:
    assert flagged(check(with_effect(outcome, 1.4))) == {}


def test_a_transaction_completes_its_job_before_the_end_of_its_run() -> None:
    assert flagged(check(with_effect("done", 9.2))) == {"bad_settles": 1}


def test_an_error_that_nobody_ran_is_lost() -> None:
    """A failure that nobody ran is that of test_a_job_that_fails_before_its_handler_is_lost_unless_it_could_not_run."""
    never = without(erred(), lambda r: r.job == "x" and r.what in ("start", "end"))

    assert flagged(check(never)) == {"lost": 1}
