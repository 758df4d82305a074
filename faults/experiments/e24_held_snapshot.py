"""E24: somebody leaves a transaction open that sees an old snapshot. Nothing that was taken since can be cleared away.

PostgreSQL keeps every row that such a transaction could still see, and its place in the index: a claim that looks for
the front of the line walks over all that was taken meanwhile. Nothing that we do can change that. Promised is: nothing
is lost, claims become at most five times as slow, and are as before within two minutes of the end of it, without
anybody being restarted. How long a claim takes is said by the server, in its log, of one statement in four.
"""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from faults.evidence.checker import check, quantiles
from faults.experiment import Experiment, Outcome, Setting, unfinished
from faults.stage import Stage

RATE = 300  # jobs in a second
MIB = 1024 * 1024
SLOWER = 5.0  # times
AS_BEFORE = 2.0  # times as slow as before it is "as before"
RECOVERED_WITHIN = 120.0
WINDOW = 5.0  # seconds, of the curve
ENDLESS = 10_000_000
SERVER: dict[str, str | int] = {
    "log_min_duration_sample": 0,
    "log_statement_sample_rate": "0.25",
    "log_parameter_max_length": 0,
    "log_line_prefix": "%n ",
}
CLAIM = re.compile(
    r"^(\d+\.\d+) LOG:  duration: ([\d.]+) ms  execute [^:]*: SELECT c\.\* FROM shigoto\.claim"
)
TABLES = """
SELECT relname::text, n_dead_tup, pg_total_relation_size(relid)
FROM pg_stat_user_tables
WHERE schemaname = 'shigoto' AND relname IN ('ready', 'running', 'tally', 'job', 'done')
"""
HELD = (
    "SELECT backend_xmin IS NOT NULL AND state = 'idle in transaction' FROM pg_stat_activity WHERE pid = %s"
)


class Look(Struct, frozen=True, kw_only=True):
    """What one window of the log says of claims: how many there were in the sample, and how long they took, in ms."""

    until: float
    count: int
    p50: float
    p99: float


class Log:
    """The durations of claims, read from the server's log as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.claims: list[tuple[float, float]] = []  # by the server's clock, and milliseconds

    def between(self, began: float, ended: float) -> list[float]:
        """How long claims took that ended in this stretch of time."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().split(b"\n")
            self._read = file.tell() - len(lines[-1])
        for line in lines[:-1]:
            if found := CLAIM.match(line.decode(errors="replace")):
                self.claims.append((float(found[1]), float(found[2])))
        return [took for at, took in self.claims if began <= at < ended]


def run(setting: Setting) -> Outcome:
    """Work before, under and after a snapshot that somebody holds."""
    before, held = setting.of((2.0, 3.0), (40.0, 240.0))
    more: dict[str, str | int] = setting.of({"autovacuum_naptime": 1}, {})
    with Stage(setting, server_settings=SERVER | more) as stage:
        log = Log(stage.server.folder / "log")
        for _ in range(2):
            stage.worker("--concurrency", "20", "--threads", "8", "--children", "1")
        stage.wait_until(lambda: len(stage.app.workers()) == 2, seconds=30, what="no workers")
        producers = [
            stage.producer(ENDLESS, "--rate", str(RATE / 2), "--milliseconds", "0,5") for _ in range(2)
        ]
        time.sleep(setting.of(1.0, 5.0))  # until everybody is warm
        usual = watch(log, before)
        with stage.server.connect() as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT count(*) FROM shigoto.job")
            slow = watch(log, held)
            holds = is_held(stage, reader.info.backend_pid)
            dead = tables(stage)
            ended = time.monotonic()
        limit = AS_BEFORE * p99(usual)
        after = watch(
            log,
            setting.of(4.0, RECOVERED_WITHIN),
            until=lambda look: look.p99 <= max(limit, setting.of(50, 0)),
        )
        took = time.monotonic() - ended
        left = tables(stage)
        for producer in producers:
            stage.do("term", producer, whole_tree=False)
            producer.wait()
        stage.rest(120)
        evidence = stage.evidence()
        outcome = check(evidence).outcome(len(evidence.states))
    outcome.wrong += unfinished(evidence.states.values())
    outcome.wrong += [] if holds else ["the snapshot did not hold"]
    outcome.wrong += judged(usual, slow, after, took, least=setting.of(50.0, 0.0))
    enough = 0.8 * RATE * (before + held)
    if setting.full and outcome.n < enough:
        outcome.wrong.append(f"only {outcome.n} jobs, and not {enough:.0f}")
    if dead["ready"]["dead"] < 0.5 * RATE * held:
        outcome.wrong.append(f"only {dead['ready']['dead']} rows of the line could not be cleared away")
    outcome.figures |= {
        "held seconds": held,
        "claims before, ms": told(usual),
        "while held, ms": told(slow),
        "as before after seconds": round(took, 1),
        "p99 of claims, ms, every so often": [round(look.p99, 1) for look in [*usual, *slow, *after]],
        "tables while held": dead,
        "tables afterwards": left,
    }
    return outcome


