"""E35: stores on file systems where SQLite cannot keep what it promises, and where nothing can be written.

    python -m faults.experiments.e35_bad_places FOLDER        in a mount namespace of its own, if there can be one

File systems of the network are refused before anything is written, whoever opens the store. Those that vanish, such as
overlay and tmpfs, can be used, and the doctor warns of them. Where nothing may be written, the error says so. Network
file systems that cannot be mounted here are feigned: the table of mounts says that the folder is on one.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from faults.experiment import Experiment, Outcome, Setting
from faults.stage import ROOT, app_of
from faults.tools import mounts
from faults.tools.fuse import EmptyFolder
from faults.tools.programs import run_program, tell
from shigoto import ShigotoError
from shigoto.engine.sqlite import file

PATIENCE = 240.0
HANGS_AFTER = 60.0
NOBODY = 65_534
FUSE_OF_THE_NETWORK = "fuse.sshfs"
NETWORK = "StoreRefused: STORE lies on a network file system (KIND), where SQLite's locks and shared memory do not work"
UNWRITABLE = "StoreUnavailable: STORE cannot be opened for writing"
FORBIDDEN = "StoreRefused: STORE cannot be the path of a store: Permission denied."
STORED = "stored"

real_file_system = file.file_system


def run(setting: Setting) -> Outcome:
    if sys.platform != "linux":
        return Outcome(skipped="mounts are looked for as Linux has them")
    wrap = mounts.namespace() or []
    log = setting.folder / "places.log"
    ledger = {"SHIGOTO_LEDGER": str(setting.folder)}
    words = (setting.folder, "mounts" if wrap else "")
    me = "faults.experiments.e35_bad_places"
    outcome = run_program(me, *words, log=log, seconds=PATIENCE, wrap=wrap, environment=ledger)
    assert outcome is not None
    setting.say(f"places: {outcome.figures}")
    return outcome


class Places:
    """Tries one place after the other, and compares what is said with what should be."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.outcome = Outcome(figures={"places": {}})

    def folder(self) -> Path:
        """A new one."""
        self._number += 1
        folder = self._folder / f"place-{self._number}"
        folder.mkdir(mode=0o755)
        return folder

    def leave_out(self, place: str, why: str) -> None:
        """Say that this place cannot be made here."""
        self.outcome.left_out.append(f"{place}: {why}")

    def expect(self, place: str, expected: str, store: Path, said: str) -> None:
        """Compare; `expected` is how it begins."""
        self.outcome.n += 1
        said = said.replace(str(store), "STORE")
        self.outcome.figures["places"][place] = said.partition(",")[0].strip()
        if not said.startswith(expected):
            self.outcome.wrong.append(f"{place}: {said!r} should begin with {expected!r}")

    def expect_warning(self, place: str, kind: str, store: Path) -> None:
        """The doctor warns of it."""
        words = [sys.executable, "-m", "shigoto", "doctor", str(store)]
        said = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        if f"({kind})" not in said:
            self.outcome.wrong.append(f"{place}: the doctor does not warn of {kind}: {said}")


def attempt(store: Path) -> str:
    """Store a job there; tells what came of it."""
    app = app_of("cycle", f"sqlite:///{store}")
    try:
        app.tasks["plain"].enqueue()
    except ShigotoError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        app.close()
    return STORED


def feigned(places: Places) -> None:
    """Every kind that we refuse, as the table of mounts tells it."""
    for kind in sorted(file.NETWORK_FILE_SYSTEMS):
        folder = places.folder()
        table = folder.with_suffix(".mountinfo")
        table.write_text(
            f"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 0:5 / {folder} rw - {kind} server:/export rw\n"
        )
        file.file_system = partial(real_file_system, mountinfo=table)
        try:
            said = attempt(folder / "jobs.db")
        finally:
            file.file_system = real_file_system
        places.expect(f"{kind}, feigned", NETWORK.replace("KIND", kind), folder / "jobs.db", said)
        if [*folder.iterdir()]:
            places.outcome.wrong.append(f"{kind}, feigned: something was written: {[*folder.iterdir()]}")


