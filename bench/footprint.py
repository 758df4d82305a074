"""What it costs to have it, on Linux.

    import      processor time of `import shigoto` and of `shigoto --help`, from start to end, the best of ten
    idle        a worker with nothing to do, all its processes together: processor time in percent of one core, and
                memory as the sum of each one's share (PSS), for `--processes 1` with an app of one task, and for the
                form without an app, which has three runner processes
    pick-up     one job at a time, at random moments, from this process to an idle worker: until the handler begins,
                counted from the call of enqueue(), and from its return, when the job is committed. A claim is a
                commit of its own, so a bare commit, at the same moments on the same disk, stands beside it

Other Python processes on the machine share pages with these, and make the memory look smaller: `private` leaves out
all that is shared.
"""

import argparse
import json
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bench.processes import cpu_of, running, tree_of
from shigoto import Shigoto

PYTHON = sys.executable
SHIGOTO = [PYTHON, "-m", "shigoto"]
BEST_OF = 10
GOALS = {
    "import s": 0.15,
    "help s": 0.15,
    "idle cpu %": 1.0,
    "idle PSS MB": 90.0,
    "pick-up p50 ms": 3.0,
}

SHOP = """
import time
from shigoto import Shigoto

app = Shigoto("sqlite:///shop.db")

@app.task
async def now() -> int:
    return time.monotonic_ns()
"""

Figures = dict[str, float]


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the figures beside their goals."""
    parser = argparse.ArgumentParser(
        prog="dev.py bench footprint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(PARTS)}; all if none")
    parser.add_argument("--seconds", type=float, default=60, help="how long to watch an idle worker")
    parser.add_argument("--jobs", type=int, default=300, help="how many jobs to pick up")
    parser.add_argument("--settle", type=float, default=5, help="how long a worker may take to come to rest")
    parser.add_argument("--folder", type=Path, help="where to put the stores, as to try another disk")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if not sys.platform.startswith("linux"):
        parser.error("the figures come from /proc, which only Linux has")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    figures: Figures = {}
    for name, part in PARTS.items():
        if not options.parts or name in options.parts:
            print(f"{name} …", file=sys.stderr)
            figures |= part(options)
    print(json.dumps(figures) if options.json else table(figures))


def imports(options: argparse.Namespace) -> Figures:
    """The processor time of what people wait for most often."""
    return {
        "import s": min(cpu_of([PYTHON, "-c", "import shigoto"]) for _ in range(BEST_OF)),
        "help s": min(cpu_of([*SHIGOTO, "--help"]) for _ in range(BEST_OF)),
    }


def idle(options: argparse.Namespace) -> Figures:
    """Both forms of a worker, one after the other."""
    with_app = watched(["--app", "shop", "worker", "--processes", "1"], options)
    without = watched(["worker"], options)
    return {
        **with_app,
        **{f"{name}, 3 runners": value for name, value in without.items()},
    }


def watched(words: Sequence[str], options: argparse.Namespace) -> Figures:
    """An idle worker, watched for a while."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        (Path(folder) / "shop.py").write_text(SHOP)
        with running([*SHIGOTO, *words], Path(folder)) as worker:
            time.sleep(options.settle)
            before = tree_of(worker.pid)
            time.sleep(options.seconds)
            after = tree_of(worker.pid)
    spent = sum(costs.cpu for costs in after.values()) - sum(costs.cpu for costs in before.values())
    return {
        "idle cpu %": spent / options.seconds * 100,
        "idle PSS MB": sum(costs.pss for costs in after.values()) / 1024,
        "idle private MB": sum(costs.private for costs in after.values()) / 1024,
        "idle processes": len(after),
    }


def pick_up(options: argparse.Namespace) -> Figures:
    """Milliseconds from here to a handler in another process."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        (folder / "shop.py").write_text(SHOP)
        app = Shigoto(f"sqlite:///{folder / 'shop.db'}")
        app.enqueue_by_name("now", {}, allow_unknown=True)
        with running([*SHIGOTO, "--app", "shop", "worker", "--processes", "1"], folder):
            wait_for(lambda: app.stats()["default"].completed == 1)
            time.sleep(options.settle)
            waits = [wait_of(app) for _ in range(options.jobs)]
        app.close()
        bare = bare_commits(folder, options.jobs)
    return {
        **spread("pick-up", [from_commit for _, from_commit in waits]),
        **spread("pick-up from the call", [from_call for from_call, _ in waits]),
        **spread("bare commit", bare),
    }


def wait_of(app: Shigoto) -> tuple[float, float]:
    """Store a job at some moment, and tell how many milliseconds later it began, from the call and from the commit."""
    pause()
    called = time.monotonic_ns()
    handle = app.enqueue_by_name("now", {})
    committed = time.monotonic_ns()
    # By then it has begun: asking earlier would take the processor, and the store, from the worker.
    time.sleep(0.02)
    began = handle.result(timeout=30)
    assert isinstance(began, int)
    return (began - called) / 1e6, (began - committed) / 1e6


def bare_commits(folder: Path, count: int) -> list[float]:
    """Milliseconds for an insert into a table of one column, and its commit."""
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.executescript(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE job (payload TEXT)"
    )
    waits: list[float] = []
    for _ in range(count):
        pause()
        before = time.monotonic_ns()
        connection.execute("INSERT INTO job VALUES ('{}')")
        waits.append((time.monotonic_ns() - before) / 1e6)
    connection.close()
    return waits


def pause() -> None:
    time.sleep(random.uniform(0.02, 0.1))


PARTS: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "import": imports,
    "idle": idle,
    "pick-up": pick_up,
}


def spread(name: str, values: list[float]) -> Figures:
    ranked = sorted(values)
    return {f"{name} p50 ms": median(ranked), f"{name} p99 ms": ranked[int(len(ranked) * 0.99)]}


def wait_for(condition: Callable[[], bool], within: float = 60.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"the worker did not come to work within {within:g} s")
        time.sleep(0.05)


def table(figures: Figures) -> str:
    lines = [f"{'':34}{'measured':>12}{'goal':>12}"]
    for name, value in figures.items():
        goal = GOALS.get(name.partition(",")[0])
        lines.append(f"{name:34}{value:12.3f}{'' if goal is None else f'< {goal:g}':>12}")
    return "\n".join(lines)
