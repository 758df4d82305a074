"""Operations inside callers' own transactions, whatever driver or library their connections are of.

They never begin, commit or roll back there, and change no setting (rules A26). An enqueue, and an op of more than one
command, has a savepoint, so that it is all or nothing, and an error of it leaves the caller's transaction usable. Any
other op of a single command has none: it would be three commands then, and what can go wrong with it is what can go
wrong with any statement of the caller's own. Serialization failures and all other
errors of the driver reach the caller.

psycopg and asyncpg understand `$1`; for psycopg2 it is rewritten. Rows are tuples, whatever row factories and loaders
the caller has set, and arrays go as lists, which every driver has its own way to encode. Only psycopg is ours: the
other drivers are known by what is loaded already, since whoever has a connection of theirs has loaded them.

The driver's own connection is found inside what libraries wrap around it, SQLAlchemy's sessions and Django's
connections, by what they look like: none of these libraries is imported for it. What they would do before a statement
of their own, they do before ours: SQLAlchemy begins its transaction then, without which its commit would be none.
"""

import re
import sys
from collections.abc import Awaitable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from inspect import isawaitable, iscoroutine
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeGuard, TypeVar, cast
from uuid import UUID
from weakref import WeakSet

import psycopg
from psycopg import pq
from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters
from psycopg.rows import tuple_row
from psycopg.types.array import register_all_arrays

from shigoto.engine.op import Op, Write, adrive, drive, translate
from shigoto.engine.postgres.driver import ONE_TRIP, Driver, hints_of
from shigoto.engine.postgres.errors import one_line, refined
from shigoto.engine.postgres.transaction import AsyncBlockConnection, BlockConnection
from shigoto.engine.postgres.wire import RING, Array, Command, Copy, Ring, Row, Script, ServerRows
from shigoto.engine.sql.block import NO_TRANSACTION, held_in
from shigoto.engine.sql.commands import NamedSql, SqlText, Steps
from shigoto.engine.sql.enqueueing import Lane, add_lanes
from shigoto.model.errors import (
    JobError,
    OptionInvalid,
    SchemaMissing,
    StoreMoved,
    StoreMoving,
    StoreRefused,
    StoreUnavailable,
)

TransactionStatus = Literal["none", "open", "failed", "unknown"]  # of the caller's transaction

_STATUSES: dict[int, TransactionStatus] = {
    pq.TransactionStatus.IDLE: "none",
    pq.TransactionStatus.INTRANS: "open",
    pq.TransactionStatus.INERROR: "failed",
}
_PLACEHOLDER = re.compile(r"\$(\d+)|%")
_ANSWERS = re.compile(r"(?is)\s*(SELECT|WITH|VALUES)\b|.*\bRETURNING\b")

DEPTH = 5  # Session → Connection → pooled connection → the driver's
AWAIT_IT = (
    "The statements of the {} that was handed in are awaited, so the job must be, too: write"
    " `await task.using(connection=…).aenqueue(…)`, or `async with ctx.transaction(…)`."
)

T = TypeVar("T")
Identity = tuple[int, int]
Question = tuple[str, Sequence[Any]]
AHEAD_WITHIN = 5.0  # seconds for what can be done later, too
MOST_LANES = 10_000  # that are remembered
IN_FAILED_TRANSACTION = "25P02"
SAVEPOINT: Question = ("SAVEPOINT shigoto", ())
ROLL_BACK: Question = ("ROLLBACK TO SAVEPOINT shigoto", ())
RELEASE: Question = ("RELEASE SAVEPOINT shigoto", ())
# A server begins once, to the microsecond, and no two of its databases have the same number.
IDENTITY = SqlText(
    "SELECT d.oid::bigint, (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint"
    " FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()"
)
BEGIN_ONE = (
    "Begin one first: `with connection.transaction():` with psycopg, `async with` it with asyncpg,"
    " `with transaction.atomic():` with Django. Or leave out connection=."
)
FAILED = (
    "The transaction of the connection that was handed in has failed: after an error PostgreSQL takes nothing more in"
    " it. Roll it back and begin again; for a part that may fail there are savepoints."
)
Questions = Generator[Question, ServerRows, T]
Joining = Generator[Question | Op[Any], Any, T]  # statements of the caller's connection, ops of the driver


