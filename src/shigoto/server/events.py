"""Events of jobs as they happen: one reader of the store, and server-sent events for whoever listens.

The reader is one, however many wait. Nobody tells a server that a job has ended elsewhere, so it looks: at once when it
was itself told of an end (`stirred`), else four times a second, and never while nobody waits. A commit may come later
than the instant it bears: each look goes back a little, every few seconds one goes back further, and what was seen
before is dropped.

A waiter for one job also looks by itself now and then, so for it the feed only saves time.

A client that comes back says where it was (`Last-Event-ID`), and is told what it has missed in the last hour. What is
committed within two seconds of the instant it bears is told at least once, and may be told twice; a transaction that
takes longer to commit may go untold, so whoever must know how a job ended asks for the job.
"""

import asyncio
import logging
from asyncio import get_running_loop
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from msgspec import Struct, json

from shigoto.engine.protocol import Engine
from shigoto.model.errors import RequestError, RequestInvalid, ServerStopping, StoreError
from shigoto.model.service import FeedPosition, Happening
from shigoto.model.time import Millis, Moment, to_datetime
from shigoto.server.auth import Caller, Reader, the_service
from shigoto.server.job_models import alike
from shigoto.server.permissions import sees
from shigoto.server.routing import spec

router = APIRouter()
logger = logging.getLogger("shigoto.server")

READ_EVERY = 0.25  # seconds between looks
READ_BREATH = 0.02  # seconds between looks at the least, however often something stirs
OWN_LOOK = 5.0  # seconds after which a waiter for one job looks by itself
READ_AGAIN = 1.0  # seconds, after the store could not be asked
BACK: Millis = 100  # how far each look goes back
OVERLAP: Millis = 2_000  # how late a commit may be
WINDOW: Millis = 10_000  # of time that is asked for at once
WIDEST: Millis = 320_000  # … where there was nothing in the windows before
PAGE = 1_000
ROOM = 10_000  # happenings that wait for one subscriber; if there are more, it reads from the store
REPLAYED: Millis = 3_600_000  # how old what is told again may be

STREAM = "text/event-stream"
QUIET = 15.0  # seconds without an event, after which a line tells that the connection lives
# Seconds; then the client comes back by itself, with a token that may have changed meanwhile.
LONGEST = 3600.0
RETRY = 2000  # milliseconds after which it should


