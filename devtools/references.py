"""References of a module to what a plan moves or renames, and the edits that rewrite them.

A name means what the innermost scope binds that has it. Names that an import or the module itself binds are followed to
their origin. Names that a function or a class binds are local; if one of them hides a new name, that is a problem.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol


class Names(Protocol):
    """The part of a plan that the rewriter uses."""

    def target(self, module: str) -> str:
        """Return the new name of a module."""
        ...

    def name(self, module: str, name: str) -> str:
        """Return the new name of what a module defines or imports."""
        ...

    def is_moved(self, module: str) -> bool:
        """Return True if the plan moves this module or joins it with others."""
        ...


@dataclass
class Source:
    """A module as it was read, and the edits that it will get."""

    path: str
    text: bytes
    tree: ast.Module
    module: str
    edits: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        lines = self.text.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self.offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self.offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def replace(self, node: ast.AST, text: str) -> None:
        self.edits.append((*self.span(node), text))

    def edited(self) -> str:
        """Return the text with all edits. Edits of one place are made once."""
        out, last = [], 0
        for start, end, text in sorted(set(self.edits)):
            assert start >= last, f"{self.path}: edits overlap at {self.text[start:end]!r}"
            out += [self.text[last:start].decode(), text]
            last = end
        return "".join([*out, self.text[last:].decode()])


@dataclass(frozen=True)
class Origin:
    """Where an imported or defined name comes from: a whole module, or a name of one."""

    module: str
    name: str | None  # None: the module itself
    alias: bool = False  # it was imported `as` something else
    own: bool = False


@dataclass
class Scope:
    """The names that a module, class or function binds; None for those that are not imported."""

    kind: str
    names: dict[str, Origin | None]


class Rewriter(ast.NodeVisitor):
    """Finds all references of one module to what a plan moves or renames, and writes the edits for them."""

    def __init__(self, source: Source, plan: Names, modules: frozenset[str]) -> None:
        self._source = source
        self._plan = plan
        self._modules = modules
        self._here = plan.target(source.module)
        self._scopes: list[Scope] = []
        self.problems: list[str] = []

    def run(self) -> None:
        """Write the edits of the whole module."""
        names = self._bindings(self._source.tree.body)
        for name, origin in names.items():
            names[name] = origin or Origin(self._source.module, name, own=True)
        with self._inside("module", names):
            self._visit_all(self._source.tree.body)

    # Scopes

    def _bindings(self, body: Sequence[ast.AST]) -> dict[str, Origin | None]:
        """Return what these statements bind, without what inner scopes bind."""
        found: dict[str, Origin | None] = {}
        stack: list[ast.AST] = list(reversed(body))
        outside: set[str] = set()
        while stack:
            node = stack.pop()
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    found[node.name] = None
                    continue
                case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                    continue
                case ast.ImportFrom() | ast.Import():
                    found |= dict(self._imported(node))
                    continue
                case ast.Name(ctx=ast.Store() | ast.Del()):
                    found.setdefault(node.id, None)
                case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
                    if node.name:
                        found.setdefault(node.name, None)
                case ast.MatchMapping(rest=str(rest)):
                    found.setdefault(rest, None)
                case ast.Global() | ast.Nonlocal():
                    outside.update(node.names)
                case _:
                    pass
            stack.extend(ast.iter_child_nodes(node))
        return {name: origin for name, origin in found.items() if name not in outside}

    def _imported(self, node: ast.ImportFrom | ast.Import) -> Iterator[tuple[str, Origin | None]]:
        for each in node.names:
            yield each.asname or each.name.partition(".")[0], self._origin(node, each)

    def _origin(self, node: ast.ImportFrom | ast.Import, each: ast.alias) -> Origin | None:
        """Return where an imported name comes from; None if that is no module of the repository.

        `import a.b` binds `a`, and is used by its whole dotted name; with `as c` it is the module.
        """
        alias = each.asname is not None
        if isinstance(node, ast.Import) or node.module is None:
            return Origin(each.name, None, alias) if alias and each.name in self._modules else None
        whole = f"{node.module}.{each.name}"
        if whole in self._modules:
            return Origin(whole, None, alias)
        return Origin(node.module, each.name, alias) if node.module in self._modules else None

    def _lookup(self, name: str) -> Origin | None:
        """Return where a name comes from; None if it is local, or a builtin."""
        for position, scope in reversed(list(enumerate(self._scopes))):
            if name in scope.names and (scope.kind != "class" or position == len(self._scopes) - 1):
                return scope.names[name]
        return None

    def _renamed(self, name: str) -> str | None:
        """Return the new name that the plan has for what this module defines or imports."""
        new = self._plan.name(self._source.module, name)
        return new if new != name else None

    @contextmanager
    def _inside(self, kind: str, names: dict[str, Origin | None]) -> Iterator[None]:
        self._scopes.append(Scope(kind, names))
        yield
        self._scopes.pop()

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._rename_definition(node)
        self._visit_all([*node.decorator_list, *node.args.defaults, *node.args.kw_defaults])
        if node.returns is not None:
            self._visit_annotation(node.returns)
        names = self._bindings(node.body) | dict.fromkeys(self._parameters(node.args))
        with self._inside("function", names):
            self._visit_all(node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        with self._inside("function", dict.fromkeys(self._parameters(node.args))):
            self.visit(node.body)

    def _parameters(self, arguments: ast.arguments) -> list[str]:
        """Return the names of parameters; their annotations belong to the scope outside."""
        found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        found += [each for each in (arguments.vararg, arguments.kwarg) if each]
        for each in found:
            if each.annotation is not None:
                self._visit_annotation(each.annotation)
        return [each.arg for each in found]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._rename_definition(node)
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        with self._inside("class", self._bindings(node.body)):
            self._visit_all(node.body)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        with self._inside("function", self._bindings([each.target for each in node.generators])):
            self.generic_visit(node)

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not (isinstance(node.value, ast.Name) and self._rewrite_attribute(node, node.value)):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if self._rewrite_patch(node):
            self._visit_all([*node.args[2:], *node.keywords])
        else:
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_annotation(node.annotation)
        self._visit_all([node.target, node.value])

    def visit_If(self, node: ast.If) -> None:
        if is_type_checking(node) and self._drops_all(node):
            start = self._source.offset(node.lineno, 0)
            self._source.edits.append((start, self._source.span(node)[1], ""))
        else:
            self.generic_visit(node)

    def _visit_annotation(self, node: ast.expr) -> None:
        """Visit an annotation; a quoted one holds names, too."""
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                self._rewrite_quoted(each)
        self.visit(node)

    def _rewrite_quoted(self, node: ast.Constant) -> None:
        start, end = self._source.span(node)
        text = self._source.text[start:end].decode()

        def replaced(found: re.Match[str]) -> str:
            origin = self._lookup(found[0])
            if origin is None or origin.name is None or origin.alias:
                return found[0]
            return self._plan.name(origin.module, origin.name)

        new = re.sub(r"(?<![\w.])[A-Za-z_]\w*", replaced, text)
        if new != text:
            self._source.edits.append((start, end, new))

    # References

    def _rename_definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        new = self._plan.name(self._source.module, node.name)
        if len(self._scopes) == 1 and new != node.name:
            start = self._source.offset(node.lineno, node.col_offset)
            found = re.compile(rf"\b{node.name}\b".encode()).search(self._source.text, start)
            assert found is not None
            self._source.edits.append((*found.span(), new))

    def visit_Name(self, node: ast.Name) -> None:
        origin = self._lookup(node.id)
        if origin is None:
            return
        new = self._renamed(node.id) or self._local(origin)
        if origin.name is None and self._plan.target(origin.module) == self._here and not origin.own:
            if origin.module != self._here or self._source.module != self._here:
                self._problem(node, f"{node.id} is a module that becomes part of this one")
            return
        if new is not None and new != node.id:
            self._check_free(node, new)
            self._source.replace(node, new)

    def _rewrite_attribute(self, node: ast.Attribute, value: ast.Name) -> bool:
        """Rewrite `module.name`. Return False if the node is something else."""
        origin = self._lookup(value.id)
        if origin is None or origin.name is not None:
            return False
        new = self._plan.name(origin.module, node.attr)
        target = self._plan.target(origin.module)
        if target == self._here and self._source.module != origin.module:
            self._check_free(node, new)
            self._source.replace(node, new)
            return True
        local = self._local(origin) or value.id
        if local != value.id:
            self._check_free(node, local)
        if (local, new) != (value.id, node.attr):
            self._source.replace(node, f"{local}.{new}")
        return True

    def _rewrite_patch(self, node: ast.Call) -> bool:
        """Rewrite `monkeypatch.setattr(module, "name", …)`, and the like for getattr."""
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr" | "delattr") | ast.Name(id="setattr" | "getattr"),
                args=[ast.Name(id=local) as first, ast.Constant(value=str(name)) as second, *_],
            ):
                origin = self._lookup(local)
                if origin is None or origin.name is not None:
                    return False
                self.visit_Name(first)
                new = self._plan.name(origin.module, name)
                if new != name:
                    self._source.replace(second, f'"{new}"')
                self.visit(node.func)
                return True
            case _:
                return False

    def _local(self, origin: Origin) -> str | None:
        """Return how this module calls what comes from there; None if that does not change."""
        target = self._plan.target(origin.module)
        if origin.name is None:
            return None if origin.alias else target.rpartition(".")[2]
        if origin.alias and target != self._here:
            return None
        return self._plan.name(origin.module, origin.name)

    def _check_free(self, node: ast.expr, name: str) -> None:
        for position, scope in enumerate(self._scopes):
            if position == 0 or (scope.kind == "class" and position < len(self._scopes) - 1):
                continue
            if name in scope.names and scope.names[name] is None:
                self._problem(node, f"{name!r} is a local variable there")

    def _problem(self, node: ast.expr | ast.stmt, text: str) -> None:
        self.problems.append(f"{self._source.path}:{node.lineno}: {text}")

    # Imports

    def _moved(self, node: ast.ImportFrom | ast.Import) -> list[str] | None:
        """Return the statements that take the place of an import; None if it stays as it is."""
        statements: list[str] = []
        changed = False
        for each in node.names:
            origin = self._origin(node, each)
            written = f"{each.name} as {each.asname}" if each.asname else each.name
            local = self._renamed(each.asname or each.name)
            if isinstance(node, ast.Import):
                new = self._plan.target(each.name)
                changed |= new != each.name
                statements.append(f"import {new}" + (f" as {each.asname}" if each.asname else ""))
            elif origin is None:
                changed |= local is not None
                statements.append(
                    f"from {node.module} import {f'{each.name} as {local}' if local else written}"
                )
            else:
                target = self._plan.target(origin.module)
                if target == self._here and (
                    self._source.module != origin.module or self._plan.is_moved(self._source.module)
                ):
                    changed = True
                    continue
                if origin.name is None:
                    parent, _, last = target.rpartition(".")
                    new = f"from {parent} import {last}"
                    if origin.alias and each.asname != last:
                        new += f" as {each.asname}"
                else:
                    name = self._plan.name(origin.module, origin.name)
                    new = f"from {target} import {name}"
                    alias = local or (each.asname if origin.alias else name)
                    if alias != name:
                        new += f" as {alias}"
                changed |= new != f"from {node.module} import {written}"
                statements.append(new)
        return statements if changed else None

    def visit_Import(self, node: ast.ImportFrom | ast.Import) -> None:
        statements = self._moved(node)
        if statements is None:
            return
        start, end = self._source.span(node)
        if statements:
            indent = " " * node.col_offset
            self._source.edits.append((start, end, f"\n{indent}".join(statements)))
        else:
            line = self._source.offset(node.lineno, 0)
            self._source.edits.append((line, min(end + 1, len(self._source.text)), ""))

    visit_ImportFrom = visit_Import

    def _drops_all(self, node: ast.If) -> bool:
        return all(
            isinstance(each, ast.ImportFrom | ast.Import) and self._moved(each) == [] for each in node.body
        )


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
