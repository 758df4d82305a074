"""What can be done to a store from the live view, one thing at a time."""

from typing import TYPE_CHECKING, assert_never
from uuid import UUID

from msgspec import Struct, structs

from shigoto.bulk import Redriven, carry_out, choosing, retrying
from shigoto.cli.arguments import audited
from shigoto.cli.confirm import counted
from shigoto.engine.op import Op, Steps
from shigoto.filters import Filters, parse_filter, wanted
from shigoto.model.job import FailureKind, State
from shigoto.queues import pausing

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine


class PauseQueue(Struct, frozen=True):
    """Pause a queue, or resume it."""

    queue: str
    paused: bool


class CancelJob(Struct, frozen=True):
    """Ask a running job to stop."""

    id: UUID
    number: int


class RetryJob(Struct, frozen=True):
    """Make a failed job ready again."""

    id: UUID
    number: int


class CountFailed(Struct, frozen=True):
    """Find how many failed jobs of a task match, before anybody is asked about them."""

    task: str
    filtered: str = ""


class RetryAll(Struct, frozen=True):
    """Retry all failed jobs of a task that match; so many they were when they were counted."""

    task: str
    filtered: str = ""
    count: int = 0
    quarantined: int = 0


Action = PauseQueue | CancelJob | RetryJob | CountFailed | RetryAll


def named(action: Action) -> str:
    """What is being done, as a part of a sentence."""
    match action:
        case PauseQueue(queue, paused):
            return f"{'pausing' if paused else 'resuming'} {queue}"
        case CancelJob(_, number):
            return f"cancelling #{number}"
        case RetryJob(_, number):
            return f"retrying #{number}"
        case CountFailed(task):
            return f"counting the failed jobs of {task}"
        case RetryAll(task):
            return f"retrying the failed jobs of {task}"
        case _:
            assert_never(action)


def act(engine: "Engine", action: Action) -> str | RetryAll:
    """Do it and tell what came of it, or what is to be asked now. Raises what the engine raises."""
    match action:
        case PauseQueue(queue, paused):
            engine.run(pausing(audited(engine), queue, paused=paused))
            return f"{queue} is paused: nothing of it is started." if paused else f"{queue} is resumed."
        case CancelJob(id, number):
            [state] = engine.run(audited(engine).cancel([id]))
            return f"#{number} {_after_cancel(state)}"
        case RetryJob(id, number):
            engine.run(audited(engine).retry([id]))
            return f"#{number} is ready again."
        case CountFailed(task, filtered):
            return _after_count(engine.run(_counting(engine, RetryAll(task, filtered))))
        case RetryAll(task, filtered):
            filters = _failed(task, filtered)
            chosen = carry_out(engine, choosing(engine, filters, decoder=lambda _: None))
            return _after_retry(task, carry_out(engine, retrying(audited(engine, filters), chosen)))
        case _:
            assert_never(action)


def _failed(task: str, filtered: str) -> Filters:
    return {**parse_filter(filtered), "task": task, "state": State.FAILED}


def _counting(engine: "Engine", meant: RetryAll) -> Op[RetryAll]:
    page = wanted(_failed(meant.task, meant.filtered))

    def steps() -> Steps[RetryAll]:
        count = yield from engine.count(page).start()
        if page.failure_kind is not None:
            return structs.replace(meant, count=count)
        alone = structs.replace(page, failure_kind=FailureKind.CRASH_LOOP)
        quarantined = yield from engine.count(alone).start()
        return structs.replace(meant, count=count - quarantined, quarantined=quarantined)

    return Op(start=steps, mode="read")


def _after_count(meant: RetryAll) -> str | RetryAll:
    if meant.count:
        return meant
    left = f"; {meant.quarantined} in quarantine" if meant.quarantined else ""
    return f"There is no failed job of {meant.task} to retry{left}."


def _after_cancel(state: State | None) -> str:
    match state:
        case None:
            return "is gone: its retention has passed."
        case State.PROCESSING:
            return "was asked to stop."
        case State.CANCELLED:
            return "is cancelled."
        case _:
            return f"is {state} and cannot be cancelled."


def _after_retry(task: str, redriven: Redriven) -> str:
    count = len(redriven.retried)
    words = [f"{counted(count, 'failed')} of {task} {'is' if count == 1 else 'are'} ready again"]
    for jobs, why in (
        (redriven.quarantined, "left alone in quarantine"),
        (redriven.key_taken, "passed over, since another holds the unique key"),
        (redriven.gone, "gone meanwhile"),
    ):
        if jobs:
            words.append(f"{len(jobs)} {why}")
    return "; ".join(words) + "."
