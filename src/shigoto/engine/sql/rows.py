"""A whole job as rows of the tables that all SQL engines have."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shigoto.model.job import State
from shigoto.model.record import JobRecord
from shigoto.model.time import Millis

Row = tuple[Any, ...]

COUNTS = ("token", "settled_token", "failures", "crashes", "solo_crashes", "releases", "snoozes", "solo")
# Bodies first: whoever is interrupted by an error hears of what is wrong with the job itself.
TABLES: dict[str, tuple[str, ...]] = {
    "job": (
        "number", "id", "lane", "priority", "run_at", "created_at", "max_failures", "max_crashes", "tenant", "key",
        "expires_at", "retry", "timeout", "soft_timeout", "tags", "meta", "alone", "payload",
    ),
    "ready": ("number", "lane", "priority", "run_at", "expires_at", *COUNTS),
    "scheduled": ("number", "run_at", "lane", *COUNTS),
    "blocked": ("number", "unmet"),
    "done": (
        "number", "state", "token", "settled_token", "failures", "crashes", "releases", "snoozes", "solo",
        "started_at", "finished_at", "cancel_requested_at", "failure_kind", "error", "result",
    ),
    "key": ("number", "tenant", "key"),
    "expiry": ("number", "expires_at"),
    "attempt": ("number", "token", "outcome", "error", "traceback", "started_at", "finished_at"),
    "progress": ("number", "fraction", "text", "checkpoint"),
    "log": ("number", "token", "line", "at", "level", "text"),
}  # fmt: skip


def rows_of(
    records: Sequence[JobRecord],
    now: Millis,
    lane_of: Callable[[JobRecord], int],
    numbers_of_states: Mapping[State, int],
) -> dict[str, list[Row]]:
    """The rows of each table. A pending job is ready if it is due now."""
    rows: dict[str, list[Row]] = {table: [] for table in TABLES}
    for record in records:
        lane = lane_of(record)
        rows["job"].append(_body(record, lane))
        _add_state(rows, record, now, lane, numbers_of_states[record.state])
        _add_past(rows, record)
    return rows


def _body(job: JobRecord, lane: int) -> Row:
    return (
        job.number, job.id, lane, job.priority, job.run_at, job.created_at, job.max_failures, job.max_crashes,
        job.tenant, job.key, job.expires_at, job.retry, job.timeout, job.soft_timeout, job.tags, job.meta, job.alone,
        job.payload,
    )  # fmt: skip


def _add_state(rows: dict[str, list[Row]], job: JobRecord, now: Millis, lane: int, state: int) -> None:
    counts = (
        job.token, job.settled_token, job.failures, job.crashes, job.solo_crashes, job.releases, job.snoozes,
        job.suspect,
    )  # fmt: skip
    if job.state.terminal:
        rows["done"].append((
            job.number, state, job.token, job.settled_token, job.failures, job.crashes, job.releases, job.snoozes,
            job.suspect, job.started_at, job.finished_at, job.cancel_requested_at, job.failure_kind, job.error,
            job.result,
        ))  # fmt: skip
        return
    assert job.state is not State.PROCESSING, "a run belongs to its worker, and cannot be put"
    if job.state is State.BLOCKED:
        rows["blocked"].append((job.number, job.unmet))
    elif job.run_at <= now:
        rows["ready"].append((job.number, lane, -job.priority, job.run_at, job.expires_at, *counts))
    else:
        rows["scheduled"].append((job.number, job.run_at, lane, *counts))
    if job.expires_at is not None:
        rows["expiry"].append((job.number, job.expires_at))


def _add_past(rows: dict[str, list[Row]], job: JobRecord) -> None:
    if job.holds_key:
        rows["key"].append((job.number, job.tenant, job.key))
    if (job.progress, job.progress_text, job.checkpoint) != (None, None, None):
        rows["progress"].append((job.number, job.progress, job.progress_text, job.checkpoint))
    for run in job.attempts:
        rows["attempt"].append((
            job.number, run.token, run.outcome, run.error, run.traceback, run.started_at, run.finished_at,
        ))  # fmt: skip
    for line in job.log:
        rows["log"].append((job.number, line.token, line.line, line.at, line.level, line.text))
