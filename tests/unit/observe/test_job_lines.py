"""The lines of jobs that go well, by the short way: the same as by the long one, and only if nobody could tell."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shigoto.observe import events, log
from shigoto.observe.bus import Bus
from shigoto.observe.log import log_events
from shigoto.observe.log_format import (
    ColourFormatter,
    JournalFormatter,
    JsonFormatter,
    LogHandler,
    TextFormatter,
)
from shigoto.observe.log_writer import MOST_LINES, LosslessWriter
from shigoto.worker.reporting import Capture
from tests.journeys.yard import eventually

ID = UUID("0192f7a0-0000-7000-8000-0000000000ff")
JOB = ("2", ID, 42, "resize", "images", "acme", 3)

OURS = logging.getLogger("shigoto")
FORMATTERS = (JsonFormatter, TextFormatter, ColourFormatter, JournalFormatter)


class Log:
    """A file, and the one handler of ours that writes there, as in a runner process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self.writer = LosslessWriter(self._file.fileno())
        self.handler = LogHandler(self.writer, None)
        self.handler.setLevel(logging.INFO)
        self.handler.setFormatter(JsonFormatter())
        self._bus = Bus()
        log_events(self._bus)

    @property
    def bus(self) -> Bus:
        """Without the handlers that pytest adds to every logger when a test begins."""
        OURS.handlers[:] = [each for each in OURS.handlers if type(each).__module__ != "_pytest.logging"]
        return self._bus

    def lines(self) -> list[str]:
        self.writer.drain()
        return self.path.read_bytes().decode().split("\n")[:-1]

    def close(self) -> None:
        self.writer.drain()
        self._file.close()


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Log]:
    level = OURS.level
    OURS.setLevel(logging.INFO)
    OURS.propagate = False
    written = Log(tmp_path / "log")
    OURS.addHandler(written.handler)
    yield written
    written.close()
    OURS.handlers.clear()
    OURS.propagate = True
    OURS.setLevel(level)


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    """The records that were made for lines that are written."""
    made: list[logging.LogRecord] = []
    handle = LogHandler.emit

    def emit(self: LogHandler, record: logging.LogRecord) -> None:
        made.append(record)
        handle(self, record)

    monkeypatch.setattr(LogHandler, "emit", emit)
    return made


TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


TEXT = st.text(max_size=20)
JOBS = st.tuples(TEXT, st.uuids(), st.integers(1, 2**62), TEXT, TEXT, TEXT, st.integers(1, 2**31))


@pytest.mark.parametrize("formatter", FORMATTERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(job=JOBS, duration=st.floats(0, 1e7))
def test_they_are_letter_for_letter_those_of_the_long_way(
    written: Log,
    long_way: list[logging.LogRecord],
    formatter: type[logging.Formatter],
    job: tuple[str, UUID, int, str, str, str, int],
    duration: float,
) -> None:
    """S3-42: also with quotes, line ends, percent signs and other scripts in names."""
    written.handler.setFormatter(formatter())
    told: list[events.Event] = [events.JobStarted(*job), events.JobCompleted(*job, duration)]
    before = len(written.lines())
    long_way.clear()

    for event in told:
        written.bus.publish(event)
    assert not long_way
    for event in told:
        log._write(event)

    lines = [TIME.sub("now", line) for line in written.lines()[before:]]
    assert len(lines) >= 4
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]


def test_no_record_is_made_for_them(written: Log, long_way: list[logging.LogRecord]) -> None:
    written.bus.publish(events.JobStarted(*JOB))
    written.bus.publish(events.JobCompleted(*JOB, 0.25))

    started, completed = (json.loads(line) for line in written.lines())
    assert long_way == []
    assert started["message"] == "Worker 2: Processing job 42 (type: resize)"
    assert completed["duration"] == 0.25


def completed(number: int, task: str) -> events.JobCompleted:
    return events.JobCompleted("2", ID, number, task, "images", "acme", 1, 0.25)


def numbers(written: Log) -> list[int]:
    return [int(found[1]) for line in written.lines() if (found := re.search(r"Job (\d+) completed", line))]


UNCUTTABLE = str(log.NUMBER)  # a task whose lines cannot be cut where numbers stand