def watch(log: Log, seconds: float, until: Callable[[Look], bool] | None = None) -> list[Look]:
    """Look for so long, window by window; or until one is as wanted."""
    looks: list[Look] = []
    end, window = time.time() + seconds, min(WINDOW, seconds / 2)
    began = time.time()
    while began < end:
        time.sleep(window)
        now = time.time()
        took = sorted(log.between(began, now))
        began = now
        if not took:
            continue
        named = quantiles(took)
        looks.append(Look(until=now, count=len(took), p50=named["p50"], p99=named["p99"]))
        if until is not None and until(looks[-1]):
            break
    return looks


def p99(looks: Sequence[Look]) -> float:
    """The middle one of the windows: one unlucky moment decides nothing."""
    found = sorted(look.p99 for look in looks)
    return found[len(found) // 2] if found else 0.0


def is_held(stage: Stage, pid: int) -> bool:
    """Whether this session sits in a transaction with a snapshot."""
    with stage.server.connect() as connection:
        row: Any = connection.execute(HELD, (pid,)).fetchone()
        return bool(row and row[0])


def tables(stage: Stage) -> dict[str, dict[str, Any]]:
    """Dead rows and sizes."""
    with stage.server.connect() as connection:
        rows = connection.execute(TABLES).fetchall()
    return {name: {"dead": dead, "MiB": round(size / MIB, 1)} for name, dead, size in rows}


def told(looks: Sequence[Look]) -> dict[str, Any]:
    """For the figures."""
    return {
        "sample": sum(look.count for look in looks),
        "p50": round(sorted(look.p50 for look in looks)[len(looks) // 2], 2) if looks else None,
        "p99": round(p99(looks), 2),
        "worst p99 of a window": round(max((look.p99 for look in looks), default=0.0), 2),
    }


def judged(
    usual: Sequence[Look], slow: Sequence[Look], after: Sequence[Look], took: float, *, least: float
) -> list[str]:
    """What must not be. `least` are milliseconds that are never too slow, where there are few to judge by."""
    if not (usual and slow and after):
        return ["the log has no claims"]
    wrong: list[str] = []
    # The last quarter is the slowest: there it has been held for longest.
    worst = p99(slow[-max(1, len(slow) // 4) :])
    if worst > max(SLOWER * p99(usual), least):
        wrong.append(f"claims take {worst:.1f} ms (p99) under a held snapshot, and {p99(usual):.1f} before")
    if after[-1].p99 > max(AS_BEFORE * p99(usual), least):
        wrong.append(f"claims still take {after[-1].p99:.1f} ms (p99) {took:.0f} s after it has ended")
    return wrong


EXPERIMENT = Experiment(id="E24", title="a transaction is left open", act=run, engines=("postgres",))
