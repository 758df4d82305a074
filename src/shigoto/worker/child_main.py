"""The program of a child process.

    python -m shigoto.worker.child_main SOCKET PARENT REPORT

It runs one job at a time: a sync one in its main thread, where an exception can be raised in it, an async one on its
event loop. Another thread listens to the worker, and ends the process as soon as the worker is gone.

    listener   RunJob ──► queue ──► main   run it ──► RunEnded
               Tell, Warn, Halt ──► the run of its job: flags, an exception, a cancel

Log lines are sent by the thread that writes them, before it goes on: they must survive a crash in the next line of the
handler. Progress is sent by the listener, a few times a second.
"""

import asyncio
import faulthandler
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from contextvars import Context as Variables
from functools import partial
from math import inf
from queue import SimpleQueue
from random import Random
from typing import Any

from shigoto.app import Shigoto
from shigoto.context import JobLog, JobServices, Signals, SoftTimeout
from shigoto.model.errors import JobCancelled, ShigotoError
from shigoto.model.job import Lease
from shigoto.model.text import ERROR_LIMIT, fit
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement
from shigoto.observe.log import configure_logging
from shigoto.worker import child_process, process
from shigoto.worker.child_process import ChildOrder, Halt, Leave, RunJob, StartChild, Tell, Warn
from shigoto.worker.endings import describe
from shigoto.worker.interrupts import Interrupts
from shigoto.worker.process import Inbox, encode
from shigoto.worker.reporting import capturing, hidden, job_fields
from shigoto.worker.runner import Runner
from shigoto.worker.starting import Lifespan

TICK = 0.2  # seconds between looks at the progress
FLUSHED_WITHIN = 0.5  # seconds for spans to leave
LIFESPAN_ENDS_WITHIN = 10.0  # seconds for the app's lifespan to end; the worker may have less patience


class ChildOutput:
    """The child's end of the socket."""

    def __init__(self, line: socket.socket, interrupts: Interrupts) -> None:
        self.line = line
        self._interrupts = interrupts
        self._unsaid: deque[bytes] = deque()
        self._lock = threading.RLock()
        self._speaking = False
        self._mute = False
        os.register_at_fork(after_in_child=self._fall_silent)

    def send(self, message: child_process.ChildNews) -> None:
        """Send it now, from any thread. What is half sent would make all the rest unreadable, so nothing interrupts.

        A destructor that logs may call this in the midst of it; then its words follow.
        """
        if self._mute:
            return
        self._unsaid.append(encode(message))
        with self._interrupts.shield(), self._lock:
            if self._speaking:
                return
            self._speaking = True
            try:
                while self._unsaid:
                    self.line.sendall(self._unsaid.popleft())
            except OSError:
                # The worker is gone; the listener has noticed, or will.
                self._mute = True
            finally:
                self._speaking = False

    def _fall_silent(self) -> None:
        """Send nothing more: processes that handlers fork have this socket too."""
        self._mute = True
        self._lock = threading.RLock()


class ChildRun:
    """The run of the job that the child has. The listener writes down what is wanted of it, the main thread runs it."""

    task: asyncio.Task[Any]

    def __init__(self, lease: Lease, output: ChildOutput) -> None:
        self.job = lease
        self.lease: Lease | None = lease
        self.signals = Signals()
        self.signals.lines = JobLog(self._line_added)
        self.wanted: Ending | None = None
        self.cancels = 0
        self.worn = False
        self.variables: Variables | None = None
        self.limit_at = inf
        self._output = output
        self._said = partial(child_process.RunNews, number=lease.number, token=lease.token)

    def limit(self, hard: Millis | None, soft: Millis | None) -> None:
        """The worker watches the time."""

    def is_about(self, order: Tell | Warn | Halt) -> bool:
        return (order.number, order.token) == (self.job.number, self.job.token)

    def cancel(self) -> None:
        self.cancels += 1
        self.task.cancel()

    def tell_progress(self) -> None:
        signals = self.signals
        if signals.progress_changed:
            signals.progress_changed = False
            self._output.send(self._said(progress=signals.progress, progress_text=signals.progress_text))

    def _line_added(self) -> None:
        lines = self.signals.lines
        # Until nothing is left: a destructor may write one while we are at it.
        while lines is not None and (tail := lines.tail()) is not None:
            self._output.send(self._said(log=tail))