def test_a_batch_is_written_in_its_order_however_its_lines_are_made(
    written: Log, long_way: list[logging.LogRecord]
) -> None:
    tasks = ["resize", UNCUTTABLE, "send", UNCUTTABLE, "resize"]
    written.bus.publish_all([completed(at, task) for at, task in enumerate(tasks)])

    assert numbers(written) == [0, 1, 2, 3, 4]
    assert len(long_way) == 2


class Refuses(TextFormatter):
    """Raises for one task."""

    def format(self, record: logging.LogRecord) -> str:
        if "bad" in str(getattr(record, "shigoto", "")):
            raise ValueError("on purpose")
        return super().format(record)


def test_a_line_that_cannot_be_made_costs_no_other(written: Log) -> None:
    written.handler.setFormatter(Refuses())
    written.bus.publish_all([completed(at, "bad" if at == 1 else "resize") for at in range(4)])

    eventually(lambda: numbers(written) == [0, 2, 3])


class RefusesSamples(TextFormatter):
    """Raises for a job that nobody has."""

    def format(self, record: logging.LogRecord) -> str:
        if str(log.NUMBER) in record.getMessage():
            raise ValueError("on purpose")
        return super().format(record)


def test_a_formatter_that_takes_only_what_there_is_gets_that(written: Log) -> None:
    written.handler.setFormatter(RefusesSamples())
    written.bus.publish(events.JobStarted(*JOB))
    written.bus.publish_all([completed(42, "resize")])

    assert len(written.lines()) == 2


def test_a_filter_that_fails_costs_no_other_line(written: Log) -> None:
    def fail(record: logging.LogRecord) -> bool:
        if "Job 1 completed" in record.getMessage():
            raise ValueError("on purpose")
        return True

    log.logger.addFilter(fail)
    try:
        written.bus.publish_all([completed(at, "resize") for at in range(4)])
    finally:
        log.logger.removeFilter(fail)

    assert numbers(written) == [0, 2, 3]


def test_the_capture_of_jobs_own_lines_is_not_in_the_way(
    written: Log, long_way: list[logging.LogRecord]
) -> None:
    """It leaves out what is ours."""
    OURS.addHandler(Capture())

    written.bus.publish(events.JobStarted(*JOB))

    assert len(written.lines()) == 1
    assert long_way == []


