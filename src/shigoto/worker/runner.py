"""STAGE 3 of a job's path: one run, from a lease to its settlement.

    decode the arguments → make the Context → call the handler → encode the result → say how it ended

A run ends in exactly one settlement, whatever the handler does. It may raise anything, SystemExit included;
it may swallow a cancel, or raise CancelledError by itself; so this is the one place that catches
BaseException. What it must tell apart is who cancelled:

    slot.wanted is set      we did (a cancel order, the time limit, a stop): the settlement says which
    signals.overdue is set  we did, because of the soft limit; a handler that lets it pass has taken too long
    task.cancelling() == 0  nobody did: the handler raised CancelledError by itself, a failure like any other
    task.cancelling() > 0   somebody else did: a program that ends without a stop, the handler itself, or what
                            an earlier job in this strand has left behind (`loop.call_later(9, task.cancel)`).
                            The last two look alike, so the job is given back once, and has failed next time

A sync handler in a child process is cancelled by JobCancelled, which is raised in it; one in a thread is not.

Arguments that do not decode and results that do not encode are settled as failed at once. Only those two
steps are watched for that: a handler that raises PayloadInvalid about a job of its own has failed in the
ordinary way.

A transaction block may have ended the job already. Then the settlement only repeats that, and the store knows.

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
from types import MappingProxyType
from typing import Any, NoReturn

from msgspec import Struct, structs

from shigoto.codec import Signature
from shigoto.context import Context, JobServices, Signals, SoftTimeout, current_context, detached
from shigoto.encryption import Encryption, Redaction, unredacted
from shigoto.model import errors
from shigoto.model.job import FailureKind, Lease
from shigoto.model.secrets import is_encrypted
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement
from shigoto.observe.tracing import Tracing
from shigoto.options import MAX_PAYLOAD
from shigoto.retry import Retry
from shigoto.task import Task
from shigoto.worker import endings, interrupts
from shigoto.worker.interrupts import Interrupts
from shigoto.worker.pool import RunSlot, StrandSlot
from shigoto.worker.reporting import hidden

HERE = (__file__, interrupts.__file__)
UNKNOWN_DELAY = 60_000
NOBODY = detached("")
MOST_DISTURBED = 10_000


class TaskPlan(Struct, frozen=True, eq=False):
    """What running a job of one task takes, looked up once. `bare` says that no argument is required, `redacted` that a
    job of it may have something to hide: there are `keys`, or `secrets` among its arguments."""

    fn: Callable[..., Any]
    takes_context: bool
    decode: Callable[[str], dict[str, Any]]
    encode: Callable[[Any], str]
    bare: bool
    timeout: Millis | None
    soft_timeout: Millis | None
    limited: bool
    retry: Retry
    redacted: bool = False
    keys: Encryption | None = None
    encrypts: bool = False
    secrets: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = MappingProxyType({})  # of the secrets


def plan_of(task: Task[..., Any], guard: Interrupts | None) -> TaskPlan:
    """Return the plan of a task; `guard` surrounds its function, if that is a sync one."""
    signature, options = task.signature, task.options
    return TaskPlan(
        fn=task.fn if guard is None or task.is_async else _guarded(task.fn, guard),
        takes_context=task.takes_context,
        decode=signature.arguments.decode,
        encode=signature.encode_result,
        bare=_is_bare(signature),
        timeout=options.timeout,
        soft_timeout=options.soft_timeout,
        limited=bool(options.timeout or options.soft_timeout),
        retry=options.retry,
        redacted=task.encryption is not None or bool(signature.arguments.secrets),
        keys=task.encryption,
        encrypts=task.encrypts,
        secrets=signature.arguments.secrets,
        defaults=signature.arguments.secret_defaults,
    )


def _guarded(fn: Callable[..., Any], guard: Interrupts) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            guard.arm()
            return fn(*args, **kwargs)
        finally:
            guard.disarm()

    return call


def _is_bare(signature: Signature) -> bool:
    try:
        return signature.decode("{}") == {}
    except errors.PayloadInvalid:
        return False


def arguments_of(plan: TaskPlan, lease: Lease, context: Context) -> dict[str, Any]:
    """Return the arguments of a job, decrypted, with secrets noted for redaction. Raises EncryptionKeyMissing."""
    if not plan.redacted:
        return {} if plan.bare and lease.payload == "{}" else plan.decode(lease.payload)
    payload, redaction = unredacted(
        lease, plan.keys, encrypts=plan.encrypts, secrets=plan.secrets, defaults=plan.defaults
    )
    if redaction is not None:
        context.use_redaction(redaction)
    return plan.decode(payload)


def limits_of(lease: Lease, plan: TaskPlan) -> tuple[Millis | None, Millis | None]:
    """Return the hard and the soft limit in force; those given with the job come first, where 0 means none."""
    hard = plan.timeout if lease.timeout is None else lease.timeout
    soft = plan.soft_timeout if lease.soft_timeout is None else lease.soft_timeout
    return hard or None, soft or None


def too_long(which: str, limit: Millis | None) -> str:
    return f"the run took longer than its {which} of {(limit or 0) / 1000:g} s"


class Runner:
    """Runs jobs of known tasks, one call each, on the event loop or in the calling thread.

    Made by the task that runs the worker: when that one is being cancelled, so are all others, and the jobs
    in them are not to blame. `signals` makes what a run and its worker share, `guard` surrounds sync handlers,
    `failed` is shown what they raise, before it becomes text, and `tracing` hears when a handler is called and ends.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any]],
        random: Random,
        *,
        services: JobServices | None = None,
        signals: Callable[[], Signals] = Signals,
        guard: Interrupts | None = None,
        failed: Callable[[Lease, BaseException], None] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._plans = {name: plan_of(task, guard) for name, task in tasks.items()}
        self._random = random
        self._services = services
        self._signals = signals
        self._tell_failed = failed
        self._tracing = tracing
        self._variables = copy_context()
        self._owner = _current_task()
        # A cancel that was swallowed long before the worker began says nothing about it.
        self._owner_was = 0 if self._owner is None else self._owner.cancelling()
        # The jobs that were given back because of a cancel that nobody owns up to; never more than once each,
        # and no more of them than this: a handler that cancels itself must not run for ever.
        self._disturbed: set[int] = set()
        self.forked = False
        watch_forks(self)

    async def run(self, strand: StrandSlot, lease: Lease) -> Settlement:
        """Run a job of an async task in the calling strand; if it never suspends, without a task switch."""
        plan = self._plans.get(lease.task)
        if plan is None:
            return endings.released(lease, UNKNOWN_DELAY, ran=False)
        signals = strand.signals = self._signals()
        context = Context(lease, signals, self._services, plan.encode)
        before = strand.variables or self._remember(strand)
        current_context.set(context)
        strand.lease = lease
        limited = plan.limited or lease.timeout is not None or lease.soft_timeout is not None
        if limited:
            strand.limit(*limits_of(lease, plan))
        entered = None if self._tracing is None else self._tracing.enter(lease)
        try:
            arguments = arguments_of(plan, lease, context)
        except BaseException as error:
            settlement = self._undecoded(lease, plan, error)
        else:
            try:
                fn = plan.fn
                value = await (fn(context, **arguments) if plan.takes_context else fn(**arguments))
            except GeneratorExit:
                # The coroutine is being thrown away with its loop; it must not go on.
                raise
            except BaseException as error:
                settlement = self._raised(strand, lease, plan, error)
            else:
                settlement = self._returned(lease, plan, value)
        if signals.news:
            settlement = self._with_signals(lease, plan, signals, settlement)
        if limited:
            strand.limit_at = inf
        if entered is not None and self._tracing is not None:
            self._tracing.leave(entered, lease, settlement)
        if strand.cancels or strand.task.cancelling() or left_something(before):
            _tidy(strand, before)
        strand.lease = None
        return settlement

    def _remember(self, strand: StrandSlot) -> Variables:
        """Note the context variables that a strand begins with, before it has a job."""
        current_context.set(NOBODY)
        strand.variables = copy_context()
        return strand.variables

    def run_in_thread(self, slot: RunSlot, lease: Lease, variables: Variables | None = None) -> Settlement:
        """Run a job of a sync task in the calling thread, with these context variables, or else its own copy of those
        that the runner was made with."""
        try:
            own = self._variables.copy() if variables is None else variables
            return own.run(self._run_sync, slot, lease)
        except BaseException as error:
            # Nothing is left to raise but a fault of ours, and it must not take the thread and the job with
            # it.
            slot.lease = None
            return self.broke(lease, error)

    def broke(self, lease: Lease, error: BaseException) -> Settlement:
        plan = self._plans.get(lease.task)
        retry = Retry() if plan is None else plan.retry
        return self._failed(lease, retry, error)

    def _run_sync(self, slot: RunSlot, lease: Lease) -> Settlement:
        plan = self._plans.get(lease.task)
        if plan is None:
            return endings.released(lease, UNKNOWN_DELAY, ran=False)
        signals = slot.signals = self._signals()
        context = Context(lease, signals, self._services, plan.encode)
        current_context.set(context)
        slot.lease = lease
        limited = plan.limited or lease.timeout is not None or lease.soft_timeout is not None
        if limited:
            slot.limit(*limits_of(lease, plan))
        entered = None if self._tracing is None else self._tracing.enter(lease)
        settlement = self._call_sync(slot, lease, plan, context)
        if limited:
            slot.limit_at = inf
        if signals.news:
            settlement = self._with_signals(lease, plan, signals, settlement)
        if entered is not None and self._tracing is not None:
            self._tracing.leave(entered, lease, settlement)
        slot.lease = None
        return settlement

    def _call_sync(self, slot: RunSlot, lease: Lease, plan: TaskPlan, context: Context) -> Settlement:
        try:
            arguments = arguments_of(plan, lease, context)
        except BaseException as error:
            return self._undecoded(lease, plan, error)
        try:
            value = plan.fn(context, **arguments) if plan.takes_context else plan.fn(**arguments)
        except BaseException as error:
            return self._raised_sync(slot, lease, plan, error)
        return self._returned(lease, plan, value)

    def _undecoded(self, lease: Lease, plan: TaskPlan, error: BaseException) -> Settlement:
        keyless = is_encrypted(lease.payload) and plan.keys is None
        if keyless or isinstance(error, errors.EncryptionKeyMissing):
            return endings.keyless(lease, error)
        if isinstance(error, errors.PayloadInvalid):
            return self._refused(lease, error, FailureKind.PAYLOAD_INVALID)
        return self._failed(lease, plan.retry, error)

    def _returned(self, lease: Lease, plan: TaskPlan, value: object) -> Settlement:
        if self.forked:
            end_child()
        try:
            result = "null" if value is None else plan.encode(value)
        except BaseException as error:
            # Whatever it raises: the effect has happened, and a second run would repeat it.
            return self._refused(lease, error, FailureKind.RESULT_INVALID)
        return Settlement(
            number=lease.number, token=lease.token, queue=lease.queue, ending=Ending.COMPLETED, result=result
        )

    def _raised(self, strand: StrandSlot, lease: Lease, plan: TaskPlan, error: BaseException) -> Settlement:
        """The end of an async run that raised. Even to ask what it raised is to call its author's code, and a
        SystemExit that came out of here would end the event loop, and with it everybody's jobs."""
        try:
            return self._told_apart(strand, lease, plan, error)
        except BaseException:
            return endings.undescribed(lease, error, FailureKind.ERROR, self._random)

    def _told_apart(
        self, strand: StrandSlot, lease: Lease, plan: TaskPlan, error: BaseException
    ) -> Settlement:
        if self.forked:
            end_child(error)
        if isinstance(error, asyncio.CancelledError):
            if strand.wanted is not None:
                return self._gave_in(strand.wanted, lease, plan, error)
            if self._owner is not None and self._owner.cancelling() > self._owner_was:
                return endings.released(lease)
            if strand.signals.overdue:
                error = _too_long(SoftTimeout, "soft limit", limits_of(lease, plan)[1], error)
            elif strand.task.cancelling() and self._is_first_disturbance(lease):
                return endings.released(lease)
        if isinstance(error, errors.StoreUnavailable) and error is strand.signals.trouble:
            return endings.troubled(lease, error)
        return self._failed(lease, plan.retry, error, _kind(strand.wanted, error))

    def _raised_sync(self, slot: RunSlot, lease: Lease, plan: TaskPlan, error: BaseException) -> Settlement:
        if isinstance(error, errors.JobCancelled) and slot.wanted is not None:
            return self._gave_in(slot.wanted, lease, plan, error)
        if isinstance(error, errors.StoreUnavailable) and error is slot.signals.trouble and not self.forked:
            return endings.troubled(lease, error)
        return self._failed(lease, plan.retry, error, _kind(slot.wanted, error))

    def _gave_in(self, wanted: Ending, lease: Lease, plan: TaskPlan, error: BaseException) -> Settlement:
        """Return the end of a run that the worker has cut short, as it wanted it."""
        if wanted is Ending.CANCELLED:
            return endings.cancelled(lease)
        if wanted is Ending.RELEASED:
            return endings.released(lease)
        late = _too_long(TimeoutError, "limit", limits_of(lease, plan)[0], error)
        return self._failed(lease, plan.retry, late, FailureKind.TIMEOUT)

    def cut_short(self, wanted: Ending, lease: Lease, trace: str | None) -> Settlement:
        """Return the end of a run whose process had to be killed, with what is known of where it was."""
        plan = self._plans[lease.task]
        settlement = self._gave_in(wanted, lease, plan, errors.JobCancelled())
        return structs.replace(settlement, traceback=trace) if settlement.error is not None else settlement

    def limits(self, lease: Lease) -> tuple[Millis | None, Millis | None]:
        """Return the hard and the soft limit of a job."""
        return limits_of(lease, self._plans[lease.task])

    def _with_signals(
        self, lease: Lease, plan: TaskPlan, signals: Signals, settlement: Settlement
    ) -> Settlement:
        """Return the end of a run about which the handler or the worker has said more."""
        if signals.ended == "committed":
            settlement = endings.after_commit(lease, settlement, signals)
        elif signals.ended == "joined" and settlement.ending is Ending.COMPLETED:
            # If the caller's transaction was committed, the store knows, and this is not even written.
            settlement = self._undone(lease, plan, endings.NOT_COMMITTED)
        elif signals.block in ("open", "dropped") and settlement.ending is Ending.COMPLETED:
            settlement = self._undone(lease, plan, endings.LEFT_OPEN)
        if signals.give_up is not None:
            signals.give_up()
        settlement = endings.with_signals(settlement, signals)
        return (
            settlement if signals.redaction is None else self._redacted(lease, signals.redaction, settlement)
        )

    def _redacted(self, lease: Lease, redaction: Redaction, settlement: Settlement) -> Settlement:
        try:
            return redaction.settlement(settlement, MAX_PAYLOAD)
        except errors.ResultInvalid as error:
            return structs.replace(
                self._refused(lease, error, FailureKind.RESULT_INVALID),
                progress=settlement.progress,
                progress_text=settlement.progress_text,
                log=settlement.log,
            )

    def _undone(self, lease: Lease, plan: TaskPlan, why: str) -> Settlement:
        """Return the end of a run that returned although its transaction was not committed."""
        return structs.replace(self._failed(lease, plan.retry, errors.JobError(why)), error=why)

    def _is_first_disturbance(self, lease: Lease) -> bool:
        if lease.number in self._disturbed or len(self._disturbed) >= MOST_DISTURBED:
            return False
        self._disturbed.add(lease.number)
        return True

    def _failed(
        self, lease: Lease, retry: Retry, error: BaseException, kind: FailureKind = FailureKind.ERROR
    ) -> Settlement:
        if self.forked:
            end_child(error)
        if self._tell_failed is not None:
            self._tell_failed(lease, error)
        try:
            return endings.raised(lease, error, retry, self._random, kind=kind, skip=HERE, hide=hidden)
        except BaseException:
            # To describe an error is to call its author's code once more, and that may exit, too.
            return endings.undescribed(lease, error, kind, self._random)

    def _refused(self, lease: Lease, error: BaseException, kind: FailureKind) -> Settlement:
        if self._tell_failed is not None:
            self._tell_failed(lease, error)
        try:
            return endings.refused(lease, error, kind, skip=HERE, hide=hidden)
        except BaseException:
            return endings.undescribed(lease, error, kind, self._random)


