"""The rules of devtools/house.py: what they find, and that the package keeps them."""

from pathlib import Path

from devtools.house import examine


def package(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_the_package_keeps_the_rules() -> None:
    assert examine().problems == ()


def test_a_file_warns_over_600_lines(tmp_path: Path) -> None:
    report = examine(package(tmp_path, warned="x = 1\n" * 601, fine="x = 1\n" * 600))

    assert report.warnings == ("warned.py has 601 lines; is it still one idea?",)
    assert (report.files, report.lines) == (2, 1201)


def test_a_file_of_python_or_sql_has_900_lines_at_most(tmp_path: Path) -> None:
    package(tmp_path, fine="x = 1\n" * 900, long="x = 1\n" * 901)
    (tmp_path / "long.sql").write_text("SELECT 1;\n" * 901)

    assert examine(tmp_path).problems == (
        "long.py has 901 lines, more than 900. Make it two ideas.",
        "long.sql has 901 lines, more than 900. Make it two ideas.",
    )


def test_a_small_module_with_one_importer_is_a_part_of_it(tmp_path: Path) -> None:
    texts = {
        "small": "x = 1\n",
        "shared": "y = 1\n",
        "one": "from shigoto.small import x\nfrom shigoto.shared import y\n",
        "two": "from shigoto import shared\n",
    }

    problems = examine(package(tmp_path, **texts)).problems

    assert problems == ("small.py has 1 lines, and only one.py imports it. Make it a part of that module.",)


def test_a_public_class_name_stands_once_but_for_those_of_the_engines(tmp_path: Path) -> None:
    classes = "class Driver: ...\nclass Plan: ...\nclass _Own: ...\n"
    more = "class Driver: ...\n"

    problems = examine(package(tmp_path, one=classes, two=classes, three=more, four=more)).problems

    assert problems == (
        "4 modules have a class Driver. Give each the name of what it is.",
        "2 modules have a class Plan. Give each the name of what it is.",
    )


def test_modules_that_import_each_other_when_imported_are_refused(tmp_path: Path) -> None:
    texts = {
        "one": "from shigoto.two import y\n" + "x = 1\n" * 60,
        "two": "try:\n    from shigoto.three import z\nexcept ImportError:\n    pass\n" + "y = 1\n" * 60,
        "three": "import shigoto.one\n" + "z = 1\n" * 60,
        "four": "from shigoto.one import x\n" + "w = 1\n" * 60,
    }

    problems = examine(package(tmp_path, **texts)).problems

    assert problems == (
        "These modules import each other: one.py, three.py, two.py. Join them, or turn one import.",
    )


def test_modules_may_import_each_other_later_or_for_type_checkers(tmp_path: Path) -> None:
    texts = {
        "one": "from shigoto.two import y\n" + "x = 1\n" * 60,
        "two": "if TYPE_CHECKING:\n    from shigoto.one import x\n\ndef y():\n    from shigoto import one\n"
        + "\n" * 60,
    }

    assert examine(package(tmp_path, **texts)).problems == ()
