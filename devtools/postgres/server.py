"""A PostgreSQL that is started, stopped, killed and frozen by whoever holds it."""

import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from devtools.postgres import guard_process
from devtools.postgres.data_folder import SUPERUSER, DataFolder, refuse_other_major
from devtools.postgres.install import Account, account_for, binaries, major_of
from shigoto.model.errors import StoreRefused, StoreUnavailable

HOST = "127.0.0.1"
START_WITHIN = 60.0  # recovery after a crash included
STOP_WITHIN = 30.0
LOOK_EVERY = 0.005
PORTS_TRIED = 5
PORT_TAKEN = "could not bind"

PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST_PORT, HIGHEST_PORT = 15_000, 32_767
RANDOM_PORTS = 100
PROC = Path("/proc")

Setting = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that a server ends with, if that is not the one that starts it.

    It holds the FIFO open for writing. When it ends, the guard process of the server reads the end of the FIFO.
    """

    pid: int
    fifo: Path


class Server:
    """One private server in a folder of its own; it ends with this process, however that ends.

    Without `major` it is of the version that has made the folder, or the newest that is found; `programs` names the
    folder of its programs, instead. `settings` are those of postgresql.conf, and `environment` is for the server alone.
    With an `owner` it ends with that process, and not with this one.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        major: int | None = None,
        programs: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, Setting] | None = None,
        environment: Mapping[str, str] | None = None,
        owner: Owner | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.major = major
        self.port = port
        self.settings = {
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "timezone": "UTC",
            **(settings or {}),
        }
        self._environment = {
            "PATH": os.defpath,
            "HOME": str(self.folder),
            "LC_ALL": "C",
            "TZ": "UTC",
            **(environment or {}),
        }
        self._owner = owner
        self._programs = programs
        self._keeps_port = port is not None
        self._place = DataFolder(self.folder)
        self._account: Account | None = None
        self._guard: subprocess.Popen[str] | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Server {self.folder} PostgreSQL {self.major or '?'} port={self.port or '?'}>"

    @property
    def address(self) -> str:
        """The URL of its first database, `postgres`, with the password in it."""
        return self.address_of("postgres")

    def address_of(self, database: str) -> str:
        """The URL of one of its databases, with the password in it."""
        if self.port is None:
            raise StoreUnavailable(
                f"The private PostgreSQL in {self.folder} has no address before its first start."
            )
        return (
            f"postgresql://{SUPERUSER}:{self._place.password()}@{HOST}:{self.port}/{quote(database, safe='')}"
        )

    @property
    def programs(self) -> Path:
        """The folder of its programs: psql, pg_dump and the others that came with it."""
        return self._prepare().programs

    @property
    def running(self) -> bool:
        """Whether it runs, frozen or not."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the server; all its other processes are children of this one."""
        if not (self.running and self._pid):
            raise StoreUnavailable(f"The private PostgreSQL in {self.folder} does not run.")
        return self._pid

    def processes(self) -> list[int]:
        """The process ids of the server, its own first."""
        return [self.pid, *children_of(self.pid)]

    def log_tail(self) -> str:
        """The last that it has written into its log, for error messages."""
        return self._place.log_since(0)

    def prepare(self) -> None:
        """Make its folder and its data, unless they are there; `start` does so too."""
        self._prepare()

    def start(self) -> None:
        """Start it, and wait until it takes connections; nothing happens if it runs already."""
        if self.running:
            return
        account, said = self._prepare(), ""
        for _ in range(PORTS_TRIED):
            if not self._keeps_port:
                self.port = free_port()
            position = self._place.log_size()
            self._launch(account)
            if self._comes_up():
                # Whoever has its address shall find it there again.
                self._keeps_port = True
                return
            said = self._place.log_since(position)
            if self._keeps_port or PORT_TAKEN not in said:
                break
        raise StoreUnavailable(
            f"The private PostgreSQL in {self.folder} does not start on port {self.port}. It said:\n{said}"
        )

    def stop(self) -> None:
        """Let it end in order, without waiting for its clients; nothing happens if it does not run."""
        if self._has_begun:
            self.thaw()
            self._signal(self._pid, signal.SIGINT)
            if not self._ends_within(STOP_WITHIN):
                self.kill()
        self._forget()

    def kill(self) -> None:
        """Kill it as a crash of the machine would, and wait until all of its processes are gone."""
        if self._has_begun:
            # Once it stands still it starts no more of them, and the list is complete.
            self._signal(self._pid, signal.SIGSTOP)
            members = self.processes()
            self._signal(self._pid, signal.SIGKILL)
            for member in members[1:]:
                self._signal(member, signal.SIGCONT)
            if not self._ends_within(STOP_WITHIN):
                for member in members:
                    self._signal(member, signal.SIGKILL)
            wait_until(lambda: not any(is_alive(member) for member in members), STOP_WITHIN)
        self._forget()

    def restart(self) -> None:
        """Stop it in order, and start it again at the same address."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop all of its processes where they stand; connections stay open, and nothing answers."""
        self._signal(self.pid, signal.SIGSTOP)
        wait_until(lambda: stands_still(self._pid), STOP_WITHIN)
        members = children_of(self._pid)
        for member in members:
            self._signal(member, signal.SIGSTOP)
        wait_until(lambda: all(stands_still(member) for member in members), STOP_WITHIN)

    def thaw(self) -> None:
        """Let all of its processes go on."""
        for member in reversed(self.processes()):
            self._signal(member, signal.SIGCONT)

    def leave(self) -> int:
        """Leave the running server to its owner, and return the process id of the guard process.

        The guard process ends after the last process of the server. This object does not know the server any more.
        """
        assert self._owner is not None, "without an owner, nothing would end the server"
        guard, self._guard = self._guard, None
        assert guard is not None
        assert guard.stdout is not None
        guard.stdout.close()
        guard.returncode = 0  # else subprocess warns that nothing waits for it
        return guard.pid

    def _prepare(self) -> Account:
        """Everything that a start needs; most of it is found ready at every start but the first."""
        if os.name != "posix":
            raise StoreRefused(
                "A private PostgreSQL runs on Linux and macOS only. Use one that is installed."
            )
        if self._account is None:
            there = self._place.major()
            self.major, programs = self._find_programs(there)
            if there is not None and there != self.major:
                raise refuse_other_major(self._place, self.major, there)
            self._place.prepare()
            self._account = account_for(programs, self.folder)
        self._place.clear_traces()
        if self._place.major() is None:
            # Whoever gives up durability for speed wants it here too.
            unsafe = str(self.settings.get("fsync", "on")).lower() in ("off", "false", "0", "no")
            self._place.initialise(self._account, self._environment, ["--no-sync"] if unsafe else [])
        return self._account

    def _find_programs(self, there: int | None) -> tuple[int, Path]:
        if self._programs is None:
            return binaries(there if self.major is None else self.major)
        major = major_of(self._programs)
        if major is None or self.major not in (None, major):
            what = (
                "no PostgreSQL that runs here" if major is None else f"PostgreSQL {major}, not {self.major}"
            )
            raise StoreUnavailable(f"In {self._programs} there is {what}.")
        return major, self._programs

    def _launch(self, account: Account) -> None:
        words = account.command("postgres", "-D", self._place.data, "-p", str(self.port))
        for name, value in self.settings.items():
            words += ["-c", f"{name}={value}"]
        whose = "-" if account.user is None else f"{account.user}:{account.group}"
        parent = os.getpid() if self._owner is None else self._owner.pid
        with self._place.log.open("ab") as log, ExitStack() as closing:
            stdin = subprocess.PIPE
            if self._owner is not None:
                # Without waiting: if the owner has ended already, the guard process is to notice, and not this one.
                stdin = os.open(self._owner.fifo, os.O_RDONLY | os.O_NONBLOCK)
                closing.callback(os.close, stdin)
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard_process.__file__, str(parent), whose, *words],
                cwd=self.folder,
                env=self._environment,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # A Ctrl-C in the terminal is not meant for it.
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        self._pid = int(self._guard.stdout.readline() or 0)

    def _comes_up(self) -> bool:
        """Whether it takes connections before it ends, or its time is over."""
        end = time.monotonic() + START_WITHIN
        while not self._place.is_ready(self._pid):
            if self._ends_within(LOOK_EVERY):
                self._forget()
                return False
            if time.monotonic() > end:
                self.kill()
                return False
        return True

    @property
    def _has_begun(self) -> bool:
        """Whether there is somebody to signal. If not, because the start was interrupted before the guard could say
        who that is, then the guard ends it, as soon as it is left alone."""
        return self.running and self._pid > 0

    def _ends_within(self, seconds: float) -> bool:
        """Whether all of its processes have ended; the guard's output ends with the last of them."""
        assert self._guard is not None
        assert self._guard.stdout is not None
        output = select.poll()
        output.register(self._guard.stdout, select.POLLIN)
        return bool(output.poll(seconds * 1_000))

    def _forget(self) -> None:
        if self._guard is not None:
            for end in (self._guard.stdin, self._guard.stdout):
                if end is not None:
                    end.close()
            self._guard.wait()
        self._guard = None
        self._pid = 0

    @staticmethod
    def _signal(pid: int, number: signal.Signals) -> None:
        assert pid > 0, "0 and below are whole groups of processes, and the first is our own"
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    """Look until it holds, at most for so long."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(LOOK_EVERY)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, outside of the range that the system hands out to clients.

    Inside of it some other connection could take the port while the server is down; and a client that tries again and
    again could even be connected with itself.
    """
    below = HIGHEST_PORT
    with suppress(OSError, ValueError, IndexError):
        below = min(below, int(PORT_RANGE.read_text().split()[0]) - 1)
    for _ in range(RANDOM_PORTS if below > LOWEST_PORT else 0):
        port = random.randint(LOWEST_PORT, below)
        if is_free(port):
            return port
    with socket.socket() as any_free:
        any_free.bind(("127.0.0.1", 0))
        return int(any_free.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server does it: what is left of closed connections is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def children_of(parent: int) -> list[int]:
    """Those that this process has started itself; a server starts all of its own itself."""
    if not (PROC / "self" / "stat").exists():
        return children_told_by_ps(parent)
    return [
        int(entry.name)
        for entry in PROC.iterdir()
        if entry.name.isdigit() and (fields := status_of(int(entry.name))) and int(fields[1]) == parent
    ]


def stands_still(pid: int) -> bool:
    """Whether it is stopped, or gone; where nobody can say, yes."""
    fields = status_of(pid)
    return not fields or fields[0] in "TtZX"


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    fields = status_of(pid)
    return not fields or fields[0] not in "ZX"


def status_of(pid: int) -> list[str]:
    """State, parent and so on, as proc(5) has them after the name; nothing without such a process, or without /proc."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return []


def children_told_by_ps(parent: int) -> list[int]:
    told = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = (line.split() for line in told.splitlines())
    return [int(pid) for pid, its_parent in pairs if int(its_parent) == parent]
