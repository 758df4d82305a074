"""How transaction blocks begin and end on the server, and what it means if they do not.

A block has a mark, a setting that ends with its transaction. The commit and the look at the mark are one trip to the
server: if the mark is not there, the COMMIT is not reached.
"""

from typing import TypeVar

import psycopg

from shigoto.engine.op import Op
from shigoto.engine.postgres.conversation import Conversation, Requests
from shigoto.engine.postgres.driver import Driver
from shigoto.engine.postgres.failures import (
    READ_ONLY,
    RESTARTABLE,
    STARVING,
    UNAVAILABLE,
    one_line,
    refined,
    starving,
    unavailable,
)
from shigoto.engine.postgres.wire import Request
from shigoto.engine.sql.block import NOT_YOURS
from shigoto.model.errors import JobError, StoreUnavailable, TransactionConflict, TransactionTooLong

T = TypeVar("T")

# What an earlier block may have left behind on the connection. Plans stay: they make the completion quick.
CLEAN = Request(
    b"RESET SESSION AUTHORIZATION; RESET ALL; DEALLOCATE ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES;"
    b" SELECT pg_catalog.pg_advisory_unlock_all()"
)
BEGIN = (
    b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = %d;"
    b" SET LOCAL idle_in_transaction_session_timeout = %d; SET LOCAL shigoto.block = '%s'"
)
# What is no number is an error. DO and RAISE would say it more plainly, but not every user may use them.
COMMIT = (
    b"SELECT CASE WHEN pg_catalog.current_setting('shigoto.block', true) = '%s' THEN 0"
    b" ELSE (coalesce(pg_catalog.current_setting('shigoto.block', true), '') || ' is another block')::int END; COMMIT"
)
MARK_IS_GONE = " is another block"
SILENT = "the server has not answered while a transaction block was open"
STILL_BUSY = (
    "A statement of the transaction block is still under way, such as a stream, a COPY or a pipeline, so it cannot be"
    " committed. Leave these before the block."
)
ROLLED_BACK = (
    "PostgreSQL takes nothing more after an error in a transaction, so the block cannot go on: let the error pass"
    " through it. For a part that may fail there are savepoints: `with tx.transaction():`."
)


def beginning(seconds: int, mark: bytes) -> Request:
    """Begin; the server ends it by itself if it takes longer and nobody else has ended it."""
    return Request(BEGIN % (1000 * seconds, 1000 * seconds, mark))


class Ending(Conversation[T]):
    """The last operation of a block: its transaction has begun already, and must be the same until the commit."""

    __slots__ = ("_mark",)

    def __init__(self, op: Op[T], driver: Driver, until: float, mark: bytes) -> None:
        super().__init__(op, driver.texts, driver.bell, until)
        self.begun = True
        self._mark = mark

    def _begin(self) -> Requests[None]:
        yield from ()

    def _commit(self) -> Requests[None]:
        self.committing = True
        answer = yield Request(COMMIT % self._mark)
        if answer.tag != b"COMMIT":
            raise psycopg.InternalError("the transaction had failed")


def says_nothing_about_the_job(error: psycopg.Error, store: str, *, broken: bool) -> StoreUnavailable | None:
    """What an error means that has passed through a block; None if it is what it is."""
    if error.sqlstate in RESTARTABLE:
        return _conflict(error, store)
    if error.sqlstate in STARVING:
        return starving(store, error.sqlstate, one_line(error))
    if (broken and isinstance(error, psycopg.OperationalError)) or UNAVAILABLE.fullmatch(
        error.sqlstate or ""
    ):
        return unavailable(store, one_line(error))
    return None


def refusal(error: psycopg.Error, store: str) -> Exception:
    """What it means that the completion was not written: trouble of the store, or what the block has done to it."""
    if error.sqlstate in RESTARTABLE:
        return _conflict(error, store)
    if isinstance(error, psycopg.errors.InvalidTextRepresentation) and MARK_IS_GONE in str(error):
        return JobError(NOT_YOURS)
    if isinstance(error, psycopg.IntegrityError):
        return error  # what a constraint says at the commit, it says about the block's own rows
    meant = refined(error, store)
    if isinstance(meant, StoreUnavailable) and error.sqlstate != READ_ONLY:
        return meant
    return JobError(
        f"The completion of the job cannot be written after what the block did: {one_line(error)}"
    )


def _conflict(error: psycopg.Error, store: str) -> TransactionConflict:
    return TransactionConflict(
        f"{store} has rolled the transaction block back, because it was in conflict with another transaction:"
        f" {one_line(error)}. Nothing of it has happened; ctx.transact(fn) would run it again."
    )


def too_long(limit: float) -> TransactionTooLong:
    """That a block was open for too long, by its own fault."""
    return TransactionTooLong(
        f"The transaction block was open for more than {limit:g} s and was rolled back: it keeps the rows locked that"
        " it has written. Do slow work before the block, and only write in it."
    )
