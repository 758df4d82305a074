"""What allows a job to run again is believed only where the ledger bears it out: crashes, fences, releases, retries."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from faults.evidence.audit import Announced
from faults.evidence.checker import Evidence, check
from faults.tests.judge.forged_evidence import (
    LEASE,
    Log,
    changed,
    flagged,
    good,
    record,
    with_changes,
    with_job,
    with_records,
    without,
)

Write = Callable[[Log], None]


def ended(at: float, how: str) -> Write:
    """The first claim of `x` ends in this way, and its second one well."""
    counts = {"releases": 1} if how == "release" else {"failures": 1}

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1, worker="w11")
        log.back(at, "x", 1, settled=1, **counts)
        log.claim(3.9, "x", 2, 1, "w10", **counts)
        log.complete(4.6, "x", 2, settled=1, **counts)

    return write


AGAIN = (record("start", 4.0, "x", 2, pid=10), record("end", 4.5, "x", 2, pid=10, outcome="done"))


def released(first_end: str = "", **faults: float) -> Evidence:
    """A job whose first run begins at 1.0, is given back at 2.0 and runs again at 4.0; faults hit its first process."""
    first = [record("start", 1.0, "x", 1, pid=11)]
    first += [record("end", 1.8, "x", 1, pid=11, outcome=first_end)] if first_end else []
    done = [record("fault", at, pid=11, deed=deed.rstrip("_")) for deed, at in faults.items()]
    return with_job(good(), ended(2.0, "release"), *first, *done, *AGAIN)


def test_a_run_is_given_back_if_its_process_was_asked_to_stop() -> None:
    """T8: whether it gives in, or goes on and writes nothing any more."""
    for end in ("", "cancelled", "error"):
        assert flagged(check(released(end, term=1.5))) == {}, end
        assert flagged(check(released(end, told=1.5))) == {}, end
        assert check(released(end, int=1.5)).reruns["release"] == 1
    on_its_parent = with_records(released(), record("fault", 1.5, pid=5, deed="term"))
    assert flagged(check(on_its_parent)) == {}


def test_a_run_that_is_given_back_although_nobody_was_asked_to_stop_is_flagged() -> None:
    """A handler that goes on, and one that gave in to nobody; asked too late, or somebody else, is the same."""
    for end in ("cancelled", "error"):
        assert flagged(check(released(end))) == {"unlicensed": 1}, end
    assert flagged(check(released())) == {"unlicensed": 1, "overlaps": 1}, "nobody has ended the first run"
    assert flagged(check(released(term=2.5))) == {"unlicensed": 1}
    somebody_else = with_records(released("error"), record("fault", 1.5, pid=8, deed="term"))
    assert flagged(check(somebody_else)) == {"unlicensed": 1}


def test_it_is_flagged_even_if_the_job_never_runs_again() -> None:
    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.back(2.0, "x", 1, settled=1, releases=1)

    left = with_job(good(), write, record("start", 1.0, "x", 1), state="pending")

    assert flagged(check(left)) == {"unlicensed": 1, "lost": 1}


def test_work_that_was_done_is_given_back_only_by_who_was_harmed_or_hurried() -> None:
    """However soon after its end it is given back: a request to stop leaves the time to settle."""
    assert flagged(check(released("done"))) == {"unlicensed": 1}
    assert flagged(check(released("done", term=1.5))) == {"unlicensed": 1}
    assert flagged(check(released("done", term=1.5, term_=1.6))) == {}
    assert flagged(check(released("done", kill=1.9))) == {}


def test_a_thread_may_end_its_run_between_its_release_and_the_end_of_its_process() -> None:
    """Nobody can stop a thread, so what it does is given back last of all."""
    late = changed(released("done", term=1.5), lambda r: r.job == "x" and r.at == 1.8, at=2.1)

    assert flagged(check(late)) == {}
    assert flagged(check(without(late, lambda r: r.deed == "term"))) == {"unlicensed": 1}


def test_a_transaction_that_the_store_did_not_take_gives_its_job_back() -> None:
    """A16."""
    assert flagged(check(released("trouble"))) == {}


def test_what_has_never_begun_may_be_given_back_by_anybody() -> None:
    never = without(released(), lambda r: r.job == "x" and r.token == 1)

    assert flagged(check(never)) == {}


@pytest.mark.parametrize("how", ["error", "snooze"])
def test_a_run_that_ended_well_is_not_to_be_run_again_as_an_error(how: str) -> None:
    first = (record("start", 1.0, "x", 1, pid=11), record("end", 1.8, "x", 1, pid=11, outcome="done"))
    forged = with_job(good(), ended(2.0, "error"), *first, *AGAIN)
    if how == "snooze":
        for count in ("failures", "snoozes"):
            forged = with_changes(
                forged, lambda c: c.job == "x" and c.token > 0, **{count: int(count == "snoozes")}
            )
        forged = with_changes(forged, lambda c: (c.job, c.table, c.token) == ("x", "running", 1), snoozes=0)
        forged = with_changes(
            forged, lambda c: (c.job, c.table, c.deed, c.at) == ("x", "ready", "out", 0.9), snoozes=0
        )

    assert flagged(check(forged)) == {"unlicensed": 1, "bad_settles": 1}
    assert flagged(check(replace(forged, unruly=frozenset("x")))) == {}
    honest = changed(forged, lambda r: r.job == "x" and r.at == 1.8, outcome="error")
    assert flagged(check(honest)) == {}


def resurrected(state: str) -> Evidence:
    """A job that failed or was cancelled in its run, comes back, and runs again."""
    failures = int(state == "failed")

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.write(2.0, "x", "running", "out", 1)
        log.write(2.0, "x", "done", "in", 1, 1, state=state, failures=failures)
        log.write(3.0, "x", "done", "out", 1, 1, state=state, failures=failures)
        log.write(3.0, "x", "ready", "in", 1, 1)
        log.claim(3.9, "x", 2, settled=1, worker="w10")
        log.complete(4.6, "x", 2, settled=1)

    end = {"failed": "error", "cancelled": "cancelled"}[state]
    first = [record("start", 1.0, "x", 1), record("end", 1.9, "x", 1, outcome=end)]
    first += [record("cancel", 1.5, "x", pid=3)] if state == "cancelled" else []
    return with_job(good(), write, *first, *AGAIN)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_only_an_operator_brings_a_job_back_that_has_ended(state: str) -> None:
    """T15."""
    forged = resurrected(state)
    asked = with_records(forged, record("retry", 2.9, "x", pid=3))

    assert flagged(check(forged)) == {"unlicensed": 1, "bad_settles": 1}
    assert flagged(check(asked)) == {}
    assert check(asked).reruns["operator"] == 1
    assert flagged(check(with_records(forged, record("retry", 2.9, "a", pid=3)))) == flagged(check(forged))
    late = with_records(forged, record("retry", 3.5, "x", pid=3))
    assert flagged(check(late)) == {"bad_settles": 1}, "it came back before anybody asked for it"
    unknown = replace(late, offset=None)
    assert flagged(check(unknown)) == {}, "nobody can tell, if the clocks are two"


def test_each_return_takes_a_retry_of_its_own() -> None:
    def write(log: Log) -> None:
        for at in (2.0, 3.0):
            log.write(at, "x", "ready", "out")
            log.write(at, "x", "done", "in", state="cancelled")
            log.write(at + 0.5, "x", "done", "out", state="cancelled")
            log.write(at + 0.5, "x", "ready", "in")
        log.claim(3.9, "x", 1)
        log.complete(4.6, "x", 1)

    ran = (record("start", 4.0, "x", 1), record("end", 4.5, "x", 1, outcome="done"))
    once = (
        record("cancel", 1.9, "x", pid=3),
        record("retry", 2.4, "x", pid=3),
        record("cancel", 2.9, "x", pid=3),
    )
    forged = with_job(good(), write, *ran, *once)

    assert flagged(check(forged)) == {"bad_settles": 1}
    assert flagged(check(with_records(forged, record("retry", 3.4, "x", pid=3)))) == {}


def retried_at(*asked: float, second_run: float = 3.0) -> Evidence:
    """A job that fails twice, at 1.5 and right after its second run begins, and comes back each time."""
    again = second_run + 0.2

    def write(log: Log) -> None:
        claims = ((0.9, 1.5, 2.5), (second_run - 0.1, second_run + 0.1, again))
        for token, (claimed, failed, back) in enumerate(claims, 1):
            log.claim(claimed, "x", token, token - 1)
            log.write(failed, "x", "running", "out", token, token - 1)
            log.write(failed, "x", "done", "in", token, token, state="failed", failures=1)
            log.write(back, "x", "done", "out", token, token, state="failed", failures=1)
            log.write(back, "x", "ready", "in", token, token)
        log.claim(again + 0.1, "x", 3, 2)
        log.complete(again + 1, "x", 3, 2)

    runs = [record("start", 1.0, "x", 1), record("end", 1.4, "x", 1, outcome="error")]
    runs += [record("start", second_run, "x", 2), record("end", second_run + 0.05, "x", 2, outcome="error")]
    runs += [record("start", again + 0.2, "x", 3), record("end", again + 0.8, "x", 3, outcome="done")]
    return with_job(good(), write, *runs, *(record("retry", at, "x", pid=3) for at in asked))


def test_a_retry_that_is_under_way_when_a_quick_run_begins_allows_the_next_one() -> None:
    """T15: it is written down before it is tried, and the run may begin and fail in between."""
    assert flagged(check(retried_at(2.4, 3.1))) == {}
    assert flagged(check(retried_at(2.4, 2.95))) == {}
    assert check(retried_at(2.4, 2.95)).reruns["operator"] == 2


def test_a_retry_allows_one_run_and_only_for_as_long_as_it_can_take() -> None:
    assert flagged(check(retried_at(2.4))) == {"unlicensed": 1, "bad_settles": 1}
    assert flagged(check(retried_at(2.3, 2.4, second_run=30.0))) == {"unlicensed": 1}


def test_an_operator_may_have_a_job_run_again_even_while_its_first_run_goes_on() -> None:
    """T14, T15: by force and then by a retry; the store has taken the claim, and its worker may not know yet."""

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.write(2.0, "x", "running", "out", 1)
        log.write(2.0, "x", "done", "in", 1, 0, state="cancelled")
        log.write(2.1, "x", "done", "out", 1, 0, state="cancelled")
        log.write(2.1, "x", "ready", "in", 1, 0)
        log.claim(2.2, "x", 2)
        log.complete(3.6, "x", 2)

    told = with_job(
        good(),
        write,
        record("start", 1.0, "x", 1),
        record("cancel", 1.95, "x", pid=3, deed="force"),
        record("retry", 2.05, "x", pid=3),
        record("start", 2.5, "x", 2),
        record("end", 2.8, "x", 1, outcome="cancelled"),
        record("end", 3.5, "x", 2, outcome="done"),
    )
    gently = changed(told, lambda r: r.deed == "force", deed="")

    assert flagged(check(told)) == {}
    assert check(told).reruns["operator"] == 1
    assert flagged(check(gently)) == {"overlaps": 1}


def test_an_overlap_is_excused_by_a_fence_that_the_audit_has_and_by_no_report_of_death() -> None:
    """I6: the claim of `d` is taken in either case, and only a fenced worker cannot know."""
    fenced = good().workers["w9"]
    reported = replace(good(), workers={**good().workers, "w9": Announced(9, LEASE)})
    assert fenced.fenced is not None
    later = replace(good(), workers={**good().workers, "w9": Announced(9, LEASE, fenced.fenced + 4)})

    assert flagged(check(good())) == {}
    assert flagged(check(reported)) == {"overlaps": 1}
    assert flagged(check(later)) == {"overlaps": 1}, "fenced after its claim had ended"


@pytest.mark.parametrize(
    ("stopped", "continued", "expected"),
    [
        (1.2, 5.0, {}),
        (1.2, 1.2 + 0.7 * LEASE, {}),
        (1.2, 1.2 + 0.5 * LEASE, {"unlicensed": 1}),  # no lease runs out in so short a time
        (1.2, 1.3, {"unlicensed": 1}),
    ],
)
def test_a_stop_explains_a_fence_only_if_the_lease_can_have_run_out(
    stopped: float, continued: float, expected: dict[str, int]
) -> None:
    evidence = changed(good(), lambda r: r.deed == "stop", at=stopped)
    evidence = changed(evidence, lambda r: r.deed == "cont", at=continued)

    assert flagged(check(evidence)) == expected


def test_a_stop_explains_no_fence_long_after_it() -> None:
    """Whoever goes on beats at once."""
    begun = without(good(), lambda r: r.job == "d" and r.token == 1 and r.what == "end")
    soon = with_changes(begun, lambda c: c.job == "d" and c.at == 3.5, at=3.8)
    soon = changed(soon, lambda r: r.deed == "stop", at=1.0)
    soon = changed(soon, lambda r: r.deed == "cont", at=2.2)
    late = replace(soon, workers={**soon.workers, "w9": Announced(9, 0.5, soon.workers["w9"].fenced)})

    assert flagged(check(soon)) == {}
    assert flagged(check(late)) == {"unlicensed": 1}


def test_a_crash_of_a_claim_that_never_ran_needs_a_fault_too() -> None:
    """The worker is known by the audit, its process by what it announced."""

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1, worker="w8")
        log.back(3.5, "x", 1, settled=0, crashes=1)
        log.claim(3.9, "x", 2, worker="w10", crashes=1)
        log.complete(4.6, "x", 2, crashes=1)

    rescued = with_job(good(), write, *AGAIN)
    unharmed = with_changes(rescued, lambda c: c.job == "x" and c.worker == "w8", worker="w7")

    assert flagged(check(rescued)) == {}
    assert flagged(check(unharmed)) == {"unlicensed": 1}


def test_without_an_audit_nothing_is_licensed() -> None:
    """What the store has not said of itself cannot be borne out."""
    assert len(check(replace(good(), changes=())).unlicensed) == 3
