"""The target `Log`: a line about the job that failed, and not about the job that tells of it."""

import io
import json
import logging
from typing import Any
from uuid import UUID

import pytest

from shigoto.model.time import to_datetime
from shigoto.notify import Log, Notification
from shigoto.observe.log_format import JsonFormatter, LogHandler, TextFormatter

ID, JOB = UUID("018f0000-0000-7000-8000-000000000001"), UUID("018f0000-0000-7000-8000-000000000002")
DELIVERY: dict[str, object] = {
    "job_id": "of-the-delivery",
    "number": 77,
    "task": "shigoto.deliver",
    "queue": "shigoto",
    "tenant": "",
    "attempt": 3,
}


def written(event: Notification, formatter: logging.Formatter) -> str:
    """The line, as a worker that runs the delivery writes it."""
    stream, logger = io.StringIO(), logging.getLogger("shigoto.notify")
    handler = LogHandler(stream, lambda: DELIVERY)
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    try:
        Log().deliver(event)
    finally:
        logger.removeHandler(handler)
    return stream.getvalue()


def told(**said: Any) -> Notification:
    usual: dict[str, Any] = {"id": ID, "kind": "failed", "rule": "failure", "subject": "resize"}
    return Notification(**usual | {"at": to_datetime(1_700_000_000_000)} | said)


def facts(event: Notification) -> dict[str, object]:
    line: dict[str, object] = json.loads(written(event, JsonFormatter()))
    return {key: value for key, value in line.items() if key not in ("time", "level", "logger", "message")}


def test_the_line_names_the_job_that_failed_as_every_other_line_about_it() -> None:
    event = told(job=JOB, queue="images", tenant="acme", attempt=6)

    assert facts(event) == {
        "job_id": str(JOB),
        "task": "resize",
        "queue": "images",
        "tenant": "acme",
        "attempt": 6,
        "event_id": str(ID),
        "event_kind": "failed",
        "rule": "failure",
        "count": 1,
    }


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_the_line_of_text_has_it_too(tenant: str | None) -> None:
    line = written(told(job=JOB, queue="images", attempt=6, tenant=tenant), TextFormatter())

    shown = tenant or '""'
    assert f"job_id={JOB} task=resize queue=images tenant={shown} attempt=6 event_id={ID}" in line
    assert "of-the-delivery" not in line


def test_what_is_not_known_of_a_job_that_is_gone_is_left_out() -> None:
    assert "attempt" not in facts(told(job=JOB, queue="images"))


def test_a_line_about_no_job_names_the_delivery_and_mixes_nothing_into_it() -> None:
    event = told(count=7, tasks={"resize": 4, "mail": 3}, subject="")

    assert facts(event) == DELIVERY | {
        "event_id": str(ID),
        "event_kind": "failed",
        "rule": "failure",
        "count": 7,
    }
