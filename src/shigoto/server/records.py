"""The record door: our own workers and command line ask for the verbs of the engine itself (`engine/verbs.py`).

It is a plain route, read and written by msgspec as msgpack: it carries the work of remote workers, thousands of jobs in
a second, and is not part of the API for others. A token is asked for the verb's scope. One with queues or a tenant may
ask for some of the verbs only, and what it says there is brought within them.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

from fastapi import APIRouter, Request, Response
from msgspec.structs import replace

from shigoto.auditing import Audited
from shigoto.engine.http.driver import MOST_IDS, MOST_JOBS
from shigoto.engine.protocol import Engine
from shigoto.engine.verbs import (
    MEDIA_TYPE,
    PROTOCOL,
    VERBS,
    Hello,
    asked,
    decode_args,
    encode,
)
from shigoto.filters import MAX_PAGE
from shigoto.fullness import storing
from shigoto.model.errors import Forbidden, RequestInvalid, RequestNotFound
from shigoto.model.job import Job, JobFilter, JobSpec
from shigoto.model.outcome import Settlement
from shigoto.model.version import VERSION
from shigoto.model.worker import Announcement, SweepOrder, Want, WorkerRecord
from shigoto.server.auth import Caller, the_service
from shigoto.server.endpoint import expect_type, looked
from shigoto.server.jobs import PAGE, PAGE_BYTES
from shigoto.server.roster import expect_secret, secret_in
from shigoto.server.scope import (
    allows_queue,
    claimable,
    expect_no_tenant,
    own_queues,
    sees,
    submittable,
    unrestricted,
    within,
)
from shigoto.server.specs import checked, expect_introduced, expect_storable

if TYPE_CHECKING:
    from shigoto.server.service import Service

router = APIRouter()

MOST_AT_ONCE = MOST_JOBS  # of whatever is listed or asked for
MOST_HELD = 100_000  # leases of one worker
MOST: Mapping[str, int] = {"ids of get": MOST_IDS, "held of beat": MOST_HELD}

LOOKS = frozenset({"count", "history"})  # and `find`: there may be no index for what somebody wants to see
OF_A_WORKER = frozenset({"claim", "beat", "report", "settle", "leave", "bury"})
BY_OPERATORS = frozenset({"cancel", "retry", "delete", "configure", "tick", "remove_schedules"})
# What a worker hears that goes and is not known any more. If it is fenced, the store must not forget that, and whose it
# was is not known; what it held is a sweep's. Whatever else such a worker asks changes nothing: the store answers.
GOODBYES: Mapping[str, Any] = {"leave": 0, "bury": []}
ENDING = frozenset(
    {"settle", "cancel", "bury", "sweep", "leave"}
)  # what may end jobs that somebody waits for


async def ask(request: Request) -> Response:
    """One verb."""
    service, name = the_service(request), request.path_params["verb"]
    verb = VERBS.get(name)
    if verb is None:
        raise RequestNotFound("There is no such verb: the other side is of another release.")
    caller = await service.auth.caller(request)
    if not caller.may(*verb.scopes):
        raise Forbidden(f"The token has none of the scopes that this needs: {', '.join(verb.scopes)}.")
    if not verb.restricted:
        unrestricted(caller)
    expect_type(request, MEDIA_TYPE)
    if request.headers.get("Shigoto-Protocol") != str(PROTOCOL) and name != "hello":
        raise RequestInvalid(f"This server speaks protocol {PROTOCOL}.", "Shigoto-Protocol")
    args = decode_args(name, await request.body())
    _expect_bounded(name, args)
    if name in OF_A_WORKER or name == "announce":
        expect_secret(caller, args[0].id if name == "announce" else args[0], secret_in(request))
    value = await _answered(service, caller, name, args)
    if name in ENDING:
        service.feed.stirred()
    return Response(encode(value), media_type=MEDIA_TYPE)


router.add_route("/engine/{verb}", ask, methods=["POST"], include_in_schema=False)


async def _answered(service: "Service", caller: Caller, name: str, args: tuple[Any, ...]) -> Any:
    engine = service.engine
    if name == "hello":
        return Hello(protocol=PROTOCOL, version=VERSION, engine=engine.capabilities.name)
    if name in OF_A_WORKER and not await service.roster.owns(caller, args[0]) and name in GOODBYES:
        return GOODBYES[name]
    args = _confined(caller, name, args)
    if name == "announce":
        args = (await service.roster.owned(caller, args[0]),)
    if name == "enqueue_many":
        stored = storing(engine, args[0], await service.limits())
        return await engine.arun(within(caller, engine, args[0], stored))
    if name == "find":
        return await _found(engine, args[0])
    asked_of = Audited(engine, caller.actor) if name in BY_OPERATORS else engine
    op = asked(asked_of, name, args)
    value = await (looked(engine, op) if name in LOOKS else engine.arun(op))
    return _shown(caller, name, value) if caller.restricted else value


def _shown(caller: Caller, name: str, value: Any) -> Any:
    """The value, as far as the caller may know of it. Raises Forbidden."""
    match name:
        case "get":
            return [_seen(caller, job) for job in value]
        case "stats":
            expect_no_tenant(caller)
            return {queue: counts for queue, counts in value.items() if allows_queue(caller, queue)}
        case "workers":
            expect_no_tenant(caller)
            return [met for met in (_met(caller, worker) for worker in value) if met is not None]
        case _:
            return value


async def _found(engine: Engine, wanted: JobFilter) -> list[Job]:
    """A page of jobs, read in parts: they come with their payloads. Raises RequestInvalid if that is too much."""
    jobs: list[Job] = []
    size = 0
    while len(jobs) < wanted.limit:
        before = jobs[-1].number if jobs else wanted.before
        part = replace(wanted, before=before, limit=min(PAGE, wanted.limit - len(jobs)))
        read = await looked(engine, engine.find(part))
        jobs += read
        size += sum(len(job.payload) + len(job.result or "") for job in read)
        if len(read) < part.limit:
            break
        if size > PAGE_BYTES and len(jobs) < wanted.limit:
            raise RequestInvalid("The jobs are too large for one answer: ask for fewer.", "limit")
    return jobs


def _expect_bounded(name: str, args: tuple[Any, ...]) -> None:
    """Raise RequestInvalid for more than one request should ask for."""
    for what, arg in zip(VERBS[name].names, args, strict=True):
        most, count = MOST.get(f"{what} of {name}", MOST_AT_ONCE), 0
        match arg:
            case JobFilter():
                most, count = MAX_PAGE, max(0, arg.limit)  # fewer than none are none
            case SweepOrder():
                count = max(arg.batch, len(arg.fence))
            case int() if what == "limit":
                count = arg
            case list() | frozenset():
                count = len(cast("Collection[object]", arg))
            case _:
                pass
        if not 0 <= count <= most:
            raise RequestInvalid(f"{what}: {count:,} is not allowed, but at most {most:,} at once.", what)


def _confined(caller: Caller, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, for nothing but what the caller may touch and what can be stored. Raises JobError, Forbidden."""
    match name:
        case "enqueue_many":
            return ([_submitted(caller, spec) for spec in args[0]],)
        case "claim":
            return args[0], [_wanted(caller, want) for want in args[1]]
        case "settle" | "report" | "bury":
            for said in args[1]:
                expect_storable(said)
                if isinstance(said, Settlement) and not allows_queue(caller, said.queue):
                    raise Forbidden("This token is for other queues.")
            return args
        case "announce":
            announcement: Announcement = args[0]
            expect_introduced(announcement)
            return (replace(announcement, queues=claimable(caller, announcement.queues)),)
        case _:
            return args


def _submitted(caller: Caller, spec: JobSpec) -> JobSpec:
    tenant = submittable(caller, spec.queue, spec.tenant or None)
    return checked(spec if tenant == spec.tenant else replace(spec, tenant=tenant))


def _wanted(caller: Caller, want: Want) -> Want:
    """Fewer than it wants is what any worker may get."""
    if want.limit > MOST_AT_ONCE:
        want = replace(want, limit=MOST_AT_ONCE)
    return replace(want, queues=claimable(caller, want.queues)) if caller.restricted else want


def _seen(caller: Caller, job: Job | None) -> Job | None:
    return job if job is not None and sees(caller, job.queue, job.tenant) else None


def _met(caller: Caller, worker: WorkerRecord) -> WorkerRecord | None:
    """The worker as the caller may know it; None if they have no queue in common."""
    if worker.queues is None:
        return worker
    queues = own_queues(caller, worker.queues)
    return replace(worker, queues=tuple(queues)) if queues else None
