"""The supervisor: keeps runner processes at work, vouches for them, and clears up after those that die.

It never imports user code, and does nothing that could take long: whatever handlers do to their own process, this
one beats for them, sweeps the store, and notices their death at once.

    runner dies ──► its slate is read ──► it is buried in the store: what ran has crashed, the rest is given back
              └───► a new one starts, at once if the last one had worked; nothing waits for the burial

A stop has `stop_timeout` seconds, 28 unless told otherwise:

    at once          runners are asked to stop, and take up to two seconds less, in phases of their own (`shutdown.py`)
    one second left  what is still there is killed. It is dead now, so what it held can be given back: no overlap
    none left        the watchdog ends this process, even if the store does not answer

A second request makes the runners hurry, a third one kills them.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path

from msgspec import Struct, structs

from shigoto.observe.bus import Bus
from shigoto.observe.events import RunnerDied, RunnerFailed, RunnerRetired, RunnerStarted
from shigoto.observe.log import configure_logging, log_events
from shigoto.worker.supervisor.burial import deaths_in, how_it_ended
from shigoto.worker.supervisor.messages import Failed, Files, News, Ready, Start
from shigoto.worker.supervisor.office import Office
from shigoto.worker.supervisor.post import Post
from shigoto.worker.supervisor.procfs import memory_of, orphans_adopted
from shigoto.worker.supervisor.reload import Watch
from shigoto.worker.supervisor.runnerprocess import Reaper, RunnerProcess
from shigoto.worker.supervisor.vouch import vouch
from shigoto.worker.supervisor.watchdog import FAREWELL, OVERDUE, Watchdog
from shigoto.worker.worker import MOST_SLOTS

logger = logging.getLogger("shigoto.worker")

RUNNERS_LESS, KILL_BEFORE, BURY_BEFORE = 2.0, 1.0, 0.1  # seconds before the limit of a stop
HURRY = 5.0  # seconds that a stop may still take after the second request
TRIFLE = 0.3  # seconds beyond the limit until the watchdog bites
RELOAD_WITHIN = 5.0
FENCED_WITHIN = 2.0
SECOND_THOUGHT = 0.5  # seconds: the store does not know a runner that has just left, either
WEIGH_EVERY = 1.0
FENCED = "the store has fenced it"
EOF_LOOK = 65_536  # bytes; whatever is written to standard input is thrown away


class Duties(Struct, frozen=True, kw_only=True):
    """How many runner processes, and what else was asked of the supervisor. `max_memory` is in bytes."""

    processes: int
    stop_timeout: float
    stats_every: float = 0.0
    reload: bool = False
    stop_on_eof: bool = False
    max_memory: int | None = None
    ready_file: Path | None = None


class Outcome(Struct, frozen=True):
    """The exit code, and why the first runners could not begin, if they could not."""

    code: int
    failed: Failed | None = None


def supervise(start: Start, duties: Duties) -> Outcome:
    """Run runner processes until told to stop. Takes over the signals meanwhile; for the main thread.

    What `start` says of names and limits is adapted for each runner.
    """
    configure_logging(format=start.log_format, level=start.log_level.upper())
    with Watchdog() as watchdog, orphans_adopted():
        supervisor = Supervisor(start, duties, watchdog)
        # Never another kind of loop: this one hears signals whatever happens, and needs nothing that is not there.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            outcome = runner.run(supervisor.run())
        watchdog.code = outcome.code
        watchdog.allow(FAREWELL)
        supervisor.leave()
    return outcome


def room_for_runners(stop_timeout: float) -> float:
    """How many seconds of a stop are for the runners' own phases."""
    return stop_timeout - min(RUNNERS_LESS, stop_timeout / 3)


