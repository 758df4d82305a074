"""Where the jobs of an experiment live: a file, or a database on a server of the experiment's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from faults.evidence.audit import Audit
from faults.evidence.records import Pen
from faults.experiment import Setting
from shigoto import Shigoto


class Store(Protocol):
    """A store of an experiment's own. `url` is for workers and producers, `audit` for the judge."""

    url: str
    audit: Audit

    def prepare(self, app: Shigoto) -> None:
        """Make the schema, for this app and all others."""
        ...

    def close(self) -> None:
        """End whatever was started for it."""
        ...


def open_store(
    setting: Setting, pen: Pen, *, folder: Path | None = None, settings: Mapping[str, str | int] | None = None
) -> Store:
    """A new store of the setting's engine; a server's folder and settings may be others than usual."""
    if setting.engine == "sqlite":
        from faults.stores.file import File

        return File(setting.folder / "jobs.db")
    from faults.stores.database import Database

    return Database(folder or setting.folder / "postgres", pen, settings=settings)
