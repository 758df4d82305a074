"""As whom a private server runs: PostgreSQL refuses to be root.

Anybody else just runs it. Root gets a user namespace in which it is somebody else, so that files stay its own and
nothing has to be opened to others; where that is forbidden, as in most containers, the server runs as `nobody`, and
its folder belongs to `nobody`. No account is ever created.
"""

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shigoto.model.errors import StoreRefused, StoreUnavailable

NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
NOBODY = 65_534
PATIENCE = 120.0


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
            timeout=PATIENCE,
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
