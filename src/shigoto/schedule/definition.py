"""What a schedule is: when it is due, what is done then, and what if that does not go as planned. Stored as JSON."""

from itertools import takewhile
from typing import Literal
from uuid import UUID

from msgspec import Struct, json

from shigoto.model.clock import Millis
from shigoto.model.job import JobSpec, KeyMode
from shigoto.schedule.recurrence import Cron, Every, Once

CatchUp = Literal["none", "latest", "all"]
Overlap = Literal["allow", "skip", "queue", "cancel"]

CATCH_UPS: tuple[CatchUp, ...] = ("none", "latest", "all")
OVERLAPS: tuple[Overlap, ...] = ("allow", "skip", "queue", "cancel")
MOST_CAUGHT_UP = 100


class Template(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job of each tick, but for its id and its time. Without a payload it is made by the code that declares it."""

    task: str
    queue: str
    payload: str | None = None
    tenant: str = ""
    priority: int = 0
    expires_in: Millis | None = None
    key: str | None = None
    key_mode: KeyMode = "keep"
    max_failures: int = 6
    max_crashes: int | None = 3
    retry: str | None = None
    timeout: Millis | None = None
    soft_timeout: Millis | None = None
    tags: str | None = None
    meta: str | None = None
    alone: bool = False

    def spec(self, id: UUID, payload: str, run_at: Millis) -> JobSpec:
        """A job of it. What expires, expires that long after it may start."""
        expiry = None if self.expires_in is None else run_at + self.expires_in
        asked = {name: getattr(self, name) for name in ASKED}
        return JobSpec(id=id, payload=payload, run_at=run_at, expires_at=expiry, **asked)


ASKED = tuple(name for name in Template.__struct_fields__ if name not in ("payload", "expires_in"))


class Definition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that somebody has said about a schedule."""

    recurrence: Cron | Every | Once
    job: Template
    catch_up: CatchUp = "latest"
    most: int = MOST_CAUGHT_UP  # ticks that are caught up at once
    within: Millis | None = None  # how late a tick may be caught up
    overlap: Overlap = "allow"
    jitter: Millis = 0
    until: Millis | None = None

    def next_after(self, at: Millis) -> Millis | None:
        """The first tick later than `at`."""
        due = next(self.recurrence.after(at), None)
        return None if due is None or (self.until is not None and due > self.until) else due

    def between(self, after: Millis, to: Millis) -> list[Millis]:
        """The ticks later than `after` and not later than `to`."""
        end = to if self.until is None else min(to, self.until)
        return list(takewhile(lambda at: at <= end, self.recurrence.after(after)))


encode = json.Encoder().encode
decode = json.Decoder(Definition).decode
