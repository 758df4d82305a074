"""Mail servers that misbehave: what was taken is not sent again, and nobody is waited for for ever."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile
from threading import Event as Signal
from threading import Thread
from uuid import UUID

import pytest
from msgspec.structs import replace

from shigoto.model.time import to_datetime
from shigoto.notify import Notification, egress, mail
from shigoto.notify.mail import MailSettings, send
from shigoto.notify.targets import Undeliverable, Undelivered

HOST = "127.0.0.1"
EVENT = Notification(
    id=UUID("018f0000-0000-7000-8000-000000000001"),
    kind="failed",
    rule="failure",
    subject="resize",
    at=to_datetime(1_700_000_000_000),
)
ANSWERS = {"": "220 ready", "EHLO": "250 here", "DATA": "354 go on", ".": "250 taken", "QUIT": "221 bye"}


class PostOffice:
    """A mail server that says what it is told to: an answer for each command, "" for the greeting and "." for the end
    of a message. Where that is None it hangs up; `trickles` names the command that is answered for ever, a letter at a
    time."""

    def __init__(self, answers: dict[str, str | None], trickles: str | None = None) -> None:
        self.messages: list[str] = []
        self.ended = Signal()
        self._answers: dict[str, str | None] = {**ANSWERS, **answers}
        self._trickles = trickles
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def settings(self) -> MailSettings:
        return MailSettings(
            to=("ops@example.org",),
            sender="jobs@example.org",
            host=HOST,
            port=self.port,
            protection="none",
            user=None,
            password=None,
        )

    def close(self) -> None:
        self.ended.set()
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
            with line, suppress(OSError):
                self._converse(line)

    def _converse(self, line: socket.socket) -> None:
        said, command = line.makefile("r", newline="\r\n"), ""
        while self._answered(line, command):
            if command == "DATA" and str(self._answers["DATA"]).startswith("354"):
                message = "".join(takewhile(".\r\n".__ne__, iter(said.readline, "")))
                if not self._answered(line, "."):
                    return
                self.messages.append(message)
            command = said.readline().partition(" ")[0].strip().upper()
            if not command:
                return

    def _answered(self, line: socket.socket, command: str) -> bool:
        answer = self._answers.get(command, "250 well")
        if command == self._trickles:
            while not self.ended.wait(0.02):
                line.sendall(b"2")
        if answer is None:
            return False
        line.sendall(f"{answer}\r\n".encode())
        return True


@pytest.fixture
def opened() -> Iterator[Callable[..., PostOffice]]:
    made: list[PostOffice] = []

    def make(trickles: str | None = None, **answers: str | None) -> PostOffice:
        made.append(PostOffice(answers, trickles))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("answer", ["221 bye", "421 closing", "250 well", "500 what?", "", None])
def test_a_mail_that_was_taken_is_delivered_however_the_server_says_goodbye(
    opened: Callable[..., PostOffice], answer: str | None
) -> None:
    """Else the same mail would be sent sixteen times."""
    server = opened(QUIT=answer)

    send(EVENT, server.settings)

    assert len(server.messages) == 1


@pytest.mark.parametrize(
    ("command", "answer", "expected"),
    [
        ("", "421 too busy", Undelivered),
        ("", "554 not you", Undeliverable),
        ("MAIL", "451 later", Undelivered),
        ("RCPT", "550 nobody here", Undeliverable),
        ("DATA", "452 full", Undelivered),
        ("DATA", None, Undelivered),
    ],
)
def test_what_the_server_says_before_that_counts(
    opened: Callable[..., PostOffice], command: str, answer: str | None, expected: type[Exception]
) -> None:
    server = opened(**{command: answer, "QUIT": "250 well"})

    with pytest.raises(expected):
        send(EVENT, server.settings)

    assert server.messages == []


def test_an_address_that_the_server_cannot_take_is_what_the_error_is_about(
    opened: Callable[..., PostOffice],
) -> None:
    server = opened()

    with pytest.raises(Undeliverable, match="SMTPUTF8") as refusal:
        send(EVENT, replace(server.settings, to=("ops@bücher.example",)))

    assert "STARTTLS" not in str(refusal.value)
    assert server.messages == []


def test_one_that_can_take_it_gets_it(opened: Callable[..., PostOffice]) -> None:
    server = opened(EHLO="250-here\r\n250-8BITMIME\r\n250 SMTPUTF8")

    send(EVENT, replace(server.settings, to=("ops@bücher.example",)))

    assert len(server.messages) == 1


def test_letters_that_cannot_be_sent_are_an_end_that_names_none_of_them(
    opened: Callable[..., PostOffice],
) -> None:
    """Settings refuse them; should some pass, the error of the codec must not be stored with the job."""
    server = opened(EHLO="250-here\r\n250 AUTH PLAIN")

    with pytest.raises(Undeliverable) as refusal:
        send(EVENT, replace(server.settings, user="robot", password="hunter2ß"))

    for part in ("hunter2", "ß", "xdf", "position"):
        assert part not in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__


@pytest.mark.parametrize("command", ["", "EHLO", "RCPT", "DATA"])
def test_a_server_that_answers_a_letter_at_a_time_is_left_after_a_while(
    opened: Callable[..., PostOffice], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Each letter comes in time, and the answer never ends: it would keep others from the gate for as long."""
    monkeypatch.setattr(mail, "LONGEST", 0.4)
    server, begun = opened(trickles=command), time.monotonic()

    with pytest.raises(Undelivered):
        send(EVENT, server.settings)

    assert time.monotonic() - begun < mail.PATIENCE


def test_one_that_never_ends_its_goodbye_has_the_mail_nevertheless(
    opened: Callable[..., PostOffice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail, "LONGEST", 0.4)
    server, begun = opened(trickles="QUIT"), time.monotonic()

    send(EVENT, server.settings)

    assert len(server.messages) == 1
    assert time.monotonic() - begun < mail.PATIENCE


def test_a_name_that_nobody_answers_for_costs_no_more_than_the_time_there_is() -> None:
    """The system's resolver takes no time limit, so it is left to itself."""
    held = Signal()

    def slow(host: str, port: int) -> list[egress.RemoteAddress]:
        held.wait(30)
        return []

    begun = time.monotonic()
    with pytest.raises(Undelivered, match="not found in time"):
        egress.connect("hooks.example.org", 443, deadline=begun + 0.1, internal=False, resolving=slow)

    assert time.monotonic() - begun < 10
    held.set()
