"""Sentry, in this process: who is told what by which event, and that nobody else's Sentry is touched."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sentry_sdk

from faults.tools.sinks import Sink, sink
from shigoto import DeclarationError, FailureKind, Sentry, Shigoto, State
from shigoto.model.ids import uuid7
from shigoto.model.job import Job
from shigoto.model.worker import Rescued
from shigoto.observe import sentry as reporting
from shigoto.observe.bus import Bus
from shigoto.observe.events import JobFailedEvent, JobsRescued, TasksUnknown
from shigoto.observe.sentry import MOST_WAITING, Failure, SentryReporter, event_of, frames_of
from shigoto.observe.settings import chosen_sentry
from tests.service.ground import served
from tests.service.hands import Hand

TRACEBACK = """Traceback (most recent call last):
  File "/shop/orders.py", line 3, in load
    raise KeyError("gone")
KeyError: 'gone'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/shop/tasks.py", line 12, in charge
    return pay(card)
           ^^^^^^^^^
  File "/venv/site-packages/bank/api.py", line 7, in pay
    raise ConnectionError("away")
ConnectionError: away
"""


@pytest.fixture
def heard() -> Iterator[Sink]:
    with sink() as heard:
        yield heard


def nobody(ids: Sequence[UUID]) -> list[Job | None]:
    return [None for _ in ids]


def failed(**fields: Any) -> JobFailedEvent:
    told: dict[str, Any] = {
        "worker": "1",
        "job_id": uuid7(),
        "number": 42,
        "task": "charge",
        "queue": "mail",
        "tenant": "store-1",
        "attempt": 3,
        "duration": 0.1,
        "kind": FailureKind.ERROR,
        "error": "ConnectionError: away",
        "traceback": TRACEBACK,
    }
    return JobFailedEvent(**told | fields)


def test_a_final_failure_is_one_event(heard: Sink) -> None:
    """S3-15, S3-62 = GWT-10: also if two parts of a program have begun to watch the same bus."""
    bus, reporter = Bus(), SentryReporter(Sentry(dsn=heard.dsn, release="1.2"), nobody)
    reporter.watch(bus)
    reporter.watch(bus)
    told = failed()
    bus.publish(told)
    reporter.flush(10)

    [event] = heard.failures
    assert event["tags"]["job_id"] == str(told.job_id)
    assert (event["level"], event["transaction"], event["release"]) == ("error", "charge", "1.2")
    frames = event["exception"]["values"][0]["stacktrace"]["frames"]
    assert [(frame["function"], frame["lineno"], frame["in_app"]) for frame in frames] == [
        ("charge", 12, True),
        ("pay", 7, False),
    ]
    assert "vars" not in str(frames)


def test_a_crash_that_a_sweep_or_a_supervisor_finds_is_told_with_what_the_store_knows(
    tmp_path: Path, heard: Sink
) -> None:
    """S3-43: of the jobs that were rescued, those that have failed."""
    app = Shigoto(tmp_path / "jobs.db", sentry=Sentry(dsn=heard.dsn))
    job = app.enqueue_by_name("charge", {}, allow_unknown=True, tenant="store-1")
    app.exporters.begin()
    bad = Rescued(job.id, job.number, "charge", State.FAILED)
    gone = Rescued(uuid7(), 99, "other", State.FAILED)
    free = Rescued(uuid7(), 100, "free", State.PENDING)
    app.bus.publish(JobsRescued("1", (free,)))
    app.bus.publish(JobsRescued("1", (bad, free, gone)))
    app.flush(10)
    app.close()

    assert [(event["tags"]["task"], event["tags"].get("tenant")) for event in heard.failures] == [
        ("charge", "store-1"),
        ("other", None),
    ]
    assert {event["tags"]["kind"] for event in heard.failures} == {"crash_loop"}


def test_tasks_that_nobody_knows_are_one_event_each(heard: Sink) -> None:
    bus, reporter = Bus(), SentryReporter(Sentry(dsn=heard.dsn), nobody)
    reporter.watch(bus)
    bus.publish(TasksUnknown("1", ("old", "older")))
    reporter.flush(10)

    assert [event["tags"]["task"] for event in heard.failures] == ["old", "older"]


def test_a_worker_in_another_language_fails_for_good_and_the_server_tells(
    tmp_path: Path, heard: Sink
) -> None:
    """S3-43: whoever makes the transition. What it tries again is told to nobody."""
    app = Shigoto(tmp_path / "jobs.db", sentry=Sentry(dsn=heard.dsn))
    app.enqueue_by_name("charge", {}, allow_unknown=True, retries=1, tenant="store-1")
    with served(app) as server:
        hand = Hand(server, tasks=["charge"])
        [first] = hand.claim()
        assert hand.settle(first, "errored", error="Error: away", delay=0).status == 200
        [second] = hand.claim(wait=10)
        assert hand.settle(second, "errored", error="Error: away").status == 200
    app.flush(10)
    app.close()

    [event] = heard.failures
    assert event["tags"]["task"] == "charge"
    assert (event["tags"]["tenant"], event["tags"]["attempt"]) == ("store-1", "2")
    assert event["exception"]["values"][0]["value"] == "away"


def test_the_programs_own_sentry_is_not_touched(heard: Sink) -> None:
    bus, reporter = Bus(), SentryReporter(Sentry(dsn=heard.dsn), nobody)
    reporter.watch(bus)
    bus.publish(failed())
    reporter.flush(10)

    assert not sentry_sdk.get_client().is_active()
    assert sentry_sdk.capture_message("nobody hears this") is None
    assert len(heard.failures) == 1
    names = {thread.name for thread in threading.enumerate() if "sentry" in thread.name}
    assert all(name.startswith("shigoto-") for name in names)


def test_a_sentry_that_is_too_slow_costs_failures_and_no_time(
    heard: Sink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()

    def late(_: Sentry) -> None:
        held.wait(30)
        raise ConnectionError("away")

    monkeypatch.setattr("shigoto.observe.sentry._client", late)
    bus, reporter = Bus(), SentryReporter(Sentry(dsn=heard.dsn), nobody)
    reporter.watch(bus)
    for _ in range(MOST_WAITING + 5):
        bus.publish(failed())
    reporter.flush(0.01)
    held.set()
    reporter.flush(30)  # all are refused by the one above; after this test there would be another client

    assert any("Sentry is not told of a failure" in record.message for record in caplog.records)


def test_a_burst_of_failures_is_told_one_by_one(
    heard: Sink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a whole batch meets a service that is gone: neither our queue nor that of the SDK may lose any."""
    held, burst = threading.Event(), 400
    client: Callable[[Sentry], Any] = vars(reporting)["_client"]

    def late(settings: Sentry) -> Any:
        held.wait(30)
        return client(settings)

    monkeypatch.setattr("shigoto.observe.sentry._client", late)
    bus, reporter = Bus(), SentryReporter(Sentry(dsn=heard.dsn), nobody)
    reporter.watch(bus)
    told = [failed() for _ in range(burst)]
    for each in told:
        bus.publish(each)
    held.set()
    for _ in range(10):
        reporter.flush(10)
        if len(heard.failures) >= burst:
            break

    assert MOST_WAITING >= 1_000
    assert {event["tags"]["job_id"] for event in heard.failures} == {str(each.job_id) for each in told}
    assert not [record for record in caplog.records if "Sentry" in record.message]


