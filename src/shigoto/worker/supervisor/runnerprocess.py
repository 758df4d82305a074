"""Runner processes as their supervisor sees them: started, listened to, ended, and reaped.

A runner is reaped in one place only, by `Reaper`, which asks for every child there is: as process 1, or where Linux
lets us adopt them, we also get processes that others have left behind.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from shigoto.worker.process.slate import Slate, unnamed_file
from shigoto.worker.process.wire import BrokenWire, Inbox, encode
from shigoto.worker.supervisor.messages import Ended, Failed, Files, Hello, News, Ready, Start, Stop

logger = logging.getLogger("shigoto.worker")

READ = 65_536
MOST_WORDS = 65_536  # bytes of what a crash has left behind

Heard = Callable[["RunnerProcess", News], None]


class RunnerProcess:
    """One runner process, started when this is made. For the main thread and its event loop.

    The parent-death signal belongs to the thread that starts a process, so it must be one that does not end.
    `killed` says that we have killed it, `retiring` that we have asked it to end and will replace it.
    """

    def __init__(self, start: Start, heard: Heard) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._slate = Slate.create(start.slate)
        self._words = unnamed_file("shigoto-words")
        self._inbox = Inbox[News](News)
        self._line, theirs = socket.socketpair()
        assert self._slate.fd is not None
        try:
            with theirs:
                self._process = _launch(theirs.fileno(), self._slate.fd, self._words)
        except OSError:
            self._line.close()
            self.forget()
            raise
        self.pid = self._process.pid
        self.hello: Hello | None = None
        self.ready_at: float | None = None
        self.failed: Failed | None = None
        self.ended: Ended | None = None
        self.killed = False
        self.retiring = False
        self.dead: asyncio.Future[int] = self._loop.create_future()
        self._ready = asyncio.Event()
        self._line.sendall(encode(start))
        self._line.setblocking(False)
        self._loop.add_reader(self._line, self._read)
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        """Whether it has not been reaped."""
        return not self.dead.done()

    async def ready(self) -> Hello:
        """Wait until it is ready, and say who it is."""
        await self._ready.wait()
        assert self.hello is not None
        return self.hello

    def ready_for(self) -> float:
        """How many seconds it has been ready, 0 if it never was."""
        return 0.0 if self.ready_at is None else self._loop.time() - self.ready_at

    def stop(self, level: int) -> None:
        """Ask it to stop, or to hurry. One that has not said hello holds nothing, and is not worth waiting for."""
        if self.hello is None:
            self.kill()
        else:
            # A line that is broken, or full because nobody reads: then it is killed in time.
            with suppress(OSError):
                self._line.send(encode(Stop(level)))

    def retire(self, patience: float) -> None:
        """Ask it to stop, and kill it if it has not ended after so many seconds."""
        self.retiring = True
        self.stop(1)
        if self._deadline is None:
            self._deadline = self._loop.call_later(patience, self.kill)

    def kill(self) -> None:
        """Kill it, unless it is dead."""
        if self.alive:
            self.killed = True
            os.kill(self.pid, signal.SIGKILL)

    def reaped(self, code: int) -> None:
        """It is dead, and this is its exit code, or the signal that killed it as a negative number."""
        self._process.returncode = code
        # Its last words may still lie in the line. They have an end: a child that it has forked holds the other
        # side open, perhaps, but nobody writes to it any more.
        self._read()
        self._loop.remove_reader(self._line)
        self._line.close()
        if self._deadline is not None:
            self._deadline.cancel()
        self.dead.set_result(code)

    def inside(self) -> list[int]:
        """The numbers of the jobs that run in it, or ran in it when it died."""
        return list(self._slate.running())

    def in_children(self) -> list[int]:
        """The same of the jobs in processes of their own, which die with it."""
        return list(self._slate.in_children())

    def words(self) -> str:
        """What it has written about its own crash."""
        return os.pread(self._words, MOST_WORDS, 0).decode("utf-8", "replace")

    def forget(self) -> None:
        """Release what was kept of it, once it is buried."""
        self._slate.close()
        os.close(self._words)

    def _read(self) -> None:
        while True:
            try:
                some = self._line.recv(READ)
            except BlockingIOError:
                return
            except OSError:
                some = b""
            if not some:
                # The end, or nearly: the process itself is what we wait for.
                self._loop.remove_reader(self._line)
                return
            try:
                told = self._inbox.feed(some)
            except BrokenWire:
                logger.exception("Runner process %d does not speak our language, and is replaced", self.pid)
                self.retiring = True
                self.kill()
                return
            for news in told:
                self._note(news)

    def _note(self, news: News) -> None:
        match news:
            case Hello():
                self.hello = news
            case Ready():
                self.ready_at = self._loop.time()
                self._ready.set()
            case Failed():
                self.failed = news
            case Ended():
                self.ended = news
            case Files():
                pass
        self._heard(self, news)


class Reaper:
    """Reaps every child process that has ended, whoever its parent was, and tells of those that are expected."""

    def __init__(self) -> None:
        self._expected: dict[int, Callable[[int], None]] = {}

    def expect(self, runner: RunnerProcess) -> None:
        """Tell this runner when it is dead."""
        self._expected[runner.pid] = runner.reaped

    def reap(self) -> None:
        """Reap what there is to reap. Signals of several deaths may arrive as one."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                told = self._expected.pop(pid, None)
                if told is not None:
                    told(os.waitstatus_to_exitcode(status))


def _launch(line: int, slate: int, words: int) -> "subprocess.Popen[bytes]":
    files = (line, slate, words)
    # Modules in the working directory must not stand before those of the same name that we need; the app finds them
    # later.
    safely = [] if _is_in_working_directory() else ["-P"]
    command = [sys.executable, *safely, "-m", "shigoto.worker.supervisor.program", *map(str, files)]
    with _interrupts_held_back():
        return subprocess.Popen(command, pass_fds=files, stdin=subprocess.DEVNULL)


def _is_in_working_directory() -> bool:
    """Whether this very package is found there, and perhaps nowhere else."""
    with suppress(OSError):  # somebody may have removed that folder
        return Path(__file__).is_relative_to(Path.cwd() / "shigoto")
    return False


@contextmanager
def _interrupts_held_back() -> Generator[None]:
    """Let a new process begin with Ctrl-C held back, until it is able to leave that to us."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
