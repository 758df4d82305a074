"""Who runs and ends a job must hold it then: be announced, not be fenced, and be the process that has the token."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from faults.evidence.audit import Announced
from faults.evidence.checker import Evidence, check
from faults.evidence.records import Record
from faults.tests.judge.forged_evidence import (
    LEASE,
    Log,
    changed,
    flagged,
    good,
    record,
    with_changes,
    with_job,
)


def held(worker: str, claimed: float, completed: float, *runs: Record) -> Evidence:
    """One more job, that this worker claims and completes; in the audit that is after the fence of `w9`."""

    def write(log: Log) -> None:
        log.claim(claimed, "x", 1, worker=worker)
        log.complete(completed, "x", 1)

    return with_job(good(), write, *runs)


def ran(pid: int, began: float, ended: float) -> tuple[Record, Record]:
    return record("start", began, "x", 1, pid=pid), record("end", ended, "x", 1, pid=pid, outcome="done")


def test_a_fenced_worker_claims_nothing() -> None:
    forged = check(held("w9", 6.9, 7.6, *ran(9, 7.0, 7.5)))

    assert flagged(forged) == {"bad_settles": 1}
    assert "was given to a worker that had been fenced" in forged.bad_settles[0]


def fenced_between(at: float | None = None) -> Evidence:
    """The worker of `x` is fenced after its claim and before it completes it."""
    evidence = held("w8", 6.9, 7.6, *ran(8, 7.0, 7.5))
    [claim] = [c.sequence for c in evidence.changes if (c.job, c.table, c.deed) == ("x", "running", "in")]
    fenced = Announced(8, LEASE, claim + 1, at)
    return replace(evidence, workers={**evidence.workers, "w8": fenced})


def test_a_fenced_worker_completes_nothing() -> None:
    """I5: what it holds has to be taken from it, in the transaction that fences it."""
    forged = check(fenced_between())

    assert flagged(forged) == {"bad_settles": 1}
    assert "was ended by a worker that had been fenced" in forged.bad_settles[0]


def test_what_was_under_way_when_a_worker_was_fenced_may_still_be_done() -> None:
    """Where several write at once: a transaction that began before it could see the fence has its rows."""
    evidence = fenced_between(at=6.0)
    under_way = with_changes(evidence, lambda c: c.job == "x", since=6.5)

    assert flagged(check(under_way)) == {}
    assert flagged(check(evidence)) == {"bad_settles": 1}


def test_a_fence_that_is_lifted_is_flagged() -> None:
    back = replace(good().workers["w9"], lifted=True)
    forged = check(replace(good(), workers={**good().workers, "w9": back}))

    assert flagged(forged) == {"bad_settles": 1}


def test_nobody_claims_who_was_not_announced() -> None:
    assert flagged(check(held("nobody", 6.9, 7.6, *ran(7, 7.0, 7.5)))) == {"bad_settles": 1}


@pytest.mark.parametrize(("began", "wrong"), [(2.0, 1), (2.9, 1), (2.96, 0), (3.1, 0)])
def test_no_run_begins_before_its_token_is_given_out(began: float, wrong: int) -> None:
    assert len(check(held("w7", 3.0, 4.6, *ran(7, began, 4.5))).bad_settles) == wrong


def late_start(began: float, stop: float, cont: float) -> Evidence:
    """A claim that is taken at 3.5 and begins so late; the job is completed by another, at 9.6."""

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1, worker="w20")
        log.back(3.5, "x", 1, settled=0, crashes=1)
        log.claim(8.9, "x", 2, worker="w10", crashes=1)
        log.complete(9.6, "x", 2, crashes=1)

    late = with_job(
        good(),
        write,
        record("start", began, "x", 1, pid=20),
        record("end", began + 0.5, "x", 1, pid=20, outcome="done"),
        record("start", 9.0, "x", 2, pid=10),
        record("end", 9.5, "x", 2, pid=10, outcome="done"),
        record("fault", stop, pid=20, deed="stop"),
        record("fault", cont, pid=20, deed="cont"),
    )
    return replace(late, workers={**late.workers, "w20": Announced(20, LEASE)})


def test_no_run_begins_when_its_claim_is_over_unless_it_was_stopped_and_has_just_gone_on() -> None:
    late = check(late_start(7.0, 1.0, 5.0))

    assert [each for each in late.bad_settles if "after that was over" in each]
    assert check(late_start(7.0, 1.0, 6.9)).bad_settles == []
    assert check(late_start(3.54, 1.0, 5.0)).bad_settles == []


def test_a_claim_whose_answer_is_under_way_when_somebody_uses_force_may_begin() -> None:
    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.write(0.95, "x", "running", "out", 1)
        log.write(0.95, "x", "done", "in", 1, 0, state="cancelled")

    asked = record("cancel", 0.92, "x", pid=3, deed="force")
    soon = with_job(
        good(),
        write,
        asked,
        record("start", 1.2, "x", 1),
        record("end", 1.3, "x", 1, outcome="cancelled"),
        state="cancelled",
    )
    late = changed(soon, lambda r: r.job == "x" and r.what == "start", at=11.2)
    late = changed(late, lambda r: r.job == "x" and r.what == "end", at=11.3)

    assert flagged(check(soon)) == {}
    assert flagged(check(late)) == {"bad_settles": 1}


def test_a_run_is_in_the_process_that_has_its_token_or_in_a_child_of_that() -> None:
    child = tuple(replace(each, parent=7) for each in ran(77, 1.0, 4.5))

    assert flagged(check(held("w7", 0.9, 4.6, *ran(77, 1.0, 4.5)))) == {"bad_settles": 1}
    assert flagged(check(held("w7", 0.9, 4.6, *child))) == {}


def deleted_and_stored_again(e: Evidence) -> Evidence:
    """Under its old id, with a new number."""

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.write(1.0, "x", "running", "out", 1)
        new = len(log.changes)
        log.enqueue(1.1, "x")
        log.claim(3.9, "x", 1)
        log.complete(4.6, "x", 1)
        log.changes[new:] = [replace(change, number=999) for change in log.changes[new:]]

    return with_job(e, write, *ran(7, 4.0, 4.5))


def forgotten_failures(e: Evidence) -> Evidence:
    """A job that becomes due comes back without a past."""

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.write(2.0, "x", "running", "out", 1)
        log.write(2.0, "x", "scheduled", "in", 1, 1, failures=1)
        log.write(3.0, "x", "ready", "in", 1, 1)
        log.write(3.0, "x", "scheduled", "out", 1, 1, failures=1)
        log.claim(3.9, "x", 2, settled=1)
        log.complete(4.6, "x", 2, settled=1)

    again = tuple(replace(each, token=2) for each in ran(7, 4.0, 4.5))
    first = (record("start", 1.0, "x", 1), record("end", 1.5, "x", 1, outcome="error"))
    return with_job(e, write, *first, *again)


def acknowledged_before_it_is_stored(e: Evidence) -> Evidence:
    return with_changes(e, lambda c: c.job == "a" and c.at < 0.9, at=0.2)


def table_that_disagrees(e: Evidence) -> Evidence:
    return replace(e, states={**e.states, "a": "failed"})


def end_that_nobody_saw(e: Evidence) -> Evidence:
    """Done, by the tables; running, by the audit."""
    return with_job(e, lambda log: log.claim(0.9, "x", 1), *ran(7, 1.0, 1.5))


def test_a_job_that_another_has_replaced_begins_anew() -> None:
    assert flagged(check(replace(forgotten_failures(good()), keyed=frozenset("x")))) == {}


@pytest.mark.parametrize(
    "mutate",
    [
        deleted_and_stored_again,
        forgotten_failures,
        acknowledged_before_it_is_stored,
        table_that_disagrees,
        end_that_nobody_saw,
    ],
)
def test_every_mutated_audit_is_flagged(mutate: Callable[[Evidence], Evidence]) -> None:
    findings = check(mutate(good()))

    assert flagged(findings) == {"bad_settles": 1}