class CallerConnection(Protocol):
    """A connection of a caller's. Its statements block, or are awaited."""

    @property
    def connection(self) -> object:
        """The driver's own connection."""
        ...

    def transaction_status(self) -> TransactionStatus:
        """Whether it is in a transaction, or begins one by itself."""
        ...

    def execute(self, text: str, values: Sequence[Any]) -> ServerRows | Awaitable[ServerRows]:
        """Run one statement. Raises the driver's own errors."""
        ...


def adapted(connection: object) -> CallerConnection | None:
    if _is_psycopg(connection):
        return OfPsycopg(connection)
    if isinstance(connection, _types("psycopg2.extensions", "connection")):
        return OfPsycopg2(connection)
    return None


def async_adapted(connection: object) -> CallerConnection | None:
    if _is_async_psycopg(connection):
        return OfAsyncPsycopg(connection)
    if is_asyncpg(connection):
        return OfAsyncpg(connection)
    return None


def _is_psycopg(connection: object) -> TypeGuard[psycopg.Connection[Any]]:
    return isinstance(connection, psycopg.Connection)


def _is_async_psycopg(connection: object) -> TypeGuard[psycopg.AsyncConnection[Any]]:
    return isinstance(connection, psycopg.AsyncConnection)


def is_asyncpg(connection: object) -> bool:
    """Whether it is asyncpg's, or lent out by a pool of asyncpg's."""
    proxies = _types("asyncpg.pool", "PoolConnectionProxy")
    return isinstance(connection, (*_types("asyncpg.connection", "Connection"), *proxies))


def code_of(error: BaseException) -> str | None:
    """PostgreSQL's code for an error of any driver; empty if a driver has raised it and there is none."""
    if isinstance(error, psycopg.Error):
        return error.sqlstate or ""
    if isinstance(error, _types("psycopg2", "Error")):
        code: str | None = getattr(error, "pgcode", None)
        return code or ""
    if isinstance(error, (*_types("asyncpg", "PostgresError"), *_types("asyncpg", "InterfaceError"))):
        return getattr(error, "sqlstate", None) or ""
    return None


def _is_known(connection: object) -> bool:
    return adapted(connection) is not None or async_adapted(connection) is not None


def _types(module: str, name: str) -> tuple[type, ...]:
    loaded = sys.modules.get(module)
    return () if loaded is None else (getattr(loaded, name),)


def _value(value: Any) -> Any:
    """A value of ours in what every driver understands."""
    if isinstance(value, Array):
        return [_value(element) for element in value.elements]
    if isinstance(value, Ring):  # the notification goes out with the caller's commit, or never
        return 1
    return int(value) if isinstance(value, bool) else value


class _Cursor(psycopg.RawCursor[Row]):
    """One that knows nothing of how its connection's owner wants to see values."""

    @property
    def adapters(self) -> AdaptersMap:
        return _plain_adapters()


class _AsyncCursor(psycopg.AsyncRawCursor[Row]):
    @property
    def adapters(self) -> AdaptersMap:
        return _plain_adapters()


@cache
def _plain_adapters() -> AdaptersMap:
    """psycopg's own ways, without what anybody has registered for the whole process."""
    adapters = AdaptersMap(types=AdaptersMap(psycopg.adapters).types)  # a copy of them
    register_default_adapters(adapters)
    register_all_arrays(adapters)
    return adapters


