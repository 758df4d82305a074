"""The measures behind docs/decisions/0014-speed.md still fit the source; what they measure is not judged here."""

import json
import subprocess
import sys
from typing import Any

import pytest

from bench import ablation, stages
from bench.ablation import ALL_ON, MEASURES, Figure
from bench.switches import SWITCHES, replaced, with_other_text
from dev import ROOT
from shigoto import enqueue
from shigoto.codec.arguments import Arguments
from shigoto.engine.sql import settling
from shigoto.engine.sqlite import claiming, dialect, driver, enqueueing, file
from shigoto.engine.sqlite.driver import Driver
from shigoto.worker import settler, slots

OWNERS: tuple[Any, ...] = (
    Arguments, Driver, claiming, dialect, driver, enqueue, enqueueing, file, file.Checkpointer, settler, settling,
    slots, slots.Slots,
)  # fmt: skip


def bench(*words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words, "--rounds", "1", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.engine("sqlite")
class TestAblation:
    def test_every_optimisation_can_be_switched_off_and_jobs_still_run(self) -> None:
        runs = bench("ablation", "--jobs", "1")

        assert {run["off"] for run in runs} == {ALL_ON, *SWITCHES}
        assert {run["measure"] for run in runs} == set(MEASURES)
        assert all(figure["jobs_per_s"] > 0 for run in runs for figure in run["rounds"])

    @pytest.mark.parametrize("name", SWITCHES)
    def test_a_switch_changes_something_and_leaves_everything_as_it_was(self, name: str) -> None:
        before = [dict(vars(owner)) for owner in OWNERS]

        with SWITCHES[name].off():
            meanwhile = [dict(vars(owner)) for owner in OWNERS]

        assert [dict(vars(owner)) for owner in OWNERS] == before
        assert meanwhile != before

    def test_a_switch_for_something_that_is_gone_says_so(self) -> None:
        with (
            pytest.raises(SystemExit, match="no 'MOST_ANYTHING' any more"),
            replaced(slots, "MOST_ANYTHING", 1),
        ):
            pass
        with (
            pytest.raises(SystemExit, match="does not say 'nonsense' any more"),
            with_other_text(file, "PRAGMAS", "nonsense", "sense"),
        ):
            pass

    def test_what_is_switched_off_is_measured_in_the_same_rounds_as_all_on(self) -> None:
        plan = ablation.planned(["look-ahead"])

        assert plan == [
            ("drain", ALL_ON),
            ("drain", "no look-ahead"),
            ("drain", ALL_ON),
            ("drain, threads", ALL_ON),
            ("drain, threads", "no look-ahead"),
            ("drain, threads", ALL_ON),
        ]
        assert sorted(ablation.in_turns(plan, 1)) == sorted(plan)
        assert ablation.in_turns(plan, 1)[0] == ("drain", "no look-ahead")

    def test_the_table_has_medians_and_what_they_make(self) -> None:
        page = ablation.page(
            {
                ("drain", ALL_ON): [Figure(100.0, 1.0), Figure(300.0, 3.0), Figure(200.0, 2.0)],
                ("drain", "no look-ahead"): [Figure(50.0, 4.0)],
            }
        )

        assert page.splitlines()[-1] == "| no look-ahead | drain | 200 | 50 | 0.25 | 2.0 | 4.0 |"


@pytest.mark.engine("sqlite")
class TestStages:
    def test_every_stage_is_measured(self) -> None:
        columns = bench("stages", "--jobs", "2000")

        assert list(columns) == ["this"]
        assert list(columns["this"]) == list(stages.NAMES)
        assert all(figure >= 0 for figure in columns["this"].values())

    def test_the_table_compares_two_sources(self) -> None:
        before = dict.fromkeys(stages.NAMES, 4.0)
        after = dict.fromkeys(stages.NAMES, 1.0)

        page = stages.page({"before": before, "after": after})

        assert page.splitlines()[2] == "| make the call | 4.00 | 1.00 | 0.25 |"

    def test_the_lowest_of_all_rounds_counts(self) -> None:
        one = dict.fromkeys((*stages.NAMES, stages.STORED), 2.0)
        two = one | {"one enqueue": 9.0, "run, async": 1.0, stages.STORED: 3.0}

        best = stages.lowest([one, two])

        assert (best["one enqueue"], best["run, async"]) == (2.0, 1.0)

    def test_a_folder_without_the_package_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            stages.main(["--src", str(ROOT / "docs")])

        assert "no package `shigoto` in" in capsys.readouterr().err
