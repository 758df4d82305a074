"""Runner processes as their supervisor sees them, and the messages between the two.

    supervisor ──► runner   Start         everything it must know, once
                            Recycle       claim no more, and end when nothing runs any more
                            Stop          stop (1), or hurry (2)
    runner ──► supervisor   RunnerHello   who it is and where its jobs are; from now on it may hold some
                            RunnerReady   it is announced and begins to claim
                            Files         which of the user's files it has loaded, whenever that changes
                            Counted       what it has counted since it last said so, for the metrics
                            StartFailed   it could not begin
                            Finishing     it claims no more, and ends when nothing runs any more
                            RunnerEnded   it has stopped, and this is how

A runner is reaped in one place only, by `Reaper`, which asks for every child there is: as process 1, or where Linux
lets a supervisor adopt them, it also gets processes that others have left behind.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Literal
from uuid import UUID

from msgspec import Struct

from shigoto.model.time import Millis
from shigoto.model.worker import CONCURRENCY, LEASE, POLL, STOP_TIMEOUT
from shigoto.observe.metrics import Sample
from shigoto.observe.settings import Sentry
from shigoto.worker.process import (
    BrokenLine,
    Inbox,
    RunningJobs,
    Source,
    encode,
    interrupts_held_back,
    launch,
    receive,
    unnamed_file,
)
from shigoto.worker.stopping import Reason

LogFormat = Literal["text", "json"]

NO_START = "WORKER.NO_START"  # the code of an error that has no other
logger = logging.getLogger("shigoto.worker")
PROGRAM = "shigoto.worker.supervisor.runner_main"
MOST_CRASH_REPORT = 65_536  # bytes of what a crash has left behind
DIE_WITHIN = 1.0  # seconds from the end of its line to its own


class Start(Struct, frozen=True, kw_only=True, tag=True):
    """How to work, and where the app is. `parent` is the supervisor's process id, `slots` how many jobs can run
    at once."""

    source: Source
    parent: int = 0
    slots: int = 0
    name: str | None = None
    queues: tuple[str, ...] | None = None
    concurrency: int = CONCURRENCY
    threads: int | None = None
    children: int | None = None
    drain: bool = False
    ticks: bool = True
    lease: float = LEASE / 1000
    poll: float = POLL / 1000
    stop_timeout: float = STOP_TIMEOUT / 1000
    max_jobs: int | None = None
    any_role: bool = False
    log_format: LogFormat = "text"
    log_level: str = "info"
    tell_files: bool = False
    tell_counts: bool = False


class Stop(Struct, frozen=True, tag=True):
    """Stop at level 1, hurry at level 2; a level that was reached already is no news."""

    level: int


class Recycle(Struct, frozen=True, tag=True):
    """Finish what runs, however long it takes, and end."""


class RunnerHello(Struct, frozen=True, kw_only=True, tag=True):
    """The worker's id, the address of the store, which means the same in every folder, what to sweep there, and who is
    to hear of jobs that fail by that."""

    worker: UUID
    name: str
    url: str
    lease: float
    unknown_after: Millis | None = None
    sentry: Sentry | None = None


class RunnerReady(Struct, frozen=True, tag=True):
    """The store knows the worker, and it begins to claim."""


class Files(Struct, frozen=True, tag=True):
    """The files of modules that lie in the working directory or below."""

    paths: tuple[bytes, ...]


class Counted(Struct, frozen=True, tag=True):
    """What has happened since the last of these; told about once a second, and at the end."""

    samples: list[Sample]


class StartFailed(Struct, frozen=True, tag=True):
    """Why it could not begin: the code of an error and its text."""

    code: str
    text: str


class Finishing(Struct, frozen=True, tag=True):
    """It has run enough jobs, or was asked to; another one can take its place."""


class RunnerEnded(Struct, frozen=True, tag=True):
    """How the worker ended; `unreleased` jobs could not be given back."""

    reason: Reason
    unreleased: int


RunnerOrder = Start | Recycle | Stop
RunnerNews = RunnerHello | RunnerReady | Files | Counted | StartFailed | Finishing | RunnerEnded
Heard = Callable[["RunnerProcess", RunnerNews], None]


class RunnerProcess:
    """One runner process, started when this is made. For the main thread and its event loop.

    The parent-death signal belongs to the thread that starts a process, so it must be one that does not end. `killed`
    says that we have killed it, `is_replaced` that we have asked it to end and will replace it, and `finishing` is done
    when it claims no more, so that another can take its place.
    """

    def __init__(self, start: Start, heard: Heard) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._inbox = Inbox[RunnerNews](RunnerNews)
        with ExitStack() as in_case:
            self.running_jobs = RunningJobs.create(start.slots)
            in_case.callback(self.running_jobs.close)
            self._crash_report = unnamed_file("shigoto-words")
            in_case.callback(os.close, self._crash_report)
            self._line, theirs = socket.socketpair()
            in_case.callback(self._line.close)
            assert self.running_jobs.fd is not None
            with theirs, interrupts_held_back():
                files = theirs.fileno(), self.running_jobs.fd, self._crash_report
                self._process = launch(PROGRAM, files, files=files, own_group=False)
            self.pid = self._process.pid
            in_case.callback(self._give_up)
            # It may have died by now, and then nobody reads this.
            self._line.sendall(encode(start))
            in_case.pop_all()
        self.hello: RunnerHello | None = None
        self.ready_at: float | None = None
        self.failed: StartFailed | None = None
        self.ended: RunnerEnded | None = None
        self.killed = False
        self.is_replaced = False
        self._broken = False
        self.finishing: asyncio.Future[None] = self._loop.create_future()
        self.dead: asyncio.Future[int] = self._loop.create_future()
        self._ready = asyncio.Event()
        self._line.setblocking(False)
        self._loop.add_reader(self._line, self._read)
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        return not self.dead.done()

    async def ready(self) -> RunnerHello:
        """Wait until it is ready, and say who it is."""
        await self._ready.wait()
        assert self.hello is not None
        return self.hello

    def ready_for(self) -> float:
        """Return how many seconds it has been ready, 0 if it never was."""
        return 0.0 if self.ready_at is None else self._loop.time() - self.ready_at

    def stop(self, level: int) -> None:
        """Ask it to stop, or to hurry. One that has not sent its hello holds nothing, and is killed."""
        if self.hello is None and self.alive:
            # It may have said so, and we were busy.
            self._read()
        if self.hello is None:
            self.kill()
        else:
            # A line that is broken, or full because nobody reads: then it is killed in time.
            with suppress(OSError):
                self._line.send(encode(Stop(level)))

    def recycle(self) -> None:
        """Let it claim no more, and end when nothing runs any more, however long that takes."""
        if self.hello is None:
            self.is_replaced = True
            self.kill()
        else:
            with suppress(OSError):
                self._line.send(encode(Recycle()))
            self._finish()

    def end_within(self, patience: float) -> None:
        """Ask it to stop, and kill it if it has not ended after so many seconds."""
        self.is_replaced = True
        self.stop(1)
        if self._deadline is None:
            self._deadline = self._loop.call_later(patience, self.kill)

    def kill(self) -> None:
        if self.alive:
            self.killed = True
            os.kill(self.pid, signal.SIGKILL)

    def reaped(self, code: int) -> None:
        """Note that it is dead; `code` is its exit code, or the signal that killed it as a negative number."""
        self._process.returncode = code
        # Its last words may still lie in the line. They have an end: a child that it has forked holds the other
        # side open, perhaps, but nobody writes to it any more.
        self._read()
        self._loop.remove_reader(self._line)
        self._line.close()
        if self._deadline is not None:
            self._deadline.cancel()
        self.dead.set_result(code)

    def crash_report(self) -> str:
        return os.pread(self._crash_report, MOST_CRASH_REPORT, 0).decode("utf-8", "replace")

    def forget(self) -> None:
        """Release what was kept of it, once its death is reported."""
        self.running_jobs.close()
        os.close(self._crash_report)

    def _read(self) -> None:
        while not self._broken:
            some = receive(self._line)
            if some is None:
                return
            if not some:
                # The end, or nearly: the process itself is what we wait for.
                self._loop.remove_reader(self._line)
                self._loop.call_later(DIE_WITHIN, self._break, "has closed its line to the supervisor")
                return
            try:
                told = self._inbox.feed(some)
            except BrokenLine as error:
                self._break(f"does not speak our language ({error})")
                return
            for news in told:
                self._note(news)

    def _note(self, news: RunnerNews) -> None:
        match news:
            case RunnerHello():
                self.hello = news
            case RunnerReady():
                self.ready_at = self._loop.time()
                self._ready.set()
            case StartFailed():
                self.failed = news
            case Finishing():
                self._finish()
            case RunnerEnded():
                self.ended = news
            case Files() | Counted():
                pass
        self._heard(self, news)

    def _break(self, how: str) -> None:
        """Kill a runner that cannot be looked after any more. Its jobs may have done that: a death like any other."""
        if self.alive and not self._broken and self.ended is None and self.failed is None:
            self._broken = True
            self._loop.remove_reader(self._line)
            logger.error("Runner process %d %s, and is killed", self.pid, how)
            os.kill(self.pid, signal.SIGKILL)

    def _give_up(self) -> None:
        """Kill it, and leave it to be reaped like an orphan, not by the object that has started it."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._process.returncode = -signal.SIGKILL

    def _finish(self) -> None:
        if not self.finishing.done():
            self.finishing.set_result(None)


class Reaper:
    """Reaps every child process that has ended, whoever its parent was, and tells of those that are expected."""

    def __init__(self) -> None:
        self._expected: dict[int, Callable[[int], None]] = {}

    @property
    def expected(self) -> frozenset[int]:
        """The ids of the runners that are alive."""
        return frozenset(self._expected)

    def expect(self, runner: RunnerProcess) -> None:
        """Tell this runner when it is dead."""
        self._expected[runner.pid] = runner.reaped

    def reap(self) -> None:
        """Reap all children that have ended. Signals of several deaths may arrive as one."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                told = self._expected.pop(pid, None)
                if told is not None:
                    told(os.waitstatus_to_exitcode(status))
