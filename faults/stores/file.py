"""An SQLite file as a store."""

from pathlib import Path

from faults.evidence.audit import audit_of
from shigoto import Shigoto


class File:
    """A file that is made by whoever opens it first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self.audit = audit_of(path)

    def prepare(self, app: Shigoto) -> None:
        """Make the schema; the app has the file open from then on, which readers of it rely on."""
        app.engine.migrate()

    def close(self) -> None:
        """Nothing runs for it."""
