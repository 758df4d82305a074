"""Runs the comparison: in each round everybody once at everything, each as a process of its own, so that whatever
disturbs the machine for a while disturbs all alike."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from bench.comparison.contest import Ground
from bench.comparison.entries import Entry
from bench.comparison.machine import sync_time
from devtools.environment import ROOT, Problem

RUN_LIMIT = 300.0  # seconds
LONG_LIMIT = 1800.0
SETTINGS = (
    "KIND",
    "SYNC",
    "LOG",
    "ENGINE",
    "CALLS",
    "DATABASE",
    "OPTIONS",
    "PREPARED",
    "RATE",
    "SLOTS",
    "MS",
)
Run = dict[str, Any]


def rounds(plan: Sequence[Entry], count: int, ground: Ground, keep: Callable[[list[Run]], None]) -> list[Run]:
    """All runs, one round after the other; `keep` is given what there is after each round."""
    runs: list[Run] = []
    for number in range(count):
        took = sync_time(ground.folder)
        runs.append({"round": number, "work": "machine", "name": "fdatasync", "ms": round(took * 1000, 3)})
        for entry in turned(plan, number):
            if entry.once and number:
                continue
            found = (
                {"error": f"not installed: {ground.missing[entry.package]}"}
                if entry.package in ground.missing
                else once(entry, ground)
            )
            runs.append({"round": number, "work": entry.work, "name": entry.name, **found})
            say(number, runs[-1])
        keep(runs)
    return runs


def turned(plan: Sequence[Entry], number: int) -> Iterator[Entry]:
    """The plan of a round: in each workload another begins, since who comes first has other traces before it."""
    for _, group in groupby(plan, key=attrgetter("work")):
        entries = list(group)
        first = number % len(entries)
        yield from entries[first:] + entries[:first]


def once(entry: Entry, ground: Ground) -> Run:
    """One run of one contestant; what went wrong is in `error`."""
    words = [entry.command, str(entry.jobs), *entry.words]
    env = dict(entry.env)
    if entry.store:
        words += ground.words_for(entry.store)
        env["PREPARED"] = entry.store
    if entry.command == "footprint":
        seconds = str(max(5, entry.jobs // 10))
        words = ["footprint", "idle", "pick-up", "--json", "--jobs", str(entry.jobs), "--seconds", seconds]
        words += ["--folder", str(ground.folder)]
    answer = run(ground, entry.module, words, env, LONG_LIMIT if entry.once else RUN_LIMIT)
    if "error" not in answer and (trouble := doubt(answer)):
        answer["error"] = trouble
    return answer


def doubt(answer: Run) -> str | None:
    """What is wrong with the figures: jobs that were not stored, or did not run once, or that are not in history."""
    if answer.get("stored") not in (None, answer.get("enqueued")):
        return f"the store has {answer['stored']} jobs, and {answer['enqueued']} were enqueued"
    if "hits" not in answer:
        return None
    if answer["hits"] != answer["hits_expected"]:
        return f"handlers began {answer['hits']} times in the time there was, not {answer['hits_expected']} times"
    if answer.get("left"):
        return f"the store says that {answer['left']} jobs are left"
    if answer.get("finished") not in (None, answer["n"]):
        return f"the store says that {answer['finished']} of {answer['n']} jobs were finished"
    return None


def run(ground: Ground, module: str, words: Sequence[str], env: Mapping[str, str], limit: float) -> Run:
    """Start a runner, and read its last line. What it leaves behind is ended with it."""
    ground.settle()
    started = time.monotonic()
    process = subprocess.Popen(
        [str(ground.python), "-m", module, *words],
        cwd=ROOT,
        env={**clean(os.environ.items()), **ground.env, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit)
        answer = read_answer(output, errors)
    except subprocess.TimeoutExpired:
        answer = {"error": f"it took longer than {limit:g} s"}
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    return {**answer, "wall_s": round(time.monotonic() - started, 1)}


def clean(environment: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Without what would change what is measured, or by whom."""
    return {
        name: value
        for name, value in environment
        if not name.startswith(("SHIGOTO_", "BENCH_", "PYTHON", "PG")) and name not in SETTINGS
    }


def read_answer(output: str, errors: str) -> Run:
    """The JSON object in the last line, or the end of what the program had to say instead."""
    lines = output.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return {name: value for name, value in answer.items() if name not in ("runner", "cmd")}
    said = (errors.strip() or output.strip()).splitlines()
    return {"error": said[-1][-300:] if said else "it ended without a word"}


def prepare_stores(plan: Sequence[Entry], sizes: Mapping[str, int], ground: Ground, module: str) -> None:
    """Make the stores that the plan begins with, once."""
    for kind in sorted({entry.store for entry in plan if entry.store}):
        print(f"preparing a store: {sizes[kind]:,} jobs, {kind} …", file=sys.stderr, flush=True)
        words, env = ground.prepare(kind)
        answer = run(ground, module, ["prepare", str(sizes[kind]), *words], env, LONG_LIMIT)
        if "error" in answer:
            raise Problem(f"the store for {kind} could not be made: {answer['error']}")


def say(number: int, run: Run) -> None:
    """A line for whoever waits."""
    shown = {
        name: run[name]
        for name in (
            "error",
            "jobs_per_s",
            "p50_ms",
            "p99_ms",
            "commits_per_job",
            "server_us_per_job",
            "cpu_us_per_job",
        )
        if run.get(name) is not None
    }
    shown["wall_s"] = run.get("wall_s", 0)
    words = ", ".join(f"{name} {value}" for name, value in shown.items())
    print(
        f"round {number + 1}  {run['work']:<11}{run['name']:<28} {words}"[:240], file=sys.stderr, flush=True
    )


def write(path: Path, content: str) -> None:
    """Put it there at once: a reader never sees a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(content, encoding="utf-8")
    part.replace(path)
