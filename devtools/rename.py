"""Moves, joins and renames of modules and of the names in them: `python3 -m devtools.rename PLAN`.

A plan is a text file with one instruction on each line; paths begin at the root, or at `src/shigoto`:

    worker/station.py = worker/state.py          move a module; modules with the same target are joined, in this order
    worker/state.py: State shared by all parts     the first line of the docstring of a target
    worker/station.py:Station = WorkerState      rename a class, function or constant of a module (its old path)
    .vouch = beat_for in worker tests/             rename an identifier, such as a method, in these folders
    "last words" = "crash report" in worker        replace words in comments, strings and pages of these folders

All modules that import what moves are rewritten, with dotted names in their strings, and paths in pages, settings and
the patches of the mutants. If code would change its meaning, the reasons are printed and no file is written: two joined
modules define one name, or a local variable hides a new name.

It reads syntax trees with `ast` and edits the text between their positions, so that formatting and comments stay.
"""

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from devtools.joining import joined, names_in, part_of
from devtools.references import Rewriter, Source

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "src/shigoto/"
TOPS = ("src/", "tests/", "conformance/", "faults/", "bench/", "devtools/", "examples/", "docs/", "dev.py")
TEXTS = (".md", ".toml", ".yml", ".yaml", ".txt", ".cfg", ".sh", ".sql", "Containerfile")
# What no plan rewrites: history, and figures with the names of their time.
KEPT = ("CHANGELOG.md", "docs/decisions/", "requirements/")


class PlanError(Exception):
    """A plan that cannot be carried out as it is; the text lists every reason."""


@dataclass(frozen=True)
class Replacement:
    """An identifier or words that are replaced in some folders; in all if none is named."""

    old: str
    new: str
    folders: tuple[str, ...]

    def holds_in(self, path: str) -> bool:
        return not self.folders or path.startswith(self.folders)


@dataclass
class Plan:
    """The moves and renames of one plan."""

    modules: dict[str, str] = field(default_factory=dict)  # path -> path
    titles: dict[str, str] = field(default_factory=dict)
    names: dict[tuple[str, str], str] = field(default_factory=dict)  # (module, name) -> name
    identifiers: list[Replacement] = field(default_factory=list)
    words: list[Replacement] = field(default_factory=list)

    def target(self, module: str) -> str:
        return self._targets.get(module, module)

    def name(self, module: str, name: str) -> str:
        return self.names.get((module, name), name)

    def is_moved(self, module: str) -> bool:
        return module in self._targets

    def __post_init__(self) -> None:
        self._targets = {module_of(old): module_of(new) for old, new in self.modules.items()}


def read_plan(text: str) -> Plan:
    """Return the plan that a text describes. Raise PlanError if a line is not an instruction."""
    modules: dict[str, str] = {}
    titles: dict[str, str] = {}
    names: dict[tuple[str, str], str] = {}
    identifiers: list[Replacement] = []
    words: list[Replacement] = []
    for number, line in enumerate(text.splitlines(), 1):
        instruction = line.strip()
        if not instruction or instruction.startswith("#"):
            continue
        if found := re.fullmatch(r'"(.+)"\s*=\s*"(.*)"(?:\s+in\s+(.+))?', instruction):
            words.append(Replacement(found[1], found[2], folders_of(found[3])))
        elif found := re.fullmatch(r"\.(\w+)\s*=\s*(\w+)(?:\s+in\s+(.+))?", instruction):
            identifiers.append(Replacement(found[1], found[2], folders_of(found[3])))
        elif found := re.fullmatch(r"([\w/.]+\.py):(\w+)\s*=\s*(\w+)", instruction):
            names[module_of(at_root(found[1])), found[2]] = found[3]
        elif found := re.fullmatch(r"([\w/.]+\.py)\s*=\s*([\w/.]+\.py)", instruction):
            modules[at_root(found[1])] = at_root(found[2])
        elif found := re.fullmatch(r"([\w/.]+\.py):\s+(.+)", instruction):
            titles[at_root(found[1])] = found[2]
        else:
            raise PlanError(f"line {number} is not an instruction: {instruction}")
    return Plan(modules, titles, names, identifiers, words)


def folders_of(words: str | None) -> tuple[str, ...]:
    return tuple(at_root(word) for word in (words or "").split())


def at_root(path: str) -> str:
    return path if path.startswith(TOPS) else PACKAGE + path


