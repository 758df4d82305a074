"""Claims (T2): jobs go out. Which lanes have work, the best of them merged into one line, its front moved to running.

What is read is one row (`best`), and what is moved is one range of each lane, up to the last job that was read: the
write lock is ours, so the two are the same jobs. The payloads travel beside the rest, joined by a character that no
JSON text contains: to escape and unescape them took half of the time of a claim.

A row that somebody has written into the file by hand would stop every claim that meets it, and with it everybody's jobs
(F12). So a claim that cannot be read is read job by job, and what still cannot be is failed, as payload_invalid; nobody
pays for that before it happens.
"""

import sqlite3
from collections.abc import Sequence
from functools import cache
from math import inf
from uuid import UUID

import msgspec
from msgspec import json
from msgspec.structs import force_setattr

from shigoto.engine.op import WRITE
from shigoto.engine.sql.commands import SqlText, Steps, sql, sql_each
from shigoto.engine.sql.settling import count
from shigoto.model.job import MAX_PRIORITY, MIN_PRIORITY, FailureKind, Lease, State
from shigoto.model.text import fit
from shigoto.model.time import Millis
from shigoto.model.worker import CLAIM_BYTES, Want

LONGEST_REASON = 500
FAILED = 4
# What reading a row can raise if it holds something else than what we have written.
UNREADABLE = (sqlite3.Error, msgspec.DecodeError, ValueError, TypeError, KeyError, OverflowError)

Key = tuple[int, object, object, int]  # of a ready row, as it is: lane, priority, pos, number

# Leases are read in portions, and a claim stops taking more once CLAIM_BYTES are on their way: a look-ahead of a
# thousand jobs of 1 MiB would otherwise need gigabytes. What was read so far tells how large the next portion may be;
# if it is wrong, the text of the largest one still stays below the billion bytes that SQLite can hold. Portions of
# 1 MiB are no faster, and take a third longer where the system takes back the memory of such a text.
FIRST_PORTION, LARGEST_PORTION = 32, 500
PORTION_BYTES = 384 * 1024
# Priority (negated), pos, number: the order of the line. Whole numbers, unless somebody has written the row by hand.
LinePosition = tuple[int | float, int | float, int]
Head = tuple[LinePosition, int]  # with its lane
BEFORE_ALL: LinePosition = (-inf, -inf, -(2**63))
BEHIND_ALL: LinePosition = (inf, inf, 2**63 - 1)
MOST_LANES = 400  # that one statement merges; SQLite takes 500 terms
BETWEEN_PAYLOADS = "\x1e"
LARGE = 1024  # characters of a job, on average
# Large payloads are read from the file's pages in memory, which saves a fifth of the time that such a job takes. Only
# connections that have met such a claim do so: a disk that fails, or a file that is cut off, then ends the process,
# where a read would have raised an error.
MAP_FILE = "PRAGMA mmap_size = 1073741824"
_heads = json.Decoder(list[Head])
_leases = json.Decoder(list[Lease])


