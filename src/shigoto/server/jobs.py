"""Routes of jobs: submit, get, list, count; runs, lines and events of one; cancel, retry, rerun; actions on many.

Every action is noted in the audit with whoever did it, in the same transaction. An action on many is a dry run unless
it says otherwise, and then it must say how many jobs it expects: nobody deletes a million by a slip.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, TypeVar, cast
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from msgspec import UNSET, DecodeError, Struct, json, structs

from shigoto import bulk
from shigoto.app import expect_searchable
from shigoto.bulk import BATCH
from shigoto.encryption import Encryption, opened
from shigoto.engine.op import Op, Steps, extended
from shigoto.engine.protocol import Engine
from shigoto.enqueue import call_by_name
from shigoto.filters import MAX_NUMBER, MAX_PAGE, Filters, parse_filter, wanted
from shigoto.filters import write_filter as written
from shigoto.handle import JobHandle
from shigoto.model import errors
from shigoto.model.ids import uuids7
from shigoto.model.job import Enqueued, Job, JobSpec, State
from shigoto.model.time import Millis, to_millis
from shigoto.observe import tracing
from shigoto.options import CallOptions
from shigoto.queues import store_within_limits
from shigoto.server import job_models as models
from shigoto.server import permissions
from shigoto.server.audit import Audited, cancel_op, rerun_op
from shigoto.server.auth import ASKERS, Admin, Asker, Caller, Reader, Submitter, allowed, the_service
from shigoto.server.operations import names_for
from shigoto.server.request_limits import LONGEST_WAIT
from shigoto.server.routing import answer, body, looked, spec, unless_gone
from shigoto.server.service import Service

router = APIRouter(tags=["jobs"])

PAGE = 100  # jobs that are read at once: they come with their payloads
PAGE_BYTES = 16 * 1024 * 1024  # of payloads and results; a page ends with the job that exceeds it

IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=255, pattern=r"^[\x20-\x7e]+$")]
Wait = Annotated[float, Query(ge=0, le=LONGEST_WAIT, allow_inf_nan=False)]
FilterText = Annotated[str, Query(max_length=models.LONGEST_FILTER)]

_VERSION_AND_VARIANT = 0xF << 76 | 0x3 << 62  # of a UUID; eight is the version for what its maker makes of it

ANOTHER_LENGTH = "The Idempotency-Key was used for more or fewer jobs, or some of them are not kept any more."

FIELDS: Mapping[type[Exception], str] = {
    errors.UnknownTask: "task",
    errors.PayloadInvalid: "payload",
    errors.PayloadTooLarge: "payload",
}


@router.post(
    "/jobs", **spec(takes=models.Submission, gives=models.Submitted, status=201, also=(200,), problems=(409,))
)
async def submit_job(request: Request, caller: Submitter, idempotency_key: IdempotencyKey = None) -> Response:
    """Store a job. 201 if it is new, 200 if it was there already: by its id, its key, or the Idempotency-Key."""
    submission = await body(request, models.Submission)
    [made] = await _stored(request, caller, [submission], idempotency_key)
    place = {"Location": f"{base_of(request)}/{made.id}"}
    return answer(made, 201 if made.status == "inserted" else 200, place)


@router.post("/jobs/batch", **spec(takes=models.Batch, gives=models.SubmittedBatch, problems=(409,)))
async def submit_jobs(
    request: Request, caller: Submitter, idempotency_key: IdempotencyKey = None
) -> Response:
    """Store many jobs, all or none."""
    batch = await body(request, models.Batch)
    return answer(models.SubmittedBatch(jobs=await _stored(request, caller, batch.jobs, idempotency_key)))


@router.get("/jobs", **spec(gives=models.JobPage))
async def list_jobs(
    request: Request,
    caller: Reader,
    filter: FilterText = "",
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    before: Annotated[int | None, Query(ge=0, le=MAX_NUMBER)] = None,
    full: bool = False,
) -> Response:
    """A page of the jobs that match, the newest first."""
    service = the_service(request)
    filters = _searchable(service, caller, parse_filter(filter))
    jobs, more = await _page(service, filters, limit, before)
    base = base_of(request)
    return answer(
        models.JobPage(
            jobs=[models.view_of(job, base, full=full) for job in jobs],
            next=jobs[-1].number if more else None,
        )
    )


@router.get("/jobs/count", **spec(gives=models.Count))
async def count_jobs(request: Request, caller: Reader, filter: FilterText = "") -> Response:
    """How many jobs match."""
    service = the_service(request)
    filters = wanted(_searchable(service, caller, parse_filter(filter)), service.app.now)
    return answer(models.Count(await looked(service.engine, service.engine.count(filters))))


@router.get("/jobs/{id}", **spec(gives=models.JobView, problems=(404,)))
async def get_job(request: Request, caller: Asker, id: UUID, wait: Wait = 0.0) -> Response:
    """A job as it is now; with `wait` as soon as it has ended, or after so many seconds."""
    service = the_service(request)
    until = asyncio.get_running_loop().time() + wait
    job = await found(service, caller, id)
    if wait and not job.state.terminal:
        await unless_gone(request, service.feed.ended(id, until))
        job = await found(service, await allowed(request, *ASKERS), id)
    return answer(models.view_of(job, base_of(request), full=True))


def base_of(request: Request) -> str:
    """The path under which jobs are found, wherever the service is mounted."""
    return f"{request.scope.get('root_path', '')}/api/v1/jobs"


async def found(service: Service, caller: Caller, id: UUID) -> Job:
    """The job, if the caller may see it. Raises JobNotFound."""
    [job] = await service.engine.arun(service.engine.get([id]))
    return permissions.visible(caller, job, id)


def _searchable(service: Service, caller: Caller, filters: Filters) -> Filters:
    """The filters for what the caller may see, if jobs can be found by them. Raises OptionInvalid, Forbidden."""
    expect_searchable(service.app, filters)
    permissions.expect_no_secret(caller, service.app, filters.get("task"), filters.get("args") or {})
    return permissions.narrowed(caller, filters)


async def _page(service: Service, filters: Filters, limit: int, before: int | None) -> tuple[list[Job], bool]:
    """Matching jobs, as many as are wanted or go into one answer, and whether there may be more."""
    page = wanted({**filters, "limit": min(limit, PAGE), "before": before}, service.app.now)
    jobs: list[Job] = []
    size = 0
    while True:
        read = await looked(service.engine, service.engine.find(page))
        for job in read:
            jobs.append(job)
            size += len(job.payload) + len(job.result or "")
            if len(jobs) == limit or size > PAGE_BYTES:
                return jobs, True
        if len(read) < page.limit:
            return jobs, False
        page = structs.replace(page, before=jobs[-1].number)


class Wanted(Struct, frozen=True):
    """A job to store. If its id was `named`, by the caller or by an Idempotency-Key, there may be one already."""

    spec: JobSpec
    named: bool
    by_key: bool
    said: models.Submission


async def _stored(
    request: Request, caller: Caller, submissions: Sequence[models.Submission], key: str | None
) -> list[models.Submitted]:
    """Store what is submitted, all or none."""
    service = the_service(request)
    known = await _known(service, submissions)
    ids = uuids7(len(submissions))
    keyed = [None] * (len(submissions) + 1) if key is None else _keyed(caller, submissions, key)
    wanted: list[Wanted] = []
    for index, submission in enumerate(submissions):
        try:
            wanted.append(_wanted(service, caller, submission, known, ids[index], keyed[index]))
        except (errors.JobError, errors.RequestInvalid) as error:
            _locate(error, index if len(submissions) > 1 else None)
            raise
    _expect_different(wanted)
    limits = await service.limits()
    asked = tracing.asked_by(f"{request.method} {request.url.path}", request.headers)
    with tracing.storing(service.app.tracing, [each.spec for each in wanted], asked) as specs:
        marked = [structs.replace(each, spec=marked) for each, marked in zip(wanted, specs, strict=True)]
        op = _submit_op(service.engine, caller, marked, limits, keyed[-1], service.app.encryption)
        made = await service.engine.arun(op)
    return [models.Submitted(id=each.id, number=each.number, status=each.status) for each in made]


async def _known(service: Service, submissions: Sequence[models.Submission]) -> frozenset[str]:
    """The tasks that somebody has; live workers are asked only if the app alone does not know them all."""
    app = service.app
    if all(each.allow_unknown or app.resolve(each.task) is not None for each in submissions):
        return frozenset(each.task for each in submissions)
    return await service.known_tasks()


def _wanted(
    service: Service,
    caller: Caller,
    submission: models.Submission,
    known: frozenset[str],
    id: UUID,
    keyed: UUID | None,
) -> Wanted:
    """One job to store, checked as a call of its task is. Raises JobError, RequestInvalid, Forbidden."""
    tenant = permissions.own_tenant(caller, submission.tenant)
    unknown = submission.task not in known and service.app.resolve(submission.task) is None
    if unknown and not submission.allow_unknown:
        hint = errors.nearest(submission.task, _hints(service, caller, known))
        raise errors.UnknownTask(
            f"No task is called {submission.task!r}, neither in this app nor by any live worker.{hint} Start a worker"
            " that has it, or send allow_unknown to let the job wait for one."
        )
    if submission.id is not None and keyed is not None:
        raise errors.RequestInvalid("The Idempotency-Key makes the id: leave one of them out.", "id")
    options = options_of(submission, tenant)
    named = submission.id or keyed
    made = call_by_name(service.app, submission.task, submission.payload, options).spec(named or id)
    permissions.submittable(caller, made.task, made.queue, submission.tenant)
    return Wanted(made, named is not None, keyed is not None, submission)


def _hints(service: Service, caller: Caller, known: frozenset[str]) -> frozenset[str]:
    """The tasks that a caller may be reminded of: with queues of its own, those of these queues."""
    if caller.token is None or caller.token.queues is None:
        return known
    return frozenset(names_for(caller, service.app))


def options_of(submission: models.Submission, tenant: str) -> CallOptions:
    """What is said of a job, as `using` takes it. Raises RequestInvalid for what contradicts itself."""
    if submission.expires is not None and submission.expires_at is not None:
        raise errors.RequestInvalid(
            "expires and expires_at say the same: leave one of them out.", "expires_at"
        )
    expires = submission.expires_at if submission.expires is None else submission.expires
    said: dict[str, Any] = {
        "queue": submission.queue,
        "priority": submission.priority,
        "delay": submission.delay,
        "run_at": submission.run_at,
        "expires": expires,
        "key": submission.key,
        "key_mode": submission.key_mode,
        "retries": submission.retries,
        "meta": submission.meta,
        "tenant": tenant or None,
        "tags": submission.tags or None,
    }
    limits: dict[str, Any] = {
        "timeout": submission.timeout,
        "soft_timeout": submission.soft_timeout,
        "max_crashes": submission.max_crashes,
    }
    options = {name: value for name, value in said.items() if value is not None}
    options |= {name: value for name, value in limits.items() if value is not UNSET}
    return cast("CallOptions", options)


def _keyed(caller: Caller, submissions: Sequence[models.Submission], key: str) -> list[UUID | None]:
    """The ids that an Idempotency-Key gives to the jobs of a request, and one more: a longer request would have that.
    If it is for several tenants, the key is that of the first."""
    token, tenant = (
        "" if caller.token is None else caller.token.id,
        permissions.own_tenant(caller, submissions[0].tenant),
    )
    return [derived(token, tenant, key, index) for index in range(len(submissions) + 1)]


def derived(token: str, tenant: str, key: str, index: int) -> UUID:
    """The id that an Idempotency-Key means: the same request by the same caller is the same job, for as long as the
    job is kept. Nobody else's key gives the same."""
    digest = sha256(json.encode((token, tenant, key, index))).digest()
    return UUID(int=int.from_bytes(digest[:16]) & ~_VERSION_AND_VARIANT | 0x8 << 76 | 0x2 << 62)