class Kept(logging.Handler):
    """Somebody's own handler."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.mark.parametrize("name", ["shigoto", "shigoto.worker"])
def test_somebodys_own_handler_gets_whole_records(written: Log, name: str) -> None:
    logger, own = logging.getLogger(name), Kept()
    logger.addHandler(own)
    try:
        written.bus.publish(events.JobStarted(*JOB))
    finally:
        logger.removeHandler(own)

    [record] = own.records
    assert record.getMessage() == "Worker 2: Processing job 42 (type: resize)"
    assert len(written.lines()) == 1


def test_a_handler_that_would_not_get_them_is_not_in_the_way(
    written: Log, long_way: list[logging.LogRecord]
) -> None:
    own = Kept(logging.ERROR)
    OURS.addHandler(own)

    written.bus.publish(events.JobStarted(*JOB))

    assert len(written.lines()) == 1
    assert long_way == own.records == []


def refuse(_: logging.LogRecord) -> bool:
    return False


@pytest.mark.parametrize("of", ["logger", "handler"])
def test_a_filter_is_asked(written: Log, of: str) -> None:
    owner: Any = log.logger if of == "logger" else written.handler
    owner.addFilter(refuse)
    try:
        written.bus.publish(events.JobStarted(*JOB))
    finally:
        owner.removeFilter(refuse)

    assert written.lines() == []


def other_factory(*args: Any, **more: Any) -> logging.LogRecord:
    return logging.LogRecord(*args, **more)


def test_somebodys_own_factory_makes_records(written: Log, long_way: list[logging.LogRecord]) -> None:
    logging.setLogRecordFactory(other_factory)
    try:
        written.bus.publish(events.JobStarted(*JOB))
    finally:
        logging.setLogRecordFactory(logging.LogRecord)

    assert len(long_way) == 1


def test_whoever_listens_in_on_all_loggers_hears_them(written: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """As sentry-sdk does."""
    heard: list[str] = []
    call = logging.Logger.callHandlers

    def call_handlers(self: logging.Logger, record: logging.LogRecord) -> None:
        if record.name.startswith("shigoto."):  # threads of others may log, too
            heard.append(record.getMessage())
        call(self, record)

    monkeypatch.setattr(logging.Logger, "callHandlers", call_handlers)

    written.bus.publish(events.JobStarted(*JOB))

    assert heard == ["Worker 2: Processing job 42 (type: resize)"]


def test_what_is_set_up_later_counts_within_a_millisecond(
    written: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    millis = count(1_700_000_000_000)
    monkeypatch.setattr(log, "time", lambda: next(millis) / 1000)
    own = Kept()

    written.bus.publish(events.JobStarted(*JOB))
    OURS.addHandler(own)
    written.bus.publish(events.JobStarted(*JOB))
    written.handler.setFormatter(TextFormatter())
    OURS.removeHandler(own)
    written.bus.publish(events.JobStarted(*JOB))
    OURS.setLevel(logging.WARNING)
    written.bus.publish(events.JobStarted(*JOB))

    first, _, third = written.lines()
    assert len(own.records) == 1
    assert json.loads(first)["time"] == "2023-11-14T22:13:20.000Z"
    assert third.startswith("2023-11-14T22:13:20.002Z INFO    shigoto.worker ")


def test_a_formatter_that_shows_them_otherwise_is_asked_each_time(
    written: Log, long_way: list[logging.LogRecord]
) -> None:
    written.handler.setFormatter(logging.Formatter("%(message)s"))

    written.bus.publish(events.JobStarted(*JOB))

    assert written.lines() == ["Worker 2: Processing job 42 (type: resize)"]
    assert len(long_way) == 1


def test_what_else_is_logged_stands_behind_them_and_is_there_at_once(written: Log) -> None:
    written.bus.publish(events.JobStarted(*JOB))
    logging.getLogger("shigoto.shop").warning("about to jump")

    lines = written.path.read_text().splitlines()
    assert [json.loads(line)["logger"] for line in lines] == ["shigoto.worker", "shigoto.shop"]


def test_they_are_written_soon_by_themselves(written: Log) -> None:
    written.bus.publish(events.JobStarted(*JOB))

    eventually(lambda: b"Processing job 42" in written.path.read_bytes())


def test_no_more_than_so_many_wait(written: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    millis = count(1_700_000_000_000)
    monkeypatch.setattr(log, "time", lambda: next(millis) / 1000)
    monkeypatch.setattr(written.writer, "wake", lambda: None)

    for _ in range(MOST_LINES + 10):
        written.bus.publish(events.JobStarted(*JOB))

    assert len(written.writer.lines) <= MOST_LINES + 1
    assert len(written.path.read_bytes().splitlines()) > MOST_LINES - 10


def test_more_tenants_than_are_remembered_are_written_too(
    written: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MOST_KNOWN", 3)

    for number in range(10):
        written.bus.publish(events.JobStarted("2", ID, number, "resize", "images", f"t{number}", 1))

    assert [json.loads(line)["tenant"] for line in written.lines()] == [f"t{number}" for number in range(10)]


PROGRAM = """
import logging, os
from uuid import UUID
from shigoto.observe import events
from shigoto.observe.bus import Bus
from shigoto.observe.log import configure_logging, log_events
configure_logging(format="json", gather=True)
bus = Bus()
log_events(bus)
for number in range(5000):
    bus.publish(events.JobStarted("2", UUID(int=7), number, "resize", "images", "acme", 1))
"""
FORKED = """
if not (child := os.fork()):
    bus.publish(events.JobStarted("child", UUID(int=7), 1, "resize", "images", "acme", 1))
    logging.getLogger("shop").warning("of the child")
    logging.shutdown()
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("to", ["file", "pipe"])
def test_all_of_them_are_there_when_the_process_has_ended(to: str, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as file:
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stderr=file if to == "file" else subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        )
        file.seek(0)
        lines = (file.read() if to == "file" else ended.stderr).splitlines()

    assert [json.loads(line)["number"] for line in lines] == list(range(5000))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_by_itself_and_nothing_twice(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM + "import time; time.sleep(0.002)\n" + FORKED],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert sorted(line["number"] for line in lines if line.get("worker") == "2") == list(range(5000))
    assert [line["message"] for line in lines if line.get("worker") != "2"] == [
        "Worker child: Processing job 1 (type: resize)",
        "of the child",
    ]
