"""Routes of schedules: what they are, what became of their ticks, and changing them.

Whoever may change them decides which jobs are made, so tokens for some queues or one tenant have no part in it.
"""

from datetime import datetime
from typing import Annotated, Any, TypeVar, cast
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, ValidationError, convert

from shigoto.engine.op import Op, Steps, extended
from shigoto.engine.protocol import Engine, Relay
from shigoto.enqueue import call_by_name
from shigoto.model.errors import RequestInvalid, UnknownTask, nearest
from shigoto.model.schedule import ScheduleRecord, Status
from shigoto.model.time import Moment
from shigoto.options import CallOptions, CatchUp, Fold, Gap, Overlap, ScheduleOptions, WhenFailed
from shigoto.schedule import manage
from shigoto.schedule.manage import Schedules
from shigoto.server.audit import Audited
from shigoto.server.auth import Admin, Caller, Reader, the_service
from shigoto.server.job_models import alike
from shigoto.server.permissions import unrestricted
from shigoto.server.routing import answer, body, nothing, spec

router = APIRouter()

T = TypeVar("T")

LONGEST = 10**9  # seconds
Length = Annotated[float, Meta(ge=0, le=LONGEST)]
Interval = Annotated[float, Meta(ge=1, le=LONGEST)]
Tag = Annotated[str, Meta(min_length=1, max_length=100)]
ScheduleName = Annotated[str, Path(description="The name of the schedule.", max_length=100)]
JOB = ("queue", "priority", "tenant", "key", "retries", "tags")
PLAN = (
    "cron", "every", "at", "tz", "catch_up", "catch_up_most", "catch_up_within", "overlap", "jitter", "until", "gap",
    "fold", "when_failed",
)  # fmt: skip


class ScheduleView(Struct, frozen=True, kw_only=True):
    """A schedule. Of one that is declared in code, `task` and `payload` may be for that code to say: null."""

    name: str
    when: str
    tz: str
    task: str | None
    queue: str | None
    payload: Raw | None
    status: Status
    next_at: Moment | None
    origin: str | None
    catch_up: CatchUp
    catch_up_most: int
    catch_up_within: float | None
    overlap: Overlap
    jitter: float
    until: Moment | None
    last_job: UUID | None
    errors: int
    error: str | None
    counts: dict[str, int]
    created_at: Moment
    when_failed: WhenFailed


class ScheduleList(Struct, frozen=True, kw_only=True):
    """Every schedule of the store, by name."""

    schedules: list[ScheduleView]


class NewSchedule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a job is made again and again, or once, and which. One of `cron`, `every` and `at` says when."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    task: Annotated[str, Meta(min_length=1, max_length=100)]
    payload: dict[str, Any] = {}
    cron: str | UnsetType = UNSET
    every: Interval | UnsetType = UNSET
    at: Moment | UnsetType = UNSET
    tz: str | UnsetType = UNSET
    catch_up: CatchUp | UnsetType = UNSET
    catch_up_most: Annotated[int, Meta(ge=1, le=10_000)] | UnsetType = UNSET
    catch_up_within: Length | UnsetType = UNSET
    overlap: Overlap | UnsetType = UNSET
    jitter: Length | UnsetType = UNSET
    until: Moment | UnsetType = UNSET
    gap: Gap | UnsetType = UNSET
    fold: Fold | UnsetType = UNSET
    when_failed: WhenFailed | UnsetType = UNSET
    paused: bool = False
    queue: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    retries: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    tags: list[Tag] | UnsetType = UNSET
    allow_unknown: bool = False


class TickView(Struct, frozen=True, kw_only=True):
    """What became of a tick; one that did not fire may stand for `count` of them, up to `until`."""

    at: Moment
    outcome: str
    decided_at: Moment
    job: UUID | None
    until: Moment | None
    count: int


class TickPage(Struct, frozen=True, kw_only=True):
    """The newest first; `next` is the `before` of the next page, null if there is none."""

    ticks: list[TickView]
    next: Moment | None


class RunNow(Struct, frozen=True, kw_only=True):
    """The job that was stored."""

    id: UUID


@router.get("/schedules", **spec(gives=ScheduleList))
async def list_schedules(request: Request, caller: Reader) -> Response:
    """Every schedule, by name."""
    unrestricted(caller)
    found = await the_service(request).app.schedules.aall()
    return answer(ScheduleList(schedules=[_view(each) for each in found]))


@router.get("/schedules/{name}", **spec(gives=ScheduleView, problems=(404,)))
async def get_schedule(request: Request, caller: Reader, name: ScheduleName) -> Response:
    """One schedule."""
    unrestricted(caller)
    return answer(_view(await the_service(request).app.schedules.aget(name)))


