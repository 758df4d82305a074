"""The speed of this checkout beside another one, in paired rounds on one machine.

    enqueue    one by one, each committed; sync
    aenqueue   the same, awaited by one caller
    callers    64 callers on one event loop, each of which awaits one at a time
    bulk       1000 jobs per call
    drain      no-op async jobs by one worker in one process
    pick-up    milliseconds from enqueue to the start of the handler, one job at a time on an idle worker
    start-up   milliseconds that `python -m shigoto --version` takes

    python3 dev.py bench paired --base ../other-checkout [--engine postgres] [--rounds 9]

Each figure of a round comes from a process of its own, with a store of its own; which checkout begins alternates. The
median of the paired ratios is what counts: both figures of a pair are taken within seconds, so a noisy minute meets
both. A ratio above 1 says that this checkout runs more jobs per second, or takes more milliseconds.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from shigoto import Shigoto, Task
from shigoto.worker import Worker

ROOT = Path(__file__).resolve().parent.parent
BULK = 1_000
CALLERS = 64


def make_app(url: str) -> tuple[Shigoto, Task[[int], None]]:
    app = Shigoto(url)

    @app.task(name="noop")
    def noop(number: int) -> None: ...

    return app, noop


def enqueue(url: str, jobs: int) -> float:
    _, noop = make_app(url)
    noop.enqueue(0)
    started = time.perf_counter()
    for number in range(jobs):
        noop.enqueue(number)
    return jobs / (time.perf_counter() - started)


def aenqueue(url: str, jobs: int) -> float:
    return asyncio.run(_awaited(url, jobs, callers=1))


def callers(url: str, jobs: int) -> float:
    return asyncio.run(_awaited(url, jobs * 10, callers=CALLERS))


async def _awaited(url: str, jobs: int, callers: int) -> float:
    _, noop = make_app(url)
    await noop.aenqueue(0)

    async def call() -> None:
        for number in range(jobs // callers):
            await noop.aenqueue(number)

    started = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return jobs // callers * callers / (time.perf_counter() - started)


def bulk(url: str, jobs: int) -> float:
    app, noop = make_app(url)
    noop.enqueue(0)
    started = time.perf_counter()
    for first in range(0, jobs * 20, BULK):
        app.enqueue_many(noop.call(number) for number in range(first, first + BULK))
    return jobs * 20 / (time.perf_counter() - started)


def drain(url: str, jobs: int) -> float:
    return asyncio.run(_drain(url, jobs * 20))


async def _drain(url: str, jobs: int) -> float:
    app = Shigoto(url)

    @app.task(name="noop")
    async def noop(number: int) -> None: ...

    for first in range(0, jobs, BULK):
        await app.aenqueue_many(noop.call(number) for number in range(first, first + BULK))
    started = time.perf_counter()
    await Worker(app, drain=True, any_role=True).run()
    seconds = time.perf_counter() - started
    done = (await app.astats())["default"].completed
    if done != jobs:
        raise SystemExit(f"{jobs} jobs were enqueued, but the store has completed {done}")
    return jobs / seconds


def pick_up(url: str, jobs: int) -> float:
    return asyncio.run(_pick_up(url, min(jobs, 150)))


async def _pick_up(url: str, jobs: int) -> float:
    app = Shigoto(url)
    begun: asyncio.Queue[float] = asyncio.Queue()

    @app.task
    async def note() -> None:
        begun.put_nowait(time.perf_counter())

    waits: list[float] = []
    async with Worker(app, any_role=True):
        for _ in range(jobs):
            before = time.perf_counter()
            await note.aenqueue()
            waits.append((await begun.get() - before) * 1_000)
    return median(waits)


def start_up(_url: str, _jobs: int) -> float:
    times: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "shigoto", "--version"], check=True, stdout=subprocess.DEVNULL)
        times.append((time.perf_counter() - started) * 1_000)
    return min(times)


MEASURES: dict[str, Callable[[str, int], float]] = {
    "enqueue": enqueue,
    "aenqueue": aenqueue,
    "callers": callers,
    "bulk": bulk,
    "drain": drain,
    "pick-up": pick_up,
    "start-up": start_up,
}


def main(arguments: Sequence[str]) -> None:
    """Measure both checkouts in rounds, and print the medians and the median of the paired ratios."""
    parser = argparse.ArgumentParser(prog="dev.py bench paired", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", type=Path, required=True, help="the checkout to compare with")
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--jobs", type=int, default=1_500, help="single enqueues; bulk and drain take 20 times as many"
    )
    parser.add_argument("--only", default=",".join(MEASURES), help="measures, separated by commas")
    options = parser.parse_args(arguments)
    trees = {"base": options.base.resolve(), "this": ROOT}
    names = [name for name in MEASURES if name in options.only.split(",")]
    figures: dict[str, dict[str, list[float]]] = {name: {tree: [] for tree in trees} for name in names}
    with addresses(options.engine) as fresh:
        for number in range(options.rounds):
            for name in names:
                for tree in sorted(trees, reverse=bool(number % 2)):
                    figure = measured(trees[tree], name, next(fresh), options.jobs)
                    figures[name][tree].append(figure)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    report(figures)


def measured(checkout: Path, name: str, url: str, jobs: int) -> float:
    """Return one figure of one checkout, taken in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    # A checkout whose tests have run has its byte code, and the other one may keep it too: else only one would compile.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    words = [sys.executable, str(Path(__file__)), name, url, str(jobs)]
    done = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    if not found["source"].startswith(str(checkout / "src")):
        raise SystemExit(f"{found['source']} was measured instead of {checkout}.")
    return float(found["figure"])


@contextmanager
def addresses(engine: str) -> Iterator[Iterator[str]]:
    """Yield addresses of empty stores, as many as are asked for."""
    from bench.stores import store

    with store(engine, None) as first:
        yield fresh_files(first) if engine == "sqlite" else fresh_databases(first)


def fresh_files(first: str) -> Iterator[str]:
    path = Path(first.removeprefix("sqlite:///"))
    for number in range(1_000_000):
        yield f"sqlite:///{path.with_name(f'jobs-{number}.db')}"


def fresh_databases(server: str) -> Iterator[str]:
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        for number in range(1_000_000):
            connection.execute(f"CREATE DATABASE paired_{number}")
            yield urlsplit(server)._replace(path=f"/paired_{number}").geturl()
            connection.execute(f"DROP DATABASE paired_{number} WITH (FORCE)")


def report(figures: dict[str, dict[str, list[float]]]) -> None:
    print(f"{'':10}{'base':>12}{'this':>12}{'median of paired ratios':>26}{'lowest':>9}{'highest':>9}")
    for name, trees in figures.items():
        ratios = [this / base for base, this in zip(trees["base"], trees["this"], strict=True)]
        print(
            f"{name:10}{median(trees['base']):12,.1f}{median(trees['this']):12,.1f}"
            f"{median(ratios):26.3f}{min(ratios):9.3f}{max(ratios):9.3f}"
        )


if __name__ == "__main__":
    import shigoto

    measure, address, count = sys.argv[1:]
    Shigoto(address).engine.migrate()
    print(json.dumps({"figure": MEASURES[measure](address, int(count)), "source": str(shigoto.__file__)}))
