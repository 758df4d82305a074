"""What it costs to watch: how fast a worker drains jobs that do nothing with nobody watching, with each kind of signal
alone, and with all of them at once.

    off               nothing is logged of a job that goes well, nothing is counted, nothing is traced
    logs              JSON lines at level INFO to a file: two for each job
    metrics           what /metrics shows is counted, and sent to a supervisor once a second
    traces            one job in a hundred is traced, and its spans go to a sink on this machine
    all               all of these together

One worker process, one after the other in each round, the order turned by one from round to round; so all are measured
in one run, beside each other. Microseconds are of processor time, of all threads of the worker's process. SQLite syncs
as `synchronous=full` says, so that a disk counts. The PostgreSQL is started for this.

    python3 dev.py bench signals
    python3 dev.py bench signals --engine postgres
    python3 dev.py bench signals --table docs/guides/metrics.md       renews the figures of that page
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct, json

from bench.comparison import machine
from bench.comparison.command import shown
from bench.comparison.driver import write
from bench.comparison.embedding import placed
from bench.comparison.report import table
from bench.http import ROOT, Setting, environment, fill
from bench.stores import TITLES, software, store
from shigoto import Shigoto
from shigoto.observe.log import configure_logging
from shigoto.observe.metrics import EventCounters
from shigoto.observe.settings import Traces
from shigoto.worker import Worker
from shigoto.worker.process import encode
from shigoto.worker.process_main import event_loop
from shigoto.worker.reporting import job_fields
from shigoto.worker.starting import collect_rarely
from shigoto.worker.supervisor.runner_process import Counted

SAMPLE = 0.01  # of the jobs are traced
FLUSHED_WITHIN = 10.0  # seconds
CERTAIN = 20  # jobs that are expected to be traced: with so many, some are
SIGNALS = ("logs", "metrics", "traces")


async def noop() -> None:
    """A job with nothing to do."""


class Drained(Struct, frozen=True):
    """What a drain took: seconds, and seconds of processor time; and how many jobs the metrics have."""

    seconds: float
    processor: float
    counted: int = 0


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a table; or be the worker of a drain."""
    if arguments[:1] == ["drain"]:
        drain(arguments[1], arguments[2:])
        return
    parser = argparse.ArgumentParser(prog="bench signals", description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--url", help="a database in which nothing else is")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=50_000, help="that are drained each time")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE.md",
        help="write the figures there too; between the marks of signals and its engine, if the file has such",
    )
    options = parser.parse_args(arguments)
    ways = ways_to_watch()
    figures: dict[str, list[Drained]] = {name: [] for name in ways}
    with sinking() as sink:
        for turn in range(options.rounds):
            for name in turned(list(ways), turn):
                figures[name].append(one_drain(options, ways[name], sink))
    setting = Setting(
        date=datetime.now(UTC).date().isoformat(),
        command=" ".join(["python3 dev.py bench signals", *shown(arguments)]),
        machine=machine.describe(),
        software=software(options.engine, options.url),
        rounds=options.rounds,
    )
    told = page(options.engine, options.jobs, figures, setting)
    if options.table:
        write(options.table, placed(told, options.table, f"signals {options.engine}"))
    print(told)


def ways_to_watch() -> dict[str, tuple[str, ...]]:
    """Each way that is measured, and the signals that are on in it."""
    return {"off": (), **{name: (name,) for name in SIGNALS}, "all": SIGNALS}


def turned(names: list[str], by: int) -> list[str]:
    """The same from another one on: whoever comes first has a quieter machine, or a colder one."""
    at = by % len(names)
    return names[at:] + names[:at]


def page(engine: str, jobs: int, figures: dict[str, list[Drained]], setting: Setting) -> str:
    """The figures of all rounds, for a page about signals."""
    off = figures["off"]
    rows: list[tuple[str, ...]] = []
    for name, each in figures.items():
        ratios = [one.seconds / this.seconds for one, this in zip(off, each, strict=True)]
        more = [1e6 * (this.processor - one.processor) / jobs for one, this in zip(off, each, strict=True)]
        rows.append(
            (
                name,
                f"{jobs / median(one.seconds for one in each):,.0f}",
                f"{median(ratios):.2f}",
                f"{min(ratios):.2f}..{max(ratios):.2f}",
                f"{1e6 * median(one.processor for one in each) / jobs:.1f}",
                "" if name == "off" else f"{median(more):.1f}",
            )
        )
    rounds = "one round" if setting.rounds == 1 else f"{setting.rounds} rounds"
    titles = ("signals", "jobs/s", "of off", "lowest..highest", "us of processor a job", "us more than off")
    return "\n".join(
        [
            f"## On {TITLES[engine]}",
            "",
            f"Measured on {setting.date} with `{setting.command}`: medians of {rounds} of {jobs:,} jobs.",
            f"The machine: {setting.machine}. {setting.software}.",
            "",
            table(titles, rows),
        ]
    )