def _locate(error: errors.JobError | errors.RequestInvalid, index: int | None) -> None:
    """Say in which job of the request the mistake is, and where."""
    field = getattr(error, "field", None) or next(
        (FIELDS[kind] for kind in type(error).__mro__ if kind in FIELDS), None
    )
    place = "" if index is None else f"jobs[{index}]"
    vars(error)["field"] = ".".join(part for part in (place, field) if part) or None


def _expect_different(wanted: Sequence[Wanted]) -> None:
    seen: set[UUID] = set()
    for index, each in enumerate(wanted):
        if each.spec.id in seen:
            raise errors.RequestInvalid("Two jobs of the batch have the same id.", f"jobs[{index}].id")
        seen.add(each.spec.id)


def _submit_op(
    engine: Engine,
    caller: Caller,
    wanted: Sequence[Wanted],
    limits: Mapping[str, int],
    beyond: UUID | None,
    keys: Encryption | None,
) -> Op[list[Enqueued]]:
    """Store the jobs. One that is stored already must be the same job, and be seen by whoever asks; else none is.
    `beyond` is the id that the next job of a longer request with the same key would have."""
    specs = [each.spec for each in wanted]
    plain = permissions.within(caller, engine, specs, store_within_limits(engine, specs, limits))
    named = [each for each in wanted if each.named]
    if not named:
        return plain

    def steps() -> Steps[list[Enqueued]]:
        ids, now = [each.spec.id for each in named], (yield from engine.time().start())
        stored = yield from engine.get([*ids, beyond] if beyond is not None else ids).start()
        if beyond is not None and stored.pop() is not None:
            raise errors.ReusedKey(ANOTHER_LENGTH)
        for each, job in zip(named, stored, strict=True):
            _expect_same(caller, each, job, now, keys)
        _expect_all_or_none(named, [job is None for job in stored])
        made = yield from plain.start()
        met = {job.id for job in stored if job is not None}
        late = [each for each, at in zip(wanted, made, strict=True) if _met_late(each, at, met)]
        if late:  # stored by somebody else while this one looked
            jobs = yield from engine.get([each.spec.id for each in late]).start()
            for each, job in zip(late, jobs, strict=True):
                _expect_same(caller, each, job, now, keys)
        _expect_all_or_none(
            wanted, [at.status == "inserted" for at in made]
        )  # as somebody else may have, just now
        return made

    return extended(plain, steps)


