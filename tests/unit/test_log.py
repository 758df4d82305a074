"""Events as log lines: the sentences, the fields beside them, and the two formats."""

import io
import json
import logging
from collections.abc import Iterator
from uuid import UUID

import pytest

from shigoto.model.job import FailureKind, State
from shigoto.model.worker import Rescued
from shigoto.observe import events, log
from shigoto.observe.bus import Bus
from shigoto.observe.events import Event
from shigoto.observe.log import JsonFormatter, TextFormatter, configure_logging, log_events

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
    events.JobFailed(*JOB, 0.5, FailureKind.TIMEOUT, "TimeoutError"): "Worker 2: Job 42 failed: TimeoutError",
    events.JobSnoozed(*JOB, 0.5, 90_000): "Worker 2: Job 42 snoozed for 90 s",
}


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


def test_every_event_has_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}

    assert kinds - {Event, events.JobEvent} == set(log._SENTENCES)

    rare: list[Event] = [
        events.JobReleased(*JOB, 0.0),
        events.JobCancelled(*JOB, 0.0),
        events.LeaseLost(*JOB, 0.0),
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
    assert bus.wants(events.JobFailed)
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

    bus.publish(events.JobFailed(*JOB, 0.25, FailureKind.ERROR, 'ValueError: "x"\ny'))

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

    bus.publish(events.JobFailed(*JOB, 0.25, FailureKind.ERROR, 'ValueError: "x"\ny'))

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
