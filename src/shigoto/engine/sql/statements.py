"""SQL lives in .sql files, where it can be read as SQL; a line `-- name: x` starts the statement called x."""

from importlib import import_module
from pathlib import Path


def sql_files(package: str) -> list[Path]:
    """The .sql files of a package, by name.

    `importlib.resources` could do it, and would cost every process of a worker more than a megabyte.
    """
    [folder] = import_module(package).__path__
    return sorted(Path(folder).glob("*.sql"))


def load_statements(package: str) -> dict[str, str]:
    """The named statements of all files of a package, without the comments that explain them."""
    statements: dict[str, str] = {}
    for file in sql_files(package):
        for name, text in _parse(file.read_text("utf-8")).items():
            if name in statements:
                raise ValueError(f"{package} has two statements called {name!r}")
            statements[name] = text
    return statements


def _parse(text: str) -> dict[str, str]:
    lines: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("-- name: "):
            name = line.removeprefix("-- name: ").strip()
            lines[name] = []
        elif name and line.strip() and not line.lstrip().startswith("--"):
            lines[name].append(line)
    return {name: "\n".join(found) for name, found in lines.items()}
