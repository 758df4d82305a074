"""The checker is tested first: a ledger with a fault in it must be found out, one without must not."""

from pathlib import Path

from tests.faults.ledger import (
    Pen,
    Reader,
    Record,
    Run,
    overlaps,
    read,
    recoveries,
    runs,
    stale_fences,
    unlicensed,
)


def run(fence: int, *, pid: int, began: float, ended: float | None, parent: int = 1) -> Run:
    return Run(job="a", fence=fence, pid=pid, parent=parent, began=began, ended=ended)


def test_a_second_run_is_licensed_by_the_death_of_the_first_ones_process() -> None:
    story = {"a": [run(1, pid=7, began=0, ended=None), run(2, pid=8, began=2, ended=3)]}

    assert unlicensed(story, {7: 1.0}) == []
    assert unlicensed(story, {1: 1.0}) == [], "or of its parent"
    assert unlicensed(story, {8: 1.0}) == [story["a"][1]], "not by that of another"
    assert unlicensed(story, {7: 2.5}) == [story["a"][1]], "nor by a later death"
    assert unlicensed(story, {}) == [story["a"][1]]


def test_a_third_run_needs_a_licence_of_its_own() -> None:
    story = {
        "a": [
            run(1, pid=7, began=0, ended=None),
            run(2, pid=8, began=2, ended=3),
            run(3, pid=9, began=4, ended=5),
        ]
    }

    assert unlicensed(story, {7: 1.0}) == [story["a"][2]]


def test_runs_that_overlap_are_found_and_killed_ones_end_with_their_process() -> None:
    one_after_the_other = {"a": [run(1, pid=7, began=0, ended=1), run(2, pid=8, began=2, ended=3)]}
    at_once = {"a": [run(1, pid=7, began=0, ended=2.5), run(2, pid=8, began=2, ended=3)]}
    cut_short = {"a": [run(1, pid=7, began=0, ended=None), run(2, pid=8, began=2, ended=3)]}

    assert overlaps(one_after_the_other, {}) == []
    assert overlaps(at_once, {}) == [at_once["a"][1]]
    assert overlaps(cut_short, {7: 1.0}) == []
    assert overlaps(cut_short, {}) == [cut_short["a"][1]]


def test_a_fence_that_does_not_rise_is_found() -> None:
    story = {"a": [run(2, pid=7, began=0, ended=1), run(2, pid=8, began=2, ended=3)]}

    assert stale_fences(story) == [story["a"][1]]


def test_recovery_counts_from_the_kill_to_the_next_run() -> None:
    story = {"a": [run(1, pid=7, began=0, ended=None), run(2, pid=8, began=2, ended=3)]}

    assert recoveries(story, [Record(what="kill", pid=7, at=1.5)]) == [0.5]
    assert recoveries(story, [Record(what="kill", pid=9, at=1.5)]) == []


def test_what_was_written_is_read_again_while_it_grows(tmp_path: Path) -> None:
    import os

    pen, reader = Pen(tmp_path), Reader(tmp_path, os.getpid())
    assert reader.look() == 0

    pen.write("start", "a", 1)
    pen.write("start", "b", 1)
    assert reader.look() == 2
    pen.write("end", "a", 1)
    assert reader.look() == 1

    assert {job: len(story) for job, story in runs(read(tmp_path)).items()} == {"a": 1, "b": 1}
    assert runs(read(tmp_path))["b"][0].ended is None
