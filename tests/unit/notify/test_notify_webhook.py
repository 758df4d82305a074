"""Receivers of webhooks that misbehave: only the status counts, and to wait as they ask is within reason."""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.client import HTTPResponse
from threading import Event as Signal
from threading import Thread
from uuid import UUID

import pytest

from shigoto import RetryLater, Shigoto
from shigoto.model.notice import Notice
from shigoto.model.time import to_datetime
from shigoto.notify import Notification, Webhook, on_failure, webhook
from shigoto.notify.notifier import PATIENTLY, Message, Notifier
from shigoto.notify.targets import AskedToWait, Undelivered

HOST = "127.0.0.1"
ID = UUID("018f0000-0000-7000-8000-000000000001")
AT = 1_700_000_000_000
EVENT = Notification(id=ID, kind="failed", rule="failure", subject="resize", at=to_datetime(AT))
RESET = struct.pack("ii", 1, 0)  # close at once, and let the other side know that it was not in peace


class Receiver:
    """A web server that says what it is told to, to the byte, and hangs up when it may, if so with a reset."""

    def __init__(self, answer: bytes, *, resets: bool) -> None:
        self.requests = 0
        self.may_hang_up, self.has_hung_up = Signal(), Signal()
        self._answer, self._resets = answer, resets
        self._listening = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self._listening.getsockname()[1]}/hook"
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.may_hang_up.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _listen(self) -> None:
        while True:
            try:
                line, _ = self._listening.accept()
            except OSError:
                return
            with line, line.makefile("rb") as said:
                length = 0
                while (header := said.readline()) not in (b"\r\n", b""):
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                said.read(length)
                self.requests += 1
                line.sendall(self._answer)
                self.may_hang_up.wait(30)
                if self._resets:
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.has_hung_up.set()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Receiver]]:
    monkeypatch.setenv("SHIGOTO_WEBHOOK_SECRET", "a-secret-that-only-the-test-has")
    made: list[Receiver] = []

    def make(answer: str, *, holds: bool = False, resets: bool = False) -> Receiver:
        there = Receiver(answer.replace("\n", "\r\n").encode("latin-1", "replace"), resets=resets)
        made.append(there)
        if not holds:
            there.may_hang_up.set()
        return there

    yield make
    for each in made:
        each.close()


def deliver(there: Receiver) -> None:
    Webhook(there.url, internal=True).deliver(EVENT)


@pytest.mark.parametrize(
    "rest",
    [
        "Transfer-Encoding: chunked\n\nff\nabc",
        "Transfer-Encoding: chunked\n\n3\nabc\n",
        "Transfer-Encoding: chunked\n\nno number\nabc",
        "Content-Length: 100\n\nabc",
        "\nabc",
    ],
)
@pytest.mark.parametrize("resets", [False, True])
def test_what_was_taken_is_delivered_however_the_body_of_the_answer_ends(
    opened: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch, rest: str, resets: bool
) -> None:
    """Else the receiver would get it sixteen times, and say 200 to each."""
    there, read = opened(f"HTTP/1.1 200 OK\n{rest}", holds=True, resets=resets), HTTPResponse.read

    def read_when_it_has_hung_up(answer: HTTPResponse, most: int | None = None) -> bytes:
        there.may_hang_up.set()
        assert there.has_hung_up.wait(30)
        return read(answer, most)

    monkeypatch.setattr(HTTPResponse, "read", read_when_it_has_hung_up)

    deliver(there)

    assert there.requests == 1


def test_one_whose_body_never_ends_has_taken_it_nevertheless(
    opened: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "PATIENCE", 0.4)
    there = opened("HTTP/1.1 202 OK\nContent-Length: 100\n\nabc", holds=True)

    deliver(there)

    assert there.requests == 1


