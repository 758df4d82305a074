"""What has happened to jobs, in the order in which it did: runs that ended, and how."""

from uuid import UUID

from msgspec import Struct

from shigoto.model.clock import Millis


class Place(Struct, frozen=True, order=True, array_like=True):
    """A position in the feed: no two happenings have the same, and a later one has a greater. Its text is
    `at-number-step`.

    `number` is that of the job. `step` is twice the token of the run, and one more if it was the end of the job.
    """

    at: Millis
    number: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"{self.at}-{self.number}-{self.step}"

    @classmethod
    def read(cls, text: str) -> "Place | None":
        """The place that a text names, None if it names none."""
        parts = text.split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
            return None
        return cls(*map(int, parts))


class Happening(Struct, frozen=True, kw_only=True):
    """One end. If it is `final`, that of a job, and `outcome` is its state; else that of a run which did not complete,
    after which the job goes on, and `outcome` is that of the attempt."""

    place: Place
    final: bool
    outcome: str
    id: UUID
    task: str
    queue: str
    tenant: str
    failure_kind: str | None = None
