"""STAGE 3 of a job's path: from a lease to a settlement.

    decode the arguments → make the Context → call the handler → encode the result → say how it ended

A run ends in exactly one settlement, whatever the handler does. It may raise anything, SystemExit included;
it may swallow a cancel, or raise CancelledError by itself; so this is the one place that catches
BaseException. What it must tell apart is who cancelled:

    strand.wanted is set      we did (a cancel order, the time limit, a stop): the settlement says which
    task.cancelling() == 0  nobody did: the handler raised CancelledError by itself, a failure like any other
    task.cancelling() > 0   somebody else did: a program that ends without a stop, the handler itself, or what
                            an earlier job in this strand has left behind (`loop.call_later(9, task.cancel)`).
                            The last two look alike, so the job is given back once, and has failed next time

Arguments that do not decode and results that do not encode are settled as failed at once. Only those two
steps are watched for that: a handler that raises PayloadInvalid about a job of its own has failed in the
ordinary way.

Handlers fork, too, and some children come back here instead of leaving: they end on the spot, or each would go
on as a second worker with the leases of the first.

Next on the path: `worker/settler.py`.
"""

import asyncio
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from contextvars import Context as Variables
from contextvars import copy_context
from math import inf
from operator import is_not
from random import Random
from typing import Any, NoReturn, Protocol

from msgspec import Struct

from shigoto.codec import Signature
from shigoto.context import Context, Signals, current_context
from shigoto.model.errors import PayloadInvalid
from shigoto.model.job import FailureKind, Lease
from shigoto.model.outcome import Ending, Settlement
from shigoto.retry import Retry
from shigoto.task import Task
from shigoto.worker import endings

HERE = __file__
UNKNOWN_DELAY = 60_000
MOST_DISTURBED = 10_000


class Plan(Struct, frozen=True, eq=False):
    """What running a job of one task takes, looked up once. `bare` says that no argument is required."""

    fn: Callable[..., Any]
    takes_context: bool
    decode: Callable[[str], dict[str, Any]]
    encode: Callable[[Any], str]
    bare: bool
    timeout: int | None
    retry: Retry


class Hand(Protocol):
    """Where one job runs. The keeper reads it from outside to pass on orders and to collect progress."""

    lease: Lease | None
    signals: Signals


class StrandHand(Hand, Protocol):
    """A place on the event loop: its task can be cancelled, and it can wear out."""

    task: asyncio.Task[None]
    wanted: Ending | None
    cancels: int
    worn: bool
    limit_at: float

    def limit(self, seconds: float) -> None:
        """Cancel this run, wanting it ERRORED, if it takes longer."""
        ...


