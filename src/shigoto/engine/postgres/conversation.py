"""What is said to the server for one op: begin, its commands, commit. Written once, for threads and event loops.

A `single` op says its first command by itself, outside of any transaction. If it is done then, one trip to the server
was all; if it goes on, that first command has changed nothing, and a transaction begins. One that finds that it needs
several commands yields WRITE first, for which nothing is sent. For one that has a `brief` the driver says that, and
converses only if it was not enough.
"""

import time
from collections.abc import Generator
from math import ceil
from typing import Generic, TypeVar

import psycopg

from shigoto.engine.op import Op, Steps, Write
from shigoto.engine.postgres.failures import RESTARTABLE, ConnectionLost
from shigoto.engine.postgres.ringing import Bell
from shigoto.engine.postgres.statement import Answer, Command, Copy, Script, Texts
from shigoto.engine.postgres.wire import Request, encode
from shigoto.engine.sql.commands import Call, Statement

T = TypeVar("T")

# The limits are the server's half of our deadline: it goes on with a statement though we have stopped waiting, and
# keeps the locks of a process that was stopped in the midst of a transaction. SET LOCAL ends with the transaction, so
# a pooler hands nothing of it to others. A read sees one snapshot, as an op is promised.
# Nobody waits for a lock until all of the time is over: what is locked for long is locked by somebody who is gone.
BEGIN = (
    b"BEGIN ISOLATION LEVEL %s; SET LOCAL statement_timeout = %d; SET LOCAL lock_timeout = %d;"
    b" SET LOCAL idle_in_transaction_session_timeout = 30000"
)
LOCKED_FOR = 10.0  # seconds, for ops of an ordinary length
LOCKED_FOR_URGENT = 2.0  # also said in statements that are run by themselves
ORDINARY = 30.0
LIMITED_BY_ITSELF = frozenset(
    {"complete"}
)  # there is one with its own limit, for where no transaction has one
BY_ITSELF = "_by_itself"  # is the end of its name
TO_READ, TO_WRITE = b"REPEATABLE READ READ ONLY", b"READ COMMITTED READ WRITE"
COMMIT = Request(b"COMMIT")
ROLLBACK = Request(b"ROLLBACK")

Requests = Generator[Request, Answer, T]


class Conversation(Generic[T]):
    """One attempt at one op."""

    __slots__ = ("_bell", "_op", "_texts", "_until", "begun", "committing", "rings")

    def __init__(self, op: Op[T], texts: Texts, bell: Bell, until: float) -> None:
        self._op, self._texts, self._bell, self._until = op, texts, bell, until
        self.begun = False
        self.committing = False
        self.rings: bool | None = (
            None  # what statements were told that asked; False leaves it to somebody later
        )

    def requests(self) -> Requests[T]:
        """What to send, one after the other; to be sent the answers, or thrown what the server says instead."""
        try:
            if not self._op.single:
                # The op is started only when that is answered: what a beat holds is listed at its start, and whatever
                # was claimed before the beat's time, and is not in the list, is taken for lost.
                yield from self._begin()
            value = yield from self._carry_out(self._op.start())
            yield from self._commit()
            return value
        except Exception:
            if self.begun and not self.committing:
                yield ROLLBACK
            raise

    def _carry_out(self, steps: Steps[T]) -> Requests[T]:
        try:
            command = next(steps)
            while True:
                try:
                    answer = yield from self._execute(command)
                except psycopg.Error as error:
                    if error.sqlstate in RESTARTABLE:
                        raise
                    command = steps.throw(error)
                else:
                    command = steps.send(answer)
                if not self.begun:
                    yield from self._begin()
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            steps.close()

    def judge(self, lost: ConnectionLost, *, reused: bool) -> None:
        """Note what the loss of the connection means for the op.

        Inside a transaction nothing is committed before the commit. A single command on a connection that has lain
        idle has most often found it dead; should it have been committed after all, then doing it twice does no harm,
        because single commands are made so that their callers may repeat them.
        """
        lost.uncertain = self.committing or not (self.begun or lost.answered or self._op.mode == "read")
        lost.again = not lost.uncertain or (reused and not self.committing)

    def _begin(self) -> Requests[None]:
        self.begun = True
        seconds = max(1, ceil(self._until - time.monotonic()))
        locked = LOCKED_FOR_URGENT if self._op.urgent else LOCKED_FOR if seconds <= ORDINARY else seconds
        level = TO_READ if self._op.mode == "read" else TO_WRITE
        yield Request(BEGIN % (level, 1000 * seconds, min(1000 * locked, 1000 * seconds)))

    def _commit(self) -> Requests[None]:
        if self.begun:
            self.committing = True
            answer = yield COMMIT
            if answer.tag != b"COMMIT":
                # PostgreSQL answers the commit of a failed transaction with a rollback, and calls that a success.
                raise psycopg.InternalError("an operation went on after an error inside its transaction")

    def _execute(self, command: Command) -> Requests[Answer | None]:
        if isinstance(command, Write):
            return None
        if isinstance(command, Script):
            return (yield Request(command.text.encode()))
        if isinstance(command, Copy):
            return (yield Request(command.text.encode(), copied=command.rows))
        return (yield self.encoded(command))

    def encoded(self, command: Call | Statement) -> Request:
        """The command as it is sent."""
        text = self._text(command.name) if isinstance(command, Call) else command.text.encode()
        assert isinstance(command.values, (tuple, list)), "PostgreSQL's values have numbers, not names"
        return encode(text, command.values, self._ring)

    def _text(self, name: str) -> bytes:
        if not self.begun and name in LIMITED_BY_ITSELF:
            name += BY_ITSELF
        return self._texts[name]

    def _ring(self) -> bool:
        """Decided once: what was rolled back is to be rung again, and twice in a transaction is once for the server."""
        if self.rings is None:
            self.rings = self._bell.may_ring()
        return self.rings
