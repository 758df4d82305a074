"""The page that comes out: markdown that can stand in the documentation."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from msgspec import Struct

from bench.comparison.goals import Figure, Goal, by_round, goals, judge

Run = dict[str, Any]

TITLES = {
    "enqueue": "Enqueue, one by one",
    "bulk": "Bulk enqueue, 1000 jobs per call",
    "drain": "Drain, one worker process",
    "threads": "Drain, sync functions in threads",
    "drain3": "Drain, three worker processes",
    "concurrent": "Concurrent callers of `aenqueue`",
    "payload": "Drain, payloads of 10 KB",
    "failures": "Drain, 5 % fail once",
    "latency": "Latency, one job at a time on an idle worker",
    "history": "Drain with {history:,} finished jobs",
    "future": "Drain with {future:,} jobs due tomorrow",
    "unknown": "Drain with {unknown:,} jobs of an unknown task at the head",
    "look": "Questions to a store with {history:,} finished jobs",
    "idle": "An idle worker",
}
NOTES = {
    "enqueue": "Plain calls in a plain program, each committed before the next."
    " `bare insert` is a loop of `execute` and `commit` on a table of three columns, with nothing else around it;"
    " `bare row` inserts the row that Shigoto stores for a job, with the unique index of its id,"
    " and with `autocommit` leaves the commit to SQLite."
    " It has the pages of 4 KiB that SQLite makes; a new store of Shigoto has pages of 2 KiB, which is one of its"
    " optimisations.",
    "bulk": "litequeue has no such call, but transactions: 1000 calls stand in each.",
    "drain": "No-op handlers, async where there is such a thing; from the start of the first handler to the moment"
    " when the store says that nothing is left."
    " With `log lines on` the worker writes its two lines for each job into a file, as it does by default;"
    " no goal is about it.",
    "threads": "Peers whose handlers are plain functions anyway stand in the table before this one.",
    "concurrent": "Coroutines on one event loop, each of which awaits one call after the other.",
    "failures": "`Retry.immediate()`: the retry is due at once. Until all jobs are completed. A retry is a warning in"
    " the log: like the lines of other jobs it is left out here, and `log lines on` has it.",
    "latency": "From the call to the start of the handler, in another process.",
    "future": "They have a better priority than the jobs that are drained.",
    "unknown": "They have a better priority than the jobs that are drained.",
    "look": "Milliseconds, medians."
    " The empty store has one page of finished jobs, so that there is as much to answer.",
    "idle": "Pick-up is the time from the commit of a job, by another process, to the start of its handler.",
}
PROMISES = (
    "version",
    "synchronous",
    "journal",
    "known from",
    "history",
    "fencing",
    "recovery",
    "retries",
    "worker",
)
COUNTED = (
    "Commits are counted by SQLite's own counter in the file; processor time and written bytes (those handed to write"
    " calls) are those of the worker processes."
)
COSTS = ("commits_per_job", "written_bytes_per_job", "cpu_us_per_job")


class Setting(Struct, frozen=True, kw_only=True):
    """What a page says beside the figures."""

    date: str
    machine: str
    command: str
    python: str
    sqlite: str
    rounds: int
    sizes: Mapping[str, int]
    infos: Mapping[str, Mapping[str, Any]] = {}


def page(runs: Sequence[Run], setting: Setting) -> str:
    """All of it."""
    parts = [
        "# Speed on one file",
        _preface(runs, setting),
        "## Goals",
        _goals(runs, setting),
        "## What each promises",
        _promises(setting.infos),
    ]
    for work in dict.fromkeys(run["work"] for run in runs if run["work"] in TITLES):
        parts.append(f"## {TITLES[work].format_map(setting.sizes)}")
        parts += [NOTES[work]] if work in NOTES else []
        parts.append(_work(work, [run for run in runs if run["work"] == work]))
    if troubles := _troubles(runs):
        parts += ["## What went wrong", troubles]
    return "\n\n".join(parts) + "\n"


def _preface(runs: Sequence[Run], setting: Setting) -> str:
    middle, spread = _spread(by_round(Figure("machine", "fdatasync", "ms"), runs).values())
    lines = (
        f"Measured on {setting.date} with `{setting.command}`.",
        f"The machine: {setting.machine}; to write and sync a page (fdatasync) took {middle} ms there ({spread}).",
        f"Python {setting.python} with SQLite {setting.sqlite} and uvloop; some peers bring their own SQLite.",
        f"Figures are medians of {setting.rounds} interleaved rounds, in each of which everybody runs once.",
        "The settings of each peer are the best that we could find; its file in `bench/peers` names them.",
        "Lines in the log for each job are left out for everybody, but where it says that they are on.",
        COUNTED,
        "Jobs are verified afterwards: the store has all that were enqueued.",
        "After a drain handlers ran once for each, nothing is left, and history, if kept, is complete.",
    )
    return "\n".join(lines)


def _goals(runs: Sequence[Run], setting: Setting) -> str:
    named = [goal._replace(what=goal.what.format_map(setting.sizes)) for goal in goals()]
    rows = [_goal(goal, runs, setting.rounds) for goal in named]
    return table(["goal", "needed", "measured", "lowest..highest", "beside", "succeeded", "reached"], rows)


def _goal(goal: Goal, runs: Sequence[Run], rounds: int) -> list[str]:
    verdict = judge(goal, runs, rounds)
    if verdict is None:
        return [goal.what, goal.needed, "not measured"]
    reached = "yes" if verdict.met else "**no**"
    return [
        goal.what,
        goal.needed,
        f"{verdict.value:.2f} {goal.unit}",
        f"{verdict.lowest:.2f}..{verdict.highest:.2f}",
        verdict.beside,
        f"{verdict.rounds} of {rounds} rounds",
        f"{reached}: {', '.join(verdict.failed)} failed" if verdict.failed else reached,
    ]


def _promises(infos: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        [name, *(str({**info, **info.get("promises", {})}.get(word, "")) for word in PROMISES)]
        if "error" not in info
        else [name, f"could not be asked: {info['error']}", *[""] * (len(PROMISES) - 1)]
        for name, info in infos.items()
    ]
    return table(["", *PROMISES], rows)


def _work(work: str, runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(run["name"] for run in runs))
    if work == "latency":
        return _plain(work, names, runs, {"p50_ms": "p50 ms", "p99_ms": "p99 ms"})
    if work == "look":
        words = {
            "stats_ms": "stats",
            "get_ms": "get",
            "list_ms": "list",
            "list_completed_ms": "list of completed",
        }
        return _plain(work, names, runs, words)
    if work == "idle":
        succeeded = [run for run in runs if "error" not in run]
        if not succeeded:
            return table(["", ""], [[names[0], f"failed: {_reason(names[0], runs)}"]])
        keys = [key for key in succeeded[0] if key.startswith(("idle", "pick-up", "bare"))]
        rows = [[key, *_spread(by_round(Figure(work, names[0], key), runs).values())] for key in keys]
        return table(["", "median", "lowest..highest"], rows)
    return _speeds(work, names, runs)


def _speeds(work: str, names: Iterable[str], runs: Sequence[Run]) -> str:
    measured = {name: list(by_round(Figure(work, name), runs).values()) for name in names}
    best = max((median(values) for values in measured.values() if values), default=0.0)
    drained = any("commits_per_job" in run for run in runs)
    counted = any("stored" in run for run in runs)
    ranked = sorted(measured, key=lambda name: -median(measured[name] or [0.0]))
    rows = [
        [
            name,
            *_speed(measured[name], best),
            *(_costs(work, name, runs) if drained else []),
            *([_stored(name, runs)] if counted else []),
        ]
        if measured[name]
        else [name, f"failed: {_reason(name, runs)}"]
        for name in ranked
    ]
    head = ["", "jobs/s", "of the best", "lowest..highest"]
    head += ["commits per job", "bytes per job", "CPU µs per job"] if drained else []
    return table([*head, *(["in the store"] if counted else [])], rows)


def _speed(values: Sequence[float], best: float) -> list[str]:
    middle = median(values)
    return [f"{middle:,.0f}", f"{middle / best:.2f}", f"{min(values):,.0f}..{max(values):,.0f}"]


def _costs(work: str, name: str, runs: Sequence[Run]) -> list[str]:
    commits, written, cpu = (list(by_round(Figure(work, name, key), runs).values()) for key in COSTS)
    return [
        f"{median(commits):.3f}" if commits else "",
        f"{median(written):,.0f}" if written else "",
        f"{median(cpu):,.0f}" if cpu else "",
    ]


def _stored(name: str, runs: Sequence[Run]) -> str:
    """Who was asked has all jobs: a run with another answer went wrong."""
    asked = any(run.get("stored") is not None for run in runs if run["name"] == name)
    return "all" if asked else "not asked"


def _plain(work: str, names: Iterable[str], runs: Sequence[Run], columns: Mapping[str, str]) -> str:
    rows = []
    for name in names:
        figures = [list(by_round(Figure(work, name, key), runs).values()) for key in columns]
        if figures[0]:
            rows.append([name, *(f"{median(values):.3f}" for values in figures)])
        else:
            rows.append([name, f"failed: {_reason(name, runs)}"])
    return table(["", *columns.values()], rows)


def _spread(values: Iterable[float]) -> list[str]:
    ranked = sorted(values)
    return [f"{median(ranked):.2f}", f"{ranked[0]:.2f}..{ranked[-1]:.2f}"] if ranked else ["", ""]


def _reason(name: str, runs: Sequence[Run]) -> str:
    return next((str(run["error"]) for run in runs if run["name"] == name and "error" in run), "")


def _troubles(runs: Sequence[Run]) -> str:
    return "\n".join(
        f"- {run['work']}, {run['name']}, round {run['round'] + 1}: {run['error']}"
        for run in runs
        if "error" in run
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in markdown; short rows are filled up."""
    lines = [head, ["---"] * len(head), *([*row, *[""] * (len(head) - len(row))] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