class Feed:
    """The reader, and who waits for it."""

    def __init__(self, opening: Callable[[], Engine]) -> None:
        self._opening = opening
        self._waiting: defaultdict[UUID, set[asyncio.Event]] = defaultdict(set)
        self._joined: set[Subscription] = set()
        self._wanted, self._stirred = asyncio.Event(), asyncio.Event()
        self._closed = False
        self._reached: Millis | None = None  # store time up to which all was seen; None while nobody waits
        self._looked_back: Millis = 0
        self._seen: set[FeedPosition] = set()

    @property
    def reached(self) -> Millis | None:
        """Store time up to which was looked, if anybody waits."""
        return self._reached

    async def run(self) -> None:
        """Look for as long as somebody waits, until `close`."""
        await self._watch()
        while not self._closed:
            if not (self._waiting or self._joined):
                self._reached, self._seen = None, set()
                self._wanted.clear()
                await self._wanted.wait()
                continue
            self._stirred.clear()
            try:
                await self._look()
            except StoreError as error:
                logger.debug("The feed cannot be read: %s", error)
                await asyncio.sleep(READ_AGAIN)
            await asyncio.sleep(READ_BREATH)
            await _set_within(self._stirred, READ_EVERY - READ_BREATH)

    def stirred(self) -> None:
        """Look soon: this process has just ended a job, or has heard of one."""
        self._stirred.set()

    async def ended(self, id: UUID, until: float) -> bool:
        """Wait until the job has ended, or until this moment of the event loop's clock; whether it has. False at once
        when closed. Raises StoreError."""
        time, heard = asyncio.get_running_loop().time, asyncio.Event()
        self._waiting[id].add(heard)
        self._wanted.set()
        try:
            while not self._closed:
                heard.clear()
                if await self._has_ended(id):
                    return True
                left = until - time()
                if left <= 0:
                    return False
                await _set_within(heard, min(left, OWN_LOOK))
            return False
        finally:
            self._waiting[id].discard(heard)
            if not self._waiting[id]:
                del self._waiting[id]

    def subscribe(self, after: FeedPosition | None) -> "Subscription":
        """All that happens from now on, or behind a place; to be closed."""
        return Subscription(self, after)

    def close(self) -> None:
        self._closed = True
        for heard in [each for waiting in self._waiting.values() for each in waiting]:
            heard.set()
        for subscription in list(self._joined):
            subscription.close()
        self._wanted.set()
        self._stirred.set()

    @property
    def listeners(self) -> int:
        return len(self._joined)

    @property
    def closed(self) -> bool:
        return self._closed

    def join(self, subscription: "Subscription") -> None:
        if self._closed:
            subscription.close()
            return
        self._joined.add(subscription)
        self._wanted.set()

    def leave(self, subscription: "Subscription") -> None:
        self._joined.discard(subscription)

    async def read(self, after: FeedPosition, until: Millis) -> tuple[list[Happening], Millis]:
        """A page of what has happened, and store time now."""
        engine = self._opening()
        return await engine.arun(engine.registry.happened(after, until, PAGE))

    async def _has_ended(self, id: UUID) -> bool:
        engine = self._opening()
        [job] = await engine.arun(engine.get([id]))
        return job is None or job.state.terminal

    async def _watch(self) -> None:
        while not self._closed:
            try:
                engine = self._opening()
                await engine.arun(engine.registry.watch())
            except StoreError as error:
                logger.debug("The feed cannot be prepared: %s", error)
                await asyncio.sleep(READ_AGAIN)
            else:
                return

    async def _look(self) -> None:
        if self._reached is None:
            _, self._reached = await self.read(FeedPosition(0), 0)
            self._looked_back = 0
        thorough = self._reached - self._looked_back >= OVERLAP
        start = FeedPosition(max(0, self._reached - (2 * OVERLAP if thorough else BACK)))
        while not self._closed:
            until = start.at + WINDOW
            found, now = await self.read(start, until)
            self._hand_on(each for each in found if each.place not in self._seen)
            self._seen.update(each.place for each in found)
            if len(found) == PAGE:
                start = found[-1].place
            elif until <= now:
                start = FeedPosition(until)
            else:
                self._reached = now
                break
        if thorough:
            self._looked_back = self._reached
            oldest = self._reached - 3 * OVERLAP
            self._seen = {place for place in self._seen if place.at >= oldest}

    def _hand_on(self, fresh: Iterable[Happening]) -> None:
        happenings = list(fresh)
        for each in happenings:
            if each.final:
                for heard in self._waiting.get(each.id, ()):
                    heard.set()
        if happenings:
            for subscription in list(self._joined):
                subscription.give(happenings)


