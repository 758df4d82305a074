"""Enqueues are not counted one by one: numbers are given in commit order, so what was enqueued since is a range.

The rest of counting is `engine.sql.counting`.
"""

from collections.abc import Mapping, Sequence

from shigoto.engine.sql.commands import Steps, sql, sql_each
from shigoto.engine.sql.settling import count
from shigoto.model.job import State


def fold_counters() -> Steps[None]:
    """Count what was enqueued since the last time."""
    yield from _count_to((yield sql("highest")).fetchone()[0])


def uncounted() -> Steps[dict[str, int]]:
    """What was enqueued since the last time, by queue."""
    return dict((yield sql("uncounted")).fetchall())


def count_batch(first: int, jobs: Mapping[str, int]) -> Steps[None]:
    """Count a batch that was enqueued just now: so many of each queue, their numbers from this one on.

    To count it later would mean to walk over it again: half a second for a million jobs, with the write lock held.
    """
    yield from _count_to(first - 1)
    yield sql_each("count", [(queue, number, 0, 0, 0) for queue, number in jobs.items()])
    yield sql("set_meta", "counted_to", first - 1 + sum(jobs.values()))


def _count_to(number: int) -> Steps[None]:
    counted_to: int = (yield sql("meta", "counted_to")).fetchone()[0]
    if number > counted_to:
        yield sql("fold", counted_to, number)
        yield sql("set_meta", "counted_to", number)


def count_moved(old: str, new: str) -> Steps[None]:
    """A pending job has changed its queue. Before it has: until it is counted, it counts for the one it is in."""
    yield from fold_counters()
    yield from count(moved=[(old, new)])


def count_deleted(jobs: Sequence[tuple[int, State, str]]) -> Steps[None]:
    """Jobs went away. What was enqueued since the last sweep is not in the totals yet."""
    counted_to: int = (yield sql("meta", "counted_to")).fetchone()[0]
    yield from count(
        deleted=[(queue, state) for number, state, queue in jobs if number <= counted_to],
        revived=[(queue, state) for number, state, queue in jobs if number > counted_to and state.terminal],
    )
