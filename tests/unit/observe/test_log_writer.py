"""The writer of a log: whoever writes goes on at once, whatever the reader does."""

import fcntl
import io
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue

import pytest

from shigoto.observe.log_writer import DroppingWriter

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks for the room in a pipe")

PATIENCE = 20  # seconds for what takes no time on a machine that has nothing else to do


class Pipe:
    """A pipe with room for little."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.room = fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 4096)

    def fill(self) -> None:
        """Leave no room, so that the next to write is held up until somebody reads."""
        assert os.write(self.writer, b"x" * self.room) == self.room

    def take(self) -> bytes:
        """What is there, as soon as there is something."""
        assert select.select([self.reader], [], [], PATIENCE)[0], "nothing was written"
        return os.read(self.reader, 65_536)

    def read(self, lines: int) -> list[bytes]:
        data = b""
        while data.count(b"\n") < lines:
            data += self.take()
        return data.splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    # The thread of a writer may still be stuck: with the reader gone it gives up.
    os.close(pipe.reader)
    os.close(pipe.writer)


def test_lines_arrive_in_their_order(pipe: Pipe) -> None:
    writer = DroppingWriter(pipe.writer)

    for number in range(100):
        writer.write(f"{number} ä\n")

    assert pipe.read(100) == [f"{number} ä".encode() for number in range(100)]


@pytest.fixture
def told() -> Iterator[SimpleQueue[logging.LogRecord]]:
    """What the writer itself has to say."""
    told: SimpleQueue[logging.LogRecord] = SimpleQueue()
    logger, handler = logging.getLogger("shigoto.log"), QueueHandler(told)
    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    yield told
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_what_finds_no_room_is_dropped_and_counted(pipe: Pipe, told: SimpleQueue[logging.LogRecord]) -> None:
    pipe.fill()
    writer = DroppingWriter(pipe.writer, most=10_000)

    began = time.monotonic()
    for number in range(100):
        writer.write(f"{number:999}\n")
    writer.drain(0.05)
    assert time.monotonic() - began < PATIENCE, "nobody reads, and nobody waits"

    assert pipe.take() == b"x" * pipe.room
    assert [int(line) for line in pipe.read(10)] == list(range(10))
    assert told.get(timeout=PATIENCE).getMessage().startswith("90 lines of this log were dropped")
    assert told.empty()


def test_a_file_that_does_not_block_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer, False)
    writer = DroppingWriter(pipe.writer)

    for _ in range(20):
        writer.write("x" * 999 + "\n")

    assert pipe.read(20) == [b"x" * 999] * 20


def test_a_reader_that_is_gone_harms_nobody(pipe: Pipe) -> None:
    writer = DroppingWriter(pipe.writer)
    os.close(pipe.reader)

    began = time.monotonic()
    writer.write("to nobody\n")
    writer.drain(PATIENCE)
    assert time.monotonic() - began < PATIENCE, "what nobody can read does not wait any more"

    pipe.reader = os.dup(pipe.writer)


def test_a_stream_without_an_open_file_has_no_writer() -> None:
    assert DroppingWriter.instead_of(io.StringIO()) is None
    assert DroppingWriter.instead_of(None) is None


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


def test_lines_that_wait_are_written_together_but_never_torn_apart(pipe: Pipe) -> None:
    """Other processes write to the same pipe, and only so much is kept together there."""
    pipe.fill()
    writer = DroppingWriter(pipe.writer)
    lines = [f"{number:0>{number % 300 + 9}}" for number in range(500)]

    for line in lines:
        writer.write(f"{line}\n")

    assert pipe.take() == b"x" * pipe.room
    writes: list[bytes] = []
    while sum(written.count(b"\n") for written in writes) < len(lines):
        writes.append(pipe.take())
    assert b"".join(writes).decode().split() == lines
    assert all(written.endswith(b"\n") for written in writes)
    assert len(writes) < len(lines) / 10


def test_a_line_longer_than_what_is_written_at_once_arrives_whole(pipe: Pipe) -> None:
    writer = DroppingWriter(pipe.writer)

    for letter in "abc":
        writer.write(letter * 100_000 + "\n")

    assert pipe.read(3) == [letter * 100_000 for letter in (b"a", b"b", b"c")]


def test_many_threads_lose_no_line_and_keep_their_own_order(pipe: Pipe) -> None:
    writer = DroppingWriter(pipe.writer)

    def write(name: str) -> None:
        for number in range(500):
            writer.write(f"{name} {number}\n")

    with ThreadPoolExecutor(4) as pool:
        for name in "abcd":
            pool.submit(write, name)
        lines = pipe.read(2000)

    for name in "abcd":
        assert [line for line in lines if line.startswith(name.encode())] == [
            f"{name} {number}".encode() for number in range(500)
        ]


def test_a_single_line_does_not_wait_for_others(pipe: Pipe) -> None:
    writer = DroppingWriter(pipe.writer)

    for number in range(20):
        writer.write(f"{number}\n")
        assert pipe.read(1) == [str(number).encode()]


def test_a_file_has_all_lines_in_their_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        writer = DroppingWriter(file.fileno())
        for number in range(5000):
            writer.write(f"{number:099}\n")
        writer.drain(PATIENCE)

    assert (tmp_path / "log").read_text().splitlines() == [f"{number:099}" for number in range(5000)]


def test_a_forked_child_writes_by_itself() -> None:
    """Its thread stayed with the parent, and what waits there is not the child's to write."""
    program = (
        "import logging, os; from shigoto.observe.log import configure_logging; configure_logging(never_wait=True)\n"
        "log = logging.getLogger('shop').warning\n"
        "for number in range(200): log('parent %d', number)\n"
        "if not (child := os.fork()):\n"
        "    for number in range(200): log('child %d', number)\n"
        "    logging.shutdown()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)"
    )

    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )

    said = [line.split("shop ")[1] for line in ended.stderr.splitlines()]
    for who in ("parent", "child"):
        assert [line for line in said if line.startswith(who)] == [f"{who} {number}" for number in range(200)]