def _kind(wanted: Ending | None, error: BaseException) -> FailureKind:
    late = wanted is Ending.ERRORED or isinstance(error, SoftTimeout)
    return FailureKind.TIMEOUT if late else FailureKind.ERROR


def _too_long(
    kind: type[TimeoutError], which: str, limit: Millis | None, error: BaseException
) -> TimeoutError:
    """Return the error that a cancel by a time limit becomes, with the place where it struck."""
    return kind(too_long(which, limit)).with_traceback(error.__traceback__)


def _tidy(strand: StrandSlot, before: Variables) -> None:
    """Take back the cancels of the worker; a strand that a handler left otherwise changed is not used again.

    Context variables that a handler set, or a cancel that is not ours, would reach the next job in this strand.
    """
    for _ in range(strand.cancels):
        strand.task.uncancel()
    strand.cancels = 0
    strand.wanted = None
    strand.limit_at = inf
    strand.worn = strand.worn or strand.task.cancelling() > 0 or left_something(before)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def left_something(before: Variables) -> bool:
    """Return True if the handler has set a context variable, other than our own, which every job sets.

    By identity: `before != after` asks values for equality, which raises for arrays, and holds for a fresh list
    in place of another. Mostly there is no variable but our own; with more it takes 0.3 µs.
    """
    after = copy_context()
    if len(after) == 1:
        return False
    return len(after) != len(before) or sum(map(is_not, after.values(), before.values())) != 1


def watch_forks(runner: Runner) -> None:
    """Mark the runner in each process forked from here; to ask for the process id after each job costs more."""
    known = weakref.ref(runner)

    def forked() -> None:
        here = known()
        if here is not None:
            here.forked = True

    if sys.platform != "win32":
        os.register_at_fork(after_in_child=forked)


def end_child(error: BaseException | None = None) -> NoReturn:
    """End the process as its handler wanted, without its parent's exit handlers and open transactions."""
    code = error.code if isinstance(error, SystemExit) else int(error is not None)
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))
