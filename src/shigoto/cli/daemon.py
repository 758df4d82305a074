"""The process of a command that runs until it is told to stop: worker, scheduler and server.

    begin_quietly, check_process_options   before it begins: signals, standard input, folders
    port_of_worker, port_of_scheduler      the option `--health [HOST:]PORT`: where it says whether it is ready
    run_here                               a worker, a scheduler or the service in this very process
    signals_interrupt                      for all commands that must put something away before they end

In this very process there is no supervisor: the worker beats from a thread, and a crash takes everything with it.
Help is to be printed fast, so asyncio, the worker and its metrics are imported by the functions that need them.
"""

import logging
import os
import signal
import stat
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import click
from msgspec import Struct

from shigoto.model.text import storable, without_secrets

if TYPE_CHECKING:
    from shigoto.app import Shigoto
    from shigoto.observe.store_gauges import GaugeValue
    from shigoto.scheduler import Scheduler
    from shigoto.worker import Worker
    from shigoto.worker.health import Probe, Readiness
    from shigoto.worker.process_main import ExitReport
    from shigoto.worker.stopping import Runnable

logger = logging.getLogger("shigoto.worker")

Beside = Callable[[], Coroutine[Any, Any, None]]  # what is run as long as that of which it tells


def begin_quietly() -> None:
    """A stop that is asked for while all the rest is imported and started is heard later: process 1 would never hear
    it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


class ProcessOptions(Struct, frozen=True, kw_only=True):
    """The options of every command that runs until it is told to stop, by their names."""

    name: str | None
    ready_file: Path | None
    stop_on_eof: bool
    log_format: Literal["text", "json"]
    log_level: str

    @property
    def shown_name(self) -> str | None:
        return None if self.name is None else storable("--name", self.name)


def check_process_options(address: str | None, options: ProcessOptions) -> None:
    """Raise UsageError if the world around the process is not as these options need it."""
    _warn_of_password(address)
    if options.stop_on_eof:
        _expect_stream()
    if options.ready_file is not None and not options.ready_file.parent.is_dir():
        raise click.UsageError(f"--ready-file needs a folder that is there, not {options.ready_file.parent}.")


def _warn_of_password(address: str | None) -> None:
    """For as long as a process runs, every user of the machine can read the words that it was started with."""
    if address is not None and without_secrets(address) != address:
        click.echo(
            "Warning: the command line has a password in it, which every user of this machine can read there. Put the"
            " address into $SHIGOTO_URL, or the password into a passfile.",
            err=True,
        )


def _expect_stream() -> None:
    """A file has no end that anybody could wait for: more may be written to it at any time."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        mode = 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and sys.stdin.isatty())):
        raise click.UsageError("--stop-on-eof needs a pipe, a socket or a terminal as standard input.")


@contextmanager
def signals_interrupt() -> Generator[None]:
    """Let SIGTERM and a closed terminal do what Ctrl-C does, so that all is put away before the end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        at_ctrl_c = signal.getsignal(signal.SIGINT)
        if callable(at_ctrl_c):  # where an event loop runs, it cancels what runs there
            at_ctrl_c(number, frame)
        else:
            raise KeyboardInterrupt

    # One that is ignored (by nohup, say) stays ignored.
    numbers = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN
    ]
    former = [(number, signal.signal(number, interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in former:
            signal.signal(number, handler)


def place_of(health: str | None) -> tuple[str, int] | None:
    if health is None:
        return None
    host, _, port = health.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def port_of_worker(place: tuple[str, int] | None, app: "Shigoto", worker: "Worker", poll: float) -> Beside:
    """Tells of a worker in this very process. Raises OptionInvalid if the port cannot be had."""
    if place is None:
        return _nothing
    from shigoto.worker.health import Readiness, Signs, judge
    from shigoto.worker.state import lease_clock

    clock = lease_clock()

    def ready(probe: "Probe") -> Readiness:
        at = worker.cycled_at()
        cycle = None if at is None else clock() - at
        return judge(Signs(stopping=worker.stopping, stores=[probe.signs()], cycles=[cycle], poll=poll))

    return _health_port(place, app, ready, list)


def port_of_scheduler(place: tuple[str, int] | None, app: "Shigoto", scheduler: "Scheduler") -> Beside:
    """Tells of a scheduler: it fires what is due, and nothing is seriously wrong. Raises OptionInvalid likewise."""
    if place is None:
        return _nothing
    from shigoto.scheduler import gauge_values
    from shigoto.worker.health import Readiness, Signs, judge

    def ready(probe: "Probe") -> Readiness:
        health = scheduler.health()
        details: tuple[str, ...] = ()
        if health.state == "new":
            details = ("It has not begun yet.",)
        elif health.status == "Error" and not scheduler.stopping:
            # What the store's trouble is has an address in it, and the port is for anybody.
            details = health.details if health.connected else ("The store does not answer.",)
        return judge(Signs(stopping=scheduler.stopping, stores=[probe.signs()], details=details))

    return _health_port(place, app, ready, lambda: gauge_values(scheduler.health()))


async def _nothing() -> None: ...


def _health_port(
    place: tuple[str, int],
    app: "Shigoto",
    ready: "Callable[[Probe], Readiness]",
    more: "Callable[[], list[GaugeValue]]",
) -> Beside:
    from asyncio import gather

    from shigoto.observe.metrics import metrics_if_shown
    from shigoto.worker.health import HealthPort, Probe, ready_of
    from shigoto.worker.state import lease_clock

    probe = Probe(lambda: app.engine, lease_clock())
    metrics = metrics_if_shown(app.bus, lambda: app.engine, more=lambda: [*ready_of(ready(probe)), *more()])
    port = HealthPort(*place, lambda: ready(probe), metrics)

    async def tell() -> None:
        await gather(port.run(), probe.run())

    return tell


def run_here(
    app: "Shigoto",
    worker: "Runnable[ExitReport]",
    options: ProcessOptions,
    beside: Beside,
    *,
    notice: str | None,
) -> int:
    """Run the worker, or the scheduler, to its end, and tell the exit code; `beside` runs as long as it does."""
    from asyncio import get_running_loop

    from shigoto.engine.open import name_of_store
    from shigoto.observe.log import configure_logging, some_of
    from shigoto.worker.process_main import SignalWatch, StopLevels, Watchdog, run_to_the_end
    from shigoto.worker.reporting import hidden, job_fields
    from shigoto.worker.supervisor.host import call_at_eof

    configure_logging(
        format=options.log_format,
        level=options.log_level.upper(),
        fields=job_fields,
        hide=hidden,
        gather=True,
    )
    if notice is not None:
        logger.info("%s", notice)
    with Watchdog() as watchdog:
        stop_levels = StopLevels(worker.stop, worker.stop_timeout, watchdog)

        def begin() -> None:
            if options.stop_on_eof:
                call_at_eof(get_running_loop(), stop_levels.ask_more)
            logger.info("Tasks: %s; store: %s", some_of(app.tasks) or "none", name_of_store(app.engine))

        with SignalWatch(dict.fromkeys((signal.SIGINT, signal.SIGTERM), stop_levels.ask_more)):
            return run_to_the_end(app, worker, watchdog, begin=begin, beside=beside, ended=lambda _: None)