@router.get("/schedules/{name}/history", **spec(gives=TickPage, problems=(404,)))
async def list_ticks(
    request: Request,
    caller: Reader,
    name: ScheduleName,
    before: Annotated[
        str | None,
        Query(description="Those earlier than this instant.", json_schema_extra={"format": "date-time"}),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> Response:
    """What became of its ticks."""
    unrestricted(caller)
    until = None if before is None else _instant("before", before)
    ticks = await the_service(request).app.schedules.ahistory(name, before=until, limit=limit)
    return answer(
        TickPage(
            ticks=[alike(TickView, each) for each in ticks],
            next=ticks[-1].at if len(ticks) == limit else None,
        )
    )


@router.post("/schedules", **spec(takes=NewSchedule, gives=ScheduleView, status=201, problems=(409,)))
async def add_schedule(request: Request, caller: Admin) -> Response:
    """Have a job made again and again, or once: every tick is one job."""
    unrestricted(caller)
    service = the_service(request)
    new = await body(request, NewSchedule)
    if not new.allow_unknown and service.app.resolve(new.task) is None:
        known = await service.known_tasks()
        if new.task not in known:
            raise UnknownTask(
                f"Neither the served app nor any live worker has the task {new.task!r}.{nearest(new.task, known)}"
                " Start a worker that has it, or say allow_unknown."
            )
    call = call_by_name(service.app, new.task, new.payload, cast("CallOptions", _said(new, JOB)))

    noting = Audited(service.engine, caller.actor)
    schedules = Schedules(service.app, _Pausing(noting, new.name) if new.paused else noting)
    await schedules.aadd(new.name, call, **cast("ScheduleOptions", _said(new, PLAN)))
    added = _view(await service.app.schedules.aget(new.name))
    return answer(added, 201, {"Location": f"{request.url.path}/{new.name}"})


@router.delete("/schedules/{name}", **spec(status=204, problems=(404, 409)))
async def remove_schedule(request: Request, caller: Admin, name: ScheduleName) -> Response:
    """Forget a schedule with its history; its jobs stay. One that is declared in code is removed there."""
    await _audited(request, caller).aremove(name)
    return nothing()


@router.post("/schedules/{name}/pause", **spec(gives=ScheduleView, problems=(404,)))
async def pause_schedule(request: Request, caller: Admin, name: ScheduleName) -> Response:
    """Suppress its ticks until it is resumed."""
    return answer(_view(await _audited(request, caller).apause(name)))


@router.post("/schedules/{name}/resume", **spec(gives=ScheduleView, problems=(404,)))
async def resume_schedule(request: Request, caller: Admin, name: ScheduleName) -> Response:
    """Let it fire again from now on, also after it has failed."""
    return answer(_view(await _audited(request, caller).aresume(name)))


@router.post("/schedules/{name}/run", **spec(gives=RunNow, status=201, problems=(404,)))
async def run_schedule(request: Request, caller: Admin, name: ScheduleName) -> Response:
    """Store a job of it now, beside its ticks."""
    return answer(RunNow(id=await _audited(request, caller).arun_now(name)), 201)


class _Pausing(Relay):
    """Whatever is done through it, one schedule is paused, too, in the same transaction."""

    def __init__(self, engine: Engine, name: str) -> None:
        super().__init__(engine)
        self._name = name

    async def arun(self, op: Op[T]) -> T:
        def steps() -> Steps[T]:
            value = yield from op.start()
            yield from manage.alter_op(self.engine, self._name, manage.paused).start()
            return value

        return await self.engine.arun(extended(op, steps))


def _audited(request: Request, caller: Caller) -> Schedules:
    """The schedules, for somebody whose actions are noted."""
    unrestricted(caller)
    service = the_service(request)
    return Schedules(service.app, Audited(service.engine, caller.actor))


def _said(new: NewSchedule, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(new, name) for name in names if getattr(new, name) is not UNSET}


def _view(told: ScheduleRecord) -> ScheduleView:
    within = told.catch_up_within
    return alike(
        ScheduleView,
        told,
        payload=None if told.payload is None else Raw(told.payload.encode()),
        catch_up_within=None if within is None else within.total_seconds(),
        jitter=told.jitter.total_seconds(),
    )


def _instant(field: str, text: str) -> datetime:
    try:
        return convert(text, Moment)
    except ValidationError:
        raise RequestInvalid(
            f"{field} must be a time such as 2030-01-31T09:00:00Z, with its zone.", field
        ) from None
