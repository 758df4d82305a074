"""uvicorn's connection with limits: headers in time and in few words, and an end to a body that was refused.

It overrides what uvicorn does not promise to keep; a test of each limit says when it has changed.
"""

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from shigoto.model.errors import RequestMalformed
from shigoto.server.problems import response_to

HEAD_WITHIN = 30.0  # seconds from the start of a connection or of a request to the end of its headers
REST_WITHIN = (
    5.0  # seconds that a client gets to finish the body of a request that was answered before its end
)
MOST_HEAD = 64 * 1024  # bytes of headers that are not complete yet


class GuardedProtocol(HttpToolsProtocol):
    """A connection that must say what it wants, in time and in few words: uvicorn itself would wait for ever, keep any
    number of headers, and go on reading a body that was refused."""

    _patience: asyncio.TimerHandle | None = None  # for the headers
    _rest: asyncio.TimerHandle | None = None  # for what is left of a body after the answer
    _head = 0
    _earlier: tuple[RequestResponseCycle, ...] = ()  # requests that are answered before the newest one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more, and tell who is at work on a request, be it that others were sent behind it."""
        self._stop_waiting()
        for cycle in self._unanswered(self._earlier):
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, as long as the headers are not too many."""
        super().data_received(data)
        if self._patience is not None:
            self._head += len(data)
            if self._head > MOST_HEAD:
                self._give_up()

    def on_message_begin(self) -> None:
        """Begin to wait for the headers."""
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        """Stop waiting for them."""
        self._stop_waiting()
        self._earlier = self._unanswered((*self._earlier, self.cycle))
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Let the client finish its body, for it may not look at the answer before; but not for ever."""
        super().on_response_complete()
        if self.cycle.more_body and not self.transport.is_closing():
            self._rest = self.loop.call_later(REST_WITHIN, self._give_up)

    def on_message_complete(self) -> None:
        """The body has ended."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request of HTTP at all, or has an address without an end, as everything else is refused."""
        answer = response_to(RequestMalformed("The request cannot be read."))
        answer.headers["connection"] = "close"
        head = b"".join(name + b": " + value + b"\r\n" for name, value in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + bytes(answer.body))
        self.transport.close()

    @staticmethod
    def _unanswered(cycles: tuple[RequestResponseCycle | None, ...]) -> tuple[RequestResponseCycle, ...]:
        return tuple(cycle for cycle in cycles if cycle is not None and not cycle.response_complete)

    def _await_head(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(HEAD_WITHIN, self._give_up)
        self._head = 0

    def _stop_waiting(self) -> None:
        for timer in (self._patience, self._rest):
            if timer is not None:
                timer.cancel()
        self._patience = self._rest = None

    def _give_up(self) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.close()
