"""Somebody else who reads the store's file: to see whether it is damaged, or for so long that its log cannot shrink.

Each has a read-only connection of its own. Something of ours must have the file open meanwhile, as a stage does: a
read-only connection cannot make the companions of the file.
"""

import sqlite3
from pathlib import Path
from types import TracebackType


def damage(store: Path) -> list[str]:
    """What the whole of `PRAGMA integrity_check` says, nothing if all is well."""
    try:
        connection = _connect(store)
        try:
            return [text for (text,) in connection.execute("PRAGMA integrity_check(10)") if text != "ok"]
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        return [str(error)]


class Snapshot:
    """A read transaction that sees the file as it was: for as long as the block lasts, or until it is let go."""

    def __init__(self, store: Path) -> None:
        self._connection = _connect(store)
        self._seen: int | None = None

    def __enter__(self) -> "Snapshot":
        return self.hold()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go()

    def hold(self) -> "Snapshot":
        """Begin; the first look is what counts."""
        self._connection.execute("BEGIN")
        self._seen = self.look()
        return self

    def let_go(self) -> None:
        """End it."""
        self._connection.execute("ROLLBACK")
        self._connection.close()

    @property
    def holds(self) -> bool:
        """Whether it still sees what it saw first."""
        return self.look() == self._seen

    def look(self) -> int:
        """The number of the newest job that it can see."""
        [number] = self._connection.execute("SELECT coalesce(max(number), 0) FROM shigoto_job").fetchone()
        return int(number)


def _connect(store: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{store.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=30,
        isolation_level=None,
        check_same_thread=False,
    )
