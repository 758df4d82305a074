"""Promises about the files themselves, kept by a test because nobody would notice otherwise."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import dev
import shigoto

ROOT = dev.ROOT
PACKAGE = ROOT / "src" / "shigoto"
SOURCES = sorted(path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".sql"})

NOT_OURS = re.compile(r"\.(?!ci$|github$)|(__pycache__|build|dist|site)$")
INDEX_ADDRESS = re.compile(r"https?://[^\s\"'<>)`]*(pypi|pythonhosted|artifactory|/simple\b)", re.IGNORECASE)
SUPPRESSION = re.compile(r"type:\s*ignore|pyright:\s*ignore|pragma:\s*no cover|\bnoqa\b", re.IGNORECASE)


def project_files() -> list[Path]:
    """What git knows or would add; without git (a source archive, a bare machine), what lies around."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return list(walk(ROOT))
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_file():
            yield path
        elif not NOT_OURS.match(path.name):
            yield from walk(path)


def test_the_source_silences_no_checker() -> None:
    silenced = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if SUPPRESSION.search(line)
    ]

    assert silenced == []


def test_no_lock_file_that_names_its_index_is_kept() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in project_files()}

    assert "pyproject.toml" in names
    assert not names & {"uv.lock", "pylock.toml"}


def test_no_file_names_the_address_of_a_package_index() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): match[0]
        for path in project_files()
        if (match := INDEX_ADDRESS.search(path.read_text(encoding="utf-8", errors="replace")))
    }

    assert found == {}


def test_an_index_address_would_be_found() -> None:
    scheme = "https" + "://"

    assert INDEX_ADDRESS.search(f"see {scheme}pypi.org/project/x for it")
    assert INDEX_ADDRESS.search(f"{scheme}packages.example/simple/")
    assert not INDEX_ADDRESS.search(f"{scheme}www.apache.org/licenses/ and a simple thing")


def test_model_imports_only_the_standard_library_and_msgspec() -> None:
    allowed = sys.stdlib_module_names | {"msgspec"}
    strangers = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((PACKAGE / "model").rglob("*.py"))
        for name in imported(path)
        if name.split(".")[0] not in allowed and not re.match(r"shigoto\.model\b", name)
    ]

    assert strangers == []


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `from shigoto import model` counts as shigoto.model; relative imports are banned by lint.
            package = node.module or ""
            yield from (f"{package}.{alias.name}" for alias in node.names)


class TestPublicNames:
    def test_every_name_in_all_exists(self) -> None:
        assert [name for name in shigoto.__all__ if not hasattr(shigoto, name)] == []

    def test_every_public_name_is_in_all(self) -> None:
        public = {
            name
            for name, value in vars(shigoto).items()
            if not name.startswith("_") and not isinstance(value, ModuleType)
        }

        assert public - set(shigoto.__all__) == set()

    def test_no_name_is_in_all_twice(self) -> None:
        assert len(shigoto.__all__) == len(set(shigoto.__all__))
