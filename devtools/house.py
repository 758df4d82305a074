"""The rules that keep the package small enough for one head; `python3 dev.py check` prints what breaks them.

A file holds one idea: it warns over 600 lines, and 900 are the most. A module of fewer than 60 lines with a single
importer is a part of that importer. A public class name stands once, but for those that both SQL engines have.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "shigoto"
LARGE, MOST, SMALL = 600, 900, 60
MOST_FILES, MOST_LINES = 225, 65_000
# The SQL engines have these side by side; JobEvent is an event of the bus, and a schema of the HTTP API.
TWICE = frozenset({"Block", "BlockConnection", "Driver", "JobEvent"})
# Read by name: the build reads the version, Python runs __main__.
ALONE = frozenset({"__init__.py", "__main__.py", "version.py"})


@dataclass(frozen=True)
class Report:
    """What the rules find in a package: its size, and one sentence for each thing to change."""

    files: int
    lines: int
    warnings: tuple[str, ...]
    problems: tuple[str, ...]


def examine(package: Path = PACKAGE) -> Report:
    """Return what the rules find in a package."""
    texts = {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in package.rglob("*.py")}
    lines = {path: text.count("\n") for path, text in texts.items()}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    problems = [*too_long(lines), *too_small(lines, trees), *named_twice(trees)]
    if len(lines) > MOST_FILES or sum(lines.values()) > MOST_LINES:
        problems.append(f"The package may have {MOST_FILES} files and {MOST_LINES} lines. See what can go.")
    warnings = [
        f"{path} has {count} lines; is it still one idea?"
        for path, count in sorted(lines.items())
        if LARGE < count <= MOST
    ]
    return Report(len(lines), sum(lines.values()), tuple(warnings), tuple(problems))


def too_long(lines: Mapping[str, int]) -> Iterator[str]:
    for path, count in sorted(lines.items()):
        if count > MOST:
            yield f"{path} has {count} lines, more than {MOST}. Make it two ideas."


def too_small(lines: Mapping[str, int], trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield a sentence for each small module with one importer."""
    importers = importers_of(trees)
    for path, count in sorted(lines.items()):
        if count < SMALL and Path(path).name not in ALONE and len(importers[path]) == 1:
            [importer] = importers[path]
            yield f"{path} has {count} lines, and only {importer} imports it. Make it a part of that module."


def importers_of(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return for each module of a package the modules that import it."""
    paths = {module_of(path): path for path in trees}
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for each in node.names:
                    imported = paths.get(f"{node.module}.{each.name}") or paths.get(node.module)
                    if imported and imported != path:
                        found[imported].add(path)
    return found


def module_of(path: str) -> str:
    return "shigoto." + path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def named_twice(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield a sentence for each public class name that stands in two modules."""
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    for name, count in sorted(classes.items()):
        if count > 1 and name not in TWICE:
            yield f"{count} modules have a class {name}. Give each the name of what it is."
