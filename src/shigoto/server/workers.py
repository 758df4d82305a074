"""Routes of workers in any language: register, claim, beat, report, settle, leave.

The leases and promises are those of workers at the store; what a worker elsewhere need not know, such as when to try
again, is decided here."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from msgspec import Raw
from msgspec.structs import replace

from shigoto.codec import encode_json
from shigoto.context import MAX_CHECKPOINT
from shigoto.encryption import Box, Redaction, opened
from shigoto.model import errors, secrets
from shigoto.model.ids import uuid7
from shigoto.model.job import Job, JobFilter, Lease, State
from shigoto.model.text import storable
from shigoto.model.time import to_datetime
from shigoto.model.worker import Announcement, LogTail, Orders, Report, Settlement, Verdict, Want
from shigoto.observe.events import JobFailedEvent
from shigoto.options import MAX_DEPTH, MAX_PAYLOAD
from shigoto.retry import Retry
from shigoto.server import worker_models as models
from shigoto.server.auth import Caller, WorkerCaller, allowed, the_service
from shigoto.server.job_models import alike, as_json
from shigoto.server.long_poll import leases_for
from shigoto.server.permissions import allows_queue, claimable
from shigoto.server.remote_workers import RemoteWorker, fenced
from shigoto.server.request_limits import LONGEST_WAIT
from shigoto.server.routing import answer, body, nothing, spec, unless_gone

if TYPE_CHECKING:
    from shigoto.server.service import Service

router = APIRouter(tags=["workers"])

MOST_CANCELS = 1_000


@router.post(
    "/workers",
    **spec(takes=models.WorkerRegistration, gives=models.WorkerRegistered, status=201, problems=(410,)),
)
async def register_worker(request: Request, caller: WorkerCaller) -> Response:
    """Register a worker. Its lease begins now; it must claim or beat before that ends."""
    service, said = the_service(request), await body(request, models.WorkerRegistration)
    worker = said.id or uuid7()
    announcement = Announcement(
        id=worker,
        name=storable("name", said.name),
        tasks=said.tasks,
        queues=claimable(caller, said.queues),
        slots=said.slots,
        version=storable("version", said.version),
        lease=round(said.lease * 1000),
        host=storable("host", said.host),
        pid=said.pid,
        isolates=said.isolates,
    )
    await service.remote_workers.register(caller, announcement, new=said.id is None)
    registered = models.WorkerRegistered(worker=worker, lease=said.lease, beat_every=round(said.lease / 3, 3))
    return answer(registered, 201)


@router.post(
    "/workers/{worker}/claim", **spec(takes=models.ClaimRequest, gives=models.ClaimAnswer, problems=(410,))
)
async def claim_jobs(request: Request, worker: UUID, caller: WorkerCaller) -> Response:
    """Take jobs, and wait for some if there are none. It is a sign of life, too: who only waits need not beat, if it
    says what it has `held` since."""
    service, said = the_service(request), await body(request, models.ClaimRequest)
    await service.remote_workers.expect(caller, worker)
    await _beaten(service, worker, said.held)
    queues = None if said.queues is None else claimable(caller, said.queues)
    remote = await _registered(service, worker, said)
    want = Want(
        tasks=said.tasks or remote.tasks,
        queues=queues or claimable(caller, remote.queues),
        limit=said.limit,
        alone=await service.remote_workers.alone(remote),
    )
    longest = (remote.lease or models.SHORTEST_LEASE) / 3
    leases = await leases_for(request, service, worker, want, min(said.wait, longest))
    return answer(models.ClaimAnswer([_item(lease) for lease in leases]))


@router.post(
    "/workers/{worker}/beat", **spec(takes=models.BeatRequest, gives=models.BeatAnswer, problems=(410,))
)
async def beat(request: Request, worker: UUID, caller: WorkerCaller) -> Response:
    """Show a sign of life, and hear which jobs to stop."""
    service, said = the_service(request), await body(request, models.BeatRequest)
    await service.remote_workers.expect(caller, worker)
    orders = await _beaten(service, worker, said.held)
    ids = await _ids(service, worker, said.held or (), wanted=bool(orders.cancels))
    return answer(
        models.BeatAnswer(
            cancels=[
                models.LeaseNotice(id=ids.get(number), number=number, token=t) for number, t in orders.cancels
            ],
            lost=[
                models.LeaseNotice(id=ids.get(number), number=number, token=t) for number, t in orders.lost
            ],
            released=orders.released,
        )
    )


@router.post(
    "/workers/{worker}/jobs/{id}/progress",
    **spec(takes=models.ProgressReport, status=204, problems=(404, 409, 410)),
)
async def report_progress(request: Request, worker: UUID, id: UUID, caller: WorkerCaller) -> Response:
    """Say how far a job is, and write lines of its log; number them, or say it once, and one after the other."""
    service, said = the_service(request), await body(request, models.ProgressReport)
    job = await _job(service, caller, worker, id)
    redaction = _redaction_of(service, job)
    said = replace(said, log=tuple(replace(line, text=redaction.line(line.text)) for line in said.log))
    news = Report(
        number=job.number,
        token=said.token,
        progress=said.progress,
        progress_text=None if said.text is None else redaction.said("progress", storable("text", said.text)),
        log=await _tail(service, id, said) if said.log else None,
    )
    return await _reported(service, worker, news, id)


@router.post(
    "/workers/{worker}/jobs/{id}/checkpoint",
    **spec(takes=models.CheckpointReport, status=204, problems=(404, 409, 410)),
)
async def store_checkpoint(request: Request, worker: UUID, id: UUID, caller: WorkerCaller) -> Response:
    """Store where the next run can go on."""
    service, said = the_service(request), await body(request, models.CheckpointReport)
    job = await _job(service, caller, worker, id)
    text = encode_json(said.checkpoint, what="The checkpoint", max_bytes=MAX_CHECKPOINT, max_depth=MAX_DEPTH)
    if not secrets.is_encrypted(text):  # a worker that has the key may have done it
        text = _redaction_of(service, job).checkpoint(text, MAX_CHECKPOINT)
    return await _reported(service, worker, Report(number=job.number, token=said.token, checkpoint=text), id)


@router.post(
    "/workers/{worker}/jobs/{id}/settle",
    **spec(takes=models.SettleRequest, gives=models.SettleAnswer, problems=(404, 409, 410)),
)
async def settle_job(request: Request, worker: UUID, id: UUID, caller: WorkerCaller) -> Response:
    """Say how a run ended. To say it again does no harm."""
    service, said = the_service(request), await body(request, models.SettleRequest)
    job = await _job(service, caller, worker, id)
    [settled] = await _settled(service, worker, [(job, said)])
    if settled.verdict is Verdict.LOST:
        raise _lost(id)
    if settled.verdict is Verdict.BUSY:
        raise errors.StoreBusy(f"The job {id} is locked by somebody else.")
    return answer(settled)


@router.post(
    "/workers/{worker}/settle",
    **spec(takes=models.SettleBatch, gives=models.SettleBatchAnswer, problems=(410,)),
)
async def settle_jobs(request: Request, worker: UUID, caller: WorkerCaller) -> Response:
    """Say how several runs ended."""
    service, said = the_service(request), await body(request, models.SettleBatch)
    await service.remote_workers.expect(caller, worker)
    jobs = await service.engine.arun(service.engine.get([item.id for item in said.settlements]))
    known = [
        (job, item)
        for job, item in zip(jobs, said.settlements, strict=True)
        if job is not None and allows_queue(caller, job.queue)
    ]
    verdicts = iter(await _settled(service, worker, known))
    asked = {id(item) for _, item in known}
    return answer(models.SettleBatchAnswer([_named(item, verdicts, asked) for item in said.settlements]))


@router.delete("/workers/{worker}", **spec(gives=models.LeaveAnswer, problems=(410,)))
async def leave(request: Request, worker: UUID, caller: WorkerCaller) -> Response:
    """Forget a worker; what it still holds others can have at once."""
    service = the_service(request)
    await service.remote_workers.expect(caller, worker)
    released = await service.engine.arun(service.engine.leave(worker))
    service.remote_workers.drop(worker)
    return answer(models.LeaveAnswer(released))


@router.get("/doorbell", **spec(gives=models.DoorbellAnswer))
async def doorbell(
    request: Request,
    caller: WorkerCaller,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, allow_inf_nan=False)] = 0.0,
    seen: Annotated[int | None, Query(ge=0, le=2**53)] = None,
) -> Response:
    """Wait until work may be ready for somebody: until the bell has rung since it was `seen`, or the wait is over."""
    waiters = the_service(request).waiters
    if seen is not None and wait:
        until = asyncio.get_running_loop().time() + wait
        await unless_gone(request, waiters.rings(seen, until))
        await allowed(request, "work")
    return answer(models.DoorbellAnswer(waiters.rung))


async def _registered(service: "Service", worker: UUID, said: models.ClaimRequest) -> RemoteWorker:
    """What the worker has registered. Raises RequestInvalid if it asks for anything else: then nobody could tell who
    takes which jobs, and whether there is somebody for each."""
    remote = await service.remote_workers.remote(worker)
    if _unregistered(said, remote) is not None:  # it may have registered anew, with another server
        service.remote_workers.drop(worker)
        remote = await service.remote_workers.remote(worker)
    unregistered = _unregistered(said, remote)
    if unregistered is not None:
        raise errors.RequestInvalid(
            f"The worker has not registered all of these {unregistered}: register anew.", unregistered
        )
    return remote


def _unregistered(said: models.ClaimRequest, remote: RemoteWorker) -> str | None:
    """What of a claim goes beyond what was registered: its tasks, or its queues."""
    if not set(remote.tasks).issuperset(said.tasks or ()):
        return "tasks"
    if remote.queues is not None and not set(remote.queues).issuperset(said.queues or ()):
        return "queues"
    return None


async def _beaten(service: "Service", worker: UUID, held: Sequence[models.HeldLease] | None) -> Orders:
    """Tell the store that the worker lives, and what it holds, if it says so. Raises WorkerFenced."""
    marks = None if held is None else [(lease.number, lease.token) for lease in held]
    orders = await service.engine.arun(service.engine.beat(worker, marks))
    if orders.fenced:
        service.remote_workers.drop(worker)
        raise fenced(worker)
    return orders


async def _ids(
    service: "Service", worker: UUID, held: Sequence[models.HeldLease], *, wanted: bool
) -> dict[int, UUID]:
    """The ids of jobs by their numbers: as the worker has said them, or else as the store knows them."""
    said = {lease.number: lease.id for lease in held if lease.id is not None}
    if not wanted or len(said) == len(held) > 0:
        return said
    processing = JobFilter(worker=str(worker), state=State.PROCESSING, limit=MOST_CANCELS)
    jobs = await service.engine.arun(service.engine.find(processing))
    return {job.number: job.id for job in jobs} | said


async def _job(service: "Service", caller: Caller, worker: UUID, id: UUID) -> Job:
    """The job that a worker speaks of. Raises JobNotFound, also for what the token is not for."""
    await service.remote_workers.expect(caller, worker)
    [job] = await service.engine.arun(service.engine.get([id]))
    if job is None or not allows_queue(caller, job.queue):
        raise errors.JobNotFound(
            f"There is no job {id}: it never was in this store, or its retention has passed."
        )
    return job


async def _tail(service: "Service", id: UUID, said: models.ProgressReport) -> LogTail:
    written = await service.engine.arun(service.engine.logs(id))
    return models.log_tail_of(written, said.token, said.log, service.app.now(), first=said.line)


async def _reported(service: "Service", worker: UUID, news: Report, id: UUID) -> Response:
    [kept] = await service.engine.arun(service.engine.report(worker, [news]))
    if not kept:
        raise _lost(id)
    return nothing()


async def _settled(
    service: "Service", worker: UUID, ended: Sequence[tuple[Job, models.SettleRequest]]
) -> list[models.SettleAnswer]:
    """End runs, and tell what the jobs are then."""
    engine = service.engine
    settlements = [_settlement(service, job, said) for job, said in ended]
    verdicts = await engine.arun(engine.settle(worker, settlements)) if settlements else []
    service.feed.stirred()
    jobs = await engine.arun(engine.get([job.id for job, _ in ended])) if settlements else []
    for settlement, verdict, job in zip(settlements, verdicts, jobs, strict=True):
        if verdict is Verdict.ACCEPTED and job is not None and job.state is State.FAILED:
            _tell_failed(service, worker, job, settlement)
    return [
        models.SettleAnswer(verdict=verdict, state=None if job is None else job.state)
        for verdict, job in zip(verdicts, jobs, strict=True)
    ]


def _tell_failed(service: "Service", worker: UUID, job: Job, settlement: Settlement) -> None:
    """Publish that a job has failed for good: our own workers do, and this one has no bus."""
    seconds = 0.0
    if job.started_at is not None and job.finished_at is not None:
        seconds = (job.finished_at - job.started_at).total_seconds()
    kind = job.failure_kind or settlement.failure_kind
    named = (job.id, job.number, job.task, job.queue, job.tenant, job.attempt)
    error = str(kind) if job.error is None else secrets.without_key(job.error)
    service.app.bus.publish(
        JobFailedEvent(
            str(worker), *named, seconds, kind, error, secrets.unless_encrypted(settlement.traceback)
        )
    )


def _named(
    item: models.SettleItem, verdicts: Iterator[models.SettleAnswer], known: set[int]
) -> models.SettleAnswer:
    if id(item) not in known:
        return models.SettleAnswer(id=item.id, verdict=Verdict.LOST, state=None)
    settled = next(verdicts)
    return models.SettleAnswer(id=item.id, verdict=settled.verdict, state=settled.state)


def _lost(id: UUID) -> errors.LeaseLost:
    return errors.LeaseLost(
        f"The job {id} is no longer this worker's, or not under this token. Nothing was written."
    )


def _item(lease: Lease) -> models.WorkItem:
    return alike(
        models.WorkItem,
        lease,
        run_at=to_datetime(lease.run_at),
        claimed_at=to_datetime(lease.claimed_at),
        timeout=None if not lease.timeout else lease.timeout / 1000,
        tags=_json(lease.tags) or [],
        meta=_json(secrets.without_mark(lease.meta)),
        checkpoint=as_json(lease.checkpoint),
        payload=_json(lease.payload),
    )


def _json(text: str | None) -> Any:
    """The text as it is: it is JSON already."""
    return None if text is None else Raw(text.encode())


def _settlement(service: "Service", job: Job, said: models.SettleRequest) -> Settlement:
    """The end of a run without the secrets of its job, or what looks like one; encrypted if the job is, and if the keys
    are here."""
    redaction = _redaction_of(service, job)
    told = replace(
        said,
        error=None if said.error is None else secrets.scrubbed(redaction.hidden(said.error)),
        traceback=None if said.traceback is None else secrets.scrubbed(redaction.hidden(said.traceback)),
    )
    task = service.app.resolve(job.task)
    retry = Retry() if task is None else task.options.retry
    settlement = models.settlement_of(job, told, retry, service.random)
    try:
        return redaction.settlement(settlement, MAX_PAYLOAD, typed=False)
    except errors.ResultInvalid as refused:
        # As of one that is too long as it is; the others of its batch have nothing to do with it.
        failed = models.refused(settlement, refused)
        return redaction.settlement(failed, MAX_PAYLOAD, typed=False)


def _redaction_of(service: "Service", job: Job) -> Redaction:
    """What keeps the secrets of a job out of what its worker says, and encrypts that if the job is, as far as the keys
    are here."""
    keys, names = service.app.encryption, secrets.secrets_in(job.meta)
    box = Box(keys, job) if keys is not None and secrets.is_encrypted(job.payload) else None
    if not names:
        return Redaction(box, None)
    try:
        return Redaction(box, secrets.hider(opened(keys, job.payload, job, "payload"), names))
    except errors.EncryptionKeyMissing:
        return Redaction(box, None)
