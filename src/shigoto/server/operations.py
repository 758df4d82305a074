"""Routes of operations: queues, workers, counts, tasks and the audit."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, structs

from shigoto.app import Shigoto
from shigoto.model.errors import RequestNotFound, nearest
from shigoto.model.job import Counts
from shigoto.model.service import AuditEntry
from shigoto.model.time import Moment, to_datetime
from shigoto.model.worker import WorkerRecord
from shigoto.options import check_name
from shigoto.options import duration as milliseconds_of
from shigoto.queues import MOST_PENDING, Queue, list_op
from shigoto.server.audit import change_queue_op
from shigoto.server.auth import Admin, Asker, Caller, Reader, the_service
from shigoto.server.job_models import alike
from shigoto.server.permissions import allows_queue, expect_no_tenant, expect_queue, unrestricted, workers_for
from shigoto.server.routing import answer, body, spec
from shigoto.server.task_catalog import AnyTask, BrokenTask, TaskRecord, record, record_in_list, schedules_of

router = APIRouter()

LONGEST = 10**9  # seconds

QueueName = Annotated[str, Path(description="The name of the queue.", max_length=100)]
Length = Annotated[float, Meta(ge=0, le=LONGEST)]


class QueueView(Struct, frozen=True, kw_only=True):
    """One queue: what it holds, and what is set for it; null is the default. Times are in seconds."""

    name: str
    paused: bool
    max_pending: int | None
    keep_completed_for: float | None
    keep_failed_for: float | None
    keep_cancelled_for: float | None
    counts: Counts


class QueueList(Struct, frozen=True, kw_only=True):
    """Every queue that has had a job or a setting, by name."""

    queues: list[QueueView]


class QueueChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be otherwise; null is the default, and what is left out stays as it is."""

    paused: bool | UnsetType = UNSET
    max_pending: Annotated[int, Meta(ge=1, le=MOST_PENDING)] | UnsetType | None = UNSET
    keep_completed_for: Length | UnsetType | None = UNSET
    keep_failed_for: Length | UnsetType | None = UNSET
    keep_cancelled_for: Length | UnsetType | None = UNSET


class WorkerList(Struct, frozen=True, kw_only=True):
    """The workers that are registered, with those that have just been lost, until a sweep fences them. To a token for
    some queues each shows only its part: the queues that both have, and of its tasks those of these queues and those
    that workers of the token have; but `processing` is of all."""

    workers: list[WorkerRecord]


class Stats(Struct, frozen=True, kw_only=True):
    """How many jobs there are by state, of each queue and of all."""

    queues: dict[str, Counts]
    total: Counts


class TaskList(Struct, frozen=True, kw_only=True):
    """The tasks of the served app; those whose annotations make no sense stand apart."""

    tasks: list[TaskRecord]
    broken: list[BrokenTask]


class AuditView(Struct, frozen=True, kw_only=True):
    """What somebody has done."""

    number: int
    at: Moment
    actor: str
    action: str
    target: str
    before: Raw | None
    after: Raw | None


class AuditPage(Struct, frozen=True, kw_only=True):
    """The newest first; `next` is the `before` of the next page, null if there is none."""

    entries: list[AuditView]
    next: int | None


@router.get("/queues", **spec(gives=QueueList, problems=(403,)))
async def list_queues(request: Request, caller: Reader) -> Response:
    """Every queue that has had a job or a setting."""
    return answer(QueueList(queues=await _queues(request, caller)))


@router.get("/queues/{name}", **spec(gives=QueueView, problems=(403, 404)))
async def get_queue(request: Request, caller: Reader, name: QueueName) -> Response:
    """One queue: what it holds, and what is set for it."""
    return answer(await _queue(request, caller, name))


@router.patch("/queues/{name}", **spec(takes=QueueChange, gives=QueueView, problems=(403, 422)))
async def change_queue(request: Request, caller: Admin, name: QueueName) -> Response:
    """Set what is named, and leave the rest.

    `max_pending` is how many jobs may be pending before a submission is refused with 429. Jobs that have ended are
    deleted after `keep_…_for` seconds.
    """
    change = await body(request, QueueChange)
    fields = {key: value for key, value in structs.asdict(change).items() if value is not UNSET}
    return await _change(request, caller, name, fields)


@router.post("/queues/{name}/pause", **spec(gives=QueueView, problems=(403, 422)))
async def pause_queue(request: Request, caller: Admin, name: QueueName) -> Response:
    """Let no worker start jobs of the queue; those that run go on."""
    return await _change(request, caller, name, {"paused": True})


@router.post("/queues/{name}/resume", **spec(gives=QueueView, problems=(403, 422)))
async def resume_queue(request: Request, caller: Admin, name: QueueName) -> Response:
    """Let workers start jobs of the queue again."""
    return await _change(request, caller, name, {"paused": False})


