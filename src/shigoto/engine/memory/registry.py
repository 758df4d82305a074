"""Tokens, the audit and the feed."""

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import islice

from msgspec import structs

from shigoto.engine.memory.ops import change, read
from shigoto.engine.memory.row import Row
from shigoto.engine.memory.sealing import envelopes, put_envelope
from shigoto.engine.memory.store import Store
from shigoto.engine.op import Op
from shigoto.model.secrets import Reseal, Sealed, prefix_of
from shigoto.model.service import AUDIT_NAME, AuditEntry, Happening, Place, Token, bounded_entry
from shigoto.model.text import fit
from shigoto.model.time import Millis, to_millis


class MemoryRegistry:
    """What the service keeps beside the jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add_token(self, token: Token) -> Op[bool]:
        return change(lambda: self._add_token(token))

    def _add_token(self, token: Token) -> bool:
        if token.id in self._store.tokens:
            return False
        self._store.tokens[token.id] = structs.replace(token, created_at=self._store.now())
        return True

    def tokens(self) -> Op[list[Token]]:
        return read(lambda: list(self._store.tokens.values()))

    def revoke_token(self, id: str) -> Op[bool]:
        return change(lambda: self._revoke_token(id))

    def _revoke_token(self, id: str) -> bool:
        token = self._store.tokens.get(id)
        if token is None or token.revoked_at is not None:
            return False
        self._store.tokens[id] = structs.replace(token, revoked_at=self._store.now())
        return True

    def sealed(self, current: str, *, after: int, limit: int) -> Op[tuple[list[Sealed], int | None]]:
        return read(lambda: self._sealed(prefix_of(current), after, limit))

    def _sealed(self, current: str, after: int, limit: int) -> tuple[list[Sealed], int | None]:
        page = sorted(number for number in self._store.rows if number > after)[:limit]
        found = [each for number in page for each in envelopes(self._store.rows[number])]
        return [each for each in found if not each.text.startswith(current)], page[-1] if page else None

    def reseal(self, changes: Sequence[Reseal]) -> Op[int]:
        return change(lambda: sum(self._resealed(each.sealed, each.text) for each in changes))

    def _resealed(self, seen: Sealed, text: str) -> bool:
        row = self._store.rows.get(seen.number)
        if row is None or seen not in envelopes(row):
            return False
        put_envelope(row, seen, text)
        return True

    def note(self, entries: Sequence[AuditEntry]) -> Op[None]:
        return change(lambda: self._note(entries))

    def _note(self, entries: Sequence[AuditEntry]) -> None:
        now = self._store.now()
        for entry in entries:
            number = self._store.next_audit_number()
            self._store.audit[number] = structs.replace(bounded_entry(entry), number=number, at=now)

    def noted(
        self, *, before: int | None = None, limit: int = 100, target: str | None = None
    ) -> Op[list[AuditEntry]]:
        wanted = None if target is None else fit(target, AUDIT_NAME)

        def found() -> Iterator[AuditEntry]:
            for entry in reversed(self._store.audit.values()):
                if (before is None or entry.number < before) and wanted in (None, entry.target):
                    yield entry

        return read(lambda: list(islice(found(), max(0, limit))))

    def watch(self) -> Op[None]:
        return read(lambda: None)

    def happened(self, after: Place, until: Millis, limit: int) -> Op[tuple[list[Happening], Millis]]:
        def look() -> tuple[list[Happening], Millis]:
            found = (
                each
                for row in self._store.rows.values()
                for each in _happenings(row)
                if after < each.place and each.place.at < until
            )
            return nsmallest(limit, found, key=lambda each: each.place), self._store.now()

        return read(look)


def _happenings(row: Row) -> Iterator[Happening]:
    """The ends of its runs, and its own, which is that of its last run, too."""
    ended = row.finished_at if row.state.terminal else None
    for attempt in row.attempts:
        at = to_millis(attempt.finished_at)
        if at != ended or attempt.token != row.token:
            yield _happening(row, Place(at, row.number, 2 * attempt.token), attempt.outcome)
    if ended is not None:
        yield _happening(row, Place(ended, row.number, 2 * row.token + 1), row.state)


def _happening(row: Row, place: Place, outcome: str) -> Happening:
    final = bool(place.step % 2)
    return Happening(
        place=place,
        final=final,
        outcome=str(outcome),
        id=row.spec.id,
        task=row.spec.task,
        queue=row.spec.queue,
        tenant=row.spec.tenant,
        failure_kind=str(row.failure_kind) if final and row.failure_kind is not None else None,
    )