class OfPsycopg:
    """psycopg 3."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def transaction_status(self) -> TransactionStatus:
        return _status_of(self.connection, self.connection.pgconn.transaction_status)

    def execute(self, text: str, values: Sequence[Any]) -> ServerRows:
        with _Cursor(self.connection, row_factory=tuple_row) as cursor:
            cursor.execute(text.encode(), [_value(value) for value in values])
            rows = [] if cursor.description is None else cursor.fetchall()
            return ServerRows(rows, cursor.rowcount)


class OfAsyncPsycopg:
    """psycopg 3 on an event loop."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self.connection = connection

    def transaction_status(self) -> TransactionStatus:
        return _status_of(self.connection, self.connection.pgconn.transaction_status)

    async def execute(self, text: str, values: Sequence[Any]) -> ServerRows:
        async with _AsyncCursor(self.connection, row_factory=tuple_row) as cursor:
            await cursor.execute(text.encode(), [_value(value) for value in values])
            rows = [] if cursor.description is None else await cursor.fetchall()
            return ServerRows(rows, cursor.rowcount)


def _status_of(connection: Any, number: int) -> TransactionStatus:
    transaction_status = _STATUSES.get(number, "unknown")
    return "open" if transaction_status == "none" and not connection.autocommit else transaction_status


