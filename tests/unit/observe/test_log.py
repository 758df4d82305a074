"""Events as log lines: the sentences, the fields beside them, and the two formats."""

import io
import json
import logging
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shigoto.model.job import FailureKind, Lease, State
from shigoto.model.worker import Rescued
from shigoto.observe import events, log
from shigoto.observe.bus import Bus
from shigoto.observe.events import Event
from shigoto.observe.log import configure_logging, log_events
from shigoto.observe.log_format import (
    ColourFormatter,
    JournalFormatter,
    JsonFormatter,
    TextFormatter,
    formatter_for,
)
from shigoto.worker.reporting import about

ID = UUID(int=7)
JOB = ("2", ID, 42, "resize", "images", "acme", 3)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where the log goes; the root logger is as it was afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], root.level = handlers, level


SENTENCES: dict[Event, str] = {
    events.WorkerStarted("2", ID, None, 100, 8): "Worker 2 started",
    events.WorkerStopping("2", "stopped"): "Worker 2 received stop signal",
    events.WorkerStopped("2", "stopped", 0, 0): "Worker 2 stopped",
    events.JobStarted(*JOB): "Worker 2: Processing job 42 (type: resize)",
    events.JobCompleted(*JOB, 0.5): "Worker 2: Job 42 completed successfully",
    events.JobRetried(
        *JOB, 0.5, 300_000, FailureKind.ERROR, "OSError: disk"
    ): "Worker 2: Job 42 failed: OSError: disk",
    events.JobFailedEvent(
        *JOB, 0.5, FailureKind.TIMEOUT, "TimeoutError"
    ): "Worker 2: Job 42 failed: TimeoutError",
    events.JobSnoozed(*JOB, 0.5, 90_000): "Worker 2: Job 42 snoozed for 90 s",
}


def sentence_of(event: Event, caplog: pytest.LogCaptureFixture) -> str:
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "shigoto.worker"):
        bus = Bus()
        log_events(bus)
        bus.publish(event)
    [record] = caplog.records
    return record.getMessage()


def test_of_many_schedules_ten_are_named_with_their_number(caplog: pytest.LogCaptureFixture) -> None:
    names = tuple(f"s{each}" for each in range(10_001))

    assert sentence_of(events.SchedulesDeclared("2", names), caplog) == (
        "2: 10001 schedules (s0, s1, s2, s3, s4, s5, s6, s7, s8, s9 and 9991 more) are now what this code says"
    )
    assert sentence_of(events.SchedulesDeclared("2", names[:2]), caplog) == (
        "2: 2 schedules (s0, s1) are now what this code says"
    )
    assert sentence_of(events.SchedulesDeclared("2", names[:1]), caplog) == (
        "2: Schedule s0 is now what this code says"
    )


def test_an_error_of_a_schedule_ends_with_one_dot(caplog: pytest.LogCaptureFixture) -> None:
    failed = events.ScheduleFailed("2", "nightly", "ScheduleInvalid: a call, not 5.", 1, failed=False)

    assert sentence_of(failed, caplog).endswith("a call, not 5. It is tried again")


