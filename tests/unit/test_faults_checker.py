"""The checker is tested first: evidence of a run without fault passes, and each kind of broken evidence is flagged.

The hand-made run: `a` succeeds at once; `b` fails once and is retried; `c` is cut short by the kill of its process
and rescued; `d` is stopped with its process, fenced, rerun elsewhere, and its first run ends late; `e` has an effect;
`f` is cancelled before it runs; `g` was asked for in vain, and nobody knows whether it is stored.
"""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from faults.evidence.audit import Change
from faults.evidence.checker import Evidence, Findings, check
from faults.evidence.records import Record

CATEGORIES = (
    "lost",
    "vanished",
    "phantom",
    "unlicensed",
    "after_final",
    "overlaps",
    "bad_settles",
    "effects",
    "too_early",
)
JOBS = "abcdef"


def record(what: Any, at: float, job: str = "", fence: int = 0, pid: int = 7, **fields: Any) -> Record:
    return Record(what=what, at=at, pid=pid, parent=5, job=job, fence=fence, **fields)


class Log:
    """Writes an audit by hand, in order."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def write(
        self, at: float, job: str, table: str, deed: str, token: int = 0, settled: int = 0, **fields: Any
    ) -> None:
        self.changes.append(
            Change(
                sequence=len(self.changes) + 1,
                at=at,
                number=ord(job),
                job=job,
                table=table,
                deed=deed,
                token=token,
                settled_token=settled,
                **fields,
            )
        )

    def enqueue(self, at: float, job: str) -> None:
        self.write(at, job, "ready", "in")

    def claim(
        self, at: float, job: str, token: int, settled: int = 0, worker: str = "w7", **counts: int
    ) -> None:
        self.write(at, job, "running", "in", token, settled, worker=worker, **counts)
        self.write(at, job, "ready", "out", token - 1, settled, **counts)

    def complete(self, at: float, job: str, token: int, settled: int = 0, **counts: int) -> None:
        self.write(at, job, "done", "in", token, token, state="completed", **counts)
        self.write(at, job, "running", "out", token, settled, **counts)

    def back(self, at: float, job: str, token: int, settled: int, was: int = 0, **counts: int) -> None:
        self.write(at, job, "running", "out", token, was)
        self.write(at, job, "ready", "in", token, settled, **counts)


def good() -> Evidence:
    records = [record("try", 0.0, job, pid=3, sequence=n, order="line") for n, job in enumerate("ab")]
    records += [record("try", 0.0, job, pid=3) for job in "cdefg"]
    records += [record("ok", 0.1, job, pid=3) for job in JOBS]
    records += [record("err", 0.2, "g", pid=3, ambiguous=True)]
    records += [record("start", 1.0, "a", 1), record("end", 1.5, "a", 1, outcome="done")]
    records += [record("start", 1.0, "b", 1), record("end", 1.4, "b", 1, outcome="error")]
    records += [record("start", 2.0, "b", 2), record("end", 2.5, "b", 2, outcome="done")]
    records += [record("start", 1.0, "c", 1, pid=8), record("fault", 1.5, pid=8, deed="kill")]
    records += [record("start", 4.0, "c", 2), record("end", 4.5, "c", 2, outcome="done")]
    records += [record("start", 1.0, "d", 1, pid=9), record("fault", 1.2, pid=9, deed="stop")]
    records += [record("start", 4.0, "d", 2), record("end", 6.0, "d", 2, outcome="done")]
    records += [
        record("fault", 5.0, pid=9, deed="cont"),
        record("end", 5.5, "d", 1, pid=9, outcome="cancelled"),
    ]
    records += [record("start", 1.0, "e", 1, effect=True), record("end", 1.5, "e", 1, outcome="done")]
    log = Log()
    for job in JOBS:
        log.enqueue(0.05, job)
    for job, worker in (("a", "w7"), ("b", "w7"), ("c", "w8"), ("d", "w9"), ("e", "w7")):
        log.claim(0.9, job, 1, worker=worker)
    log.write(0.95, "f", "ready", "out")
    log.write(0.95, "f", "done", "in", state="cancelled")
    log.complete(1.6, "a", 1)
    log.complete(1.45, "e", 1)
    log.back(1.6, "b", 1, settled=1, failures=1)
    log.claim(1.9, "b", 2, settled=1, failures=1)
    log.complete(2.6, "b", 2, settled=1, failures=1)
    log.back(3.5, "c", 1, settled=0, crashes=1)
    log.claim(3.9, "c", 2, crashes=1)
    log.complete(4.6, "c", 2, crashes=1)
    log.back(3.5, "d", 1, settled=0, crashes=1)
    log.claim(3.9, "d", 2, crashes=1)
    log.complete(6.1, "d", 2, crashes=1)
    return Evidence(
        records=sorted(records, key=lambda each: each.at),
        changes=log.changes,
        states=dict.fromkeys("abcde", "completed") | {"f": "cancelled"},
        effects={"e": 1},
        workers={"w7": 7, "w8": 8, "w9": 9},
        offset=0.0,
    )


def flagged(findings: Findings) -> dict[str, int]:
    return {name: len(found) for name in CATEGORIES if (found := getattr(findings, name))}


def without(evidence: Evidence, drop: Callable[[Record], bool]) -> Evidence:
    return replace(evidence, records=[each for each in evidence.records if not drop(each)])


def with_records(evidence: Evidence, *more: Record) -> Evidence:
    return replace(evidence, records=sorted([*evidence.records, *more], key=lambda each: each.at))


def changed(evidence: Evidence, which: Callable[[Record], bool], **fields: Any) -> Evidence:
    assert any(which(each) for each in evidence.records)
    records = [replace(each, **fields) if which(each) else each for each in evidence.records]
    return replace(evidence, records=sorted(records, key=lambda each: each.at))


def with_changes(evidence: Evidence, which: Callable[[Change], bool], **fields: Any) -> Evidence:
    assert any(which(each) for each in evidence.changes)
    return replace(
        evidence, changes=[replace(each, **fields) if which(each) else each for each in evidence.changes]
    )


def with_log(evidence: Evidence, write: Callable[[Log], None]) -> Evidence:
    log = Log()
    log.changes = list(evidence.changes)
    write(log)
    return replace(evidence, changes=log.changes)


def test_a_run_without_fault_passes() -> None:
    """I1-I6, I9: each further run has its licence, an overlap across a fence is legal, and so is a doubtful call."""
    findings = check(good())

    assert flagged(findings) == {}
    assert findings.reruns == {"error": 1, "kill": 1, "stop": 1}
    assert findings.recovery == [2.5, pytest.approx(2.8)]
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
    first = {(r.what, r.at): replace(r, fence=3 - r.fence) for r in e.records if r.job == "b" and r.fence}
    return replace(e, records=[first.get((r.what, r.at), r) if r.job == "b" else r for r in e.records])


def forged_token(e: Evidence) -> Evidence:
    return changed(e, lambda r: r.job == "a" and r.what in ("start", "end"), fence=3)


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
    return changed(e, lambda r: r.job == "d" and r.fence == 1 and r.what == "start", at=6.5)


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


def success_of_a_failure(e: Evidence) -> Evidence:
    return changed(e, lambda r: r.job == "a" and r.what == "end", outcome="error")


def token_that_jumps(e: Evidence) -> Evidence:
    e = with_changes(e, lambda c: c.job == "a" and c.token == 1, token=2)
    e = with_changes(e, lambda c: c.job == "a" and c.settled_token == 1, settled_token=2)
    return changed(e, lambda r: r.job == "a" and r.fence == 1, fence=2)


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


def done_work_released(e: Evidence) -> Evidence:
    e = changed(e, lambda r: r.job == "b" and r.at == 1.4, outcome="done", at=1.1)
    moved = [replace(c, failures=0, releases=1) if c.job == "b" and c.failures else c for c in e.changes]
    e = replace(e, changes=moved)
    e = changed(e, lambda r: r.job == "b" and r.at == 2.0, at=3.0)
    e = changed(e, lambda r: r.job == "b" and r.at == 2.5, at=3.5)
    e = with_changes(e, lambda c: c.job == "b" and c.state == "completed", at=3.6)
    return with_changes(e, lambda c: c.job == "b" and c.at == 1.6, at=2.9)


BROKEN: list[tuple[Callable[[Evidence], Evidence], dict[str, int]]] = [
    (dropped_execution, {"lost": 1}),
    (doubled_execution, {"unlicensed": 1}),
    (swapped_executions, {"bad_settles": 2}),
    (forged_token, {"bad_settles": 1}),
    (row_that_is_gone, {"vanished": 1}),
    (stranger, {"phantom": 1}),
    (start_after_the_end, {"after_final": 1}),
    (overlapping_runs, {"overlaps": 1}),
    (false_fence, {"unlicensed": 1}),
    (fault_of_somebody_else, {"unlicensed": 1}),
    (old_token_settles, {"bad_settles": 2}),
    (success_of_another, {"bad_settles": 1}),
    (success_of_a_failure, {"bad_settles": 1}),
    (token_that_jumps, {"bad_settles": 1}),
    (resurrected, {"bad_settles": 1}),
    (in_two_places, {"bad_settles": 1}),
    (claimed_before_due, {"bad_settles": 1}),
    (double_settle, {"bad_settles": 1}),
    (effect_twice, {"effects": 1}),
    (effect_missing, {"effects": 1}),
    (effect_without_success, {"effects": 1}),
    (start_before_due, {"too_early": 1}),
    (done_work_released, {"unlicensed": 1}),
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


def test_a_crash_of_a_claim_that_never_ran_needs_a_fault_too() -> None:
    """The worker is known by the audit, its process by what it announced."""

    def write(log: Log) -> None:
        log.enqueue(0.1, "x")
        log.claim(0.9, "x", 1, worker="w8")
        log.back(3.5, "x", 1, settled=0, crashes=1)
        log.claim(3.9, "x", 2, crashes=1)
        log.complete(4.6, "x", 2, crashes=1)

    told = with_records(
        good(),
        record("try", 0.05, "x", pid=3),
        record("ok", 0.15, "x", pid=3),
        record("start", 4.0, "x", 2),
        record("end", 4.5, "x", 2, outcome="done"),
    )
    rescued = replace(with_log(told, write), states={**good().states, "x": "completed"})
    unharmed = with_changes(rescued, lambda c: c.job == "x" and c.worker == "w8", worker="w7")

    assert flagged(check(rescued)) == {}
    assert flagged(check(unharmed)) == {"unlicensed": 1}


def test_an_operator_may_have_a_job_run_again_even_while_its_first_run_goes_on() -> None:
    """T14, T15: by force and then by a retry; the store has taken the claim, and its worker may not know yet."""

    def write(log: Log) -> None:
        log.enqueue(0.1, "x")
        log.claim(0.9, "x", 1)
        log.write(2.0, "x", "running", "out", 1)
        log.write(2.0, "x", "done", "in", 1, 0, state="cancelled")
        log.write(2.1, "x", "done", "out", 1, 0, state="cancelled")
        log.write(2.1, "x", "ready", "in", 1, 0)
        log.claim(2.2, "x", 2)
        log.complete(3.6, "x", 2)

    told = with_records(
        good(),
        record("try", 0.05, "x", pid=3),
        record("ok", 0.15, "x", pid=3),
        record("start", 1.0, "x", 1),
        record("start", 2.5, "x", 2),
        record("end", 2.8, "x", 1, outcome="cancelled"),
        record("end", 3.5, "x", 2, outcome="done"),
    )
    findings = check(replace(with_log(told, write), states={**good().states, "x": "completed"}))

    assert flagged(findings) == {}
    assert findings.reruns["operator"] == 1


def test_a_job_that_its_worker_refuses_is_not_lost_and_one_that_waits_for_ever_is() -> None:
    def refuse(log: Log) -> None:
        log.enqueue(0.1, "x")
        log.claim(0.9, "x", 1)
        log.write(1.0, "x", "running", "out", 1)
        log.write(1.0, "x", "done", "in", 1, 1, state="failed", failures=1)

    asked = with_records(good(), record("try", 0.05, "x", pid=3), record("ok", 0.15, "x", pid=3))
    refused = replace(with_log(asked, refuse), states={**good().states, "x": "failed"})
    waits = replace(
        with_log(asked, lambda log: log.enqueue(0.1, "x")), states={**good().states, "x": "pending"}
    )

    assert flagged(check(refused)) == {}
    assert flagged(check(waits)) == {"lost": 1}


def test_a_stopped_process_may_go_on_for_as_long_as_it_is_given() -> None:
    """It had claimed the job, was fenced while it was stopped, and begins it before it hears of that."""
    late = changed(good(), lambda r: r.job == "d" and r.fence == 1 and r.what == "start", at=6.5)
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
    assert flagged(check(stranger(unasked))) == {"phantom": 1}
