"""Runs operations inside callers' own transactions, on their connections.

We never begin, commit or roll back there, and change no setting (rules A26). An op of more than one command has a
savepoint, so that it is all or nothing, and an error of it leaves the caller's transaction usable. One that is a single
command has none: it would be three commands then, and what can go wrong with it is what can go wrong with any statement
of the caller's own. Serialization failures are the caller's to see, and so is whatever else their driver raises.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, NoReturn, TypeVar
from weakref import WeakSet

import psycopg

from shigoto.engine.op import Op, Write
from shigoto.engine.postgres.adapters import AsyncTheirs, Standing, Theirs, code_of
from shigoto.engine.postgres.driver import Driver
from shigoto.engine.postgres.enqueueing import Lane, add_lanes
from shigoto.engine.postgres.failures import one_line, refined
from shigoto.engine.postgres.lent import LentAsyncConnection, LentConnection
from shigoto.engine.postgres.statement import RING, Answer, Command, Copy, Script
from shigoto.engine.postgres.unwrap import aopened, opened
from shigoto.engine.sql.block import NO_TRANSACTION
from shigoto.engine.sql.commands import Call, Statement, Steps
from shigoto.model.errors import (
    JobError,
    OptionInvalid,
    SchemaMissing,
    StoreMoved,
    StoreMoving,
    StoreRefused,
    StoreUnavailable,
)

T = TypeVar("T")

AHEAD_WITHIN = 5.0  # seconds for what can be done later, too
MOST_LANES = 10_000  # that are remembered
IN_FAILED_TRANSACTION = "25P02"

SAVEPOINT: "Question" = ("SAVEPOINT shigoto", ())
ROLL_BACK: "Question" = ("ROLLBACK TO SAVEPOINT shigoto", ())
RELEASE: "Question" = ("RELEASE SAVEPOINT shigoto", ())
# A server begins once, to the microsecond, and no two of its databases have the same number.
IDENTITY = Statement(
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

Identity = tuple[int, int]
Question = tuple[str, Sequence[Any]]
Questions = Generator[Question, Answer, T]


class Joiner:
    """What joins callers' transactions, for one store."""

    def __init__(self, driver: Driver, texts: Mapping[str, str]) -> None:
        self._driver = driver
        self._texts = texts
        self._store = driver.settings.shown
        self._home: Identity | None = None
        self._checked: WeakSet[Any] = WeakSet()

    def join(self, connection: object, op: Op[T]) -> T:
        """Run an op on the caller's connection, in the calling thread."""
        _expect_block(connection)
        theirs = opened(connection)
        _expect_transaction(theirs.standing())
        if theirs.connection not in self._checked:
            self._expect_home(theirs)
        ahead = None if op.ahead is None else op.ahead()
        if ahead is not None:
            with suppress(StoreUnavailable):
                self._driver.run(ahead, deadline=AHEAD_WITHIN)
        return self._run(theirs, Joined(op, self._texts).questions())

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        """The same on an event loop; a connection whose statements block, blocks here as it does in the caller's."""
        _expect_block(connection)
        theirs = await aopened(connection)
        _expect_transaction(theirs.standing())
        if theirs.connection not in self._checked:
            await self._aexpect_home(theirs)
        ahead = None if op.ahead is None else op.ahead()
        if ahead is not None:
            with suppress(StoreUnavailable):
                await self._driver.arun(ahead, deadline=AHEAD_WITHIN)
        return await self._arun(theirs, Joined(op, self._texts).questions())

    def trust(self, connection: object) -> None:
        """Remember a connection as one to this database."""
        with suppress(TypeError):  # of a kind that cannot be remembered: it is asked each time
            self._checked.add(connection)

    def _expect_home(self, theirs: Theirs) -> None:
        """Raise StoreRefused for a connection to another database, where no worker would look."""
        there = self._run(theirs, Joined(ASK_IDENTITY, self._texts).questions())
        if there != self._home:  # not known yet, or the server was started anew
            self._home = self._driver.run(ASK_IDENTITY)
        self._expect_same(there, theirs)

    async def _aexpect_home(self, theirs: Theirs | AsyncTheirs) -> None:
        there = await self._arun(theirs, Joined(ASK_IDENTITY, self._texts).questions())
        if there != self._home:
            self._home = await self._driver.arun(ASK_IDENTITY)
        self._expect_same(there, theirs)

    def _expect_same(self, there: Identity, theirs: Theirs | AsyncTheirs) -> None:
        if there != self._home:
            raise StoreRefused(
                f"The connection that was handed in is not to the database of the store, {self._store}: no worker would"
                " find a job there. Hand in a connection to that very database, or leave out connection=."
            )
        self.trust(theirs.connection)

    def _run(self, theirs: Theirs, questions: Questions[T]) -> T:
        try:
            question = next(questions)
            while True:
                try:
                    answer = theirs.execute(*question)
                except Exception as error:
                    question = questions.throw(_as_ours(error))
                else:
                    question = questions.send(answer)
        except StopIteration as stop:
            value: T = stop.value
            return value
        except psycopg.Error as error:
            self._explain(error)
        finally:
            questions.close()

    async def _arun(self, theirs: Theirs | AsyncTheirs, questions: Questions[T]) -> T:
        try:
            question = next(questions)
            while True:
                try:
                    answer = theirs.execute(*question)
                    if not isinstance(answer, Answer):
                        answer = await answer
                except Exception as error:
                    question = questions.throw(_as_ours(error))
                else:
                    question = questions.send(answer)
        except StopIteration as stop:
            value: T = stop.value
            return value
        except psycopg.Error as error:
            self._explain(error)
        finally:
            questions.close()

    def _explain(self, error: psycopg.Error) -> NoReturn:
        """Raise what the caller can do something about in our words, and everything else in their driver's."""
        theirs = error.__cause__ if isinstance(error, Translated) else error
        assert theirs is not None
        if code_of(theirs) == IN_FAILED_TRANSACTION:
            raise JobError(FAILED) from theirs
        ours = refined(error, self._store)
        if isinstance(ours, (OptionInvalid, SchemaMissing, StoreMoved, StoreMoving, StoreRefused)):
            raise ours from theirs
        raise theirs