def on_fuse(places: Places) -> None:
    """A real mount of a kind of the network, for who enqueues and for a worker."""
    folder = places.folder()
    store = folder / "jobs.db"
    worker = ["-m", "shigoto", "--app", "faults.apps.cycle:app", "worker", f"sqlite:///{store}"]
    try:
        with EmptyFolder(folder, FUSE_OF_THE_NETWORK) as fuse:
            said = _told_by_another([sys.executable, "-c", TRY, str(store)])
            worker_said = _told_by_another([sys.executable, *worker])
    except OSError as error:
        places.leave_out(FUSE_OF_THE_NETWORK, str(error))
        return
    expected = NETWORK.replace("KIND", FUSE_OF_THE_NETWORK)
    places.expect(FUSE_OF_THE_NETWORK, expected, store, said)
    if f"network file system ({FUSE_OF_THE_NETWORK})" not in worker_said:
        places.outcome.wrong.append(f"{FUSE_OF_THE_NETWORK}: the worker says {worker_said!r}")
    if fuse.refused:
        places.outcome.wrong.append(f"{FUSE_OF_THE_NETWORK}: something was tried there: {fuse.refused}")


TRY = "import sys; from pathlib import Path; from faults.experiments.e35_bad_places import attempt;"
TRY += "print(attempt(Path(sys.argv[1])))"


def _told_by_another(words: list[str]) -> str:
    """What a process says that opens the store; one that waits for the file system must not be this one."""
    try:
        ended = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_AFTER, check=False
        )
    except subprocess.TimeoutExpired:
        return "it hangs"
    return ended.stdout + ended.stderr


def on_overlay(places: Places) -> None:
    """A container's own layer can be used, and is warned of."""
    disk, folder = places.folder(), places.folder()
    why = mounts.mount("tmpfs", disk, "size=64m")
    for name in ("lower", "upper", "work"):
        (disk / name).mkdir()
    options = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
    why = why or mounts.mount("overlay", folder, options)
    if why:
        places.leave_out("overlay", why)
        return
    places.expect("overlay", STORED, folder / "jobs.db", attempt(folder / "jobs.db"))
    places.expect_warning("overlay", "overlay", folder / "jobs.db")


def on_what_is_read_only(places: Places) -> None:
    """A store that was there before, and one that should be made."""
    folder = places.folder()
    store = folder / "jobs.db"
    why = mounts.mount("tmpfs", folder, "size=64m")
    if why:
        places.leave_out("read-only", why)
        return
    places.expect("tmpfs", STORED, store, attempt(store))
    places.expect_warning("tmpfs", "tmpfs", store)
    why = mounts.remount(folder, "ro")
    if why:
        places.leave_out("read-only", why)
        return
    places.expect("read-only, an old store", UNWRITABLE, store, attempt(store))
    new = folder / "new.db"
    places.expect("read-only, a new store", UNWRITABLE, new, attempt(new))


def without_permission(places: Places) -> None:
    """Folders that we may not write to, or not even look into, and a file of somebody else."""
    folder = Path(tempfile.mkdtemp(prefix="shigoto-faults-"))
    try:
        folder.chmod(0o755)
        for name, mode, expected in (
            ("locked", 0o000, FORBIDDEN),
            ("unwritable", 0o555, UNWRITABLE),
            ("theirs", 0o755, UNWRITABLE),
        ):
            place = folder / name
            place.mkdir()
            store = place / "jobs.db"
            if name == "theirs":
                places.expect("its owner", STORED, store, attempt(store))
                store.chmod(0o444)
            place.chmod(mode)
            said = as_nobody(partial(attempt, store)) if os.geteuid() == 0 else attempt(store)
            place.chmod(0o755)
            if said is None:
                places.leave_out(f"permission, {name}", "we cannot become another user")
            else:
                places.expect(f"permission, {name}", expected, store, said)
    finally:
        shutil.rmtree(folder)


def as_nobody(action: Callable[[], str]) -> str | None:
    """What it says when it is done by a user who may do nothing; None if we cannot become one."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, action().encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else None


def main(folder: Path, may_mount: bool) -> None:
    """All places there can be here."""
    places = Places(folder)
    feigned(places)
    without_permission(places)
    for with_mounts in (on_fuse, on_overlay, on_what_is_read_only):
        if may_mount:
            with_mounts(places)
        else:
            places.leave_out(with_mounts.__name__, "no mounts of our own")
    tell(places.outcome)


EXPERIMENT = Experiment(id="E35", title="bad file systems", act=run)

if __name__ == "__main__":
    signal.alarm(int(PATIENCE))
    main(Path(sys.argv[1]), bool(sys.argv[2]))