@pytest.mark.parametrize(("event", "sentence"), SENTENCES.items(), ids=lambda value: type(value).__name__)
def test_the_message_is_the_sentence_of_the_specification(
    event: Event, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S0-62, S0-63."""
    with caplog.at_level(logging.INFO, "shigoto.worker"):
        bus = Bus()
        log_events(bus)
        bus.publish(event)

    [record] = caplog.records
    assert (record.name, record.getMessage()) == ("shigoto.worker", sentence)


WHEN, TIME = 1_700_000_000.98765, "2023-11-14T22:13:20.987Z"

# What is written of each, without what all of them have in common: as text and as JSON.
LINES: dict[Event, tuple[str, str]] = {
    events.JobStarted(*JOB): (
        (
            "Worker 2: Processing job 42 (type: resize) worker=2 job_id=00000000-0000-0000-0000-000000000007"
            " number=42 task=resize queue=images tenant=acme attempt=3"
        ),
        (
            '"message": "Worker 2: Processing job 42 (type: resize)", "worker": "2",'
            ' "job_id": "00000000-0000-0000-0000-000000000007", "number": 42, "task": "resize", "queue": "images",'
            ' "tenant": "acme", "attempt": 3'
        ),
    ),
    events.JobCompleted(*JOB, 1.1627002095337957e-05): (
        (
            "Worker 2: Job 42 completed successfully worker=2 job_id=00000000-0000-0000-0000-000000000007"
            " number=42 task=resize queue=images tenant=acme attempt=3 duration=1.2e-05"
        ),
        (
            '"message": "Worker 2: Job 42 completed successfully", "worker": "2",'
            ' "job_id": "00000000-0000-0000-0000-000000000007", "number": 42, "task": "resize", "queue": "images",'
            ' "tenant": "acme", "attempt": 3, "duration": 1.2e-05'
        ),
    ),
    events.JobCompleted("host:1", ID, 1, "a b", "ü=", "", 1, 1234.5): (
        (
            "Worker host:1: Job 1 completed successfully worker=host:1 job_id=00000000-0000-0000-0000-000000000007"
            ' number=1 task="a b" queue="\\u00fc=" tenant="" attempt=1 duration=1234.5'
        ),
        (
            '"message": "Worker host:1: Job 1 completed successfully", "worker": "host:1",'
            ' "job_id": "00000000-0000-0000-0000-000000000007", "number": 1, "task": "a b", "queue": "\\u00fc=",'
            ' "tenant": "", "attempt": 1, "duration": 1234.5'
        ),
    ),
    events.JobStarted("\x07", ID, 1, 'a"', "\u2028", "日本", 1): (
        (
            'Worker \\x07: Processing job 1 (type: a") worker="\\u0007" job_id=00000000-0000-0000-0000-000000000007'
            ' number=1 task="a\\"" queue="\\u2028" tenant=日本 attempt=1'
        ),
        (
            '"message": "Worker \\u0007: Processing job 1 (type: a\\")", "worker": "\\u0007",'
            ' "job_id": "00000000-0000-0000-0000-000000000007", "number": 1, "task": "a\\"", "queue": "\\u2028",'
            ' "tenant": "\\u65e5\\u672c", "attempt": 1'
        ),
    ),
    events.WorkerStarted("2", ID, None, 100, 8): (
        (
            "Worker 2 started worker=2 worker_id=00000000-0000-0000-0000-000000000007 queues=null concurrency=100"
            " threads=8 children=0 supervised=false"
        ),
        (
            '"message": "Worker 2 started", "worker": "2", "worker_id": "00000000-0000-0000-0000-000000000007",'
            ' "queues": null, "concurrency": 100, "threads": 8, "children": 0, "supervised": false'
        ),
    ),
    events.WorkerStarted("2", ID, ("a", "b c"), 100, 8, supervised=True): (
        (
            "Worker 2 started worker=2 worker_id=00000000-0000-0000-0000-000000000007"
            ' queues=["a", "b c"] concurrency=100 threads=8 children=0 supervised=true'
        ),
        (
            '"message": "Worker 2 started", "worker": "2", "worker_id": "00000000-0000-0000-0000-000000000007",'
            ' "queues": ["a", "b c"], "concurrency": 100, "threads": 8, "children": 0, "supervised": true'
        ),
    ),
}


@pytest.fixture
def at_a_known_time() -> Iterator[None]:
    """Every record is made at the same time; by a factory, as programs of others may have one."""

    def factory(*args: Any, **more: Any) -> logging.LogRecord:
        record = before(*args, **more)
        record.created = WHEN
        return record

    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(factory)
    yield
    logging.setLogRecordFactory(before)


@pytest.mark.usefixtures("at_a_known_time")
@pytest.mark.parametrize(("event", "lines"), LINES.items(), ids=lambda value: type(value).__name__)
def test_lines_are_written_letter_for_letter(
    event: Event, lines: tuple[str, str], stream: io.StringIO
) -> None:
    """S0-62, S0-63: programs of others read them."""
    text, fields = lines
    bus = Bus()
    configure_logging(format="text", stream=stream)
    log_events(bus)

    bus.publish(event)
    configure_logging(format="json", stream=stream)
    bus.publish(event)

    assert stream.getvalue() == (
        f"{TIME} INFO    shigoto.worker {text}\n"
        f'{{"time": "{TIME}", "level": "info", "logger": "shigoto.worker", {fields}}}\n'
    )


@pytest.mark.parametrize(("event", "lines"), LINES.items(), ids=lambda value: type(value).__name__)
def test_the_journal_has_the_same_line_without_the_time(
    event: Event, lines: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    with caplog.at_level(logging.INFO, "shigoto.worker"):
        log_events(bus)
        bus.publish(event)

    [record] = caplog.records
    assert JournalFormatter().format(record) == f"<6>INFO    shigoto.worker {lines[0]}"


def test_the_job_at_work_comes_first_unless_the_event_is_about_a_job(stream: io.StringIO) -> None:
    """A strand that begins a job still has the one before in hand."""
    configure_logging(stream=stream, fields=lambda: {"shop": "north", "number": 7})
    bus = Bus()
    log_events(bus)

    bus.publish(events.WorkerStopping("2", "stopped"))
    bus.publish(events.JobStarted(*JOB))

    stopping, started = stream.getvalue().splitlines()
    assert stopping.endswith(" shop=north number=7 worker=2 reason=stopped")
    assert "shop=north" not in started
    assert " worker=2 job_id=00000000-0000-0000-0000-000000000007 number=42 " in started


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text()) | st.binary()
)


@given(message=st.text(), value=ANYTHING)
def test_a_line_of_text_is_what_its_definition_says(message: str, value: object) -> None:
    """What is plain takes a short way, which must not show."""
    record = logging.LogRecord("shop", logging.INFO, "shop.py", 1, message, (), None)
    record.shigoto = {"key": value}

    line = JournalFormatter().format(record)

    sentence = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in message
    )
    word = json.dumps(value, default=str)
    if isinstance(value, str) and value and all(each.isprintable() and each not in ' "=' for each in value):
        word = value
    assert line == f"<6>INFO    shop {sentence} key={word}"


@given(st.floats(-1e9, 1e10))
@example(1_700_000_000.0009995)
@example(1_700_000_000.9989999)
@example(1_700_000_000.9994999)
@example(1_700_000_000.9999994)
@example(1_700_000_000.9999996)
@example(-0.25)
def test_the_time_is_that_of_the_clock_to_the_millisecond(created: float) -> None:
    record = logging.LogRecord("shop", logging.INFO, "shop.py", 1, "low on ink", (), None)
    record.created = created

    told, _, _ = TextFormatter().format(record).partition(" ")

    assert (
        told == f"{datetime.fromtimestamp(created, UTC).replace(tzinfo=None).isoformat('T', 'milliseconds')}Z"
    )


def test_handlers_of_others_get_whole_records(caplog: pytest.LogCaptureFixture) -> None:
    bus = Bus()
    with caplog.at_level(logging.INFO, "shigoto.worker"):
        log_events(bus)
        bus.publish(events.JobStarted(*JOB))
        bus.publish(events.JobsRescued("2", ()))

    started, rescued = caplog.records
    ordinary = vars(logging.LogRecord("shop", logging.INFO, "shop.py", 1, "low on ink", (), None))
    assert set(vars(started)) >= {*ordinary, "shigoto"}
    assert (started.msg, started.args) == ("%s", ("Worker 2: Processing job 42 (type: resize)",))
    assert (started.filename, started.module, started.funcName) == ("log.py", "log", "_write")
    assert started.lineno == rescued.lineno > 0
    assert started.pathname == log.__file__
    assert vars(started)["shigoto"] == {
        "worker": "2",
        "job_id": str(ID),
        "number": 42,
        "task": "resize",
        "queue": "images",
        "tenant": "acme",
        "attempt": 3,
    }


def test_filters_and_handlers_of_our_loggers_are_asked(stream: io.StringIO) -> None:
    class Mute(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            return "Job 42 completed" not in record.getMessage()

    configure_logging(stream=stream)
    bus = Bus()
    log_events(bus)
    mute = Mute()
    log.logger.addFilter(mute)
    try:
        bus.publish(events.JobStarted(*JOB))
        bus.publish(events.JobCompleted(*JOB, 0.5))
    finally:
        log.logger.removeFilter(mute)

    [line] = stream.getvalue().splitlines()
    assert "Processing job 42" in line


def test_a_stream_that_fails_does_not_harm_whoever_logs(
    stream: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(stream=stream)
    stream.close()

    logging.getLogger("shop").warning("low on ink")

    assert "--- Logging error ---" in capsys.readouterr().err


def test_every_event_has_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}

    unwritten = {events.JobsClaimed, events.StoreAnswered}  # thousands a second, for those who count
    assert kinds - {Event, events.JobEvent} - unwritten == set(log._SENTENCES)

    rare: list[Event] = [
        events.JobReleased(*JOB, 0.0),
        events.JobCancelledEvent(*JOB, 0.0),
        events.LeaseLostEvent(*JOB, 0.0),
        events.WorkersFenced("2", (ID,)),
        events.JobsRescued("2", (Rescued(ID, 42, "resize", State.PENDING),)),
        events.TasksUnknown("2", ("resize",)),
        events.JobsPromoted("2", 3),
        events.StoreTrouble("2", "settler", "disk full", 1.5),
        events.StoreRecovered("2", "settler", 4),
        events.ClockStepped("2", 90_000),
    ]
    with caplog.at_level(logging.DEBUG, "shigoto.worker"):
        bus = Bus()
        log_events(bus)
        for event in rare:
            bus.publish(event)

    assert len(caplog.records) == len(rare)
    assert all(record.getMessage().startswith("Worker 2: ") for record in caplog.records)
    for record in caplog.records:
        json.loads(JsonFormatter().format(record))


def test_a_long_list_is_cut_short(stream: io.StringIO) -> None:
    """A thousand jobs of one dead process must not become one line of a hundred kilobytes."""
    configure_logging(format="json", stream=stream)
    bus = Bus()
    log_events(bus)

    bus.publish(events.JobsRescued("2", (Rescued(ID, 42, "resize", State.PENDING),) * 1000))

    fields = json.loads(stream.getvalue())
    assert "1000 jobs" in fields["message"]
    assert len(fields["jobs"]) == 21
    assert fields["jobs"][0]["number"] == 42
    assert fields["jobs"][-1] == "and 980 more"


def test_seconds_are_told_to_the_microsecond(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "shigoto.worker"):
        bus = Bus()
        log_events(bus)
        bus.publish(events.JobCompleted(*JOB, 1.1627002095337957e-05))

    assert vars(caplog.records[0])["shigoto"]["duration"] == 0.000012


def test_of_many_unknown_tasks_the_first_are_named(stream: io.StringIO) -> None:
    configure_logging(format="json", stream=stream)
    bus = Bus()
    log_events(bus)

    bus.publish(events.TasksUnknown("2", tuple(f"task-{number}" for number in range(25))))

    message = json.loads(stream.getvalue())["message"]
    assert "no worker knows the tasks task-0, task-1, " in message
    assert "task-19 and 5 more. Start one whose app does" in message


def test_trouble_with_the_store_is_a_warning_once_and_ends_with_one_full_stop(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    bus = Bus()
    log_events(bus)

    bus.publish(events.StoreTrouble("2", "settler", "The disk is full.", 1.5))
    bus.publish(events.StoreTrouble("2", "settler", "The disk is full.", 1.5, repeated=True))

    [line] = stream.getvalue().splitlines()
    assert "cannot reach the store: The disk is full. It tries again in 1.5 s" in line


def test_a_tick_that_a_pause_suppresses_is_no_warning(stream: io.StringIO) -> None:
    configure_logging(stream=stream, format="json")
    bus = Bus()
    log_events(bus)

    bus.publish(events.TickPassed("2", "nightly", 0, "suppressed", 1))
    bus.publish(events.TickPassed("2", "nightly", 0, "missed", 1))

    assert [json.loads(line)["level"].lower() for line in stream.getvalue().splitlines()] == [
        "info",
        "warning",
    ]


def test_lines_that_are_off_cost_no_event() -> None:
    bus = Bus()
    logger = logging.getLogger("shigoto.worker")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        log_events(bus)
    finally:
        logger.setLevel(before)

    assert not bus.wants(events.JobStarted)
    assert not bus.wants(events.JobCompleted)
    assert bus.wants(events.JobFailedEvent)
    assert bus.wants(events.StoreTrouble)


def test_a_second_worker_on_the_same_bus_does_not_double_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "shigoto.worker"):
        bus = Bus()
        log_events(bus)
        log_events(bus)
        bus.publish(events.WorkerStopped("2", "stopped", 0, 0))

    assert len(caplog.records) == 1


def test_json_lines_carry_task_job_tenant_and_attempt(stream: io.StringIO) -> None:
    """S3-42."""
    configure_logging(format="json", level="INFO", stream=stream)
    bus = Bus()
    log_events(bus)

    bus.publish(events.JobFailedEvent(*JOB, 0.25, FailureKind.ERROR, 'ValueError: "x"\ny'))

    [line] = stream.getvalue().splitlines()
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "error",
        "logger": "shigoto.worker",
        "message": 'Worker 2: Job 42 failed: ValueError: "x"\ny',
        "worker": "2",
        "job_id": str(ID),
        "number": 42,
        "task": "resize",
        "queue": "images",
        "tenant": "acme",
        "attempt": 3,
        "duration": 0.25,
        "kind": "error",
        "error": 'ValueError: "x"\ny',
    }


def test_text_lines_are_one_line_of_a_sentence_and_pairs(stream: io.StringIO) -> None:
    configure_logging(stream=stream)
    bus = Bus()
    log_events(bus)

    bus.publish(events.JobFailedEvent(*JOB, 0.25, FailureKind.ERROR, 'ValueError: "x"\ny'))

    [line] = stream.getvalue().splitlines()
    assert " ERROR   shigoto.worker Worker 2: Job 42 failed: " in line
    assert " task=resize " in line
    assert " tenant=acme " in line
    assert " attempt=3 " in line
    assert line.endswith('error="ValueError: \\"x\\"\\ny"')


def test_what_a_handler_logs_by_itself_names_its_job(stream: io.StringIO) -> None:
    configure_logging(format="json", stream=stream, fields=lambda: {"job_id": str(ID), "task": "resize"})

    logging.getLogger("shop").warning("no stock of %s", "tea")

    fields = json.loads(stream.getvalue())
    assert (fields["message"], fields["job_id"], fields["task"]) == ("no stock of tea", str(ID), "resize")


def test_what_is_hidden_breaks_no_line(stream: io.StringIO) -> None:
    """A secret number may be part of another, and a secret text may hold what the line is made of."""

    def hide(text: str) -> str:
        return text.replace("1234", "***").replace('a"b', "***")

    fields = {"job_id": "01234567", "number": 51234, "said": '1234 a"b', "all": ["1234", ("1234", 1234)]}
    configure_logging(format="json", stream=stream, fields=lambda: fields, hide=hide)

    logging.getLogger("shop").info('got 1234 and a"b')

    line = json.loads(stream.getvalue())
    assert line["message"] == "got *** and ***"
    assert (line["number"], line["job_id"], line["said"]) == (51234, "01234567", "*** ***")
    assert line["all"] == ["***", ["***", 1234]]


def test_setting_up_again_replaces_the_earlier_set_up(stream: io.StringIO) -> None:
    configure_logging(stream=io.StringIO())
    configure_logging(format="json", stream=stream)

    logging.getLogger("shop").warning("once")

    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_traceback_is_kept_and_odd_letters_break_nothing(formatter: logging.Formatter) -> None:
    try:
        raise ValueError("\ud800 \0")
    except ValueError as error:
        record = logging.LogRecord("shop", logging.ERROR, __file__, 1, "broken \ud800\0", (), None)
        record.exc_info = (type(error), error, error.__traceback__)

    line = formatter.format(record)

    assert "Traceback" in line
    assert "\0" not in line.splitlines()[0]


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a terminal")
@pytest.mark.parametrize(
    ("environment", "formatter"),
    [({}, ColourFormatter), ({"NO_COLOR": "1"}, TextFormatter), ({"TERM": "dumb"}, TextFormatter)],
)
def test_somebody_at_a_terminal_sees_colours_unless_there_are_to_be_none(
    environment: dict[str, str], formatter: type[logging.Formatter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3-42: and JSON is JSON there, too."""
    for name in ("NO_COLOR", "TERM", "JOURNAL_STREAM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    reader, terminal = os.openpty()
    try:
        with os.fdopen(terminal, "w") as stream:
            assert type(formatter_for("text", stream)) is formatter
            assert type(formatter_for("json", stream)) is JsonFormatter
    finally:
        os.close(reader)
    assert type(formatter_for("text", None)) is TextFormatter


def test_colours_stand_around_the_words_of_the_plain_line() -> None:
    record = logging.LogRecord("shop", logging.ERROR, "shop.py", 1, "low on\nink", (), None)
    record.shigoto = {"task": "resize", "error": "a b"}

    line = ColourFormatter().format(record)

    assert "\x1b[31mERROR  \x1b[0m" in line
    assert re.sub(r"\x1b\[\d+m", "", line) == TextFormatter().format(record)


def test_a_job_that_no_longer_runs_is_named_by_whoever_tells_of_it(stream: io.StringIO) -> None:
    """S3-42."""
    lease = Lease(42, 1, ID, "resize", "images", 3, 0, 0, 6, 0, 0, 0, tenant="acme")
    configure_logging(format="json", stream=stream, fields=lambda: {"job_id": "another", "task": "another"})

    logging.getLogger("shop").warning("it was given back", extra=about(lease))

    fields = json.loads(stream.getvalue())
    told = [fields[name] for name in ("job_id", "number", "task", "queue", "tenant", "attempt")]
    assert told == [str(ID), 42, "resize", "images", "acme", 3]