class Supervisor:
    """Holds the posts. For one run, on the event loop of the main thread."""

    def __init__(self, start: Start, duties: Duties, watchdog: Watchdog) -> None:
        self._start = structs.replace(
            start,
            parent=os.getpid(),
            slate=_places(start),
            stop_timeout=room_for_runners(duties.stop_timeout),
            tell_files=duties.reload,
        )
        self._duties = duties
        self._watchdog = watchdog
        self._name = start.name or f"{socket.gethostname()}:{os.getpid()}"
        self._bus = Bus()
        log_events(self._bus)
        self._reaper = Reaper()
        names = [start.name] if duties.processes == 1 or start.name is None else []
        self._posts = [
            Post(names[0] if names else f"{start.name}-{number}") for number in range(1, duties.processes + 1)
        ]
        self._watch = Watch(self._reload) if duties.reload else None
        self._level = 0
        self._limit = inf
        self._was_ready = False
        self._code = 0
        self._failed: Failed | None = None
        self._office: Office
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> Outcome:
        """Keep every post filled, until all of them are given up."""
        self._loop = asyncio.get_running_loop()
        with self._signals(), self._ready_file():
            async with asyncio.TaskGroup() as group:
                self._office = Office(group, self._name, self._bus, stats_every=self._duties.stats_every)
                watching = [group.create_task(self._watch.run())] if self._watch else []
                posts = [group.create_task(self._hold(post), name="shigoto-post") for post in self._posts]
                await asyncio.wait(posts)
                patience = min(self._limit, self._loop.time() + self._duties.stop_timeout) - BURY_BEFORE
                if not await self._office.close(max(0.0, patience - self._loop.time())):
                    self._code = 1
                for task in watching:
                    task.cancel()
        return Outcome(self._code, self._failed)

    def leave(self) -> None:
        """Close what is open at the store."""
        self._office.leave()

    def stop(self) -> None:
        """Stop; asked again, hurry; and again, kill."""
        self._level += 1
        timeout = self._duties.stop_timeout if self._level == 1 else HURRY
        self._limit = min(self._limit, self._loop.time() + timeout)
        self._watchdog.allow(timeout + TRIFLE)
        self._hide_ready_file()
        self._loop.call_at(self._limit - min(KILL_BEFORE, timeout / 6), self._kill)
        for post in self._posts:
            post.wakeup.ring()
            if post.runner is not None:
                post.runner.stop(self._level)
        if self._level > 2:
            self._kill()

    # One post, and the runner on it.

    async def _hold(self, post: Post) -> None:
        while not self._level:
            pause = await self._fill(post)
            if pause is None:
                return
            if pause:
                await post.wakeup.wait(None if pause == inf else pause)

    async def _fill(self, post: Post) -> float | None:
        """Start a runner and wait for its end; how long to wait before the next one, None if there is none."""
        try:
            runner = RunnerProcess(structs.replace(self._start, name=post.name), self._heard)
        except OSError as error:
            in_vain = post.next_pause()
            self._bus.publish(RunnerFailed(self._name, f"A process cannot be started: {error}", in_vain))
            return in_vain
        self._reaper.expect(runner)
        post.runner = runner
        self._bus.publish(RunnerStarted(self._name, runner.pid))
        async with asyncio.TaskGroup() as beside:
            tasks = [beside.create_task(self._vouch(runner)), beside.create_task(self._weigh(runner))]
            await asyncio.wait([runner.dead])
            for task in tasks:
                task.cancel()
        post.runner = None
        pause = self._next(post, runner)
        self._clear_up(runner, pause)
        return pause

    def _next(self, post: Post, runner: RunnerProcess) -> float | None:
        ended, failed = runner.ended, runner.failed
        if self._level or (ended is not None and ended.reason == "drained"):
            if ended is not None and ended.reason == "fenced":
                self._code = 1
            return None
        if failed is None:
            if ended is not None and ended.reason == "fenced" and not runner.retiring:
                self._bus.publish(RunnerRetired(self._name, runner.pid, FENCED))
            return post.pause(runner, wait_for_change=False)
        if not (self._was_ready or self._duties.reload):
            self._code, self._failed = 1, self._failed or failed
            self.stop()
            return None
        pause = post.pause(runner, wait_for_change=self._duties.reload)
        self._bus.publish(RunnerFailed(self._name, failed.text, None if pause == inf else pause))
        return pause

    def _clear_up(self, runner: RunnerProcess, pause: float | None) -> None:
        """Bury it, unless it has given back everything by itself or never had anything."""
        hello, ended, code = runner.hello, runner.ended, runner.dead.result()
        on_purpose = code == OVERDUE or (runner.killed and code == -signal.SIGKILL)
        unhurt = ended is not None or runner.failed is not None
        words = runner.words()
        deaths = deaths_in(
            runner.pid, code, inside=runner.inside(), in_children=runner.in_children(), trace=words
        )
        runner.forget()
        if not (on_purpose or unhurt or (hello is None and self._level)):
            how = how_it_ended(code)
            self._bus.publish(RunnerDied(self._name, runner.pid, how, len(deaths), pause, words))
        if hello is not None and not (unhurt and (ended is None or not ended.unreleased)):
            self._office.bury(hello, () if on_purpose or unhurt else deaths)

    async def _vouch(self, runner: RunnerProcess) -> None:
        hello = await runner.ready()
        await vouch(runner, hello, self._office.station(hello))
        await asyncio.sleep(SECOND_THOUGHT)
        if runner.ended is None:
            self._retire(runner, FENCED, FENCED_WITHIN)

    async def _weigh(self, runner: RunnerProcess) -> None:
        most = self._duties.max_memory
        while most is not None:
            await asyncio.sleep(WEIGH_EVERY)
            memory = memory_of(runner.pid) or 0
            if memory > most:
                reason = f"it uses {memory >> 20} MB of memory"
                self._retire(runner, reason, self._duties.stop_timeout - KILL_BEFORE)
                return

    def _retire(self, runner: RunnerProcess, reason: str, patience: float) -> None:
        if runner.alive and not self._level:
            self._bus.publish(RunnerRetired(self._name, runner.pid, reason))
            runner.retire(patience)

    def _heard(self, runner: RunnerProcess, news: News) -> None:
        if isinstance(news, Ready):
            self._was_ready = True
            if all(post.ready for post in self._posts):
                self._show_ready_file()
        elif isinstance(news, Files) and self._watch is not None:
            self._watch.add(news.paths)

    def _reload(self) -> None:
        for post in self._posts:
            if post.runner is None:
                post.wakeup.ring()
            else:
                self._retire(post.runner, "the code has changed", RELOAD_WITHIN)

    def _kill(self) -> None:
        for post in self._posts:
            if post.runner is not None:
                post.runner.kill()

    # The world around it.

    @contextmanager
    def _signals(self) -> Generator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._loop.add_signal_handler(signal.SIGCHLD, self._reaper.reap)
        for number in numbers:
            self._loop.add_signal_handler(number, self.stop)
        if self._duties.stop_on_eof:
            self._loop.add_reader(sys.stdin.fileno(), self._look_for_the_end)
        try:
            yield
        finally:
            for number in (signal.SIGCHLD, *numbers):
                self._loop.remove_signal_handler(number)

    def _look_for_the_end(self) -> None:
        with suppress(OSError):
            if os.read(sys.stdin.fileno(), EOF_LOOK):
                return
        self._loop.remove_reader(sys.stdin.fileno())
        self.stop()

    @contextmanager
    def _ready_file(self) -> Generator[None]:
        # One that a killed supervisor has left behind would be a lie.
        self._hide_ready_file()
        try:
            yield
        finally:
            self._hide_ready_file()

    def _show_ready_file(self) -> None:
        if self._duties.ready_file is not None and not self._level:
            try:
                self._duties.ready_file.write_text(f"{os.getpid()}\n")
            except OSError:
                logger.exception("The ready file cannot be written; the worker goes on without it")

    def _hide_ready_file(self) -> None:
        if self._duties.ready_file is not None:
            with suppress(OSError):
                self._duties.ready_file.unlink()


def _places(start: Start) -> int:
    """How many jobs can run at once in a runner and its children; what is left out is decided there."""
    cores = os.cpu_count() or 1
    wanted = (start.concurrency, start.threads or 4 * cores, start.children or cores)
    return sum(max(1, min(count, MOST_SLOTS)) for count in wanted)
