"""Statements as they go over the wire, and answers as they come back. Knows nothing of waiting.

Spoken through `psycopg.pq`, libpq itself: a cursor of psycopg takes 50 to 70 µs more for each statement, which is a
quarter of an awaited enqueue. Parameters carry no types, since every one is cast in its statement; results are binary.

Arrays are made in a few steps for all elements together. A driver that encodes element by element takes longer than the
server needs to store the rows: ten arrays of a thousand are 8 µs a row that way, and 1 µs this way. The statement's
casts (`$1::uuid[]`) say what the bytes are. Only our own wire speaks so; the drivers of callers' connections are given
the elements as a list.
"""

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from msgspec import Struct
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from shigoto.engine.op import Write
from shigoto.engine.postgres.errors import ConnectionLost, is_final, one_line
from shigoto.engine.sql.commands import NamedSql, SqlText, load_statements

STATEMENTS = Path(__file__).parent / "statements"
_SCHEMA = re.compile(r"\bshigoto(?=\.)")

# The types' numbers are fixed in PostgreSQL's catalogue.
BIGINT_OID, INT_OID, TEXT_OID, UUID_OID = 20, 23, 25, 2950
# Dimensions, whether there may be nulls, type of the elements, length, lower bound.
_HEADER = struct.Struct("!iiIii")
_EMPTY = struct.Struct("!iiI")
_LENGTH = struct.Struct("!i")
_WITH_BIGINT, _WITH_INT = struct.Struct("!iq"), struct.Struct("!ii")
_NULL = _LENGTH.pack(-1)
_SIXTEEN = _LENGTH.pack(16)

TEXT, BINARY = 0, 1
PREPARE_AFTER = 2  # uses of a statement on one connection
MAX_PREPARED = 200  # on one connection
TUPLES_OK, COMMAND_OK = pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK
FATAL_ERROR, EMPTY = pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.EMPTY_QUERY
BAD, IDLE = pq.ConnStatus.BAD, pq.TransactionStatus.IDLE
T = TypeVar("T", int, str | None)
Row = tuple[Any, ...]
AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


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
Command = NamedSql | SqlText | Script | Copy | Write


class ServerRows:
    """What a statement has brought: all its rows, and how many it has touched."""

    __slots__ = ("_next", "rowcount", "rows", "tag")

    def __init__(self, rows: list[Row], rowcount: int, tag: bytes = b"") -> None:
        self.rows, self.rowcount, self.tag = rows, rowcount, tag
        self._next = 0

    def fetchone(self) -> Row | None:
        at = self._next
        if at >= len(self.rows):
            return None
        self._next = at + 1
        return self.rows[at]

    def fetchall(self) -> list[Row]:
        rows = self.rows[self._next :] if self._next else self.rows
        self._next = len(self.rows)
        return rows

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchall())


def in_schema(text: str, schema: str) -> str:
    """The SQL text, whose names are all in `shigoto.`, for another schema."""
    return text if schema == "shigoto" else _SCHEMA.sub(f'"{schema}"', text)


def load_texts(schema: str) -> dict[str, str]:
    return {name: in_schema(text, schema) for name, text in load_statements(STATEMENTS).items()}


class Array(Struct, frozen=True):
    """An array as a value of a statement."""

    elements: Sequence[Any]
    kind: int  # of the elements
    encode: Callable[[Sequence[Any]], bytes]

    def encoded(self) -> bytes:
        """The array in binary format. Raises UnicodeEncodeError for half a surrogate pair."""
        if not self.elements:
            return _EMPTY.pack(0, 0, self.kind)
        header = _HEADER.pack(1, self.kind == TEXT_OID, self.kind, len(self.elements), 1)
        return header + self.encode(self.elements)


def bigint_array(numbers: Sequence[int]) -> Array:
    return Array(numbers, BIGINT_OID, _bigints)


def int_array(numbers: Sequence[int]) -> Array:
    return Array(numbers, INT_OID, lambda elements: _joined(_int, elements))


def uuid_array(ids: Sequence[UUID]) -> Array:
    return Array(ids, UUID_OID, lambda elements: _SIXTEEN + _SIXTEEN.join([id.bytes for id in elements]))


def text_array(texts: Sequence[str | None]) -> Array:
    """A `text[]`, in which None is NULL."""
    return Array(texts, TEXT_OID, lambda elements: _joined(_text, elements))


def _bigints(numbers: Sequence[int]) -> bytes:
    pack = _WITH_BIGINT.pack
    return b"".join([pack(8, number) for number in numbers])


def _int(number: int) -> bytes:
    return _WITH_INT.pack(4, number)


def _text(text: str | None) -> bytes:
    if text is None:
        return _NULL
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def _joined(encode: Callable[[T], bytes], elements: Sequence[T]) -> bytes:
    """The elements one after the other. Where most are alike, as results and tokens are, each kind is encoded once:
    20 ns an element instead of 90."""
    kinds = set(elements)
    if 2 * len(kinds) > len(elements):
        return b"".join([encode(element) for element in elements])
    encoded = {kind: encode(kind) for kind in kinds}
    return b"".join([encoded[element] for element in elements])


class WireRequest(Struct, frozen=True):
    """One statement to be sent; without `formats` as it is, so that it may be several.

    `copied` is what goes in after it, if it is a COPY.
    """

    text: bytes
    values: Sequence[bytes | None] = ()
    formats: Sequence[int] | None = None
    copied: bytes | None = None


