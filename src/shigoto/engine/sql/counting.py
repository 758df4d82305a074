"""Exact counts at a cost that does not grow with history; how they are read is in `looking.stats`."""

from collections.abc import Mapping, Sequence

from shigoto.engine.sql.command import Steps, sql_each
from shigoto.model.job import State


def count(
    *,
    ended: Sequence[tuple[str, State]] = (),
    revived: Sequence[tuple[str, State]] = (),
    deleted: Sequence[tuple[str, State]] = (),
    moved: Sequence[tuple[str, str]] = (),
) -> Steps[None]:
    """Keep the counters true: jobs, by queue, that reached a terminal state, left it again, went away altogether, or
    moved from one queue to another."""
    changes: dict[str, dict[str, int]] = {}

    def change(queue: str, column: str, by: int) -> None:
        row = changes.setdefault(queue, {"total": 0, "completed": 0, "failed": 0, "cancelled": 0})
        row[column] += by

    for queue, state in ended:
        change(queue, state, 1)
    for queue, state in revived:
        change(queue, state, -1)
    for queue, state in deleted:
        change(queue, "total", -1)
        if state.terminal:
            change(queue, state, -1)
    for old, new in moved:
        change(old, "total", -1)
        change(new, "total", 1)
    if changes:
        yield sql_each("count", [(queue, *row.values()) for queue, row in changes.items()])


def count_completed(jobs: Mapping[str, int]) -> Steps[None]:
    """The same for jobs that were completed: so many of each queue."""
    yield sql_each("count", [(queue, 0, number, 0, 0) for queue, number in jobs.items()])
