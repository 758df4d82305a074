"""Runs operations on the server, each as a transaction, within a deadline.

    run(op)    sync callers     a connection of the threads' pool
    arun(op)   async callers    a connection of the loop's own pool, never a thread; enqueues that wait together are one

Every call has a deadline, also if the server's host vanishes or its process is stopped: the connection is thrown away
then. An op that loses a conflict is started again, and so is one that finds its connection dead.
Connections are opened when they are needed, and belong to the process that has opened them: after a fork, the child
begins anew.

What is said to the server for one op is written once, for threads and event loops: begin, its commands, commit. An
op with the hint `one_trip` says its first command by itself, outside of any transaction. If it is done then, one trip
to the server was all; if it goes on, that first command has changed nothing, and a transaction begins. One that finds
that it needs several commands yields WRITE first, for which nothing is sent.

Single enqueues that wait together are stored as one batch (`EnqueueBatcher`).

Nothing waits for company: one that comes alone goes at once, and what comes while it is under way is the next batch;
so is whatever comes back as soon as a batch has been told of its jobs.
A batch that takes its time is not waited for: it may have met with a job that another transaction has stored and not
committed. Each of a batch is told of its own job; if the batch is refused, each goes by itself.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from inspect import CORO_CREATED, getcoroutinestate, iscoroutine
from math import ceil
from typing import Any, Generic, TypeVar
from weakref import finalize

import psycopg
from msgspec import Struct

from shigoto.engine import op as seam
from shigoto.engine.op import Op, Steps, Write, merged, translate
from shigoto.engine.postgres.address import PostgresAddress
from shigoto.engine.postgres.connection import LoopConnection, ThreadConnection
from shigoto.engine.postgres.doorbell import ListenConnection, NoDoorbell, NotifyRate, PostgresDoorbell
from shigoto.engine.postgres.errors import WORN_OUT, ConnectionLost, OpAttempts
from shigoto.engine.postgres.pool import (
    Connector,
    LoopConnections,
    PerLoop,
    ThreadConnections,
    begins_again_in_child,
)
from shigoto.engine.postgres.wire import Command, Copy, Script, ServerRows, WireRequest, encode
from shigoto.engine.protocol import Doorbell
from shigoto.engine.sql.commands import NamedSql, SqlText
from shigoto.model.errors import StoreError, StoreUnavailable

MAX_BATCH = 500
WAIT_FOR = 0.05  # seconds, for the batch before
SIDE_BY_SIDE = 4  # batches; with a server that is slow to all, larger ones are better than more

DEADLINE = 30.0  # seconds for one op, with everything that it waits for
LAST_RING = 1.0  # seconds for the ring that is still due when the store is closed
TELLS = "_log_destroy_pending"  # by which asyncio itself leaves tasks behind on purpose

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
LIMITED_BY_ITSELF = frozenset({"complete"})  # its variant has its own limit, for where no transaction has one
BY_ITSELF = "_by_itself"  # is the end of its name
TO_READ, TO_WRITE = b"REPEATABLE READ READ ONLY", b"READ COMMITTED READ WRITE"
COMMIT = WireRequest(b"COMMIT")
ROLLBACK = WireRequest(b"ROLLBACK")

T = TypeVar("T")
RunOne = Callable[[Op[Any], float], Awaitable[Any]]
Requests = Generator[WireRequest, ServerRows, T]
_Waiting = tuple[Op[Any], float, "asyncio.Future[Any]"]
log = logging.getLogger("shigoto.postgres")


class EnqueueBatcher:
    """Ops of one kind on one event loop."""

    def __init__(self, run: RunOne) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Waiting] = []
        self._awaited: object = None  # the batch for which they wait
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, op: Op[Any], until: float) -> Any:
        """Return the op's value; it may come with those of others."""
        if self._awaited is not None:
            future: asyncio.Future[Any] = self._loop.create_future()
            self._waiting.append((op, until, future))
            self._watch()
            return await future
        batch = self._begin()
        try:
            return await self._run(op, until)
        finally:
            self._end(batch)

    def _begin(self) -> object:
        self._under_way += 1
        self._awaited = batch = object()
        return batch

    def _end(self, batch: object) -> None:
        self._under_way -= 1
        if batch is self._awaited:
            self._go_on()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(WAIT_FOR, self._wait_no_longer)

    def _wait_no_longer(self) -> None:
        self._timer = None
        if self._under_way < SIDE_BY_SIDE:
            self._go_on()
        else:
            self._watch()

    def _go_on(self) -> None:
        self._awaited = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [each for each in self._waiting if not each[2].done()]  # else it was cancelled
        batch, self._waiting = waiting[:MAX_BATCH], waiting[MAX_BATCH:]
        if batch:
            task = self._loop.create_task(self._carry_out(batch, self._begin()), name="shigoto-batch")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._waiting:
            self._watch()

    async def _carry_out(self, batch: list[_Waiting], mark: object) -> None:
        try:
            await (self._together(batch) if len(batch) > 1 else self._alone(batch[0]))
        finally:
            # A turn later: whoever was told just now may ask again, and all of them are the next batch. Else the first
            # of them would go alone, and the others wait for it.
            self._loop.call_soon(self._end, mark)
            for _, _, future in batch:
                if not future.done():  # the loop is about to end
                    future.cancel()

    async def _together(self, batch: list[_Waiting]) -> None:
        try:
            op = merged([op for op, _, _ in batch])
            values = await self._run(op, min(until for _, until, _ in batch))
        except StoreUnavailable as error:
            for _, _, future in batch:
                _tell(future, StoreUnavailable(*error.args))
        except Exception:
            await asyncio.gather(*(self._alone(waiting) for waiting in batch))
        else:
            for (_, _, future), value in zip(batch, values, strict=True):
                if not future.done():
                    future.set_result(value)

    async def _alone(self, waiting: _Waiting) -> None:
        op, until, future = waiting
        try:
            value = await self._run(op, until)
        except Exception as error:
            _tell(future, error)
        else:
            if not future.done():
                future.set_result(value)