def test_a_status_that_is_broken_off_is_none(opened: Callable[..., Receiver]) -> None:
    for answer in ("", "HTTP/1.1 2", "HTTP/1.1\n\n", "garbage\n\n"):
        with pytest.raises(Undelivered, match="not answered"):
            deliver(opened(answer))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("0", 0),
        ("3", 3),
        ("3600", 3_600),
        ("3601", 3_600),
        ("9" * 5_000, 3_600),
        (format_datetime(datetime(2099, 1, 1, tzinfo=UTC), usegmt=True), 3_600),
        (format_datetime(datetime(1999, 1, 1, tzinfo=UTC), usegmt=True), 0),
    ],
)
def test_a_receiver_may_ask_to_wait_in_seconds_or_until_a_date_and_no_longer_than_an_hour(
    opened: Callable[..., Receiver], said: str, expected: float
) -> None:
    for status in (408, 425, 429, 500, 503):
        with pytest.raises(AskedToWait) as asked:
            deliver(opened(f"HTTP/1.1 {status} X\nRetry-After: {said}\nContent-Length: 0\n\n"))
        assert asked.value.wait == expected


@pytest.mark.parametrize("zone", ["GMT", "-0000", "+0000"])
def test_a_date_is_as_long_as_it_is_ahead(opened: Callable[..., Receiver], zone: str) -> None:
    ahead = datetime.now(UTC) + timedelta(seconds=600)
    date = f"{format_datetime(ahead).rpartition(' ')[0]} {zone}"

    with pytest.raises(AskedToWait) as asked:
        deliver(opened(f"HTTP/1.1 503 X\nRetry-After: {date}\nContent-Length: 0\n\n"))

    assert 500 < asked.value.wait <= 600


@pytest.mark.parametrize(
    "said",
    [
        "",
        "nan",
        "inf",
        "-1",
        "1.5",
        "１２",
        "soon",
        "Wed, 99 Foo 2099 99:99:99 GMT",
        "1 Jan 2099 00:00 +" + "9" * 40,
    ],
)
def test_what_is_neither_asks_for_nothing(opened: Callable[..., Receiver], said: str) -> None:
    with pytest.raises(Undelivered) as refusal:
        deliver(opened(f"HTTP/1.1 503 X\nRetry-After: {said}\nContent-Length: 0\n\n"))

    assert not isinstance(refusal.value, AskedToWait)


class TestHowLongToWait:
    """The larger of what the receiver asks for and our own pause after so many failures: sixteen attempts within a
    second would be none."""

    def pause(self, notifier: Notifier, failures: int) -> float:
        [rule] = notifier.rules
        message = Message(
            rule=rule.name,
            target=rule.targets[0].key,
            notice=Notice(kind="failed", subject="resize", at=AT),
            fingerprint=rule.fingerprint,
        )
        with pytest.raises(RetryLater, match="asks to wait") as later:
            notifier.deliver(ID, message, attempt=failures + 1, failures=failures)
        return later.value.delay / 1000

    def notifier(self, there: Receiver) -> Notifier:
        app = Shigoto("memory:", notify=[on_failure(to=[Webhook(there.url, internal=True)])])
        assert app.notifier is not None
        return app.notifier

    @pytest.mark.parametrize(
        ("asked", "failures", "least", "most"),
        [
            (0, 0, 2.5, 5),
            (0, 4, 40, 80),
            (3, 4, 40, 80),
            (0, 14, 1_800, 3_600),
            (100, 0, 100, 100),
            (100, 4, 100, 100),
            (100, 7, 320, 640),
        ],
    )
    def test_it_is_the_larger_of_the_two(
        self, opened: Callable[..., Receiver], asked: int, failures: int, least: float, most: float
    ) -> None:
        there = opened(f"HTTP/1.1 429 X\nRetry-After: {asked}\nContent-Length: 0\n\n")

        pause = self.pause(self.notifier(there), failures)

        assert least <= pause <= most

    def test_after_the_last_failure_there_is_nothing_to_wait_for(
        self, opened: Callable[..., Receiver]
    ) -> None:
        """The store counts, and ends the job whatever the pause is."""
        there = opened("HTTP/1.1 429 X\nRetry-After: 7\nContent-Length: 0\n\n")

        assert self.pause(self.notifier(there), PATIENTLY.retries) == 7
