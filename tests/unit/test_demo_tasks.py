"""The built-in tasks, on virtual time: what they take, how long they take, and what they leave behind."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from shigoto import FailureKind, JobHandle, PayloadInvalid, Shigoto, State
from shigoto.demo import Payload, declare
from shigoto.observe import events
from tests.fundamentals.stage import Stage

MINUTE = 60_000
ADA = {
    "user_id": 7,
    "user_data": {"name": "Ada", "age": 36},
    "additional_properties": {"hobby": "chess", "location": "London", "score": 9},
}


@pytest.fixture
def stage(caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    stage = Stage()
    declare(stage.app)
    with caplog.at_level(logging.INFO, "demo"):
        yield stage


def ran(stage: Stage, task: str, **payload: Any) -> tuple[JobHandle[Any], Any, list[str]]:
    """The job after one run, what it has recorded as its result, and the lines of its log."""
    handle = stage.app.enqueue_by_name(task, payload)
    stage.drain()
    job = handle.job()
    result = None if job.result is None else msgspec.json.decode(job.result)
    return handle, result, [line.text for line in handle.logs()]


def test_there_are_four(stage: Stage) -> None:
    """S0-25"""
    assert list(stage.app.tasks) == ["user_created", "data_analysis", "email_notification", "data_export"]


def test_they_share_a_payload_of_six_fields_which_is_stored_flat(stage: Stage) -> None:
    """S0-5, S0-29: none of the fields is needed, each has its type, and there is no seventh."""
    everything = {**ADA, "message": "hello", "recipients": ["a@example.com"], "validation_mode": "strict"}

    for task in stage.app.tasks:
        job = stage.app.enqueue_by_name(task, everything).job()

        assert msgspec.json.decode(job.payload) == everything
        assert stage.app.enqueue_by_name(task, {}).job().payload == "{}"
        with pytest.raises(PayloadInvalid):
            stage.app.enqueue_by_name(task, {"user_id": "seven"})
        with pytest.raises(PayloadInvalid):
            stage.app.enqueue_by_name(task, {"colour": "red"})
        schema = stage.app.tasks[task].signature.json_schema()
        assert list(schema["properties"]) == list(Payload.__struct_fields__)


def test_a_new_user_is_welcomed_counted_and_given_a_profile(stage: Stage) -> None:
    """S0-26: half a second; hobby, location and score are read, and all is kept with the job."""
    handle, result, log = ran(stage, "user_created", message="hello Ada", **ADA)

    assert handle.status() is State.COMPLETED
    assert result == {
        "mail": "hello Ada",
        "sign_up": {"user_id": 7, "location": "London"},
        "profile": {"user_id": 7, "hobby": "chess", "location": "London", "score": 9},
    }
    assert log == [
        "Sending a welcome mail to user 7: hello Ada",
        "Counting a sign-up from London",
        "Setting up the profile of user 7: Profile(user_id=7, hobby='chess', location='London', score=9)",
    ]
    assert stage.times(events.JobCompleted) == [500]


def test_an_analysis_takes_long_tells_its_progress_and_records_its_result(stage: Stage) -> None:
    """S0-27: two seconds."""
    handle, result, log = ran(stage, "data_analysis", message="analyse", **ADA)

    assert result == {"user_id": 7, "values": 5, "numbers": 2, "mean": 22.5, "validation_mode": "normal"}
    assert (handle.job().progress, handle.job().progress_text) == (1.0, "Step 4 of 4")
    assert log[0] == "Analysing 5 values: analyse"
    assert log[-1].startswith("The analysis gave Analysis(user_id=7, values=5, numbers=2, mean=22.5")
    assert stage.times(events.JobCompleted) == [2_000]


def test_a_notification_goes_to_every_recipient_and_leaves_a_log_of_deliveries(stage: Stage) -> None:
    """S0-28: a third of a second."""
    recipients = ["a@example.com", "b@example.com"]

    _, result, log = ran(stage, "email_notification", message="news", recipients=recipients)

    assert result == [{"recipient": each, "message": "news"} for each in recipients]
    assert log == ["Delivered to a@example.com: news", "Delivered to b@example.com: news"]
    assert stage.times(events.JobCompleted) == [300]


def test_an_export_has_a_handler_too(stage: Stage) -> None:
    _, result, log = ran(stage, "data_export", **ADA)

    assert result == {"file": "export-7.json", "values": 5}
    assert log[-1] == "Would have exported export-7.json"
    assert stage.times(events.JobCompleted) == [1_000]


@pytest.mark.parametrize("task", ["user_created", "data_analysis", "email_notification", "data_export"])
def test_a_message_alone_will_do(stage: Stage, task: str) -> None:
    """S0-45, S0-74: every handler runs on what `enqueue <type> <message>` sends."""
    handle, _, _ = ran(stage, task, message="Test job")

    assert handle.status() is State.COMPLETED


@pytest.mark.parametrize(
    ("task", "payload", "reason"),
    [
        ("user_created", {"validation_mode": "lax"}, "there is no validation mode 'lax'"),
        ("user_created", {"validation_mode": "strict"}, "user_id must be given"),
        (
            "user_created",
            {"additional_properties": {"score": "high"}},
            "the score must be a number, not 'high'",
        ),
        ("data_analysis", {"validation_mode": "strict"}, "user_data must be given"),
        ("email_notification", {"validation_mode": "strict"}, "recipients and message must be given"),
        ("email_notification", {"recipients": ["nowhere"]}, "not an e-mail address: nowhere"),
        ("data_export", {"validation_mode": "strict"}, "user_id must be given"),
    ],
)
def test_a_payload_that_makes_no_sense_fails_at_once_and_is_not_retried(
    stage: Stage, task: str, payload: dict[str, Any], reason: str
) -> None:
    """S0-54, S0-56: a business validation error, whatever retries are left."""
    handle, _, _ = ran(stage, task, **payload)

    job = handle.job()
    assert (job.state, job.failure_kind, job.failures) == (State.FAILED, FailureKind.REJECTED, 1)
    assert reason in (job.error or "")
    assert job.max_failures == 4
    assert stage.all(events.JobRetried) == []


def test_a_payload_that_cannot_be_read_fails_at_once_and_is_not_retried(stage: Stage) -> None:
    """S0-56: somebody who does not know the task has stored what its handler cannot take."""
    elsewhere = Shigoto(engine=stage.engine)
    handle = elsewhere.enqueue_by_name("user_created", {"user_id": "seven"}, allow_unknown=True, retries=3)

    stage.drain()

    job = handle.job()
    assert (job.state, job.failure_kind, job.failures) == (State.FAILED, FailureKind.PAYLOAD_INVALID, 1)
    assert job.finished_at is not None
    assert stage.all(events.JobRetried) == []


def test_what_may_pass_by_itself_is_tried_again_after_5_10_and_15_minutes_and_then_failed(
    stage: Stage,
) -> None:
    """S0-8, S0-37, S0-38, S0-39, S0-54, S0-55: a connection that times out, three retries, and a final failure."""
    handle = stage.app.enqueue_by_name("email_notification", {"recipients": ["ada@mail.invalid"]})
    seen: list[tuple[State, int, str | None]] = []

    async def until_it_has_failed() -> None:
        async with stage.working(), asyncio.timeout(3_600):
            for failures in range(1, 4):
                await stage.until(events.JobRetried, failures)
                job = handle.job()
                seen.append((job.state, job.failures, job.error))
            await stage.until(events.JobFailedEvent)

    stage.play(until_it_has_failed)

    starts = stage.times(events.JobStarted)
    waits = [begin - end for end, begin in zip(stage.times(events.JobRetried), starts[1:], strict=True)]
    assert waits == [5 * MINUTE, 10 * MINUTE, 15 * MINUTE]
    error = "TimeoutError: connection timeout"
    assert seen == [(State.PENDING, failures, error) for failures in (1, 2, 3)]
    job = handle.job()
    assert (job.state, job.failures, job.failure_kind, job.error) == (
        State.FAILED,
        4,
        FailureKind.ERROR,
        error,
    )
    assert job.finished_at is not None
