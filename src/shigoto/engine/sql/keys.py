"""Holders of unique keys (rule A1)."""

from collections.abc import Sequence
from uuid import UUID

from msgspec import Struct

from shigoto.engine.sql.commands import Steps, sql_each
from shigoto.engine.sql.looking import state_of
from shigoto.model.job import State

Key = tuple[str, str]  # tenant, key


class KeyHolder(Struct, frozen=True):
    """The job that holds a key; `place` is its place among those that are to be stored, None if it is stored."""

    id: UUID
    number: int
    state: State
    place: int | None = None


def holders(keys: Sequence[Key]) -> Steps[dict[Key, KeyHolder]]:
    """Who holds the keys. Where there are several writers, the keys are locked already, and the jobs are not: that one
    has ended stays true, since nobody brings it back without its key, and all else is true as of now."""
    if not keys:
        return {}
    rows = (yield sql_each("key_holders", keys)).fetchall()
    return {
        keys[place]: KeyHolder(UUID(bytes=id), number, state_of(number, state))
        for place, number, id, state in rows
    }
