"""Several modules made one: their docstrings, imports and bodies, one after the other."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from devtools.references import is_type_checking


@dataclass
class Part:
    """One of several modules that become one: its text without docstring and imports."""

    path: str
    docstring: str
    body: str
    imports: list[str]
    type_imports: list[str]
    defined: dict[str, str]  # name -> the statement, written plainly
    imported: dict[str, str]  # local name -> "module.name"


def part_of(path: str, text: str) -> Part:
    tree = ast.parse(text)
    lines = text.splitlines()
    docstring = ast.get_docstring(tree, clean=True) or ""
    cut: set[int] = set()
    imports: list[str] = []
    type_imports: list[str] = []
    imported: dict[str, str] = {}
    defined: dict[str, str] = {}
    for position, node in enumerate(tree.body):
        span = range(node.lineno - 1, node.end_lineno or node.lineno)
        if position == 0 and docstring:
            cut.update(span)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            cut.update(span)
            imports.append(ast.unparse(node))
            imported |= names_imported(node)
        elif is_type_checking(node):
            assert isinstance(node, ast.If)
            cut.update(span)
            for each in node.body:
                assert isinstance(each, ast.Import | ast.ImportFrom), (
                    f"{path}: not an import under TYPE_CHECKING"
                )
                type_imports.append(ast.unparse(each))
                imported |= names_imported(each)
        else:
            for name in names_defined(node):
                defined[name] = ast.unparse(node)
    body = "\n".join(line for number, line in enumerate(lines) if number not in cut).strip("\n")
    return Part(path, docstring, body, imports, type_imports, defined, imported)


def names_imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return {each.asname or each.name: start + each.name for each in node.names}


def names_defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id


def joined(target: str, title: str | None, parts: Sequence[Part], problems: list[str]) -> str:
    """Return the text of one module made of several."""
    whose: dict[str, Part] = {}
    bodies: list[str] = []
    for part in parts:
        body = part.body
        for name, statement in part.defined.items():
            earlier = whose.setdefault(name, part)
            if earlier is part:
                continue
            if earlier.defined[name] == statement and "\n" not in statement:
                body = "\n".join(
                    line for line in body.split("\n") if line.strip() != statement_line(body, name)
                )
            else:
                problems.append(f"{target}: {name} is defined in {earlier.path} and in {part.path}")
        bodies.append(body.strip("\n"))
    origins: dict[str, tuple[str, Part]] = {}
    for part in parts:
        for name, origin in part.imported.items():
            other, where = origins.setdefault(name, (origin, part))
            if other != origin:
                problems.append(f"{target}: {name} is {other} in {where.path}, {origin} in {part.path}")
            if name in whose:
                problems.append(f"{target}: {name} of {whose[name].path} is {origin} in {part.path}")
    texts = [part.docstring for part in parts if part.docstring]
    first = title or (texts[0].split("\n")[0] if texts else "")
    more = [rest for text in texts if (rest := text.partition("\n")[2].strip("\n"))]
    docstring = "\n\n".join([first, *more])
    quoted = f'"""{docstring}\n"""' if more else f'"""{docstring}"""'
    if "\\" in docstring:
        quoted = "r" + quoted
    imports = list(dict.fromkeys(each for part in parts for each in part.imports))
    runtime = {name for each in imports for node in ast.parse(each).body for name in names_imported(node)}  # type: ignore[arg-type]
    type_imports = list(dict.fromkeys(each for part in parts for each in part.type_imports))
    lazy = [kept for each in type_imports if (kept := without(each, runtime))]
    blocks = [quoted, "\n".join(imports)]
    if lazy:
        blocks.append("if TYPE_CHECKING:\n" + "\n".join(f"    {each}" for each in lazy))
    return "\n\n".join([*(each for each in blocks if each), *(each for each in bodies if each)]) + "\n"


def statement_line(body: str, name: str) -> str:
    """Return the line of a body that assigns a name at its top level."""
    return next((line for line in body.split("\n") if re.match(rf"{name}\s*[:=]", line)), "\0")


def without(statement: str, names: set[str]) -> str:
    """Return an import without these names; empty if nothing is left."""
    [node] = ast.parse(statement).body
    assert isinstance(node, ast.Import | ast.ImportFrom)
    node.names = [each for each in node.names if (each.asname or each.name) not in names]
    return ast.unparse(node) if node.names else ""


def names_in(tree: ast.Module) -> set[str]:
    """Return the names that a module defines or imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(names_imported(node))
        elif isinstance(node, ast.stmt):
            found.update(names_defined(node))
    return found
