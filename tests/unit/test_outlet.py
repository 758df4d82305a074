"""The outlet of a log: whoever writes goes on at once, whatever the reader does."""

import fcntl
import io
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from shigoto.observe.outlet import Outlet

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks for the room in a pipe")


class Pipe:
    """A pipe with room for little."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.room = fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 4096)

    def read(self, lines: int) -> list[bytes]:
        data = b""
        while data.count(b"\n") < lines:
            data += os.read(self.reader, 65_536)
        return data.splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    # The thread of an outlet may still be stuck: with the reader gone it gives up.
    os.close(pipe.reader)
    os.close(pipe.writer)


def test_lines_arrive_in_their_order(pipe: Pipe) -> None:
    outlet = Outlet(pipe.writer)

    for number in range(100):
        outlet.write(f"{number} ä\n")

    assert pipe.read(100) == [f"{number} ä".encode() for number in range(100)]


def test_what_finds_no_room_is_dropped_and_counted(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    outlet = Outlet(pipe.writer, most=10_000)
    line = "x" * 999 + "\n"

    with caplog.at_level(logging.WARNING, "shigoto.log"):
        began = time.monotonic()
        for _ in range(100):
            outlet.write(line)
        outlet.drain(0.05)
        assert time.monotonic() - began < 1, "nobody reads, and nobody waits"

        lines = 0
        while lines < 10:
            lines += os.read(pipe.reader, 65_536).count(b"\n")
        while not caplog.records:
            time.sleep(0.001)

    assert lines == 10
    [record] = caplog.records
    assert record.args == (90,)


def test_a_file_that_does_not_block_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer, False)
    outlet = Outlet(pipe.writer)

    for _ in range(20):
        outlet.write("x" * 999 + "\n")

    assert pipe.read(20) == [b"x" * 999] * 20


def test_a_reader_that_is_gone_harms_nobody(pipe: Pipe) -> None:
    outlet = Outlet(pipe.writer)
    os.close(pipe.reader)

    outlet.write("to nobody\n")
    outlet.drain(5)

    pipe.reader = os.dup(pipe.writer)


def test_a_stream_without_an_open_file_has_no_outlet() -> None:
    assert Outlet.instead_of(io.StringIO()) is None
    assert Outlet.instead_of(None) is None


def test_the_last_lines_are_written_before_the_process_ends() -> None:
    program = (
        "import logging; from shigoto.observe.log import configure_logging; configure_logging(never_wait=True)\n"
        "for number in range(1000): logging.getLogger('shop').warning('line %d', number)"
    )

    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )

    assert "line 999" in ended.stderr.splitlines()[-1]
    assert len(ended.stderr.splitlines()) == 1000
