"""The service: how fast jobs are submitted over HTTP, and how fast a worker over HTTP drains them beside one that opens
the store itself; and what a thousand waiting long polls cost.

    submitted         requests per second with one job each, by one caller and by --callers of them; and jobs per second
                      in batches of 100, on connections that are kept
    drained           jobs per second of a worker in one process, of jobs that do nothing: at the store itself, and over
                      HTTP; one after the other in each round, and what the second is of the first
    waiting           megabytes that a server has more with --waiting long polls of workers, and the share of a
                      processor that it takes while nothing happens

One server process, one worker process, all on this machine. SQLite syncs as `synchronous=full` says, so that a disk
counts. The PostgreSQL is started for this.

    python3 dev.py bench http
    python3 dev.py bench http --engine postgres
    python3 dev.py bench http --table docs/guides/http.md       renews the figures of that page
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from bench.comparison import machine
from bench.comparison.command import shown
from bench.comparison.driver import write
from bench.comparison.embedding import placed
from bench.comparison.report import table
from bench.stores import TITLES, software, store
from devtools.postgres.server import free_port
from shigoto import Shigoto
from shigoto.worker import Worker

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
READY_WITHIN = 30.0
BATCH = 100
STORED_AT_ONCE = 5_000
WAIT = 30.0  # seconds of one long poll
JSON = {"Content-Type": "application/json"}


async def noop() -> None:
    """A job with nothing to do."""


app = Shigoto()  # of the server and of the worker, each in a process of its own
app.task(noop)


def main(arguments: Sequence[str]) -> None:
    """Measure, and print tables; or be the worker of a drain."""
    if arguments[:1] == ["drain"]:
        drain(*arguments[1:])
        return
    parser = argparse.ArgumentParser(prog="bench http", description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--url", help="a database in which nothing else is")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--requests", type=int, default=2_000, help="with one job each, and so many jobs in batches"
    )
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=20_000, help="that are drained")
    parser.add_argument("--waiting", type=int, default=1_000)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="how long nothing happens to those who wait"
    )
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE.md",
        help="write the figures there too; between the marks of http and its engine, if the file has such",
    )
    options = parser.parse_args(arguments)
    figures: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, figure in one_round(options).items():
            figures.setdefault(name, []).append(figure)
    setting = Setting(
        date=datetime.now(UTC).date().isoformat(),
        command=" ".join(["python3 dev.py bench http", *shown(arguments)]),
        machine=machine.describe(),
        software=software(options.engine, options.url),
        rounds=options.rounds,
    )
    told = page(options.engine, figures, setting)
    if options.table:
        write(options.table, placed(told, options.table, f"http {options.engine}"))
    print(told)


class Setting(Struct, frozen=True, kw_only=True):
    """When and where figures were measured."""

    date: str
    command: str
    machine: str
    software: str
    rounds: int


def page(engine: str, figures: dict[str, list[float]], setting: Setting) -> str:
    """The figures of all rounds, for a page about the service."""
    rows = [
        (name, _shown(median(each)), f"{_shown(min(each))}..{_shown(max(each))}")
        for name, each in figures.items()
    ]
    rounds = "one round" if setting.rounds == 1 else f"{setting.rounds} rounds"
    return "\n".join(
        [
            f"## On {TITLES[engine]}",
            "",
            f"Measured on {setting.date} with `{setting.command}`: medians of {rounds}.",
            f"The machine: {setting.machine}. {setting.software}.",
            "",
            table(("", "median", "lowest..highest"), rows),
        ]
    )


def one_round(options: argparse.Namespace) -> dict[str, float]:
    """Every measure once, on a store of its own."""
    figures: dict[str, float] = {}
    with store(options.engine, options.url) as url:
        here = Shigoto(url)
        here.engine.migrate()
        with served(url) as (server, port):
            one, many = {"task": "noop"}, {"jobs": [{"task": "noop"}] * BATCH}
            count = options.requests
            figures["submitted one by one, requests/s"] = count / submit(port, "/jobs", one, count, 1)
            figures[f"submitted by {options.callers} callers, requests/s"] = count / submit(
                port, "/jobs", one, count, options.callers
            )
            figures[f"submitted in batches of {BATCH}, jobs/s"] = (
                count * 10 / submit(port, "/jobs/batch", many, count * 10 // BATCH, 1)
            )
            drained(f"http://{HOST}:{port}")  # what is left of these
            for name, address in (("at the store", url), ("over HTTP", f"http://{HOST}:{port}")):
                fill(here, options.jobs)
                figures[f"drained {name}, jobs/s"] = options.jobs / drained(address)
            figures["over HTTP of at the store"] = (
                figures["drained over HTTP, jobs/s"] / figures["drained at the store, jobs/s"]
            )
            waited = asyncio.run(long_polls(server.pid, port, options.waiting, options.seconds))
            figures[f"{options.waiting} waiting, MB more"] = waited.megabytes
            figures[f"{options.waiting} waiting, % of a processor"] = 100 * waited.processor / options.seconds
        here.close()
    return figures


def _shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"


@contextmanager
def served(url: str) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A server process on this store, which is ready, and its port."""
    port = free_port()
    words = [sys.executable, "-m", "shigoto", "--app", "bench.http:app", "server", "--port", str(port)]
    process = subprocess.Popen([*words, "--log-level", "error"], cwd=ROOT, env=environment(SHIGOTO_URL=url))
    try:
        deadline = time.monotonic() + READY_WITHIN
        while not _is_ready(port):
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("The server was not ready.")
            time.sleep(0.05)
        yield process, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def environment(**more: str) -> dict[str, str]:
    """That of a process which is to find this source, and this folder."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "SHIGOTO_ANY_ROLE": "1", **more}


def _is_ready(port: int) -> bool:
    with closing(HTTPConnection(HOST, port, timeout=5)) as line, suppress(OSError):
        line.request("GET", "/readyz")
        return line.getresponse().status == 200
    return False


def submit(port: int, path: str, body: Any, count: int, callers: int) -> float:
    """How many seconds so many requests take, by so many callers at once."""
    text, errors = json.dumps(body).encode(), list[str]()

    def call() -> None:
        line = HTTPConnection(HOST, port, timeout=60)
        for _ in range(count // callers):
            line.request("POST", f"/api/v1{path}", text, JSON)
            answer = line.getresponse()
            answer.read()
            if answer.status >= 300:
                errors.append(f"{answer.status} {path}")
        line.close()

    threads = [threading.Thread(target=call) for _ in range(callers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise SystemExit(f"The server refused: {errors[0]}.")
    return time.perf_counter() - began


def fill(here: Shigoto, jobs: int) -> None:
    """Store so many, past the server."""
    task = here.tasks.get("noop") or here.task(noop)
    for first in range(0, jobs, STORED_AT_ONCE):
        here.enqueue_many(task.call() for _ in range(min(STORED_AT_ONCE, jobs - first)))


def drained(url: str) -> float:
    """How many seconds a worker takes from its start to its end, without those of its process."""
    words = [sys.executable, "-m", "bench", "http", "drain", url]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The drain failed: {done.stderr[-1000:]}")
    return float(done.stdout)


def drain(url: str) -> None:
    """Be that worker, and print it."""
    app.url = url
    app.engine.run(app.engine.workers())  # so that whatever is loaded first is loaded
    began = time.perf_counter()
    asyncio.run(Worker(app, drain=True, any_role=True, ticks=False).run())
    print(time.perf_counter() - began)
    app.close()


class Waited:
    """What it cost the server that so many waited for a while: megabytes, and seconds of processor time."""

    def __init__(self, megabytes: float, processor: float) -> None:
        self.megabytes = megabytes
        self.processor = processor


async def long_polls(
    pid: int,
    port: int,
    count: int,
    seconds: float,
    token: str | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Waited:
    """Let so many workers wait for work, each on a connection of its own, and look at the server.

    They all stand and wait when it is looked at, and get an empty answer when it is over; or a job, if somebody stores
    one `meanwhile`.
    """
    raise_file_limit()
    before = memory_of(pid)
    gate = asyncio.Semaphore(50)
    lines = await asyncio.gather(*(_wait_for_work(port, gate, number, token) for number in range(count)))
    await asyncio.sleep(2)  # until the last of them stands there
    used, began = processor_of(pid), time.monotonic()
    await asyncio.sleep(seconds)
    processor, megabytes = processor_of(pid) - used, (memory_of(pid) - before) / 1e6
    if time.monotonic() - began > seconds + 5:
        raise SystemExit("The machine was too busy to measure anything.")
    await asyncio.to_thread(meanwhile)
    for reader, writer in lines:
        head = await reader.readuntil(b"\r\n")
        if b" 200 " not in head:
            raise SystemExit(f"A long poll ended with {head!r}.")
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return Waited(megabytes, processor)


async def _wait_for_work(
    port: int, gate: asyncio.Semaphore, number: int, token: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with gate:
        reader, writer = await asyncio.open_connection(HOST, port)
        wanted = {"name": f"waits-{number}", "tasks": ["noop"], "lease": 3 * WAIT}
        _write(writer, "/workers", wanted, token)
        told = json.loads(await _body(reader))
        _write(writer, f"/workers/{told['worker']}/claim", {"wait": WAIT}, token)
        return reader, writer


def _write(writer: asyncio.StreamWriter, path: str, body: Any, token: str | None) -> None:
    text = json.dumps(body)
    known = "" if token is None else f"Authorization: Bearer {token}\r\n"
    head = f"POST /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{known}"
    writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())


async def _body(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split()[0])
    return await reader.readexactly(length)


def memory_of(pid: int) -> int:
    """Bytes of a process in memory."""
    return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * resource.getpagesize()


def processor_of(pid: int) -> float:
    """Seconds of processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def raise_file_limit() -> None:
    """As many open connections as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
