"""Follows what one process writes into the ledger while it is written, to know what is in flight there."""

from pathlib import Path

from msgspec import json

from faults.evidence.records import Record


class Follower:
    """The runs that have begun in process `pid` and have not ended."""

    def __init__(self, folder: Path, pid: int) -> None:
        self._folder = folder
        self._pid = pid
        self._read: dict[Path, int] = {}
        self.in_flight: set[tuple[str, int]] = set()

    def look(self) -> int:
        """Read what is new, and tell how many are in flight."""
        for path in self._folder.glob(f"{self._pid}-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text.rpartition(b"\n")[0]
            self._read[path] = self._read.get(path, 0) + (len(whole) + 1 if whole else 0)
            for line in whole.splitlines():
                self._take(json.decode(line, type=Record))
        return len(self.in_flight)

    def _take(self, record: Record) -> None:
        run = (record.job, record.token)
        if record.what == "start":
            self.in_flight.add(run)
        elif record.what == "end":
            self.in_flight.discard(run)
