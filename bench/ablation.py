"""What each optimisation buys: one at a time is switched off from outside, beside all of them in the same rounds.

    enqueue     one by one, each committed, at `synchronous` full and normal
    bulk        1000 jobs per call
    callers     64 of them, each awaits one enqueue after the other
    drain       no-op jobs and one worker in this process: async functions; sync ones in threads; async ones of which
                one in twenty fails and is retried; and with payloads of 10 KB

Medians of all rounds are printed: jobs per second, and microseconds of processor time for one job, of all threads
together. The switches are in switches.py.
"""

import argparse
import asyncio
import gc
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.comparison.report import table
from bench.contract import event_loop
from bench.switches import SWITCHES
from shigoto import Call, Context, Retry, Shigoto
from shigoto.worker import Worker

ALL_ON = "all on"
BATCH = 1_000
WARM = 4  # jobs with payloads, as parts of a thousand: they fill the log at least once
CALLERS = 64
ONE_IN = 20
TEXT = "".join(f"{number:04x} some words of a payload; " for number in range(400))[:10_240]


class Figure(NamedTuple):
    """One run."""

    jobs_per_s: float
    cpu_us: float


Figures = dict[tuple[str, str], list[Figure]]  # by measure, and what was switched off


class Stop:
    """A stop-watch for both kinds of time."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def figure(self, jobs: int) -> Figure:
        """What has passed since it was made."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Figure(jobs / wall, cpu / jobs * 1e6)


class Shop:
    """An app with a task for each measure, on a new file."""

    def __init__(self, folder: Path, synchronous: str, scale: int) -> None:
        self.warm_jobs = WARM * scale
        self.app = Shigoto(f"sqlite:///{folder / 'jobs.db'}?synchronous={synchronous}")

        @self.app.task
        async def noop(number: int) -> None: ...

        @self.app.task
        def sync_noop(number: int) -> None: ...

        @self.app.task
        async def with_payload(number: int, text: str) -> None: ...

        @self.app.task(retry=Retry.immediate())
        async def failing(ctx: Context, number: int) -> None:
            if ctx.attempt == 1 and number % ONE_IN == 0:
                raise ValueError(f"job {number} fails once")

        self.noop = noop
        self.calls: dict[str, Callable[[int], Call[Any]]] = {
            "async": noop.call,
            "sync": sync_noop.call,
            "payload": lambda number: with_payload.call(number, TEXT),
            "failures": failing.call,
        }

    def store(self, jobs: int, kind: str) -> None:
        """Put jobs into the file, in batches."""
        call = self.calls[kind]
        for first in range(0, jobs, BATCH):
            self.app.enqueue_many(call(number) for number in range(first, min(first + BATCH, jobs)))

    def warm(self) -> None:
        """Let the log grow to its full length, and copy it back."""
        self.store(self.warm_jobs, "payload")
        connection = self.app.connect()
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        connection.close()

    def expect(self, **counts: int) -> None:
        """The store must know of all of them."""
        found = self.app.stats()["default"]
        for state, count in counts.items():
            if getattr(found, state) != count:
                raise SystemExit(f"{count} jobs should be {state}, but the store says {found}")


def one_by_one(shop: Shop, jobs: int) -> Figure:
    shop.warm()
    shop.noop.enqueue(0)
    stop = Stop()
    for number in range(jobs):
        shop.noop.enqueue(number)
    figure = stop.figure(jobs)
    shop.expect(pending=jobs + shop.warm_jobs + 1)
    return figure


def bulk(shop: Shop, jobs: int) -> Figure:
    shop.store(BATCH, "async")
    stop = Stop()
    shop.store(jobs, "async")
    figure = stop.figure(jobs)
    shop.expect(pending=jobs + BATCH)
    return figure


