"""The environment in which everybody is measured: a folder in `.bench` for each comparison, the newest Python of the
machine with the newest release of each peer, by name from the package index, and what our own package needs.

The newest Python, because some peers leave older ones behind: who takes an older Python gets an older, slower peer.
A peer that cannot be installed is kept in mind with the reason. The folder is used again as long as it was made for the
same Python and the same names; `--renew` looks for newer releases.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, convert, to_builtins

from devtools.environment import ROOT, Problem, fetch_uv, find_uv, read_pyproject, remove, tell

FOLDER = ROOT / ".bench"
STAMP = "comparison.json"
OLDEST = (3, 11)
NAMES = [*(f"python3.{minor}" for minor in range(19, 10, -1)), "python3"]
INSTALL_LIMIT = 600.0
ASK_LIMIT = 30.0
TELL = """
import importlib.util, json, platform, sqlite3, sys, sysconfig
print(json.dumps({
    "path": getattr(sys, "_base_executable", None) or sys.executable,
    "version": list(sys.version_info[:3]),
    "usable": platform.python_implementation() == "CPython" and sys.version_info.releaselevel == "final"
        and not sysconfig.get_config_var("Py_GIL_DISABLED"),
    "sqlite": sqlite3.sqlite_version,
    "venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
}))
"""


class Python(Struct, frozen=True):
    """An interpreter that has answered."""

    path: str
    version: tuple[int, int, int]
    usable: bool
    sqlite: str
    venv: bool


class Environment(Struct, frozen=True):
    """What is in the folder; `missing` tells for each peer that is not why."""

    python: str
    sqlite: str
    names: list[str]
    missing: dict[str, str]
    made_at: str


def python_of(venv: Path) -> Path:
    """Its interpreter."""
    return venv / "bin" / "python"


def prepare(
    peers: Iterable[str], *, venv: Path = FOLDER / "venv", python: str | None = None, renew: bool = False
) -> Environment:
    """Make the folder hold the peers, or leave it as it is."""
    chosen = find_python(python)
    names = sorted({*peers, "uvloop", *own_requirements()})
    there = read_stamp(venv)
    if there is not None and not renew and is_fresh(there, chosen, names) and python_of(venv).exists():
        return there
    tell(f"preparing {shown(venv)} with Python {dotted(chosen.version)} and {len(names)} packages …")
    install = make_venv(chosen, venv)
    missing = {name_of(name): reason for name in names if (reason := installed(install, name))}
    if lacking := [name for name in own_requirements() if name in missing]:
        raise Problem(f"{lacking[0]} could not be installed into {shown(venv)}: {missing[lacking[0]]}")
    link_source(venv)
    made = Environment(
        python=dotted(chosen.version),
        sqlite=chosen.sqlite,
        names=names,
        missing=missing,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    (venv / STAMP).write_text(json.dumps(to_builtins(made)), encoding="utf-8")
    return made


def shown(venv: Path) -> str:
    """As people find it."""
    return str(venv.relative_to(ROOT)) if venv.is_relative_to(ROOT) else venv.name


def is_fresh(there: Environment, python: Python, names: Sequence[str]) -> bool:
    """Whether it is what would be made now, but for newer releases."""
    return there.python == dotted(python.version) and there.names == list(names)


def read_stamp(venv: Path) -> Environment | None:
    """What the folder says of itself, if it is complete."""
    try:
        return convert(json.loads((venv / STAMP).read_text(encoding="utf-8")), Environment)
    except (OSError, ValueError):
        return None


def own_requirements() -> list[str]:
    """What our package needs, by name: the newest releases, as for the peers."""
    dependencies: list[str] = read_pyproject(ROOT)["project"]["dependencies"]
    return [name_of(each) for each in dependencies]


def name_of(requirement: str) -> str:
    """The name in a requirement such as `click>=8.1.7`."""
    end = next(
        (at for at, letter in enumerate(requirement) if letter not in "-_." and not letter.isalnum()), None
    )
    return requirement[:end]


def find_python(wanted: str | None = None) -> Python:
    """The one that is wanted, or the newest on the machine. Raises Problem."""
    if wanted is not None:
        answer = asked(wanted)
        if answer is None or answer.version < OLDEST:
            raise Problem(f"{wanted} is not a Python of version 3.11 or newer that runs here.")
        return answer
    return newest([answer for path in candidates() if (answer := asked(path))])


def newest(answers: Sequence[Python]) -> Python:
    """Of several, the one to take. Raises Problem."""
    fit = [answer for answer in answers if answer.usable and answer.version >= OLDEST]
    if not fit:
        raise Problem("no Python of version 3.11 or newer was found; name one with --python PATH.")
    return max(fit, key=lambda answer: answer.version)


def candidates() -> list[str]:
    """Where there may be a Python: on PATH, what pyenv and uv have installed, and the one that runs this."""
    found = [path for name in NAMES if (path := shutil.which(name))]
    found += map(str, Path.home().glob(".pyenv/versions/*/bin/python"))
    found += uv_pythons()
    found.append(getattr(sys, "_base_executable", None) or sys.executable)
    return list(dict.fromkeys(found))


def uv_pythons() -> list[str]:
    """Those that uv knows, if there is a uv."""
    uv = find_uv()
    if uv is None:
        return []
    done = subprocess.run(
        [uv, "python", "list", "--only-installed", "--output-format", "json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
    )
    try:
        return [each["path"] for each in json.loads(done.stdout) if each.get("path")]
    except (ValueError, TypeError, KeyError):
        return []


def asked(path: str) -> Python | None:
    """What an interpreter says of itself; a version manager may have put a shim with nothing behind it on PATH."""
    try:
        done = subprocess.run(
            [path, "-c", TELL], capture_output=True, text=True, check=False, timeout=ASK_LIMIT, cwd="/"
        )
        return convert(json.loads(done.stdout), Python)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def make_venv(python: Python, venv: Path) -> list[str]:
    """Make the folder anew and empty; give the command that installs into it."""
    remove(venv)
    venv.parent.mkdir(exist_ok=True)
    if python.venv:
        done = subprocess.run([python.path, "-m", "venv", venv], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return [str(python_of(venv)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        remove(venv)
    uv = find_uv() or fetch_uv()
    done = subprocess.run(
        [uv, "venv", "--quiet", "--python", python.path, venv], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Problem(f"could not make {shown(venv)} with {python.path}: {last_line(done.stderr)}")
    return [str(uv), "pip", "install", "--quiet", "--python", str(python_of(venv))]


def installed(install: Sequence[str], name: str) -> str | None:
    """Install the newest release; the reason if that did not work. One by one, so that one cannot stop the others."""
    try:
        done = subprocess.run(
            [*install, "--upgrade", name],
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_LIMIT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"its installation took longer than {INSTALL_LIMIT:g} s"
    return last_line(done.stderr) if done.returncode else None


def last_line(text: str) -> str:
    """The end of what a program had to say."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"


def link_source(venv: Path) -> None:
    """Our own package is the source of this checkout."""
    [packages] = venv.glob("lib/python*/site-packages")
    (packages / "shigoto.pth").write_text(f"{ROOT / 'src'}\n", encoding="utf-8")


def dotted(version: Sequence[int]) -> str:
    """3.13.0"""
    return ".".join(map(str, version))
