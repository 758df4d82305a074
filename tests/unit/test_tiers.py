"""Tiers of tests: each test has one, and what they take is known."""

from pathlib import Path

import pytest

from devtools import tiers
from devtools.tiers import (
    BUDGET,
    PLACES,
    SLOW,
    Durations,
    Tier,
    named_by_changes,
    over_budget,
    tier_of,
    tier_of_path,
)


def test_each_file_of_tests_has_a_tier() -> None:
    files = [
        path.relative_to(tiers.ROOT).as_posix()
        for folder in ("tests", "faults", "bench")
        for path in (tiers.ROOT / folder).rglob("test_*.py")
    ]

    assert len(files) > 200
    assert {tier_of_path(path) for path in files} == {Tier.QUICK, Tier.FULL, Tier.NIGHTLY}


def test_each_row_is_a_folder_or_a_file_that_is_there() -> None:
    assert [place for place in PLACES if not (tiers.ROOT / place).exists()] == []
    assert [test for _, tests in tiers.MIRRORS for test in tests if not (tiers.ROOT / test).exists()] == []


def test_a_folder_without_a_row_is_an_error_that_says_where_it_belongs() -> None:
    with pytest.raises(KeyError, match=r"tests/new/test_x\.py is in no folder of devtools/tiers\.py"):
        tier_of("tests/new/test_x.py")


@pytest.mark.parametrize(
    ("path", "marks", "seconds", "tier"),
    [
        ("tests/unit/test_x.py", [], 0.0, Tier.QUICK),
        ("tests/unit/cli/test_x.py", [], SLOW, Tier.QUICK),
        ("tests/unit/test_x.py", [], 1.1, Tier.FULL),
        ("tests/engines/test_postgres_joins.py", [], 0.0, Tier.FULL),
        ("tests/engines/test_postgres_joins_more.py", [], 0.0, Tier.QUICK),
        ("tests/journeys/test_x.py", [], 0.0, Tier.FULL),
        ("tests/journeys/test_x.py", [Tier.NIGHTLY], 1.1, Tier.NIGHTLY),
        ("tests/unit/test_x.py", [Tier.NIGHTLY], 1.1, Tier.NIGHTLY),
        ("tests/unit/test_x.py", [Tier.FULL, Tier.NIGHTLY], 0.0, Tier.NIGHTLY),
    ],
)
def test_a_tier_comes_from_the_marks_the_place_and_the_recorded_time(
    path: str, marks: list[Tier], seconds: float, tier: Tier
) -> None:
    assert tier_of(path, marks, seconds) is tier


class TestDurations:
    @pytest.fixture(autouse=True)
    def elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tiers, "ROOT", tmp_path)
        for name in ("a.py", "b.py"):
            (tmp_path / name).touch()

    def test_what_is_saved_is_loaded(self, tmp_path: Path) -> None:
        durations = Durations({"b.py": [1.0, 0.0, 0.0], "a.py": [0.5, 2.0, 0.0]}, {"a.py::test_x": 1.9})
        path = tmp_path / "durations.json"

        durations.save(path)

        assert Durations.load(path) == durations
        assert path.read_text().index("a.py") < path.read_text().index("b.py")

    def test_nothing_recorded_takes_no_time(self, tmp_path: Path) -> None:
        assert Durations.load(tmp_path / "none.json").sum(Tier.QUICK) == 0

    def test_a_run_replaces_the_times_of_its_files_and_tiers_alone(self) -> None:
        durations = Durations({"a.py": [5.0, 6.0, 7.0], "b.py": [1.0, 0.0, 0.0], "gone.py": [9.0, 0.0, 0.0]})

        durations.record([("a.py::x", Tier.QUICK, 0.1, 0.2), ("a.py::y", Tier.QUICK, 0.1, 0.3)])

        assert durations.files == {"a.py": [0.5, 6.0, 7.0], "b.py": [1.0, 0.0, 0.0]}

    def test_a_test_is_slow_above_the_limit_and_stays_so_until_it_takes_half_of_that(self) -> None:
        durations = Durations()
        high, low = round(SLOW * 1.2, 1), round(SLOW * 0.6, 1)

        for seconds, slow in [(SLOW, {}), (high, {"a.py::x": high}), (low, {"a.py::x": low}), (SLOW / 2, {})]:
            durations.record([("a.py::x", Tier.QUICK, seconds, 9.0)])
            assert durations.slow == slow

    def test_a_tier_over_its_budget_is_told(self) -> None:
        most = BUDGET[Tier.QUICK]

        assert over_budget(Durations({"a.py": [most, 0.0, 0.0]})) == []
        [problem] = over_budget(Durations({"a.py": [most, 0.0, 0.0], "b.py": [1.0, 0.0, 0.0]}))
        assert problem.startswith(
            f"The tests of the quick tier take {most + 1:.0f} s, more than {most:.0f} s."
        )

    def test_a_file_without_a_recorded_time_is_a_problem(self, tmp_path: Path) -> None:
        for place in ("tests/unit", "tests/unit/cli", "bench/tests"):
            (tmp_path / place).mkdir(parents=True)
            (tmp_path / place / "test_x.py").touch()

        [problem] = over_budget(Durations({"tests/unit/cli/test_x.py": [1.0, 0.0, 0.0]}))

        assert problem == (
            "tests/unit/test_x.py has no recorded time. Run: python3 dev.py test --record tests/unit/test_x.py"
        )


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("tests/journeys/test_s0.py", ["tests/journeys/test_s0.py"]),
        ("src/shigoto/cli/show.py", ["tests/unit/cli"]),
        ("src/shigoto/worker/runner.py", ["faults/tests", "tests/fundamentals", "tests/unit/worker"]),
        ("src/shigoto/app.py", []),
        ("src/shigoto/nothing/here.py", []),
        ("faults/mutants.py", ["faults/tests"]),
        ("docs/tutorial.md", ["tests/journeys/test_docs.py"]),
        ("LICENSE", []),
    ],
)
def test_a_changed_file_asks_for_its_tests(changed: str, tests: list[str]) -> None:
    assert named_by_changes([changed]) == tests


def test_a_revision_that_git_does_not_know_is_an_error() -> None:
    with pytest.raises(ValueError, match="since 'no-such-revision'"):
        tiers.changed_since("no-such-revision")
