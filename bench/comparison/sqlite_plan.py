"""On one SQLite file: who is measured at what, with how many jobs: enough for a run of one to five seconds.

The settings of each peer are the best that we could find for it; the runners in `bench/peers` say more.
"""

from collections.abc import Mapping

from bench.comparison.entries import Entry, Peer

OURS = "bench.shigoto_runner"
BARE = "bench.peers.bare"
NORMAL, FULL = "shigoto NORMAL", "shigoto FULL"
LOGGED = f"{FULL}, log lines on"  # for the reader: no goal is about it
SMALL = f"{FULL}, small ones"
LEVELS = {NORMAL: {"SYNC": "NORMAL"}, FULL: {"SYNC": "FULL"}}
PREPARED = {"history": 1.0, "future": 1.0, "unknown": 0.1}  # how much of --growth


def _peer(name: str, jobs: Mapping[str, int], env: Mapping[str, str] | None = None) -> Peer:
    return Peer(name, name, f"bench.peers.{name.replace('-', '_')}", jobs, env or {})


PEERS = (
    _peer(
        "litequeue",
        {"enqueue": 20_000, "bulk": 50_000, "drain": 10_000, "drain3": 10_000, "latency": 200},
    ),
    _peer("huey", {"enqueue": 5_000, "drain": 8_000, "drain3": 8_000, "latency": 200}),
    _peer(
        "flexiq",
        {
            "enqueue": 10_000,
            "bulk": 50_000,
            "drain": 6_000,
            "threads": 3_000,
            "drain3": 6_000,
            "latency": 200,
        },
    ),
    _peer("persist-queue", {"enqueue": 5_000, "drain": 4_000, "latency": 200}),
    _peer("flashq", {"enqueue": 10_000, "drain": 3_000, "latency": 200}),
    _peer(
        "quebec",
        {"enqueue": 1_500, "bulk": 20_000, "drain": 800, "latency": 100},
        {"RUST_LOG": "error"},
    ),
)
PACKAGES = sorted({peer.package for peer in PEERS})


def entries() -> list[Entry]:
    """All there is to measure, workload by workload."""
    return [
        *_bare(),
        *_both("enqueue", "enqueue", 20_000, full=5_000),
        *_peers("enqueue", "enqueue"),
        *_both("bulk", "bulk", 100_000),
        *_peers("bulk", "bulk"),
        *_both("drain", "drain", 100_000),
        Entry("drain", LOGGED, OURS, "drain", 30_000, (), {**LEVELS[FULL], "LOG": "info"}),
        *_peers("drain", "drain"),
        *_both("threads", "drain", 60_000, env={"KIND": "sync"}),
        *_peers("threads", "drain", env={"KIND": "sync"}),
        *_both("drain3", "drain", 100_000, words=("--procs", "3")),
        *_peers("drain3", "drain", words=("--procs", "3")),
        *_concurrent(),
        *_ours("payload", "drain", 40_000, env={"KIND": "payload"}),
        Entry("payload", SMALL, OURS, "drain", 40_000, (), LEVELS[FULL]),
        *_ours("failures", "drain", 100_000, env={"KIND": "failures", "LOG": "error"}),
        Entry("failures", LOGGED, OURS, "drain", 100_000, (), {**LEVELS[FULL], "KIND": "failures"}),
        *_ours("latency", "latency", 200),
        *_peers("latency", "latency"),
        *_growth("history", "drain", 100_000),
        *_growth("future", "drain", 100_000),
        *_growth("unknown", "drain", 100_000),
        *_growth("look", "look", 200, store="history"),
        Entry("idle", FULL, "bench", "footprint", 200),
    ]


def _bare() -> list[Entry]:
    """The limits: what SQLite alone can do."""
    return [
        Entry("enqueue", f"bare {table} {level}", BARE, "enqueue", jobs, (), {"SYNC": level, "TABLE": table})
        for table in ("insert", "row", "row autocommit")
        for level, jobs in (("NORMAL", 30_000), ("FULL", 5_000))
    ]


def _ours(work: str, command: str, jobs: int, *, env: Mapping[str, str] | None = None) -> list[Entry]:
    return [Entry(work, FULL, OURS, command, jobs, (), {**LEVELS[FULL], **(env or {})})]


def _both(
    work: str,
    command: str,
    jobs: int,
    *,
    full: int | None = None,
    words: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> list[Entry]:
    """At both levels; `full` is the number of jobs at FULL, where it matters."""
    return [
        Entry(
            work,
            name,
            OURS,
            command,
            (full or jobs) if name == FULL else jobs,
            words,
            {**level, **(env or {})},
        )
        for name, level in LEVELS.items()
    ]


def _peers(
    work: str, command: str, *, words: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> list[Entry]:
    return [peer.entry(work, command, words=words, env=env) for peer in PEERS if work in peer.jobs]


def _concurrent() -> list[Entry]:
    return [
        Entry(
            "concurrent",
            f"{name}, {callers} caller{'s' * (callers > 1)}",
            OURS,
            "concurrent",
            5_000 * (1 if callers == 1 else 10),
            (),
            {**level, "CALLERS": str(callers)},
        )
        for name, level in LEVELS.items()
        for callers in (1, 64)
    ]


def _growth(work: str, command: str, jobs: int, store: str | None = None) -> list[Entry]:
    """An empty store, and beside it the one that has grown."""
    env = LEVELS[FULL]
    return [
        Entry(work, f"{FULL}, empty", OURS, command, jobs, (), env),
        Entry(work, f"{FULL}, grown", OURS, command, jobs, (), env, store=store or work),
    ]
