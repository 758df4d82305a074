"""What is to be reached on one SQLite file."""

from bench.comparison.goals import Figure, Goal, peers_at
from bench.comparison.sqlite_plan import FULL, NORMAL, PEERS, SMALL


def peers(*works: str) -> tuple[Figure, ...]:
    """What all peers do at these workloads."""
    return peers_at(PEERS, *works)


def goals() -> list[Goal]:
    """As they stand in the plan of the project, in that order."""
    return [*_drains(), *_enqueues(), *_mixes(), *_growth(), *_idle()]


def _drains() -> list[Goal]:
    best = peers("drain")
    either = peers("drain", "threads")
    return [
        Goal("drain, async no-op, NORMAL, beside the best peer", Figure("drain", NORMAL), best, least=10),
        Goal("drain, async no-op, FULL, beside the best peer", Figure("drain", FULL), best, least=9),
        Goal(
            "drain, sync functions in threads, NORMAL, beside the best peer",
            Figure("threads", NORMAL),
            either,
            8,
        ),
        Goal(
            "drain, sync functions in threads, FULL, beside the best peer", Figure("threads", FULL), either, 8
        ),
        *(
            Goal(
                f"drain by three runner processes beside one, {name.split()[1]}",
                Figure("drain3", name),
                (Figure("drain", name),),
                least=0.7,
            )
            for name in (NORMAL, FULL)
        ),
    ]


def _enqueues() -> list[Goal]:
    def bare(table: str, level: str) -> tuple[Figure, ...]:
        return (Figure("enqueue", f"bare {table} {level}"),)

    return [
        Goal("bulk enqueue, NORMAL, beside the best peer", Figure("bulk", NORMAL), peers("bulk"), least=3),
        Goal("bulk enqueue, FULL, beside the best peer", Figure("bulk", FULL), peers("bulk"), least=3),
        Goal(
            "64 concurrent callers of aenqueue beside one, FULL",
            Figure("concurrent", f"{FULL}, 64 callers"),
            (Figure("concurrent", f"{FULL}, 1 caller"),),
            least=10,
        ),
        Goal(
            "enqueue, FULL, beside a bare insert", Figure("enqueue", FULL), bare("insert", "FULL"), least=0.6
        ),
        Goal(
            "enqueue, NORMAL, beside a bare insert of the same row",
            Figure("enqueue", NORMAL),
            bare("row", "NORMAL"),
            least=0.6,
        ),
        Goal(
            "enqueue, NORMAL, beside litequeue",
            Figure("enqueue", NORMAL),
            (Figure("enqueue", "litequeue"),),
            least=1,
            strict=True,
        ),
    ]


def _mixes() -> list[Goal]:
    small = (Figure("drain", FULL),)
    return [
        Goal(
            "drain, payloads of 10 KB beside as many small ones",
            Figure("payload", FULL),
            (Figure("payload", SMALL),),
            least=0.5,
        ),
        Goal("drain, 5 % fail once and are retried, beside none", Figure("failures", FULL), small, least=0.7),
    ]


def _growth() -> list[Goal]:
    grown = {
        "history": "drain with {history:,} finished jobs beside an empty store",
        "future": "drain with {future:,} jobs due tomorrow at a better priority beside an empty store",
        "unknown": "drain with {unknown:,} jobs of an unknown task at the head beside an empty store",
    }
    looks = {
        "stats_ms": "time of stats",
        "get_ms": "time of get",
        "list_ms": "time of the first page of a list",
        "list_completed_ms": "time of the first page of the completed",
    }
    return [
        *(
            Goal(what, Figure(work, f"{FULL}, grown"), (Figure(work, f"{FULL}, empty"),), least=0.9)
            for work, what in grown.items()
        ),
        *(
            Goal(
                f"{what} with {{history:,}} finished jobs beside an empty store",
                Figure("look", f"{FULL}, grown", key),
                (Figure("look", f"{FULL}, empty", key),),
                most=2,
            )
            for key, what in looks.items()
        ),
    ]


def _idle() -> list[Goal]:
    return [
        Goal(
            "idle pick-up from another process, p50",
            Figure("idle", FULL, "pick-up p50 ms"),
            most=3,
            unit="ms",
            strict=True,
        ),
        Goal(
            "idle pick-up from another process, p99",
            Figure("idle", FULL, "pick-up p99 ms"),
            most=20,
            unit="ms",
            strict=True,
        ),
        Goal(
            "idle processor time of one core",
            Figure("idle", FULL, "idle cpu %"),
            most=1,
            unit="%",
            strict=True,
        ),
    ]
