"""What a start costs, in modules: seconds differ from machine to machine, and `bench/` tells them."""

import subprocess
import sys

import pytest

# What is slow to import or large, and not needed to declare tasks or to print a page of help.
HEAVY = {
    "argparse",
    "asyncio",
    "concurrent.futures",
    "cronsim",
    "ctypes",
    "email",
    "http",
    "importlib.metadata",
    "json",
    "logging.config",
    "logging.handlers",
    "multiprocessing",
    "pydantic",
    "sqlite3",
    "socket",
    "ssl",
    "subprocess",
    "tomllib",
    "unittest",
    "uvloop",
    "xml",
    "zipfile",
    "zoneinfo",
}
TASK = """
from shigoto import Shigoto
app = Shigoto("sqlite:///jobs.db")
@app.task(queue="mail", timeout=60)
async def send(to: str, copies: int = 1) -> str: ...
send.call("Ada")
"""
COUNT = "import sys; had = set(sys.modules); {}; print(*(set(sys.modules) - had))"


def imported(statement: str) -> set[str]:
    """The modules that a statement imports in a fresh interpreter, with all that is installed here."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT.format(statement)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    names = imported("import shigoto")

    assert not names & (HEAVY | {"click", "shigoto.cli", "shigoto.demo", "shigoto.worker"})
    assert not [name for name in names if name.startswith(("shigoto.engine.sqlite", "shigoto.engine.memory"))]
    assert len(names) < 180  # 165 when this was written: a dozen more is no reason to look, thirty are


def test_declaring_a_task_imports_nothing_heavy() -> None:
    names = imported(f"exec({TASK!r})")

    assert not names & HEAVY


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["worker", "--help"], ["enqueue", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    names = imported(f"from shigoto.cli import execute; execute({words})")

    assert not names & HEAVY
    assert not [name for name in names if name.startswith(("shigoto.worker", "shigoto.demo"))]


def test_the_overview_imports_no_command() -> None:
    names = imported("from shigoto.cli import execute; execute(['--help'])")

    commands = {name for name in names if name.startswith("shigoto.cli.")}
    assert commands == {"shigoto.cli.settings", "shigoto.cli.target"}
    assert len(names) < 205
