"""The rules that keep the package small enough for one head; `python3 dev.py check` prints what breaks them.

A file holds one idea: over 600 lines there is a warning, and over 900 it must be two, also a SQL file. A module of
fewer than 60 lines with a single importer is a part of that importer. A public class name stands once, but for those
that several engines have. No modules import each other in a circle when they are imported.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "shigoto"
TOO_LARGE, LARGE, SMALL = 900, 600, 60
MOST_FILES, MOST_LINES = 225, 60_000
# How often a name may stand. The engines have theirs side by side, and their protocol has a Block, too; JobEvent is an
# event of the bus, and a schema of the HTTP API.
TIMES: Mapping[str, int] = {"Block": 3, "BlockConnection": 2, "Driver": 3, "JobEvent": 2}
# Read by name: the build reads the version, Python runs __main__.
ALONE = frozenset({"__init__.py", "__main__.py", "version.py"})


@dataclass(frozen=True)
class Report:
    """The findings in a package: its size, and one sentence for each thing to change."""

    files: int
    lines: int
    warnings: tuple[str, ...]
    problems: tuple[str, ...]


def examine(package: Path = PACKAGE) -> Report:
    """Return what the rules find in a package."""
    texts = {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in package.rglob("*.py")}
    lines = {path: text.count("\n") for path, text in texts.items()}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    problems = [*too_large(package), *too_small(lines, trees), *named_twice(trees), *circles(trees)]
    if len(lines) > MOST_FILES or sum(lines.values()) > MOST_LINES:
        problems.append(f"The package may have {MOST_FILES} files and {MOST_LINES} lines. See what can go.")
    warnings = [
        f"{path} has {count} lines; is it still one idea?"
        for path, count in sorted(lines.items())
        if count > LARGE
    ]
    return Report(len(lines), sum(lines.values()), tuple(warnings), tuple(problems))


def too_large(package: Path) -> Iterator[str]:
    """Yield a sentence for each file of Python or SQL that has more lines than one idea needs."""
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".sql") and (lines := path.read_bytes().count(b"\n")) > TOO_LARGE:
            name = path.relative_to(package).as_posix()
            yield f"{name} has {lines} lines, more than {TOO_LARGE}. Make it two ideas."


def too_small(lines: Mapping[str, int], trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield a sentence for each small module with one importer."""
    importers = importers_of(trees)
    for path, count in sorted(lines.items()):
        if count < SMALL and Path(path).name not in ALONE and len(importers[path]) == 1:
            [importer] = importers[path]
            yield f"{path} has {count} lines, and only {importer} imports it. Make it a part of that module."


def importers_of(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return for each module of a package the modules that import it, at any time."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        for imported in imported_by(path, ast.walk(tree), trees):
            found[imported].add(path)
    return found


def imported_by(path: str, nodes: Iterable[ast.AST], trees: Mapping[str, ast.Module]) -> set[str]:
    """Return the modules of the package that these import statements of a module name."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                whole = f"{node.module}.{each.name}"
                names.add(whole if path_of(whole, trees) else node.module)
    found = {path_of(name, trees) for name in names}
    return {each for each in found if each is not None and each != path}


def path_of(module: str, trees: Mapping[str, ast.Module]) -> str | None:
    """Return the file of a module of the package; None if it is not one."""
    stem = "/".join(module.split(".")[1:])
    paths = (f"{stem}.py", f"{stem}/__init__.py" if stem else "__init__.py")
    return next((each for each in paths if module.startswith("shigoto") and each in trees), None)


def circles(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield a sentence for each circle of modules that import each other when the first of them is imported."""
    imports = {path: imported_by(path, at_import(tree.body), trees) for path, tree in trees.items()}
    while imports:
        free = {path for path, names in imports.items() if not names & imports.keys()}
        if not free:
            names = ", ".join(sorted(_circle(imports)))
            yield f"These modules import each other: {names}. Join them, or turn one import."
            return
        imports = {path: names for path, names in imports.items() if path not in free}


def at_import(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the statements that run when a module is imported: not those of functions or for type checkers alone."""
    for node in body:
        yield node
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from at_import(node.orelse)
            case ast.If() | ast.Try() | ast.With() | ast.ClassDef():
                for part in ("body", "handlers", "orelse", "finalbody"):
                    yield from at_import(getattr(node, part, ()))
            case ast.ExceptHandler():
                yield from at_import(node.body)
            case _:
                pass


def _circle(imports: Mapping[str, set[str]]) -> list[str]:
    """Follow imports until a module comes again. Each of these has an import among them."""
    way = [min(imports)]
    while (after := min(imports[way[-1]] & imports.keys())) not in way:
        way.append(after)
    return way[way.index(after) :]


def named_twice(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield a sentence for each public class name that stands in two modules."""
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    for name, count in sorted(classes.items()):
        if count > TIMES.get(name, 1):
            yield f"{count} modules have a class {name}. Give each the name of what it is."
