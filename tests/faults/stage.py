"""Workers as they are in the world, for tests that disturb them: real processes on a store of their own."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from shigoto import Job, Shigoto

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("SHIGOTO_FAULTS") == "full"
SEED = int(os.environ.get("SHIGOTO_SEED", "0")) or int(time.time())

linux = sys.platform.startswith("linux")


def app_of(module: str, store: Path) -> Shigoto:
    """The app of a module of this folder, made anew, so that every test has one with a store of its own."""
    spec = importlib.util.spec_from_file_location(
        f"{module}_{uuid4().hex}", Path(__file__).with_name(f"{module}.py")
    )
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    app: Shigoto = loaded.app
    app.url = f"sqlite:///{store}"
    return app


@contextmanager
def working(
    module: str, store: Path, ledger: Path, *options: str, log: Path | None = None
) -> Generator[subprocess.Popen[bytes]]:
    """`shigoto worker` in a process group of its own, which ends with the block."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "SHIGOTO_LEDGER": str(ledger)}
    command = [sys.executable, "-m", "shigoto", "--app", f"tests.faults.{module}:app", "worker", str(store)]
    with (log or Path(os.devnull)).open("ab") as output:
        worker = subprocess.Popen(
            [*command, *options],
            env=environment,
            stderr=output if log else None,
            start_new_session=True,
        )
    try:
        yield worker
    finally:
        if worker.poll() is None:
            worker.terminate()
            try:
                worker.wait(40)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()


def children_of(pid: int) -> list[int]:
    """The process's children, as the system knows them."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def wait_until(true: Callable[[], object], *, seconds: float, what: str) -> None:
    """Look until it is true: what other processes do can only be looked for."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what} (seed {SEED})"
        time.sleep(0.02)


def all_jobs(app: Shigoto) -> Iterator[Job]:
    """Every job in the store."""
    before = None
    while page := app.find(limit=1000, before=before):
        yield from page
        before = page[-1].number
