"""Plans of `devtools/rename.py`, carried out on small repositories."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from devtools.rename import PlanError, carry_out, read_plan

ENGINE = '''"""The engine."""

from shigoto.engine import claiming, counting
from shigoto.engine.counting import fold


def work(limit: int) -> int:
    # `fold` after `counting.count`.
    return fold(claiming.claim(limit)) + counting.count()
'''
CLAIMING = '''"""Jobs go out.

In order of priority.
"""

import logging

logger = logging.getLogger("shigoto")


def claim(limit: int) -> int:
    return limit
'''
COUNTING = '''"""Counts of jobs."""

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shigoto.engine.claiming import claim

logger = logging.getLogger("shigoto")


def count() -> int:
    return 1


def fold(value: "int") -> int:
    logger.debug("folded %s", claim)
    return value
'''
USER = """from shigoto.engine.counting import fold as folded

WHERE = "shigoto.engine.counting.fold"
folded(1)
"""
FILES = {
    "src/shigoto/engine/engine.py": ENGINE,
    "src/shigoto/engine/claiming.py": CLAIMING,
    "src/shigoto/engine/counting.py": COUNTING,
    "tests/test_engine.py": USER,
    "docs/page.md": "`engine/counting.py`, not `engine/counting.py.bak`; `shigoto.engine.counting`.\n",
}


def carried_out(root: Path, plan: str, files: Mapping[str, str] = FILES) -> dict[str, str]:
    """Carry out a plan on a repository of these files, and return those that it has then."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    carry_out(read_plan(plan), root)
    kept = [*root.rglob("*.py"), *root.rglob("*.md")]
    return {path.relative_to(root).as_posix(): path.read_text() for path in kept}


def test_modules_with_one_target_are_joined_and_their_importers_follow(tmp_path: Path) -> None:
    plan = """
    engine/path.py: Jobs go out, and are counted.
    engine/claiming.py = engine/path.py
    engine/counting.py = engine/path.py
    """

    found = carried_out(tmp_path, plan)

    path = found["src/shigoto/engine/path.py"]
    assert path.startswith('"""Jobs go out, and are counted.\n\nIn order of priority.\n"""')
    assert path.count("logger = ") == 1
    assert "TYPE_CHECKING:" not in path
    engine = found["src/shigoto/engine/engine.py"]
    assert "return fold(path.claim(limit)) + path.count()" in engine
    assert "from shigoto.engine.path import fold" in engine
    assert '"shigoto.engine.path.fold"' in found["tests/test_engine.py"]
    assert found["docs/page.md"] == "`engine/path.py`, not `engine/counting.py.bak`; `shigoto.engine.path`.\n"
    assert "src/shigoto/engine/counting.py" not in found
    compile(path, "path.py", "exec")


def test_a_module_that_takes_in_what_it_imports_calls_it_by_its_bare_name(tmp_path: Path) -> None:
    plan = "engine/claiming.py = engine/engine.py\nengine/counting.py = engine/engine.py"

    engine = carried_out(tmp_path, plan)["src/shigoto/engine/engine.py"]

    assert "return fold(claim(limit)) + count()" in engine
    assert "import claiming" not in engine


def test_a_name_is_renamed_where_it_is_defined_imported_and_quoted(tmp_path: Path) -> None:
    plan = "engine/counting.py:fold = fold_counts\nengine/counting.py:count = count_jobs"

    found = carried_out(tmp_path, plan)

    assert "def fold_counts(" in found["src/shigoto/engine/counting.py"]
    assert (
        "return fold_counts(claiming.claim(limit)) + counting.count_jobs()"
        in found["src/shigoto/engine/engine.py"]
    )
    assert "# `fold_counts` after" in found["src/shigoto/engine/engine.py"]
    assert "import fold_counts as folded" in found["tests/test_engine.py"]
    assert '"shigoto.engine.counting.fold_counts"' in found["tests/test_engine.py"]


def test_an_identifier_is_renamed_in_the_named_folders_only(tmp_path: Path) -> None:
    found = carried_out(tmp_path, ".limit = most in engine/claiming.py")

    assert "def claim(most: int) -> int:\n    return most" in found["src/shigoto/engine/claiming.py"]
    assert "claiming.claim(limit)" in found["src/shigoto/engine/engine.py"]


def test_an_identifier_is_renamed_inside_of_a_formatted_string(tmp_path: Path) -> None:
    files = {"src/shigoto/text.py": 'def text(limit: int) -> str:\n    return f"limit: {limit + 1:,}"\n'}

    found = carried_out(tmp_path, ".limit = most", files)

    assert found["src/shigoto/text.py"].endswith(
        'def text(most: int) -> str:\n    return f"limit: {most + 1:,}"\n'
    )


def test_two_modules_that_define_one_name_are_not_joined(tmp_path: Path) -> None:
    files = {**FILES, "src/shigoto/engine/counting.py": COUNTING + "\n\ndef claim() -> None: ...\n"}
    plan = "engine/claiming.py = engine/path.py\nengine/counting.py = engine/path.py"

    with pytest.raises(PlanError, match=r"claim is defined in .*claiming\.py and in .*counting\.py"):
        carried_out(tmp_path, plan, files)

    assert (tmp_path / "src/shigoto/engine/counting.py").exists()
    assert not (tmp_path / "src/shigoto/engine/path.py").exists()


def test_a_local_variable_that_hides_a_new_name_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"engine.py:9: 'limit' is a local variable there"):
        carried_out(tmp_path, "engine/counting.py:fold = limit")


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ("engine/nothing.py = engine/path.py", "engine/nothing.py is not a file"),
        ("engine/claiming.py:nothing = something", "shigoto.engine.claiming does not define nothing"),
        ("engine/claiming.py to engine/path.py", "line 1 is not an instruction"),
    ],
)
def test_a_plan_that_names_what_is_not_there_is_refused(tmp_path: Path, plan: str, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        carried_out(tmp_path, plan)
