"""Whole pages of commands, one file for each command in tests/unit/cli/snapshots/; `--renew` writes the files again."""

import difflib
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import pytest

from tests.unit.commands import Command

FOLDER = Path(__file__).parent / "snapshots"
RENEW = "python3 dev.py test --renew tests/unit/cli"

# Compares pages, named by their titles, with the file of a command.
SnapshotCheck = Callable[[str, Mapping[str, str]], None]


def compare(name: str, pages: Mapping[str, str], *, renew: bool, folder: Path = FOLDER) -> None:
    """Fail with the differences if the file of a command does not hold exactly these pages; write it if `renew` is
    set."""
    found = "\n".join(f"== {title}\n\n{click.unstyle(page).rstrip()}\n" for title, page in pages.items())
    file = folder / f"{name}.txt"
    if renew:
        folder.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    kept = file.read_text(encoding="utf-8") if file.exists() else ""
    if found != kept:
        names = f"snapshots/{name}.txt", "this run"
        lines = difflib.unified_diff(kept.splitlines(), found.splitlines(), *names, lineterm="")
        pytest.fail("\n".join([*lines, "", f"If the pages are right, run: {RENEW}"]), pytrace=False)


def session(run: Command, *lines: str) -> str:
    """Run commands, and return each one with what it prints, its errors and its exit code if it fails."""
    shown: list[str] = []
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "shigoto"
        outcome = run(*words)
        code = f"[exit code {outcome.code}]\n" if outcome.code else ""
        shown.append(f"$ {line}\n{outcome.out}{outcome.err}{code}")
    return "\n".join(shown)
