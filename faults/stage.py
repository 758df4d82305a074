"""Producers and workers as they are in the world: real processes on a store of their own, with the ledger beside it."""

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import shigoto
from faults.evidence.audit import Audit
from faults.evidence.checker import Evidence
from faults.evidence.records import Pen, read
from faults.evidence.runs import BEREAVED, TOLD
from faults.experiment import Setting
from faults.stores import open_store
from faults.stores.file import File
from faults.tools.guardian import Guardian
from shigoto import Job, Shigoto

if TYPE_CHECKING:
    from faults.stores.database import Database
    from faults.stores.host import Host

S = TypeVar("S")
T = TypeVar("T")

ROOT = Path(__file__).parents[1]
SOURCE = Path(shigoto.__file__).parents[1]  # where this process has it from, which may be a mutant
SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "cont": signal.SIGCONT,
    "term": signal.SIGTERM,
    "int": signal.SIGINT,
}
QUIET = ("--log-level", "critical")


class Stage:
    """One store, its ledger, and the processes that use it, which end with the block.

    `module` is the app, one of `faults.apps`. The audit triggers are installed unless `audited` is False: they double
    what a commit writes. On PostgreSQL the store has a server of its own, which ends last; its folder and its settings
    may be said.
    """

    def __init__(
        self,
        setting: Setting,
        module: str = "jobs",
        *,
        audited: bool = True,
        server_folder: Path | None = None,
        server_settings: Mapping[str, str | int] | None = None,
    ) -> None:
        self.setting = setting
        self.module = module
        self.folder = setting.folder
        self.ledger = self.folder / "ledger"
        self.ledger.mkdir(parents=True, exist_ok=True)
        self.pen = Pen(self.ledger)
        self._store = open_store(setting, self.pen, folder=server_folder, settings=server_settings)
        self.url = self._store.url
        self.app = app_of(module, self.url)
        self._store.prepare(self.app)
        if audited:
            self.audit.install()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._producers = 0
        self._guardian = Guardian()
        self._between = ExitStack()

    def __enter__(self) -> "Stage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            end(process)
        self._guardian.dismiss()
        self.app.close()
        self._between.close()
        self._store.close()

    @property
    def audit(self) -> Audit:
        """What the store's triggers have written down."""
        return self._store.audit

    @property
    def store(self) -> Path:
        """The file, of a stage on SQLite."""
        return self._own(File).path

    @property
    def database(self) -> "Database":
        """The database and its addresses, of a stage on PostgreSQL."""
        from faults.stores.database import Database

        return self._own(Database)

    @property
    def server(self) -> "Host":
        """The server that can be stopped, killed and cut off, of a stage on PostgreSQL."""
        return self.database.server

    def _own(self, kind: type[S]) -> S:
        if not isinstance(self._store, kind):
            raise TypeError(
                f"The engine of this stage is {self.setting.engine}, so it has no {kind.__name__}."
            )
        return self._store

    def between(self, line: AbstractContextManager[T]) -> T:
        """Open what stands between the processes and the store, such as a proxy; it is closed when they have ended."""
        return self._between.enter_context(line)

    def environment(self) -> dict[str, str]:
        """What a process needs to know the ledger, and to find the apps from wherever it is."""
        path = os.pathsep.join([str(ROOT), str(SOURCE), *filter(None, sys.path)])
        return os.environ | {"PYTHONPATH": path, "SHIGOTO_LEDGER": str(self.ledger)}

    def start(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """A process in a session of its own, that knows the ledger; what it says goes to `output`, or nowhere."""
        given = self.environment() | dict(environment or {})
        with (output or Path(os.devnull)).open("ab") as log:
            process = subprocess.Popen(
                list(command), env=given, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)
        self._guardian.tell(process.pid)
        return process

    def worker(
        self,
        *options: str,
        url: str | None = None,
        wrap: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        output: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """`shigoto worker` on the store; `wrap` is a command to start it with, such as strace.

        `url` is another way to the same store, such as through a proxy.
        """
        words = [sys.executable, "-m", "shigoto", "--app", f"faults.apps.{self.module}:app"]
        return self.start(
            [*wrap, *words, "worker", url or self.url, *QUIET, *options],
            environment=environment,
            output=output,
        )

    def producer(
        self,
        jobs: int,
        *options: str,
        url: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """A process that enqueues so many jobs one by one (see `faults/producer.py` for its options)."""
        self._producers += 1
        seed = f"{self.setting.seed} producer {self._producers}"
        place = [self.module, url or self.url, str(jobs)]
        words = [sys.executable, "-m", "faults.producer", *place, "--seed", seed]
        return self.start([*words, *options], environment=environment)

    def do(self, deed: str, process: subprocess.Popen[bytes] | int, *, whole_tree: bool = True) -> list[int]:
        """Send the signal of this name to a process, with all that descend from it, and write down to whom.

        What descends from a process that is killed alone has to notice, and is written down as bereaved; what descends
        from one that is asked to stop is told by it.
        """
        pid = process if isinstance(process, int) else process.pid
        family = descendants(pid)
        names = {each: own_number(each) for each in (pid, *family)}
        done: list[int] = []
        at = time.monotonic()
        for each in names if whole_tree else [pid]:
            at = time.monotonic()  # before the deed: nothing that follows from it may seem to be earlier
            try:
                os.kill(each, SIGNALS[deed])
            except ProcessLookupError:
                continue
            self.pen.write("fault", deed=deed, pid=names[each], parent=names[pid], at=at)
            done.append(each)
        concerned = {"kill": BEREAVED, "term": TOLD, "int": TOLD}.get(deed)
        if concerned and done and not whole_tree:
            for each in family:
                self.pen.write("fault", deed=concerned, pid=names[each], parent=names[pid], at=at)
        return done

    def wait_until(self, true: Callable[[], object], *, seconds: float, what: str) -> bool:
        """Look until it is true; False if it takes too long, which is noted as `missed` and fails the experiment."""
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                self.setting.missed.append(f"{what} within {seconds:g} s")
                self.setting.say(f"{what} within {seconds:g} s (seed {self.setting.seed})")
                return False
            time.sleep(0.02)
        return True

    def at_rest(self) -> bool:
        """Whether nothing waits, is due later or runs."""
        return self.audit.at_rest()

    def rest(self, seconds: float) -> bool:
        """Wait until the store is at rest."""
        return self.wait_until(self.at_rest, seconds=seconds, what="the store did not come to rest")

    def processing(self) -> int:
        """How many jobs are being run."""
        return sum(count.processing for count in self.app.stats().values())

    def have_begun(self, ids: Iterable[str]) -> bool:
        """Whether handlers of all these jobs have written down that they began."""
        begun = {record.job for record in read(self.ledger) if record.what == "start"}
        return begun.issuperset(ids)

    def jobs(self) -> Iterator[Job]:
        """Every job in the store."""
        before = None
        while page := self.app.find(limit=1000, before=before):
            yield from page
            before = page[-1].number

    def evidence(self) -> Evidence:
        """All that is known, for the checker."""
        return Evidence(
            records=read(self.ledger),
            changes=self.audit.changes(),
            states=self.audit.states(),
            effects=self.audit.effects(),
            workers=self.audit.workers(),
        )


def app_of(module: str, url: str) -> Shigoto:
    """The app of a module of `faults.apps`, on this store."""
    app: Shigoto = importlib.reload(importlib.import_module(f"faults.apps.{module}")).app
    app.url = url
    return app


def end(process: subprocess.Popen[bytes], seconds: float = 40) -> None:
    """End a process of ours and all that descend from it, gently first."""
    if process.poll() is None:
        family = descendants(process.pid)
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            for pid in [process.pid, *family, *descendants(process.pid)]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait()


def descendants(pid: int) -> list[int]:
    """All processes that descend from this one, as the system knows them."""
    found: list[int] = []
    for child in children_of(pid):
        found += [child, *descendants(child)]
    return found


def own_number(pid: int) -> int:
    """By which number a process knows itself; within a PID namespace of its own it is another one."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return pid
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), pid)


def children_of(pid: int) -> list[int]:
    """The process's children."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found
