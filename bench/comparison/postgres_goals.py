"""What is to be reached on PostgreSQL."""

from bench.comparison.goals import Figure, Goal, peers_at
from bench.comparison.postgres_plan import OURS, PEERS

DRAINS = {"pg-boss": 1.8, "graphile-worker": 2.4, "pgqueuer": 3.2}
GROWN = {
    "history": "drain with {history:,} finished jobs beside an empty store",
    "tenfold": "drain with {tenfold:,} finished jobs beside an empty store",
    "future": "drain with {future:,} jobs due tomorrow at a better priority beside an empty store",
}
LOOKS = {"claim_ms": "a claim", "enqueue_ms": "an enqueue", "stats_ms": "stats", "get_ms": "get"}


def goals() -> list[Goal]:
    """As they stand in the plan of the project, in that order."""
    return [*_drains(), *_enqueues(), *_growth(), *_others()]


def _drains() -> list[Goal]:
    return [
        *(
            Goal(f"drain beside {name}", Figure("drain", OURS), (Figure("drain", name),), least=least)
            for name, least in DRAINS.items()
        ),
        Goal(
            "drain beside the best peer",
            Figure("drain", OURS),
            peers_at(PEERS, "drain"),
            least=1,
            strict=True,
        ),
    ]


def _enqueues() -> list[Goal]:
    return [
        Goal("bulk enqueue beside the best peer", Figure("bulk", OURS), peers_at(PEERS, "bulk"), least=1.3),
        Goal(
            "aenqueue beside the best peer's awaited call",
            Figure("enqueue", OURS),
            peers_at(PEERS, "enqueue"),
            least=1,  # decision 0025 says why these three are lower than they were
        ),
        Goal(
            "enqueue beside the best peer's call of either kind",
            Figure("sync", OURS),
            peers_at(PEERS, "enqueue", "sync"),
            least=1.1,
        ),
        Goal(
            "64 concurrent callers of aenqueue beside one",
            Figure("concurrent", f"{OURS}, 64 callers"),
            (Figure("concurrent", f"{OURS}, 1 caller"),),
            least=12,
        ),
    ]


def _growth() -> list[Goal]:
    return [
        *(
            Goal(what, Figure(work, f"{OURS}, grown"), (Figure(work, f"{OURS}, empty"),), least=0.85)
            for work, what in GROWN.items()
        ),
        Goal(
            "drain while a transaction is held open beside one without",
            Figure("held", f"{OURS}, held"),
            (Figure("held", f"{OURS}, nothing held"),),
            least=0.75,
        ),
        *(
            Goal(
                f"time of {what} with {{tenfold:,}} finished jobs beside an empty store",
                Figure("look", f"{OURS}, grown", key),
                (Figure("look", f"{OURS}, empty", key),),
                most=1.2,
            )
            for key, what in LOOKS.items()
        ),
    ]


def _others() -> list[Goal]:
    return [
        Goal(
            "steady flow: the tables that jobs pass through in its second half beside its first, at their largest",
            Figure("flow", OURS, "hot_mb_late"),
            (Figure("flow", OURS, "hot_mb_early"),),
            most=1.1,
            rounds=1,
        ),
        Goal(
            "idle pick-up, p50, beside the best peer",
            Figure("latency", OURS, "p50_ms"),
            tuple(figure._replace(key="p50_ms") for figure in peers_at(PEERS, "latency")),
            most=1,
        ),
    ]
