"""The supervisor: keeps runner processes at work, beats for them, and clears up after those that die.

It never imports user code, and does nothing that could take long: whatever handlers do to their own process, this
one beats for them, sweeps the store, and notices their death at once.

    runner dies ──► its running jobs are read ──► what it left is killed ──► it is reported to the store: what ran has
      │                                                                      crashed, the rest is given back
      └───► a new one starts, at once if the last one had worked; nothing waits for the report

A runner that has run enough jobs, or uses too much memory, claims no more and finishes what runs, however long that
takes; a new one takes its place at once.

A stop has `stop_timeout` seconds, 28 unless told otherwise:

    at once          runners are asked to stop, and take up to two seconds less, in phases of their own (`parts.py`)
    one second left  what is still there is killed. It is dead now, so what it held can be given back: no overlap
    none left        the watchdog ends this process, even if the store does not answer

A second request makes the runners hurry, a third one kills them.
"""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

from msgspec import Struct, structs

from shigoto.model.errors import SchemaTooNew, StoreMoved
from shigoto.observe.bus import Bus
from shigoto.observe.events import RunnerDied, RunnerFailed, RunnerRetired, RunnerStarted
from shigoto.observe.log import configure_logging, log_events
from shigoto.observe.metrics import Metrics, metrics_if_shown
from shigoto.worker.health import HealthPort, Readiness, Signs, judge, ready_of
from shigoto.worker.process import WorkerFlag, how_it_ended
from shigoto.worker.process_main import CLOSING_SECONDS, Watchdog
from shigoto.worker.starting import places
from shigoto.worker.state import lease_clock
from shigoto.worker.stopping import Wakeup
from shigoto.worker.supervisor import host, runner_process
from shigoto.worker.supervisor.host import memory_of
from shigoto.worker.supervisor.runner_process import RunnerNews, RunnerProcess, Start, StartFailed
from shigoto.worker.supervisor.store import FENCED, SupervisorStore, beat_for, deaths_in, persist

SOUND = 1.0  # seconds at work that make a start a good one
FORGIVEN = 2  # short lives in a row before there is a pause, if they got to work at all
SHORT_PAUSE = 1.0  # seconds, for these
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
STILLBORN = 3  # deaths in a row, before anything was at work, that tell enough
MOST_FINISHING = 8  # runners of one slot that only finish what they have; processes cost memory
logger = logging.getLogger("shigoto.worker")
RUNNERS_LESS, KILL_BEFORE, REPORT_BEFORE = 2.0, 1.0, 0.1  # seconds before the limit of a stop
HURRY = 5.0  # seconds that a stop may still take after the second request
TRIFLE = 0.3  # seconds beyond the limit until the watchdog ends the process
LEAST = 1.0  # seconds that a stop may take in any case: to kill runners and to give back what they held
RELOAD_WITHIN = 5.0
WEIGH_EVERY = 1.0


