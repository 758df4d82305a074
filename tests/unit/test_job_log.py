"""The lines of a run: which are kept, which are told, and what is made of `logging`."""

import logging
import socket
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, cast
from uuid import UUID

import pytest

import shigoto.context
from shigoto.context import (
    LONGEST_LINE,
    MOST_LOG_BYTES,
    Context,
    JobLog,
    JobServices,
    Signals,
    current_context,
)
from shigoto.engine.memory import MemoryEngine
from shigoto.model.job import LogLine
from shigoto.model.worker import LogTail
from shigoto.worker.child_main import ChildOutput
from shigoto.worker.child_process import ChildNews, ChildUnfit, RunBegan
from shigoto.worker.interrupts import Interrupts
from shigoto.worker.process import Inbox
from shigoto.worker.reporting import Capture, capturing
from tests.unit.test_context import LEASE


def told(tail: LogTail | None) -> list[tuple[int, str]]:
    return [] if tail is None else [(line.line, line.text) for line in tail.lines]


def filled(count: int, text: str = "x") -> JobLog:
    lines = JobLog()
    for _ in range(count):
        lines.add(5, "info", text)
    return lines


def test_lines_are_numbered_from_one_and_told_once() -> None:
    lines = filled(2)

    tail = lines.tail()
    assert tail is not None
    assert (tail.first, told(tail)) == (1, [(1, "x"), (2, "x")])
    assert (tail.lines[0].at, tail.lines[0].level) == (5, "info")
    assert lines.tail() is None

    lines.add(6, "info", "y")
    assert told(lines.tail()) == [(3, "y")]


def test_the_whole_is_given_again_and_again() -> None:
    lines = JobLog()
    assert lines.whole() is None

    lines.add(1, "info", "x")

    assert told(lines.whole()) == told(lines.whole()) == [(1, "x")]
    assert told(lines.tail()) == [(1, "x")]


def test_of_many_lines_the_last_thousand_are_kept() -> None:
    lines = filled(1_500)

    tail = lines.tail()

    assert tail is not None
    assert (tail.first, len(tail.lines), tail.lines[-1].line) == (501, 1_000, 1_500)


def test_of_long_lines_as_many_as_fit_into_64_kib_are_kept() -> None:
    lines = filled(100, "é" * 1_000)

    tail = lines.tail()

    assert tail is not None
    assert len(tail.lines) == MOST_LOG_BYTES // 2_000
    assert tail.first == 100 - len(tail.lines) + 1


def test_what_was_told_and_is_no_longer_kept_is_named_by_the_first_line_that_is() -> None:
    lines = filled(1_000)
    lines.tail()

    lines.add(1, "info", "one more")

    tail = lines.tail()
    assert tail is not None
    assert (tail.first, told(tail)) == (2, [(1_001, "one more")])


def test_a_tail_that_did_not_arrive_is_given_again_with_what_came_since() -> None:
    lines = filled(2)
    lost = lines.tail()
    assert lost is not None
    lines.add(1, "info", "y")

    lines.unsend(lost)

    assert told(lines.tail()) == [(1, "x"), (2, "x"), (3, "y")]
    assert lines.tail() is None


def test_several_lines_in_one_text_are_several_lines() -> None:
    lines = JobLog()
    lines.add(1, "error", "Traceback:\n  boom\r\nend")
    lines.add(1, "info", "")

    assert told(lines.tail()) == [(1, "Traceback:"), (2, "  boom"), (3, "end"), (4, "")]


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("tab\there", "tab\there"),
        ("nul \x00, bell \x07, escape \x1b[31m", "nul \\x00, bell \\x07, escape \\x1b[31m"),
        ("half \ud83d of a pair", "half \\xd83d of a pair"),
        ("x" * 2_001, "x" * 1_999 + "…"),
        ("\x00" * 2_000, "\\x00" * 500),
    ],
)
def test_what_no_store_would_take_is_made_storable(text: str, stored: str) -> None:
    lines = JobLog()
    lines.add(1, "info", text)

    [(_, kept)] = told(lines.tail())

    assert kept == stored
    assert len(kept) <= LONGEST_LINE
    kept.encode()


def test_threads_may_write_at_once() -> None:
    lines = JobLog()

    def write() -> None:
        for _ in range(200):
            lines.add(1, "info", "x")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert [number for number, _ in told(lines.tail())] == list(range(1, 801))


