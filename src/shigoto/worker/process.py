"""The means by which the processes of one worker start, find the app, exchange messages and end together.

All processes of a worker import this file, so it imports nothing that only one of them needs.
"""

import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from struct import Struct as Layout
from typing import Any, Generic, TypeVar

from msgspec import Struct, msgpack, structs

from shigoto.app import Shigoto, load_app, told_in_one_line
from shigoto.model.errors import DeclarationError, Unsupported

NOT_IMPORTABLE = frozenset({"__main__", "__mp_main__"})
PACKAGE = __name__.partition(".")[0]
PARENT_GONE = 71  # the exit code of a process whose parent is gone
ADDED_BADNESS = 100  # what is added to the badness by which Linux chooses whom to kill when memory runs out
WORST_BADNESS = 1_000
_PR_SET_PDEATHSIG = 1
PORTION = 262_144  # bytes to read at once
M = TypeVar("M", bound=Struct)
LONGEST_MESSAGE = 64 * 1024 * 1024  # bytes of one message; a job and its result are a few MiB at most
_LENGTH = Layout(">I")
_ENCODER = msgpack.Encoder()
WIDTH = 8  # bytes of one number


class Source(Struct, frozen=True, kw_only=True):
    """Where the app is: `reference` is module:attr, `url` its store if not the app's own, `path` where to look for
    modules, and `modules` those that declare tasks of the app, in case it does not import them by itself. It is
    imported in `folder`, or wherever the process happens to be."""

    reference: str
    url: str | None = None
    path: tuple[bytes, ...] = ()
    modules: tuple[str, ...] = ()
    folder: bytes | None = None

    @classmethod
    def of(cls, app: Shigoto) -> "Source | None":
        """Return the source of an app that is in a module, under any name; None if it is in none."""
        reference = _reference(app)
        return None if reference is None else cls(reference=reference, url=app.url, path=search_path())

    def with_modules_of(self, app: Shigoto) -> "Source":
        """Return the same with all modules that declare tasks of this app."""
        modules = {task.fn.__module__: None for task in app.tasks.values()}
        return structs.replace(self, modules=tuple(name for name in modules if name not in NOT_IMPORTABLE))

    def settled(self, app: Shigoto) -> "Source":
        """The same with the very store that this app uses, and the folder we are in if none was named.

        A handler may go to another folder, and then the app's own address may mean another store.
        """
        return structs.replace(self, url=app.engine.address, folder=self.folder or folder_here())

    def load(self) -> Shigoto:
        """Return the app, with its tasks checked. Raises DeclarationError."""
        if self.path:
            sys.path[:] = [os.fsdecode(entry) for entry in self.path]
        app = load_app(self.reference)
        if self.url is not None and app.url != self.url:
            _choose(app, self.url)
        for module in self.modules:
            with told_in_one_line(module):
                __import__(module)
        with told_in_one_line(self.reference):
            app.check()
        return app


def search_path() -> tuple[bytes, ...]:
    return tuple(os.fsencode(entry or os.getcwd()) for entry in sys.path)


def folder_here() -> bytes | None:
    """Return the working directory; None if it was removed."""
    with suppress(OSError):
        return os.getcwdb()
    return None


def _choose(app: Shigoto, url: str) -> None:
    """Use this store. An app that has opened one in its module may only have opened this one."""
    try:
        app.url = url
    except DeclarationError:
        with suppress(Unsupported):
            if app.engine.address == url:
                return
        raise


def _reference(app: Shigoto) -> str | None:
    for name, module in list(sys.modules.items()):
        if name not in NOT_IMPORTABLE:
            for attribute, value in list(getattr(module, "__dict__", {}).items()):
                if value is app:
                    return f"{name}:{attribute}"
    return None


