"""The ledger is written and read again; and what it tells of processes."""

import os
from pathlib import Path

import pytest

from faults.evidence.checker import Evidence, Findings, check
from faults.evidence.follow import Follower
from faults.evidence.records import Pen, Record, read
from faults.evidence.runs import runs
from faults.tests.judge.forged_evidence import Log


def run(token: int, *, pid: int, began: float, ended: float | None, outcome: str = "done") -> list[Record]:
    start = Record(what="start", at=began, pid=pid, parent=5, job="a", token=token)
    end = Record(what="end", at=ended or 0.0, pid=pid, parent=5, job="a", token=token, outcome=outcome)
    return [start] if ended is None else [start, end]


def kill(pid: int, at: float) -> Record:
    return Record(what="fault", at=at, pid=pid, deed="kill")


def judged(*records: Record) -> Findings:
    ordered = sorted(records, key=lambda record: record.at)
    return check(Evidence(records=ordered, states={"a": "completed"}, offset=None))


def second_run(*faults: Record, end: str = "", how: str = "crashes", again_at: float = 2.0) -> Findings:
    """The first run is pid 7's, a child of 5; the second one follows the end of its claim, 0.1 s before."""
    log = Log()
    log.enqueue(0, "a")
    log.claim(0, "a", 1, worker="w7")
    log.back(again_at - 0.1, "a", 1, settled=int(how != "crashes"), **{how: 1})
    log.claim(again_at, "a", 2, int(how != "crashes"), "w8", **{how: 1})
    log.complete(again_at + 1, "a", 2, settled=int(how != "crashes"), **{how: 1})
    records = [
        *run(1, pid=7, began=0, ended=1 if end else None, outcome=end),
        *run(2, pid=8, began=again_at, ended=again_at + 1),
        *faults,
    ]
    ordered = sorted(records, key=lambda record: record.at)
    return check(Evidence(records=ordered, changes=log.changes, states={"a": "completed"}, offset=0.0))


def test_a_second_run_is_licensed_by_the_death_of_the_first_ones_process() -> None:
    assert second_run(kill(7, 1.0)).unlicensed == []
    assert second_run(kill(5, 1.0)).unlicensed == [], "a child of one that was killed"
    assert len(second_run().unlicensed) == 1
    assert len(second_run(kill(9, 1.0)).unlicensed) == 1, "another process"
    assert len(second_run(kill(7, 2.5)).unlicensed) == 1, "after the second run began"


def test_a_second_run_is_licensed_by_the_error_of_the_first() -> None:
    assert second_run(end="error", how="failures").reruns == {"error": 1}
    assert second_run(end="error", how="failures").unlicensed == []
    assert len(second_run(end="done", how="failures").unlicensed) == 1


def test_runs_that_overlap_are_found_and_killed_ones_end_with_their_process() -> None:
    second = run(2, pid=8, began=2, ended=3)

    assert judged(*run(1, pid=7, began=0, ended=1), *second).overlaps == []
    assert len(judged(*run(1, pid=7, began=0, ended=2.5), *second).overlaps) == 1
    assert judged(*run(1, pid=7, began=0, ended=None), *second, kill(7, 1.0)).overlaps == []
    third = run(3, pid=9, began=4, ended=5)
    assert len(judged(*run(1, pid=7, began=0, ended=4.5), *second, *third).overlaps) == 2, "not only the next"


def test_what_descends_from_a_killed_process_is_there_for_as_long_as_it_writes() -> None:
    bereaved = Record(what="fault", at=1.0, pid=7, deed="bereave")
    first = run(1, pid=7, began=0, ended=None)

    assert judged(*first, bereaved, *run(2, pid=8, began=2.1, ended=3)).overlaps == []
    assert judged(*first, bereaved, *run(2, pid=8, began=1.5, ended=3)).overlaps == [], (
        "it ended with its parent"
    )
    goes_on = run(1, pid=7, began=0, ended=1.6)
    assert len(judged(*goes_on, bereaved, *run(2, pid=8, began=1.5, ended=3)).overlaps) == 1
    late = Record(what="start", at=2.5, pid=7, parent=1, job="b", token=1)
    assert len(judged(*first, bereaved, late, *run(2, pid=8, began=2.1, ended=3)).overlaps) == 1, "it lives"


def test_a_process_that_was_watched_is_there_until_it_was_seen_for_the_last_time() -> None:
    first, gone = run(1, pid=7, began=0, ended=None), Record(what="fault", at=1.0, pid=7, deed="gone")

    assert len(judged(*first, *run(2, pid=8, began=1.5, ended=3)).overlaps) == 1, "nobody has watched"
    assert judged(*first, gone, *run(2, pid=8, began=1.5, ended=3)).overlaps == []
    assert len(judged(*first, gone, *run(2, pid=8, began=0.9, ended=3)).overlaps) == 1
    licensed = judged(*first, *run(2, pid=8, began=1.5, ended=3)).unlicensed
    assert judged(*first, gone, *run(2, pid=8, began=1.5, ended=3)).unlicensed == licensed, (
        "it allows nothing"
    )


def test_a_token_that_does_not_rise_is_found() -> None:
    story = [*run(2, pid=7, began=0, ended=1, outcome="error"), *run(1, pid=8, began=2, ended=3)]

    assert len(judged(*story).bad_settles) == 1


def test_recovery_counts_from_the_kill_to_the_next_run() -> None:
    assert second_run(kill(7, 1.5)).recovery == [0.5]
    assert second_run(kill(7, 1.5), end="done").recovery == [], "nothing was cut short"


def test_who_descends_from_a_process_that_was_asked_to_stop_was_asked_too() -> None:
    term = Record(what="fault", at=1.0, pid=5, deed="term")

    assert second_run(term, how="releases").reruns == {"release": 1}
    assert second_run(term, how="releases").unlicensed == []
    assert len(second_run(how="releases").unlicensed) == 1
    heard = Record(what="fault", at=-4.0, pid=5, deed="term")
    assert second_run(heard, how="releases").unlicensed == [], "it claimed before it was told"


def test_what_was_written_is_read_again_while_it_grows(tmp_path: Path) -> None:
    pen, follower = Pen(tmp_path), Follower(tmp_path, os.getpid())
    assert follower.look() == 0

    pen.write("start", job="a", token=1)
    pen.write("start", job="b", token=1)
    assert follower.look() == 2
    pen.write("end", job="a", token=1)
    assert follower.look() == 1

    told = runs(read(tmp_path))
    assert {job: len(story) for job, story in told.items()} == {"a": 1, "b": 1}
    assert told["b"][0].ended is None


def test_a_line_that_a_kill_cut_short_never_happened(tmp_path: Path) -> None:
    Pen(tmp_path).write("start", job="a", token=1)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b'{"what":"start","at":1.0,"pi')

    assert [record.job for record in read(tmp_path)] == ["a"]


@pytest.mark.parametrize("damage", [b'{"what":"start","at":1.0,"pi\n', b"\n", b'{"what":"start"}\n'])
def test_a_line_that_is_damaged_in_the_middle_is_not_passed_over(tmp_path: Path, damage: bytes) -> None:
    """A kill cuts off what is last; anything else has lost evidence."""
    Pen(tmp_path).write("start", job="a", token=1)
    [path] = tmp_path.iterdir()
    path.write_bytes(damage + path.read_bytes())

    with pytest.raises(ValueError, match=r"line 1: the ledger is damaged"):
        read(tmp_path)
