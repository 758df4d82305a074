"""The folder of a private server: its data, its password, its log. Nobody else may look into it."""

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from devtools.postgres.install import Account, how_to_install
from shigoto.model.errors import StoreRefused, StoreUnavailable

SUPERUSER = "postgres"
OURS = frozenset({"data", "data-unfinished", "password", "log", "programs", "programs-unfinished"})
READY = "ready"


class DataFolder:
    """What stands in the folder, and how it gets there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.log = path / "log"
        self._password = path / "password"

    def major(self) -> int | None:
        """The major version that has made the data, or None when there is none yet."""
        try:
            return int((self.data / "PG_VERSION").read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise StoreRefused(
                f"{self.data} is not the data of a PostgreSQL: PG_VERSION cannot be read ({error}). "
                "Use another folder."
            ) from error

    def prepare(self) -> None:
        """Make the folder, unless it is there; refuse one that is something else."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            strange = sorted(entry.name for entry in self.path.iterdir() if entry.name not in OURS)
        except OSError as error:
            raise StoreRefused(
                f"{self.path} cannot be the folder of a private PostgreSQL: {error.strerror}. "
                "Use a folder that is empty, or does not exist yet."
            ) from error
        if strange and not self.data.exists():
            raise StoreRefused(
                f"{self.path} is not the folder of a private PostgreSQL: there is {strange[0]!r} in it. "
                "Use a folder that is empty, or does not exist yet."
            )

    def initialise(self, account: Account, environment: dict[str, str], options: Sequence[str]) -> None:
        """Make the data, whole or not at all."""
        unfinished = self.path / "data-unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        self._choose_password(account)
        done = account.run(
            "initdb",
            f"--pgdata={unfinished}",
            f"--username={SUPERUSER}",
            f"--pwfile={self._password}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            *options,
            folder=self.path,
            environment=environment,
        )
        if done.returncode:
            raise StoreUnavailable(
                f"The data of a private PostgreSQL could not be made in {self.path}. "
                f"initdb said:\n{(done.stdout + done.stderr).strip()}"
            )
        unfinished.rename(self.data)

    def _choose_password(self, account: Account) -> None:
        self._password.unlink(missing_ok=True)
        descriptor = os.open(self._password, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(24))
        account.own(self._password)

    def password(self) -> str:
        """The password of the superuser."""
        try:
            return self._password.read_text().strip()
        except OSError as error:
            raise StoreRefused(
                f"The password of the private PostgreSQL in {self.path} cannot be read: {error.strerror}. "
                "Without it there is no way in: use another folder, or remove this one with everything in it."
            ) from error

    def clear_traces(self) -> None:
        """Forget a server that was killed, if its process id is now that of some other program.

        PostgreSQL would take that for a server still running, and refuse to start: after the restart of a container,
        where all ids begin anew, quite often.
        """
        traces = self.data / "postmaster.pid"
        try:
            name = Path(f"/proc/{int(traces.read_text().splitlines()[0])}/comm").read_text().strip()
        except (OSError, ValueError, IndexError):
            return
        if name != "postgres":
            traces.unlink()

    def is_ready(self, pid: int) -> bool:
        """Whether the server with this process id says that it takes connections."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return False
        # The file of a server that was killed stays until the next one overwrites it, and says `ready` too.
        return len(lines) > 7 and lines[0] == str(pid) and lines[7].strip() == READY

    def log_since(self, position: int, *, most: int = 4_000) -> str:
        """What the server has written since then, or the end of it."""
        try:
            with self.log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(position, end - most))
                return file.read().decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def log_size(self) -> int:
        """Where the log ends now."""
        try:
            return self.log.stat().st_size
        except FileNotFoundError:
            return 0


def refuse_other_major(folder: DataFolder, wanted: int, there: int) -> StoreRefused:
    return StoreRefused(
        f"{folder.path} holds the data of PostgreSQL {there}, which {wanted} cannot read. "
        f"Use {there}, or another folder. {how_to_install(there)}"
    )
