"""Microseconds of processor time that one job takes, stage by stage on its way through one SQLite file.

    make the call        arguments checked and encoded: `task.call(7)`
    make its id          as `enqueue_many` makes them, by the thousand
    make its spec        what is asked of the engine
    store it             `engine.run(engine.enqueue_many(…))`, a thousand jobs each
    one enqueue          `task.enqueue(7)`, each a commit of its own; and what of it is the face (the call; id, spec and
                         handle), the driver (locks, doorbell, checkpoints), and SQLite executing the statement
    claim, settle        the operations of a worker, by the thousand and by the hundred
    run, async or sync   a handler that does nothing: from a lease to its settlement, without pools
    drain                the whole worker in one process, from the first claim to the last settlement

All but the drain are measured in one thread. The store syncs as `synchronous=normal` says, so that a disk does not
matter. The lowest of all repetitions is told: whatever else a machine does only adds to it.

    python3 dev.py bench stages --src before=../old/src --src after=src

measures several source trees in turns, each in processes of its own. The stages are cut where both the oldest and the
newest source have a seam.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import shigoto
from bench.comparison.report import table
from shigoto import Shigoto, Task
from shigoto.context import Signals
from shigoto.engine.protocol import Engine
from shigoto.engine.sqlite import file
from shigoto.enqueue import Call
from shigoto.model import ids
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec, Lease
from shigoto.model.worker import Announcement, Ending, Settlement, Want
from shigoto.worker import Worker
from shigoto.worker.runner import Runner

ROOT = Path(__file__).resolve().parent.parent
BATCH = 1_000
WARM = 4_000  # jobs of 10 KB, which fill the log at least once
STORED = "one spec stored"
FACE, DRIVER = "of it id, spec and handle", "of it the driver"
NAMES = (
    "make the call",
    "make its id",
    "make its spec",
    "store it, 1000 at a time",
    "claim, 1000 at a time",
    "claim, 100 at a time",
    "settle, 1000 at a time",
    "settle, 100 at a time",
    "run, async",
    "run, sync",
    "drain, async",
    "drain, sync in threads",
    "one enqueue",
    "of it the call",
    FACE,
    DRIVER,
    "of it SQLite",
)

Figures = dict[str, float]


class Bench:
    """A store with an app of two tasks, and the microseconds that were measured on it."""

    def __init__(self, path: Path, jobs: int) -> None:
        self.app = Shigoto(f"sqlite:///{path}?synchronous=normal")
        self.engine: Engine = self.app.engine
        self.path = path
        self.jobs = jobs
        self.figures: Figures = {}

        @self.app.task
        async def noop(number: int) -> None: ...

        @self.app.task
        def sync_noop(number: int) -> None: ...

        @self.app.task
        async def wide(text: str) -> None: ...

        self.wide: Task[[str], Any] = wide
        self.noop: Task[[int], Any] = noop
        self.sync_noop: Task[[int], Any] = sync_noop
        self.noop.enqueue(0)
        self.sync_noop.enqueue(0)

    @contextmanager
    def stage(self, name: str, jobs: int) -> Iterator[None]:
        """Measure what is done inside; several times add up to one stage."""
        started = time.process_time()
        yield
        self.figures[name] = self.figures.get(name, 0.0) + (time.process_time() - started) / jobs * 1e6


def ways_in(bench: Bench) -> None:
    """From a call to a stored job, a thousand at a time."""
    jobs = bench.jobs
    with bench.stage("make the call", jobs):
        calls = [bench.noop.call(number) for number in range(jobs)]
    make_ids, make_spec = _ids(), _spec()
    for first in range(0, jobs, BATCH):
        batch = calls[first : first + BATCH]
        with bench.stage("make its id", jobs):
            made = make_ids(len(batch))
        with bench.stage("make its spec", jobs):
            specs = [make_spec(call, id) for call, id in zip(batch, made, strict=True)]
        with bench.stage("store it, 1000 at a time", jobs):
            bench.engine.run(bench.engine.enqueue_many(specs))


def _ids() -> Callable[[int], list[UUID]]:
    many: Callable[[int], list[UUID]] | None = getattr(ids, "uuids7", None)
    return many or (lambda count: [uuid7() for _ in range(count)])


def _spec() -> Callable[[Call[Any], UUID], JobSpec]:
    """How a call becomes a spec; the old way made the id, too, so that must be taken off."""
    from msgspec.structs import replace

    if hasattr(ids, "uuids7"):
        return lambda call, id: call.spec(id)
    return lambda call, id: replace(call.route.spec, id=call.route.options.id or id, payload=call.payload)


def one_by_one(bench: Bench) -> None:
    """One job, one commit, with a log that has been full once. What is not SQLite's own is told by differences."""
    jobs = bench.jobs // 5
    _warm_log(bench)
    with bench.stage("one enqueue", jobs):
        for number in range(jobs):
            bench.noop.enqueue(number)
    with bench.stage("of it the call", jobs):
        for number in range(jobs):
            bench.noop.call(number)