def one_drain(options: argparse.Namespace, signals: Sequence[str], sink: "Sink") -> Drained:
    """Fill a store of its own, and let a process drain it."""
    with store(options.engine, options.url) as url, tempfile.TemporaryFile() as log:
        here = Shigoto(url, traces=traced(signals, sink.address))
        here.engine.migrate()
        fill(here, options.jobs)
        here.flush(FLUSHED_WITHIN)
        here.close()
        taken = sink.taken
        words = [sys.executable, "-m", "bench", "signals", "drain", url, *signals]
        around = environment(OTEL_EXPORTER_OTLP_ENDPOINT=sink.address)
        done = subprocess.run(words, cwd=ROOT, env=around, stdout=subprocess.PIPE, stderr=log, check=False)
        log.seek(0)
        written = log.read()
        if done.returncode:
            raise SystemExit(f"The drain failed: {written[-1000:].decode(errors='replace')}")
        drained = json.decode(done.stdout, type=Drained)
        _expect(options.jobs, signals, drained, written.count(b"completed successfully"))
        if "traces" in signals and options.jobs * SAMPLE > CERTAIN and sink.taken == taken:
            raise SystemExit("No spans have come from the worker.")
        return drained


def traced(signals: Sequence[str], endpoint: str | None = None) -> Traces | None:
    """What is said of traces to an app that stores or runs jobs: which are traced is decided where they are stored."""
    return Traces(sample=SAMPLE, endpoint=endpoint) if "traces" in signals else None


def _expect(jobs: int, signals: Sequence[str], drained: Drained, lines: int) -> None:
    """A signal that is on must have told of every job: else something else was measured."""
    if lines != (jobs if "logs" in signals else 0):
        raise SystemExit(f"{lines} lines tell of jobs that were completed, of {jobs}.")
    if "metrics" in signals and drained.counted != jobs:
        raise SystemExit(f"{drained.counted} jobs were counted, of {jobs}.")


def drain(url: str, signals: Sequence[str]) -> None:
    """Be that worker, and print what it took."""
    configure_logging(
        format="json", level="INFO" if "logs" in signals else "WARNING", fields=job_fields, gather=True
    )
    app = Shigoto(url, traces=traced(signals))
    app.task(noop)
    # So that whatever is loaded first is loaded: a worker runs for days, and this one for two seconds.
    app.engine.run(app.engine.workers())
    if app.tracing is not None:
        app.tracing.prepare()
    collect_rarely()
    with asyncio.Runner(loop_factory=event_loop()) as runner:
        told = runner.run(_drain(app, signals))
    app.close()
    print(json.encode(told).decode())


async def _drain(app: Shigoto, signals: Sequence[str]) -> Drained:
    counted: list[float] = []
    async with AsyncExitStack() as stack:
        if "metrics" in signals:
            await stack.enter_async_context(metered(app, counted))
        began, used = time.perf_counter(), time.process_time()
        await Worker(app, drain=True, any_role=True, ticks=False).run()
        took = time.perf_counter() - began, time.process_time() - used
    return Drained(*took, round(sum(counted)))


@asynccontextmanager
async def metered(app: Shigoto, counted: list[float]) -> AsyncIterator[None]:
    """Count as a runner process does for its supervisor."""
    counters = EventCounters()
    counters.watch(app.bus)

    def send() -> None:
        samples = counters.take()
        encode(Counted(samples))
        counted.extend(
            each.values[0] for each in samples if each.name == "jobs_ended" and each.labels[-1] == "completed"
        )

    async def run() -> None:
        while True:
            await asyncio.sleep(1)
            send()

    sending = asyncio.create_task(run(), name="bench-metrics")
    try:
        yield
    finally:
        sending.cancel()
        send()


class Sink(ThreadingHTTPServer):
    """A server that takes whatever is sent to it, and counts how often."""

    taken = 0

    @property
    def address(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def sinking() -> Generator[Sink]:
    """One that runs."""
    server = Sink(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Taking(BaseHTTPRequestHandler):
    """Reads, and says nothing."""

    server: Sink

    def do_POST(self) -> None:
        """Take it."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.taken += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Not at all."""