def module_of(path: str) -> str:
    """Return the dotted name of the module at a path from the root."""
    parts = path.removeprefix("src/").removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def carry_out(plan: Plan, root: Path) -> None:
    """Carry out a plan. Raise PlanError, and write nothing, if it would change what code means."""
    tracked = [path for path in tracked_files(root) if (root / path).is_file()]
    modules = frozenset(module_of(path) for path in tracked if is_python(path))
    found = {path: (root / path).read_text(encoding="utf-8") for path in tracked if may_be_rewritten(path)}
    defining = {module for module, _ in plan.names}
    named = {*plan.modules, *plan.modules.values(), *plan.titles, "faults/mutants.py"}
    named |= {path for path in found if is_python(path) and module_of(path) in defining}
    texts = {path: text for path, text in found.items() if path in named or mentions(plan, text)}
    sources = {path: read_source(path, text.encode()) for path, text in texts.items() if is_python(path)}
    problems = unknown(plan, sources)
    for source in sources.values():
        rewriter = Rewriter(source, plan, modules)
        rewriter.run()
        problems += rewriter.problems
    texts |= {path: source.edited() for path, source in sources.items()}
    texts = moved(plan, texts, problems)
    if problems:
        raise PlanError("\n".join(dict.fromkeys(problems)))
    spelling = Spelling(plan)
    changed = 0
    for path, text in texts.items():
        new = spelling.python(text, path) if path.endswith(".py") else spelling.page(text, path)
        file = root / path
        if not file.exists() or file.read_text(encoding="utf-8") != new:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(new, encoding="utf-8")
            changed += 1
    for old in plan.modules:
        if old not in texts:
            (root / old).unlink()
    print(f"{len(plan.modules)} modules moved, {changed} files written")


def unknown(plan: Plan, sources: Mapping[str, Source]) -> list[str]:
    """Return a line for each module and name of a plan that does not exist."""
    problems = [f"{path} is not a file of the repository" for path in plan.modules if path not in sources]
    trees = {source.module: source.tree for source in sources.values()}
    for module, name in plan.names:
        if module not in trees or name not in names_in(trees[module]):
            problems.append(f"{module} does not define {name}")
    return problems


def moved(plan: Plan, texts: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """Return the text of each module under its new path, joined where a plan says so."""
    targets: dict[str, list[str]] = {}
    for old, new in plan.modules.items():
        if old in texts:
            targets.setdefault(new, []).append(old)
    for new, olds in targets.items():
        if new in texts and new not in plan.modules:
            olds.append(new)
    found = {path: text for path, text in texts.items() if path not in plan.modules}
    for new, olds in targets.items():
        if len(olds) > 1:
            found[new] = joined(
                new, plan.titles.get(new), [part_of(old, texts[old]) for old in olds], problems
            )
        else:
            found[new] = texts[olds[0]]
    for path, title in plan.titles.items():
        if len(targets.get(path, ())) < 2:
            found[path] = with_title(found[path], title)
    return found


def mentions(plan: Plan, text: str) -> bool:
    """Return True if a plan may change this text. Most texts of a repository need not even be parsed."""
    if any(each.old in text for each in (*plan.identifiers, *plan.words)):
        return True
    if any(old.removeprefix(PACKAGE) in text for old in plan.modules):
        return True
    for module in {*map(module_of, plan.modules), *(module for module, _ in plan.names)}:
        parent, _, last = module.rpartition(".")
        if module in text or (f"from {parent} import" in text and last in text):
            return True
    return False


def may_be_rewritten(path: str) -> bool:
    return is_python(path) or (path.endswith(TEXTS) and not path.startswith(KEPT))


def is_python(path: str) -> bool:
    """Return True for a module, but not for those of the typing tests that are wrong on purpose."""
    return path.endswith(".py") and "/wrong/" not in path


def with_title(text: str, title: str | None) -> str:
    """Return the text of a module with another first line of its docstring."""
    if title is None:
        return text
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree, clean=False)
    if docstring is None:
        return f'"""{title}"""\n\n{text}'
    return text.replace(docstring.partition("\n")[0], title, 1)


def tracked_files(root: Path) -> list[str]:
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, cwd=root, check=True, capture_output=True, text=True)
    return sorted(filter(None, done.stdout.split("\0")))


def read_source(path: str, text: bytes) -> Source:
    return Source(path, text, ast.parse(text), module_of(path))