def _met_late(wanted: Wanted, at: Enqueued, met: set[UUID]) -> bool:
    return wanted.named and at.status == "existing" and at.id == wanted.spec.id and at.id not in met


def _expect_all_or_none(wanted: Sequence[Wanted], new: Sequence[bool]) -> None:
    """A request with a key that was stored before was stored as a whole. What a unique key has kept out never was."""
    whole = {
        is_new for each, is_new in zip(wanted, new, strict=True) if each.by_key and each.spec.key is None
    }
    if len(whole) > 1:
        raise errors.ReusedKey(ANOTHER_LENGTH)


def _expect_same(
    caller: Caller, wanted: Wanted, job: Job | None, now: Millis, keys: Encryption | None
) -> None:
    if job is None:
        return
    if not permissions.sees(caller, job.queue, job.tenant):
        raise errors.IdTaken("The id is that of another job: choose another one.")
    what = _difference(wanted, job, now, keys)
    if what is not None and wanted.by_key:
        raise errors.ReusedKey(f"The Idempotency-Key was used for a job with {what}.")
    if what is not None:
        raise errors.IdTaken(f"The id is that of a job with {what}: choose another one.")


def _difference(wanted: Wanted, job: Job, now: Millis, keys: Encryption | None) -> str | None:
    """What of a request is not so of the job that is stored; None if it may be the same request, sent again. What it
    leaves to the task is not compared, which another release may have changed, nor what the store does not keep."""
    spec, said = wanted.spec, wanted.said
    if job.task != spec.task:
        return "another task"
    if job.tenant != spec.tenant:
        return "another tenant"
    try:
        # To encrypt the same twice gives two texts.
        arguments = [opened(keys, each.payload, each, "payload") for each in (job, spec)]
    except errors.EncryptionKeyMissing:
        return "arguments that are encrypted, and that this server has no key for"
    if not _equal(*arguments):
        return "other arguments"
    if said.queue is not None and job.queue != spec.queue:
        return "another queue"
    if said.priority is not None and job.priority != spec.priority:
        return "another priority"
    timed = said.delay is not None or said.run_at is not None
    # A run that ended may have set another time, and so may an operator, who has let it run at once. (One who does so
    # in the very millisecond in which the job was stored cannot be told from a job without a time: then it differs.)
    created_at, run_at = to_millis(job.created_at), to_millis(job.run_at)
    unmoved = job.attempt == 0 and job.state is State.PENDING and not created_at < run_at <= now
    if timed and unmoved and run_at != spec.due(created_at):
        return "another delay or run_at"
    return None


