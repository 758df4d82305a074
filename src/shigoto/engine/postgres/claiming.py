"""T2: jobs go out, by the function `claim`. Where in the line it looks is said by `marks.py`."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from msgspec import json

from shigoto.engine.postgres.marks import Look, Marks, place_of
from shigoto.engine.sql.commands import Steps, sql
from shigoto.model.job import Lease
from shigoto.model.worker import Want

CLAIMED_AT = Lease.__struct_fields__.index("claimed_at")


def claim(marks: Marks, worker: UUID, wants: Sequence[Want]) -> Steps[list[Lease]]:
    """Lease the best ready jobs for each want."""
    looks = [marks.look(want) for want in wants]
    asked = [_asked(want, look) for want, look in zip(wants, looks, strict=True)]
    rows = (yield sql("claim", worker.bytes, json.encode(asked).decode())).fetchall()
    taken: list[Lease] = []
    left = zip(wants, looks, strict=True)
    leases: list[Lease] = []
    for row in rows:
        dead: int | None = row[-1]
        if dead is None:
            leases.append(Lease(*row[:-1]))
            continue
        # The last row for a want.
        leases.sort(key=place_of)
        marks.note(*next(left), leases, dead, at=row[CLAIMED_AT])
        taken += leases
        leases = []
    return taken


def _asked(want: Want, look: Look) -> dict[str, Any]:
    return {
        "tasks": want.tasks,
        "queues": want.queues,
        "limit": want.limit,
        "alone": want.alone,
        "slices": look.slices,
        "probes": look.probes,
    }
