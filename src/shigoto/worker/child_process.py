"""A child process as its worker sees it, and the messages between the two.

    worker ──► child   StartChild    everything it must know, once
                       RunJob        run this job
                       Tell          somebody wants this job cancelled, or the worker is about to stop
                       Warn          the run has reached its soft limit
                       Halt          the run shall end now, and so it will be counted
                       Leave         there will be no more jobs
    child ──► worker   ChildReady    it can take a job
                       ChildUnfit    it never will, and why
                       RunBegan      the run begins; if it dies before, that is not the job's doing
                       RunNews       what the handler has said: progress, log lines
                       RunEnded      the run has ended so

Most messages name the job they are about: words and runs cross on their way, and a thread that a handler left behind
still speaks of its own job while the next one runs.

The end of a child shows in two ways. Mostly the socket ends with it. But a process that the child has started may hold
the socket open for longer, so the worker also looks (`look`) from time to time. What arrived before the end is always
read first: a run that had ended before the process died has ended.

Each child is the head of a process group of its own. So a handler that kills its group kills nobody else, and what a
handler has started goes with its child.

A handler in the worker's own process may close files that are not its own, those of the worker among them. That must
not keep the worker from seeing the end of its child.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from uuid import UUID

from msgspec import Struct

from shigoto.model.job import Lease
from shigoto.model.worker import Ending, LogTail, Settlement
from shigoto.observe.log import LogSetup
from shigoto.worker import process
from shigoto.worker.process import launch

PROGRAM = "shigoto.worker.child_main"
FIRST_LOOK, LAST_LOOK = 0.002, 0.25  # seconds between looks, once the socket has ended
MOST_CRASH_REPORT = 64 * 1024  # bytes
HERE = os.path.dirname(__file__)
LISTENER = " in _listen\n"
RAN_OUT = "Timeout ("  # what faulthandler writes down before it ends a process that has run out of time
RUNTIME = (f'File "{HERE}{os.sep}', 'File "<frozen runpy>"')
MEMORY = " The system does that when memory runs out; but people and programs can, too."


class StartChild(Struct, frozen=True, kw_only=True, tag=True):
    """Where the app is, on whose behalf jobs run, and how the log is written, if the worker knows."""

    source: process.Source
    worker: UUID
    log: LogSetup | None


class RunJob(Struct, frozen=True, tag=True):
    """Run this job; there is no other. After `within` seconds the child ends, whatever it is doing."""

    lease: Lease
    within: float | None = None


class Tell(Struct, frozen=True, kw_only=True, tag=True):
    """What the handler can see of its job's fate."""

    number: int
    token: int
    cancelled: bool = False
    stopping: bool = False


class Warn(Struct, frozen=True, kw_only=True, tag=True):
    """The run has reached its soft limit, which is said in these words."""

    number: int
    token: int
    text: str


class Halt(Struct, frozen=True, kw_only=True, tag=True):
    """The run shall end; if it gives in, as `wanted`."""

    number: int
    token: int
    wanted: Ending


class Leave(Struct, frozen=True, tag=True):
    """There will be no more jobs."""


class ChildReady(Struct, frozen=True, tag=True):
    """The child can take a job."""


class ChildUnfit(Struct, frozen=True, tag=True):
    """The child cannot run jobs of this app."""

    error: str


class RunBegan(Struct, frozen=True, tag=True):
    """The run begins."""


class RunNews(Struct, frozen=True, kw_only=True, tag=True):
    """What the handler has said; fields that are None are no news."""

    number: int
    token: int
    progress: float | None = None
    progress_text: str | None = None
    log: LogTail | None = None


class RunEnded(Struct, frozen=True, tag=True):
    """The run has ended."""

    settlement: Settlement


ChildOrder = StartChild | RunJob | Tell | Warn | Halt | Leave
ChildNews = ChildReady | ChildUnfit | RunBegan | RunNews | RunEnded