def _equal(one: str, other: str) -> bool:
    try:
        return one == other or json.decode(one) == json.decode(other)
    except (DecodeError, RecursionError):
        return False


T = TypeVar("T")


MOST_IDS = 100  # that an action tells
ACT_WITHIN = 25.0  # seconds, after which an action ends where it is: a request may take thirty


@router.get("/jobs/{id}/attempts", **spec(gives=models.Attempts, problems=(404,)))
async def list_attempts(request: Request, caller: Reader, id: UUID) -> Response:
    """The runs of a job that did not end completed, the oldest first."""
    _, attempts = await _beside(the_service(request), caller, id, the_service(request).engine.attempts)
    return answer(models.attempts_of(attempts))


@router.get("/jobs/{id}/logs", **spec(gives=models.Lines, problems=(404,)))
async def list_log_lines(request: Request, caller: Reader, id: UUID) -> Response:
    """The lines that the runs of a job have written, the oldest first."""
    _, lines = await _beside(the_service(request), caller, id, the_service(request).engine.logs)
    return answer(models.lines_of(lines))


@router.get("/jobs/{id}/events", **spec(gives=models.JobEvents, problems=(404,)))
async def list_job_events(request: Request, caller: Reader, id: UUID) -> Response:
    """What has happened to a job, in order."""
    job, attempts = await _beside(the_service(request), caller, id, the_service(request).engine.attempts)
    return answer(models.events_of(job, attempts))