WHO = WireRequest(b"SELECT pg_backend_pid()", (), ())


def encode(text: bytes, values: Sequence[Any], ring: Callable[[], bool]) -> WireRequest:
    """The statement with its values. Raises psycopg.DataError for text that PostgreSQL cannot hold."""
    encoded: list[bytes | None] = []
    formats: list[int] = []
    try:
        # The most frequent kinds first: this is a tenth of what a client does for one job.
        for value in values:
            format = TEXT
            if value is None:
                encoded.append(None)
            elif isinstance(value, str):
                encoded.append(word := value.encode())
                if b"\0" in word:  # libpq would cut it off there, without a word
                    raise psycopg.DataError(f"NUL at byte {word.index(0)}")
            elif isinstance(value, int):  # of which bool is one; 0 and 1 are good for both types
                encoded.append(b"%d" % value)
            elif isinstance(value, bytes):
                encoded.append(value)
                format = BINARY
            elif isinstance(value, Array):
                encoded.append(value.encoded())
                format = BINARY
            elif isinstance(value, Ring):
                encoded.append(b"1" if ring() else b"0")
            elif isinstance(value, (float, UUID)):
                encoded.append(str(value).encode())
            else:
                raise TypeError(f"A {type(value).__name__} cannot be a value of a statement.")
            formats.append(format)
    except UnicodeEncodeError as error:
        raise psycopg.DataError(f"half of a surrogate pair at character {error.start}") from error
    return WireRequest(text, encoded, formats)


class LibpqConnection:
    """One connection, as far as sending and reading go. Whoever owns it waits for the socket."""

    __slots__ = ("_made", "_names", "_seen", "_transformer", "inner", "pgconn", "prepares")

    def __init__(self, inner: AnyConnection, *, prepares: bool) -> None:
        self.inner = inner
        self.pgconn = inner.pgconn
        self.prepares = prepares
        self._transformer = Transformer(inner)
        self._made = 0
        self._names: dict[bytes, bytes] = {}
        self._seen: dict[bytes, int] = {}

    @property
    def is_idle(self) -> bool:
        """Whether it can be used by anybody: it is open, in no transaction, and has no answer to come."""
        pgconn = self.pgconn
        return pgconn.status != BAD and pgconn.transaction_status == IDLE

    def found_out(self, who: ServerRows) -> None:
        """Prepare statements from now on, if WHO has answered is whom we were told of when we connected: a pooler has
        other numbers than the server behind it, which changes from one statement to the next."""
        self.prepares = who.fetchone() == (self.pgconn.backend_pid,)

    def must_prepare(self, request: WireRequest) -> bool:
        """Whether the statement is to be prepared before it is sent, and then counts as such."""
        if request.formats is None or request.text in self._names or len(self._names) >= MAX_PREPARED:
            return False
        seen = self._seen.get(request.text, 0) + 1
        self._seen[request.text] = seen
        if len(self._seen) > 2 * MAX_PREPARED:
            self._seen.clear()
        return seen >= PREPARE_AFTER

    def send_prepare(self, request: WireRequest) -> None:
        """Have the statement prepared. Raises ConnectionLost."""
        self._made += 1
        name = b"shigoto_%d" % self._made
        try:
            self.pgconn.send_prepare(name, request.text)
        except psycopg.OperationalError as error:
            raise ConnectionLost(one_line(error)) from error
        self._names[request.text] = name

    def send(self, request: WireRequest) -> None:
        """Hand the statement to libpq. Raises ConnectionLost."""
        pgconn = self.pgconn
        try:
            if request.formats is None:
                pgconn.send_query(request.text)
            elif self.prepares and (name := self._names.get(request.text)) is not None:
                pgconn.send_query_prepared(name, request.values, request.formats, BINARY)
            else:
                pgconn.send_query_params(request.text, request.values, None, request.formats, BINARY)
        except psycopg.OperationalError as error:
            raise ConnectionLost(one_line(error)) from error

    def answer(self, results: list[pq.abc.PGresult]) -> ServerRows:
        """What the server has said. Raises psycopg.Error if that is no, ConnectionLost if it was the last word."""
        for result in results:
            status = result.status
            if status == FATAL_ERROR:
                error = error_from_result(result, "utf-8")
                if is_final(result) or self.pgconn.status == BAD:
                    raise ConnectionLost(one_line(error), answered=error.sqlstate is not None) from error
                raise error
            if status not in (TUPLES_OK, COMMAND_OK, EMPTY):
                raise ConnectionLost(f"an answer that nobody has asked for ({pq.ExecStatus(status).name})")
        result = results[-1]
        touched = result.command_tuples
        rowcount = -1 if touched is None else touched
        if not result.nfields:
            return ServerRows([], rowcount, result.command_status or b"")
        self._transformer.set_pgresult(result)
        rows = self._transformer.load_rows(0, result.ntuples, tuple)
        self._transformer.set_pgresult(None)
        return ServerRows(rows, rowcount)

    def forget_prepared(self, request: WireRequest) -> None:
        self._names.pop(request.text, None)

    def finish(self) -> None:
        """Close the socket; what is under way on the server goes on there."""
        self.pgconn.finish()
