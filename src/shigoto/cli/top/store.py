"""The questions that the live view asks of a store, and the actions that its keys ask for.

A query is a few bounded questions; its answers, the snapshot, are as of one moment. An action is one thing at a time.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never
from uuid import UUID

from msgspec import Struct, structs

from shigoto.bulk import Redriven, carry_out, choosing, retrying
from shigoto.cli.arguments import audited
from shigoto.cli.confirm import counted
from shigoto.cli.show import Story, story_op
from shigoto.engine.op import Op, Steps
from shigoto.filters import Filters, parse_filter, wanted
from shigoto.model.errors import JobNotFound, OptionInvalid
from shigoto.model.job import Counts, FailureKind, Job, JobFilter, State
from shigoto.model.worker import WorkerRecord
from shigoto.queues import pausing

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine

# A store finds the newest jobs by number. Which of them run for longest, or failed last, is found among so many.
AMONG = 200
PAGE = 50
HEAVY = 4_000_000  # letters of payloads, after which no more jobs are read


class TopQuery(Struct, frozen=True, kw_only=True):
    """What to look for: jobs that match, at most how many of a kind, and the one whose story is to be told.

    The job that is `chosen`, by its state and number, is found as well for as long as it matches and is in that state.
    """

    filtered: str = ""
    most: int = 20
    chosen: tuple[State, int] | None = None
    opened: Job | None = None


class TopSnapshot(Struct, frozen=True, kw_only=True):
    """What there was: `running` jobs, the longest first, and `failed` ones, the last first; `chosen` as in the query.

    Where there were too many to see all jobs of a state, `among` says of how many these are.
    """

    queues: dict[str, Counts] = {}
    paused: frozenset[str] = frozenset()
    workers: list[WorkerRecord] = []
    running: list[Job] = []
    failed: list[Job] = []
    among: dict[State, int] = {}
    chosen: tuple[State, int] | None = None
    story: Story | None = None


def snapshot_op(engine: "Engine", query: TopQuery) -> Op[TopSnapshot]:
    """The snapshot for a query, read in one go."""

    page = panel_filter(query.filtered)  # now and not once: `since:5m` is another moment at every query

    def steps() -> Steps[TopSnapshot]:
        counts = yield from engine.stats().start()
        settings = yield from engine.settings().start()
        names = sorted({*counts, *(queue.name for queue in settings)})
        jobs: dict[State, list[Job]] = {}
        among: dict[State, int] = {}
        for state in (State.PROCESSING, State.FAILED):
            jobs[state], seen = yield from _jobs(engine, structs.replace(page, state=state), query)
            if seen is not None:
                among[state] = seen
        return TopSnapshot(
            queues={name: counts.get(name, Counts()) for name in names},
            paused=frozenset(queue.name for queue in settings if queue.paused),
            workers=(yield from engine.workers().start()),
            running=jobs[State.PROCESSING],
            failed=jobs[State.FAILED],
            among=among,
            chosen=query.chosen,
            story=(yield from _story(engine, query)),
        )

    return Op(start=steps, mode="read")


def panel_filter(text: str) -> JobFilter:
    """What a text in the filter language asks for. Raises OptionInvalid."""
    filters = parse_filter(text)
    if "state" in filters:
        raise OptionInvalid("A state cannot be chosen here: the panels are for running and for failed jobs.")
    return wanted(filters)


def _jobs(engine: "Engine", page: JobFilter, query: TopQuery) -> Steps[tuple[list[Job], int | None]]:
    """The first jobs of a state, and the chosen one wherever it comes; and of how many, if not of all."""
    found, whole = yield from _newest(engine, page, max(AMONG, query.most))
    found = _in_order(found, page)
    shown, rest = found[: query.most], found[query.most :]
    if query.chosen is not None and query.chosen[0] is page.state:
        number = query.chosen[1]
        if all(job.number != number for job in found):
            rest = yield from engine.find(structs.replace(page, before=number + 1, limit=1)).start()
        shown = _in_order([*shown, *(job for job in rest if job.number == number)], page)
    return shown, None if whole else len(found)


def _in_order(jobs: Sequence[Job], page: JobFilter) -> list[Job]:
    """By the moment that counts, which is the end of jobs that failed and the start of others."""
    return sorted(
        jobs,
        key=lambda job: (job.finished_at or job.started_at or job.created_at, job.number),
        reverse=page.state is State.FAILED,
    )


def _newest(engine: "Engine", page: JobFilter, most: int) -> Steps[tuple[list[Job], bool]]:
    """So many jobs, or fewer where they are large, and whether there are no more."""
    found: list[Job] = []
    page = structs.replace(page, limit=PAGE)
    while True:
        jobs = yield from engine.find(page).start()
        found += jobs
        if len(jobs) < PAGE:
            return found, True
        if len(found) >= most or sum(len(job.payload) for job in found) > HEAVY:
            return found, False
        page = structs.replace(page, before=jobs[-1].number)


def _story(engine: "Engine", query: TopQuery) -> Steps[Story | None]:
    if query.opened is None:
        return None
    try:
        return (yield from story_op(engine, query.opened).start())
    except JobNotFound:
        return None


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
            return _after_count(engine.run(_count_op(engine, RetryAll(task, filtered))))
        case RetryAll(task, filtered):
            filters = _failed(task, filtered)
            chosen = carry_out(engine, choosing(engine, filters, decoder=lambda _: None))
            return _after_retry(task, carry_out(engine, retrying(audited(engine, filters), chosen)))
        case _:
            assert_never(action)


def _failed(task: str, filtered: str) -> Filters:
    return {**parse_filter(filtered), "task": task, "state": State.FAILED}


def _count_op(engine: "Engine", meant: RetryAll) -> Op[RetryAll]:
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
