"""What schedules cost: a look at many of which none is due, many that are due in the same second, and how late ticks
are when there is nothing else to do.

    a look            milliseconds that `engine.due` takes when none of --schedules is due; that is all of a cycle then
    a crowd           seconds until the jobs of --crowd schedules are stored, all of which are due in the same second,
                      by one worker, which runs them meanwhile
    lateness at rest  milliseconds from the instant of a tick until its job is stored, with twenty schedules of one
                      second and a worker that has nothing else to do

Once with schedules that were added while the system runs, and once with as many that are declared in code. SQLite syncs
as `synchronous=full` says, so that a disk counts. On PostgreSQL the server is started for this, unless --url names one.

    python3 dev.py bench schedules
    python3 dev.py bench schedules --engine postgres
    python3 dev.py bench schedules --table docs/guides/schedules.md       renews the figures of that page
"""

import argparse
import asyncio
import math
import time
from collections.abc import Generator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from bench.comparison import machine
from bench.comparison.command import shown
from bench.comparison.driver import write
from bench.comparison.embedding import placed
from bench.comparison.report import table
from bench.stores import TITLES, software, store
from shigoto import Shigoto
from shigoto.engine.protocol import Engine
from shigoto.model.ids import uuid7
from shigoto.model.schedule import Change, Schedule
from shigoto.model.time import host_clock
from shigoto.observe.events import TickFired
from shigoto.schedule.definition import Definition, template, written
from shigoto.schedule.recurrence import Cron
from shigoto.worker import Worker

LOOKS = 200
WARM = 20
AT_ONCE = 200
AT_REST = 20  # schedules
HOUR = 3_600_000


async def noop() -> None:
    """A job with nothing to do."""


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="bench schedules", description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--url", help="a database in which nothing else is")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--crowd", type=int, default=1_000)
    parser.add_argument(
        "--ahead", type=float, default=8.0, help="seconds to store the crowd and start a worker"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="how long lateness is measured")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE.md",
        help="write the figures there too; between the marks of schedules and their engine, if the file has such",
    )
    options = parser.parse_args(arguments)
    rows: list[tuple[str, str, str, str]] = []
    for kind in ("added", "declared"):
        with store(options.engine, options.url) as url:
            rows += _look_and_crowd(url, kind, options)
    with store(options.engine, options.url) as url:
        rows.append(asyncio.run(_lateness(url, options.seconds)))
    told = page(rows, options, " ".join(["python3 dev.py bench schedules", *shown(arguments)]))
    if options.table:
        write(options.table, placed(told, options.table, f"schedules {options.engine}"))
    print(told)


def page(rows: Sequence[tuple[str, str, str, str]], options: argparse.Namespace, command: str) -> str:
    """The figures, for a page about schedules."""
    return "\n".join(
        [
            f"## On {TITLES[options.engine]}",
            "",
            f"Measured on {datetime.now(UTC).date().isoformat()} with `{command}`.",
            f"The machine: {machine.describe()}. {software(options.engine, options.url)}.",
            "",
            table(("measure", "median", "p99", "most"), rows),
        ]
    )


def _look_and_crowd(url: str, kind: str, options: argparse.Namespace) -> list[tuple[str, str, str, str]]:
    count, crowd = options.schedules, options.crowd
    names = [f"{kind}{number:05}" for number in range(count)]
    app = Shigoto(url)
    app.engine.migrate()
    app.task(noop)
    at = host_clock() + HOUR
    fill(app, kind, names, Cron("0 0 1 1 *"), at)
    looks = list(_looks(app.engine, list(app.declared)))
    app.close()

    app = Shigoto(url)
    task = app.task(noop)
    for name in names[crowd:] if kind == "declared" else ():
        app.schedule(name, "0 0 1 1 *", call=task.call())
    seconds = asyncio.run(_crowd(app, kind, names[:crowd], options.ahead))
    app.close()
    return [
        _row(f"a look at {count} that are {kind}, ms", looks),
        (f"a crowd of {crowd} that are {kind}, s", f"{seconds:.2f}", "", ""),
    ]


def fill(app: Shigoto, kind: str, names: Sequence[str], cron: Cron, at: int) -> None:
    """Store schedules that are due at that instant, or bring them there; of those that are declared the app hears."""
    engine, task, now = app.engine, app.tasks["noop"], host_clock()
    added = written(Definition(recurrence=cron, task="noop", job=template(task.call().spec(uuid7()))))
    if kind == "declared":
        for name in names:
            app.schedule(name, cron.expression, call=task.call())
    for first in range(0, len(names), 1_000):
        some = names[first : first + 1_000]
        known = {each.name: each for each in engine.run(engine.schedules(some))}
        changes: list[Change] = []
        for name in some:
            before = known.get(name)
            declared = app.declared.get(name)
            schedule = Schedule(
                id=uuid7() if before is None else before.id,
                name=name,
                definition=added if declared is None else written(declared.definition),
                origin="" if declared is None else declared.origin,
                look_at=at,
                decided_to=now,
                created_at=now,
                declared_at=now,
            )
            changes.append(Change(schedule=schedule, seen=0 if before is None else before.revision))
        heard = engine.run(engine.tick(changes))
        assert all(heard)


def _looks(engine: Engine, declared: Sequence[str]) -> Generator[float]:
    for number in range(WARM + LOOKS):
        began = time.perf_counter()
        due = engine.run(engine.due(list(declared), AT_ONCE))
        took = time.perf_counter() - began
        assert not due.schedules
        if number >= WARM:
            yield took * 1_000


async def _crowd(app: Shigoto, kind: str, names: Sequence[str], ahead: float) -> float:
    """How long after the second in which they are due all have their jobs."""
    at = (host_clock() + int(ahead * 1_000)) // 1_000 * 1_000
    soon = time.gmtime(at / 1_000)
    fill(app, kind, names, Cron(f"{soon.tm_sec} {soon.tm_min} {soon.tm_hour} * * *"), at)
    left = set(names)
    done = asyncio.Event()

    def fired(event: TickFired) -> None:
        left.discard(event.schedule)
        if not left:
            done.set()

    app.bus.subscribe(fired, TickFired)
    async with Worker(app, any_role=True), asyncio.timeout(120):
        assert host_clock() < at, "this machine is too slow to begin in time"
        await done.wait()
        return (host_clock() - at) / 1_000


async def _lateness(url: str, seconds: float) -> tuple[str, str, str, str]:
    app = Shigoto(url)
    app.engine.migrate()
    task = app.task(noop)
    for number in range(AT_REST):
        app.schedule(f"second{number}", every=timedelta(seconds=1), call=task.call())
    late: list[float] = []
    app.bus.subscribe(lambda event: late.append(host_clock() - event.at), TickFired)
    async with Worker(app, any_role=True):
        await asyncio.sleep(2.0)
        late.clear()
        await asyncio.sleep(seconds)
    app.close()
    assert len(late) >= AT_REST * (seconds - 2), "ticks are missing"
    return _row(f"lateness at rest, {len(late)} ticks, ms", late)


def _row(name: str, figures: Sequence[float]) -> tuple[str, str, str, str]:
    high = sorted(figures)[math.ceil(len(figures) * 0.99) - 1]
    return name, f"{median(figures):.2f}", f"{high:.2f}", f"{max(figures):.2f}"
