"""Tokens, the audit and the feed; and where a job holds what may be encrypted."""

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import islice

from msgspec import structs

from shigoto.engine.memory.store import Row, Store, change, read
from shigoto.engine.op import Op
from shigoto.model.secrets import EncryptedText, Held, ReencryptedText, is_encrypted, prefix_of
from shigoto.model.service import AUDIT_NAME, AuditEntry, FeedPosition, Happening, Token, bounded_entry
from shigoto.model.text import fit
from shigoto.model.time import Millis, to_millis


def envelopes(row: Row) -> list[EncryptedText]:
    spec = row.spec
    return [
        EncryptedText(
            number=row.number, held=held, token=token, line=line, text=text, id=spec.id, tenant=spec.tenant,
            task=spec.task,
        )
        for held, token, line, text in _texts(row)
        if text is not None and is_encrypted(text)
    ]  # fmt: skip


def put_envelope(row: Row, seen: EncryptedText, text: str) -> None:
    match seen.held:
        case "payload":
            row.spec = structs.replace(row.spec, payload=text)
        case "result":
            row.result = text
        case "failure":
            row.never_run = text
        case "progress":
            row.progress_text = text
        case "checkpoint":
            row.checkpoint = text
        case "error" | "traceback":
            row.attempts = [
                structs.replace(each, **{seen.held: text}) if each.token == seen.token else each
                for each in row.attempts
            ]
        case "log":
            at = seen.token, seen.line
            row.lines[at] = structs.replace(row.lines[at], text=text)


def _texts(row: Row) -> Iterator[tuple[Held, int, int, str | None]]:
    yield "payload", 0, 0, row.spec.payload
    yield "result", 0, 0, row.result
    yield "failure", 0, 0, row.never_run
    yield "progress", 0, 0, row.progress_text
    yield "checkpoint", 0, 0, row.checkpoint
    for each in row.attempts:
        yield "error", each.token, 0, each.error
        yield "traceback", each.token, 0, each.traceback
    for (token, line), written in row.lines.items():
        yield "log", token, line, written.text


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

    def encrypted(
        self, current: str, *, after: int, limit: int
    ) -> Op[tuple[list[EncryptedText], int | None]]:
        return read(lambda: self._encrypted(prefix_of(current), after, limit))

    def _encrypted(self, current: str, after: int, limit: int) -> tuple[list[EncryptedText], int | None]:
        page = sorted(number for number in self._store.rows if number > after)[:limit]
        found = [each for number in page for each in envelopes(self._store.rows[number])]
        return [each for each in found if not each.text.startswith(current)], page[-1] if page else None

    def reencrypt(self, changes: Sequence[ReencryptedText]) -> Op[int]:
        return change(lambda: sum(self._reencrypted(each.encrypted, each.text) for each in changes))

    def _reencrypted(self, seen: EncryptedText, text: str) -> bool:
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

    def happened(self, after: FeedPosition, until: Millis, limit: int) -> Op[tuple[list[Happening], Millis]]:
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
            yield _happening(row, FeedPosition(at, row.number, 2 * attempt.token), attempt.outcome)
    if ended is not None:
        yield _happening(row, FeedPosition(ended, row.number, 2 * row.token + 1), row.state)


def _happening(row: Row, place: FeedPosition, outcome: str) -> Happening:
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