class ChildProcess:
    """Made on the event loop's thread, which must last as long as the child: see `die_with_parent`. May raise OSError.

    `hear` is called with what it says, and `ended` once, after its death; `code` is how it ended then.
    """

    def __init__(
        self,
        begin: StartChild,
        hear: Callable[["ChildProcess", ChildNews], None],
        ended: Callable[["ChildProcess"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._hear = hear
        self._ended = ended
        self._inbox = process.Inbox[ChildNews](ChildNews)
        self._outbox = bytearray()
        self._pause = FIRST_LOOK
        with ExitStack() as in_case:
            self._line, theirs = socket.socketpair()
            in_case.callback(self._line.close)
            self._line.setblocking(False)
            with theirs:
                self._crash_report = process.unnamed_file("shigoto-words")
                in_case.callback(os.close, self._crash_report)
                files = theirs.fileno(), self._crash_report
                arguments = files[0], os.getpid(), files[1]
                self._process = launch(
                    PROGRAM, arguments, files=files, own_group=True, folder=begin.source.folder
                )
            in_case.pop_all()
        self._loop.add_reader(self._line, self._read)
        self.code: int | None = None
        self.ready = False
        self.jobs = 0
        self.error: str | None = None
        self.send(begin)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, order: ChildOrder) -> None:
        """Send an order; never blocks. A child that is gone does not receive it."""
        self._outbox += process.encode(order)
        self._write()

    def dump(self) -> None:
        """Let the child write where it is, for `crash_report`; that takes a moment, whatever it is doing."""
        self._process.send_signal(signal.SIGUSR2)

    def kill(self) -> None:
        """Kill the child and what it has started. It has ended when `ended` is called."""
        if self.code is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            # A handler may have moved it to another group.
            self._process.kill()

    def look(self) -> None:
        """Look whether the process has ended, although its socket has not."""
        if self.code is None and self._process.poll() is not None:
            while self._read():
                pass
            self._reaped()

    def crash_report(self) -> str:
        return _about_handlers(self._whole_crash_report())

    def ran_out_of_time(self) -> bool:
        """Return True if it has ended by itself because its run took too long."""
        return self.code == 1 and self._whole_crash_report().startswith(RAN_OUT)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._crash_report)

    def how(self) -> str:
        """Describe its end in words that continue "the process …"."""
        code = self.code or 0
        return f"{process.how_it_ended(code)}.{MEMORY if code == -signal.SIGKILL else ''}"

    def _whole_crash_report(self) -> str:
        with suppress(OSError):
            return os.pread(self._crash_report, MOST_CRASH_REPORT, 0).decode("utf-8", "replace")
        return ""

    def _read(self) -> bool:
        """Read once; return True if there may be more."""
        if self._line.fileno() < 0:
            return False
        data = process.receive(self._line)
        if data is None:
            return False
        if data:
            try:
                for news in self._inbox.feed(data):
                    self._hear(self, news)
                return True
            except process.BrokenLine:
                # A handler has written to a file that is not its own: nothing this child says can be trusted.
                self.kill()
        self._loop.remove_reader(self._line)
        self._await_death()
        return False

    def _await_death(self) -> None:
        """Reap the process: its socket has ended, so the process has or soon will, or it cannot be reached any more."""
        if self.code is not None:
            return
        if self._process.poll() is not None:
            self._reaped()
        else:
            if self._pause > LAST_LOOK:
                self.kill()
            self._loop.call_later(self._pause, self._await_death)
            self._pause *= 2

    def _reaped(self) -> None:
        if self.code is not None:
            return
        # What it has started goes too. Nobody else can have its id as a group yet, a moment after its end.
        self.kill()
        self.code = self._process.returncode
        with suppress(OSError):
            self._loop.remove_reader(self._line)
            self._loop.remove_writer(self._line)
        with suppress(OSError):
            self._line.close()
        self._ended(self)

    def _write(self) -> None:
        if self._line.fileno() < 0:
            return
        try:
            sent = self._line.send(self._outbox) if self._outbox else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self._outbox)
        del self._outbox[:sent]
        if self._outbox:
            self._loop.add_writer(self._line, self._write)
        else:
            self._loop.remove_writer(self._line)


def _about_handlers(crash_report: str) -> str:
    """Return what faulthandler has written, without the listening thread and the frames of the runtime."""
    threads = [part for part in crash_report.split("\n\n") if LISTENER not in part]
    lines = "\n\n".join(threads).splitlines()
    return "\n".join(line for line in lines if not any(place in line for place in RUNTIME))
