"""The program of a runner process.

A supervisor starts it with three open files: the line to the supervisor, memory for `RunningJobs`, and a file for
the report of a crash.

    python -m shigoto.worker.supervisor.runner_main LINE MEMORY REPORT

It ends when its worker has ended, and at once when the supervisor is gone: somebody else may have its jobs soon.

Ctrl-C at a terminal reaches every process there, and is left to the supervisor; so is the question whether a stop was
asked for once or twice. A SIGTERM, to this process or to its whole group, asks for what the supervisor's word asks
for, and both together are one request.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from shigoto.app import Shigoto
from shigoto.engine.open import expect_shared, name_of_store
from shigoto.model.errors import ShigotoError
from shigoto.observe.events import WorkerLeaving, WorkerStarted, WorkerStopping
from shigoto.observe.log import configure_logging, some_of
from shigoto.observe.metrics import EventCounters
from shigoto.worker import process
from shigoto.worker.process import PARENT_GONE, RunningJobs, WorkerFlag
from shigoto.worker.process_main import OVERDUE, SignalWatch, StopLevels, Watchdog, exit_after, run_to_the_end
from shigoto.worker.reporting import hidden, job_fields
from shigoto.worker.starting import collect_rarely
from shigoto.worker.stopping import Stopped
from shigoto.worker.supervisor import runner_process
from shigoto.worker.supervisor.host import own_files
from shigoto.worker.supervisor.runner_process import NO_START, RunnerHello, RunnerOrder, Start, StartFailed
from shigoto.worker.worker import Worker

logger = logging.getLogger("shigoto.worker")

CUT_OFF = "The %s was ended by a handler, or by what it has left behind; so this process ends, too"
LOOK_EVERY = 1.0  # seconds


def main(line: int, memory: int, crash_report: int) -> int:
    """Run a worker as the supervisor on the other end of the line says, and return the exit code."""
    for fd in (line, memory, crash_report):
        os.set_inheritable(fd, False)
    faulthandler.enable(crash_report)
    process.prefer_oom_kill()
    supervisor = SupervisorLine(line)
    start = supervisor.receive()
    if not isinstance(start, Start):
        return PARENT_GONE
    process.die_with_parent(start.parent)
    configure_logging(
        format=start.log_format, level=start.log_level.upper(), fields=job_fields, hide=hidden, gather=True
    )
    return RunnerMain(supervisor, start, RunningJobs.attach(memory, start.slots), crash_report).run()


class SupervisorLine:
    """The runner's end of the line to its supervisor: blocking, and safe from any thread."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._identity = _identity(fd)
        self._sending = threading.Lock()
        self._inbox = process.Inbox[RunnerOrder](RunnerOrder)
        self._received: list[RunnerOrder] = []

    def send(self, message: Struct) -> None:
        """Send a message. If the supervisor is gone, `receive` finds out."""
        with self._sending, suppress(OSError):
            self._socket.sendall(process.encode(message))

    def is_open(self) -> bool:
        """Return True unless this process has closed it, which `receive` would not notice."""
        return _identity(self._socket.fileno()) == self._identity

    def receive(self) -> RunnerOrder | None:
        """Wait for the next order; None means that the supervisor is gone. Raises BrokenLine."""
        while not self._received:
            some = process.receive(self._socket)
            if not some:
                return None
            self._received = self._inbox.feed(some)[::-1]
        return self._received.pop()


