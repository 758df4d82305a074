"""The comparison on PostgreSQL: `python3 dev.py bench --peers postgres`."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bench.comparison import environment, nodejs
from bench.comparison.contest import Column, Contest, Ground, Wishes, Words
from bench.comparison.postgres_goals import goals
from bench.comparison.postgres_plan import (
    ENGINE,
    KINDS,
    NODE_PACKAGES,
    OURS,
    PACKAGES,
    PEERS,
    PREPARED,
    RATE,
    SYNC,
    entries,
)
from devtools.environment import Problem

if TYPE_CHECKING:
    from devtools.postgres import Server

SETTLE_LIMIT = 60.0
GIB = 1 << 30
# What decides about durability is as PostgreSQL ships; room for shared memory and the log is as somebody has it who
# runs one on purpose, and the same for everybody.
SETTINGS: Mapping[str, str | int] = {
    "max_connections": 600,  # 64 worker processes, each with several
    "max_wal_size": "8GB",
    "min_wal_size": "2GB",
    "checkpoint_timeout": "15min",
}
SHIPPED = ("fsync", "synchronous_commit", "full_page_writes", "wal_level", "autovacuum_naptime")
TITLES = {
    "enqueue": "Enqueue, one by one, awaited",
    "sync": "Enqueue, one by one, plain calls",
    "bulk": "Bulk enqueue, 1000 jobs per call",
    "drain": "Drain, one worker process",
    "drain2": "Drain, two worker processes",
    "concurrent": "Concurrent callers of `aenqueue`",
    "latency": "Latency, one job at a time on an idle worker",
    "history": "Drain with {history:,} finished jobs",
    "tenfold": "Drain with {tenfold:,} finished jobs",
    "future": "Drain with {future:,} jobs due tomorrow",
    "held": "Drain while a transaction is held open",
    "look": "One by one in a store with {tenfold:,} finished jobs",
    "flow": "Steady flow",
}
NOTES = {
    "enqueue": "Each call is awaited, and its job committed, before the next.",
    "sync": "In a plain program, for those who have such a call.",
    "bulk": "saq has no such call.",
    "drain": "No-op handlers, async where there is such a thing; from the start of the first handler to the moment when"
    " the store says that nothing is left. The planner is told of the jobs before (ANALYZE), without which awa takes"
    " twenty times as long. pg-boss calls its handler once for a thousand jobs.",
    "concurrent": "Coroutines on one event loop, each of which awaits one call after the other.",
    "latency": "From the call to the start of the handler, in another process.",
    "future": "They have a better priority than the jobs that are drained.",
    "held": "A transaction that has a number and a snapshot is open from before the jobs are stored until all are done,"
    " so that no vacuum can remove what they leave behind.",
    "look": "Milliseconds, medians.",
    "flow": f"Jobs are stored and run at the same time, {RATE:,} a second. Hot are the tables that jobs pass through,"
    " with their indexes; history is what stays.",
}
PROMISES = ("version", "history", "fencing", "recovery", "retries", "worker")
COUNTED = (
    "Beside the speeds stands what one job costs: bytes of the server's log (WAL), transactions, those included that"
    " only look, rows that are dead afterwards and have to be vacuumed, and microseconds of processor time, of the"
    " server and of the processes that store or run the jobs."
)
COSTS = (
    Column("wal_bytes_per_job", "WAL bytes", ",.0f"),
    Column("commits_per_job", "commits", ".3f"),
    Column("dead_rows_per_job", "dead rows", ".2f"),
    Column("server_us_per_job", "server µs", ",.0f"),
    Column("cpu_us_per_job", "client µs", ",.0f"),
)
PLAIN = {
    "latency": {"p50_ms": "p50 ms", "p99_ms": "p99 ms"},
    "look": {"claim_ms": "claim", "enqueue_ms": "enqueue", "stats_ms": "stats", "get_ms": "get"},
}


class OneServer:
    """A private server, and the peers in their environments."""

    def __init__(
        self, server: "Server", folder: Path, there: environment.Environment, node: nodejs.Node, python: Path
    ) -> None:
        self._server = server
        self.folder = folder
        self.python = python
        self.missing = {**there.missing, **node.missing}
        self.env = {
            "BENCH_POSTGRES": server.address,
            "BENCH_POSTGRES_PID": str(server.pid),
            "BENCH_NODE": node.program,
            "BENCH_NODE_FOLDER": str(nodejs.PLACE),
        }
        self.software = _software(server, there, node)

    def settle(self) -> None:
        """Databases of the run before are dropped, and the rest brought to the disk."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self._server.address, autocommit=True) as connection:
            found = connection.execute("SELECT datname FROM pg_database WHERE starts_with(datname, 'bench_')")
            for (name,) in found.fetchall():
                drop = sql.SQL("DROP DATABASE {} WITH (FORCE)")
                connection.execute(drop.format(sql.Identifier(name)))
            connection.execute("CHECKPOINT")
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["sync", "-f", str(self.folder)], check=False, timeout=SETTLE_LIMIT)

    def words_for(self, store: str) -> list[str]:
        """None: the database is named in the environment, and stays there."""
        return []

    def prepare(self, store: str) -> tuple[list[str], Mapping[str, str]]:
        """The kind, in a database that is kept."""
        return [KINDS[store]], {**ENGINE, **SYNC, "DATABASE": f"grown_{store}"}


