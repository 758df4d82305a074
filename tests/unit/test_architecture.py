"""ARCHITECTURE.md says what is true: its picture is the import contract, and what it names is there."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from devtools import architecture
from devtools.architecture import PACKAGE, ROOT, places, table

PLACES = sorted(
    {
        *architecture.walk("SQLite"),
        *architecture.walk("PostgreSQL"),
        *(place for _, cell in table("Where is …") for place in places(cell)),
    }
)


def test_the_page_can_be_read_at_one_sitting() -> None:
    assert len(architecture.PAGE.read_bytes()) <= 12_000


def test_the_picture_is_the_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    [contract] = [each for each in settings["tool"]["importlinter"]["contracts"] if each["id"] == "layers"]

    assert architecture.layers() == [re.sub(r"[()]", "", row) for row in contract["layers"]]


def test_the_glossary_has_thirty_words_at_most_and_none_twice() -> None:
    words = [word for word, _ in table("The words")]

    assert len(words) <= 30
    assert len(words) == len(set(words))


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_a_place_that_is_named_is_there(path: str, name: str) -> None:
    assert found(path).exists()
    assert not name or name in names_in(found(path))


def test_a_place_that_is_gone_would_be_noticed() -> None:
    assert places("`retry.py:Retry.delay`, see `docs/`, `app.test()`") == [
        ("retry.py", "Retry.delay"),
        ("docs/", ""),
    ]
    assert "Retry.delay" in names_in(found("retry.py"))
    assert {"delay", "Linear.delay", "Retry.no_such_name"}.isdisjoint(names_in(found("retry.py")))


def found(path: str) -> Path:
    """Return the file or folder that a row names: of the package, or of the repository."""
    return PACKAGE / path if (PACKAGE / path).exists() else ROOT / path


def names_in(path: Path) -> set[str]:
    """Return what a file defines: classes, functions, methods with their class, and constants; in SQL, statements and
    functions."""
    if path.suffix == ".sql":
        return set(
            re.findall(r"(?:^-- name: |FUNCTION shigoto\.)(\w+)", path.read_text(), flags=re.MULTILINE)
        )
    if path.suffix != ".py":
        return set()
    body = ast.parse(path.read_text(encoding="utf-8")).body
    classes = {each.name: each for each in body if isinstance(each, ast.ClassDef)}
    methods = {f"{name}.{each}" for name, node in classes.items() for each in defined_in(node.body)}
    return {*defined_in(body), *methods}


def defined_in(body: list[ast.stmt]) -> set[str]:
    names = {
        each.name for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    stored = (
        node for each in body if isinstance(each, ast.Assign | ast.AnnAssign) for node in ast.walk(each)
    )
    return names | {
        node.id for node in stored if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
