"""The seam's second half: what the service keeps beside the jobs, and asks about them. Every engine has it as
`engine.registry`; its ops are run like all others."""

from collections.abc import Sequence
from typing import Protocol

from shigoto.engine.op import Op
from shigoto.model.secrets import Reseal, Sealed
from shigoto.model.service import AuditEntry, Happening, Place, Token
from shigoto.model.time import Millis


class Registry(Protocol):
    """Tokens, the audit, the feed of what has happened, and what is encrypted."""

    def add_token(self, token: Token) -> Op[bool]:
        """Keep a token, as created now; False, and nothing is changed, if its id is taken."""
        ...

    def tokens(self) -> Op[list[Token]]:
        """All of them, the oldest first, those that were revoked or have expired, too."""
        ...

    def revoke_token(self, id: str) -> Op[bool]:
        """From now on it opens nothing; False if it is unknown or was revoked before."""
        ...

    def note(self, entries: Sequence[AuditEntry]) -> Op[None]:
        """Write into the audit what was done, in this order, as of now."""
        ...

    def noted(
        self, *, before: int | None = None, limit: int = 100, target: str | None = None
    ) -> Op[list[AuditEntry]]:
        """A page of the audit, the newest first: those with a number below `before`, and of this target, if named."""
        ...

    def watch(self) -> Op[None]:
        """Make `happened` cheap from now on, at a price for every job that ends. Idempotent."""
        ...

    def happened(self, after: Place, until: Millis, limit: int) -> Op[tuple[list[Happening], Millis]]:
        """What stands behind `after` and has happened before the instant `until`, in order, at most `limit`; and
        store time now.

        Whoever follows the feed asks for a few seconds at a time, and looks back: a commit may come later than the
        instant it bears.
        """
        ...

    def sealed(self, current: str, *, after: int, limit: int) -> Op[tuple[list[Sealed], int | None]]:
        """What is encrypted by any key but the one with the id `current`, of the first `limit` jobs with a number above
        `after`; and the number of the last of these jobs, None if there is none."""
        ...

    def reseal(self, changes: Sequence[Reseal]) -> Op[int]:
        """Put other envelopes into the places of these, and count them: each only if what was seen still stands there.

        The one way in which the arguments of a stored job are written anew; nothing else of it changes.
        """
        ...
