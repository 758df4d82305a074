"""What operators do to jobs, and what they look at first: runs, lines and events of one; cancel, retry, rerun; and one
action on all that match a filter.

Every action is noted in the audit with whoever did it, in the same transaction. An action on many is a dry run unless
it says otherwise, and then it must say how many jobs it expects: nobody deletes a million by a slip.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from shigoto.app import expect_searchable
from shigoto.bulk import (
    BATCH,
    Plan,
    acarry_out,
    choosing,
    choosing_deletable,
    choosing_live,
    deleting,
    page_to_clear,
)
from shigoto.bulk import cancelling as cancelling_all
from shigoto.bulk import retrying as retrying_all
from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.filters import Filters, parse_filter
from shigoto.filters import write_filter as written
from shigoto.handle import JobHandle
from shigoto.model.errors import ConfirmNeeded, KeyTaken, OptionInvalid, RequestInvalid
from shigoto.model.job import Job
from shigoto.server.audit import Audited, cancelling, rerunning
from shigoto.server.auth import Admin, Caller, Reader, the_service
from shigoto.server.endpoint import answer, body, spec
from shigoto.server.jobs import IdempotencyKey, base_of, derived, found
from shigoto.server.scope import narrowed, unrestricted, visible
from shigoto.server.service import Service
from shigoto.server.wire import (
    MOST_ACTED_ON,
    ActedOn,
    Action,
    Attempts,
    Cancelling,
    Empty,
    JobEvents,
    Lines,
    StateOf,
    Submitted,
    attempts_of,
    events_of,
    lines_of,
)

T = TypeVar("T")

router = APIRouter(tags=["jobs"])

MOST_IDS = 100  # that an action tells
ACT_WITHIN = 25.0  # seconds, after which an action ends where it is: a request may take thirty


@router.get("/jobs/{id}/attempts", **spec(gives=Attempts, problems=(404,)))
async def list_attempts(request: Request, caller: Reader, id: UUID) -> Response:
    """The runs of a job that did not end completed, the oldest first."""
    _, attempts = await _beside(the_service(request), caller, id, the_service(request).engine.attempts)
    return answer(attempts_of(attempts))


@router.get("/jobs/{id}/logs", **spec(gives=Lines, problems=(404,)))
async def list_log_lines(request: Request, caller: Reader, id: UUID) -> Response:
    """The lines that the runs of a job have written, the oldest first."""
    _, lines = await _beside(the_service(request), caller, id, the_service(request).engine.logs)
    return answer(lines_of(lines))


@router.get("/jobs/{id}/events", **spec(gives=JobEvents, problems=(404,)))
async def list_job_events(request: Request, caller: Reader, id: UUID) -> Response:
    """What has happened to a job, in order."""
    job, attempts = await _beside(the_service(request), caller, id, the_service(request).engine.attempts)
    return answer(events_of(job, attempts))


@router.post("/jobs/{id}/cancel", **spec(takes=Cancelling, gives=StateOf, problems=(404,)))
async def cancel_job(request: Request, caller: Admin, id: UUID) -> Response:
    """Cancel a job. One that runs is asked to stop, and stays processing until it has; or is cancelled by force."""
    service = the_service(request)
    wish = await body(request, Cancelling)
    job = await found(service, caller, id)
    [state] = await service.engine.arun(
        cancelling(service.engine, [id], force=wish.force, actor=caller.actor)
    )
    service.feed.stirred()
    return answer(StateOf(id, state or job.state))


@router.post("/jobs/{id}/retry", **spec(takes=Empty, gives=StateOf, problems=(404, 409)))
async def retry_job(request: Request, caller: Admin, id: UUID) -> Response:
    """Make a failed or cancelled job ready again, with all its retries."""
    service = the_service(request)
    await body(request, Empty)
    await found(service, caller, id)
    try:
        await JobHandle[Any](Audited(service.engine, caller.actor), id, 0, "existing", None).aretry()
    except KeyTaken:
        if caller.restricted:  # the text names the holder, which may be none of the caller's business
            raise KeyTaken("The job cannot be retried: another one holds its unique key now.") from None
        raise
    return answer(StateOf(id, (await found(service, caller, id)).state))


@router.post(
    "/jobs/{id}/rerun", **spec(takes=Empty, gives=Submitted, status=201, also=(200,), problems=(404, 409))
)
async def rerun_job(
    request: Request, caller: Admin, id: UUID, idempotency_key: IdempotencyKey = None
) -> Response:
    """Make a new job like one that has ended. 200 if there is one already, by the Idempotency-Key."""
    service = the_service(request)
    await body(request, Empty)
    await found(service, caller, id)
    named = None
    if idempotency_key is not None:  # of this route and this job: a key has no line breaks
        named = derived(
            caller.token.id if caller.token is not None else "", "", f"rerun {id}\n{idempotency_key}", 0
        )
    made = await service.engine.arun(rerunning(service.engine, id, actor=caller.actor, named=named))
    place = {"Location": f"{base_of(request)}/{made.id}"}
    told = Submitted(id=made.id, number=made.number, status=made.status)
    return answer(told, 201 if made.status == "inserted" else 200, place)


@router.post("/jobs/actions", **spec(takes=Action, gives=ActedOn, problems=(409,)))
async def act_on_jobs(request: Request, caller: Admin) -> Response:
    """Cancel, retry or delete all jobs that match; a dry run, unless it is told to be none. It ends after half a
    minute at most, and tells if there are more."""
    service = the_service(request)
    action = await body(request, Action)
    if action.action == "delete":
        unrestricted(caller)
    try:
        filters = narrowed(caller, parse_filter(action.filter))
        expect_searchable(service.app, filters)
        _expect_filters(filters)
        act = _ACTS[action.action]
        done = await acarry_out(service.engine, act(service, caller, action, filters, Patience(ACT_WITHIN)))
    except OptionInvalid as error:
        raise RequestInvalid(str(error), "filter") from None
    service.feed.stirred()
    return answer(done)


async def _beside(service: Service, caller: Caller, id: UUID, read: Callable[[UUID], Op[T]]) -> tuple[Job, T]:
    """A job that the caller may see, and what is kept beside it, as of one moment. Raises JobNotFound."""

    def steps() -> Steps[tuple[Job, T]]:
        [job] = yield from service.engine.get([id]).start()
        seen = visible(caller, job, id)
        return seen, (yield from read(id).start())

    return await service.engine.arun(Op(start=steps, mode="read"))


def _expect_filters(filters: Filters) -> None:
    """An empty filter is a slip more often than a wish."""
    if not filters:
        raise OptionInvalid("Which jobs? Name at least one term; state:all is for every one.")


class Patience:
    """Hears of each part of an action that is done, and ends it when its time is over."""

    def __init__(self, seconds: float) -> None:
        self.parts = 0
        self._time = asyncio.get_running_loop().time
        self._until = self._time() + seconds

    def __call__(self, _done: int) -> bool:
        self.parts += 1
        return self._time() < self._until


class _Chosen(Struct, frozen=True):
    """How many jobs are meant, of at most MOST_ACTED_ON, and the ids of some."""

    matched: int
    more: bool
    ids: list[UUID]


def _cancel(
    service: Service, caller: Caller, action: Action, filters: Filters, patience: Patience
) -> Plan[ActedOn]:
    engine = service.engine
    chosen = yield from choosing_live(
        engine, _bounded(filters), decoder=service.app.decoder, clock=service.app.now
    )
    jobs = [*chosen.cancelled, *chosen.asked]
    of = _Chosen(len(jobs), len(jobs) >= MOST_ACTED_ON, [each.id for each in jobs[:MOST_IDS]])
    if _only_looks(action, of):
        return _told(action, of, 0, 0)
    noting = _noting(engine, caller, filters)
    done = yield from cancelling_all(noting, chosen, force=action.force, after_batch=patience)
    return _told(action, of, len(done.cancelled) + len(done.asked), len(done.gone))


def _retry(
    service: Service, caller: Caller, action: Action, filters: Filters, patience: Patience
) -> Plan[ActedOn]:
    engine = service.engine
    chosen = yield from choosing(
        engine, _bounded(filters), decoder=service.app.decoder, clock=service.app.now
    )
    jobs = [*chosen.jobs, *chosen.rivals]
    of = _Chosen(len(jobs), len(jobs) >= MOST_ACTED_ON, [each.id for each in jobs[:MOST_IDS]])
    if _only_looks(action, of):
        return _told(action, of, 0, 0, beside=len(chosen.quarantined))
    done = yield from retrying_all(_noting(engine, caller, filters), chosen, after_batch=patience)
    skipped = len(done.key_taken) + len(done.gone)
    return _told(action, of, len(done.retried), skipped, beside=len(done.quarantined))


def _delete(
    service: Service, caller: Caller, action: Action, filters: Filters, patience: Patience
) -> Plan[ActedOn]:
    engine = service.engine
    page, most = page_to_clear(_bounded(filters), service.app.now)
    numbers = yield from choosing_deletable(engine, page, most)
    of = _Chosen(len(numbers), len(numbers) >= MOST_ACTED_ON, [])
    if _only_looks(action, of):
        return _told(action, of, 0, 0)
    done = yield from deleting(_noting(engine, caller, filters), numbers, page, after_batch=patience)
    return _told(action, of, done, min(len(numbers), patience.parts * BATCH) - done)


_ACTS = {"cancel": _cancel, "retry": _retry, "delete": _delete}


def _bounded(filters: Filters) -> Filters:
    return {**filters, "limit": MOST_ACTED_ON}


def _noting(engine: Engine, caller: Caller, filters: Filters) -> Audited:
    return Audited(engine, caller.actor, written(filters))


def _only_looks(action: Action, chosen: _Chosen) -> bool:
    """Whether nothing is to be changed. Raises ConfirmNeeded if more would be than the caller expects."""
    if action.dry_run:
        return True
    if action.confirm is None or action.confirm < chosen.matched:
        raise ConfirmNeeded(
            f"{chosen.matched} jobs match: send confirm with that number, or a greater one, if all are meant.",
            chosen.matched,
        )
    return False


def _told(action: Action, chosen: _Chosen, done: int, skipped: int, *, beside: int = 0) -> ActedOn:
    """What came of it; `beside` those that were matched are others that are skipped always."""
    ended_early = not action.dry_run and done + skipped < chosen.matched
    return ActedOn(
        action=action.action,
        dry_run=action.dry_run,
        matched=chosen.matched,
        done=done,
        skipped=skipped + beside,
        more=chosen.more or ended_early,
        ids=chosen.ids,
    )
