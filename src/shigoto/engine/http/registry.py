"""What is to be had of a server's registry: the audit. Tokens and the feed are for whoever is at the store itself."""

from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn
from urllib.parse import urlencode

from msgspec import Raw, Struct

from shigoto.engine.http.driver import Look
from shigoto.engine.op import Op, Steps
from shigoto.model.errors import Unsupported
from shigoto.model.secrets import Reseal, Sealed
from shigoto.model.service import AuditEntry, Happening, Place, Token
from shigoto.model.time import Millis, to_millis

AUDIT = "/api/v1/audit"


class _Shown(Struct, frozen=True, kw_only=True):
    number: int
    at: datetime
    actor: str
    action: str
    target: str
    before: Raw  # or null
    after: Raw


class _Page(Struct, frozen=True, kw_only=True):
    entries: list[_Shown]


class RemoteRegistry:
    """Asks for the audit, as anybody can who has a token for it, and refuses the rest."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def noted(
        self, *, before: int | None = None, limit: int = 100, target: str | None = None
    ) -> Op[list[AuditEntry]]:
        """A page of the audit, the newest first."""
        said = {"limit": limit, "before": before, "target": target}
        query = urlencode({name: value for name, value in said.items() if value is not None})

        def start() -> Steps[list[AuditEntry]]:
            page: _Page = yield Look(f"{AUDIT}?{query}", _Page)
            return [_entry(each) for each in page.entries]

        return Op(start=start, mode="read")

    def add_token(self, token: Token) -> Op[bool]:
        """Refuse: a stolen token must not make more of its kind."""
        self._refuse()

    def tokens(self) -> Op[list[Token]]:
        """Refuse."""
        self._refuse()

    def revoke_token(self, id: str) -> Op[bool]:
        """Refuse."""
        self._refuse()

    def note(self, entries: Sequence[AuditEntry]) -> Op[None]:
        """Refuse: the server notes what it is asked to do, and who has asked."""
        self._refuse()

    def watch(self) -> Op[None]:
        """Refuse."""
        self._refuse()

    def happened(self, after: Place, until: Millis, limit: int) -> Op[tuple[list[Happening], Millis]]:
        """Refuse."""
        self._refuse()

    def sealed(self, current: str, *, after: int, limit: int) -> Op[tuple[list[Sealed], int | None]]:
        """Refuse: a rotation is for whoever is at the store itself."""
        self._refuse()

    def reseal(self, changes: Sequence[Reseal]) -> Op[int]:
        """Refuse."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Unsupported(
            f"This store is a server ({self._shown}): tokens, the feed and a rotation of keys are not to be had from an"
            " http store, and the audit can only be read. Name the store itself."
        )


def _entry(shown: _Shown) -> AuditEntry:
    return AuditEntry(
        number=shown.number,
        at=to_millis(shown.at),
        actor=shown.actor,
        action=shown.action,
        target=shown.target,
        before=_text(shown.before),
        after=_text(shown.after),
    )


def _text(json: Raw) -> str | None:
    text = bytes(json).decode()
    return None if text == "null" else text
