"""Operations as requests to the server: in the caller's thread, or in one of a few for those who must not wait.

Each command of an op is one request. An op that was put together above the seam of several commands is thus several
requests, and not one transaction. The doorbell is one long request, kept under way from one wait to the next.
"""

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import DecodeError, Struct

from shigoto.engine.op import Op, drive
from shigoto.engine.remote import protocol
from shigoto.engine.remote.client import (
    Address,
    PendingRequest,
    ServerConnections,
    ServerRequest,
    ServerResponse,
    failure,
)
from shigoto.model.errors import PayloadTooLarge, ShigotoError, StoreUnavailable

MOST, MOST_URGENT = 8, 16

WAIT = 25  # seconds, after which the server answers anyhow
GRACE = 10.0  # seconds more until we believe that it will not
BREATH = 0.020  # seconds after a ring: a busy store rings all the time, and each ring is a request
PAUSE = 1.0  # seconds after an error; whoever waits looks by himself every now and then
DOORBELL = "/api/v1/doorbell"
Get = Callable[[str, float], Coroutine[Any, Any, bytes]]

T = TypeVar("T")
PATIENCE = 30.0  # seconds for an answer, unless an op says less
MOST_BYTES = 32 * 1024 * 1024  # of a request; servers take no more
MOST_IDS = 1_000  # jobs that a server is asked for at once
MOST_JOBS = 10_000  # that it takes at once
PAUSES = (0.3, 1.2)  # seconds before jobs are submitted once more, where that may help
OK = 200
HEADERS = (f"Content-Type: {protocol.MEDIA_TYPE}", f"Shigoto-Protocol: {protocol.PROTOCOL}")