class Spelling:
    """Replaces paths, dotted names, identifiers and words in texts."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._dotted = {module_of(old): module_of(new) for old, new in plan.modules.items() if old != new}
        self._paths = {
            old.removeprefix(PACKAGE): new.removeprefix(PACKAGE)
            for old, new in plan.modules.items()
            if old != new
        }
        self._moved = pattern_of(self._dotted, r"(?<![\w.])(", r")(?:\.([A-Za-z_]\w*))?(?![\w])")
        self._pathed = pattern_of(self._paths, r"(?<![\w/])((?:src/shigoto/)?)(", r")(?!\.?\w)")
        self._named = {
            f"{module}.{name}": f"{plan.target(module)}.{new}" for (module, name), new in plan.names.items()
        }
        olds = [*self._dotted, *self._paths, *(name for _, name in plan.names)]
        olds += [each.old for each in (*plan.identifiers, *plan.words)]
        self._any = re.compile("|".join(map(re.escape, olds)) or "(?!)")

    def page(self, text: str, path: str) -> str:
        """Return a page, or the text of a comment or string."""
        for old, new in self._named.items():
            text = re.sub(rf"(?<![\w.]){re.escape(old)}(?!\w)", new, text)
        if self._moved:
            text = self._moved.sub(self._dotted_name, text)
        if self._pathed:
            text = self._pathed.sub(lambda found: found[1] + self._paths[found[2]], text)
        for each in self._plan.words:
            if each.holds_in(path):
                text = re.sub(rf"(?<!\w){re.escape(each.old)}(?!\w)", each.new, text)
        return text

    def _dotted_name(self, found: re.Match[str]) -> str:
        return self._dotted[found[1]] + (f".{found[2]}" if found[2] else "")

    def python(self, text: str, path: str) -> str:
        """Return a module with its comments and strings spelled anew, and its identifiers renamed."""
        if not self._any.search(text):
            return text
        out, last = [], 0
        raw = text.encode()
        starts = [0]
        for line in raw.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        lines = raw.decode().splitlines(keepends=True)
        in_patches = path == "faults/mutants.py"
        here = module_of(path)
        identifiers = {each.old: each.new for each in self._plan.identifiers if each.holds_in(path)}
        known = identifiers | {
            name: new
            for (module, name), new in self._plan.names.items()
            if in_patches
            or here in (module, self._plan.target(module))
            or f"from {self._plan.target(module)} " in text
        }
        for token in tokenize.tokenize(BytesIO(raw).readline):
            kind, string = token.type, token.string
            if kind in (tokenize.STRING, tokenize.COMMENT):
                new = self.page(string, path)
                new = self._in_backticks(new, known, everywhere=in_patches)
                if identifiers and re.match(r"\w*[fF]\w*['\"]", string):
                    new = re.sub(r"\{[^{}]+\}", lambda each: replaced(each[0], identifiers), new)
            elif kind == tokenize.NAME:
                new = identifiers.get(string, string)
            else:
                continue
            if new != string:
                (row, column), (last_row, last_column) = token.start, token.end
                start = starts[row - 1] + len(lines[row - 1][:column].encode())
                end = starts[last_row - 1] + len(lines[last_row - 1][:last_column].encode())
                out += [raw[last:start].decode(), new]
                last = end
        return "".join([*out, raw[last:].decode()])

    def _in_backticks(self, text: str, names: dict[str, str], *, everywhere: bool) -> str:
        """Rename identifiers that a comment quotes; in the patches of mutants all of them."""
        if not names:
            return text

        return re.sub(r"(?s).+" if everywhere else r"`[^`]+`", lambda each: replaced(each[0], names), text)


def replaced(text: str, names: Mapping[str, str]) -> str:
    """Return a text with each identifier that has a new name replaced."""
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda each: names.get(each[0], each[0]), text)


def pattern_of(words: dict[str, str], before: str, after: str) -> re.Pattern[str] | None:
    if not words:
        return None
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(before + "|".join(map(re.escape, longest_first)) + after)


def main(arguments: Sequence[str]) -> int:
    """Carry out the plans named on the command line, then let ruff sort imports and format."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 1
    for name in arguments:
        try:
            carry_out(read_plan(Path(name).read_text(encoding="utf-8")), ROOT)
        except PlanError as error:
            print(f"{name}: nothing was changed.\n{error}", file=sys.stderr)
            return 1
    scripts = Path(sys.executable).parent
    subprocess.run([scripts / "ruff", "check", "--fix", "--quiet", "."], cwd=ROOT, check=False)
    subprocess.run([scripts / "ruff", "format", "--quiet", "."], cwd=ROOT, check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