class TestCapture:
    """What handlers write with `logging` is in the logs of their jobs."""

    @pytest.fixture
    def signals(self) -> Signals:
        return Signals()

    @pytest.fixture(autouse=True)
    def quiet_root(self) -> None:
        logging.getLogger().setLevel(logging.DEBUG)

    def run(
        self, signals: Signals, logger: str, level: int, text: str, *values: object
    ) -> list[tuple[str, str]]:
        """Write one record inside a job, and tell what its lines are then."""
        services = JobServices(MemoryEngine(), UUID(int=1))

        def job() -> None:
            current_context.set(Context(LEASE, signals, services))
            logging.getLogger(logger).log(level, text, *values)

        copy_context().run(job)
        tail = None if signals.lines is None else signals.lines.tail()
        return [] if tail is None else [(line.level, line.text) for line in tail.lines]

    def test_records_of_a_job_are_among_its_lines(self, signals: Signals) -> None:
        with capturing():
            assert self.run(signals, "shop", logging.INFO, "%s sold", 3) == [("info", "3 sold")]
            assert self.run(signals, "shop.tills", logging.ERROR, "empty") == [("error", "empty")]

        assert self.run(signals, "shop", logging.INFO, "afterwards") == []

    def test_debug_records_and_our_own_are_not(self, signals: Signals) -> None:
        with capturing():
            assert self.run(signals, "shop", logging.DEBUG, "details") == []
            assert self.run(signals, "shigoto", logging.INFO, "ours") == []
            assert self.run(signals, "shigoto.worker", logging.ERROR, "ours") == []
            assert self.run(signals, "shigotos", logging.INFO, "theirs") == [("info", "theirs")]

    def test_a_record_outside_of_jobs_goes_nowhere(self, signals: Signals) -> None:
        with capturing():
            logging.getLogger("shop").info("nobody's")

        assert signals.lines is None

    def test_a_traceback_is_written_line_by_line(self, signals: Signals) -> None:
        def job() -> None:
            current_context.set(Context(LEASE, signals, JobServices(MemoryEngine(), UUID(int=1))))
            try:
                raise ValueError("boom")
            except ValueError:
                logging.getLogger("shop").exception("failed")

        with capturing():
            copy_context().run(job)

        assert signals.lines is not None
        lines = told(signals.lines.tail())
        assert (lines[0], lines[1], lines[-1][1]) == (
            (1, "failed"),
            (2, "Traceback (most recent call last):"),
            "ValueError: boom",
        )

    def test_a_record_that_cannot_be_written_disturbs_nobody(
        self, signals: Signals, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def job() -> None:
            current_context.set(Context(LEASE, signals, JobServices(MemoryEngine(), UUID(int=1))))
            # Not through a logger: the test runner's own handler would raise.
            Capture().handle(
                logging.makeLogRecord({"name": "shop", "levelno": 20, "msg": "%d", "args": ("x",)})
            )

        copy_context().run(job)

        assert signals.lines is None
        assert "Logging error" in capsys.readouterr().err


# Destructors that log, in the midst of the writing of a line


class Once:
    """Calls something, the first time only; and does what it stands for."""

    def __init__(self, real: Callable[..., Any], call: Callable[[], object]) -> None:
        self._real = real
        self._calls = [call]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._calls:
            self._calls.pop()()
        return self._real(*args, **kwargs)


def in_time(work: Callable[[], object]) -> None:
    """Do it in a thread that may hang."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it hangs"


def test_a_line_that_is_written_in_the_midst_of_another_hangs_nobody_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector calls destructors wherever it likes, and some of them log."""
    heard: list[tuple[int, str]] = []

    def listen() -> None:
        while (tail := lines.tail()) is not None:
            heard.extend(told(tail))

    lines = JobLog(listen)
    monkeypatch.setattr(
        shigoto.context, "LogLine", Once(LogLine, lambda: lines.add(1, "info", "from a destructor"))
    )

    in_time(lambda: lines.add(1, "info", "first\nsecond"))

    assert [number for number, _ in heard] == [1, 2, 3]
    assert sorted(text for _, text in heard) == ["first", "from a destructor", "second"]
    assert sorted(told(lines.whole())) == sorted(heard)


def test_a_line_that_is_written_while_others_are_told_is_told_next(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = filled(2)
    monkeypatch.setattr(shigoto.context, "LogTail", Once(LogTail, lambda: lines.add(1, "info", "late")))
    tails: list[LogTail | None] = []

    in_time(lambda: tails.append(lines.tail()))

    assert [told(tail) for tail in tails] == [[(1, "x"), (2, "x")]]
    assert told(lines.tail()) == [(3, "late")]


def test_the_first_line_of_a_run_may_be_interrupted_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = Signals()
    context = Context(LEASE, signals, JobServices(MemoryEngine(), UUID(int=1)))
    monkeypatch.setattr(
        shigoto.context, "JobLog", Once(JobLog, lambda: context.write("info", "from a destructor"))
    )

    in_time(lambda: context.write("info", "first"))

    assert signals.lines is not None
    assert told(signals.lines.tail()) == [(1, "from a destructor"), (2, "first")]


def test_a_child_that_is_interrupted_by_itself_while_it_speaks_says_one_thing_after_the_other() -> None:
    mine, theirs = socket.socketpair()
    with theirs, mine:
        interrupts = Interrupts()
        output = ChildOutput(mine, interrupts)
        output.line = cast("socket.socket", Interrupted(mine, lambda: output.send(RunBegan())))

        in_time(lambda: output.send(ChildUnfit("a word")))

        inbox = Inbox[ChildNews](ChildNews)
        assert inbox.feed(theirs.recv(4_096)) == [ChildUnfit("a word"), RunBegan()]


class Interrupted:
    """A socket whose first `sendall` is interrupted when half is sent."""

    def __init__(self, real: socket.socket, call: Callable[[], object]) -> None:
        self._real = real
        self._calls = [call]

    def sendall(self, data: bytes) -> None:
        self._real.sendall(data[:5])
        if self._calls:
            self._calls.pop()()
        self._real.sendall(data[5:])
