"""What one runner process runs. A supervisor starts it with three open files: the line to the supervisor, a slate,
and a file for the last words of a crash.

    python -m shigoto.worker.supervisor.program LINE SLATE WORDS

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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from shigoto.app import Shigoto
from shigoto.model.errors import ShigotoError
from shigoto.observe.events import WorkerStarted
from shigoto.observe.log import configure_logging
from shigoto.worker.logfields import job_fields
from shigoto.worker.process.kin import ORPHANED, be_expendable, die_with_parent
from shigoto.worker.process.slate import Slate
from shigoto.worker.process.wire import Inbox, encode
from shigoto.worker.stop import Stopped
from shigoto.worker.supervisor.address import expect_shared, lasting_address, name_of_store
from shigoto.worker.supervisor.mainloop import run_to_the_end
from shigoto.worker.supervisor.messages import Ended, Failed, Files, Hello, Order, Ready, Start, Stop
from shigoto.worker.supervisor.reload import own_files
from shigoto.worker.supervisor.watchdog import OVERDUE, Brake, SignalWatch, Watchdog
from shigoto.worker.worker import Worker

logger = logging.getLogger("shigoto.worker")

NO_START = "WORKER.NO_START"
EXPENDABLE = 100  # the supervisor shall live longer, and tell what has happened
LOOK_FOR_FILES = 1.0  # seconds
READ = 65_536


def main(line: int, slate: int, words: int) -> int:
    """Run a worker as the supervisor on the other end of the line says, and tell the exit code."""
    for fd in (line, slate, words):
        os.set_inheritable(fd, False)
    faulthandler.enable(words)
    be_expendable(EXPENDABLE)
    supervisor = Line(line)
    start = supervisor.receive()
    if not isinstance(start, Start):
        return ORPHANED
    die_with_parent(start.parent)
    configure_logging(format=start.log_format, level=start.log_level.upper(), fields=job_fields)
    return Program(supervisor, start, Slate.attach(slate, start.slate)).run()


class Line:
    """The runner's end of the line to its supervisor: blocking, and safe from any thread."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._sending = threading.Lock()
        self._inbox = Inbox[Order](Order)
        self._received: list[Order] = []

    def send(self, message: Struct) -> None:
        """Say something. If nobody is there any more, we shall know soon."""
        with self._sending, suppress(OSError):
            self._socket.sendall(encode(message))

    def receive(self) -> Order | None:
        """Wait for the next word; None means that the supervisor is gone."""
        while not self._received:
            try:
                some = self._socket.recv(READ)
            except OSError:
                some = b""
            if not some:
                return None
            self._received = self._inbox.feed(some)[::-1]
        return self._received.pop()


class Program:
    """One runner process, from its start message to its exit code."""

    def __init__(self, line: Line, start: Start, slate: Slate) -> None:
        self._line = line
        self._start = start
        self._slate = slate
        self._watchdog = Watchdog(OVERDUE)
        self._brake: Brake | None = None
        self._begun = False

    def run(self) -> int:
        """Run the worker to its end; a failure to begin is told to the supervisor."""
        threading.Thread(target=self._listen, name="shigoto-line", daemon=True).start()
        with SignalWatch(self._signals()), self._watchdog:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            try:
                app = self._start.source.load()
                return self._work(app)
            except (Exception, SystemExit) as error:
                if self._begun:
                    raise
                self._fail(error)
                return 1

    def stop(self, level: int) -> None:
        """Stop, or hurry. Before the worker begins nothing is held, and nothing needs to be waited for."""
        if self._brake is None:
            os._exit(0)
        self._brake.press(level)

    def _signals(self) -> dict[signal.Signals, Callable[[], None]]:
        left_to_the_supervisor = [
            number for number in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN
        ]
        return {signal.SIGTERM: partial(self.stop, 1), **dict.fromkeys(left_to_the_supervisor, _do_nothing)}

    def _listen(self) -> None:
        """Do what the supervisor says, in a thread of its own: the event loop may be blocked."""
        while (order := self._line.receive()) is not None:
            if isinstance(order, Stop):
                self.stop(order.level)
        os._exit(ORPHANED)

    def _work(self, app: Shigoto) -> int:
        expect_shared(app.engine)
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
            source=start.source,
            slate=self._slate,
            sweeps=False,
        )
        app.bus.subscribe(self._ready, WorkerStarted)
        logger.info("Tasks: %s; store: %s", ", ".join(app.tasks) or "none", name_of_store(app))
        hello = Hello(worker=worker.id, name=worker.name, url=lasting_address(app), lease=start.lease)
        begin = partial(self._begin, worker, hello)
        return run_to_the_end(
            app, worker, self._watchdog, begin=begin, beside=self._beside, ended=self._ended
        )

    def _begin(self, worker: Worker, hello: Hello) -> None:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            # A closed loop has no worker left to stop.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(worker.stop)

        self._brake = Brake(stop, worker.stop_timeout, self._watchdog)
        self._line.send(hello)

    def _ready(self, _: WorkerStarted) -> None:
        self._begun = True
        self._line.send(Ready())

    async def _beside(self) -> None:
        """Tell which files are loaded, and whenever handlers have imported more of them."""
        told: set[Path] = set()
        while self._start.tell_files:
            if (files := own_files()) != told:
                self._tell_files(files)
                told = files
            await asyncio.sleep(LOOK_FOR_FILES)

    def _ended(self, stopped: Stopped) -> None:
        self._line.send(Ended(stopped.reason, stopped.unreleased))

    def _fail(self, error: Exception | SystemExit) -> None:
        if self._start.tell_files:
            self._tell_files(own_files(error))
        if isinstance(error, ShigotoError):
            failed = Failed(error.code, str(error))
        elif isinstance(error, SystemExit):
            failed = Failed(NO_START, f"The app wanted to exit while it was loaded: {error.code}.")
        else:
            logger.error("The worker could not begin", exc_info=error)
            failed = Failed(NO_START, f"{type(error).__name__}: {error}.")
        self._line.send(failed)

    def _tell_files(self, files: set[Path]) -> None:
        self._line.send(Files(tuple(os.fsencode(path) for path in files)))


def _do_nothing() -> None: ...


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4])))
