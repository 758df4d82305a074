"""T2: jobs go out. Which lanes have work, the best of them merged, moved to running."""

from collections.abc import Sequence
from functools import cache
from uuid import UUID

from msgspec import json

from shigoto.engine.op import WRITE
from shigoto.engine.sqlite.statement import Statement, Steps, sql
from shigoto.model.clock import Millis
from shigoto.model.job import Lease
from shigoto.model.worker import Want

# Leases are read in portions, and a claim stops taking more once this much payload is on its way: a look-ahead of a
# thousand jobs of 1 MiB would otherwise need a gigabyte.
PORTION = 250
ENOUGH_BYTES = 32 * 1024 * 1024

_lanes = json.Decoder(list[int])
_leases = json.Decoder(list[Lease])

COLUMNS = "lane, priority, pos, number, token, settled_token, failures, crashes, solo_crashes, releases, snoozes, solo"


def claim(now: Millis, worker: UUID, wants: Sequence[Want]) -> Steps[list[Lease]]:
    """Lease the best ready jobs for each want. With nothing ready this is a read and takes no lock."""
    plans: list[tuple[list[int], int]] = []
    for want in wants:
        if want.limit > 0:
            tasks = json.encode(want.tasks).decode()
            queues = None if want.queues is None else json.encode(want.queues).decode()
            lanes = _lanes.decode((yield sql("lanes_with_work", tasks, queues)).fetchone()[0])
            if lanes:
                plans.append((lanes, want.limit))
    if not plans:
        return []
    yield WRITE
    if (yield sql("live_worker", worker.bytes)).fetchone() is None:
        return []
    leases: list[Lease] = []
    for lanes, limit in plans:
        leases += yield from _take(now, worker, lanes, limit)
    return leases


def _take(now: Millis, worker: UUID, lanes: list[int], limit: int) -> Steps[list[Lease]]:
    yield sql("clear_taken")
    values = {f"lane{index}": lane for index, lane in enumerate(lanes)} | {"now": now, "limit": limit}
    taken = (yield Statement(take_best(len(lanes)), values)).rowcount
    if taken <= 0:
        return []
    leases = yield from _read_leases(now, taken)
    yield sql("start_taken", worker.bytes, now)
    yield sql("unready_taken")
    return leases


def _read_leases(now: Millis, taken: int) -> Steps[list[Lease]]:
    leases: list[Lease] = []
    read_bytes = 0
    for place in range(0, taken, PORTION):
        portion: str = (yield sql("leases", place, place + PORTION, now)).fetchone()[0]
        leases += _leases.decode(portion)
        read_bytes += len(portion)
        if read_bytes > ENOUGH_BYTES:
            yield sql("cut_taken", place + PORTION)
            break
    return leases


@cache
def take_best(lanes: int) -> str:
    """The statement that merges this many lanes into one line, best first.

    Each lane is an index range that ends after `limit` rows, so nothing is sorted but what may be taken.
    """
    ranges = "\n  UNION ALL\n".join(
        f"  SELECT * FROM (SELECT {COLUMNS} FROM shigoto_ready"
        f" WHERE lane = :lane{lane} AND (expires_at IS NULL OR expires_at >= :now)"
        " ORDER BY priority, pos, number LIMIT :limit)"
        for lane in range(lanes)
    )
    return (
        f"INSERT INTO temp.shigoto_taken ({COLUMNS})\nSELECT {COLUMNS} FROM (\n{ranges})\n"
        "ORDER BY priority, pos, number\nLIMIT :limit"
    )