class RunnerSlot:
    """One slot for a runner process, filled again and again. `name` is what its runner processes are called, None for
    a name of their own.

        start ──► starting ──hello──► announcing ──ready──► at work ──► ended, failed, killed or dead
          ▲                                                                  │
          └──── at once, or after a pause that doubles while starts fail ────┘   or never: stopped, drained

    A runner that claims no more leaves its place to the next one, and finishes what it has.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.runner: RunnerProcess | None = None
        self.wakeup = Wakeup()
        self._in_vain = 0
        self._stillborn = 0
        self._finishing: set[asyncio.Task[float | None]] = set()

    @property
    def ready(self) -> bool:
        runner = self.runner
        return runner is not None and runner.alive and runner.ready_at is not None

    def pause(self, runner: RunnerProcess, *, wait_for_change: bool) -> float:
        """Return how many seconds to wait before the next start, now that this runner is gone."""
        if runner.failed is not None and wait_for_change:
            return inf
        recycled = runner.ended is not None and runner.ended.reason == "recycled"
        if recycled or runner.is_replaced or runner.ready_for() >= SOUND:
            self._in_vain = 0
            return 0.0
        if runner.ready_for() > 0:
            # It got to work, so another one will: what killed it runs alone from now on.
            self._in_vain += 1
            return 0.0 if self._in_vain <= FORGIVEN else SHORT_PAUSE
        return self.next_pause()

    def is_hopeless(self, runner: RunnerProcess) -> bool:
        """Return True if enough runners of this slot have died before they were ready, and none has become ready."""
        self._stillborn = 0 if runner.ready_at is not None or runner.killed else self._stillborn + 1
        return self._stillborn >= STILLBORN

    async def leave_to_finish(self, runner: "asyncio.Task[float | None]") -> None:
        """Let this runner finish beside the next one; wait if there are too many of its kind."""
        self._in_vain = 0
        self._finishing.add(runner)
        runner.add_done_callback(self._finishing.discard)
        while len(self._finishing) > MOST_FINISHING:
            await asyncio.wait(self._finishing, return_when=asyncio.FIRST_COMPLETED)

    def next_pause(self) -> float:
        """Count one more start in vain, and return the pause."""
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._in_vain, 30))
        self._in_vain += 1
        return pause


class SupervisorSettings(Struct, frozen=True, kw_only=True):
    """How many runner processes, and what else was asked of the supervisor. `max_memory` is in bytes.

    `health` is the host and the port where it says whether it is ready.
    If `numbered`, runners without a name are called 1, 2, 3 …; a `notice` is logged before they start.
    """

    processes: int
    stop_timeout: float
    stats_every: float = 0.0
    reload: bool = False
    stop_on_eof: bool = False
    max_memory: int | None = None
    ready_file: Path | None = None
    health: tuple[str, int] | None = None
    numbered: bool = False
    notice: str | None = None

    def names(self, name: str | None) -> list[str | None]:
        """Return the names of the runners; None for a name of their own."""
        numbers = range(1, self.processes + 1)
        if name is None:
            return [str(number) if self.numbered else None for number in numbers]
        return [name] if self.processes == 1 else [f"{name}-{number}" for number in numbers]


def supervise(start: Start, settings: SupervisorSettings, tell: Callable[[StartFailed], None]) -> int:
    """Run runner processes until told to stop, and return the exit code. For the main thread of a process that ends
    afterwards: signals that come later are ignored.

    What `start` says of names and limits is adapted for each runner. `tell` hears why the first ones could not begin.
    """
    configure_logging(format=start.log_format, level=start.log_level.upper(), never_wait=True)
    if settings.notice is not None:
        logger.info("%s", settings.notice)
    orphans = host.Orphans()
    with Watchdog(before_end=orphans.kill_all) as watchdog, host.orphans_adopted():
        supervisor = Supervisor(start, settings, watchdog, orphans)
        # Never another kind of loop: this one hears signals whatever happens, and needs nothing that is not there.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(supervisor.run())
        watchdog.code = supervisor.code
        watchdog.allow(CLOSING_SECONDS)
        supervisor.leave()
        if supervisor.failed is not None:
            tell(supervisor.failed)
    return supervisor.code


def room_for_runners(stop_timeout: float) -> float:
    """Return how many seconds of a stop are for the runners' own phases."""
    return stop_timeout - min(RUNNERS_LESS, stop_timeout / 3)