class OfPsycopg2:
    """psycopg2, which puts the values into the text itself."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def transaction_status(self) -> TransactionStatus:
        return _status_of(self.connection, self.connection.get_transaction_status())

    def execute(self, text: str, values: Sequence[Any]) -> ServerRows:
        cursor = sys.modules["psycopg2.extensions"].cursor(self.connection)  # of no factory of the caller's
        try:
            literals = {f"p{at}": _literal(value) for at, value in enumerate(values, 1)}
            cursor.execute(_rewritten(text), literals)
            rows: list[Row] = [] if cursor.description is None else cursor.fetchall()
            return ServerRows([tuple(_bytes(value) for value in row) for row in rows], cursor.rowcount)
        finally:
            cursor.close()


@lru_cache(maxsize=256)
def _rewritten(text: str) -> str:
    # In parentheses: -1::smallint would be the negative of 1::smallint, and there is no 32768::smallint.
    return _PLACEHOLDER.sub(lambda match: f"(%(p{match[1]})s)" if match[1] else "%%", text)


def _literal(value: Any) -> Any:
    if isinstance(value, Array):
        return [_literal(element) for element in value.elements]
    return str(value) if isinstance(value, UUID) else _value(value)


def _bytes(value: Any) -> Any:
    return bytes(cast("memoryview[int]", value)) if isinstance(value, memoryview) else value


class OfAsyncpg:
    """asyncpg. Its own choice whether a statement is prepared is left to it, as behind a pooler it must not be."""

    def __init__(self, connection: Any) -> None:
        self._execute = connection.execute
        self._fetch = connection.fetch
        self._is_in_transaction = connection.is_in_transaction
        # A pool lends out a new proxy each time; what is to be remembered is behind it.
        self.connection: object = getattr(connection, "_con", None) or connection

    def transaction_status(self) -> TransactionStatus:
        return "open" if self._is_in_transaction() else "none"

    async def execute(self, text: str, values: Sequence[Any]) -> ServerRows:
        values = [_value(value) for value in values]
        if _ANSWERS.match(text) is None:
            status = await self._execute(text, *values)
            count = status.rpartition(" ")[2]
            return ServerRows([], int(count) if count.isdigit() else -1)
        plain = sys.modules["asyncpg"].Record
        rows = [tuple(row) for row in await self._fetch(text, *values, record_class=plain)]
        return ServerRows(rows, len(rows))


def adapter_of(connection: object) -> CallerConnection:
    """What executes statements on the connection. Raises JobError for one that is to be awaited."""
    inner: Any = connection
    for _ in range(DEPTH):
        caller_connection = adapted(inner)
        if caller_connection is not None:
            return caller_connection
        _expect_blocking(inner, connection)
        inner = held_in(inner, _is_known)
        if iscoroutine(inner):
            inner.close()
            raise JobError(AWAIT_IT.format(type(connection).__name__))
    raise _unknown(connection)


async def async_adapter_of(connection: object) -> CallerConnection:
    inner: Any = connection
    for _ in range(DEPTH):
        caller_connection = async_adapted(inner) or adapted(inner)
        if caller_connection is not None:
            return caller_connection
        if hasattr(inner, "get_raw_connection"):
            inner = await _driven(inner)
            continue
        inner = held_in(inner, _is_known)
        if isawaitable(inner):
            inner = await inner
    raise _unknown(connection)


async def _driven(connection: Any) -> Any:
    """The driver's connection of an AsyncConnection of SQLAlchemy's, in its transaction."""
    if not connection.in_transaction():
        await connection.exec_driver_sql("SELECT 1")
    inner = (await connection.get_raw_connection()).driver_connection
    if is_asyncpg(inner) and not inner.is_in_transaction():
        await connection.exec_driver_sql("SELECT 1")  # before which it only means to begin
    return inner


def _expect_blocking(inner: object, given: object) -> None:
    if async_adapted(inner) is not None or hasattr(inner, "get_raw_connection"):
        raise JobError(AWAIT_IT.format(type(given).__name__))


def _unknown(connection: object) -> StoreRefused:
    return StoreRefused(
        f"connection= got a {type(connection).__name__}, in which there is no open connection of psycopg, psycopg2 or"
        " asyncpg. Hand in one of theirs, or what SQLAlchemy or Django give, inside your transaction."
    )


class Joiner:
    """What joins callers' transactions, for one store."""

    def __init__(self, driver: Driver, texts: Mapping[str, str]) -> None:
        self._driver, self._texts = driver, texts
        self._store = driver.settings.shown
        self._home: Identity | None = None
        self._checked: WeakSet[Any] = WeakSet()

    def join(self, connection: object, op: Op[T]) -> T:
        _expect_block(connection)
        caller_connection = adapter_of(connection)

        def execute(step: Question | Op[Any]) -> Any:
            if isinstance(step, Op):
                return self._driver.run(step)
            with _translating():
                return caller_connection.execute(*step)

        try:
            return drive(self._joining(caller_connection, op), execute)
        except psycopg.Error as error:
            self._explain(error)

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        """The same on an event loop; a connection whose statements block, blocks here as it does in the caller's."""
        _expect_block(connection)
        caller_connection = await async_adapter_of(connection)

        async def execute(step: Question | Op[Any]) -> Any:
            if isinstance(step, Op):
                return await self._driver.arun(step)
            with _translating():
                answer = caller_connection.execute(*step)
                return answer if isinstance(answer, ServerRows) else await answer

        try:
            return await adrive(self._joining(caller_connection, op), execute)
        except psycopg.Error as error:
            self._explain(error)

    def trust(self, connection: object) -> None:
        """Remember a connection as one to this database."""
        with suppress(TypeError):  # of a kind that cannot be remembered: it is asked each time
            self._checked.add(connection)

    def _joining(self, caller_connection: CallerConnection, op: Op[T]) -> Joining[T]:
        _expect_transaction(caller_connection.transaction_status())
        if caller_connection.connection not in self._checked:
            yield from self._expect_home(caller_connection)
        lanes = hints_of(op).lanes
        missing = None if lanes is None else lanes()
        if missing is not None:
            with suppress(StoreUnavailable):
                yield missing
        return (yield from Joined(op, self._texts).questions())

    def _expect_home(self, caller_connection: CallerConnection) -> Joining[None]:
        """Raise StoreRefused for a connection to another database, where no worker would look."""
        there = yield from Joined(ASK_IDENTITY, self._texts).questions()
        if there != self._home:  # not known yet, or the server was started anew
            self._home = yield ASK_IDENTITY
        if there != self._home:
            raise StoreRefused(
                f"The connection that was handed in is not to the database of the store, {self._store}: no worker would"
                " find a job there. Hand in a connection to that very database, or leave out connection=."
            )
        self.trust(caller_connection.connection)

    def _explain(self, error: psycopg.Error) -> NoReturn:
        """Raise what the caller can do something about in our words, and everything else in their driver's."""
        cause = error.__cause__ if isinstance(error, Translated) else error
        assert cause is not None
        if code_of(cause) == IN_FAILED_TRANSACTION:
            raise JobError(FAILED) from cause
        ours = refined(error, self._store)
        if isinstance(ours, (OptionInvalid, SchemaMissing, StoreMoved, StoreMoving, StoreRefused)):
            raise ours from cause
        raise cause


