"""The ledger is written and read again; and what it tells without an audit beside it."""

import os
from pathlib import Path

from faults.evidence.checker import Evidence, Findings, check
from faults.evidence.follow import Follower
from faults.evidence.records import Pen, Record, read
from faults.evidence.runs import runs


def run(fence: int, *, pid: int, began: float, ended: float | None, outcome: str = "done") -> list[Record]:
    start = Record(what="start", at=began, pid=pid, parent=5, job="a", fence=fence)
    end = Record(what="end", at=ended or 0.0, pid=pid, parent=5, job="a", fence=fence, outcome=outcome)
    return [start] if ended is None else [start, end]


def kill(pid: int, at: float) -> Record:
    return Record(what="fault", at=at, pid=pid, deed="kill")


def judged(*records: Record) -> Findings:
    ordered = sorted(records, key=lambda record: record.at)
    return check(Evidence(records=ordered, states={"a": "completed"}, offset=None))


def test_a_second_run_is_licensed_by_the_death_of_the_first_ones_process() -> None:
    story = [*run(1, pid=7, began=0, ended=None), *run(2, pid=8, began=2, ended=3)]

    assert judged(*story, kill(7, 1.0)).unlicensed == []
    assert judged(*story, kill(5, 1.0)).unlicensed == [], "a child of one that was killed"
    assert len(judged(*story).unlicensed) == 1
    assert len(judged(*story, kill(9, 1.0)).unlicensed) == 1, "another process"
    assert len(judged(*story, kill(7, 2.5)).unlicensed) == 1, "after the second run began"


def test_a_second_run_is_licensed_by_the_error_of_the_first() -> None:
    failed = run(1, pid=7, began=0, ended=1, outcome="error")
    done = run(1, pid=7, began=0, ended=1)
    again = run(2, pid=7, began=2, ended=3)

    assert judged(*failed, *again).reruns == {"error": 1}
    assert judged(*failed, *again).unlicensed == []
    assert len(judged(*done, *again).unlicensed) == 1


def test_a_third_run_needs_a_licence_of_its_own() -> None:
    story = [
        *run(1, pid=7, began=0, ended=None),
        *run(2, pid=8, began=2, ended=None),
        *run(3, pid=8, began=4, ended=5),
    ]

    assert len(judged(*story, kill(7, 1.0)).unlicensed) == 1
    assert judged(*story, kill(7, 1.0), kill(8, 3.0)).unlicensed == []


def test_runs_that_overlap_are_found_and_killed_ones_end_with_their_process() -> None:
    second = run(2, pid=8, began=2, ended=3)

    assert judged(*run(1, pid=7, began=0, ended=1), *second).overlaps == []
    assert len(judged(*run(1, pid=7, began=0, ended=2.5), *second).overlaps) == 1
    assert judged(*run(1, pid=7, began=0, ended=None), *second, kill(7, 1.0)).overlaps == []
    third = run(3, pid=9, began=4, ended=5)
    assert len(judged(*run(1, pid=7, began=0, ended=4.5), *second, *third).overlaps) == 2, "not only the next"


def test_what_descends_from_a_killed_process_has_a_second_to_end() -> None:
    bereaved = Record(what="fault", at=1.0, pid=7, deed="bereave")
    first = run(1, pid=7, began=0, ended=None)

    assert judged(*first, bereaved, *run(2, pid=8, began=2.1, ended=3)).overlaps == []
    assert len(judged(*first, bereaved, *run(2, pid=8, began=1.5, ended=3)).overlaps) == 1
    late = Record(what="start", at=2.5, pid=7, parent=1, job="b", fence=1)
    assert len(judged(*first, bereaved, late, *run(2, pid=8, began=2.1, ended=3)).overlaps) == 1, "it lives"


def test_a_fence_that_does_not_rise_is_found() -> None:
    story = [*run(2, pid=7, began=0, ended=1, outcome="error"), *run(1, pid=8, began=2, ended=3)]

    assert len(judged(*story).bad_settles) == 1


def test_recovery_counts_from_the_kill_to_the_next_run() -> None:
    story = [*run(1, pid=7, began=0, ended=None), *run(2, pid=8, began=2, ended=3)]

    assert judged(*story, kill(7, 1.5)).recovery == [0.5]
    assert judged(*story, kill(9, 1.5)).recovery == []


def test_what_was_written_is_read_again_while_it_grows(tmp_path: Path) -> None:
    pen, follower = Pen(tmp_path), Follower(tmp_path, os.getpid())
    assert follower.look() == 0

    pen.write("start", job="a", fence=1)
    pen.write("start", job="b", fence=1)
    assert follower.look() == 2
    pen.write("end", job="a", fence=1)
    assert follower.look() == 1

    told = runs(read(tmp_path))
    assert {job: len(story) for job, story in told.items()} == {"a": 1, "b": 1}
    assert told["b"][0].ended is None


def test_a_line_that_a_kill_cut_short_never_happened(tmp_path: Path) -> None:
    Pen(tmp_path).write("start", job="a", fence=1)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b'{"what":"start","at":1.0,"pi')

    assert [record.job for record in read(tmp_path)] == ["a"]
