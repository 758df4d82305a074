"""Evidence made by hand, and forged: for the tests of the checker.

The run without fault: `a` succeeds at once; `b` fails once and is retried; `c` is cut short by the kill of its process
and rescued; `d` is stopped with its process, fenced, rerun elsewhere, and its first run ends late; `e` has an effect;
`f` is cancelled before it runs; `g` was asked for in vain, and nobody knows whether it is stored.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from faults.evidence.audit import Announced, Change
from faults.evidence.checker import Evidence, Findings
from faults.evidence.records import Record

LEASE = 1.5  # seconds
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


def record(what: Any, at: float, job: str = "", token: int = 0, pid: int = 7, **fields: Any) -> Record:
    return Record(what=what, at=at, pid=pid, parent=5, job=job, token=token, **fields)


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
    records += [record("cancel", 0.94, "f", pid=3)]
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
    fenced = len(log.changes)
    log.back(3.5, "d", 1, settled=0, crashes=1)
    log.claim(3.9, "d", 2, crashes=1)
    log.complete(6.1, "d", 2, crashes=1)
    return Evidence(
        records=sorted(records, key=lambda each: each.at),
        changes=log.changes,
        states=dict.fromkeys("abcde", "completed") | {"f": "cancelled"},
        effects={"e": 1},
        workers={
            "w7": Announced(7, LEASE),
            "w8": Announced(8, LEASE),
            "w9": Announced(9, LEASE, fenced),
            "w10": Announced(10, LEASE),
            "w11": Announced(11, LEASE),
        },
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


def with_job(
    evidence: Evidence, write: Callable[[Log], None], *records: Record, state: str = "completed"
) -> Evidence:
    """The same with one more job, `x`, that was asked for and acknowledged; `write` tells its story after that."""

    def first(log: Log) -> None:
        log.enqueue(0.1, "x")
        write(log)

    asked = (record("try", 0.05, "x", pid=3), record("ok", 0.15, "x", pid=3))
    more = with_records(with_log(evidence, first), *asked, *records)
    return replace(more, states={**evidence.states, "x": state})
