"""The currency between operations on a database and the drivers that run them."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct, json

from shigoto.engine.op import Write

T = TypeVar("T")


class Call(Struct, frozen=True):
    """One statement of the engine's own .sql files, by its name."""

    name: str
    values: Sequence[Any] = ()


class Statement(Struct, frozen=True):
    """One statement whose text was made for the occasion, in the engine's own dialect; on SQLite also that statement
    for each of many rows. Elsewhere each of them would be a trip to the server."""

    text: str
    values: Sequence[Any] | Mapping[str, Any] = ()
    many: bool = False


class Answer(Protocol):
    """What a driver sends back for a command."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


Command = Call | Statement | Write
Steps = Generator[Any, Answer, T]  # commands, and what else an engine knows


def sql(name: str, *values: Any) -> Call:
    """The named statement with its values."""
    return Call(name, values)


def sql_each(name: str, rows: Sequence[Sequence[Any]]) -> Call:
    """The named statement for all rows at once: they travel as one JSON text, and the database takes them apart."""
    return Call(name, (json.encode(rows).decode(),))