class Subscription:
    """What one client hears. It reads from the store what it has missed, and then what the feed hands on."""

    def __init__(self, feed: Feed, after: FeedPosition | None) -> None:
        self._feed = feed
        self._after = after
        self._start = self._position = self._place = after or FeedPosition(0)
        self._window = WINDOW
        self._catching_up = True
        self._joined = False
        self._given: set[FeedPosition] = set()
        self._queue: deque[Happening] = deque()
        self._arrived = asyncio.Event()
        self.lost = False
        """Whether what it asked for is older than what is told again."""
        self.closed = False

    async def begin(self) -> FeedPosition:
        """Where it begins. Raises StoreError."""
        _, now = await self._feed.read(FeedPosition(0), 0)
        if self._after is None or self._after.at > now:
            self._place = FeedPosition(now)
        elif self._after.at < now - REPLAYED:
            self.lost, self._place = True, FeedPosition(now - REPLAYED)
        fresh = self._after is None
        self._start = self._position = self._place if fresh else _back(self._place.at)
        return self._place

    async def next(self, timeout: float) -> list[Happening]:
        """What is new, in order but for what was committed late; nothing after `timeout` seconds, or if closed."""
        if self._feed.closed:
            self.close()
        if self._catching_up and not self.closed:
            try:
                missed = await self._catch_up()
            except StoreError:
                await asyncio.sleep(min(timeout, READ_AGAIN))
                return []
            if missed:
                return missed
        if not self._queue and not self.closed:
            self._arrived.clear()
            await _set_within(self._arrived, timeout)
        taken = list(self._queue)
        self._queue.clear()
        return self._kept(taken)

    @property
    def place(self) -> FeedPosition:
        """From where to go on, if the client comes back later. Everything before was given."""
        reached = self._feed.reached
        if self._catching_up or self._queue or reached is None:
            return self._place
        return max(self._place, _back(reached))

    def give(self, happenings: list[Happening]) -> None:
        """Take what the feed has seen; if it is too much, it is left to be read from the store."""
        if len(self._queue) + len(happenings) > ROOM:
            self._queue.clear()
            self._feed.leave(self)
            self._joined, self._catching_up = False, True
            self._position = _back(self._place.at)
        else:
            self._queue.extend(happenings)
        self._arrived.set()

    def close(self) -> None:
        """Hear no more. Closing twice is fine."""
        self.closed = True
        self._feed.leave(self)
        self._arrived.set()

    async def _catch_up(self) -> list[Happening]:
        """Read from the store until something is found that was not given yet, or the feed has taken over."""
        while True:
            until = self._position.at + self._window
            found, now = await self._feed.read(self._position, until)
            if len(found) == PAGE:
                self._position, self._window = found[-1].place, WINDOW
            elif until <= now:
                self._position = FeedPosition(until)
                self._window = WINDOW if found else min(2 * self._window, WIDEST)
            elif self._joined:
                self._catching_up = False
            else:
                # What is committed from here on is handed on. One more look has what came in between.
                self._feed.join(self)
                self._joined = True
                self._position = max(self._start, _back(now))
            if fresh := self._kept(found):
                return fresh
            if not self._catching_up or self.closed:
                return []

    def _kept(self, found: Iterable[Happening]) -> list[Happening]:
        """Those that were not given yet, which now they are."""
        fresh = [each for each in found if each.place >= self._start and each.place not in self._given]
        for each in fresh:
            self._given.add(each.place)
            self._place = max(self._place, each.place)
        if len(self._given) > ROOM:
            oldest = self._place.at - 3 * OVERLAP
            self._given = {place for place in self._given if place.at >= oldest}
        return fresh


def _back(at: Millis) -> FeedPosition:
    return FeedPosition(max(0, at - OVERLAP))


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


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
    place = None if known is None else FeedPosition.read(known)
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
        _lines(subscription, begin, _Listener(request, caller, queue, task)),
        media_type=STREAM,
        headers={"X-Accel-Buffering": "no"},  # a proxy must not keep it back
    )


class _Listener:
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


async def _lines(
    subscription: Subscription, begin: FeedPosition, listener: _Listener
) -> AsyncIterator[bytes]:
    time = get_running_loop().time
    told_at = time()
    end = told_at + LONGEST
    try:
        yield b"retry: %d\n" % RETRY + _event("hello", begin, Begun(place=str(begin)))
        if subscription.lost:
            yield _event("reset", begin, Begun(place=str(begin)))
        while not subscription.closed and time() < end:
            happened = await subscription.next(max(0.0, told_at + QUIET - time()))
            if not await listener.is_welcome():
                break
            heard = b"".join(_told(each) for each in happened if listener.hears(each))
            if heard or time() >= told_at + QUIET:
                # An id without data is no event: it only moves the place from which the client comes back. Not whenever
                # something happens that is not for it: that would tell when, and how much.
                yield heard or b": \nid: %s\n\n" % str(subscription.place).encode()
                told_at = time()
    finally:
        subscription.close()


def _told(each: Happening) -> bytes:
    event = alike(FeedEvent, each, number=each.place.number, at=to_datetime(each.place.at))
    return _event("ended" if each.final else "attempt", each.place, event)


def _event(name: str, place: FeedPosition, data: Struct) -> bytes:
    """One event. JSON has no line break in it, so its data is one line."""
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (str(place).encode(), name.encode(), json.encode(data))
