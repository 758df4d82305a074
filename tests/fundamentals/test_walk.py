"""The walk of one job in ARCHITECTURE.md: the files that a job passes, from `task.enqueue` until it is completed.

A file is on the walk if one of its functions has the job in hand: as an argument, a local variable or its result,
in any form (a call, a spec, a row, a lease, a settlement). The test finds the job by its argument, id or number.
"""

import asyncio
import dataclasses
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from uuid import UUID

import msgspec
import pytest

import shigoto
from devtools import architecture
from shigoto import Shigoto
from shigoto.worker import Worker
from tests.postgres import Yard, make_store, shared_server

PACKAGE = f"{Path(shigoto.__file__).parent}/"
MARK = 7_717_717_717  # the argument of the traced job
WARM_UP = 7_000  # jobs, so that no other number of the run is that of the traced job
# The worker sends heartbeats at its own times; they name all jobs that it holds and pass beside the walk.
BESIDE = {"worker/keeper.py", "engine/sql/repairing.py"}
MOST = {"SQLite": 20, "PostgreSQL": 22}


class Trace:
    """The files of the package whose functions have had one job in hand, in the order of their first call."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.id: UUID | None = None
        self.number: int | None = None
        self._on = False
        self._busy = threading.local()

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Prepare the threads that start inside the block; they are traced once `running` is entered."""
        threading.setprofile(self._profile)
        try:
            yield
        finally:
            threading.setprofile(None)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Trace this thread and those prepared."""
        self._on = True
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._on = False

    def _profile(self, frame: FrameType, event: str, value: object) -> None:
        if not self._on:
            return
        path = frame.f_code.co_filename.removeprefix(PACKAGE)
        if path == frame.f_code.co_filename or path in self.files or getattr(self._busy, "now", False):
            return
        self._busy.now = True  # reading a value may call functions of the package
        try:
            values = {name: each for name, each in frame.f_locals.items() if name != "self"}
            if path not in BESIDE and (self._is_job(value, 5) or self._is_job(values, 5)):
                self.files.append(path)
        finally:
            self._busy.now = False

    def _is_job(self, value: object, depth: int) -> bool:
        """Return True if a value is the job, or contains it."""
        match value:
            case bool() | None:
                return False
            case int():
                return value in (MARK, self.number)
            case str():
                return re.search(rf"\b({MARK}|{self.number})\b", value) is not None
            case bytes():
                return str(MARK).encode() in value or (self.id is not None and value == self.id.bytes)
            case UUID():
                return value == self.id
            case _ if depth == 0:
                return False
            case list() | tuple() | set() | frozenset():
                return any(self._is_job(each, depth - 1) for each in list(value))
            case Mapping():
                return any(self._is_job(each, depth - 1) for pair in list(value.items()) for each in pair)
            case msgspec.Struct():
                return any(self._is_job(getattr(value, name), depth - 1) for name in value.__struct_fields__)
            case _ if dataclasses.is_dataclass(value):
                fields = [field.name for field in dataclasses.fields(value)]
                return any(self._is_job(getattr(value, name, None), depth - 1) for name in fields)
            case _:
                return False


async def trace_of_a_job(url: str) -> Trace:
    """Return the trace of one job that is enqueued and completed when a worker is idle and its caches are warm."""
    app, trace = Shigoto(url), Trace()

    @app.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    with trace.threads():
        worker = Worker(app, any_role=url.startswith("postgresql"))
        await worker.__aenter__()
        *_, last = await app.aenqueue_many(double.call(number) for number in range(WARM_UP))
        await last.aresult(timeout=20)
        for number in range(20):
            await (await double.aenqueue(number)).aresult(timeout=20)
    try:
        with trace.running():
            trace.number = last.number + 21
            handle = double.enqueue(MARK)
            trace.id = handle.id
            assert handle.number == trace.number
            # Another app waits for the end, in threads of its own, which nobody traces.
            result = await asyncio.to_thread(lambda: Shigoto(url).job(handle.id).result(timeout=20))
    finally:
        await worker.__aexit__(None, None, None)
    assert result == 2 * MARK
    return trace


@pytest.fixture
def url(store: int | None, postgres_yard: Yard, tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[str]:
    """The address of an empty store."""
    if store is None:
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
        return
    shared_server(postgres_yard, store, pytestconfig)
    with postgres_yard.emptied(store, make_store) as address:
        yield address


@pytest.mark.filterwarnings("ignore:enqueue")
async def test_a_job_passes_the_files_that_architecture_md_names(url: str) -> None:
    trace = await trace_of_a_job(url)

    store = "PostgreSQL" if url.startswith("postgresql") else "SQLite"
    assert sorted(trace.files) == sorted({path for path, _ in architecture.walk(store)})
    assert len(trace.files) <= MOST[store]