class RunnerMain:
    """One runner process, from its start message to its exit code."""

    def __init__(
        self, line: SupervisorLine, start: Start, running_jobs: RunningJobs, crash_report: int
    ) -> None:
        self._line = line
        self._start = start
        self._running_jobs = running_jobs
        self._crash_report = crash_report
        self._watchdog = Watchdog(OVERDUE, lambda: running_jobs.raise_flag(WorkerFlag.OVERDUE))
        self._worker: Worker | None = None
        self._stop_levels: StopLevels | None = None
        self._begun = False
        self._counters = EventCounters()

    def run(self) -> int:
        """Run the worker to its end; a failure to begin is told to the supervisor."""
        threading.Thread(target=self._listen, name="shigoto-line", daemon=True).start()
        with SignalWatch(self._signals()), self._watchdog:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            try:
                app = self._start.source.load()
                collect_rarely()
                return self._work(app)
            except (Exception, SystemExit) as error:
                if self._begun:
                    raise
                self._fail(error)
                return 1

    def stop(self, level: int) -> None:
        """Stop, or hurry. Before the worker begins nothing is held, so the process ends now."""
        if self._stop_levels is None:
            os._exit(0)
        self._stop_levels.ask(level)

    def _signals(self) -> dict[signal.Signals, Callable[[], None]]:
        left_to_the_supervisor = [
            number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN
        ]
        return {signal.SIGTERM: partial(self.stop, 1), **dict.fromkeys(left_to_the_supervisor, lambda: None)}

    def _listen(self) -> None:
        """Do what the supervisor says, in a thread of its own: the event loop may be blocked.

        If it is gone, or cannot be understood any more, nobody looks after this process.
        """
        try:
            while (order := self._line.receive()) is not None:
                if isinstance(order, runner_process.Stop):
                    self.stop(order.level)
                elif isinstance(order, runner_process.Recycle) and self._worker is not None:
                    self._worker.recycle()
        finally:
            os._exit(PARENT_GONE)

    def _work(self, app: Shigoto) -> int:
        expect_shared(app.engine)
        if app.tracing is not None:
            app.tracing.rule()
        start = self._start
        worker = Worker(
            app,
            queues=start.queues,
            concurrency=start.concurrency,
            threads=start.threads,
            children=start.children,
            drain=start.drain,
            lease=start.lease,
            poll=start.poll,
            name=start.name,
            stop_timeout=start.stop_timeout,
            max_jobs=start.max_jobs,
            any_role=start.any_role,
            source=start.source,
            running_jobs=self._running_jobs,
            sweeps=False,
            ticks=start.ticks,
        )
        if start.tell_counts:
            self._counters.watch(app.bus)
        app.bus.subscribe(self._ready, WorkerStarted)
        app.bus.subscribe(self._stopping, WorkerStopping)
        app.bus.subscribe(lambda _: self._running_jobs.raise_flag(WorkerFlag.LEAVING), WorkerLeaving)
        logger.info("Tasks: %s; store: %s", some_of(app.tasks) or "none", name_of_store(app.engine))
        hello = RunnerHello(
            worker=worker.id,
            name=worker.name,
            url=app.engine.address,
            lease=start.lease,
            unknown_after=app.unknown_after,
            sentry=app.sentry,
        )
        begin = partial(self._begin, worker, hello)
        return run_to_the_end(
            app,
            worker,
            self._watchdog,
            begin=begin,
            beside=self._beside,
            ended=self._ended,
            cut_off=self._cut_off,
        )

    def _begin(self, worker: Worker, hello: RunnerHello) -> None:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            # A closed loop has no worker left to stop.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(worker.stop)

        self._worker = worker
        self._stop_levels = StopLevels(stop, worker.stop_timeout, self._watchdog)
        self._line.send(hello)

    def _ready(self, _: WorkerStarted) -> None:
        self._begun = True
        self._line.send(runner_process.RunnerReady())

    def _stopping(self, event: WorkerStopping) -> None:
        if event.reason == "recycled":
            self._line.send(runner_process.Finishing())

    async def _beside(self) -> None:
        """See that the line is there; tell what was counted, and which files are loaded whenever handlers have imported
        more of them."""
        told: set[Path] = set()
        while True:
            if not self._line.is_open():
                exit_after(lambda: logger.critical(CUT_OFF, "line to the supervisor"), 1)
            if self._start.tell_files and (files := own_files()) != told:
                self._tell_files(files)
                told = files
            self._tell_counts()
            await asyncio.sleep(LOOK_EVERY)

    def _ended(self, stopped: Stopped) -> None:
        self._tell_counts()
        self._line.send(runner_process.RunnerEnded(stopped.reason, stopped.unreleased))

    def _cut_off(self) -> None:
        """End now: a handler has ended the event loop. The jobs that are noted as running may have done it."""
        if self._begun:
            error = sys.exc_info()
            with suppress(OSError):
                os.write(self._crash_report, traceback.format_exc().encode("utf-8", "backslashreplace"))
            exit_after(lambda: logger.critical(CUT_OFF, "event loop", exc_info=error), 1)

    def _fail(self, error: Exception | SystemExit) -> None:
        if self._start.tell_files:
            self._tell_files(own_files(error))
        if isinstance(error, ShigotoError):
            failed = StartFailed(error.code, str(error))
        elif isinstance(error, SystemExit):
            failed = StartFailed(NO_START, f"The app wanted to exit while it was loaded: {error.code}.")
        else:
            logger.error("The worker could not begin", exc_info=error)
            failed = StartFailed(NO_START, f"{type(error).__name__}: {error}.")
        self._line.send(failed)

    def _tell_counts(self) -> None:
        if counted := self._counters.take():
            self._line.send(runner_process.Counted(counted))

    def _tell_files(self, files: set[Path]) -> None:
        self._line.send(runner_process.Files(tuple(os.fsencode(path) for path in files)))


def _identity(fd: int) -> tuple[int, int] | None:
    """Return which file is open under this number, None if none is."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4])))
