"""What the store says of a job's end is believed only if its run, or an operator, has written the same down."""

import pytest
from msgspec.structs import replace

from faults.evidence.checker import Evidence, check
from faults.tests.judge.forged_evidence import (
    Log,
    changed,
    flagged,
    good,
    record,
    with_job,
    with_records,
)


def ended(state: str, *, settled: int = 1, token: int = 1) -> Evidence:
    """A job that was claimed and ends in this state, without a run."""

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.write(2.0, "x", "running", "out", 1)
        log.write(2.0, "x", "done", "in", token, settled, state=state, failures=int(state == "failed"))

    return with_job(good(), write, state=state)


def test_a_job_that_fails_before_its_handler_is_lost_unless_it_could_not_run() -> None:
    """I2: an experiment says which jobs ask for what cannot be done."""
    assert flagged(check(ended("failed"))) == {"lost": 1}
    assert flagged(check(replace(ended("failed"), refusable=frozenset("x")))) == {}
    assert flagged(check(replace(ended("failed"), refusable=frozenset("a")))) == {"lost": 1}
    asked = with_records(ended("failed"), record("cancel", 1.5, "x", pid=3))
    assert flagged(check(asked)) == {"lost": 1}, "a cancel fails nothing"


def test_a_job_that_nobody_has_cancelled_is_not_cancelled() -> None:
    """T11, T13: whether it ran or not, and whatever it may be refused for."""
    asked = with_records(ended("cancelled"), record("cancel", 1.5, "x", pid=3))
    ran = (record("start", 1.0, "x", 1), record("end", 1.9, "x", 1, outcome="cancelled"))

    assert flagged(check(asked)) == {}
    assert flagged(check(ended("cancelled"))) == {"lost": 1, "bad_settles": 1}
    assert flagged(check(replace(ended("cancelled"), refusable=frozenset("x")))) == {"bad_settles": 1}
    assert flagged(check(with_records(ended("cancelled"), *ran))) == {"bad_settles": 1}
    assert flagged(check(with_records(asked, *ran))) == {}
    late = changed(asked, lambda r: r.what == "cancel" and r.job == "x", at=2.5)
    assert flagged(check(late)) == {"bad_settles": 1}


def test_a_job_that_waits_is_not_cancelled_by_nobody_either() -> None:
    unasked = replace(good(), records=[r for r in good().records if r.what != "cancel"])

    assert flagged(check(unasked)) == {"lost": 1, "bad_settles": 1}


def test_a_handler_may_cancel_its_own_job() -> None:
    ran = (record("start", 1.0, "x", 1), record("end", 1.9, "x", 1, outcome="withdrawn"))

    assert flagged(check(with_records(ended("cancelled"), *ran))) == {}


def test_a_run_that_ended_well_does_not_fail_its_job() -> None:
    """But for those whose result cannot be stored, or that were too late."""
    ran = (record("start", 1.0, "x", 1), record("end", 1.9, "x", 1, outcome="done"))
    forged = with_records(ended("failed"), *ran)

    assert flagged(check(forged)) == {"bad_settles": 1}
    assert flagged(check(replace(forged, unruly=frozenset("x")))) == {}


@pytest.mark.parametrize("outcome", ["error", "cancelled", "trouble", "withdrawn"])
def test_a_run_that_did_not_end_well_completes_nothing(outcome: str) -> None:
    forged = changed(good(), lambda r: r.job == "a" and r.what == "end", outcome=outcome)

    assert flagged(check(forged)) == {"bad_settles": 1}


def test_a_token_that_never_ran_completes_nothing_even_if_an_earlier_one_did() -> None:
    """The first run was killed; what completes the job has no run."""
    forged = replace(good(), records=[r for r in good().records if (r.job, r.token) != ("c", 2)])

    assert flagged(check(forged)) == {"bad_settles": 1}
