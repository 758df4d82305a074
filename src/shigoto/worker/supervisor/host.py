"""The machine around a supervisor: its processes, its service manager, its ready file and its standard input.

What Linux tells of processes is asked of /proc; elsewhere these functions know nothing and do nothing.

The files of the user's code are looked at again and again: half a second is soon enough for people, and asking the
system to be told would need another way on every platform. A new file beside a known one is a change, too: it may be
the module that was missing.
"""

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

SET_CHILD_SUBREAPER = 36  # of prctl
logger = logging.getLogger("shigoto.worker")
END_WITHIN = 1.0  # seconds from a kill to the end
LOOK_EVERY = 0.005  # seconds
OFTEN = 3  # words within the time in which the manager wants one
PATIENCE = 1.0  # seconds, for what is said only once
EOF_LOOK = 65_536  # bytes; whatever is written to standard input is thrown away
FILES_LOOK_EVERY = 0.5  # seconds
Snapshot = dict[Path, tuple[int, int]]


def is_paused(pid: int) -> bool:
    """Return True if a process is stopped by a signal, and does nothing until it is continued."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_bytes()
        # The name comes before it, in parentheses, and may hold anything.
        return status[status.rindex(b")") + 2 :].startswith(b"T")
    return False


class Process(Struct, frozen=True):
    """A process as the system lists it; one that is not alive only waits to be reaped."""

    parent: int
    group: int
    alive: bool


def processes() -> dict[int, Process]:
    found: dict[int, Process] = {}
    for name in os.listdir("/proc") if os.path.exists("/proc/self/stat") else ():
        if name.isdecimal():
            with suppress(OSError):
                status = Path(f"/proc/{name}/stat").read_bytes()
                state, parent, group = status[status.rindex(b")") + 2 :].split(maxsplit=3)[:3]
                found[int(name)] = Process(int(parent), int(group), state not in (b"Z", b"X"))
    return found


def memory_of(pid: int) -> int | None:
    """The bytes of memory that a process has for itself, None if that cannot be known.

    Pages of files that it reads are not counted: the system takes those back when it needs them.
    """
    with suppress(OSError):
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_bytes().split()
        return (int(resident) - int(shared)) * resource.getpagesize()
    return None


@contextmanager
def orphans_adopted() -> Generator[None]:
    """Let descendants of this process become its children when their own parents die."""
    _adopt(1)
    try:
        yield
    finally:
        _adopt(0)


def _adopt(yes: int) -> None:
    if os.path.exists("/proc/self/stat"):
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, yes, 0, 0, 0)


class Orphans:
    """Those who descend from this process, in its group, but not from any child of ours that we know.

    Handlers have started them, and nobody looks after them any more, because their runner process is dead.

    Linux lets a supervisor adopt such processes. Those in its own process group are still at work for a job that
    somebody else gets soon, or for nobody: they are killed. One that has a session or a group of its own has left on
    purpose. Whoever was there before, when a shell started it and then became this process, is not touched, either.
    """

    def __init__(self) -> None:
        self._before = frozenset(pid for pid, process in processes().items() if process.parent == os.getpid())

    async def end(self, known: Collection[int]) -> None:
        """Kill them, and wait until none is left, for 1 s at most."""
        left = await until_gone(lambda: self._kill(known))
        if left:
            logger.warning("Processes that handlers have left behind cannot be ended: %s", sorted(left))

    def kill_all(self) -> None:
        """Kill all that descend from this process, also the children that it knows. From any thread."""
        with suppress(OSError):
            self._kill(())

    def _kill(self, known: Collection[int]) -> set[int]:
        left = self._find(known)
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return left

    def _find(self, known: Collection[int]) -> set[int]:
        every, own, group = processes(), os.getpid(), os.getpgrp()

        def is_orphan(pid: int) -> bool:
            seen: set[int] = set()
            while pid in every and pid not in seen:
                if every[pid].parent == own:
                    return pid not in known and pid not in self._before
                seen.add(pid)
                pid = every[pid].parent
            return False

        return {
            pid
            for pid, process in every.items()
            if process.group == group and process.alive and is_orphan(pid)
        }


async def until_gone(kill: Callable[[], Collection[int]]) -> Collection[int]:
    """Kill again and again until `kill` finds no process, for 1 s at most; return what it still finds then."""
    time = asyncio.get_running_loop().time
    deadline = time() + END_WITHIN
    while left := kill():
        if time() > deadline:
            return left
        await asyncio.sleep(LOOK_EVERY)
    return ()


class ServiceManager:
    """The one that watches over us: systemd, with `Type=notify` and `WatchdogSec=`; nobody, perhaps, and then nothing
    happens here.

    It asks by the environment: NOTIFY_SOCKET names a socket, WATCHDOG_USEC says how often it wants to hear that all is
    well. Both are taken out of the environment, as they are not for the processes that start here.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        # The socket may be inherited from a manager whose watchdog means another process.
        meant = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        every = environment.pop("WATCHDOG_USEC", "")
        self._deaf = False
        self._every = int(every) / 1_000_000 if meant and every.isdecimal() else 0.0

    def ready(self, status: str) -> None:
        """Report that everything is at work; `status` says what that is."""
        self._tell("READY=1", f"STATUS={status}", patience=PATIENCE)

    def stopping(self) -> None:
        self._tell("STOPPING=1", "STATUS=Stopping", patience=PATIENCE)

    async def run(self) -> None:
        while self._every > 0 and self._address:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._every / OFTEN)

    def _tell(self, *words: str, patience: float = 0.0) -> None:
        if not self._address:
            return
        # A name that begins with @ is one that no file has; the system writes that as a zero byte.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.settimeout(patience)
                line.sendto("\n".join(words).encode(), address)
        except OSError as error:
            if not self._deaf:
                logger.warning(
                    "The service manager cannot be told %s: %s. It may think that this service hangs, and end it.",
                    words[0],
                    error,
                )
            self._deaf = True
        else:
            self._deaf = False


