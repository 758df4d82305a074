"""A final failure as an event of Sentry: a pure function of what the store keeps of it.

The frames of a stack are read from the text of the traceback. Sentry groups events by them; by a message alone, every
order number would make a group of its own.
"""

import re
from typing import Any

from msgspec import Struct

from shigoto.model.job import Job
from shigoto.model.secrets import without_key
from shigoto.model.worker import Rescued

LOGGER = "shigoto"
UNKNOWN = "unknown_task"
DIED = "The process of this job died under it too often"

# As `traceback` writes a frame: the place, and below it the line of code, if there is one.
_FRAME = re.compile(
    r'^  File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)$\n?(?:^    (?P<code>\S.*)$)?',
    re.MULTILINE,
)
_LAST_BLOCK = "Traceback (most recent call last):"


class Failure(Struct, frozen=True, kw_only=True):
    """One final failure; what is not known is empty."""

    task: str
    kind: str
    error: str
    traceback: str | None = None
    job_id: str = ""
    number: int = 0
    queue: str = ""
    tenant: str = ""
    attempt: int = 0


def failure_of_job(rescued: Rescued, job: Job | None) -> Failure:
    """A job that has failed because its process died under it too often; it may be gone from the store by now."""
    if job is None:
        return Failure(
            task=rescued.task, kind="crash_loop", error=DIED, job_id=str(rescued.id), number=rescued.number
        )
    return Failure(
        task=job.task,
        kind="crash_loop" if job.failure_kind is None else job.failure_kind.value,
        error=DIED if job.error is None else without_key(job.error),
        job_id=str(job.id),
        number=job.number,
        queue=job.queue,
        tenant=job.tenant,
        attempt=job.attempt,
    )


def failure_of_task(task: str) -> Failure:
    """Jobs of a task that nobody knows; which ones, only the store knows."""
    return Failure(task=task, kind=UNKNOWN, error=f"Jobs of {task} have failed: no worker knows that task")


def event_of(failure: Failure) -> Any:
    """The event, for `Client.capture_event`."""
    told = {
        "task": failure.task,
        "kind": failure.kind,
        "job_id": failure.job_id,
        "queue": failure.queue,
        "tenant": failure.tenant,
        "attempt": str(failure.attempt) if failure.attempt else "",
    }
    return {
        "level": "error",
        "logger": LOGGER,
        "platform": "python",
        "transaction": failure.task,
        "tags": {name: value for name, value in told.items() if value},
        "contexts": {"job": {"id": failure.job_id, "number": failure.number}} if failure.number else {},
        "exception": {"values": [_exception(failure)]},
    }


def _exception(failure: Failure) -> dict[str, Any]:
    kind, colon, message = failure.error.partition(": ")
    is_raised = bool(colon) and kind.replace(".", "").replace("_", "").isalnum()
    frames = frames_of(failure.traceback or "")
    return {
        "type": kind if is_raised else failure.kind,
        "value": message if is_raised else failure.error,
        "mechanism": {"type": LOGGER, "handled": False},
        **({"stacktrace": {"frames": frames}} if frames else {}),
    }


def frames_of(trace: str) -> list[dict[str, Any]]:
    """The frames of the newest exception in the text of a traceback, the innermost last."""
    newest = trace.rpartition(_LAST_BLOCK)[2]
    return [
        {
            "filename": found["file"],
            "abs_path": found["file"],
            "lineno": int(found["line"]),
            "function": found["function"],
            "in_app": "site-packages" not in found["file"],
            **({} if found["code"] is None else {"context_line": found["code"]}),
        }
        for found in _FRAME.finditer(newest)
    ]