def _tell(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class PostgresHints(Struct, frozen=True, kw_only=True):
    """Faster ways to run an op on PostgreSQL.

    `one_trip`: In the ordinary case one command does it all. The driver may run the first command by itself, outside
    of any transaction. If the op yields another command, the first has changed nothing: it failed, or answered so.
    `alone` starts the op where it does not share its transaction. Its steps expect the ordinary case.
    `lanes` gives an op that is run and committed before the op joins a caller's transaction, because lanes that a long
    transaction has made keep others waiting; None if there is nothing to do. It may fail: the op does it, too.
    """

    one_trip: bool = False
    alone: Callable[[], Steps[Any]] | None = None
    lanes: Callable[[], Op[None] | None] | None = None


NO_HINTS = PostgresHints()
ONE_TRIP = PostgresHints(one_trip=True)


def hints_of(op: Op[Any]) -> PostgresHints:
    return op.hints if isinstance(op.hints, PostgresHints) else NO_HINTS


class OneAttempt(Generic[T]):
    """One attempt at one op."""

    __slots__ = ("_going", "_notify_rate", "_op", "_texts", "_until", "begun", "committing", "rings")

    def __init__(self, op: Op[T], texts: Mapping[str, bytes], notify_rate: NotifyRate, until: float) -> None:
        self._op, self._texts, self._notify_rate, self._until = op, texts, notify_rate, until
        self._going = False  # its first command has been executed
        self.begun = False
        self.committing = False
        self.rings: bool | None = None  # what statements were told that asked; False: somebody rings later

    def requests(self) -> Requests[T]:
        """What to send, one after the other; to be sent the answers, or thrown what the server says instead."""
        try:
            hints = hints_of(self._op)
            if not hints.one_trip:
                # The op is started only when that is answered: what a beat holds is listed at its start, and whatever
                # was claimed before the beat's time, and is not in the list, is taken for lost.
                yield from self._begin()
            value: T = yield from translate((hints.alone or self._op.start)(), self._execute, psycopg.Error)
            yield from self._commit()
            return value
        except Exception:
            if self.begun and not self.committing:
                yield ROLLBACK
            raise

    def wears_out(self, connection: ThreadConnection | LoopConnection, error: BaseException) -> bool:
        """Return True if the connection is of no use after the error; of a loss, note what it means for the op.

        Inside a transaction nothing is committed before the commit. A single command on a connection that has lain
        idle has most often found it dead; should it have been committed after all, then doing it twice does no harm,
        because single commands are made so that their callers may repeat them.
        """
        if not isinstance(error, ConnectionLost):
            return isinstance(error, psycopg.Error) and error.sqlstate in WORN_OUT
        error.uncertain = self.committing or not (self.begun or error.answered or self._op.mode == "read")
        error.again = not error.uncertain or (connection.reused and not self.committing)
        return True

    def _begin(self) -> Requests[None]:
        self.begun = True
        seconds = max(1, ceil(self._until - time.monotonic()))
        locked = LOCKED_FOR_URGENT if self._op.urgent else LOCKED_FOR if seconds <= ORDINARY else seconds
        level = TO_READ if self._op.mode == "read" else TO_WRITE
        yield WireRequest(BEGIN % (level, 1000 * seconds, min(1000 * locked, 1000 * seconds)))

    def _commit(self) -> Requests[None]:
        if self.begun:
            self.committing = True
            answer = yield COMMIT
            if answer.tag != b"COMMIT":
                # PostgreSQL answers the commit of a failed transaction with a rollback, and calls that a success.
                raise psycopg.InternalError("an operation went on after an error inside its transaction")

    def _execute(self, command: Command) -> Requests[ServerRows | None]:
        if self._going and not self.begun:
            yield from self._begin()
        self._going = True
        return None if isinstance(command, Write) else (yield self._request(command))

    def _request(self, command: NamedSql | SqlText | Script | Copy) -> WireRequest:
        if isinstance(command, Script):
            return WireRequest(command.text.encode())
        if isinstance(command, Copy):
            return WireRequest(command.text.encode(), copied=command.rows)
        text = self._text(command.name) if isinstance(command, NamedSql) else command.text.encode()
        assert isinstance(command.values, (tuple, list)), "PostgreSQL's values have numbers, not names"
        return encode(text, command.values, self._ring)

    def _text(self, name: str) -> bytes:
        if not self.begun and name in LIMITED_BY_ITSELF:
            name += BY_ITSELF
        return self._texts[name]

    def _ring(self) -> bool:
        """Decided once: what was rolled back is to be rung again, and twice in a transaction is once for the server."""
        if self.rings is None:
            self.rings = self._notify_rate.ring_now()
        return self.rings


class _OnLoop:
    """What one event loop has."""

    __slots__ = ("__weakref__", "batchers", "listen_connection", "pool", "ring", "rings")

    def __init__(self, pool: LoopConnections, listen_connection: ListenConnection | None) -> None:
        self.pool, self.listen_connection = pool, listen_connection
        self.batchers: dict[str, EnqueueBatcher] = {}
        self.ring: asyncio.TimerHandle | None = None
        self.rings: set[asyncio.Task[None]] = set()
        finalize(self, _leave, self.rings)

    def close(self) -> None:
        if self.ring is not None:
            self.ring.cancel()
        if self.listen_connection is not None:
            self.listen_connection.close()
        self.pool.close()

    def disown(self) -> None:
        self.pool.disown()
        if self.listen_connection is not None:
            self.listen_connection.disown()


def _leave(rings: set[asyncio.Task[None]]) -> None:
    """Nobody runs this loop any more, as at the end of a program that has not closed its app: what is not rung yet is
    left to workers, who look by themselves, and nobody has to read of it."""
    for task in rings:
        setattr(task, TELLS, False)
        coroutine = task.get_coro()
        if iscoroutine(coroutine) and getcoroutinestate(coroutine) == CORO_CREATED:
            coroutine.close()


class Driver:
    """Transactions of one process on one store. `deadline` is for ops whose caller says no other, in seconds."""

    def __init__(
        self, settings: PostgresAddress, texts: Mapping[str, str], *, deadline: float = DEADLINE
    ) -> None:
        self.settings, self.deadline = settings, deadline
        self.texts = {name: text.encode() for name, text in texts.items()}
        self._notify: Op[None] = Op(start=self._notification, hints=ONE_TRIP)
        self._begin_again()
        begins_again_in_child(self)

    def _begin_again(self) -> None:
        settings = self.settings
        patience = min(settings.patience, self.deadline)
        self._connector = Connector(
            settings.shown, settings.parameters, prepares=settings.prepare, patience=patience
        )
        self._listening: Connector | None = None
        if settings.listen_parameters == settings.parameters:
            self._listening = self._connector
        elif settings.listen_parameters is not None:
            self._listening = Connector(
                settings.shown, settings.listen_parameters, prepares=False, patience=patience
            )
        self._threads = self._new_pool()
        self._loops = PerLoop(self._on_loop)
        self.notify_rate = NotifyRate()
        self._timers: set[threading.Timer] = set()  # one that waits to ring, and those that are at it

    def _new_pool(self) -> ThreadConnections:
        return ThreadConnections(self.settings.shown, self.settings.in_threads, self._connector.open)

    def _on_loop(self) -> _OnLoop:
        store, schema, listening = self.settings.shown, self.settings.schema, self._listening
        pool = LoopConnections(store, self.settings.on_a_loop, self._connector.aopen)
        return _OnLoop(pool, None if listening is None else ListenConnection(store, schema, listening.aopen))

    def _until(self, op: Op[Any], deadline: float | None) -> float:
        if deadline is None:
            deadline = self.deadline if op.deadline is None else min(op.deadline, self.deadline)
        return time.monotonic() + deadline

    def run(self, op: Op[T], *, deadline: float | None = None) -> T:
        until = self._until(op, deadline)
        attempts: OpAttempts | None = None
        while True:
            try:
                return self._run_once(op, until)
            except (psycopg.Error, ConnectionLost) as error:
                attempts = attempts or OpAttempts(self.settings.shown, until)
                pause = attempts.pause_after(error)
            time.sleep(pause)

    def _run_once(self, op: Op[T], until: float) -> T:
        pool = self._threads
        connection = pool.take(until, urgent=op.urgent)
        attempt = OneAttempt(op, self.texts, self.notify_rate, until)
        try:
            value = drive(connection, attempt.requests(), until)
        except BaseException as error:
            if attempt.wears_out(connection, error):
                pool.lose(connection)
            raise
        finally:
            pool.give_back(connection)
        if self.after(op, value, attempt):
            self.ring_from_thread()
        return value

    async def arun(self, op: Op[T], *, deadline: float | None = None) -> T:
        """Run an op on the running event loop."""
        until = self._until(op, deadline)
        here = self._loops.here()
        if op.batch is None:
            return await self._arun(op, until, here)
        batcher = here.batchers.get(op.batch.key)
        if batcher is None:
            batcher = here.batchers[op.batch.key] = EnqueueBatcher(
                lambda op, until: self._arun(op, until, here)
            )
        value: T = await batcher.run(op, until)
        return value

    async def _arun(self, op: Op[T], until: float, here: _OnLoop) -> T:
        attempts: OpAttempts | None = None
        while True:
            try:
                return await self._arun_once(op, until, here)
            except (psycopg.Error, ConnectionLost) as error:
                attempts = attempts or OpAttempts(self.settings.shown, until)
                pause = attempts.pause_after(error)
            await asyncio.sleep(pause)

    async def _arun_once(self, op: Op[T], until: float, here: _OnLoop) -> T:
        connection = await here.pool.take(until, urgent=op.urgent)
        attempt = OneAttempt(op, self.texts, self.notify_rate, until)
        try:
            value = await adrive(connection, attempt.requests(), until)
        except BaseException as error:
            if attempt.wears_out(connection, error):
                here.pool.lose(connection)
            elif isinstance(error, asyncio.CancelledError) and attempt.begun and not attempt.committing:
                connection.abandon()
            raise
        finally:
            here.pool.give_back(connection)
        if self.after(op, value, attempt):
            self._ring_from_loop(here)
        return value

    def after(self, op: Op[T], value: T, attempt: OneAttempt[T]) -> bool:
        """Do what follows a commit, and tell whether to ring. Nothing here may make a committed op look failed."""
        try:
            if op.committed is not None:
                op.committed(value)
            if attempt.rings is not None:
                return not attempt.rings
            return op.rings is not None and op.rings(value)
        except Exception:
            log.exception("A step after a commit to %s failed.", self.settings.shown)
            return False

    def listen(self) -> Doorbell:
        """A new doorbell on the running event loop; all of a loop share one connection."""
        listen_connection = self._loops.here().listen_connection
        return NoDoorbell() if listen_connection is None else PostgresDoorbell(listen_connection)

    def ring_from_loop(self) -> None:
        """Ring soon, for something that is committed; on the running event loop."""
        self._ring_from_loop(self._loops.here())

    def _notification(self) -> Steps[None]:
        # Nothing in it is to be kept: for this transaction alone, the server need not wait for the disk.
        text = "SELECT pg_notify($1::text, ''), set_config('synchronous_commit', 'off', true)"
        yield SqlText(text, (self.settings.schema,))

    def ring_from_thread(self) -> None:
        """Ring soon, for something that is committed."""
        delay = self.notify_rate.ring_later()
        if delay is None:
            return
        if delay <= 0.0:
            self._ring_now()
            return
        timer = threading.Timer(delay, self._ring_now)
        timer.daemon = True
        timer.name = "shigoto-ring"
        self._timers = {timer, *(other for other in self._timers if other.is_alive())}
        # There may be no thread to be had, or the interpreter ends: workers look by themselves, too.
        with suppress(RuntimeError):
            timer.start()

    def _ring_now(self, deadline: float | None = None) -> None:
        self.notify_rate.note_ring()
        try:
            self.run(self._notify, deadline=deadline)
        except (StoreError, psycopg.Error) as error:
            log.debug("The doorbell of %s was not rung: %s", self.settings.shown, error)

    def _ring_from_loop(self, here: _OnLoop) -> None:
        delay = self.notify_rate.ring_later()
        if delay is not None:
            here.ring = here.pool.loop.call_later(delay, self._start_ringing, here)

    def _start_ringing(self, here: _OnLoop) -> None:
        here.ring = None
        self.notify_rate.note_ring()
        task = here.pool.loop.create_task(self._aring(here), name="shigoto-ring")
        here.rings.add(task)
        task.add_done_callback(here.rings.discard)

    async def _aring(self, here: _OnLoop) -> None:
        try:
            await self._arun(self._notify, time.monotonic() + self.deadline, here)
        except (StoreError, psycopg.Error) as error:
            log.debug("The doorbell of %s was not rung: %s", self.settings.shown, error)

    def hurry(self) -> None:
        self._connector.hurry()

    def close(self) -> None:
        """Close every connection: what is in use when it comes back, and what belongs to a loop of another thread
        there. Closing twice is fine; a later call opens again."""
        timers, self._timers = self._timers, set()
        for timer in timers:
            if timer.is_alive() and timer is not threading.current_thread():
                timer.cancel()
                timer.join(LAST_RING)
        if self.notify_rate.is_ring_due:
            self._ring_now(LAST_RING)
        threads, self._threads = self._threads, self._new_pool()
        threads.close()
        self._loops.close()

    def after_fork_in_child(self) -> None:
        self._threads.disown()
        self._loops.disown()
        self._begin_again()


def drive(connection: ThreadConnection, requests: Requests[T], until: float) -> T:
    return seam.drive(requests, lambda request: connection.ask(request, until), psycopg.Error)


def adrive(connection: LoopConnection, requests: Requests[T], until: float) -> Awaitable[T]:
    return seam.adrive(requests, lambda request: connection.ask(request, until), psycopg.Error)
