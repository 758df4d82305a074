"""The checker is tested first: evidence of a run without fault passes, and each kind of broken evidence is flagged."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from faults.evidence.checker import Evidence, check
from faults.tests.judge.forged_evidence import (
    Log,
    changed,
    flagged,
    good,
    record,
    with_changes,
    with_job,
    with_log,
    with_records,
    without,
)


def test_a_run_without_fault_passes() -> None:
    """I1-I6, I9: each further run has its licence, an overlap across a fence is legal, and so is a doubtful call."""
    findings = check(good())

    assert flagged(findings) == {}
    assert findings.reruns == {"error": 1, "kill": 1, "stop": 1}
    assert findings.recovery == [2.5, pytest.approx(2.8)]
    assert len(findings.freed) == 2
    assert all(0 < free < again for free, again in zip(findings.freed, findings.recovery, strict=True))
    assert findings.ambiguous == (0, 1)
    assert findings.latency == [pytest.approx(0.9)] * 5
    assert findings.inversions == 0
    assert findings.outcome(6).passed
    assert findings.outcome(6).n == 6


def dropped_execution(e: Evidence) -> Evidence:
    return without(e, lambda r: r.job == "a" and r.what in ("start", "end"))


def doubled_execution(e: Evidence) -> Evidence:
    e = with_records(e, record("start", 1.1, "a", 1), record("end", 1.2, "a", 1, outcome="done"))
    return changed(e, lambda r: r.job == "a" and r.at == 1.5, at=1.05)


def swapped_executions(e: Evidence) -> Evidence:
    first = {(r.what, r.at): replace(r, token=3 - r.token) for r in e.records if r.job == "b" and r.token}
    return replace(e, records=[first.get((r.what, r.at), r) if r.job == "b" else r for r in e.records])


def forged_token(e: Evidence) -> Evidence:
    return changed(e, lambda r: r.job == "a" and r.what in ("start", "end"), token=3)


def row_that_is_gone(e: Evidence) -> Evidence:
    return replace(e, states={job: state for job, state in e.states.items() if job != "a"})


def stranger(e: Evidence) -> Evidence:
    def write(log: Log) -> None:
        log.enqueue(0.9, "x")
        log.claim(0.95, "x", 1)
        log.complete(1.6, "x", 1)

    return with_records(
        with_log(e, write), record("start", 1.0, "x", 1), record("end", 1.5, "x", 1, outcome="done")
    )


def start_after_the_end(e: Evidence) -> Evidence:
    """A process that had the job before, and was fenced, begins it when another has completed it."""
    return changed(e, lambda r: r.job == "d" and r.token == 1 and r.what == "start", at=6.5)


def overlapping_runs(e: Evidence) -> Evidence:
    return changed(e, lambda r: r.job == "b" and r.at == 1.4, at=2.2)


def false_fence(e: Evidence) -> Evidence:
    e = without(e, lambda r: r.what == "fault" and r.pid == 8)
    return with_records(e, record("end", 3.4, "c", 1, pid=8, outcome="cancelled"))


def fault_of_somebody_else(e: Evidence) -> Evidence:
    return changed(e, lambda r: r.what == "fault" and r.pid == 8, pid=10)


def old_token_settles(e: Evidence) -> Evidence:
    return with_changes(e, lambda c: c.job == "b" and c.state == "completed", token=1, settled_token=1)


def success_of_another(e: Evidence) -> Evidence:
    """Without a token check, the success of a fenced run ends the claim of another, which goes on."""
    return with_changes(e, lambda c: c.job == "d" and c.state == "completed", at=5.6)


def token_that_jumps(e: Evidence) -> Evidence:
    e = with_changes(e, lambda c: c.job == "a" and c.token == 1, token=2)
    e = with_changes(e, lambda c: c.job == "a" and c.settled_token == 1, settled_token=2)
    return changed(e, lambda r: r.job == "a" and r.token == 1, token=2)


def resurrected(e: Evidence) -> Evidence:
    def write(log: Log) -> None:
        log.write(7.0, "a", "done", "out", 1, 1, state="completed")
        log.write(7.0, "a", "ready", "in", 1, 1)

    return with_log(e, write)


def in_two_places(e: Evidence) -> Evidence:
    return replace(e, changes=[c for c in e.changes if (c.job, c.table, c.deed) != ("a", "running", "out")])


def claimed_before_due(e: Evidence) -> Evidence:
    return with_changes(e, lambda c: c.job == "a" and c.table == "ready", table="scheduled")


def double_settle(e: Evidence) -> Evidence:
    def write(log: Log) -> None:
        log.write(1.7, "a", "done", "change", 1, 1, state="failed")

    return with_log(e, write)


def effect_twice(e: Evidence) -> Evidence:
    return replace(e, effects={"e": 2})


def effect_missing(e: Evidence) -> Evidence:
    return replace(e, effects={})


def effect_without_success(e: Evidence) -> Evidence:
    return replace(e, effects={"e": 1, "f": 1})


def start_before_due(e: Evidence) -> Evidence:
    return changed(e, lambda r: r.job == "a" and r.what == "try", due=1.2)


BROKEN: list[tuple[Callable[[Evidence], Evidence], dict[str, int]]] = [
    (dropped_execution, {"lost": 1}),
    (doubled_execution, {"unlicensed": 1}),
    (swapped_executions, {"bad_settles": 3}),
    (forged_token, {"bad_settles": 2}),
    (row_that_is_gone, {"vanished": 1}),
    (stranger, {"phantom": 1}),
    (start_after_the_end, {"after_final": 1}),
    (overlapping_runs, {"overlaps": 1, "bad_settles": 1}),  # counted as an error while it goes on
    (false_fence, {"unlicensed": 1}),
    (fault_of_somebody_else, {"unlicensed": 1, "overlaps": 1}),  # nobody has ended the first run
    (old_token_settles, {"bad_settles": 2}),
    (success_of_another, {"bad_settles": 1}),
    (token_that_jumps, {"bad_settles": 1}),
    (resurrected, {"bad_settles": 1}),
    (in_two_places, {"bad_settles": 1}),
    (claimed_before_due, {"bad_settles": 1}),
    (double_settle, {"bad_settles": 1}),
    (effect_twice, {"effects": 1}),
    (effect_missing, {"effects": 1}),
    (effect_without_success, {"effects": 1}),
    (start_before_due, {"too_early": 1}),
]


@pytest.mark.parametrize(("mutate", "expected"), BROKEN, ids=[mutate.__name__ for mutate, _ in BROKEN])
def test_every_mutated_ledger_is_flagged(
    mutate: Callable[[Evidence], Evidence], expected: dict[str, int]
) -> None:
    """In the right category, and in no other."""
    findings = check(mutate(good()))

    assert flagged(findings) == expected
    assert not findings.outcome(6).passed


def test_a_doubtful_call_may_be_stored_or_not() -> None:
    """I7: both are legal, whether the producer was told of an error or died before it was told anything."""

    def write(log: Log) -> None:
        log.enqueue(0.1, "g")
        log.claim(0.9, "g", 1)
        log.complete(1.6, "g", 1)

    told = with_records(good(), record("start", 1.0, "g", 1), record("end", 1.5, "g", 1, outcome="done"))
    stored = replace(with_log(told, write), states={**good().states, "g": "completed"})
    died = without(good(), lambda r: r.what == "err")

    assert (flagged(check(stored)), check(stored).ambiguous) == ({}, (1, 0))
    assert (flagged(check(died)), check(died).ambiguous) == ({}, (0, 1))


def test_a_job_that_waits_for_ever_is_lost() -> None:
    waits = with_job(good(), lambda log: None, state="pending")

    assert flagged(check(waits)) == {"lost": 1}


def test_a_stopped_process_may_go_on_for_as_long_as_it_is_given() -> None:
    """It had claimed the job, was fenced while it was stopped, and begins it before it hears of that."""
    late = changed(good(), lambda r: r.job == "d" and r.token == 1 and r.what == "start", at=6.5)
    late = changed(late, lambda r: r.deed == "cont", at=6.2)

    assert flagged(check(late)) == {"after_final": 1}
    assert flagged(check(replace(late, grace=1.0))) == {}


def test_jobs_of_one_order_that_end_in_another_are_counted() -> None:
    """I12."""
    swapped = changed(good(), lambda r: r.what == "try" and r.job == "a", sequence=2)

    findings = check(swapped)

    assert findings.inversions == 1
    assert findings.outcome(6).wrong == ["1 jobs ended out of order"]


def test_the_answer_of_an_experiment_has_counts_reasons_and_figures() -> None:
    outcome = check(dropped_execution(good())).outcome(6)

    assert (outcome.n, outcome.lost, outcome.passed) == (6, 1, False)
    assert outcome.figures["reasons"] == {"lost": ["a"]}
    assert outcome.figures["reruns"] == {"error": 1, "kill": 1, "stop": 1}
    assert outcome.figures["latency"] == {"p50": 0.9, "p99": 0.9, "max": 0.9}
    assert outcome.figures["ambiguous"] == {"stored": 0, "not stored": 1}


def test_without_a_producer_whatever_is_stored_counts_as_acknowledged() -> None:
    unasked = without(good(), lambda r: r.what in ("try", "ok", "err"))

    assert flagged(check(unasked)) == {}
    assert flagged(check(dropped_execution(unasked))) == {"lost": 1}
    assert flagged(check(stranger(unasked))) == {"vanished": 1}, "the audit has seen it come"
    assert flagged(check(replace(stranger(unasked), changes=good().changes))) == {"phantom": 1}