class Child:
    """Takes orders from the worker until there are no more."""

    def __init__(self, output: ChildOutput, interrupts: Interrupts, crash_report: int) -> None:
        self._output = output
        self._interrupts = interrupts
        self._crash_report = crash_report
        self._loop = asyncio.new_event_loop()
        self._queue: SimpleQueue[StartChild | RunJob | Leave] = SimpleQueue()
        self._async_tasks: frozenset[str] = frozenset()
        self._child_run: ChildRun | None = None

    def live(self) -> int:
        threading.Thread(target=self._listen, name="shigoto-listen", daemon=True).start()
        begin = self._queue.get()
        if not isinstance(begin, StartChild):
            return 1
        with asyncio.Runner(loop_factory=lambda: self._loop) as loops:
            loop = loops.get_loop()
            try:
                app, lifespan, runner = self._begin(begin)
            except (Exception, SystemExit) as error:
                self._output.send(child_process.ChildUnfit(_why_unfit(error)))
                return 1
            with capturing():
                self._serve(app, runner)
            loop.run_until_complete(lifespan.exit(LIFESPAN_ENDS_WITHIN))
        app.flush(FLUSHED_WITHIN)
        app.exporters.end()
        app.close()
        return 0

    def _begin(self, begin: StartChild) -> tuple[Shigoto, Lifespan, Runner]:
        if begin.log is not None:
            configure_logging(format=begin.log.format, level=begin.log.level, fields=job_fields, hide=hidden)
        app = begin.source.load()
        # If it breaks, there are no more jobs: the worker starts another child.
        lifespan = Lifespan(app.enter_lifespan, lambda: self._queue.put(Leave()))
        state = self._loop.run_until_complete(lifespan.enter())
        services = JobServices(app.engine, begin.worker, state, self._interrupts.shield)
        tasks = {name: task for task in app.tasks.values() for name in (task.name, *task.aliases)}
        self._async_tasks = frozenset(name for name, task in tasks.items() if task.is_async)
        if app.tracing is not None:
            app.tracing.rule()
        runner = Runner(
            tasks,
            Random(),
            services=services,
            signals=lambda: Signals() if self._child_run is None else self._child_run.signals,
            guard=self._interrupts,
            tracing=app.tracing,
        )
        return app, lifespan, runner

    def _serve(self, app: Shigoto, runner: Runner) -> None:
        self._output.send(child_process.ChildReady())
        while isinstance(order := self._queue.get(), RunJob) and (child_run := self._child_run) is not None:
            self._interrupts.begin(child_run)
            if order.within is not None:
                # In a thread that needs no interpreter: it works whatever the handler does.
                faulthandler.dump_traceback_later(order.within, exit=True, file=self._crash_report)
            self._output.send(child_process.RunBegan())
            settlement = self._run(runner, child_run)
            faulthandler.cancel_dump_traceback_later()
            if child_run.wanted is not None or child_run.signals.overdue:
                # The worker kills this process as soon as it hears of the end.
                app.flush(FLUSHED_WITHIN)
            self._child_run = None
            self._output.send(child_process.RunEnded(settlement))

    def _run(self, runner: Runner, child_run: ChildRun) -> Settlement:
        if child_run.job.task not in self._async_tasks:
            return runner.run_in_thread(child_run, child_run.job)
        running = self._loop.create_task(runner.run(child_run, child_run.job))
        child_run.task = running
        try:
            return self._loop.run_until_complete(running)
        finally:
            if not running.done():
                # It has ended the event loop under itself. To cancel what runs there could take for ever.
                os.write(self._crash_report, traceback.format_exc().encode("utf-8", "backslashreplace"))
                os._exit(1)

    def _listen(self) -> None:
        """Obey the worker until it is gone, then end the process, whatever it is doing."""
        inbox, line = Inbox[ChildOrder](ChildOrder), self._output.line
        selector = selectors.DefaultSelector()
        selector.register(line, selectors.EVENT_READ)
        try:
            while True:
                if selector.select(None if self._child_run is None else TICK):
                    data = line.recv(process.PORTION)
                    if not data:
                        return
                    for order in inbox.feed(data):
                        self._obey(order)
                child_run = self._child_run
                if child_run is not None:
                    child_run.tell_progress()
                    self._interrupts.nudge()
        finally:
            os._exit(process.PARENT_GONE)

    def _obey(self, order: ChildOrder) -> None:
        if isinstance(order, RunJob):
            self._child_run = ChildRun(order.lease, self._output)
        if isinstance(order, StartChild | RunJob | Leave):
            self._queue.put(order)
            return
        child_run = self._child_run
        if child_run is None or not child_run.is_about(order):
            return
        match order:
            case Tell():
                child_run.signals.cancelled = child_run.signals.cancelled or order.cancelled
                child_run.signals.stopping = child_run.signals.stopping or order.stopping
            case Warn():
                child_run.signals.overdue = True
                self._interrupt(child_run, SoftTimeout(order.text), signal.SIGUSR1)
            case Halt():
                child_run.wanted = child_run.wanted or order.wanted
                self._interrupt(child_run, JobCancelled("the worker has ended this run"), signal.SIGTERM)

    def _interrupt(self, child_run: ChildRun, error: Exception, by: signal.Signals) -> None:
        if child_run.job.task in self._async_tasks:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(child_run.cancel)
        else:
            self._interrupts.order(child_run, error, by)


def main(arguments: Sequence[str]) -> int:
    """Be a child process of the worker that has this process id."""
    line, parent, crash_report = map(int, arguments)
    process.die_with_parent(parent)
    for fd in (line, crash_report):
        # They were passed on to us, and to nobody that a handler starts.
        os.set_inheritable(fd, False)
    faulthandler.enable(crash_report, all_threads=True)
    faulthandler.register(signal.SIGUSR2, crash_report, all_threads=True)
    interrupts = Interrupts()
    interrupts.install()
    return Child(ChildOutput(socket.socket(fileno=line), interrupts), interrupts, crash_report).live()


def _why_unfit(error: Exception | SystemExit) -> str:
    if isinstance(error, ShigotoError):
        return fit(str(error), ERROR_LIMIT)
    if isinstance(error, SystemExit):
        return fit(f"The app wanted to exit while it was loaded: {error.code}.", ERROR_LIMIT)
    return describe(error)[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
