"""What an outcome claims, and what the table makes of it: a zero stands only where somebody has looked."""

from pathlib import Path
from typing import Any

import pytest

from faults import report
from faults.experiment import ZEROS, Experiment, Outcome, Setting, unfinished


def result_of(outcome: Outcome) -> report.Result:
    return report.Result(
        id="E99", title="a test", engine="sqlite", seed=1, full=True, seconds=1.0, outcome=outcome
    )


def cells_of(outcome: Outcome) -> dict[str, str]:
    """The row of an outcome on the page, by column."""
    row = next(line for line in report.page([result_of(outcome)]).splitlines() if line.startswith("| E99"))
    names = (*report.HEAD, "upper bound", *report.TAIL)
    return dict(zip(names, [cell.strip() for cell in row.split("|")[1:-1]], strict=True))


def test_a_count_that_nobody_looked_for_is_not_shown_as_zero() -> None:
    cells = cells_of(Outcome(n=300, measured=("vanished",)))

    assert [cells[name] for name in ("lost", "unlicensed", "overlaps", "bad settles")] == ["–"] * 4
    assert (cells["other"], cells["upper bound"]) == ("0", "0.01")


def test_a_count_that_is_not_zero_is_shown_whoever_found_it() -> None:
    assert cells_of(Outcome(n=300, lost=2))["lost"] == "2"


def test_the_rule_of_three_says_nothing_where_nothing_was_counted() -> None:
    assert cells_of(Outcome(n=300))["upper bound"] == ""
    assert cells_of(Outcome(n=2, measured=ZEROS))["upper bound"] == ""
    assert cells_of(Outcome(n=3000, measured=ZEROS))["upper bound"] == "0.001"


def test_a_count_of_fewer_has_a_bound_of_its_own() -> None:
    few = {"unlicensed": 150, "effects": 2}
    cells = cells_of(Outcome(n=3000, measured=ZEROS, at_risk=few))

    assert cells["upper bound"] == "0.001; unlicensed 0.02; effects none"


def test_a_file_of_results_is_whole_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"
    report.save(path, [result_of(Outcome(n=1))])

    def full(*_: object) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        report.save(path, [])

    assert [result.id for result in report.load(path)] == ["E99"]


def test_nothing_at_risk_proves_nothing() -> None:
    result = result_of(Outcome(measured=ZEROS))

    assert result.verdict == "FAILED"
    assert result.wrong == ["nothing was put at risk"]


def test_what_was_left_out_is_told_and_the_rest_has_passed_in_part() -> None:
    result = result_of(Outcome(n=1, measured=ZEROS, left_out=["no mounts of our own"]))

    assert result.verdict == "passed in part"
    assert "left out: no mounts of our own" in report.line(result)
    assert "left out: no mounts of our own" in report.in_terminal([result])
    assert "**E99** passed in part: left out: no mounts of our own" in report.page([result])
    result.outcome.lost = 1
    assert result.verdict == "FAILED"


def test_parts_are_added_and_have_measured_what_each_of_them_has() -> None:
    total = Outcome()
    total.add(Outcome(n=3, measured=ZEROS, lost=1, wrong=["a"], recovery=[1.0], left_out=["x"]))
    total.add(Outcome(n=4, measured=("lost", "effects"), lost=2, wrong=["b"], recovery=[2.0]))

    assert (total.n, total.lost, total.wrong, total.recovery) == (7, 3, ["a", "b"], [1.0, 2.0])
    assert (total.measured, total.left_out) == (("lost", "effects"), ["x"])


def test_whatever_an_experiment_waited_for_in_vain_is_wrong(tmp_path: Path) -> None:
    """However little the experiment made of it: else a fault that never happened would pass for one survived."""

    def wait(setting: Setting) -> Outcome:
        setting.missed.append("no worker came within 3 s")
        return Outcome(n=1, measured=ZEROS)

    experiment = Experiment(id="E99", title="waits", act=wait)
    outcome = experiment.run(Setting(engine="sqlite", folder=tmp_path, seed=1, full=False))

    assert outcome.wrong == ["no worker came within 3 s"]
    assert not outcome.passed


@pytest.mark.parametrize(
    ("states", "wrong"),
    [
        (["completed"] * 3, []),
        ([], []),
        (["completed", "failed", "failed"], ["2 jobs are not completed: {'failed': 2}."]),
        (["cancelled"], ["1 jobs are not completed: {'cancelled': 1}."]),
    ],
)
def test_every_end_but_a_completion_is_told(states: list[str], wrong: list[Any]) -> None:
    assert unfinished(states) == wrong
