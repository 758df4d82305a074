"""Acting on however many jobs match a filter: clear, cancel and redrive.

An action is a plan: a generator of ops, each a transaction of its own. Looking may take long and keeps nobody waiting;
whatever changes something is of bounded size, so that others get to write in between. One driver runs the plan in the
calling thread, another on an event loop. `after_batch` hears how far it is, and may end it there.

Redrive retries failed jobs:

    choose: find page by page, newest first  →  retry in batches, oldest first

Choosing comes first and as a whole, so that a limit means the jobs that a list with the same limit shows, that they run
in their old order, and that a job which fails again is not met twice. A batch that holds a job which cannot be retried
is halved until that job stands alone. Of several jobs with one unique key only one can live. It is the newest: what was
enqueued last says what is wanted now.
"""

from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import structs

from shigoto.engine.op import Op, adrive, drive
from shigoto.engine.protocol import Engine
from shigoto.filters import Filters, wanted
from shigoto.handle import Decode, JobHandle
from shigoto.model.errors import JobError, JobNotFound, JobNotRetryable, KeyTaken, OptionInvalid
from shigoto.model.job import FailureKind, Job, JobFilter, State
from shigoto.model.states import DELETABLE
from shigoto.model.text import plain_whole, shown
from shigoto.model.time import Clock, host_clock

T = TypeVar("T")

PAGE = 100  # jobs come with their payloads, and others want to write too
BATCH = 500  # jobs that are deleted in one transaction
LOOK = 50_000  # numbers of jobs to delete that are looked up at once: of pending ones it takes a look at all of them

LIVE = (State.PENDING, State.BLOCKED, State.PROCESSING)

BulkPlan = Generator[Op[Any], Any, T]  # ops, each run by itself; what one raises is thrown back in
AfterBatch = Callable[[int], bool]  # hears how many jobs are dealt with, and says whether to go on
Decoder = Callable[[Job], Decode | None]


