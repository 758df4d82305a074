"""The currency between the operations of this engine and its driver, beside `Call`, which all SQL engines have."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from shigoto.engine.op import Write
from shigoto.engine.sql.commands import Call, Statement, load_statements

STATEMENTS = Path(__file__).parent / "statements"

Row = tuple[Any, ...]

_SCHEMA = re.compile(r"\bshigoto(?=\.)")


class Script(Struct, frozen=True):
    """Any number of SQL statements, without values."""

    text: str


class Copy(Struct, frozen=True):
    """Rows into a table, as `COPY … FROM STDIN` takes them. For callers in threads alone."""

    text: str
    rows: bytes


class Ring(Struct, frozen=True):
    """As a value: true if the statement is to ring the doorbell, as the driver decides just before it is sent."""


RING = Ring()


class Encoded(Struct, frozen=True):
    """As a value: several, as they go over the wire, for whoever says the same again and again."""

    values: Sequence[bytes | None]
    formats: Sequence[int]


Command = Call | Statement | Script | Copy | Write


class Answer:
    """What a statement has brought: all its rows, and how many it has touched."""

    __slots__ = ("_next", "rowcount", "rows", "tag")

    def __init__(self, rows: list[Row], rowcount: int, tag: bytes = b"") -> None:
        self.rows = rows
        self.rowcount = rowcount
        self.tag = tag
        self._next = 0

    def fetchone(self) -> Row | None:
        """The next row, None after the last."""
        at = self._next
        if at >= len(self.rows):
            return None
        self._next = at + 1
        return self.rows[at]

    def fetchall(self) -> list[Row]:
        """All rows that were not fetched yet."""
        rows = self.rows[self._next :] if self._next else self.rows
        self._next = len(self.rows)
        return rows

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchall())


def in_schema(text: str, schema: str) -> str:
    """The SQL text, whose names are all in `shigoto.`, for another schema."""
    return text if schema == "shigoto" else _SCHEMA.sub(f'"{schema}"', text)


def load_texts(schema: str) -> dict[str, str]:
    """The named statements of this engine, for the schema."""
    return {name: in_schema(text, schema) for name, text in load_statements(STATEMENTS).items()}


class Texts:
    """The statements of a store, encoded once."""

    __slots__ = ("_named",)

    def __init__(self, named: Mapping[str, str]) -> None:
        self._named = {name: text.encode() for name, text in named.items()}

    def __getitem__(self, name: str) -> bytes:
        return self._named[name]
