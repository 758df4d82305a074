"""T3: what was due later is due now."""

from shigoto.engine.op import WRITE
from shigoto.engine.sql.commands import Steps, sql
from shigoto.model.time import Millis
from shigoto.model.worker import Promoted


def promote(now: Millis, limit: int) -> Steps[Promoted]:
    """Move due jobs from the schedule to the ready set; the look at the next due instant needs no lock."""
    due = yield from _next_due()
    if due is None or due > now:
        return Promoted(0, None if due is None else due - now)
    yield WRITE
    count = (yield sql("promote", now, limit)).rowcount
    yield sql("unschedule_promoted", now, limit)
    due = yield from _next_due()
    return Promoted(max(count, 0), None if due is None else max(0, due - now))


def _next_due() -> Steps[Millis | None]:
    """When the next job is due. What somebody has written by hand, and is no instant, sorts behind all that are."""
    due: object = (yield sql("next_due")).fetchone()[0]
    return int(due) if isinstance(due, int | float) else None
