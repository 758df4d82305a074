"""The contents of ARCHITECTURE.md, for the tests that compare it with the code."""

import re
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "ARCHITECTURE.md"
PACKAGE = ROOT / "src" / "shigoto"


def text() -> str:
    return PAGE.read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text below a heading. Raises LookupError if there is no such heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text(), flags=re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"ARCHITECTURE.md has no section {title!r}.")
    return found[1]


def table(title: str) -> list[Sequence[str]]:
    """Return the rows of the table in a section, without its head."""
    rows = [
        line.strip().strip("|").split("|") for line in section(title).splitlines() if line.startswith("|")
    ]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def layers() -> list[str]:
    """Return the modules of each row of the picture, as they are written there."""
    block = re.search(r"```\n(.*?)```", section("The layers"), flags=re.DOTALL)
    if block is None:
        raise LookupError("ARCHITECTURE.md has no picture of the layers.")
    return [re.split(r"\s{2,}", line)[-1].strip() for line in block[1].splitlines() if line.strip()]


def places(cell: str) -> list[tuple[str, str]]:
    """Return the files that a cell names, each with the function that is named for it, if there is one."""
    words = [word for word in re.findall(r"`([^`]+)`", cell) if re.search(r"/|\.(py|sql)\b", word)]
    return [(path, name) for path, _, name in (word.partition(":") for word in words)]


def walk(store: str) -> list[tuple[str, str]]:
    """Return the places that a job passes on SQLite or on PostgreSQL, in their order."""
    found: list[tuple[str, str]] = []
    for _, sqlite, postgres in table("The path of a job"):
        found += places(sqlite if store == "SQLite" or postgres == "the same" else postgres)
    return found
