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
# thousand jobs of 1 MiB would otherwise need gigabytes. The first portion tells how large the next may be.
FIRST_PORTION, LARGEST_PORTION = 32, 1_000
ENOUGH_BYTES = 32 * 1024 * 1024

Place = tuple[int, int, int]  # priority (negated), pos, number: the order of the line
Head = tuple[Place, int]  # with its lane

BEHIND_ALL: Place = (2**62, 2**62, 2**62)
MOST_LANES = 400  # that one statement merges; SQLite takes 500 terms

_heads = json.Decoder(list[Head])
_leases = json.Decoder(list[Lease])

COLUMNS = "lane, priority, pos, number, token, settled_token, failures, crashes, solo_crashes, releases, snoozes, solo"


def claim(now: Millis, worker: UUID, wants: Sequence[Want]) -> Steps[list[Lease]]:
    """Lease the best ready jobs for each want. With nothing ready this is a read and takes no lock."""
    plans: list[tuple[list[Head], int]] = []
    for want in wants:
        if want.limit > 0:
            tasks = json.encode(want.tasks).decode()
            queues = None if want.queues is None else json.encode(want.queues).decode()
            heads = _heads.decode((yield sql("heads", tasks, queues, want.alone)).fetchone()[0])
            if heads:
                plans.append((heads, want.limit))
    if not plans:
        return []
    yield WRITE
    if (yield sql("live_worker", worker.bytes)).fetchone() is None:
        return []
    leases: list[Lease] = []
    for heads, limit in plans:
        leases += yield from _take(now, worker, heads, limit)
    return leases


def _take(now: Millis, worker: UUID, heads: list[Head], limit: int) -> Steps[list[Lease]]:
    yield sql("clear_taken")
    heads = sorted(heads)[: MOST_LANES + 1]
    values = {f"lane{index}": lane for index, (_, lane) in enumerate(heads[:MOST_LANES])}
    # With more lanes than can be merged, only what comes before the best job of the others is surely next.
    (priority, pos, number), _ = heads[-1] if len(heads) > MOST_LANES else (BEHIND_ALL, 0)
    values |= {"now": now, "limit": limit, "priority": priority, "pos": pos, "number": number}
    taken = (yield Statement(take_best(min(len(heads), MOST_LANES)), values)).rowcount
    if taken <= 0:
        return []
    leases = yield from _read_leases(now, taken)
    yield sql("start_taken", worker.bytes, now)
    yield sql("unready_taken")
    return leases


def _read_leases(now: Millis, taken: int) -> Steps[list[Lease]]:
    leases: list[Lease] = []
    read_bytes, place, portion = 0, 0, FIRST_PORTION
    while place < taken:
        text: str = (yield sql("leases", place, place + portion, now)).fetchone()[0]
        leases += _leases.decode(text)
        read_bytes += len(text)
        place += portion
        room = ENOUGH_BYTES - read_bytes
        if room <= 0:
            yield sql("cut_taken", place)
            break
        portion = max(1, min(LARGEST_PORTION, room * place // (2 * read_bytes)))
    return leases


@cache
def take_best(lanes: int) -> str:
    """The statement that merges this many lanes into one line, best first.

    Each lane is an index range that ends after `limit` rows, so nothing is sorted but what may be taken.
    """
    ranges = "\n  UNION ALL\n".join(
        f"  SELECT * FROM (SELECT {COLUMNS} FROM shigoto_ready"
        f" WHERE lane = :lane{lane} AND (priority, pos, number) < (:priority, :pos, :number)"
        " AND (expires_at IS NULL OR expires_at >= :now)"
        " ORDER BY priority, pos, number LIMIT :limit)"
        for lane in range(lanes)
    )
    return (
        f"INSERT INTO temp.shigoto_taken ({COLUMNS})\nSELECT {COLUMNS} FROM (\n{ranges})\n"
        "ORDER BY priority, pos, number\nLIMIT :limit"
    )
