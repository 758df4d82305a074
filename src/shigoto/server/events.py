"""Server-sent events: what happens to jobs, as it happens, for browsers and whoever can read lines.

A client that comes back says where it was (`Last-Event-ID`), and is told what it has missed in the last hour. What is
committed within two seconds of the instant it bears is told at least once, and may be told twice; a transaction that
takes longer to commit may go untold, so whoever must know how a job ended asks for the job.
"""

from asyncio import get_running_loop
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from msgspec import Struct, json

from shigoto.model.errors import RequestError, RequestInvalid, ServerStopping, StoreError
from shigoto.model.service import Happening, Place
from shigoto.model.time import Moment, to_datetime
from shigoto.server.auth import Caller, Reader, the_service
from shigoto.server.endpoint import spec
from shigoto.server.feed import Subscription
from shigoto.server.scope import sees

router = APIRouter()

STREAM = "text/event-stream"
QUIET = 15.0  # seconds without an event, after which a line tells that the connection lives
LONGEST = (
    3600.0  # seconds; then the client comes back by itself, with a token that may have changed meanwhile
)
RETRY = 2000  # milliseconds after which it should


class FeedEvent(Struct, frozen=True, kw_only=True):
    """The data of `ended` (the job has ended, `outcome` is its state) and `attempt` (a run did not complete)."""

    id: UUID
    number: int
    task: str
    queue: str
    tenant: str
    outcome: str
    failure_kind: str | None
    final: bool
    at: Moment


class Begun(Struct, frozen=True, kw_only=True):
    """The data of `hello`, and of `reset`: what happened before is not told, or not any more."""

    place: str


def _described() -> dict[str, Any]:
    described = spec(gives=FeedEvent)
    described["responses"][200] = {
        "description": (
            "Events `hello`, `ended`, `attempt` and `reset`; the data of `ended` and `attempt` is a FeedEvent."
        ),
        "content": {STREAM: {"schema": {"type": "string"}}},
    }
    return described


@router.get("/events", **_described())
async def stream_events(
    request: Request,
    caller: Reader,
    queue: Annotated[str | None, Query(max_length=100, description="Of this queue only.")] = None,
    task: Annotated[str | None, Query(max_length=100, description="Of this task only.")] = None,
    after: Annotated[
        str | None, Query(max_length=60, description="Behind this place: the id of an event.")
    ] = None,
    last_event_id: Annotated[
        str | None, Header(max_length=60, description="The same, as clients say it that come back.")
    ] = None,
) -> Response:
    """What happens to jobs, from now on or from a place on, for up to an hour; then come back.

    Each event whose transaction is committed within two seconds is told at least once; one that is committed later may
    be missed.
    """
    known = last_event_id or after
    place = None if known is None else Place.read(known)
    if known is not None and place is None:
        raise RequestInvalid(
            "This is the id of no event: it looks like 1767225600000-12-3.",
            "Last-Event-ID" if last_event_id else "after",
        )
    feed = the_service(request).feed
    if feed.closed:
        raise ServerStopping("The service is about to stop. Come back in a moment.")
    subscription = feed.subscribe(place)
    begin = await subscription.begin()
    return StreamingResponse(
        _lines(subscription, begin, _Ear(request, caller, queue, task)),
        media_type=STREAM,
        headers={"X-Accel-Buffering": "no"},  # a proxy must not keep it back
    )


class _Ear:
    """What one client wants to hear, and may: for as long as its token is good."""

    def __init__(self, request: Request, caller: Caller, queue: str | None, task: str | None) -> None:
        self._request, self._caller = request, caller
        self._queue, self._task = queue, task

    def hears(self, each: Happening) -> bool:
        wanted = self._queue in (None, each.queue) and self._task in (None, each.task)
        return wanted and sees(self._caller, each.queue, each.tenant)

    async def is_welcome(self) -> bool:
        """Whether the client may hear anything at all, still."""
        try:
            self._caller = await the_service(self._request).auth.caller(self._request)
        except StoreError:  # nothing happens that could be told
            return True
        except RequestError:
            return False
        return self._caller.may("read")


async def _lines(subscription: Subscription, begin: Place, ear: _Ear) -> AsyncIterator[bytes]:
    time = get_running_loop().time
    told_at = time()
    end = told_at + LONGEST
    try:
        yield b"retry: %d\n" % RETRY + _event("hello", begin, Begun(place=str(begin)))
        if subscription.lost:
            yield _event("reset", begin, Begun(place=str(begin)))
        while not subscription.closed and time() < end:
            happened = await subscription.next(max(0.0, told_at + QUIET - time()))
            if not await ear.is_welcome():
                break
            heard = b"".join(_told(each) for each in happened if ear.hears(each))
            if heard or time() >= told_at + QUIET:
                # An id without data is no event: it only moves the place from which the client comes back. Not whenever
                # something happens that is not for it: that would tell when, and how much.
                yield heard or b": \nid: %s\n\n" % str(subscription.place).encode()
                told_at = time()
    finally:
        subscription.close()


def _told(each: Happening) -> bytes:
    event = FeedEvent(
        id=each.id,
        number=each.place.number,
        task=each.task,
        queue=each.queue,
        tenant=each.tenant,
        outcome=each.outcome,
        failure_kind=each.failure_kind,
        final=each.final,
        at=to_datetime(each.place.at),
    )
    return _event("ended" if each.final else "attempt", each.place, event)


def _event(name: str, place: Place, data: Struct) -> bytes:
    """One event. JSON has no line break in it, so its data is one line."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (str(place).encode(), name.encode(), json.encode(data))
