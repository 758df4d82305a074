"""Which test proves which requirement: reads docs/requirements.md and the tests, runs nothing.

A test claims a requirement in its name (`test_s0_33_…`) or its docstring (`S0-33`, `S0-3…S0-14`, `GWT-5`).
Only functions count: a number in the docstring of a module or class would cover all below and prove nothing.
"""

import argparse
import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The conformance suite is run by the tests of every engine.
TESTS = (
    "tests/**/*.py",
    "bench/tests/**/*.py",
    "conformance/**/*.py",
    "examples/**/tests/**/*.py",
    "faults/tests/**/*.py",
)

ENTRY = re.compile(r"^- \*\*(?P<number>S\d-\d+)(?: = (?P<alias>GWT-\d+))?\*\* (?P<text>.+)$")
IN_TEXT = re.compile(
    r"\b(?P<series>S\d|GWT)-(?P<first>\d+)(?:(?:…|\.{2,3}|–)(?:(?P<other>S\d|GWT)-)?(?P<last>\d+))?\b"
)
IN_NAME = re.compile(r"(?<=_)(?P<series>s\d|gwt)_(?P<first>\d+)(?=_|$)")

TestFunction = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Requirement:
    number: str
    alias: str | None
    text: str
    tests: list[str] = field(default_factory=list)


@dataclass
class Ledger:
    requirements: dict[str, Requirement]
    mistakes: list[str] = field(default_factory=list)

    @property
    def uncovered(self) -> list[Requirement]:
        return [requirement for requirement in self.requirements.values() if not requirement.tests]

    def claim(self, test: str, number: str) -> None:
        requirement = next((r for r in self.requirements.values() if number in (r.number, r.alias)), None)
        if requirement is None:
            self.mistakes.append(f"{test} names {number}, which is not in the ledger")
        elif test not in requirement.tests:
            requirement.tests.append(test)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 dev.py requirements", description="Who proves what?")
    parser.add_argument("--uncovered", action="store_true", help="only those that no test names")
    parser.add_argument("--json", action="store_true", help="for programs")
    chosen = parser.parse_args(arguments)

    ledger = read_ledger(ROOT)

    print(as_json(ledger) if chosen.json else as_text(ledger, only_uncovered=chosen.uncovered))
    return 1 if ledger.mistakes else 0


def read_ledger(root: Path) -> Ledger:
    ledger = Ledger(read_requirements((root / "docs" / "requirements.md").read_text(encoding="utf-8")))
    files = sorted({path for pattern in TESTS for path in root.glob(pattern)})
    for path in files:
        for name, function in collect_tests(ast.parse(path.read_text(encoding="utf-8"), str(path)).body):
            test = f"{path.relative_to(root).as_posix()}::{name}"
            try:
                for number in numbers_named(function.name, ast.get_docstring(function) or ""):
                    ledger.claim(test, number)
            except ValueError as error:
                ledger.mistakes.append(f"{test} {error}")
    return ledger


def read_requirements(text: str) -> dict[str, Requirement]:
    requirements: dict[str, Requirement] = {}
    for line in text.splitlines():
        if entry := ENTRY.match(line):
            requirement = Requirement(entry["number"], entry["alias"], entry["text"])
            if requirement.number in requirements:
                raise ValueError(f"docs/requirements.md has {requirement.number} twice")
            requirements[requirement.number] = requirement
    return requirements


def collect_tests(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, TestFunction]]:
    """Test functions and methods as pytest names them; functions inside functions are not tests."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from collect_tests(statement.body, f"{prefix}{statement.name}::")
        elif isinstance(statement, TestFunction) and statement.name.startswith("test_"):
            yield f"{prefix}{statement.name}", statement


def numbers_named(name: str, docstring: str) -> list[str]:
    """The requirement numbers in a test's name and docstring, ranges spelt out."""
    numbers = [f"{found['series'].upper()}-{found['first']}" for found in IN_NAME.finditer(name)]
    for found in IN_TEXT.finditer(docstring):
        series, first, last = found["series"], int(found["first"]), int(found["last"] or found["first"])
        if found["other"] not in (None, series) or last < first:
            raise ValueError(f"names the range {found[0]}, which runs backwards or across specifications")
        numbers += [f"{series}-{number}" for number in range(first, last + 1)]
    return list(dict.fromkeys(numbers))


def as_text(ledger: Ledger, *, only_uncovered: bool) -> str:
    lines: list[str] = []
    if not only_uncovered:
        for requirement in ledger.requirements.values():
            name = f"{requirement.number} = {requirement.alias}" if requirement.alias else requirement.number
            lines.append(f"{name}  {requirement.text}")
            lines += [f"    {test}" for test in requirement.tests] or ["    no test"]
        lines += ["", "Not covered:"]
    lines += [f"{requirement.number:<6} {requirement.text}" for requirement in ledger.uncovered]
    covered = len(ledger.requirements) - len(ledger.uncovered)
    lines += ["", f"{covered} of {len(ledger.requirements)} requirements are named by a test."]
    lines += [f"MISTAKE: {mistake}." for mistake in ledger.mistakes]
    return "\n".join(lines)


def as_json(ledger: Ledger) -> str:
    return json.dumps(
        {
            "requirements": {
                each.number: {"alias": each.alias, "text": each.text, "tests": each.tests}
                for each in ledger.requirements.values()
            },
            "uncovered": [each.number for each in ledger.uncovered],
            "mistakes": ledger.mistakes,
        },
        indent=2,
        ensure_ascii=False,
    )


if __name__ == "__main__":
    raise SystemExit(main())