@router.post("/jobs/{id}/cancel", **spec(takes=models.Cancelling, gives=models.StateOf, problems=(404,)))
async def cancel_job(request: Request, caller: Admin, id: UUID) -> Response:
    """Cancel a job. One that runs is asked to stop, and stays processing until it has; or is cancelled by force."""
    service = the_service(request)
    wish = await body(request, models.Cancelling)
    job = await found(service, caller, id)
    [state] = await service.engine.arun(cancel_op(service.engine, [id], force=wish.force, actor=caller.actor))
    service.feed.stirred()
    return answer(models.StateOf(id, state or job.state))


@router.post("/jobs/{id}/retry", **spec(takes=models.Empty, gives=models.StateOf, problems=(404, 409)))
async def retry_job(request: Request, caller: Admin, id: UUID) -> Response:
    """Make a failed or cancelled job ready again, with all its retries."""
    service = the_service(request)
    await body(request, models.Empty)
    await found(service, caller, id)
    try:
        await JobHandle[Any](Audited(service.engine, caller.actor), id, 0, "existing", None).aretry()
    except errors.KeyTaken:
        if caller.restricted:  # the text names the holder, which may be none of the caller's business
            raise errors.KeyTaken(
                "The job cannot be retried: another one holds its unique key now."
            ) from None
        raise
    return answer(models.StateOf(id, (await found(service, caller, id)).state))


@router.post(
    "/jobs/{id}/rerun",
    **spec(takes=models.Empty, gives=models.Submitted, status=201, also=(200,), problems=(404, 409)),
)
async def rerun_job(
    request: Request, caller: Admin, id: UUID, idempotency_key: IdempotencyKey = None
) -> Response:
    """Make a new job like one that has ended. 200 if there is one already, by the Idempotency-Key."""
    service = the_service(request)
    await body(request, models.Empty)
    await found(service, caller, id)
    named = None
    if idempotency_key is not None:  # of this route and this job: a key has no line breaks
        named = derived(
            caller.token.id if caller.token is not None else "", "", f"rerun {id}\n{idempotency_key}", 0
        )
    made = await service.engine.arun(rerun_op(service.engine, id, actor=caller.actor, named=named))
    place = {"Location": f"{base_of(request)}/{made.id}"}
    told = models.Submitted(id=made.id, number=made.number, status=made.status)
    return answer(told, 201 if made.status == "inserted" else 200, place)


@router.post("/jobs/actions", **spec(takes=models.Action, gives=models.ActedOn, problems=(409,)))
async def act_on_jobs(request: Request, caller: Admin) -> Response:
    """Cancel, retry or delete all jobs that match; a dry run, unless it is told to be none. It ends after half a
    minute at most, and tells if there are more."""
    service = the_service(request)
    action = await body(request, models.Action)
    if action.action == "delete":
        permissions.unrestricted(caller)
    try:
        filters = permissions.narrowed(caller, parse_filter(action.filter))
        expect_searchable(service.app, filters)
        _expect_filters(filters)
        act = _ACTS[action.action]
        done = await bulk.acarry_out(
            service.engine, act(service, caller, action, filters, Patience(ACT_WITHIN))
        )
    except errors.OptionInvalid as error:
        raise errors.RequestInvalid(str(error), "filter") from None
    service.feed.stirred()
    return answer(done)


