"""T18: bodies are deleted."""

from collections.abc import Sequence

from msgspec import json

from shigoto.engine.sql.commands import Steps, sql
from shigoto.engine.sqlite.counting import count_deleted
from shigoto.model.job import State


def forget(jobs: Sequence[tuple[int, State, str]]) -> Steps[None]:
    """Delete the bodies. The newest stays as a husk, so that its number is not given out again."""
    numbers = [number for number, _, _ in jobs]
    highest = (yield sql("highest")).fetchone()[0]
    if highest in numbers:
        numbers.remove(highest)
        yield sql("delete_husk")
        yield sql("make_husk", highest)
        yield sql("set_meta", "husk", highest)
    yield sql("delete_jobs", json.encode(numbers).decode())
    yield sql("delete_husk")
    yield from count_deleted(jobs)
