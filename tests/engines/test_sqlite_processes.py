"""Several processes on one file: every job goes to one of them, and ends once."""

import multiprocessing
import random
import time
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec
from shigoto.model.worker import Announcement, Ending, Settlement, Verdict, Want

pytestmark = [pytest.mark.engine("sqlite"), pytest.mark.timeout(300)]

spawn = multiprocessing.get_context("spawn")
PROCESSES = 4
PATIENCE = 120.0  # seconds


def produce(path: Path, seed: int, jobs: int) -> list[UUID]:
    """Enqueue in batches of random size, repeating some requests as a client does that lost an answer."""
    engine, dice, ids = SqliteEngine(path), random.Random(seed), list[UUID]()
    while len(ids) < jobs:
        specs = [
            JobSpec(id=uuid7(), task="t", queue=dice.choice(("a", "b", "c")), payload="{}", max_failures=50)
            for _ in range(min(dice.choice((1, 1, 10, 100)), jobs - len(ids)))
        ]
        for _ in range(dice.choice((1, 1, 2))):
            engine.run(engine.enqueue_many(specs))
        ids += [spec.id for spec in specs]
    engine.close()
    return ids


def consume(path: Path, seed: int, jobs: int) -> list[tuple[UUID, str]]:
    """Claim and settle, with every kind of ending, until everything has ended; what happened, in order."""
    engine, dice, seen = SqliteEngine(path), random.Random(seed), list[tuple[UUID, str]]()
    worker = uuid7()
    engine.run(
        engine.announce(Announcement(id=worker, name="w", tasks=("t",), queues=None, slots=1, version="0"))
    )
    deadline = time.monotonic() + PATIENCE
    while sum(counts.completed for counts in engine.run(engine.stats()).values()) < jobs:
        assert time.monotonic() < deadline, "not everything was completed in time"
        leases = engine.run(
            engine.claim(worker, [Want(tasks=("t",), queues=None, limit=dice.choice((1, 5, 50)))])
        )
        endings = dice.choices((Ending.COMPLETED, Ending.ERRORED, Ending.RELEASED), (8, 1, 1), k=len(leases))
        settlements = [
            Settlement(number=lease.number, token=lease.token, queue=lease.queue, ending=ending, delay=0)
            for lease, ending in zip(leases, endings, strict=True)
        ]
        verdicts = engine.run(engine.settle(worker, settlements))
        assert verdicts == [Verdict.ACCEPTED] * len(leases)
        seen += [(lease.id, ending.name) for lease, ending in zip(leases, endings, strict=True)]
        # As a worker does that lost an answer; only a completed job is sure to be where this worker left it.
        again = [settlement for settlement in settlements if settlement.ending is Ending.COMPLETED][:1]
        assert engine.run(engine.settle(worker, again)) == [Verdict.REPEATED] * len(again)
    engine.close()
    return seen


def test_four_producers_and_four_consumers_lose_nothing_and_run_nothing_twice(tmp_path: Path) -> None:
    """S0-35, S0-57, S0-68, S1-12: workers that share a file never take the same job; each ends exactly once."""
    path, jobs = tmp_path / "jobs.db", 2_000
    SqliteEngine(path).migrate()

    with spawn.Pool(2 * PROCESSES) as pool:
        producers = [pool.apply_async(produce, (path, seed, jobs)) for seed in range(PROCESSES)]
        consumers = [pool.apply_async(consume, (path, seed, jobs * PROCESSES)) for seed in range(PROCESSES)]
        enqueued = [id for producer in producers for id in producer.get()]
        ended = [one for consumer in consumers for one in consumer.get()]

    completed = Counter(id for id, ending in ended if ending == "COMPLETED")
    assert len(enqueued) == jobs * PROCESSES
    assert completed == Counter(enqueued)
    engine = SqliteEngine(path)
    stats = engine.run(engine.stats())
    assert sum(counts.completed for counts in stats.values()) == jobs * PROCESSES
    assert sum(counts.pending + counts.processing for counts in stats.values()) == 0
    engine.close()