class Runner:
    """Runs jobs of known tasks, one call each, on the event loop or in the calling thread.

    Made by the task that runs the worker: when that one is being cancelled, so are all others, and the jobs
    in them are not to blame.
    """

    def __init__(self, tasks: Mapping[str, Task[..., Any]], random: Random) -> None:
        self._plans = {name: _plan(task) for name, task in tasks.items()}
        self._random = random
        self._variables = copy_context()
        self._owner = asyncio.current_task()
        # The jobs that were given back because of a cancel that nobody owns up to; never more than once each,
        # and no more of them than this: a handler that cancels itself must not run for ever.
        self._disturbed: set[int] = set()
        self.forked = False
        _watch_forks(self)

    async def run(self, strand: StrandHand, lease: Lease) -> Settlement:
        """Run a job of an async task in the calling strand; if it never suspends, without a task switch."""
        plan = self._plans.get(lease.task)
        if plan is None:
            return endings.released(lease, UNKNOWN_DELAY)
        signals = strand.signals = Signals()
        context = Context(lease, signals)
        current_context.set(context)
        before = copy_context()
        strand.lease = lease
        limit = lease.timeout or plan.timeout
        if limit is not None:
            strand.limit(limit / 1000)
        try:
            arguments = {} if plan.bare and lease.payload == "{}" else plan.decode(lease.payload)
        except BaseException as error:
            settlement = self._undecoded(lease, plan, error)
        else:
            try:
                if plan.takes_context:
                    value = await plan.fn(context, **arguments)
                else:
                    value = await plan.fn(**arguments)
            except GeneratorExit:
                # The coroutine is being thrown away with its loop; it must not go on.
                raise
            except BaseException as error:
                settlement = self._raised(strand, lease, plan, error)
            else:
                settlement = self._returned(lease, plan, value)
        if signals.cancelled or signals.progress is not None:
            settlement = endings.with_signals(settlement, signals)
        if limit is not None:
            strand.limit_at = inf
        if strand.cancels or strand.task.cancelling() or _changed(before):
            _tidy(strand, before)
        strand.lease = None
        return settlement

    def run_in_thread(self, hand: Hand, lease: Lease) -> Settlement:
        """Run a job of a sync task in the calling thread, with context variables of its own."""
        try:
            return self._variables.copy().run(self._run_sync, hand, lease)
        except BaseException as error:
            # Nothing is left to raise but a fault of ours, and it must not take the thread and the job with
            # it.
            hand.lease = None
            return self.broke(lease, error)

    def broke(self, lease: Lease, error: BaseException) -> Settlement:
        """The end of a run that broke its strand or thread."""
        plan = self._plans.get(lease.task)
        retry = Retry() if plan is None else plan.retry
        return self._failed(lease, retry, error)

    def _run_sync(self, hand: Hand, lease: Lease) -> Settlement:
        plan = self._plans.get(lease.task)
        if plan is None:
            return endings.released(lease, UNKNOWN_DELAY)
        signals = hand.signals = Signals()
        context = Context(lease, signals)
        current_context.set(context)
        hand.lease = lease
        settlement = self._call_sync(lease, plan, context)
        if signals.cancelled or signals.progress is not None:
            settlement = endings.with_signals(settlement, signals)
        hand.lease = None
        return settlement

    def _call_sync(self, lease: Lease, plan: Plan, context: Context) -> Settlement:
        try:
            arguments = {} if plan.bare and lease.payload == "{}" else plan.decode(lease.payload)
        except BaseException as error:
            return self._undecoded(lease, plan, error)
        try:
            value = plan.fn(context, **arguments) if plan.takes_context else plan.fn(**arguments)
        except BaseException as error:
            return self._failed(lease, plan.retry, error)
        return self._returned(lease, plan, value)

    def _undecoded(self, lease: Lease, plan: Plan, error: BaseException) -> Settlement:
        if isinstance(error, PayloadInvalid):
            return self._refused(lease, error, FailureKind.PAYLOAD_INVALID)
        return self._failed(lease, plan.retry, error)

    def _returned(self, lease: Lease, plan: Plan, value: object) -> Settlement:
        if self.forked:
            _end_child()
        try:
            result = "null" if value is None else plan.encode(value)
        except BaseException as error:
            # Whatever it raises: the effect has happened, and a second run would repeat it.
            return self._refused(lease, error, FailureKind.RESULT_INVALID)
        return Settlement(
            number=lease.number, token=lease.token, queue=lease.queue, ending=Ending.COMPLETED, result=result
        )

    def _raised(self, strand: StrandHand, lease: Lease, plan: Plan, error: BaseException) -> Settlement:
        """The end of an async run that raised: whose doing was it?"""
        if self.forked:
            _end_child(error)
        kind = FailureKind.TIMEOUT if strand.wanted is Ending.ERRORED else FailureKind.ERROR
        if isinstance(error, asyncio.CancelledError):
            if strand.wanted is Ending.CANCELLED:
                return endings.cancelled(lease)
            if strand.wanted is Ending.RELEASED or (self._owner is not None and self._owner.cancelling()):
                return endings.released(lease)
            if strand.wanted is Ending.ERRORED:
                error = _too_long(lease.timeout or plan.timeout, error)
            elif strand.task.cancelling() and self._is_first_disturbance(lease):
                return endings.released(lease)
        return self._failed(lease, plan.retry, error, kind)

    def _is_first_disturbance(self, lease: Lease) -> bool:
        if lease.number in self._disturbed or len(self._disturbed) >= MOST_DISTURBED:
            return False
        self._disturbed.add(lease.number)
        return True

    def _failed(
        self, lease: Lease, retry: Retry, error: BaseException, kind: FailureKind = FailureKind.ERROR
    ) -> Settlement:
        if self.forked:
            _end_child(error)
        try:
            return endings.raised(lease, error, retry, self._random, kind=kind, skip=HERE)
        except BaseException:
            # To describe an error is to call its author's code once more, and that may exit, too.
            return endings.undescribed(lease, error, kind, self._random)

    def _refused(self, lease: Lease, error: BaseException, kind: FailureKind) -> Settlement:
        try:
            return endings.refused(lease, error, kind, skip=HERE)
        except BaseException:
            return endings.undescribed(lease, error, kind, self._random)


def _too_long(limit: int | None, error: asyncio.CancelledError) -> TimeoutError:
    """What a cancel by the time limit is called, with the place where it struck."""
    late = TimeoutError(f"the run took longer than its limit of {(limit or 0) / 1000:g} s")
    return late.with_traceback(error.__traceback__)


def _tidy(strand: StrandHand, before: Variables) -> None:
    """Take back our own cancels; a strand that a handler left otherwise changed is not used again.

    Context variables that a handler set, or a cancel that is not ours, would reach the next job in this strand.
    """
    for _ in range(strand.cancels):
        strand.task.uncancel()
    strand.cancels = 0
    strand.wanted = None
    strand.worn = strand.worn or strand.task.cancelling() > 0 or _changed(before)


def _changed(before: Variables) -> bool:
    """Whether the handler has set a context variable.

    By identity: `before != after` asks values for equality, which raises for arrays, and holds for a fresh list
    in place of another. Mostly there is no variable but our own, which the next job sets anyway; with more it
    takes 0.3 µs.
    """
    after = copy_context()
    if len(after) == 1:
        return False
    return len(after) != len(before) or any(map(is_not, after.values(), before.values()))


def _watch_forks(runner: Runner) -> None:
    """Tell the runner when it finds itself in a child; asking for the process id after every job costs more."""
    known = weakref.ref(runner)

    def forked() -> None:
        here = known()
        if here is not None:
            here.forked = True

    if sys.platform != "win32":
        os.register_at_fork(after_in_child=forked)


def _end_child(error: BaseException | None = None) -> NoReturn:
    """End the process as its handler wanted, without its parent's exit handlers and open transactions."""
    code = error.code if isinstance(error, SystemExit) else int(error is not None)
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def _plan(task: Task[..., Any]) -> Plan:
    signature, options = task.signature, task.options
    return Plan(
        fn=task.fn,
        takes_context=task.takes_context,
        decode=signature.decode,
        encode=signature.encode_result,
        bare=_is_bare(signature),
        timeout=options.timeout,
        retry=options.retry,
    )


def _is_bare(signature: Signature) -> bool:
    try:
        return signature.decode("{}") == {}
    except PayloadInvalid:
        return False