def go_on(_done: int) -> bool:
    """Go on to the end."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """What a cancel by filter did. Jobs that run were `asked` to stop; `gone` had ended or vanished before that."""

    cancelled: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    asked: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    gone: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])


def carry_out(engine: Engine, plan: BulkPlan[T]) -> T:
    """Run the ops of a plan in the calling thread."""
    return drive(plan, engine.run, JobError)


async def acarry_out(engine: Engine, plan: BulkPlan[T]) -> T:
    """Run the ops of a plan without blocking the event loop."""
    return await adrive(plan, engine.arun, JobError)


def count_plan(engine: Engine, filters: Filters, *, clock: Clock = host_clock) -> BulkPlan[int]:
    """How many jobs match, at most `limit` of them. Raises OptionInvalid."""
    page, most = page_and_limit(filters, clock)
    return _count_pages(engine, [page], most)


def clear_plan(
    engine: Engine,
    filters: Filters,
    *,
    dry_run: bool,
    clock: Clock = host_clock,
    after_batch: AfterBatch = go_on,
) -> BulkPlan[int]:
    """Delete what matches, oldest first, and count it; only count it in a dry run. Raises OptionInvalid."""
    page, most = page_to_clear(filters, clock)
    if not dry_run:
        return _clear_page(engine, page, most, after_batch)
    states = DELETABLE if page.state is None else (page.state,)
    return _count_pages(engine, [structs.replace(page, state=state) for state in states], most)


def page_to_clear(filters: Filters, clock: Clock = host_clock) -> tuple[JobFilter, int | None]:
    """The filter of what is to be deleted, and how many jobs at most. Raises OptionInvalid."""
    page, most = page_and_limit(filters, clock)
    names = ", ".join(DELETABLE)
    if page.state is None and filters.get("state") is None:
        raise OptionInvalid(f"Which jobs shall be deleted? Name a state: {names}, or all of these.")
    if isinstance(page.state, State) and page.state not in DELETABLE:
        raise OptionInvalid(
            f"Jobs that are {page.state} cannot be deleted: cancel them first. States to clear are {names}."
        )
    return page, most


def _count_pages(engine: Engine, pages: list[JobFilter], most: int | None) -> BulkPlan[int]:
    count = 0
    for page in pages:
        count += yield engine.count(page)
    return count if most is None else min(count, most)


def _clear_page(engine: Engine, page: JobFilter, most: int | None, after_batch: AfterBatch) -> BulkPlan[int]:
    newest: list[Job] = yield engine.find(JobFilter(limit=1))
    if not newest:
        return 0
    # What is stored from now on stays: else a busy producer would keep this going for ever.
    page = structs.replace(page, before=newest[0].number + 1)
    deleted = looked_to = 0
    while most is None or deleted < most:
        page = structs.replace(page, limit=LOOK if most is None else min(LOOK, most - deleted))
        numbers: list[int] = yield engine.deletable(page, after=looked_to)
        done, ended = yield from _delete_batch(engine, numbers, page, after_batch, deleted)
        deleted += done
        if ended or len(numbers) < page.limit:
            break
        looked_to = numbers[-1]
    return deleted


def choose_deletable_plan(engine: Engine, page: JobFilter, most: int | None) -> BulkPlan["array[int]"]:
    """The numbers of what would be deleted now, oldest first: eight bytes each, for whoever asks before it goes on."""
    chosen = array("q")
    while most is None or len(chosen) < most:
        page = structs.replace(page, limit=LOOK if most is None else min(LOOK, most - len(chosen)))
        numbers: list[int] = yield engine.deletable(page, after=chosen[-1] if chosen else 0)
        chosen.extend(numbers)
        if len(numbers) < page.limit:
            break
    return chosen


def delete_plan(
    engine: Engine, chosen: Sequence[int], page: JobFilter, *, after_batch: AfterBatch = go_on
) -> BulkPlan[int]:
    """Delete what was chosen, as far as it is still in a state that the filter means, and count it."""
    deleted, _ = yield from _delete_batch(engine, chosen, page, after_batch, 0)
    return deleted


def _delete_batch(
    engine: Engine, numbers: Sequence[int], page: JobFilter, after_batch: AfterBatch, before: int
) -> BulkPlan[tuple[int, bool]]:
    """How many were deleted, and whether somebody has ended it."""
    # A view is part of pending.
    whole = page.state if page.state is None or isinstance(page.state, State) else State.PENDING
    states, deleted = DELETABLE if whole is None else (whole,), 0
    for start in range(0, len(numbers), BATCH):
        count: int = yield engine.delete(list(numbers[start : start + BATCH]), states)
        deleted += count
        if not after_batch(before + deleted):
            return deleted, True
    return deleted, False


def choose_live_plan(
    engine: Engine, filters: Filters, *, decoder: Decoder, clock: Clock = host_clock
) -> BulkPlan[Cancelled]:
    """Find what matches and has not ended: what would be cancelled, and what asked to stop. Raises OptionInvalid."""
    page, most = page_and_limit(filters, clock)
    if all(filters.get(name) is None for name in Filters.__annotations__ if name != "limit"):
        raise OptionInvalid(
            "Which jobs shall be cancelled? Name the state all if every one of them is meant."
        )
    if isinstance(page.state, State) and page.state.terminal:
        raise OptionInvalid(f"Jobs that are {page.state} have ended and cannot be cancelled.")
    states = LIVE if page.state is None else (page.state,)
    return _choose_live_page(engine, [structs.replace(page, state=state) for state in states], most, decoder)


def _choose_live_page(
    engine: Engine, pages: list[JobFilter], most: int | None, decoder: Decoder
) -> BulkPlan[Cancelled]:
    found: dict[int, tuple[JobHandle[Any], State]] = {}  # a job may start while this looks, and be met twice
    for page in pages:
        met = 0

        def take(job: Job) -> bool:
            nonlocal met
            met += 1
            found[job.number] = handle_of(engine, job, decoder), job.state
            return met != most

        yield from walk_plan(engine, page, take)
    chosen = Cancelled()
    for _, (handle, state) in sorted(found.items(), reverse=True)[:most]:
        (chosen.asked if state is State.PROCESSING else chosen.cancelled).append(handle)
    return chosen


def cancel_plan(
    engine: Engine, chosen: Cancelled, *, force: bool = False, after_batch: AfterBatch = go_on
) -> BulkPlan[Cancelled]:
    """Cancel what was chosen. Those that wait come first, or else they would start where others have stopped."""
    done = Cancelled()
    jobs = [*chosen.cancelled, *chosen.asked]
    for start in range(0, len(jobs), PAGE):
        batch = jobs[start : start + PAGE]
        states: list[State | None] = yield engine.cancel([handle.id for handle in batch], force=force)
        for handle, state in zip(batch, states, strict=True):
            match state:
                case State.CANCELLED:
                    done.cancelled.append(handle)
                case State.PROCESSING:
                    done.asked.append(handle)
                case _:
                    done.gone.append(handle)
        if not after_batch(start + len(batch)):
            break
    return done


def walk_plan(engine: Engine, page: JobFilter, take: Callable[[Job], bool]) -> BulkPlan[None]:
    """Find page by page, newest first, until `take` has enough."""
    while True:
        jobs: list[Job] = yield engine.find(page)
        for job in jobs:
            if not take(job):
                return
        if len(jobs) < page.limit:
            return
        page = structs.replace(page, before=jobs[-1].number)


def handle_of(engine: Engine, job: Job, decoder: Decoder) -> JobHandle[Any]:
    """The handle of a job that was found."""
    return JobHandle[Any](engine, job.id, job.number, "existing", decoder(job))


def page_and_limit(filters: Filters, clock: Clock = host_clock) -> tuple[JobFilter, int | None]:
    """The filter of the first page, and how many jobs are wanted in all. Raises OptionInvalid."""
    if filters.get("before") is not None:
        raise OptionInvalid("before is for pages of find; here all jobs are meant that match.")
    limit = filters.get("limit")
    most = plain_whole(limit)
    if limit is not None and (most is None or most < 1):
        raise OptionInvalid(f"limit must be a whole number from 1 on, not {shown(limit)}.")
    return wanted({**filters, "limit": PAGE}, clock), most


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What a redrive did: which jobs it made ready again, and which not, and why.

    `quarantined` jobs have killed their process again and again and are left alone unless asked for by
    `failure_kind="crash_loop"`; of `key_taken` another job holds the unique key; `gone` are those that somebody else
    has retried or deleted meanwhile.
    """

    retried: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    quarantined: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    key_taken: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    gone: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which jobs match, newest first. `rivals` have the unique key of a newer one; `quarantined` are left alone."""

    jobs: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    rivals: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])
    quarantined: list[JobHandle[Any]] = field(default_factory=list[JobHandle[Any]])


def redrive_plan(
    engine: Engine, filters: Filters, *, dry_run: bool, decoder: Decoder, clock: Clock = host_clock
) -> BulkPlan[Redriven]:
    """Choose, and retry unless it is a dry run."""
    chosen = yield from choose_plan(engine, filters, decoder=decoder, clock=clock)
    if dry_run:
        return Redriven(
            retried=chosen.jobs[::-1], quarantined=chosen.quarantined, key_taken=chosen.rivals[::-1]
        )
    return (yield from retry_plan(engine, chosen))


def choose_plan(
    engine: Engine, filters: Filters, *, decoder: Decoder, clock: Clock = host_clock
) -> BulkPlan[Chosen]:
    """Find what matches. Raises OptionInvalid."""
    page, most = _page_to_redrive(filters, clock)
    return _choose_page(engine, page, most, decoder)


def _choose_page(engine: Engine, page: JobFilter, most: int | None, decoder: Decoder) -> BulkPlan[Chosen]:
    chosen = Chosen()
    keys: set[tuple[str, str]] = set()

    def take(job: Job) -> bool:
        handle = handle_of(engine, job, decoder)
        if job.failure_kind is FailureKind.CRASH_LOOP and page.failure_kind is None:
            chosen.quarantined.append(handle)
            return True
        (chosen.rivals if job.key and (job.tenant, job.key) in keys else chosen.jobs).append(handle)
        if job.key:
            keys.add((job.tenant, job.key))
        return len(chosen.jobs) + len(chosen.rivals) != most

    yield from walk_plan(engine, page, take)
    return chosen


def retry_plan(engine: Engine, chosen: Chosen, *, after_batch: AfterBatch = go_on) -> BulkPlan[Redriven]:
    """Retry what was chosen, oldest first.

    Rivals come last, the newest first, in case that the one before them is gone.
    """
    redriven = Redriven(quarantined=chosen.quarantined)
    jobs = [*chosen.jobs[::-1], *chosen.rivals]
    for start in range(0, len(jobs), PAGE):
        yield from _retry_batch(engine, jobs[start : start + PAGE], redriven)
        if not after_batch(min(start + PAGE, len(jobs))):
            break
    redriven.key_taken.sort(key=lambda handle: handle.number or 0)
    return redriven


def _retry_batch(engine: Engine, batch: Sequence[JobHandle[Any]], redriven: Redriven) -> BulkPlan[None]:
    try:
        yield engine.retry([handle.id for handle in batch])
    except (KeyTaken, JobNotRetryable, JobNotFound) as error:
        if len(batch) == 1:
            (redriven.key_taken if isinstance(error, KeyTaken) else redriven.gone).extend(batch)
            return
    else:
        redriven.retried.extend(batch)
        return
    half = len(batch) // 2
    yield from _retry_batch(engine, batch[:half], redriven)
    yield from _retry_batch(engine, batch[half:], redriven)


def _page_to_redrive(filters: Filters, clock: Clock) -> tuple[JobFilter, int | None]:
    """The filter of the first page, and how many jobs are wanted in all."""
    page, most = page_and_limit(filters, clock)
    if page.state is None and filters.get("state") is not None:
        raise OptionInvalid("Only failed and cancelled jobs can be redriven: name one of these states.")
    if page.state is None:
        page = structs.replace(page, state=State.FAILED)
    if page.state not in (State.FAILED, State.CANCELLED):
        raise OptionInvalid(
            f"Only failed and cancelled jobs can be redriven, not those that are {page.state}."
        )
    if page.state is State.CANCELLED and page.failure_kind is not None:
        raise OptionInvalid(
            "Only failed jobs have a kind of failure: leave that out to redrive cancelled ones."
        )
    return page, most