class Supervisor:
    """Holds the slots of runners. For one run, on the event loop of the main thread.

    `code` is the exit code, `failed` why the first runners could not begin, if they could not.
    """

    def __init__(
        self, start: Start, settings: SupervisorSettings, watchdog: Watchdog, orphans: host.Orphans
    ) -> None:
        self._bus = Bus()
        log_events(self._bus)
        self._metrics: Metrics | None = None
        self._health_port: HealthPort | None = None
        if settings.health is not None:
            self._metrics = metrics_if_shown(
                self._bus, lambda: self._store.engine, more=lambda: ready_of(self._readiness())
            )
            self._health_port = HealthPort(*settings.health, self._readiness, self._metrics)
        self._start = structs.replace(
            start,
            parent=os.getpid(),
            slots=places(start.concurrency, start.threads, start.children),
            stop_timeout=room_for_runners(settings.stop_timeout),
            tell_files=settings.reload,
            tell_counts=self._metrics is not None,
        )
        self._settings = settings
        self._watchdog = watchdog
        self._orphans = orphans
        self._name = start.name or f"{socket.gethostname()}:{os.getpid()}"
        self._reaper = runner_process.Reaper()
        self._slots = [RunnerSlot(name) for name in settings.names(start.name)]
        self._runners: dict[RunnerProcess, asyncio.Task[float | None]] = {}
        self._watch = host.Watch(self._reload) if settings.reload else None
        self._ready_file = host.ReadyFile(settings.ready_file)
        self._clock = lease_clock()
        self._manager = host.ServiceManager(os.environ)
        self._signals_heard = 0
        self._level = 0
        self._limit = inf
        self._was_ready = False
        self.code = 0
        self.failed: StartFailed | None = None
        self._store: SupervisorStore
        self._loop: asyncio.AbstractEventLoop

    async def run(self) -> None:
        """Keep every slot filled, until all of them are given up."""
        self._loop = asyncio.get_running_loop()
        with self._signals(), self._ready_file:
            async with asyncio.TaskGroup() as group:
                self._store = SupervisorStore(
                    group,
                    self._name,
                    self._bus,
                    stats_every=self._settings.stats_every,
                    probes=self._settings.health is not None,
                )
                watching = [group.create_task(persist("service manager", self._manager.run))]
                if self._health_port is not None:
                    watching.append(group.create_task(persist("health port", self._health_port.run)))
                if self._watch is not None:
                    watching.append(group.create_task(persist("reload", self._watch.run)))
                await asyncio.wait([group.create_task(self._hold(slot)) for slot in self._slots])
                while self._runners:
                    await asyncio.wait(self._runners.values())
                room = max(self._settings.stop_timeout, LEAST)
                patience = min(self._limit, self._loop.time() + room) - REPORT_BEFORE
                if not await self._store.close(max(0.0, patience - self._loop.time())):
                    self.code = 1
                await self._orphans.end(self._reaper.expected)
                for task in watching:
                    task.cancel()

    def leave(self) -> None:
        self._store.leave()

    def stop(self) -> None:
        """Stop; the second time hurry, the third time kill."""
        self._level += 1
        timeout, now = self._timeout(self._level), self._loop.time()
        self._limit = min(self._limit, now + max(timeout, LEAST))
        self._watchdog.allow(max(timeout, LEAST) + TRIFLE)
        self._ready_file.hide()
        self._manager.stopping()
        self._loop.call_at(now + timeout - min(KILL_BEFORE, timeout / 6), self._kill)
        for slot in self._slots:
            slot.wakeup.ring()
        for runner in self._runners:
            runner.stop(self._level)
        if self._level > 2:
            self._kill()

    # One slot, and the runner in it.

    async def _hold(self, slot: RunnerSlot) -> None:
        while not self._level:
            try:
                pause = await self._fill(slot)
            except Exception:
                pause = slot.next_pause()
                logger.exception("A runner process cannot be kept at work; it is tried again in %g s", pause)
            if pause is None:
                return
            if pause:
                await slot.wakeup.wait(None if pause == inf else pause)

    async def _fill(self, slot: RunnerSlot) -> float | None:
        """Start a runner, wait until its place is free, and return the pause before the next one; None if none."""
        try:
            runner = RunnerProcess(structs.replace(self._start, name=slot.name), self._heard)
        except OSError as error:
            in_vain = slot.next_pause()
            self._bus.publish(RunnerFailed(self._name, f"A process cannot be started: {error}", in_vain))
            return in_vain
        self._reaper.expect(runner)
        slot.runner = runner
        attending = self._runners[runner] = asyncio.create_task(self._attend(slot, runner))
        either: list[asyncio.Future[Any]] = [attending, runner.finishing]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        slot.runner = None
        if attending.done():
            return attending.result()
        await slot.leave_to_finish(attending)
        return 0.0

    async def _attend(self, slot: RunnerSlot, runner: RunnerProcess) -> float | None:
        """Look after a runner until its end, and return the pause before the next one; None if none."""
        self._bus.publish(RunnerStarted(self._name, runner.pid))
        async with asyncio.TaskGroup() as beside:
            tasks = [
                beside.create_task(persist("heartbeats", lambda: self._beat_for(runner))),
                beside.create_task(persist("weighing", lambda: self._weigh(runner))),
            ]
            await asyncio.wait([runner.dead])
            for task in tasks:
                task.cancel()
        try:
            # Before anybody else can get its jobs, and be it from this very process.
            await self._orphans.end(self._reaper.expected)
            pause = self._next(slot, runner)
            self._clear_up(runner, pause)
        finally:
            del self._runners[runner]
        return pause

    def _next(self, slot: RunnerSlot, runner: RunnerProcess) -> float | None:
        ended, failed = runner.ended, runner.failed
        if self._level or (ended is not None and ended.reason == "drained"):
            if ended is not None and ended.reason == "fenced":
                self.code = 1
            return None
        if failed is None:
            if ended is not None and ended.reason == "fenced" and not runner.is_replaced:
                self._bus.publish(RunnerRetired(self._name, runner.pid, FENCED))
            if not (self._was_ready or self._settings.reload) and slot.is_hopeless(runner):
                how = how_it_ended(runner.dead.result())
                self._give_up(
                    StartFailed(
                        runner_process.NO_START, f"Every process that loads the app dies: the last one {how}."
                    )
                )
                return None
            return slot.pause(runner, wait_for_change=False)
        hopeless = failed.code in (StoreMoved.code, SchemaTooNew.code)
        if hopeless or not (self._was_ready or self._settings.reload):
            self._give_up(failed)
            return None
        pause = slot.pause(runner, wait_for_change=self._settings.reload)
        self._bus.publish(RunnerFailed(self._name, failed.text, None if pause == inf else pause))
        return pause

    def _give_up(self, failed: StartFailed) -> None:
        self.code, self.failed = 1, self.failed or failed
        self.stop()

    def _clear_up(self, runner: RunnerProcess, pause: float | None) -> None:
        """Report it dead, unless it has given back everything by itself or never had anything."""
        hello, ended, code = runner.hello, runner.ended, runner.dead.result()
        jobs = runner.running_jobs
        on_purpose = jobs.has(WorkerFlag.OVERDUE) or (runner.killed and code == -signal.SIGKILL)
        unhurt = ended is not None or runner.failed is not None
        crash_report, groups = runner.crash_report(), jobs.children()
        deaths = deaths_in(
            runner.pid, code, inside=jobs.running(), in_children=jobs.in_children(), trace=crash_report
        )
        runner.forget()
        if not (on_purpose or unhurt or (hello is None and self._level)):
            how = how_it_ended(code)
            self._bus.publish(RunnerDied(self._name, runner.pid, how, len(deaths), pause, crash_report))
        if hello is not None and not (unhurt and (ended is None or not ended.unreleased)):
            self._store.report_dead(hello, () if on_purpose or unhurt else deaths, groups)

    async def _beat_for(self, runner: RunnerProcess) -> None:
        hello = await runner.ready()
        state = self._store.serve(hello)
        self._tell_ready()
        why_not = await beat_for(runner, hello, state)
        if why_not is not None:
            self._replace(runner, *why_not)

    async def _weigh(self, runner: RunnerProcess) -> None:
        most = self._settings.max_memory
        while most is not None and not runner.finishing.done():
            await asyncio.sleep(WEIGH_EVERY)
            memory = memory_of(runner.pid) or 0
            if memory > most and not self._level:
                self._bus.publish(
                    RunnerRetired(self._name, runner.pid, f"it uses {memory >> 20} MB of memory")
                )
                runner.recycle()

    def _replace(self, runner: RunnerProcess, reason: str, patience: float) -> None:
        if runner.alive and not self._level:
            self._bus.publish(RunnerRetired(self._name, runner.pid, reason))
            runner.end_within(patience)

    def _heard(self, runner: RunnerProcess, news: RunnerNews) -> None:
        if isinstance(news, runner_process.RunnerReady):
            self._was_ready = True
        elif isinstance(news, runner_process.Files) and self._watch is not None:
            self._watch.add(news.paths)
        elif isinstance(news, runner_process.Counted) and self._metrics is not None:
            self._metrics.add(news.samples)

    def _tell_ready(self) -> None:
        """If every slot is filled. Not before we beat for whoever fills it: until then we would not notice that we
        have slept, and that it needs a moment to wake up."""
        if all(slot.ready for slot in self._slots) and not self._level:
            self._ready_file.show()
            count = len(self._slots)
            self._manager.ready(f"{count} runner process{'' if count == 1 else 'es'} at work")

    def _readiness(self) -> Readiness:
        stopping = bool(self._level or self._signals_heard)
        return judge(
            signs_of(self._slots, self._store, self._clock, poll=self._start.poll, stopping=stopping)
        )

    def _reload(self) -> None:
        for slot in self._slots:
            if slot.runner is None:
                slot.wakeup.ring()
        for runner in self._runners:
            self._replace(runner, "the code has changed", RELOAD_WITHIN)

    def _kill(self) -> None:
        for runner in self._runners:
            runner.kill()

    # The world around it.

    @contextmanager
    def _signals(self) -> Generator[None]:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._loop.add_signal_handler(signal.SIGCHLD, self._reaper.reap)
        for number in numbers:
            signal.signal(number, self._signalled)
        if self._settings.stop_on_eof:
            host.call_at_eof(self._loop, self.stop)
        # A stop that was asked for during the start has waited for this.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            yield
        finally:
            self._loop.remove_signal_handler(signal.SIGCHLD)
            # All is done; one that comes late must not look like a death.
            for number in numbers:
                signal.signal(number, signal.SIG_IGN)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """Tell the watchdog, between any two steps of this thread, whatever keeps the event loop busy."""
        self._signals_heard += 1
        self._watchdog.allow(max(self._timeout(self._signals_heard), LEAST) + TRIFLE)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.stop)

    def _timeout(self, level: int) -> float:
        return self._settings.stop_timeout if level == 1 else HURRY


def signs_of(
    slots: Sequence[RunnerSlot],
    store: SupervisorStore,
    clock: Callable[[], float],
    *,
    poll: float,
    stopping: bool,
) -> Signs:
    """What is known of the runners in these slots, and of their stores, now. It is read from outside: a runner that is
    too busy to say how it is has stopped being at work."""
    now, runners = clock(), [slot.runner for slot in slots if slot.ready]
    cycles = [runner.running_jobs.cycled_at() for runner in runners if runner is not None]
    hellos = [runner.hello for runner in runners if runner is not None]
    return Signs(
        stopping=stopping,
        missing=len(slots) - len(cycles),
        stores=store.signs({hello.url for hello in hellos if hello is not None}),
        cycles=[None if at is None else now - at for at in cycles],
        poll=poll,
    )
