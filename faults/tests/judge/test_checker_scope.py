"""What is counted at all: every job that is stored, and only what there is evidence for."""

import pytest
from msgspec.structs import replace

from faults.evidence.checker import Evidence, check
from faults.experiment import ZEROS, Outcome
from faults.tests.judge.forged_evidence import (
    Log,
    flagged,
    good,
    record,
    with_job,
    with_log,
    with_records,
    without,
)


def stored(evidence: Evidence, job: str, state: str) -> Evidence:
    """The same with one more row."""
    told = with_log(evidence, lambda log: log.enqueue(0.05, job))
    return replace(told, states={**evidence.states, job: state})


def test_a_job_that_was_cut_short_and_never_ends_is_lost() -> None:
    """Whether it waits for its next run, or nobody has taken it from the dead."""

    def back(log: Log) -> None:
        log.claim(0.9, "x", 1, worker="w8")
        log.back(3.5, "x", 1, settled=0, crashes=1)

    begun = record("start", 1.0, "x", 1, pid=8)
    held = with_job(good(), lambda log: log.claim(0.9, "x", 1, worker="w8"), begun, state="processing")

    assert check(with_job(good(), back, begun, state="pending")).lost == ["x: is pending for ever"]
    assert flagged(check(held)) == {"lost": 1}


def test_a_doubtful_job_that_is_stored_has_to_run_as_well() -> None:
    assert flagged(check(stored(good(), "g", "pending"))) == {"lost": 1}


def test_a_row_that_nobody_asked_for_is_a_phantom_even_if_it_never_runs() -> None:
    assert flagged(check(stored(good(), "x", "pending"))) == {"phantom": 1}


def test_a_job_that_was_refused_for_good_must_not_run() -> None:
    def write(log: Log) -> None:
        log.enqueue(0.05, "x")
        log.claim(0.9, "x", 1)
        log.complete(1.6, "x", 1)

    ran = (record("start", 1.0, "x", 1), record("end", 1.5, "x", 1, outcome="done"))
    told = with_records(with_log(good(), write), record("try", 0.0, "x", pid=3), *ran)
    told = replace(told, states={**told.states, "x": "completed"})
    refused = with_records(told, record("err", 0.1, "x", pid=3))

    assert flagged(check(refused)) == {"phantom": 1}
    assert flagged(check(with_records(refused, record("ok", 0.2, "x", pid=3)))) == {}, "at the second try"
    assert flagged(check(with_records(told, record("err", 0.1, "x", pid=3, ambiguous=True)))) == {}


def test_without_a_producer_a_row_can_vanish_all_the_same() -> None:
    """The audit has seen it come."""
    unasked = without(good(), lambda r: r.what in ("try", "ok", "err"))
    gone = replace(unasked, states={job: state for job, state in unasked.states.items() if job != "a"})

    assert flagged(check(gone)) == {"vanished": 1}
    assert flagged(check(replace(gone, pruned=frozenset("a")))) == {}


def test_no_evidence_is_no_finding() -> None:
    nothing = check(Evidence(records=[], offset=0.0)).outcome(50_000)

    assert nothing.measured == ()
    assert not nothing.passed


@pytest.mark.parametrize(
    ("evidence", "missing"),
    [
        (good(), set[str]()),
        (replace(good(), changes=()), {"unlicensed", "after_final", "bad_settles"}),
        (replace(good(), effects=None), {"effects"}),
        (without(good(), lambda r: r.effect), {"effects"}),
        (without(good(), lambda r: r.what == "start"), {"effects", "overlaps", "after_final"}),
    ],
)
def test_only_what_there_is_evidence_for_was_measured(evidence: Evidence, missing: set[str]) -> None:
    assert set(ZEROS) - set(check(evidence).measured) == missing


def test_each_count_has_the_number_it_is_of() -> None:
    """Six jobs were stored, three runs were further ones, and one job has an effect."""
    outcome = check(good()).outcome(100)

    assert outcome.at_risk == {"lost": 6, "vanished": 6, "unlicensed": 3, "effects": 1}
    assert (outcome.risk("lost"), outcome.risk("phantom")) == (6, 100)


def test_parts_add_up_to_what_all_of_them_had_at_risk() -> None:
    whole, plain = Outcome(), check(without(good(), lambda r: r.effect)).outcome(1)
    for part in (plain, check(good()).outcome(1), Outcome(n=2, measured=("lost",))):
        whole.add(part)

    assert whole.n == 4
    assert whole.at_risk == {"lost": 6 + 6 + 2, "vanished": 12, "unlicensed": 6, "effects": 1}
    assert set(whole.measured) == {*whole.at_risk}, "and what every part has measured"