class Translated(psycopg.Error):
    """Marks the errors of other drivers, which are psycopg's as far as ops are concerned."""


class Joined(Generic[T]):
    """One op inside a caller's transaction."""

    def __init__(self, op: Op[T], texts: Mapping[str, str]) -> None:
        self._op = op
        self._texts = texts
        self._rang = False

    def questions(self) -> Questions[T]:
        """What to execute, one after the other; to be sent the answers, or thrown what the server says instead."""
        op, guarded, first = self._op, False, True
        steps = (op.inside or op.start)()
        try:
            command = next(steps)
            if not op.single:
                guarded = bool((yield SAVEPOINT))
            while True:
                try:
                    answer = yield from self._execute(command)
                except psycopg.Error as error:
                    command = steps.throw(error)
                    if first and guarded:  # else the op has savepoints of its own
                        yield ROLL_BACK
                else:
                    command = steps.send(answer)
                    if not guarded:
                        guarded = bool((yield SAVEPOINT))
                first = False
        except StopIteration as stop:
            value: T = stop.value
            yield from self._ring(value)
            if guarded:
                yield RELEASE
            return value
        except Exception:
            if guarded:
                yield ROLL_BACK
                yield RELEASE
            raise
        finally:
            steps.close()

    def _execute(self, command: Command) -> Questions[Answer | None]:
        if isinstance(command, Write):
            return None
        assert not isinstance(command, (Script, Copy)), "a script is nothing for a caller's transaction"
        text = self._texts[command.name] if isinstance(command, Call) else command.text
        assert not isinstance(command.values, Mapping), "PostgreSQL's values have numbers, not names"
        return (yield self._question(text, command.values))

    def _question(self, text: str, values: Sequence[Any]) -> Question:
        self._rang = self._rang or RING in values
        return text, values

    def _ring(self, value: T) -> Questions[None]:
        rings = self._op.rings
        if not self._rang and rings is not None and rings(value):
            yield self._texts["ring"], ()


def _identity() -> Steps[Identity]:
    row: Identity = (yield IDENTITY).fetchone()
    return row


ASK_IDENTITY: Op[Identity] = Op(start=_identity, mode="read", single=True)


def _expect_block(connection: object) -> None:
    """Raise what a connection of ours has to say, if its block is over."""
    if isinstance(connection, (LentConnection, LentAsyncConnection)):
        connection.keeper.expect_usable()


def _expect_transaction(standing: Standing) -> None:
    if standing == "none":
        raise JobError(f"{NO_TRANSACTION} {BEGIN_ONE}")
    if standing == "failed":
        raise JobError(FAILED)


def _as_ours(error: Exception) -> Exception:
    """An error of another driver as the error of psycopg that has the same code; any other as it is."""
    code = code_of(error)
    if code is None or isinstance(error, psycopg.Error):
        return error
    try:
        kind: type[psycopg.Error] = psycopg.errors.lookup(code)
    except KeyError:
        kind = psycopg.DatabaseError
    translated: Exception = type(kind.__name__, (Translated, kind), {"sqlstate": code or None})(
        one_line(error)
    )
    translated.__cause__ = error
    return translated


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
        return Op(start=lambda: _add(new), committed=lambda _: self._note(new))

    def _note(self, lanes: set[Lane]) -> None:
        if len(self._known) > MOST_LANES:  # queues whose names are made up as they go
            self._known.clear()
        self._known.update(lanes)


def _add(lanes: set[Lane]) -> Steps[None]:
    # Somebody may have made one by other ways and not committed it: the very transaction that is to be joined.
    yield Statement("SET LOCAL lock_timeout = 1000")
    yield from add_lanes(lanes)
