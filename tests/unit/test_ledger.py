"""The ledger must not flatter: what it counts as covered is named by a test function."""

import ast
import json
from pathlib import Path
from textwrap import dedent

import pytest

from devtools import ledger

REQUIREMENTS = """
# Requirements

- **S0-1** The first.
- **S0-2** The second.
- **S0-3** The third.
- **S3-53 = GWT-1** The fourth.
"""


def checkout(tmp_path: Path, **tests: str) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "requirements.md").write_text(REQUIREMENTS, encoding="utf-8")
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    for name, source in tests.items():
        (tmp_path / "tests" / "unit" / f"{name}.py").write_text(dedent(source), encoding="utf-8")
    return tmp_path


def covered(book: ledger.Ledger) -> dict[str, list[str]]:
    return {number: entry.tests for number, entry in book.requirements.items() if entry.tests}


@pytest.mark.parametrize(
    ("docstring", "numbers"),
    [
        ("S0-33: larger priorities first.", ["S0-33"]),
        ("Proves S0-1, S1-26 and (GWT-13).", ["S0-1", "S1-26", "GWT-13"]),
        ("S0-3…S0-6 in one go.", ["S0-3", "S0-4", "S0-5", "S0-6"]),
        ("S0-3…5 in short.", ["S0-3", "S0-4", "S0-5"]),
        ("S0-3...S0-4, S1-1–S1-2.", ["S0-3", "S0-4", "S1-1", "S1-2"]),
        ("The sentence ends after S0-7...", ["S0-7"]),
        ("GWT-1…GWT-3", ["GWT-1", "GWT-2", "GWT-3"]),
        ("S0-9 once, S0-9 twice.", ["S0-9"]),
        ("An S3-compatible store of 2026-05-06, XS0-3 and UTF-8.", []),
    ],
)
def test_a_docstring_names_single_numbers_and_ranges(docstring: str, numbers: list[str]) -> None:
    assert ledger.numbers_named("test_x", docstring) == numbers


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("test_s0_33_larger_priorities_run_first", ["S0-33"]),
        ("test_s0_33", ["S0-33"]),
        ("test_s1_16_and_s1_17_report_and_count", ["S1-16", "S1-17"]),
        ("test_gwt_5_three_stores_make_three_jobs", ["GWT-5"]),
        ("test_jobs_1_to_33_are_kept", []),
        ("test_retries_3_times", []),
    ],
)
def test_a_name_may_carry_numbers(name: str, numbers: list[str]) -> None:
    assert ledger.numbers_named(name, "") == numbers


@pytest.mark.parametrize("backwards", ["S0-5…S0-3", "S0-5…S1-7", "S3-53…GWT-60"])
def test_a_range_that_makes_no_sense_is_refused(backwards: str) -> None:
    with pytest.raises(ValueError, match="backwards or across"):
        ledger.numbers_named("test_x", f"Proves {backwards}.")


def test_functions_and_methods_count_wherever_pytest_would_find_them(tmp_path: Path) -> None:
    root = checkout(
        tmp_path,
        test_one="""
            def test_s0_1_plain(): ...

            class TestGroup:
                async def test_method(self):
                    '''S0-2'''
        """,
    )

    book = ledger.read_ledger(root)

    assert covered(book) == {
        "S0-1": ["tests/unit/test_one.py::test_s0_1_plain"],
        "S0-2": ["tests/unit/test_one.py::TestGroup::test_method"],
    }
    assert [entry.number for entry in book.uncovered] == ["S0-3", "S3-53"]
    assert book.mistakes == []


def test_docstrings_of_modules_classes_and_helpers_cover_nothing(tmp_path: Path) -> None:
    root = checkout(
        tmp_path,
        test_one="""
            '''S0-1'''

            class TestGroup:
                '''S0-2'''

                def test_method(self):
                    def test_inner():
                        '''S0-3'''

            def helper():
                '''S3-53'''
        """,
    )

    assert covered(ledger.read_ledger(root)) == {}


def test_an_alias_covers_its_requirement(tmp_path: Path) -> None:
    root = checkout(tmp_path, test_one="def test_gwt_1_passes(): ...")

    assert covered(ledger.read_ledger(root)) == {"S3-53": ["tests/unit/test_one.py::test_gwt_1_passes"]}


def test_tests_of_examples_count_and_other_files_there_do_not(tmp_path: Path) -> None:
    root = checkout(tmp_path)
    for folder in ("examples/shop/tests", "examples/shop/app"):
        (root / folder).mkdir(parents=True)
        (root / folder / "test_x.py").write_text("def test_s0_1(): ...", encoding="utf-8")

    assert covered(ledger.read_ledger(root)) == {"S0-1": ["examples/shop/tests/test_x.py::test_s0_1"]}


def test_a_number_that_is_not_in_the_ledger_is_a_mistake(tmp_path: Path) -> None:
    root = checkout(
        tmp_path,
        test_one="""
            def test_typo():
                '''S0-99'''

            def test_backwards():
                '''S0-3…S0-1'''
        """,
    )

    book = ledger.read_ledger(root)

    assert len(book.mistakes) == 2
    assert "test_typo names S0-99" in book.mistakes[0]
    assert "test_backwards names the range S0-3…S0-1" in book.mistakes[1]
    text = ledger.as_text(book, only_uncovered=True)
    assert "MISTAKE: tests/unit/test_one.py::test_typo names S0-99" in text


def test_mistakes_make_the_command_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = checkout(tmp_path, test_one="def test_s0_1(): ...")
    monkeypatch.setattr(ledger, "ROOT", root)

    assert ledger.main(["--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["requirements"]["S0-1"]["tests"] == ["tests/unit/test_one.py::test_s0_1"]
    assert answer["uncovered"] == ["S0-2", "S0-3", "S3-53"]

    (root / "tests" / "unit" / "test_two.py").write_text("def test_s0_88(): ...", encoding="utf-8")

    assert ledger.main(["--uncovered"]) == 1


def test_the_text_shows_each_requirement_then_the_open_ones_then_the_count(tmp_path: Path) -> None:
    book = ledger.read_ledger(checkout(tmp_path, test_one="def test_s0_2(): ..."))

    assert ledger.as_text(book, only_uncovered=False) == dedent(
        """\
        S0-1  The first.
            no test
        S0-2  The second.
            tests/unit/test_one.py::test_s0_2
        S0-3  The third.
            no test
        S3-53 = GWT-1  The fourth.
            no test

        Not covered:
        S0-1   The first.
        S0-3   The third.
        S3-53  The fourth.

        1 of 4 requirements are named by a test."""
    )


def test_a_number_given_out_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="S0-1 twice"):
        ledger.read_requirements("- **S0-1** One.\n- **S0-1** Another.\n")


def test_the_projects_own_ledger_is_complete() -> None:
    text = (ledger.ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    requirements = ledger.read_requirements(text)

    sizes = {"S0": 80, "S1": 26, "S2": 59, "S3": 72, "S4": 23}
    numbers = [f"{series}-{n}" for series, size in sizes.items() for n in range(1, size + 1)]
    assert list(requirements) == numbers
    aliases = {entry.alias: number for number, entry in requirements.items() if entry.alias}
    assert aliases == {f"GWT-{n}": f"S3-{52 + n}" for n in range(1, 14)}


def test_no_test_of_the_project_names_an_unknown_number() -> None:
    assert ledger.read_ledger(ledger.ROOT).mistakes == []


def test_functions_inside_conditions_are_not_guessed_at() -> None:
    module = ast.parse("if True:\n    def test_s0_1(): ...\n")

    assert list(ledger.collect_tests(module.body)) == []
