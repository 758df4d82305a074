"""The evidence of a move is judged as that of one store is: what is honest passes, and each forgery is flagged.

The move without fault: `a` and `e` (which has an effect) are completed in the old store, `f` has failed there for good;
`b` waits, and `d` for its time; `c` is being run when the old store closes, and goes on for a while; `g` was cut short
by the kill of its process. The last four run in the new store, and so does `n`, which was enqueued there. The move was
killed once: `a` was copied twice.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from msgspec import Struct
from msgspec.structs import replace

from faults.evidence.audit import Announced, Change
from faults.evidence.checker import check
from faults.evidence.joined import COUNTS, Moved, Shut, Side, join, times_shut
from faults.evidence.records import Record
from faults.tests.judge.forged_evidence import LEASE, Log, flagged, record
from shigoto.model.job import FailureKind, State
from shigoto.model.record import AttemptRecord, JobRecord, LineRecord

CLOSED, OPENED = 5.0, 9.0
ATTEMPT = AttemptRecord(token=1, outcome="errored", error="oh", started_at=1_000, finished_at=1_400)
LINE = LineRecord(token=1, line=1, at=1_200, level="info", text="half of it")


def named(job: str) -> str:
    """The id of a job that these tests know by a letter."""
    return str(UUID(int=ord(job)))


def job(letter: str, state: State, token: int = 1, **more: Any) -> JobRecord:
    ended = {"started_at": 1_000, "finished_at": 1_600, "settled_token": token} if state.terminal else {}
    fields: dict[str, Any] = {
        "number": ord(letter), "id": UUID(int=ord(letter)), "task": "do", "queue": "work", "state": state,
        "payload": "{}", "created_at": 50, "run_at": 50, "max_failures": 3, "max_crashes": 3, "token": token,
    }  # fmt: skip
    return JobRecord(**(fields | ended | more))


class Case(Struct):
    """The evidence of a move, in letters."""

    records: list[Record]
    old: Side
    new: Side
    opened: int

    def joined(self) -> Moved:
        return join(
            sorted(
                (replace(each, job=named(each.job)) if each.job else each for each in self.records),
                key=lambda each: each.at,
            ),
            _named(self.old),
            _named(self.new),
            opened=(self.opened, OPENED),
            offset=0.0,
        )


def _named(side: Side) -> Side:
    return replace(
        side,
        changes=[each if len(each.job) > 1 else replace(each, job=named(each.job)) for each in side.changes],
        states={named(letter): state for letter, state in side.states.items()},
        effects={named(letter): count for letter, count in side.effects.items()},
    )


def judged(case: Case) -> dict[str, int]:
    """Every count that is not zero."""
    moved = case.joined()
    own = {name: len(found) for name in COUNTS if (found := getattr(moved, name))}
    assert len(moved.wrong) == len(own)
    return own | flagged(check(moved.evidence))


def ledger() -> list[Record]:
    records = [record("try", 0.0, letter, pid=3) for letter in "abcdefg"]
    records += [record("ok", 0.1, letter, pid=3) for letter in "abcdefg"]
    records += [record("try", 12.0, "n", pid=3), record("ok", 12.1, "n", pid=3)]
    records += [record("start", 1.0, "a", 1), record("end", 1.5, "a", 1, outcome="done")]
    records += [record("start", 1.0, "e", 1, effect=True), record("end", 1.5, "e", 1, outcome="done")]
    records += [record("start", 1.0, "f", 1), record("end", 1.4, "f", 1, outcome="error")]
    records += [record("start", 4.1, "c", 1), record("end", 5.6, "c", 1, outcome="done")]
    records += [record("start", 3.1, "g", 1, pid=8), record("fault", 3.5, pid=8, deed="kill")]
    for letter, token in (("b", 1), ("c", 2), ("d", 1), ("g", 2), ("n", 1)):
        records += [
            record("start", 13.1, letter, token, pid=20),
            record("end", 13.5, letter, token, pid=20, outcome="done"),
        ]
    gates = (("draining", 4.8, 4.85), ("closed", 4.95, 5.02), ("moved", 8.0, 8.1))
    records += [record("fault", at, pid=0, deed="gate", outcome=kind, due=due) for kind, due, at in gates]
    return records


def old_side() -> Side:
    log = Log()
    for letter in "abcefg":
        log.enqueue(0.05, letter)
    log.write(0.05, "d", "scheduled", "in")
    for letter in "aef":
        log.claim(0.9, letter, 1)
    log.complete(1.6, "a", 1)
    log.complete(1.45, "e", 1)
    log.write(1.5, "f", "running", "out", 1)
    log.write(1.5, "f", "done", "in", 1, 1, state="failed", failures=1)
    log.claim(3.0, "g", 1, worker="w8")
    log.claim(4.0, "c", 1)
    for letter in "cg":
        log.back(CLOSED, letter, 1, settled=0, releases=1)
    return Side(
        changes=log.changes,
        jobs=[
            job("a", State.COMPLETED, result="7", log=(LINE,)),
            job("b", State.PENDING, 0, key="k", holds_key=True),
            job("c", State.PENDING, releases=1),
            job("d", State.PENDING, 0),
            job("e", State.COMPLETED),
            job(
                "f", State.FAILED, failures=1, failure_kind=FailureKind.ERROR, error="oh", attempts=(ATTEMPT,)
            ),
            job("g", State.PENDING, releases=1),
        ],
        states=dict.fromkeys("ae", "completed") | dict.fromkeys("bcdg", "pending") | {"f": "failed"},
        effects={"e": 1},
        workers={"w7": Announced(7, LEASE), "w8": Announced(8, LEASE)},
    )


def new_side() -> Side:
    log = Log()
    for deed in ("in", "out", "in"):
        log.write(4.0, "a", "done", deed, 1, 1, state="completed")
    log.write(6.0, "e", "done", "in", 1, 1, state="completed")
    log.write(6.0, "f", "done", "in", 1, 1, state="failed", failures=1)
    arrived = [replace(each, job=f"number {each.number}") for each in log.changes]
    for letter, token in (("b", 0), ("c", 1), ("d", 0), ("g", 1)):
        log.write(6.0, letter, "ready", "in", token, releases=token)
    log.changes[: len(arrived)] = arrived
    log.enqueue(12.05, "n")
    for letter, token in (("b", 1), ("c", 2), ("d", 1), ("g", 2), ("n", 1)):
        releases = token - 1
        log.claim(13.0, letter, token, worker="w20", releases=releases)
        log.complete(13.6, letter, token, releases=releases)
    return Side(
        changes=log.changes,
        jobs=[
            *(each for each in old_side().jobs if each.state.terminal),
            job("b", State.COMPLETED, key="k"),
            job("c", State.COMPLETED, 2, releases=1),
            job("d", State.COMPLETED),
            job("g", State.COMPLETED, 2, releases=1),
            job("n", State.COMPLETED),
        ],
        states=dict.fromkeys("abcdegn", "completed") | {"f": "failed"},
        workers={"w20": Announced(20, LEASE), "w21": Announced(21, LEASE)},
    )


def honest() -> Case:
    new = new_side()
    opened = max(each.sequence for each in new.changes if each.at < OPENED)
    return Case(ledger(), old_side(), new, opened)


def test_a_move_without_fault_passes() -> None:
    """S0-70: what was given back is licensed by the close, and may go on beside its next run, as behind any fence."""
    moved = honest().joined()
    findings = check(moved.evidence)

    assert judged(honest()) == {}
    assert moved.given_back == 2
    assert findings.reruns == {"release": 2}
    assert findings.measured == tuple(findings.outcome(8).zeros)
    assert findings.outcome(8).passed


def test_a_key_may_be_taken_in_the_new_store() -> None:
    case = honest()
    job_of(case.old, "a", key="k2", holds_key=True)
    job_of(case.new, "a", key="k2")
    job_of(case.new, "n", key="k2", holds_key=True)

    assert judged(case) == {}


def test_the_times_at_which_the_old_store_was_closed_are_read_from_the_ledger() -> None:
    gates = (("closed", 1.0, 1.1), ("none", 2.0, 2.1), ("draining", 3.0, 3.1), ("moved", 4.0, 4.1))
    records = [record("fault", at, pid=0, deed="gate", outcome=kind, due=due) for kind, due, at in gates]

    assert list(times_shut(records)) == [Shut((1.0, 1.1), 2.0), Shut((4.0, 4.1), float("inf"))]


# Forgeries


def drop(side: Side, which: Callable[[Change], bool]) -> None:
    assert any(map(which, side.changes))
    side.changes = [each for each in side.changes if not which(each)]


def change(side: Side, which: Callable[[Change], bool], **fields: Any) -> None:
    assert any(map(which, side.changes))
    side.changes = [replace(each, **fields) if which(each) else each for each in side.changes]


def job_of(side: Side, letter: str, **fields: Any) -> None:
    side.jobs = [replace(each, **fields) if each.number == ord(letter) else each for each in side.jobs]


def forget(side: Side, letter: str) -> None:
    drop(side, lambda each: each.number == ord(letter))
    side.jobs = [each for each in side.jobs if each.number != ord(letter)]
    side.states = {other: state for other, state in side.states.items() if other != letter}


def finished_job_lost(case: Case) -> None:
    forget(case.new, "a")


def waiting_job_lost(case: Case) -> None:
    forget(case.new, "b")
    case.records = [each for each in case.records if each.job != "b" or each.what in ("try", "ok")]


def acknowledged_after_the_move_and_lost(case: Case) -> None:
    forget(case.new, "n")
    case.records = [each for each in case.records if each.job != "n" or each.what in ("try", "ok")]


def acknowledged_behind_the_fence_and_lost(case: Case) -> None:
    """An enqueue that the old store took when its jobs had been copied."""
    log = Log()
    log.changes = list(case.old.changes)
    log.enqueue(8.5, "h")
    case.old.changes = log.changes
    case.records += [record("try", 8.4, "h", pid=3), record("ok", 8.6, "h", pid=3)]


def stored_twice(case: Case) -> None:
    """Under another number, beside itself."""
    log = Log()
    log.changes = list(case.new.changes)
    log.write(12.2, "x", "ready", "in")
    log.changes[-1] = replace(log.changes[-1], job="b")
    case.new.changes = log.changes


def number_changed(case: Case) -> None:
    job_of(case.new, "a", number=500)
    change(case.new, lambda each: each.number == ord("a"), number=500, job="number 500")


def number_given_again(case: Case) -> None:
    job_of(case.new, "n", number=ord("B"))
    change(case.new, lambda each: each.number == ord("n"), number=ord("B"))


def key_lost(case: Case) -> None:
    job_of(case.new, "b", key=None)


def held_key_lost(case: Case) -> None:
    for side in (case.old, case.new):
        job_of(side, "a", key="k2", holds_key=side is case.old)


def result_changed(case: Case) -> None:
    job_of(case.new, "a", result="8")


def attempt_missing(case: Case) -> None:
    job_of(case.new, "f", attempts=())


def attempt_missing_of_what_went_on(case: Case) -> None:
    job_of(case.old, "b", attempts=(ATTEMPT,))


def log_line_missing(case: Case) -> None:
    job_of(case.new, "a", log=())


def payload_changed(case: Case) -> None:
    job_of(case.new, "d", payload='{"other": 1}')


def finished_came_back(case: Case) -> None:
    """Copied while it waited, and never again."""
    change(
        case.new, lambda each: each.number == ord("e") and each.at < OPENED, table="ready", state="", token=0,
        settled_token=0,
    )  # fmt: skip
    job_of(case.new, "e", state=State.PENDING, finished_at=None)
    case.new.states = {**case.new.states, "e": "pending"}


def token_not_carried_over(case: Case) -> None:
    change(case.new, lambda each: each.number == ord("c") and each.at < OPENED, token=0)


def count_not_carried_over(case: Case) -> None:
    change(case.new, lambda each: each.number == ord("f"), failures=0)


def failed_and_arrived_completed(case: Case) -> None:
    change(case.new, lambda each: each.number == ord("f"), state="completed")


def came_from_nowhere(case: Case) -> None:
    log = Log()
    log.write(6.0, "x", "done", "in", 1, 1, state="completed")
    first = replace(log.changes[0], sequence=0, job=f"number {ord('x')}")
    case.new.changes = [first, *case.new.changes]
    case.new.jobs = [*case.new.jobs, job("x", State.COMPLETED)]
    case.new.states = {**case.new.states, "x": "completed"}


def settled_behind_the_gate(case: Case) -> None:
    log = Log()
    log.changes = list(case.old.changes)
    log.write(8.5, "c", "ready", "out", 1, releases=1)
    log.write(8.5, "c", "done", "in", 1, 1, state="completed", releases=1)
    case.old.changes = log.changes


def claimed_behind_the_gate(case: Case) -> None:
    log = Log()
    log.changes = list(case.old.changes)
    log.claim(8.5, "b", 1)
    case.old.changes = log.changes
    case.records += [record("start", 8.6, "b", 1)]


def begun_long_after_the_close(case: Case) -> None:
    case.records = [
        replace(each, at=11.0 if each.what == "start" else 11.5)
        if (each.job, each.token) == ("c", 1)
        else each
        for each in case.records
    ]


def given_back_without_a_close(case: Case) -> None:
    """By whoever writes to the old store, long before it is closed."""
    change(case.old, lambda each: each.number == ord("c") and each.at == CLOSED, at=4.5)


def overlap_of_what_was_not_given_back(case: Case) -> None:
    """The same without a fence: the run in the old store goes on beside that in the new one."""
    given_back_without_a_close(case)
    case.records = [
        replace(each, at=13.3) if (each.job, each.token, each.what) == ("c", 1, "end") else each
        for each in case.records
    ]


def run_twice_in_the_new_store(case: Case) -> None:
    case.records += [
        record("start", 13.7, "b", 1, pid=20),
        record("end", 13.8, "b", 1, pid=20, outcome="done"),
    ]


def completed_in_both(case: Case) -> None:
    """Finished in the old store, copied as if it waited, and run again."""
    forget(case.new, "a")
    log = Log()
    log.write(6.0, "a", "ready", "in")
    arrival = replace(log.changes[0], sequence=0)
    log.changes = list(case.new.changes)
    log.claim(13.0, "a", 1, worker="w20")
    log.complete(13.6, "a", 1)
    case.new.changes = [arrival, *log.changes]
    case.new.jobs = [*case.new.jobs, job("a", State.COMPLETED, result="7", log=(LINE,))]
    case.new.states = {**case.new.states, "a": "completed"}
    case.records += [
        record("start", 13.1, "a", 1, pid=20),
        record("end", 13.5, "a", 1, pid=20, outcome="done"),
    ]


def effect_in_both(case: Case) -> None:
    case.new.effects = {"e": 1}


def effect_lost(case: Case) -> None:
    case.old.effects = {}


def begun_before_it_was_due(case: Case) -> None:
    case.records = [
        replace(each, due=14.0) if (each.job, each.what) == ("d", "try") else each for each in case.records
    ]


FORGERIES: list[tuple[Callable[[Case], None], dict[str, int]]] = [
    (finished_job_lost, {"missing": 1, "vanished": 1}),
    (waiting_job_lost, {"missing": 1, "vanished": 1, "lost": 1}),
    (acknowledged_after_the_move_and_lost, {"vanished": 1, "lost": 1}),
    (acknowledged_behind_the_fence_and_lost, {"missing": 1, "late": 1, "vanished": 1, "lost": 1}),
    (stored_twice, {"bad_settles": 2}),
    (number_changed, {"renumbered": 1, "missing": 1, "strange": 1}),
    (number_given_again, {"renumbered": 1}),
    (key_lost, {"altered": 1}),
    (held_key_lost, {"altered": 1}),
    (result_changed, {"altered": 1}),
    (attempt_missing, {"altered": 1}),
    (attempt_missing_of_what_went_on, {"altered": 1}),
    (log_line_missing, {"altered": 1}),
    (payload_changed, {"altered": 1}),
    (finished_came_back, {"misplaced": 1, "altered": 1, "lost": 1, "bad_settles": 1}),
    (token_not_carried_over, {"misplaced": 1}),
    (count_not_carried_over, {"misplaced": 1}),
    (failed_and_arrived_completed, {"misplaced": 1}),
    (came_from_nowhere, {"strange": 1, "phantom": 1}),
    (settled_behind_the_gate, {"late": 2, "misplaced": 1, "bad_settles": 5}),
    (
        claimed_behind_the_gate,
        {"late": 2, "misplaced": 1, "bad_settles": 5, "overlaps": 1, "unlicensed": 1},
    ),
    (begun_long_after_the_close, {"bad_settles": 1}),
    (given_back_without_a_close, {"unlicensed": 1}),
    (overlap_of_what_was_not_given_back, {"unlicensed": 1, "overlaps": 1}),
    (run_twice_in_the_new_store, {"unlicensed": 1, "after_final": 1}),
    (completed_in_both, {"misplaced": 1, "unlicensed": 1, "bad_settles": 5}),
    (effect_in_both, {"effects": 1}),
    (effect_lost, {"effects": 1}),
    (begun_before_it_was_due, {"too_early": 1}),
]


@pytest.mark.parametrize(("forge", "expected"), FORGERIES, ids=[forge.__name__ for forge, _ in FORGERIES])
def test_every_forged_move_is_flagged(forge: Callable[[Case], None], expected: dict[str, int]) -> None:
    """S0-70: by the count that stands for it, and by those of what follows from it."""
    case = honest()
    forge(case)

    assert judged(case) == expected
