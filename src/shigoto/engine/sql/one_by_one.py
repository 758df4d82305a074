"""Rows by number, all at once; and if one of them cannot be read, one by one without it."""

from collections.abc import Sequence
from typing import Any

from msgspec import json

from shigoto.engine.sql.command import Steps, sql
from shigoto.engine.sql.dialect import Dialect


def one_by_one(dialect: Dialect, name: str, numbers: Sequence[int]) -> Steps[list[tuple[Any, ...]]]:
    """What a statement that takes numbers as JSON answers, without the rows that cannot be read."""
    try:
        return (yield sql(name, json.encode(numbers).decode())).fetchall()
    except Exception as error:
        if not dialect.is_damage(error):
            raise
    rows: list[tuple[Any, ...]] = []
    for number in numbers:
        try:
            rows += (yield sql(name, f"[{number}]")).fetchall()
        except Exception as error:
            if not dialect.is_damage(error):
                raise
    return rows
