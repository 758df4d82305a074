"""The ledger: what producers, handlers and the monkey write down, each process into a file of its own.

One line for each record, one write each, so that it survives a kill -9 as the page cache does. Times are those of the
monotonic clock, which all processes of one host share.

    try, ok, err     a producer, before a call, after its acknowledgement, after its error
    start, end       a handler, when a run begins and when it ends; fenced, when it learns that it lost its lease
    cancel, retry    an operator, before a call that cancels a job, by `force` if that is the deed, or retries one
    fault            whoever disturbs: the deed, and to which process
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from msgspec import DecodeError, Struct, json

What = Literal["try", "ok", "err", "start", "end", "fenced", "cancel", "retry", "fault"]


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened, in process `pid`, a child of `parent`; of a fault it is the process it was done to.

    `token` is that of the run, `outcome` how a handler ended: done, error, cancelled (somebody has cut it short),
    withdrawn (it has cancelled its own job), trouble (the store did not take its transaction), or another word.
    `ambiguous` errors are those after which the job may be there. `deed` is kill, stop, cont, term, or another word.
    `due` is the instant before which a job must not start, by this clock. A start with an `effect` promises one row in
    the table `effects`, in the transaction of its completion.
    """

    what: What
    at: float
    pid: int
    parent: int = 0
    job: str = ""
    token: int = 0
    attempt: int = 0
    worker: str = ""
    outcome: str = ""
    sequence: int = 0
    key: str = ""
    order: str = ""
    due: float | None = None
    ambiguous: bool = False
    deed: str = ""
    effect: bool = False


class Pen:
    """Writes the records of this process into `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, int] = {}  # by process: a fork does not inherit its parent's

    def write(self, what: What, **fields: Any) -> None:
        """Write one record, now; `pid` and `parent` are this process's unless they are given."""
        pid, at = os.getpid(), time.monotonic()
        file = self._files.get(pid)
        if file is None:  # two threads may both open it, and both may write
            path = self._folder / f"{pid}-{time.monotonic_ns()}.jsonl"
            file = self._files[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        record = Record(**{"what": what, "at": at, "pid": pid, "parent": os.getppid(), **fields})
        os.write(file, json.encode(record) + b"\n")


def read(folder: Path) -> list[Record]:
    """All that was written, in order of time.

    A last line that has no end was cut short by a kill, or is being written: it never happened. Any other line that
    cannot be read is evidence that was damaged, so nothing can be said.
    """
    records = [record for path in sorted(folder.glob("*.jsonl")) for record in _read_one(path)]
    return sorted(records, key=lambda record: record.at)


def _read_one(path: Path) -> Iterator[Record]:
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            yield json.decode(line, type=Record)
        except DecodeError as error:
            raise ValueError(f"{path}, line {number}: the ledger is damaged: {error}") from error