class ReadyFile:
    """The file that is there while a worker is ready: for `--ready-file`.

    Is not there before `__enter__`, nor after `__exit__`: one that a killed supervisor has left would be a lie.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def __enter__(self) -> "ReadyFile":
        self.hide()
        return self

    def __exit__(self, *_: object) -> None:
        self.hide()

    def show(self) -> None:
        """Write the file, with the process id."""
        if self._path is not None:
            try:
                self._path.write_text(f"{os.getpid()}\n")
            except OSError:
                logger.exception("The ready file cannot be written; the worker goes on without it")

    def hide(self) -> None:
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()


def call_at_eof(loop: AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call `stop` when standard input, or the process that holds it, ends: for `--stop-on-eof`."""
    stdin = sys.stdin.fileno()

    def look() -> None:
        with suppress(OSError):
            if os.read(stdin, EOF_LOOK):
                return
        loop.remove_reader(stdin)
        stop()

    loop.add_reader(stdin, look)


def own_files(error: BaseException | None = None) -> set[Path]:
    """The files in the working directory and below whose code this process has loaded, or tried to.

    What is installed is left out, even if it is installed there.
    """
    here = Path.cwd()
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()} - {here, *here.parents}
    paths = {Path(name).absolute() for name in (*_loaded(), *_concerned(error)) if name}
    return {
        path
        for path in paths
        if path.is_relative_to(here) and not any(path.is_relative_to(prefix) for prefix in installed)
    }


def _loaded() -> Iterator[str]:
    for module in list(sys.modules.values()):
        name: object = getattr(module, "__file__", None)
        if isinstance(name, str):
            yield name


def _concerned(error: BaseException | None) -> Iterator[str]:
    """Return the files that an error passed through, and the one that has no valid syntax."""
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            yield error.filename
        trace = error.__traceback__
        while trace is not None:
            yield trace.tb_frame.f_code.co_filename
            trace = trace.tb_next
        error = error.__cause__ or error.__context__


class Watch:
    """Looks at files and at their neighbours. `changed` is called after a change, once there is no further one."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._files: set[Path] = set()
        self._folders = {Path.cwd()}
        self._seen = self._look()

    def add(self, paths: Iterable[bytes]) -> None:
        new = {Path(os.fsdecode(path)) for path in paths} - self._files
        if new:
            self._files |= new
            self._folders |= {path.parent for path in new}
            # As they are now: whoever has loaded them did so a moment ago.
            self._seen = self._look() | self._seen

    async def run(self) -> None:
        while True:
            await asyncio.sleep(FILES_LOOK_EVERY)
            if self._look() != self._seen:
                await self._settled()
                self._changed()

    async def _settled(self) -> None:
        """Wait until no further file changes: an editor or a version control tool may write many."""
        while (now := self._look()) != self._seen:
            self._seen = now
            await asyncio.sleep(FILES_LOOK_EVERY / 5)

    def _look(self) -> Snapshot:
        neighbours = {path for folder in self._folders for path in _modules_in(folder)}
        return {path: stamp for path in self._files | neighbours if (stamp := _stamp(path)) is not None}


def _modules_in(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.name.endswith(".py")]
    except OSError:
        return []


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