async def _beside(service: Service, caller: Caller, id: UUID, read: Callable[[UUID], Op[T]]) -> tuple[Job, T]:
    """A job that the caller may see, and what is kept beside it, as of one moment. Raises JobNotFound."""

    def steps() -> Steps[tuple[Job, T]]:
        [job] = yield from service.engine.get([id]).start()
        seen = permissions.visible(caller, job, id)
        return seen, (yield from read(id).start())

    return await service.engine.arun(Op(start=steps, mode="read"))


def _expect_filters(filters: Filters) -> None:
    """An empty filter is a slip more often than a wish."""
    if not filters:
        raise errors.OptionInvalid("Which jobs? Name at least one term; state:all is for every one.")


class Patience:
    """Hears of each part of an action that is done, and ends it when its time is over."""

    def __init__(self, seconds: float) -> None:
        self.parts = 0
        self._time = asyncio.get_running_loop().time
        self._until = self._time() + seconds

    def __call__(self, _done: int) -> bool:
        self.parts += 1
        return self._time() < self._until


def _cancel(
    service: Service, caller: Caller, action: models.Action, filters: Filters, patience: Patience
) -> bulk.BulkPlan[models.ActedOn]:
    engine = service.engine
    chosen = yield from bulk.choose_live_plan(
        engine, _bounded(filters), decoder=service.app.decoder, clock=service.app.now
    )
    jobs = [*chosen.cancelled, *chosen.asked]
    if _only_looks(action, len(jobs)):
        return _told(action, len(jobs), jobs)
    audited = _audited(engine, caller, filters)
    done = yield from bulk.cancel_plan(audited, chosen, force=action.force, after_batch=patience)
    return _told(action, len(jobs), jobs, len(done.cancelled) + len(done.asked), len(done.gone))


def _retry(
    service: Service, caller: Caller, action: models.Action, filters: Filters, patience: Patience
) -> bulk.BulkPlan[models.ActedOn]:
    engine = service.engine
    chosen = yield from bulk.choose_plan(
        engine, _bounded(filters), decoder=service.app.decoder, clock=service.app.now
    )
    jobs = [*chosen.jobs, *chosen.rivals]
    if _only_looks(action, len(jobs)):
        return _told(action, len(jobs), jobs, beside=len(chosen.quarantined))
    done = yield from bulk.retry_plan(_audited(engine, caller, filters), chosen, after_batch=patience)
    skipped = len(done.key_taken) + len(done.gone)
    return _told(action, len(jobs), jobs, len(done.retried), skipped, beside=len(done.quarantined))


def _delete(
    service: Service, caller: Caller, action: models.Action, filters: Filters, patience: Patience
) -> bulk.BulkPlan[models.ActedOn]:
    engine = service.engine
    page, most = bulk.page_to_clear(_bounded(filters), service.app.now)
    numbers = yield from bulk.choose_deletable_plan(engine, page, most)
    if _only_looks(action, len(numbers)):
        return _told(action, len(numbers))
    done = yield from bulk.delete_plan(_audited(engine, caller, filters), numbers, page, after_batch=patience)
    return _told(action, len(numbers), (), done, min(len(numbers), patience.parts * BATCH) - done)


_ACTS = {"cancel": _cancel, "retry": _retry, "delete": _delete}


def _bounded(filters: Filters) -> Filters:
    return {**filters, "limit": models.MOST_ACTED_ON}


def _audited(engine: Engine, caller: Caller, filters: Filters) -> Audited:
    return Audited(engine, caller.actor, written(filters))


def _only_looks(action: models.Action, matched: int) -> bool:
    """Whether nothing is to be changed. Raises ConfirmNeeded if more would be than the caller expects."""
    if action.dry_run:
        return True
    if action.confirm is None or action.confirm < matched:
        raise errors.ConfirmNeeded(
            f"{matched} jobs match: send confirm with that number, or a greater one, if all are meant.",
            matched,
        )
    return False


def _told(
    action: models.Action,
    matched: int,
    jobs: Sequence[JobHandle[Any]] = (),
    done: int = 0,
    skipped: int = 0,
    *,
    beside: int = 0,
) -> models.ActedOn:
    """What came of it; `beside` those that were matched are others that are skipped always."""
    ended_early = not action.dry_run and done + skipped < matched
    return models.ActedOn(
        action=action.action,
        dry_run=action.dry_run,
        matched=matched,
        done=done,
        skipped=skipped + beside,
        more=matched >= models.MOST_ACTED_ON or ended_early,
        ids=[each.id for each in jobs[:MOST_IDS]],
    )
