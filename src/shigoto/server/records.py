"""The record protocol: what our own engine asks of a store behind HTTP.

It is a plain route, read and written by msgspec as msgpack: it carries the work of remote workers, thousands of jobs in
a second, and is not part of the API for others. A token is asked for the verb's scope. One with queues or a tenant may
ask for some of the verbs only, and what it says there is brought within them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import APIRouter, Request, Response
from msgspec.structs import replace

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.engine.remote import protocol
from shigoto.model.errors import Forbidden, OptionInvalid, RequestInvalid, RequestNotFound
from shigoto.model.job import Job, JobFilter, JobSpec
from shigoto.model.secrets import is_encrypted, masked_payload
from shigoto.model.version import VERSION
from shigoto.model.worker import UNTOLD, Announcement, Death, Report, Settlement, Want
from shigoto.queues import expect_settings, store_within_limits, tick_within_limits
from shigoto.schedule.definition import masked as masked_definition
from shigoto.server import permissions
from shigoto.server.audit import Audited
from shigoto.server.auth import Caller, the_service
from shigoto.server.jobs import PAGE, PAGE_BYTES
from shigoto.server.operations import names_for
from shigoto.server.record_checks import (
    MOST_AT_ONCE,
    checked,
    expect_bounded,
    expect_introduced,
    expect_storable,
    expect_tickable,
)
from shigoto.server.routing import expect_type, looked

if TYPE_CHECKING:
    from shigoto.server.service import Service

router = APIRouter()

News = TypeVar("News", Settlement, Report, Death)

LOOKS = frozenset({"count", "history"})  # and `find`: there may be no index for what somebody wants to see
OF_A_WORKER = frozenset({"claim", "beat", "report", "settle", "leave", "bury"})
BY_OPERATORS = frozenset({"cancel", "retry", "delete", "configure", "tick", "remove_schedules"})
# What a worker hears that goes and is not known any more. If it is fenced, the store must not forget that, and whose it
# was is not known; what it held is a sweep's. Whatever else such a worker asks changes nothing: the store answers.
GOODBYES: Mapping[str, Any] = {"leave": 0, "bury": []}
# What may end jobs that somebody waits for.
ENDING = frozenset({"settle", "cancel", "bury", "sweep", "leave"})


async def ask(request: Request) -> Response:
    service, name = the_service(request), request.path_params["verb"]
    verb = protocol.VERBS.get(name)
    if verb is None:
        raise RequestNotFound("There is no such verb: the other side is of another release.")
    caller = await service.auth.caller(request)
    if not caller.may(*verb.scopes):
        raise Forbidden(f"The token has none of the scopes that this needs: {', '.join(verb.scopes)}.")
    if not verb.restricted:
        permissions.unrestricted(caller)
    expect_type(request, protocol.MEDIA_TYPE)
    if request.headers.get("Shigoto-Protocol") != str(protocol.PROTOCOL) and name != "hello":
        raise RequestInvalid(f"This server speaks protocol {protocol.PROTOCOL}.", "Shigoto-Protocol")
    args = protocol.decode_args(name, await request.body())
    expect_bounded(name, args)
    value = await _answered(service, caller, name, args)
    if name in ENDING:
        service.feed.stirred()
    return Response(protocol.encode(value), media_type=protocol.MEDIA_TYPE)


router.add_route("/engine/{verb}", ask, methods=["POST"], include_in_schema=False)


async def _answered(service: "Service", caller: Caller, name: str, args: tuple[Any, ...]) -> Any:
    engine = service.engine
    if name == "hello":
        return protocol.ServerHello(
            protocol=protocol.PROTOCOL, version=VERSION, engine=engine.capabilities.name
        )
    if name in OF_A_WORKER and not await service.remote_workers.owns(caller, args[0]) and name in GOODBYES:
        return GOODBYES[name]
    args = _confined(caller, name, args)
    if name in ("find", "count"):
        permissions.expect_no_secret(caller, service.app, args[0].task, [path for path, _ in args[0].args])
    if name == "announce":
        args = (await service.remote_workers.owned(caller, args[0]),)
    if name == "enqueue_many":
        stored = store_within_limits(engine, args[0], await service.limits())
        return await engine.arun(permissions.within(caller, engine, args[0], stored))
    if name == "find":
        return [_without_secrets(caller, job) for job in await _found(engine, args[0])]
    asked_of = Audited(engine, caller.actor) if name in BY_OPERATORS else engine
    op: Op[Any] = (
        tick_within_limits(asked_of, args[0]) if name == "tick" else protocol.asked(asked_of, name, args)
    )
    value = await (looked(engine, op) if name in LOOKS else engine.arun(op))
    if name == "configure":
        service.limits_changed()
    if name == "schedules" and not caller.may("admin"):
        value = [replace(each, definition=masked_definition(each.definition)) for each in value]
    if name == "get":
        value = [None if job is None else _without_secrets(caller, job) for job in value]
    return _shown(service, caller, name, value) if caller.restricted else value


def _shown(service: "Service", caller: Caller, name: str, value: Any) -> Any:
    """The value, as far as the caller may know of it. Raises Forbidden."""
    match name:
        case "get":
            return [
                job if job is not None and permissions.sees(caller, job.queue, job.tenant) else None
                for job in value
            ]
        case "stats" | "oldest":
            permissions.expect_no_tenant(caller)
            return {queue: told for queue, told in value.items() if permissions.allows_queue(caller, queue)}
        case "workers":
            permissions.expect_no_tenant(caller)
            return permissions.workers_for(caller, names_for(caller, service.app), value)
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


def _confined(caller: Caller, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, for nothing but what the caller may touch and what can be stored. Raises JobError, Forbidden."""
    match name:
        case "enqueue_many":
            return ([_submitted(caller, spec) for spec in args[0]],)
        case "claim":
            return args[0], [_wanted(caller, want) for want in args[1]]
        case "settle":
            # Whose counts change the store looks up: whoever has a token could name any queue.
            return args[0], [replace(_storable(said), queue=UNTOLD) for said in args[1]]
        case "report" | "bury":
            return args[0], [_storable(said) for said in args[1]]
        case "announce":
            announcement: Announcement = args[0]
            expect_introduced(announcement)
            return (replace(announcement, queues=permissions.claimable(caller, announcement.queues)),)
        case "configure":
            return (expect_settings(args[0]),)
        case "tick":
            return ([expect_tickable(change) for change in args[0]],)
        case _:
            return args


def _storable(said: News) -> News:
    expect_storable(said)
    return said


def _submitted(caller: Caller, spec: JobSpec) -> JobSpec:
    tenant = permissions.submittable(caller, spec.task, spec.queue, spec.tenant or None)
    if tenant != spec.tenant and is_encrypted(spec.payload):
        raise OptionInvalid(
            f"The token is for the tenant {tenant!r}, and the arguments are encrypted for nobody in particular: say"
            " using(tenant=…) where the job is enqueued."
        )
    return checked(spec if tenant == spec.tenant else replace(spec, tenant=tenant))


def _wanted(caller: Caller, want: Want) -> Want:
    """Fewer than it wants is what any worker may get."""
    if want.limit > MOST_AT_ONCE:
        want = replace(want, limit=MOST_AT_ONCE)
    return replace(want, queues=permissions.claimable(caller, want.queues)) if caller.restricted else want


def _without_secrets(caller: Caller, job: Job) -> Job:
    """The job, with its secrets for those alone who may do everything with it: a rerun needs them."""
    return job if caller.may("admin") else replace(job, payload=masked_payload(job.payload, job.meta))