class RequestThreads:
    """Threads that are started when they are needed, and keep no program from ending."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._idle = self._count = 0
        self._closed = False

    def submit(self, work: Callable[[], None], *, urgent: bool = False) -> None:
        """Do this in a thread; if all are at work, when one of them is done. The urgent find one."""
        with self._changed:
            if urgent:
                self._waiting.appendleft(work)
            else:
                self._waiting.append(work)
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._count < (MOST_URGENT if urgent else MOST):
                self._start()

    def close(self) -> None:
        """Let every thread end as soon as there is nothing left to do."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _start(self) -> None:
        self._count += 1
        thread = threading.Thread(target=self._serve, name=f"shigoto-http-{self._count}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._count -= 1
            if not self._count:
                self._waiting.clear()
                raise StoreUnavailable(f"No thread for the store could be started: {error}.") from error

    def _serve(self) -> None:
        while (work := self._next()) is not None:
            work()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle += 1
            while not (self._waiting or self._closed):
                self._changed.wait()
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._count -= 1
            return None


class Rung(Struct, frozen=True):
    """How often the doorbell has rung, from some number on."""

    rung: int


class RemoteDoorbell:
    """For one waiter. It asks from the moment it is made, so that it misses nothing before the first wait."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self._heard = asyncio.Event()
        self._listening = asyncio.get_running_loop().create_task(self._listen(), name="shigoto-http-doorbell")

    async def wait(self, timeout: float) -> bool:
        """Return True when work may be ready, False after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._heard.wait()
        heard = self._heard.is_set()
        self._heard.clear()
        return heard

    def close(self) -> None:
        """Stop listening."""
        with suppress(RuntimeError):  # its loop is gone, and with it the task
            self._listening.cancel()

    async def _listen(self) -> None:
        seen: int | None = None
        while True:
            query = f"?wait={WAIT}" if seen is None else f"?wait={WAIT}&seen={seen}"
            try:
                rung = msgspec.json.decode(await self._get(DOORBELL + query, WAIT + GRACE), type=Rung).rung
            except (ShigotoError, msgspec.DecodeError):
                await asyncio.sleep(PAUSE)
                continue
            if rung != seen:
                # The first time, too: something may have happened before the server began to count for us.
                seen = rung
                self._heard.set()
                await asyncio.sleep(BREATH)


class VerbCall(Struct, frozen=True):
    """The command for all verbs of an engine: to do this at the server."""

    verb: str
    args: tuple[Any, ...]


class GetPage(Struct, frozen=True):
    """A command for what everybody may ask: a page of the server, which is JSON of this kind."""

    path: str
    kind: type[Any]


class _PerProcess(Struct, frozen=True):
    connections: ServerConnections
    threads: RequestThreads


class Driver:
    """Asks one server."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._opened: dict[int, _PerProcess] = {}

    def run(self, op: Op[T]) -> T:
        """Run an op in the calling thread."""
        return self._run(op, PendingRequest(op.deadline or PATIENCE))

    async def arun(self, op: Op[T]) -> T:
        """Run an op in a thread. If this is cancelled, so is the request that is under way."""
        urgent = op.urgent or op.deadline is not None
        return await self._aside(lambda call: self._run(op, call), op.deadline or PATIENCE, urgent=urgent)

    async def get(self, path: str, seconds: float) -> bytes:
        """What the server says there; it may take its time."""
        request = ServerRequest(method="GET", path=path)
        return (await self._aside(lambda call: self._answer(request, call), seconds, urgent=True)).body

    def close(self) -> None:
        """Close what is open; a later call opens again."""
        opened = self._opened.pop(os.getpid(), None)
        if opened is not None:
            opened.threads.close()
            opened.connections.close()

    def _open(self) -> _PerProcess:
        # Of each process its own: neither threads nor locks outlive a fork, and the connections are our parent's.
        pid = os.getpid()
        return self._opened.get(pid) or self._opened.setdefault(
            pid, _PerProcess(ServerConnections(self._address), RequestThreads())
        )

    def _run(self, op: Op[T], call: PendingRequest) -> T:
        value = drive(op.start(), lambda command: self._ask(command, call))
        if op.committed is not None:
            op.committed(value)
        return value

    def _ask(self, command: Any, call: PendingRequest) -> Any:
        if isinstance(command, GetPage):
            return self._get_page(command, call)
        if not isinstance(command, VerbCall):
            raise AssertionError(f"this engine runs its own ops only: {command!r}")
        if command.verb == "get" and len(command.args[0]) > MOST_IDS:
            ids = command.args[0]
            parts = [ids[at : at + MOST_IDS] for at in range(0, len(ids), MOST_IDS)]
            return [job for part in parts for job in self._ask(VerbCall("get", (part,)), call)]
        if command.verb == "enqueue_many" and len(command.args[0]) > MOST_JOBS:
            raise PayloadTooLarge(
                f"{len(command.args[0]):,} jobs cannot be stored at once, all or none: a server takes no more than"
                f" {MOST_JOBS:,}. Do it in several parts."
            )
        verb, body = protocol.VERBS[command.verb], protocol.encode(command.args)
        if len(body) > MOST_BYTES:
            raise PayloadTooLarge(
                f"{command.verb} would take {len(body) / 2**20:.0f} MiB at once, and a server takes no more than"
                f" {MOST_BYTES // 2**20}. Do it in several parts."
            )
        request = ServerRequest(
            method="POST",
            path=f"{protocol.RECORDS_PATH}/{command.verb}",
            headers=HEADERS,
            body=body,
            repeatable=verb.repeatable,
        )
        once = self._patiently if command.verb == "enqueue_many" else self._once
        return once(command.verb, request, call)

    def _get_page(self, command: GetPage, call: PendingRequest) -> Any:
        answer = self._answer(ServerRequest(method="GET", path=command.path), call)
        try:
            return msgspec.json.decode(answer.body, type=command.kind)
        except (DecodeError, UnicodeDecodeError):
            page = command.path.partition("?")[0]
            raise self._unexpected(page, answer) from None

    def _answer(self, request: ServerRequest, call: PendingRequest) -> ServerResponse:
        """The answer of the server, if it is one and no refusal. Raises ShigotoError."""
        answer = self._open().connections.ask(request, call)
        if answer.status != OK:
            raise failure(answer.status, answer.body, self._address.shown)
        return answer

    def _once(self, verb: str, request: ServerRequest, call: PendingRequest) -> Any:
        """The value in an answer. What stands between us and the server may say 200, too: a page for people."""
        answer = self._answer(request, call)
        with suppress(DecodeError, UnicodeDecodeError):
            if answer.media_type == protocol.MEDIA_TYPE:
                return protocol.decode_value(verb, answer.body)
        raise self._unexpected(verb, answer)

    def _unexpected(self, asked: str, answer: ServerResponse) -> StoreUnavailable:
        return StoreUnavailable(
            f"At {self._address.shown} something answers {asked} that is no answer of a Shigoto server of this release"
            f" ({answer.media_type or 'of no type'}, {len(answer.body)} bytes). Is there a proxy before it?"
        )

    def _patiently(self, verb: str, request: ServerRequest, call: PendingRequest) -> Any:
        """Who submits a job has nobody behind him to try again; and the ids are his, so that it stays one job."""
        for pause in PAUSES:
            try:
                return self._once(verb, request, call)
            except StoreUnavailable:
                if not call.pause(pause):
                    raise
        return self._once(verb, request, call)

    async def _aside(self, work: Callable[[PendingRequest], T], seconds: float, *, urgent: bool) -> T:
        loop, call = asyncio.get_running_loop(), PendingRequest(seconds)
        future: asyncio.Future[T] = loop.create_future()

        def do() -> None:
            try:
                value = work(call)
            except BaseException as error:
                _hand_over(loop, future, None, error)
            else:
                _hand_over(loop, future, value, None)

        self._open().threads.submit(do, urgent=urgent)
        try:
            return await future
        except asyncio.CancelledError:
            call.abort()
            raise


def _hand_over(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]", value: Any, error: BaseException | None
) -> None:
    def resolve() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
        loop.call_soon_threadsafe(resolve)
