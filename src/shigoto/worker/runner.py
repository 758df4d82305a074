"""STAGE 3 of a job's path: from a lease to a settlement.

    decode the arguments → make the Context → call the handler → encode the result → say how it ended

A run ends in exactly one settlement, whatever the handler does. It may raise anything, SystemExit included;
it may swallow a cancel, or raise CancelledError by itself; so this is the one place that catches
BaseException. What it must tell apart is who cancelled:

    strand.wanted is set      we did (a cancel order, the time limit, a stop): the settlement says which
    task.cancelling() == 0  nobody did: the handler raised CancelledError by itself, a failure like any other
    task.cancelling() > 0   somebody else did: the handler itself, or a program that ends without a stop

Arguments that do not decode and results that do not encode are settled as failed at once. Only those two
steps are watched for that: a handler that raises PayloadInvalid about a job of its own has failed in the
ordinary way.

Next on the path: `worker/settler.py`.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context as Variables
from contextvars import copy_context
from math import inf
from random import Random
from typing import Any, Protocol

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
        except Exception as error:
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
                settlement = _returned(lease, plan, value)
        if signals.progress is not None:
            settlement = endings.with_progress(settlement, signals)
        strand.lease = None
        if limit is not None:
            strand.limit_at = inf
        if strand.cancels or strand.task.cancelling() or copy_context() != before:
            _tidy(strand, before)
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
        return endings.raised(lease, error, retry, self._random, skip=HERE)

    def _run_sync(self, hand: Hand, lease: Lease) -> Settlement:
        plan = self._plans.get(lease.task)
        if plan is None:
            return endings.released(lease, UNKNOWN_DELAY)
        signals = hand.signals = Signals()
        context = Context(lease, signals)
        current_context.set(context)
        hand.lease = lease
        settlement = self._call_sync(lease, plan, context)
        if signals.progress is not None:
            settlement = endings.with_progress(settlement, signals)
        hand.lease = None
        return settlement

    def _call_sync(self, lease: Lease, plan: Plan, context: Context) -> Settlement:
        try:
            arguments = {} if plan.bare and lease.payload == "{}" else plan.decode(lease.payload)
        except Exception as error:
            return self._undecoded(lease, plan, error)
        try:
            value = plan.fn(context, **arguments) if plan.takes_context else plan.fn(**arguments)
        except BaseException as error:
            return endings.raised(lease, error, plan.retry, self._random, skip=HERE)
        return _returned(lease, plan, value)

    def _undecoded(self, lease: Lease, plan: Plan, error: Exception) -> Settlement:
        if isinstance(error, PayloadInvalid):
            return endings.refused(lease, error, FailureKind.PAYLOAD_INVALID, skip=HERE)
        return endings.raised(lease, error, plan.retry, self._random, skip=HERE)

    def _raised(self, strand: StrandHand, lease: Lease, plan: Plan, error: BaseException) -> Settlement:
        """The end of an async run that raised: whose doing was it?"""
        kind = FailureKind.TIMEOUT if strand.wanted is Ending.ERRORED else FailureKind.ERROR
        if isinstance(error, asyncio.CancelledError):
            if strand.wanted is Ending.CANCELLED:
                return endings.cancelled(lease)
            if strand.wanted is Ending.RELEASED or (self._owner is not None and self._owner.cancelling()):
                return endings.released(lease)
            if strand.wanted is Ending.ERRORED:
                error = _too_long(lease.timeout or plan.timeout, error)
        return endings.raised(lease, error, plan.retry, self._random, kind=kind, skip=HERE)


def _too_long(limit: int | None, error: asyncio.CancelledError) -> TimeoutError:
    """What a cancel by the time limit is called, with the place where it struck."""
    late = TimeoutError(f"the run took longer than its limit of {(limit or 0) / 1000:g} s")
    return late.with_traceback(error.__traceback__)


def _returned(lease: Lease, plan: Plan, value: object) -> Settlement:
    try:
        result = "null" if value is None else plan.encode(value)
    except Exception as error:
        # Whatever it raises: the effect has happened, and a second run would repeat it.
        return endings.refused(lease, error, FailureKind.RESULT_INVALID, skip=HERE)
    return Settlement(
        number=lease.number, token=lease.token, queue=lease.queue, ending=Ending.COMPLETED, result=result
    )


def _tidy(strand: StrandHand, before: Variables) -> None:
    """Take back our own cancels; a strand that a handler left otherwise changed is not used again.

    Context variables that a handler set, or a cancel that is not ours, would reach the next job in this strand.
    """
    for _ in range(strand.cancels):
        strand.task.uncancel()
    strand.cancels = 0
    strand.wanted = None
    strand.worn = strand.worn or strand.task.cancelling() > 0 or copy_context() != before


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
