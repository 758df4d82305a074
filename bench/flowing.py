"""Steady flow through a store of Shigoto on PostgreSQL: jobs are stored and run at the same time, for long enough that
the tables they pass through must have stopped growing.

Those are ready, running, scheduled and tally, with their indexes, in megabytes; history is job and done, which grow
with every job that is kept, in bytes for each.
"""

import time
from collections.abc import Callable
from typing import Any

from bench.measuring import Crowd, working
from bench.postgres import Asking, PostgresRunner
from bench.probe import look
from bench.shigoto_app import app, noop

CHUNK = 1000
BACKLOG = 10_000  # jobs that may wait
SAMPLES = 40
LOOK_EVERY = 0.005
LIMIT = 900.0  # seconds
SIZES = """
SELECT coalesce(sum(pg_total_relation_size(relid)) FILTER (WHERE hot), 0),
  coalesce(sum(pg_relation_size(relid)) FILTER (WHERE hot), 0),
  coalesce(sum(pg_total_relation_size(relid)) FILTER (WHERE NOT hot), 0),
  coalesce(sum(n_dead_tup) FILTER (WHERE hot), 0),
  coalesce(sum(autovacuum_count) FILTER (WHERE hot), 0)
FROM (
  SELECT relid, n_dead_tup, autovacuum_count, relname IN ('ready', 'running', 'scheduled', 'tally') AS hot
  FROM pg_stat_user_tables
  WHERE schemaname = 'shigoto' AND relname IN ('ready', 'running', 'scheduled', 'tally', 'job', 'done')) t
"""

Sample = dict[str, float]


def flow(runner: PostgresRunner, jobs: int, rate: float) -> dict[str, Any]:
    """Let so many jobs pass, so many a second."""
    runner.reset()
    app.enqueue_many([noop.call(0)])
    samples: list[Sample] = []
    with working(runner, 1) as crowd:
        _until(lambda: look(crowd.folder).began >= 1 or crowd.gone)
        began = time.monotonic()
        done = _pass(crowd, jobs, rate, lambda passed: samples.append(_sample(runner.asking, passed, began)))
        seconds = time.monotonic() - began
        _until(lambda: runner.asking.one("SELECT count(*) FROM shigoto.running") == (0,) or crowd.gone)
        samples.append(_sample(runner.asking, done, began))
    finished = sum(counts.completed for counts in app.stats().values()) - 1
    app.close()
    middle = len(samples) // 2
    early, late = samples[:middle], samples[middle:]
    return {
        "n": jobs,
        "hits": done,
        "hits_expected": jobs,
        "finished": finished,
        "jobs_per_s": round(done / seconds, 1),
        "hot_mb_early": _most(early, "hot_mb"),
        "hot_mb_late": _most(late, "hot_mb"),
        "history_bytes_per_job": round(samples[-1]["history_mb"] * 1e6 / max(1, done), 1),
        "samples": samples,
    }


def _most(samples: list[Sample], key: str) -> float:
    return max((sample[key] for sample in samples), default=0.0)


def _pass(crowd: Crowd, jobs: int, rate: float, sample: Callable[[int], None]) -> int:
    """Store at the pace that is asked for, and not more than workers can follow. Gives how many have begun."""
    started, deadline = time.monotonic(), time.monotonic() + LIMIT
    stored = passed = told = 0
    every = max(1, jobs // SAMPLES)
    while passed < jobs and time.monotonic() < deadline and not crowd.gone:
        passed = look(crowd.folder).began - 1
        if passed // every > told:
            told = passed // every
            sample(passed)
        due = jobs if not rate else int((time.monotonic() - started) * rate)
        if stored < min(jobs, due) and stored - passed < BACKLOG:
            count = min(CHUNK, jobs - stored)
            app.enqueue_many(map(noop.call, range(stored, stored + count)))
            stored += count
        else:
            time.sleep(LOOK_EVERY)
    return passed


def _sample(asking: Asking, passed: int, began: float) -> Sample:
    total, tables, history, dead, vacuums = map(int, asking.one(SIZES))
    return {
        "jobs": passed,
        "seconds": round(time.monotonic() - began, 1),
        "hot_mb": round(total / 1e6, 2),
        "hot_tables_mb": round(tables / 1e6, 2),
        "hot_indexes_mb": round((total - tables) / 1e6, 2),
        "history_mb": round(history / 1e6, 2),
        "dead_rows": dead,
        "vacuums": vacuums,
    }


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not holds() and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