def is_damage(error: Exception) -> bool:
    """Whether it is what a row holds that SQLite, or we, could not read; and not the file, the disk or a lock."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) == sqlite3.SQLITE_ERROR
    return isinstance(error, UNREADABLE)


def fail_unreadable(now: Millis, key: Key, error: Exception) -> Steps[None]:
    """End a job that is in the ready set and cannot be read."""
    lane, priority, pos, number = key
    [queue] = (yield sql("queue_of_lane", lane)).fetchone()
    reason = fit(str(error), LONGEST_REASON)
    text = f"The row of this job was not written by us, and cannot be read: {reason}"
    [remembered] = (yield sql("drop_ready_row", lane, priority, pos, number)).fetchall()
    kind = FailureKind.PAYLOAD_INVALID
    yield sql_each("add_done", [(number, FAILED, *remembered, None, now, None, kind, text)])
    yield from count(ended=[(queue, State.FAILED)])


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
    heads = sorted(heads)[: MOST_LANES + 1]
    lanes = [lane for _, lane in heads[:MOST_LANES]]
    # With more lanes than can be merged, only what comes before the best job of the others is surely next.
    end = heads[-1][0] if len(heads) > MOST_LANES else BEHIND_ALL
    try:
        return (yield from _move(now, worker, lanes, end, limit))
    except Exception as error:
        if not is_damage(error):
            raise
    yield from _fail_unreadable(now, lanes, limit)
    return (yield from _move(now, worker, lanes, end, limit))


def _move(now: Millis, worker: UUID, lanes: list[int], end: LinePosition, limit: int) -> Steps[list[Lease]]:
    leases = yield from _read(now, lanes, end, limit)
    if leases:
        moved = (json.encode(lanes).decode(), *_position(leases[-1]), now)
        yield sql("start", *moved, worker.bytes)
        yield sql("unready", *moved)
    return leases


def _fail_unreadable(now: Millis, lanes: list[int], limit: int) -> Steps[None]:
    """Read those at the front of the line one by one, and fail the ones that cannot be.

    If it was not what a row holds, the claim is tried again, raises again, and all of this is rolled back.
    """
    keys = (yield sql("front", json.encode(lanes).decode(), now, limit)).fetchall()
    for key in keys:
        try:
            row = (yield SqlText(one(), (now, *key))).fetchone()
            for lease in (yield from _with_payloads(*row)):
                _expect_sound(lease)
        except Exception as error:
            if not is_damage(error):
                raise
            yield from fail_unreadable(now, key, error)


def _expect_sound(lease: Lease) -> None:
    if not MIN_PRIORITY <= lease.priority <= MAX_PRIORITY:
        raise ValueError(f"its priority is {lease.priority}")


def _read(now: Millis, lanes: list[int], end: LinePosition, limit: int) -> Steps[list[Lease]]:
    leases: list[Lease] = []
    text = best(len(lanes))
    read_bytes, portion, mapped = 0, FIRST_PORTION, False
    while len(leases) < limit:
        portion = min(portion, limit - len(leases))
        after = _position(leases[-1]) if leases else BEFORE_ALL
        row = (yield SqlText(text, (now, portion, *after, *end, *lanes))).fetchone()
        found = yield from _with_payloads(*row)
        leases += found
        read_bytes += len(row[0]) + len(row[1] or "")
        if not mapped and read_bytes >= LARGE * max(1, len(leases)):
            yield SqlText(MAP_FILE)
            mapped = True
        if len(found) < portion or read_bytes >= CLAIM_BYTES:
            break
        portion = max(1, min(LARGEST_PORTION, PORTION_BYTES * len(leases) // read_bytes))
    return leases


def _position(lease: Lease) -> LinePosition:
    return -lease.priority, lease.run_at, lease.number


def _with_payloads(text: str, joined: str | None) -> Steps[list[Lease]]:
    leases = _leases.decode(text)
    payloads = [] if joined is None else joined.split(BETWEEN_PAYLOADS)
    if len(payloads) != len(leases):  # somebody has written what is no JSON, by hand
        rows = (yield sql("payloads", json.encode([lease.number for lease in leases]).decode())).fetchall()
        by_number = dict(rows)
        payloads = [by_number[lease.number] for lease in leases]
        for payload in payloads:
            if not isinstance(payload, str):
                raise TypeError(f"a payload is {type(payload).__name__}, and no text")
    for lease, payload in zip(leases, payloads, strict=True):
        force_setattr(lease, "payload", payload)  # it is frozen from here on
    return leases


# Most jobs have nothing of what comes after `claimed_at`. To print nulls costs SQLite as much as to print numbers.
# `pos` is the body's run_at, and the range that is moved ends at it; queues that share fairly will need both.
BEGINNING = """r.number, r.token + 1, hex(b.id), l.task, l.queue,
    r.token + 1 - r.releases - r.snoozes, r.failures, r.snoozes, b.max_failures, b.priority, r.pos, ?1"""
LEASES = f"""
SELECT json_group_array(iif(
    r.solo OR l.alone OR b.tenant <> '' OR p.checkpoint IS NOT NULL
      OR coalesce(b.key, b.retry, b.timeout, b.soft_timeout, b.tags, b.meta) IS NOT NULL,
    json_array({BEGINNING},
      json(iif(r.solo, 'true', 'false')), b.tenant, b.key, b.retry, b.timeout, b.soft_timeout,
      b.tags, b.meta, p.checkpoint, json(iif(l.alone, 'true', 'false'))),
    json_array({BEGINNING}))),
  group_concat(b.payload, char(30))
FROM (
  SELECT * FROM (
{{ranges}})
  ORDER BY priority, pos, number
  LIMIT ?2) r
CROSS JOIN shigoto_job b ON b.number = r.number
CROSS JOIN shigoto_lane l ON l.lane = b.lane
LEFT JOIN shigoto_progress p ON p.number = r.number
"""
RANGE = """  SELECT * FROM (
    SELECT priority, pos, number, token, failures, releases, snoozes, solo
    FROM shigoto_ready
    WHERE lane = ?{lane} AND (priority, pos, number) > (?3, ?4, ?5) AND (priority, pos, number) < (?6, ?7, ?8)
      AND (expires_at IS NULL OR expires_at >= ?1)
    ORDER BY priority, pos, number
    LIMIT ?2)
"""
ONE = """  SELECT priority, pos, number, token, failures, releases, snoozes, solo
  FROM shigoto_ready
  WHERE lane = ?2 AND priority = ?3 AND pos = ?4 AND number = ?5
"""


@cache
def best(lanes: int) -> str:
    """The statement that merges this many lanes into one line, and gives the first of it as one row.

    Each lane is an index range that ends after `limit` rows, so nothing is sorted but what may be taken.
    """
    ranges = [RANGE.format(lane=9 + number) for number in range(lanes)]
    return LEASES.format(ranges="  UNION ALL\n".join(ranges))


@cache
def one() -> str:
    """The statement that reads one job in the ready set by its key: lane, priority, pos, number."""
    return LEASES.format(ranges=ONE).replace("LIMIT ?2) r", ") r")