def specs_one_by_one(bench: Bench) -> None:
    """The same without a face."""
    jobs = bench.jobs // 5
    _warm_log(bench)
    specs = [_spec()(bench.noop.call(number), uuid7()) for number in range(jobs)]
    with bench.stage(STORED, jobs):
        for spec in specs:
            bench.engine.run(bench.engine.enqueue_many((spec,)))


def statements_one_by_one(bench: Bench) -> None:
    """The same without a driver, and without its checkpoints."""
    jobs = bench.jobs // 5
    _warm_log(bench)
    statements = [_statement_of(bench) for _ in range(jobs)]
    connection = file.connect(bench.path, synchronous="normal")
    for first in range(0, jobs, BATCH):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        batch = statements[first : first + BATCH]
        with bench.stage("of it SQLite", jobs):
            for text, values in batch:
                connection.execute(text, values)
    connection.close()


def _warm_log(bench: Bench) -> None:
    """Let the log grow to its full length, and copy it back."""
    for _ in range(0, WARM, BATCH):
        bench.app.enqueue_many([bench.wide.call("x" * 10_240)] * BATCH)
    connection = bench.app.connect()
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    connection.close()


def _statement_of(bench: Bench) -> tuple[str, Any]:
    spec = _spec()(bench.noop.call(1), uuid7())
    op = bench.engine.enqueue_many((spec,))
    # In older checkouts it is a field of the op.
    if direct := getattr(getattr(op, "hints", op), "direct", None):
        asked: list[tuple[str, Any]] = []
        with suppress(AttributeError):  # there is no cursor to look at
            direct(lambda text, values: asked.append((text, values)))
        return asked[0]
    command = next(op.start())
    return command.text, command.values