@router.get("/workers", **spec(gives=WorkerList, problems=(403,)))
async def list_workers(request: Request, caller: Reader) -> Response:
    """The workers, and until when their leases last."""
    expect_no_tenant(caller)
    service = the_service(request)
    workers = await service.engine.arun(service.engine.workers())
    return answer(WorkerList(workers=workers_for(caller, names_for(caller, service.app), workers)))


@router.get("/stats", **spec(gives=Stats, problems=(403,)))
async def get_stats(request: Request, caller: Reader) -> Response:
    """How many jobs there are, by queue and state."""
    expect_no_tenant(caller)
    engine = the_service(request).engine
    stored = await engine.arun(engine.stats())
    counts = {name: each for name, each in stored.items() if allows_queue(caller, name)}
    names = Counts.__struct_fields__
    total = Counts(**{name: sum(getattr(each, name) for each in counts.values()) for name in names})
    return answer(Stats(queues=counts, total=total))


@router.get("/tasks", **spec(gives=TaskList))
async def list_tasks(request: Request, caller: Asker) -> Response:
    """The tasks of the served app, with the JSON Schemas of what they take and return."""
    app = the_service(request).app
    found = [record_in_list(task, schedules_of(app, task)) for task in tasks_for(caller, app)]
    return answer(
        TaskList(
            tasks=[_task_for(caller, each) for each in found if isinstance(each, TaskRecord)],
            broken=[each for each in found if isinstance(each, BrokenTask)],
        )
    )


@router.get("/tasks/{name}", **spec(gives=TaskRecord, problems=(404,)))
async def get_task(
    request: Request, caller: Asker, name: Annotated[str, Path(description="Its name, or an alias.")]
) -> Response:
    """One task, with the JSON Schemas of what it takes and returns."""
    app = the_service(request).app
    task = app.resolve(name)
    if task is None or not allows_queue(caller, task.options.queue):
        known = names_for(caller, app)
        hint = nearest(name, known) or f" It has: {', '.join(known) or 'none'}."
        raise RequestNotFound(f"The app has no task {name!r}.{hint}")
    return answer(_task_for(caller, record(task, schedules_of(app, task))))


@router.get("/audit", **spec(gives=AuditPage, problems=(403,)))
async def list_audit(
    request: Request,
    caller: Admin,
    before: Annotated[
        int | None, Query(ge=0, le=2**63 - 1, description="Those with a smaller number.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
    target: Annotated[
        str | None, Query(max_length=1000, description="Of this job, queue, schedule or token only.")
    ] = None,
) -> Response:
    """What was done by whom, the newest first."""
    unrestricted(caller)
    engine = the_service(request).engine
    found = await engine.arun(engine.registry.noted(before=before, limit=limit, target=target))
    entries = [_shown(each) for each in found]
    return answer(AuditPage(entries=entries, next=found[-1].number if len(found) == limit else None))


async def _queues(request: Request, caller: Caller) -> list[QueueView]:
    expect_no_tenant(caller)
    engine = the_service(request).engine
    found = await engine.arun(list_op(engine))
    return [_view(each) for each in found if allows_queue(caller, each.name)]


async def _queue(request: Request, caller: Caller, name: str) -> QueueView:
    for each in await _queues(request, caller):
        if each.name == name:
            return each
    raise RequestNotFound("There is no such queue: it never had a job or a setting.")


async def _change(request: Request, caller: Caller, name: str, fields: Mapping[str, Any]) -> Response:
    expect_no_tenant(caller)
    expect_queue(caller, name)
    queue = check_name(name, "The queue")
    service = the_service(request)
    engine = service.engine
    stored = {
        field: milliseconds_of(value, field) if field.startswith("keep_") and value is not None else value
        for field, value in fields.items()
    }
    await engine.arun(change_queue_op(engine, queue, actor=caller.actor, **stored))
    service.limits_changed()
    return answer(await _queue(request, caller, queue))


def tasks_for(caller: Caller, app: Shigoto) -> list[AnyTask]:
    """The tasks of the app that the caller may know of: those of its queues."""
    return [task for task in app.tasks.values() if allows_queue(caller, task.options.queue)]


def names_for(caller: Caller, app: Shigoto) -> list[str]:
    """The same by all names that they have."""
    return [name for task in tasks_for(caller, app) for name in (task.name, *task.aliases)]


def _task_for(caller: Caller, task: TaskRecord) -> TaskRecord:
    """Schedules are for tokens without queues and without a tenant."""
    return structs.replace(task, schedules=[]) if caller.restricted else task


def _view(queue: Queue) -> QueueView:
    kept = ("keep_completed_for", "keep_failed_for", "keep_cancelled_for")
    return alike(QueueView, queue, **{name: _seconds(getattr(queue, name)) for name in kept})


def _shown(entry: AuditEntry) -> AuditView:
    states = {"before": entry.before, "after": entry.after}
    told = {name: None if text is None else Raw(text.encode()) for name, text in states.items()}
    return alike(AuditView, entry, at=to_datetime(entry.at), **told)


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()
