"""On PostgreSQL: who is measured at what, with how many jobs: enough for a run of one to five seconds.

The settings of each peer are the best that we could find for it; the runners in `bench/peers/postgres` say more.
"""

from collections.abc import Mapping

from bench.comparison.entries import Entry, Peer

RUNNER = "bench.shigoto_runner"
OURS = "shigoto"
PLAIN = f"{OURS}, prepare=off"  # as behind a pooler, for the reader: no goal is about it
ENGINE = {"ENGINE": "postgres"}
SYNC, AWAITED = {"CALLS": "sync"}, {"CALLS": "async"}
PREPARED = {"history": 1.0, "tenfold": 10.0, "future": 1.0}  # how much of --growth
KINDS = {"history": "history", "tenfold": "history", "future": "future"}
DRAINED = (
    150_000  # takes us about as long as the drains of the quickest peers take them, which is two seconds
)
HELD = 60_000
FLOWS, RATE = (
    1_000_000,
    4_000,
)  # long enough for several vacuums at the server's own pace, which is once a minute
HARNESS = ("psycopg[binary,pool]",)
EXTRAS = {"pgqueuer": "pgqueuer[asyncpg]", "saq": "saq[postgres]", "pgmq": "pgmq[async]"}


def _peer(name: str, jobs: Mapping[str, int], *, package: str = "", judged: bool = True) -> Peer:
    module = f"bench.peers.postgres.{name.replace('-', '_')}"
    return Peer(name, package or name, module, jobs, judged=judged)


def _jobs(enqueue: int, bulk: int, drain: int, *, sync: bool = False, latency: int = 200) -> dict[str, int]:
    return {
        "enqueue": enqueue,
        **({"sync": enqueue} if sync else {}),
        **({"bulk": bulk} if bulk else {}),
        "drain": drain,
        "drain2": drain,
        "latency": latency,
    }


FOR_NODE = (
    _peer("graphile-worker", _jobs(3_000, 50_000, 60_000)),
    _peer("pg-boss", _jobs(3_000, 50_000, 60_000)),
)
FOR_PYTHON = (
    _peer("pgqueuer", _jobs(3_000, 50_000, 30_000, sync=True)),
    _peer("awa", _jobs(3_000, 50_000, 30_000, sync=True), package="awa-pg"),
    _peer("flexiq", _jobs(3_000, 20_000, 3_000, sync=True)),
    _peer("procrastinate", _jobs(3_000, 20_000, 2_000, sync=True)),
    _peer("oban", _jobs(3_000, 10_000, 10_000)),
    _peer("chancy", _jobs(3_000, 10_000, 4_000, sync=True)),
    _peer("saq", _jobs(3_000, 0, 3_000)),
    # A message queue, not a job system: what runs its jobs is a loop of ours.
    _peer("pgmq", _jobs(3_000, 50_000, 60_000, sync=True), judged=False),
)
PEERS = (*FOR_NODE, *FOR_PYTHON)
NODE_PACKAGES = [peer.package for peer in FOR_NODE]
PACKAGES = [*HARNESS, *(EXTRAS.get(peer.package, peer.package) for peer in FOR_PYTHON)]


def entries() -> list[Entry]:
    """All there is to measure, workload by workload."""
    return [
        *_ours("enqueue", "enqueue", 3_000, env=AWAITED),
        *_peers("enqueue", "enqueue", env=AWAITED),
        *_ours("sync", "enqueue", 3_000, env=SYNC),
        *_peers("sync", "enqueue", env=SYNC),
        *_ours("bulk", "bulk", 100_000, env=SYNC),
        *_peers("bulk", "bulk", env=AWAITED),
        *_ours("drain", "drain", DRAINED, env=SYNC),
        *_peers("drain", "drain", env=AWAITED),
        *_ours("drain2", "drain", DRAINED, words=("--procs", "2"), env=SYNC),
        *_peers("drain2", "drain", words=("--procs", "2"), env=AWAITED),
        *_concurrent(),
        *_ours("latency", "latency", 200, env=SYNC),
        *_peers("latency", "latency", env=AWAITED),
        *_growth("history", "drain", DRAINED),
        *_growth("tenfold", "drain", DRAINED),
        *_growth("future", "drain", DRAINED),
        Entry("held", f"{OURS}, nothing held", RUNNER, "drain", HELD, (), {**ENGINE, **SYNC}),
        Entry("held", f"{OURS}, held", RUNNER, "drain", HELD, ("--held",), {**ENGINE, **SYNC}),
        *_growth("look", "look", 500, store="tenfold"),
        Entry("flow", OURS, RUNNER, "flow", FLOWS, (), {**ENGINE, **SYNC, "RATE": str(RATE)}, once=True),
    ]


def _ours(
    work: str, command: str, jobs: int, *, words: tuple[str, ...] = (), env: Mapping[str, str]
) -> list[Entry]:
    told = {**ENGINE, **env}
    return [
        Entry(work, OURS, RUNNER, command, jobs, words, told),
        Entry(work, PLAIN, RUNNER, command, jobs, words, {**told, "OPTIONS": "prepare=off"}),
    ]


def _peers(
    work: str, command: str, *, words: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> list[Entry]:
    return [peer.entry(work, command, words=words, env=env) for peer in PEERS if work in peer.jobs]


def _concurrent() -> list[Entry]:
    return [
        Entry(
            "concurrent",
            f"{OURS}, {callers} caller{'s' * (callers > 1)}",
            RUNNER,
            "concurrent",
            3_000 * (1 if callers == 1 else 20),
            (),
            {**ENGINE, "CALLERS": str(callers)},
        )
        for callers in (1, 64)
    ]


def _growth(work: str, command: str, jobs: int, store: str | None = None) -> list[Entry]:
    """An empty store, and beside it the one that has grown."""
    env = {**ENGINE, **SYNC}
    grown = store or work
    return [
        Entry(work, f"{OURS}, empty", RUNNER, command, jobs, (), env),
        Entry(
            work,
            f"{OURS}, grown",
            RUNNER,
            command,
            jobs,
            (),
            {**env, "DATABASE": f"grown_{grown}"},
            store=grown,
        ),
    ]