def launch(
    module: str,
    arguments: Sequence[int],
    *,
    files: Sequence[int],
    own_group: bool,
    folder: bytes | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a module of this package as a program, which gets these open files, in this folder if it is there.

    May raise OSError.
    """
    if folder is not None and not os.path.isdir(folder):
        folder = None
    return subprocess.Popen(
        command(module, arguments, folder),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        pass_fds=files,
        process_group=0 if own_group else None,
    )


def command(module: str, arguments: Sequence[int], folder: bytes | None = None) -> list[str]:
    """The words that start it.

    Modules in the working directory must not stand before those of the same name that we need, and the app finds them
    later: -P. But if this package itself is found there, it may be nowhere else.
    """
    safely = [] if _is_in(folder) else ["-P"]
    return [sys.executable, *safely, "-m", module, *map(str, arguments)]


@contextmanager
def interrupts_held_back() -> Generator[None]:
    """Start processes in this block with Ctrl-C blocked, until they can leave it to their parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def how_it_ended(code: int) -> str:
    """Describe an exit code as `subprocess` returns it, in words that continue "the process …"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _is_in(folder: bytes | None) -> bool:
    with suppress(OSError):  # somebody may have removed the folder we are in
        here = Path.cwd() if folder is None else Path(os.fsdecode(folder))
        return Path(__file__).is_relative_to(here / PACKAGE)
    return False


def die_with_parent(parent: int) -> None:
    """Be killed as soon as the parent, which has this process id, is gone; at once, if it is gone already.

    The parent-death signal belongs to the *thread* that started the process: when that thread ends, the process is
    killed, even if its parent lives on. So children are started only from a thread that lasts, the one of the event
    loop. Linux alone has this signal; everywhere a process also watches the socket to its parent, which ends with it.
    The signal is for the case that native code keeps the watching thread from running.
    """
    if sys.platform == "linux":
        import ctypes  # a worker in a program of its own never needs it

        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have died before the kernel knew of our wish.
    if os.getppid() != parent:
        os._exit(PARENT_GONE)


def prefer_oom_kill() -> None:
    """When memory runs out, be killed before the parent, which shall live and tell of it; where Linux chooses.

    Whatever this process starts inherits that, and must not add to it: among processes that run jobs the largest shall
    go. A small one that offers itself first dies for the greed of others, again and again.
    """
    badness = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        badness.write_text(str(min(WORST_BADNESS, int(badness.read_text()) + ADDED_BADNESS)))


def receive(line: socket.socket) -> bytes | None:
    """What has arrived: None if nothing has, on a socket that does not block, and no bytes at all at the end, or after
    an error."""
    try:
        return line.recv(PORTION)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class BrokenLine(Exception):
    """What arrived was never sent by us: somebody else has written to the stream."""


def encode(message: Struct) -> bytes:
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


class Inbox(Generic[M]):
    """Puts messages together from what arrives; `kinds` is the union of tagged structs that may come.

    Nothing here touches a socket. The owner of one writes what `encode` returns, in one piece, and hands whatever
    arrives to an inbox, in any pieces.
    """

    def __init__(self, kinds: Any) -> None:
        self._decoder: msgpack.Decoder[M] = msgpack.Decoder(kinds)
        self._data = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """Return the messages that are complete now, in their order. Raises BrokenLine."""
        self._data += data
        messages: list[M] = []
        at = 0
        while len(self._data) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data, at)
            if length > LONGEST_MESSAGE:
                raise BrokenLine(f"a message of {length} bytes was announced")
            end = at + _LENGTH.size + length
            if len(self._data) < end:
                break
            messages.append(self._decode(bytes(self._data[at + _LENGTH.size : end])))
            at = end
        del self._data[:at]
        return messages

    def _decode(self, body: bytes) -> M:
        try:
            return self._decoder.decode(body)
        except Exception as error:
            raise BrokenLine(str(error)) from error


class WorkerFlag(IntEnum):
    """LEAVING: about to leave the store. OVERDUE: ended by its own watchdog, and nothing in it has crashed. CYCLED: has
    finished a claim cycle, and when, in milliseconds of `lease_clock`."""

    LEAVING = 0
    OVERDUE = 1
    CYCLED = 2


class RunningJobs:
    """The jobs that a worker runs, readable after its death: `size` places in memory that its supervisor shares.

    The number of a job is written to `numbers[index]` before its handler starts, and zero when it has ended: two stores
    of eight bytes, 30 ns each. A job in a child process is written with a minus, beside the id of that process
    (`pids[index]`, written first): the death of the worker is not that job's doing, but before the job may run again
    the process must be dead. Only the one who runs a job writes to its place.

        numbers 0  42  0  0  17  0   -23  0 …        in here: 42 and 17; in a child: 23
        pids    0   0  0  0   0  0  4711  0 …        which is process 4711
        flags   0   1  86400000                      what the worker says of its own end, and when it last claimed

    Flags are for what an exit code cannot prove, since any handler can end its process with any code; and for what
    must be seen from outside even if the worker is too busy to say it.
    """

    def __init__(
        self, numbers: memoryview, *, fd: int | None = None, memory: mmap.mmap | None = None
    ) -> None:
        every: memoryview[int] = numbers.cast("q")
        self.size = (len(every) - len(WorkerFlag)) // 2
        self.numbers = every[: self.size]
        self.pids = every[self.size : 2 * self.size]
        self._flags = every[2 * self.size :]
        self.fd = fd
        self._memory = memory

    @classmethod
    def create(cls, size: int) -> "RunningJobs":
        """Create memory to be shared: another process attaches to its `fd`."""
        fd = unnamed_file("shigoto-running-jobs")
        # Written, not only made longer: a place that the disk has no room for would kill whoever writes there.
        os.write(fd, bytes(_length(size)))
        return cls.attach(fd, size)

    @classmethod
    def attach(cls, fd: int, size: int) -> "RunningJobs":
        """Map the memory that another process has created, by the open file that it has passed on."""
        memory = mmap.mmap(fd, _length(size))
        return cls(memoryview(memory), fd=fd, memory=memory)

    @classmethod
    def private(cls, size: int) -> "RunningJobs":
        """Return memory that no other process can read."""
        return cls(memoryview(bytearray(_length(size))))

    def running(self) -> list[int]:
        return [number for number in self.numbers if number > 0]

    def in_children(self) -> list[int]:
        return [-number for number in self.numbers if number < 0]

    def children(self) -> list[int]:
        """Return the ids of the child processes in which jobs run; each is also that of a process group."""
        return [pid for number, pid in zip(self.numbers, self.pids, strict=True) if number < 0]

    def raise_flag(self, flag: WorkerFlag, value: int = 1) -> None:
        """Set a flag, for good."""
        self._flags[flag] = value

    def has(self, flag: WorkerFlag) -> bool:
        return bool(self._flags[flag])

    def cycled_at(self) -> float | None:
        """Return when the worker finished its newest claim cycle, in seconds of `lease_clock`; None if it never has."""
        return self._flags[WorkerFlag.CYCLED] / 1000 or None

    def close(self) -> None:
        """Close the open file; the memory stays as long as it is mapped."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def unnamed_file(label: str) -> int:
    """Open a file without a name, in memory where the system has such files; `label` is shown to people."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(label)
    from tempfile import TemporaryFile

    with TemporaryFile() as file:
        return os.dup(file.fileno())


def _length(size: int) -> int:
    return (2 * size + len(WorkerFlag)) * WIDTH
