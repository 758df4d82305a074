"""T4: runs end well. The token is checked by the function `complete`."""

from uuid import UUID

from shigoto.engine.postgres.arrays import bigint_array, int_array, text_array
from shigoto.engine.sql.commands import Steps, sql
from shigoto.model.time import Millis
from shigoto.model.worker import Settlement


def complete(now: Millis, worker: UUID, settlements: list[Settlement]) -> Steps[list[Settlement]]:
    """Complete those that this worker holds, and tell which these are."""
    numbers = bigint_array([s.number for s in settlements])
    tokens = int_array([s.token for s in settlements])
    results = text_array([s.result for s in settlements])
    [accepted] = (yield sql("complete", worker.bytes, numbers, tokens, results)).fetchone()
    if len(accepted) == len(settlements):
        return settlements
    mine = set(accepted)
    return [s for s in settlements if s.number in mine]