class Translated(psycopg.Error):
    """Marks the errors of other drivers, which are psycopg's as far as ops are concerned."""


class Joined(Generic[T]):
    """One op inside a caller's transaction."""

    def __init__(self, op: Op[T], texts: Mapping[str, str]) -> None:
        self._op, self._texts = op, texts
        hints = hints_of(op)
        # An enqueue needs one from its first command: if it is refused, the caller may go on without the job.
        # Any other op of one trip needs one from its second command.
        self._needs_savepoint = not hints.one_trip or hints.alone is not None
        self._guarded = False
        self._rang = False

    def questions(self) -> Questions[T]:
        """What to execute, one after the other; to be sent the answers, or thrown what the server says instead."""
        try:
            value: T = yield from translate(self._op.start(), self._execute, psycopg.Error)
            if not self._rang and self._op.rings is not None and self._op.rings(value):
                yield self._texts["ring"], ()
            if self._guarded:
                yield RELEASE
            return value
        except Exception:
            if self._guarded:
                yield ROLL_BACK
                yield RELEASE
            raise

    def _execute(self, command: Command) -> Questions[ServerRows | None]:
        if self._needs_savepoint and not self._guarded:
            yield SAVEPOINT
            self._guarded = True
        self._needs_savepoint = True
        if isinstance(command, Write):
            return None
        assert not isinstance(command, (Script, Copy)), "a script is nothing for a caller's transaction"
        text = self._texts[command.name] if isinstance(command, NamedSql) else command.text
        assert not isinstance(command.values, Mapping), "PostgreSQL's values have numbers, not names"
        self._rang = self._rang or RING in command.values
        return (yield text, command.values)


def _identity() -> Steps[Identity]:
    row: Identity = (yield IDENTITY).fetchone()
    return row


ASK_IDENTITY: Op[Identity] = Op(start=_identity, mode="read", hints=ONE_TRIP)


def _expect_block(connection: object) -> None:
    """Raise what a connection of ours has to say, if its block is over."""
    if isinstance(connection, (BlockConnection, AsyncBlockConnection)):
        connection.block.expect_usable()


def _expect_transaction(transaction_status: TransactionStatus) -> None:
    if transaction_status == "none":
        raise JobError(f"{NO_TRANSACTION} {BEGIN_ONE}")
    if transaction_status == "failed":
        raise JobError(FAILED)


@contextmanager
def _translating() -> Generator[None]:
    """Raise the errors of other drivers as the errors of psycopg that have the same codes."""
    try:
        yield
    except Exception as error:
        code = code_of(error)
        if code is None or isinstance(error, psycopg.Error):
            raise
        try:
            kind: type[psycopg.Error] = psycopg.errors.lookup(code)
        except KeyError:
            kind = psycopg.DatabaseError
        translated = type(kind.__name__, (Translated, kind), {"sqlstate": code or None})
        raise translated(one_line(error)) from error


class Lanes:
    """The lanes that are known to be there. One that a caller's long transaction has made, and not committed, would
    keep everybody else waiting who enqueues the same task; so they are made before, apart from it."""

    def __init__(self) -> None:
        self._known: set[Lane] = set()

    def missing(self, wanted: set[Lane]) -> Op[None] | None:
        """What makes the lanes that are not known yet; None if all are."""
        new = wanted - self._known
        if not new:
            return None
        return Op(start=lambda: _add(new), committed=lambda _: self._note(new), deadline=AHEAD_WITHIN)

    def _note(self, lanes: set[Lane]) -> None:
        if len(self._known) > MOST_LANES:  # queues whose names are made up as they go
            self._known.clear()
        self._known.update(lanes)


def _add(lanes: set[Lane]) -> Steps[None]:
    # Somebody may have made one by other ways and not committed it: the very transaction that is to be joined.
    yield SqlText("SET LOCAL lock_timeout = 1000")
    yield from add_lanes(lanes)