def test_an_error_without_a_type_is_named_by_its_kind() -> None:
    event = event_of(Failure(task="charge", kind="crash_loop", error="The process of this job was killed: 9"))

    [exception] = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("crash_loop", "The process of this job was killed: 9")
    assert "stacktrace" not in exception


def test_a_text_that_is_no_traceback_has_no_frames() -> None:
    assert frames_of("") == []
    assert frames_of("somebody else's words") == []


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        (None, {}, None),
        (None, {"SENTRY_DSN": "https://key@host/1"}, None),
        (None, {"SENTRY_DSN": "https://key@host/1", "SHIGOTO_SENTRY": "off"}, None),
        (
            None,
            {"SENTRY_DSN": "https://key@host/1", "SHIGOTO_SENTRY": "on"},
            Sentry(dsn="https://key@host/1"),
        ),
        (None, {"SHIGOTO_SENTRY": "on"}, None),
        (Sentry(), {}, None),
        (Sentry(), {"SENTRY_DSN": "https://key@host/1"}, Sentry(dsn="https://key@host/1")),
        (Sentry(dsn="https://a@b/2"), {"SENTRY_DSN": "https://key@host/1"}, Sentry(dsn="https://a@b/2")),
    ],
)
def test_sentry_is_told_where_a_dsn_and_the_setting_say_so(
    given: Sentry | None, environment: dict[str, str], expected: Sentry | None
) -> None:
    assert chosen_sentry(given, environment) == expected


@pytest.mark.parametrize("dsn", ["hunter2", "https://host/1", "https://hunter2@host", "ftp://hunter2@host/1"])
def test_a_dsn_that_is_none_is_refused_and_not_shown(dsn: str) -> None:
    with pytest.raises(DeclarationError, match="The DSN of Sentry is no address") as refused:
        chosen_sentry(Sentry(dsn=dsn), {})

    assert "hunter2" not in str(refused.value)


def test_settings_that_are_none_are_refused() -> None:
    wrong: Any = "https://hunter2@host/1"
    with pytest.raises(DeclarationError, match=r"sentry takes Sentry\(…\)") as in_code:
        chosen_sentry(wrong, {})
    with pytest.raises(DeclarationError, match=r"\$SHIGOTO_SENTRY is on or off") as in_environment:
        chosen_sentry(None, {"SHIGOTO_SENTRY": wrong})

    assert "hunter2" not in f"{in_code.value} {in_environment.value}"


def test_the_key_of_a_dsn_is_not_shown() -> None:
    assert "hunter2" not in repr(Sentry(dsn="https://hunter2@sentry.example/1"))


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DeclarationError, match=r"pip install 'shigoto\[sentry\]'"):
        chosen_sentry(Sentry(dsn="https://key@host/1"), {})
