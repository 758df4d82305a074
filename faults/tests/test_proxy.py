"""The line between a client and a server that faults are made of: what each mode does, seen from both ends."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from faults.tools.proxy import (
    CutAfterBytes,
    CutAfterMatch,
    Delay,
    HalfOpen,
    Pass,
    Proxy,
    Refuse,
    Reset,
    Silent,
)

SOON = 10.0


class Echo:
    """A server that answers every line with the same line, and remembers all that it was told."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.news = threading.Condition()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def wait_for(self, line: bytes) -> bool:
        with self.news:
            return self.news.wait_for(lambda: line in self.told, SOON)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with closing(connection), connection.makefile("rb") as lines:
            try:
                for line in lines:
                    with self.news:
                        self.told.append(line.strip())
                        self.news.notify_all()
                    connection.sendall(line)
            except OSError:
                return


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as server:
        yield server


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port, seed=7) as proxy:
        yield proxy


def client(proxy: Proxy, timeout: float = SOON) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=timeout)


def said(connection: socket.socket, line: bytes) -> bytes:
    """What comes back of a line."""
    connection.sendall(line + b"\n")
    return heard(connection)


def heard(connection: socket.socket) -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        part = connection.recv(4096)
        if not part:
            return text
        text += part
    return text.strip()


def expect_reset(connection: socket.socket) -> None:
    with pytest.raises(ConnectionResetError):
        heard(connection)


def expect_silence(connection: socket.socket, seconds: float = 0.1) -> None:
    connection.settimeout(seconds)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(SOON)


def test_a_line_passes_on_what_it_is_given_and_its_end(proxy: Proxy, echo: Echo) -> None:
    with closing(client(proxy)) as connection:
        assert said(connection, b"hello") == b"hello"
        assert said(connection, b"x" * 500_000) == b"x" * 500_000
        connection.shutdown(socket.SHUT_WR)

        assert connection.recv(1) == b""
    assert (proxy.accepted, proxy.cuts) == (1, 0)


def test_a_slow_line_takes_as_long_as_it_is_told_to(proxy: Proxy) -> None:
    with closing(client(proxy)) as connection:
        proxy.mode = Delay(0.1, jitter=0.01)
        began = time.monotonic()

        assert said(connection, b"hello") == b"hello"

        assert time.monotonic() - began >= 0.2


def test_a_silent_line_says_nothing_to_anybody_and_goes_on_when_it_speaks_again(
    proxy: Proxy, echo: Echo
) -> None:
    """A blackhole without a reset: only a deadline of one's own can tell."""
    with closing(client(proxy)) as connection:
        assert said(connection, b"before") == b"before"
        proxy.mode = Silent()
        connection.sendall(b"meanwhile\n")
        expect_silence(connection)
        with closing(client(proxy)) as newcomer:
            newcomer.sendall(b"hello?\n")
            expect_silence(newcomer)
            assert echo.told == [b"before"]

            proxy.mode = Pass()

            assert (heard(connection), heard(newcomer)) == (b"meanwhile", b"hello?")
    assert proxy.cuts == 0


def test_one_direction_can_be_silent_alone(proxy: Proxy, echo: Echo) -> None:
    with closing(client(proxy)) as connection:
        proxy.mode = Silent(("to_client",))
        connection.sendall(b"done?\n")

        assert echo.wait_for(b"done?")
        expect_silence(connection)

        proxy.mode = Silent(("to_server",))
        assert heard(connection) == b"done?"
        connection.sendall(b"lost\n")
        expect_silence(connection)
        assert echo.told == [b"done?"]


def test_a_line_that_was_forgotten_never_speaks_again_while_new_ones_do(proxy: Proxy, echo: Echo) -> None:
    with closing(client(proxy)) as connection:
        assert said(connection, b"before") == b"before"
        proxy.mode = HalfOpen()
        connection.sendall(b"lost\n")
        expect_silence(connection)
        with closing(client(proxy)) as newcomer:
            assert said(newcomer, b"hello") == b"hello"
        proxy.mode = Pass()
        connection.sendall(b"still lost\n")
        expect_silence(connection)
    assert echo.told == [b"before", b"hello"]
    assert proxy.cuts == 0


