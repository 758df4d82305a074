"""What was done to a process counts for that process, for as long as it lives, and for what it can have caused."""

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
    with_job,
    with_records,
    without,
)


def second(at: float, token: int = 2) -> tuple[Record, Record]:
    """The run of another process, that ends well."""
    start = record("start", at, "x", token, pid=10)
    return start, record("end", at + 0.5, "x", token, pid=10, outcome="done")


def crashed(claimed: float, pid: int, *records: Record) -> Evidence:
    """A claim of process `pid` that counts as a crash after 0.6 s, and another 1 s later that ends well."""

    def write(log: Log) -> None:
        log.claim(claimed, "x", 1, worker="w")
        log.back(claimed + 0.6, "x", 1, settled=0, crashes=1)
        log.claim(claimed + 1.5, "x", 2, worker="w10", crashes=1)
        log.complete(claimed + 2.2, "x", 2, crashes=1)

    start = record("start", claimed + 0.1, "x", 1, pid=pid)
    end = record("end", claimed + 0.5, "x", 1, pid=pid, outcome="cancelled")
    evidence = with_job(good(), write, start, end, *second(claimed + 1.6), *records)
    return replace(evidence, workers={**evidence.workers, "w": Announced(pid, LEASE)})


def test_a_kill_ends_a_stop_so_that_it_explains_nothing_of_whoever_gets_the_number_next() -> None:
    stop, kill = record("fault", 1.0, pid=90, deed="stop"), record("fault", 2.0, pid=90, deed="kill")

    assert flagged(check(crashed(50.0, 90, stop, kill))) == {"unlicensed": 1}
    assert flagged(check(crashed(50.0, 90, stop))) == {}, "still stopped"


def test_the_parent_of_an_earlier_process_of_that_number_is_nobodys_parent() -> None:
    kill = record("fault", 7.2, pid=4, deed="kill")
    earlier = Record(what="try", at=0.5, pid=88, parent=4, job="g")
    child = changed(crashed(6.9, 88, kill), lambda r: r.pid == 88, parent=4)

    assert flagged(check(crashed(6.9, 88, kill, earlier))) == {"unlicensed": 1}
    assert flagged(check(child)) == {}


def twice_in_one_process() -> Evidence:
    """A job that crashes with its process at 1.5, is claimed by the same one 30 ms later, and crashes again."""

    def write(log: Log) -> None:
        log.claim(0.9, "x", 1, worker="w8")
        log.back(1.52, "x", 1, settled=0, crashes=1)
        log.claim(1.53, "x", 2, worker="w8", crashes=1)
        log.write(1.6, "x", "running", "out", 2, 0, crashes=1)
        log.write(1.6, "x", "ready", "in", 2, 0, crashes=2)
        log.claim(3.9, "x", 3, worker="w10", crashes=2)
        log.complete(4.6, "x", 3, crashes=2)

    first = (record("start", 1.0, "x", 1, pid=8), record("start", 1.54, "x", 2, pid=8))
    end = record("end", 1.58, "x", 2, pid=8, outcome="cancelled")
    return with_job(good(), write, *first, end, *second(4.0, token=3))


def test_a_process_dies_once() -> None:
    """Whoever of its ancestors died with it."""
    assert flagged(check(twice_in_one_process())) == {"unlicensed": 1}
    with_its_parent = with_records(twice_in_one_process(), record("fault", 1.5, pid=5, deed="kill"))
    assert flagged(check(with_its_parent))["unlicensed"] == 1


def given_back(*records: Record) -> Evidence:
    """A run that begins at 6.1 and is given back at 9.0, and runs again elsewhere."""

    def write(log: Log) -> None:
        log.claim(6.0, "x", 1, worker="w11")
        log.back(9.0, "x", 1, settled=1, releases=1)
        log.claim(9.5, "x", 2, settled=1, worker="w10", releases=1)
        log.complete(10.2, "x", 2, settled=1, releases=1)

    start = record("start", 6.1, "x", 1, pid=11)
    return with_job(good(), write, start, *second(9.6), *records)


def test_whoever_was_asked_to_stop_claims_nothing_long_after_that() -> None:
    """It may take its time until those who descend from it have heard of it."""
    end = record("end", 8.9, "x", 1, pid=11, outcome="cancelled")

    assert flagged(check(given_back(end, record("fault", 1.15, pid=11, deed="term")))) == {"unlicensed": 1}
    assert flagged(check(given_back(end, record("fault", 5.2, pid=11, deed="term")))) == {}
    assert flagged(check(given_back(end, record("fault", 1.15, pid=5, deed="term")))) == {}


def test_a_run_without_an_end_goes_on_in_its_process_for_as_long_as_that_writes() -> None:
    """It was asked to stop, has given the job back, and works on, so nobody has ended the run."""
    asked = given_back(record("fault", 8.5, pid=11, deed="term"))
    works_on = with_records(asked, record("start", 12.0, "a", 1, pid=11))
    another = with_records(asked, Record(what="try", at=12.0, pid=11, parent=6, job="g"))

    assert flagged(check(asked)) == {}
    assert check(works_on).overlaps == ["x: the run with token 2 began during that with token 1"]
    assert check(another).overlaps == [], "of the same number, and another parent"


def test_a_run_without_an_end_that_nobody_has_ended_overlaps_the_next_one() -> None:
    """However licensed that may seem."""
    cut = without(
        crashed(6.9, 88, record("fault", 7.2, pid=88, deed="kill")), lambda r: r.outcome == "cancelled"
    )
    unharmed = without(cut, lambda r: r.deed == "kill" and r.pid == 88)
    stopped = changed(cut, lambda r: r.deed == "kill" and r.pid == 88, deed="stop")

    assert flagged(check(cut)) == {}
    assert flagged(check(unharmed)) == {"unlicensed": 1, "overlaps": 1}
    assert check(stopped).overlaps == [], "what is stopped for good does nothing"


def test_a_run_that_begins_while_its_process_dies_is_over_at_once() -> None:
    """Whoever kills its own process writes that down first, and another thread may be quicker."""
    cut = without(
        crashed(6.9, 88, record("fault", 6.98, pid=88, deed="suicide")), lambda r: r.outcome == "cancelled"
    )
    later = changed(cut, lambda r: r.deed == "suicide", at=6.9)

    assert flagged(check(cut)) == {}
    assert check(later).overlaps == ["x: the run with token 2 began during that with token 1"]


def test_force_excuses_no_overlap_before_it_was_used() -> None:
    def write(log: Log) -> None:
        log.claim(0.9, "x", 1)
        log.write(2.0, "x", "done", "in", 1, 0, state="cancelled")
        log.write(2.0, "x", "running", "out", 1, 0)
        log.write(2.1, "x", "done", "out", 1, 0, state="cancelled")
        log.write(2.1, "x", "ready", "in", 1, 0)
        log.claim(2.2, "x", 2, worker="w10")
        log.complete(4.6, "x", 2)

    gently, force = record("cancel", 1.9, "x", pid=3), record("cancel", 9.0, "x", pid=3, deed="force")
    runs = (record("start", 1.0, "x", 1), record("end", 3.0, "x", 1, outcome="cancelled"), *second(2.5))
    forged = with_job(good(), write, *runs, gently, force, record("retry", 2.05, "x", pid=3))

    assert flagged(check(forged)) == {"overlaps": 1}
    assert flagged(check(changed(forged, lambda r: r.deed == "force", at=1.95))) == {}
