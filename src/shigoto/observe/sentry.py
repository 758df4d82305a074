"""Events for Sentry: one for every job that has failed for good, and none for anything else.

Whoever makes the transition tells of it, so it is told once: the worker that settles the last run, the supervisor or
the sweeper that finds a crash too many, the server that settles for a worker in another language.

    JobFailedEvent, JobsRescued, TasksUnknown ──► queue ──► thread: client of our own ──► Sentry

The program's own Sentry, if it has one, is left alone. The SDK takes half a second to import, so that, too, is done in
the thread. An event has what the store keeps of an error: never arguments, never what variables of the handler held.
The frames of a stack are read from the text of the traceback. Sentry groups events by them; by a message alone, every
order number would make a group of its own.
"""

import atexit
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from queue import Full, Queue
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec import Struct
from msgspec.structs import asdict

from shigoto.model.job import Job, State
from shigoto.model.secrets import without_key
from shigoto.model.worker import Rescued
from shigoto.observe.bus import Bus
from shigoto.observe.events import JobFailedEvent, JobsRescued, TasksUnknown
from shigoto.observe.settings import Sentry

if TYPE_CHECKING:
    from sentry_sdk.client import BaseClient

LOGGER = "shigoto"
UNKNOWN = "unknown_task"
DIED = "The process of this job died under it too often"

# As `traceback` writes a frame: the place, and below it the line of code, if there is one.
_FRAME = re.compile(
    r'^  File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>.*)$\n?(?:^    (?P<code>\S.*)$)?',
    re.MULTILINE,
)
_LAST_BLOCK = "Traceback (most recent call last):"

RELEASE = "SENTRY_RELEASE"
# Failures on their way: here, and once more in the SDK. Of each the store keeps 16 KiB of text at most, so a Sentry
# that does not answer costs some tens of MiB, and usually a tenth of that.
MOST_WAITING = 1_000
FLUSHED_WITHIN = 2.0  # seconds, when a program ends that is none of ours
SENDERS = "sentry-sdk."  # how the threads of the SDK are called

logger = logging.getLogger("shigoto.observe")

Told = JobFailedEvent | JobsRescued | TasksUnknown
Jobs = Callable[[Sequence[UUID]], Sequence[Job | None]]


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


class SentryReporter:
    """Tells Sentry what the buses of this process tell of. `jobs` looks up those of which an event has only the id."""

    def __init__(self, settings: Sentry, jobs: Jobs) -> None:
        self._settings = settings
        self._jobs = jobs
        self._queue: Queue[Told | threading.Event] = Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._client: BaseClient | None = None

    def watch(self, bus: Bus) -> None:
        """Tell of what this bus tells; asked for twice, once."""
        if not bus.hears(self._hear):
            for kind in (JobFailedEvent, JobsRescued, TasksUnknown):
                bus.subscribe(self._hear, kind)

    def flush(self, seconds: float) -> None:
        """Send what is there, if that takes no longer than this."""
        if self._thread is None:
            return
        done, until = threading.Event(), time.monotonic() + seconds
        try:
            self._queue.put(done, timeout=seconds)
        except Full:
            return
        done.wait(max(0.0, until - time.monotonic()))

    def _hear(self, event: Told) -> None:
        if isinstance(event, JobsRescued) and not any(job.state is State.FAILED for job in event.jobs):
            return
        try:
            self._queue.put_nowait(event)
        except Full:
            logger.warning("Sentry is not told of a failure: %d are still on their way there", MOST_WAITING)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="shigoto-sentry", daemon=True)
            self._thread.start()
            atexit.register(self.flush, FLUSHED_WITHIN)

    def _work(self) -> None:
        while True:
            told = self._queue.get()
            try:
                if isinstance(told, threading.Event):
                    if self._client is not None:
                        self._client.flush(timeout=FLUSHED_WITHIN)
                    told.set()
                else:
                    self._report(told)
            except Exception:
                logger.exception("Sentry could not be told of a failure")

    def _report(self, told: Told) -> None:
        client = self._client
        if client is None:
            client = self._client = _client(self._settings)
        for failure in self._failures(told):
            client.capture_event(event_of(failure))
        _adopt_threads()

    def _failures(self, told: Told) -> list[Failure]:
        if isinstance(told, JobFailedEvent):
            return [
                Failure(
                    task=told.task,
                    kind=told.kind.value,
                    error=told.error,
                    traceback=told.traceback,
                    job_id=str(told.job_id),
                    number=told.number,
                    queue=told.queue,
                    tenant=told.tenant,
                    attempt=told.attempt,
                )
            ]
        if isinstance(told, TasksUnknown):
            return [  # which jobs, only the store knows
                Failure(
                    task=task, kind=UNKNOWN, error=f"Jobs of {task} have failed: no worker knows that task"
                )
                for task in told.tasks
            ]
        failed = [job for job in told.jobs if job.state is State.FAILED]
        found = self._jobs([job.id for job in failed])
        return [failure_of_job(rescued, job) for rescued, job in zip(failed, found, strict=True)]


def _client(settings: Sentry) -> "BaseClient":
    """A client that reports what it is given, and looks at nothing else in this process."""
    import sentry_sdk

    options: dict[str, Any] = {
        "default_integrations": False,
        "auto_enabling_integrations": False,
        "include_local_variables": False,
        "attach_stacktrace": False,
        "max_breadcrumbs": 0,
        "send_client_reports": False,
        "auto_session_tracking": False,
        "transport_queue_size": MOST_WAITING,
        # Without one the SDK would ask git for it, which is a process that nobody here expects.
        "release": os.environ.get(RELEASE, ""),
        "before_send": _without_empty_release,
        **{name: value for name, value in asdict(settings).items() if value is not None},
    }
    return sentry_sdk.Client(**options)


def _without_empty_release(event: Any, _: object) -> Any:
    if not event.get("release"):
        event.pop("release", None)
    return event


def _adopt_threads() -> None:
    """Call the SDK's threads ours: a worker that stops takes others for what handlers have left behind."""
    theirs = sys.modules.get("sentry_sdk")
    is_used = theirs is not None and theirs.get_client().is_active()
    for thread in threading.enumerate():
        if thread.name.startswith(SENDERS) and not is_used:
            thread.name = f"shigoto-{thread.name}"
