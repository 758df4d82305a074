"""The content of a message about something that happened, and its text for people. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from msgspec import Struct

from shigoto.model.job import FailureKind
from shigoto.model.text import CUT, spelt_out
from shigoto.model.time import write_duration

MAX_NAME = 100
MAX_ERROR = 1_000
MAX_SUBJECT = 200

NotificationKind = Literal["failed", "fenced", "missed", "old", "test"]


class Notification(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened, or several of a kind, as a target is told of it.

    `id` is the same whenever it is told again. `subject` names the task that failed, the worker that died, the schedule
    that missed ticks or the queue that waits. `count` is of what happened between `since` and `until`, for a message
    that tells of several; `tasks` has the parts of a digest. What a job was given is never in it.
    """

    id: UUID
    kind: NotificationKind
    rule: str
    subject: str
    at: datetime
    count: int = 1
    since: datetime | None = None
    until: datetime | None = None
    job: UUID | None = None
    queue: str | None = None
    tenant: str | None = None
    attempt: int | None = None
    failure: FailureKind | None = None
    error: str | None = None
    tasks: Mapping[str, int] = {}

    @property
    def title(self) -> str:
        """One line for a subject or a log, whatever the names in it are made of."""
        return _line(f"[shigoto] {_said(self)}", MAX_SUBJECT)

    @property
    def text(self) -> str:
        """A few lines of plain text."""
        return "\n".join([f"{_line(_said(self), MAX_SUBJECT)}.", "", *_facts(self)]) + "\n"


def _said(notification: Notification) -> str:
    subject = _line(notification.subject, MAX_NAME)
    match notification.kind:
        case "failed" if notification.tasks:
            return f"{_times(notification.count, 'job')} of {_times(len(notification.tasks), 'task')} failed"
        case "failed" if notification.until is not None:
            return f"{_times(notification.count, 'more job')} of {subject} failed"
        case "failed":
            return f"A job of {subject} failed for good"
        case "fenced":
            return f"Worker {subject} died"
        case "missed":
            return f"Schedule {subject} missed {_times(notification.count, 'tick')}"
        case "old":
            return f"Queue {subject} waits{_for(notification)}"
        case "test":
            return "This is a test"


def _for(notification: Notification) -> str:
    if notification.since is None:
        return ""
    waited = timedelta(seconds=round((notification.at - notification.since).total_seconds()))
    return f" for {write_duration(max(waited, timedelta()))}"


def _facts(notification: Notification) -> list[str]:
    facts: list[tuple[str, object]] = [
        ("job", notification.job),
        ("queue", notification.queue),
        ("tenant", notification.tenant),
        ("attempt", notification.attempt),
        ("kind", notification.failure),
        ("at", _when(notification.at)),
        ("since", _when(notification.since)),
        ("until", _when(notification.until)),
        ("rule", notification.rule),
        ("event", notification.id),
    ]
    lines = [
        f"{name:<8} {_line(str(value), MAX_SUBJECT)}" for name, value in facts if value not in (None, "")
    ]
    lines += [f"{count:>8} {_line(task, MAX_NAME)}" for task, count in sorted(notification.tasks.items())]
    if notification.error:
        lines += ["", *(f"    {line}" for line in cut(notification.error).splitlines())]
    return lines


def cut(error: str) -> str:
    """As much of an error as a message has room for, without what a terminal would obey."""
    text = spelt_out("\n".join(error.splitlines()))
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - len(CUT)] + CUT


def _line(text: str, most: int) -> str:
    """The text on one line: no header or log line can be made to look like two."""
    plain = spelt_out(" ".join(text.split()))
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def _when(at: datetime | None) -> str | None:
    return None if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _times(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
