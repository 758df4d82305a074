"""T4-T8: runs end on a server where others may have locked the same jobs. What the ends mean is `sql.settling`."""

from collections.abc import Collection, Sequence
from uuid import UUID

import psycopg
from msgspec import json

from shigoto.engine.sql import settling
from shigoto.engine.sql.commands import Dialect, Steps, sql
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement, Verdict


def special(settlements: Sequence[Settlement]) -> list[Settlement]:
    """Those that are more than a completion with a result."""
    return [
        s
        for s in settlements
        if s.ending is not Ending.COMPLETED
        or s.log is not None
        or s.progress is not None
        or s.progress_text is not None
    ]


def settle(
    dialect: Dialect, worker: UUID, settlements: Sequence[Settlement], *, plain: bool
) -> Steps[list[Verdict]]:
    """One that is locked is waited for, not for long; of several, the others are settled."""
    if len(settlements) == 1:
        return (yield from _settle_free(dialect, worker, settlements))
    if plain:
        try:
            return (yield from settling.settle(dialect, 0, worker, settlements))
        except psycopg.errors.LockNotAvailable:
            pass  # it was by itself, so that a transaction can begin now
    busy = yield from locked([settlement.number for settlement in settlements])
    free = [settlement for settlement in settlements if settlement.number not in busy]
    verdicts = iter((yield from _settle_free(dialect, worker, free)) if free else ())
    return [Verdict.BUSY if s.number in busy else next(verdicts) for s in settlements]


def locked(numbers: Sequence[int]) -> Steps[Collection[int]]:
    """Which of these runs somebody else has locked; all others are locked by us now, in the order of their numbers."""
    rows = (yield sql("lock_free", json.encode(numbers).decode())).fetchall()
    return frozenset(number for (number,) in rows)


def _settle_free(dialect: Dialect, worker: UUID, settlements: Sequence[Settlement]) -> Steps[list[Verdict]]:
    now: Millis = 0
    if any(settlement.ending is not Ending.COMPLETED for settlement in settlements):
        now = yield from now_there()
    return (yield from settling.settle(dialect, now, worker, settlements))


def now_there() -> Steps[Millis]:
    """What time it is at the store."""
    [now] = (yield sql("now")).fetchone()
    return int(now)