def test_open_connections_are_reset_and_new_ones_too(proxy: Proxy) -> None:
    with closing(client(proxy)) as connection:
        assert said(connection, b"hello") == b"hello"
        proxy.mode = Reset()
        expect_reset(connection)
        assert not _is_answered(proxy)
    assert proxy.wait_for(lambda proxy: proxy.cuts == 2)


def test_a_share_of_the_new_connections_is_reset_and_the_seed_says_which(echo: Echo) -> None:
    def fates(seed: int) -> list[bool]:
        with Proxy(echo.port, seed=seed) as proxy:
            proxy.mode = Reset(probability=0.5)
            return [_is_answered(proxy) for _ in range(12)]

    assert fates(1) == fates(1)
    assert set(fates(1)) == {True, False}
    assert fates(1) != fates(2)


def _is_answered(proxy: Proxy) -> bool:
    """A connection may be reset before `connect` has even returned."""
    try:
        with closing(client(proxy)) as connection:
            return said(connection, b"hello") == b"hello"
    except ConnectionError:
        return False


def test_a_refused_connection_finds_nobody_and_the_port_comes_back(proxy: Proxy) -> None:
    with closing(client(proxy)) as connection:
        assert said(connection, b"hello") == b"hello"
        proxy.mode = Refuse()
        with pytest.raises(ConnectionRefusedError):
            client(proxy)
        assert said(connection, b"still here") == b"still here"

        assert proxy.cut() == 1
        expect_reset(connection)
        proxy.mode = Pass()
        with closing(client(proxy)) as newcomer:
            assert said(newcomer, b"hello") == b"hello"


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_line_is_cut_after_so_many_bytes(proxy: Proxy, count: int) -> None:
    with closing(client(proxy)) as connection:
        assert said(connection, b"hello") == b"hello"
        proxy.mode = CutAfterBytes(count)
        connection.sendall(b"0123456789\n")
        got = connection.recv(count, socket.MSG_WAITALL) if count else b""
        expect_reset(connection)
    assert got == b"0123456789"[:count]
    assert (proxy.cuts, proxy.passed["to_client"]) == (1, len(b"hello\n") + count)


def test_what_was_asked_for_is_done_and_the_answer_never_comes(proxy: Proxy, echo: Echo) -> None:
    """The ambiguous commit: the words come in two pieces, reach the server, and the client is cut off."""
    with closing(client(proxy)) as connection:
        proxy.mode = CutAfterMatch(b"COMMIT")
        assert said(connection, b"INSERT") == b"INSERT"
        connection.sendall(b"COM")
        assert proxy.wait_for(lambda proxy: proxy.passed["to_server"] == len(b"INSERT\nCOM"))
        connection.sendall(b"MIT\n")

        expect_reset(connection)
    assert echo.told == [b"INSERT", b"COMMIT"]
    assert proxy.passed["to_client"] == len(b"INSERT\n")


def test_a_share_of_the_matches_is_left_alone(proxy: Proxy, echo: Echo) -> None:
    proxy.mode = CutAfterMatch(b"COMMIT", probability=0.3)
    answered = 0
    for number in range(30):
        with closing(client(proxy)) as connection:
            try:
                answered += said(connection, b"COMMIT %d" % number) == b"COMMIT %d" % number
            except ConnectionError:
                continue
    assert len(echo.told) == 30
    assert (answered, proxy.cuts) == (30 - proxy.cuts, proxy.cuts)
    assert 0 < proxy.cuts < 20


def test_a_server_that_is_not_there_is_a_line_that_is_cut() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    with Proxy(port) as proxy:
        assert not _is_answered(proxy)
