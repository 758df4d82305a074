"""The environment of the peers for Node.js: `.bench/node`, with npm.

Some need a newer Node.js than a system has: it is a package of npm's, too. Where the newest release cannot be had, as
when something that it needs is not there, older ones are tried, the newest first. Where there is no npm at all, none of
these peers is measured, and the page says so.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from bench.comparison.environment import FOLDER
from devtools.environment import tell

PLACE = FOLDER / "node"
STAMP = PLACE / "comparison.json"
NEEDED = 22  # the major version that the newest releases ask for
TRIES = 6
LIMIT = 300.0
NEEDS = ("pg",)


class Node(Struct, frozen=True):
    """What can be used; `missing` tells for each package that is not there why."""

    program: str
    version: str
    missing: dict[str, str]


def prepare(packages: Sequence[str], *, renew: bool = False, place: Path = PLACE) -> Node:
    """Make the folder hold the packages, or leave it as it is."""
    npm = shutil.which("npm")
    if npm is None:
        return Node("node", "", dict.fromkeys(packages, "there is no npm on this machine"))
    stamp = place / STAMP.name
    if not renew and stamp.exists():
        there = json.loads(stamp.read_text(encoding="utf-8"))
        if there["packages"] == list(packages):
            return Node(there["program"], there["version"], there["missing"])
    tell(f"preparing .bench/node with {len(packages)} packages …")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "package.json").write_text('{"private": true}\n', encoding="utf-8")
    made = _install(packages, npm, place)
    told = {"packages": list(packages), "program": made.program, "version": made.version}
    stamp.write_text(json.dumps({**told, "missing": made.missing}), encoding="utf-8")
    return made


def _install(packages: Sequence[str], npm: str, place: Path) -> Node:
    program = shutil.which("node") or "node"
    if _major(program) < NEEDED:
        trouble = _added(npm, place, f"node@{NEEDED}")
        if trouble:
            reason = f"Node.js {NEEDED} could not be installed: {trouble}"
            return Node(program, "", dict.fromkeys(packages, reason))
        program = str(place / "node_modules" / ".bin" / "node")
    missing: dict[str, str] = {}
    for name in (*NEEDS, *packages):
        if trouble := _newest(npm, place, name):
            missing |= {each: trouble for each in packages if name in (each, *NEEDS)}
    return Node(program, _said(program), missing)


def _newest(npm: str, place: Path, name: str) -> str | None:
    """Install the newest release that can be had; why none can."""
    trouble = first = _added(npm, place, f"{name}@latest")
    for release in _releases(npm, place, name)[:TRIES] if trouble else []:
        trouble = _added(npm, place, f"{name}@{release}")
        if trouble is None:
            return None
    return first if trouble else None


def _releases(npm: str, place: Path, name: str) -> list[str]:
    """Those without a word such as `beta` behind them, the newest first."""
    done = _npm(npm, place, "view", name, "versions", "--json")
    try:
        found = [each for each in json.loads(done.stdout) if re.fullmatch(r"[0-9.]+", each)]
    except (ValueError, TypeError):
        return []
    return sorted(found, key=lambda each: tuple(map(int, each.split("."))), reverse=True)


def _added(npm: str, place: Path, what: str) -> str | None:
    """Install it; the reason if that did not work."""
    try:
        done = _npm(npm, place, "install", "--no-audit", "--no-fund", what)
    except subprocess.TimeoutExpired:
        return f"its installation took longer than {LIMIT:g} s"
    if not done.returncode:
        return None
    lines = [line.strip() for line in done.stderr.splitlines() if "error" in line]
    return next(
        (line for line in lines if "No matching" in line or "code" not in line), "no reason was given"
    )


def _npm(npm: str, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # The Node.js in the folder, once it is there, decides which releases fit.
    path = os.pathsep.join([str(place / "node_modules" / ".bin"), os.environ.get("PATH", os.defpath)])
    return subprocess.run(
        [npm, *words],
        cwd=place,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        stdin=subprocess.DEVNULL,
    )


def _said(program: str) -> str:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip().removeprefix("v")


def _major(program: str) -> int:
    said = re.match(r"\d+", _said(program))
    return int(said[0]) if said else 0