def _software(server: "Server", there: environment.Environment, node: nodejs.Node) -> str:
    import psycopg

    with psycopg.connect(server.address) as connection:
        shipped = {
            name: row[0]
            for name in SHIPPED
            if (row := connection.execute("SELECT current_setting(%s)", [name]).fetchone())
        }
        version = connection.info.parameter_status("server_version")
    said = ", ".join(f"{name} = {value}" for name, value in shipped.items())
    ours = ", ".join(f"{name} = {value}" for name, value in server.settings.items() if name in _settings())
    with_node = f", Node.js {node.version}" if node.version else ""
    return (
        f"PostgreSQL {version}, as it ships in what decides about durability ({said}); {ours}."
        f" Python {there.python} with uvloop{with_node}. Server, workers and whoever stores jobs share the machine."
    )


def _settings() -> dict[str, str | int]:
    """Shared memory is an eighth of the machine's, and not more than 2 GB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"shared_buffers": f"{min(2 * GIB, memory // 8) >> 20}MB", **SETTINGS}


@contextmanager
def ground(wishes: Wishes) -> Generator[Ground]:
    """The server ends with the comparison, and its folder is removed."""
    from devtools.postgres import Server
    from shigoto.model.errors import StoreError

    venv = environment.FOLDER / "postgres"
    there = environment.prepare(PACKAGES, venv=venv, python=wishes.python, renew=wishes.renew)
    node = nodejs.prepare(NODE_PACKAGES, renew=wishes.renew)
    # Not in the project: a server of root's may run as `nobody`, who has to reach it.
    folder = Path(tempfile.mkdtemp(prefix="shigoto-bench-"))
    folder.chmod(0o711)
    try:
        with Server(folder / "server", settings=_settings()) as server:
            yield OneServer(server, folder, there, node, environment.python_of(venv))
    except StoreError as error:
        raise Problem(str(error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


CONTEST = Contest(
    engine="postgres",
    ours={OURS: ENGINE},
    peers=PEERS,
    entries=entries(),
    prepared=PREPARED,
    goals=goals(),
    words=Words(
        title="Speed on PostgreSQL",
        preface=[
            "The settings of each peer are the best that we could find; its file in `bench/peers/postgres` names them.",
            "pgmq is there for the reader, and no goal is about it: its worker is a loop of ours.",
            "`prepare=off` is how it is behind a pooler, where no statement is prepared; no goal is about it.",
        ],
        counted=COUNTED,
        titles=TITLES,
        notes=NOTES,
        promises=PROMISES,
        costs=COSTS,
        plain=PLAIN,
    ),
    ground=ground,
)