def callers(shop: Shop, jobs: int) -> Figure:
    shop.noop.enqueue(0)
    each = max(1, jobs // CALLERS)
    stop = Stop()
    _run(_call_all(shop, each))
    figure = stop.figure(each * CALLERS)
    shop.expect(pending=each * CALLERS + 1)
    return figure


async def _call_all(shop: Shop, each: int) -> None:
    async def call() -> None:
        for number in range(each):
            await shop.noop.aenqueue(number)

    await asyncio.gather(*(call() for _ in range(CALLERS)))


def drain(shop: Shop, jobs: int, kind: str) -> Figure:
    shop.store(jobs, kind)
    stop = Stop()
    _run(_drain(shop.app))
    figure = stop.figure(jobs)
    shop.expect(pending=0, completed=jobs)
    return figure


async def _drain(app: Shigoto) -> None:
    await Worker(app, drain=True).run()


def _run(work: Coroutine[Any, Any, None]) -> None:
    with event_loop() as loop:
        loop.run(work)


@dataclass(frozen=True)
class Measure:
    """One way to use the store; `jobs` is how many of them take about a second here, as parts of a thousand."""

    run: Callable[[Shop, int], Figure]
    synchronous: str
    jobs: int


MEASURES = {
    "enqueue, full": Measure(one_by_one, "full", 4),
    "enqueue, normal": Measure(one_by_one, "normal", 16),
    "bulk": Measure(bulk, "full", 100),
    "64 callers": Measure(callers, "full", 32),
    "drain": Measure(partial(drain, kind="async"), "full", 50),
    "drain, threads": Measure(partial(drain, kind="sync"), "full", 30),
    "drain, failures": Measure(partial(drain, kind="failures"), "full", 30),
    "drain, 10 KB": Measure(partial(drain, kind="payload"), "full", 10),
}


def main(arguments: Sequence[str]) -> None:
    """Measure in rounds, and print the medians."""
    parser = argparse.ArgumentParser(
        prog="dev.py bench ablation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="only switches and measures with one of these words"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1000, help="the scale: 1000 makes runs of about a second")
    parser.add_argument("--folder", type=Path, help="where to put the stores, as to try another disk")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    plan = planned(options.words)
    if not plan or options.rounds < 1 or options.jobs < 1:
        parser.error(f"nothing to measure; there are {', '.join((*MEASURES, *SWITCHES))}")
    # What fails on purpose is no news, and where it would be printed is not what is measured.
    logging.getLogger("shigoto").addHandler(logging.NullHandler())
    figures: Figures = {}
    for number in range(options.rounds):
        for measure, switch in in_turns(plan, number):
            figure = run(measure, switch, options.jobs, options.folder)
            figures.setdefault((measure, switch), []).append(figure)
            print(
                f"round {number + 1}: {measure}: {switch}: {figure.jobs_per_s:,.0f} jobs/s", file=sys.stderr
            )
    print(json.dumps(as_json(figures)) if options.json else page(figures))


def planned(words: Sequence[str]) -> list[tuple[str, str]]:
    """Each measure with what is switched off for it, and all on before and after."""
    plan: list[tuple[str, str]] = []
    for measure in MEASURES:
        switches = [
            name
            for name, switch in SWITCHES.items()
            if measure in switch.measures and _meant(words, f"{measure} {name}")
        ]
        if switches:
            plan += [(measure, name) for name in (ALL_ON, *switches, ALL_ON)]
    return plan


def in_turns(plan: Sequence[tuple[str, str]], number: int) -> list[tuple[str, str]]:
    """The runs of one round: those of a measure in another order each time, because machines tire and recover."""
    turned: list[tuple[str, str]] = []
    for measure in MEASURES:
        runs = [each for each in plan if each[0] == measure]
        at = number % len(runs) if runs else 0
        turned += runs[at:] + runs[:at]
    return turned


def _meant(words: Sequence[str], text: str) -> bool:
    return not words or any(word in text for word in words)


def run(measure: str, switch: str, scale: int, folder: Path | None) -> Figure:
    """One run on a store of its own."""
    wanted, fewer = MEASURES[measure], 1
    with ExitStack() as stack:
        if switch != ALL_ON:
            stack.enter_context(SWITCHES[switch].off())
            fewer = SWITCHES[switch].fewer.get(measure, 1)
        place = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
        shop = Shop(Path(place), wanted.synchronous, scale)
        stack.callback(shop.app.close)
        gc.collect()
        return wanted.run(shop, max(ONE_IN, wanted.jobs * scale // fewer))


def medians(figures: Iterable[Figure]) -> Figure:
    """Of each kind of time by itself."""
    speeds, costs = zip(*figures, strict=True)
    return Figure(median(speeds), median(costs))


def as_json(figures: Figures) -> list[dict[str, Any]]:
    """All rounds."""
    return [
        {"measure": measure, "off": switch, "rounds": [figure._asdict() for figure in rounds]}
        for (measure, switch), rounds in figures.items()
    ]


def page(figures: Figures) -> str:
    """A table with a line for each run that has something switched off, sorted by what was switched."""
    rows: list[list[str]] = []
    for name in SWITCHES:
        for measure in MEASURES:
            if (measure, name) not in figures:
                continue
            on, off = medians(figures[measure, ALL_ON]), medians(figures[measure, name])
            rows.append(
                [
                    name,
                    measure,
                    f"{on.jobs_per_s:,.0f}",
                    f"{off.jobs_per_s:,.0f}",
                    f"{off.jobs_per_s / on.jobs_per_s:.2f}",
                    f"{on.cpu_us:.1f}",
                    f"{off.cpu_us:.1f}",
                ]
            )
    head = ["instead", "measure", "jobs/s, all on", "jobs/s, so", "×", "µs CPU, all on", "µs CPU, so"]
    return table(head, rows)
