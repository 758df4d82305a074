"""What an operator has done: who, what, to which, and how it was before and after."""

from msgspec import Struct
from msgspec.structs import replace

from shigoto.model.clock import Millis
from shigoto.model.text import fit

AUDIT_NAME = 1_000  # bytes of an actor, an action or a target: an index has room for no more
AUDIT_TEXT = 16 * 1024  # bytes of what was before, and of what was after
AUDIT_KEPT_FOR: Millis = 365 * 86_400_000
AUDIT_BATCH = 1_000  # entries that one sweep forgets, at most


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One action. `before` and `after` are JSON texts: states, settings and counts, never payloads."""

    number: int = 0  # by the store
    at: Millis = 0  # by the store
    actor: str  # `token:ID (name)`, `cli:user@host`, `anonymous`, `app`
    action: str  # `job.cancel`, `queue.pause`, `token.create`, …
    target: str  # an id, a queue, a schedule, or the text of the filter
    before: str | None = None
    after: str | None = None


def bounded(entry: AuditEntry) -> AuditEntry:
    """The entry as every store can hold it: a long text is cut, and the cut is marked."""
    return replace(
        entry,
        actor=fit(entry.actor, AUDIT_NAME),
        action=fit(entry.action, AUDIT_NAME),
        target=fit(entry.target, AUDIT_NAME),
        before=None if entry.before is None else fit(entry.before, AUDIT_TEXT),
        after=None if entry.after is None else fit(entry.after, AUDIT_TEXT),
    )