def through_the_store(bench: Bench) -> None:
    """Claims and settlements as a worker's, in the calling thread."""
    for _ in range(0, bench.jobs, BATCH):
        bench.app.enqueue_many(bench.noop.call(number) for number in range(BATCH))
    worker = uuid7()
    bench.engine.run(
        bench.engine.announce(
            Announcement(
                id=worker, name="bench", tasks=("noop",), queues=None, slots=1, version="0", lease=3_600_000
            )
        )
    )
    half = bench.jobs // 2
    _claim_and_settle(bench, worker, BATCH, half)
    _claim_and_settle(bench, worker, BATCH // 10, half)


def _claim_and_settle(bench: Bench, worker: UUID, size: int, jobs: int) -> None:
    engine, want = bench.engine, (Want(tasks=("noop",), queues=None, limit=size),)
    for _ in range(jobs // size):
        with bench.stage(f"claim, {size} at a time", jobs):
            leases = engine.run(engine.claim(worker, want))
        assert len(leases) == size
        settlements = [_completed(lease) for lease in leases]
        with bench.stage(f"settle, {size} at a time", jobs):
            engine.run(engine.settle(worker, settlements))


def _completed(lease: Lease) -> Settlement:
    return Settlement(
        number=lease.number, token=lease.token, queue=lease.queue, ending=Ending.COMPLETED, result="null"
    )


class Hand:
    """Where one job runs, as the runner sees it."""

    def __init__(self, task: "asyncio.Task[None] | None" = None) -> None:
        self.task = task
        self.lease: Lease | None = None
        self.signals = Signals()
        self.wanted: Ending | None = None
        self.limit_at = float("inf")
        self.variables: Any = None
        self.cancels = 0
        self.worn = False

    def limit(self, hard: int | None, soft: int | None) -> None:
        """There are none."""


def runs(bench: Bench) -> None:
    """From a lease to its settlement."""
    asyncio.run(_runs(bench))


async def _runs(bench: Bench) -> None:
    runner: Any = Runner({"noop": bench.noop, "sync_noop": bench.sync_noop}, Random(1))
    hand: Any = Hand(asyncio.current_task())
    leases = [_lease(number, "noop") for number in range(bench.jobs)]
    run = runner.run
    with bench.stage("run, async", bench.jobs):
        for lease in leases:
            await run(hand, lease)
    leases = [_lease(number, "sync_noop") for number in range(bench.jobs)]
    run_in_thread, hand = runner.run_in_thread, Hand()
    with bench.stage("run, sync", bench.jobs):
        for lease in leases:
            run_in_thread(hand, lease)


def _lease(number: int, task: str) -> Lease:
    return Lease(
        number=number,
        token=1,
        id=UUID(int=number),
        task=task,
        queue="default",
        attempt=1,
        failures=0,
        snoozes=0,
        max_failures=6,
        priority=0,
        run_at=0,
        claimed_at=0,
        solo=False,
        tenant="",
        payload=f'{{"number":{number}}}',
    )


def drains(bench: Bench) -> None:
    """All of a worker's part."""
    for name, task in (("drain, async", bench.noop), ("drain, sync in threads", bench.sync_noop)):
        for first in range(0, bench.jobs, BATCH):
            bench.app.enqueue_many(task.call(number) for number in range(first, first + BATCH))
        with bench.stage(name, bench.jobs):
            asyncio.run(_drain(bench.app))


async def _drain(app: Shigoto) -> None:
    await Worker(app, drain=True).run()


PARTS: tuple[Callable[[Bench], None], ...] = (
    ways_in,
    through_the_store,
    runs,
    one_by_one,
    specs_one_by_one,
    statements_one_by_one,
    drains,
)


def measure(jobs: int) -> Figures:
    """Each stage once."""
    figures: Figures = {}
    for part in PARTS:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path(folder) / "jobs.db", jobs)
            part(bench)
            bench.app.close()
        figures |= bench.figures
    return figures


def measure_elsewhere(source: Path, jobs: int) -> Figures:
    """The same with some source tree, in a process of its own."""
    paths = [str(source), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "bench.stages", str(source), str(jobs)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{source} could not be measured; what it said stands above")
    figures: Figures = json.loads(done.stdout)
    return figures


def lowest(rounds: Sequence[Figures]) -> Figures:
    """The lowest figure of each stage."""
    best = {name: min(figures[name] for figures in rounds) for name in rounds[0]}
    # Differences of lowest figures: those of one round would not add up to the lowest either.
    best[FACE] = max(0.0, best["one enqueue"] - best["of it the call"] - best[STORED])
    best[DRIVER] = max(0.0, best[STORED] - best["of it SQLite"])
    return {name: best[name] for name in NAMES}


def page(columns: dict[str, Figures]) -> str:
    """A table with a line for each stage, and what has become of it if there are two columns."""
    rows: list[list[str]] = []
    for stage in NAMES:
        figures = [column[stage] for column in columns.values()]
        row = [stage, *(f"{figure:.2f}" for figure in figures)]
        if len(figures) == 2 and figures[0]:
            row.append(f"{figures[1] / figures[0]:.2f}")
        rows.append(row)
    return table(["µs of one job", *columns, *["×"] * (len(columns) == 2)], rows)


def main(arguments: Sequence[str]) -> None:
    """Measure each source in turns, and print the lowest figures."""
    parser = argparse.ArgumentParser(
        prog="dev.py bench stages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--src",
        action="append",
        metavar="[NAME=]FOLDER",
        help="the folder that holds the package; several are measured in turns; this checkout's if none",
    )
    parser.add_argument("--rounds", type=int, default=5, help="repetitions; the lowest figure counts")
    parser.add_argument("--jobs", type=int, default=20_000, help="for each stage and round, in thousands")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.jobs < 2 * BATCH or options.jobs % (2 * BATCH) or options.rounds < 1:
        parser.error(f"--jobs must be a multiple of {2 * BATCH}, and --rounds at least 1")
    sources = dict(_source(parser, given) for given in options.src or [f"this={ROOT / 'src'}"])
    rounds: dict[str, list[Figures]] = {name: [] for name in sources}
    for number in range(options.rounds):
        for name, source in sources.items():
            print(f"round {number + 1}: {name} …", file=sys.stderr)
            rounds[name].append(measure_elsewhere(source, options.jobs))
    columns = {name: lowest(figures) for name, figures in rounds.items()}
    print(json.dumps(columns) if options.json else page(columns))


def _source(parser: argparse.ArgumentParser, given: str) -> tuple[str, Path]:
    name, found, folder = given.rpartition("=")
    source = Path(folder).resolve()
    if not (source / "shigoto" / "__init__.py").is_file():
        parser.error(f"there is no package `shigoto` in {source}")
    return name if found else folder, source


def _child(source: Path, jobs: int) -> None:
    at = Path(shigoto.__file__).resolve()
    if not at.is_relative_to(source):
        raise SystemExit(f"the package came from {at}, not from {source}")
    print(json.dumps(measure(jobs)))


if __name__ == "__main__":
    _child(Path(sys.argv[1]), int(sys.argv[2]))
