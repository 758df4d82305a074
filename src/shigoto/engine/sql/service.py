"""Tokens, the audit and the feed, over named statements."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from msgspec import json

from shigoto.engine.op import Op
from shigoto.engine.sql.commands import Steps, sql, sql_each
from shigoto.engine.sql.looking import STATES, UNREADABLE
from shigoto.model.secrets import HELD, PREFIX, EncryptedText, ReencryptedText, prefix_of
from shigoto.model.service import AUDIT_NAME, AuditEntry, FeedPosition, Happening, Scope, Token, bounded_entry
from shigoto.model.text import fit
from shigoto.model.time import Millis


def nothing() -> Steps[None]:
    """No step at all."""
    yield from ()


class SqlRegistry:
    """What the service keeps beside the jobs. `now` is store time, `watch` what makes the feed cheap, once."""

    def __init__(self, now: Callable[[], Steps[Millis]], watch: Callable[[], Steps[None]] = nothing) -> None:
        self._now = now
        self._watch = watch

    def add_token(self, token: Token) -> Op[bool]:
        return Op(start=lambda: self._add_token(token))

    def _add_token(self, token: Token) -> Steps[bool]:
        now = yield from self._now()
        added = yield sql(
            "add_token", token.id, token.name, token.hash, json.encode(token.scopes).decode(),
            None if token.queues is None else json.encode(token.queues).decode(), token.tenant, now,
            token.expires_at, token.revoked_at,
        )  # fmt: skip
        return added.rowcount == 1

    def tokens(self) -> Op[list[Token]]:
        return Op(start=_tokens, mode="read")

    def revoke_token(self, id: str) -> Op[bool]:
        return Op(start=lambda: self._revoke_token(id))

    def _revoke_token(self, id: str) -> Steps[bool]:
        now = yield from self._now()
        return (yield sql("revoke_token", id, now)).rowcount == 1

    def encrypted(
        self, current: str, *, after: int, limit: int
    ) -> Op[tuple[list[EncryptedText], int | None]]:
        return Op(start=lambda: _encrypted(current, after, limit), mode="read")

    def reencrypt(self, changes: Sequence[ReencryptedText]) -> Op[int]:
        return Op(start=lambda: _reencrypt(changes))

    def note(self, entries: Sequence[AuditEntry]) -> Op[None]:
        return Op(start=lambda: self._note(entries))

    def _note(self, entries: Sequence[AuditEntry]) -> Steps[None]:
        if entries:
            now = yield from self._now()
            rows = [
                (now, e.actor, e.action, e.target, e.before, e.after) for e in map(bounded_entry, entries)
            ]
            yield sql_each("note", rows)

    def noted(
        self, *, before: int | None = None, limit: int = 100, target: str | None = None
    ) -> Op[list[AuditEntry]]:
        return Op(start=lambda: _noted(before, limit, target), mode="read")

    def watch(self) -> Op[None]:
        return Op(start=self._watch, mode="probe")

    def happened(self, after: FeedPosition, until: Millis, limit: int) -> Op[tuple[list[Happening], Millis]]:
        return Op(start=lambda: self._happened(after, until, limit), mode="read")

    def _happened(
        self, after: FeedPosition, until: Millis, limit: int
    ) -> Steps[tuple[list[Happening], Millis]]:
        now = yield from self._now()
        values = (after.at, after.number, after.step, until, limit)
        rows = (yield sql("ended_jobs", *values)).fetchall() + (yield sql("ended_runs", *values)).fetchall()
        found = [each for each in map(_told, rows) if each is not None]
        return sorted(found, key=lambda each: each.place)[:limit], now


def _tokens() -> Steps[list[Token]]:
    return [_token(row) for row in (yield sql("tokens")).fetchall()]


def _token(row: tuple[Any, ...]) -> Token:
    id, name, hash, scopes, queues, tenant, created_at, expires_at, revoked_at = row
    return Token(
        id=id,
        name=name,
        hash=hash,
        scopes=json.decode(scopes, type=tuple[Scope, ...]),
        queues=None if queues is None else json.decode(queues, type=tuple[str, ...]),
        tenant=tenant,
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
    )


def _noted(before: int | None, limit: int, target: str | None) -> Steps[list[AuditEntry]]:
    if target is None:
        answer = yield sql("noted", before, limit)
    else:
        answer = yield sql("noted_of", before, limit, fit(target, AUDIT_NAME))
    return [
        AuditEntry(
            number=number, at=at, actor=actor, action=action, target=target, before=before, after=after
        )
        for number, at, actor, action, target, before, after in answer.fetchall()
    ]


def _told(row: tuple[Any, ...]) -> Happening | None:
    """None of a row that somebody has written by hand, so that nobody can read it."""
    try:
        return _happening(row)
    except UNREADABLE:
        return None


def _happening(row: tuple[Any, ...]) -> Happening:
    at, number, step, outcome, id, task, queue, tenant, kind = row
    final = bool(step % 2)
    return Happening(
        place=FeedPosition(at, number, step),
        final=final,
        outcome=STATES[outcome].value if final else outcome,
        id=UUID(bytes=id),
        task=task,
        queue=queue,
        tenant=tenant,
        failure_kind=kind,
    )


def _encrypted(current: str, after: int, limit: int) -> Steps[tuple[list[EncryptedText], int | None]]:
    [to] = (yield sql("sealed_to", after, limit)).fetchone()
    if to is None:
        return [], None
    rows = (yield sql("sealed", after, to, PREFIX, prefix_of(current))).fetchall()
    return [
        EncryptedText(
            number=number, held=held, token=token, line=line, text=text, id=UUID(bytes=id), tenant=tenant, task=task
        )
        for number, held, token, line, text, id, tenant, task in rows
    ], to  # fmt: skip


def _reencrypt(changes: Sequence[ReencryptedText]) -> Steps[int]:
    count = 0
    for held in HELD:
        rows = [
            (each.encrypted.number, each.encrypted.token, each.encrypted.line, each.encrypted.text, each.text)
            for each in changes
            if each.encrypted.held == held
        ]
        if rows:
            count += (yield sql_each(f"reseal_{held}", rows)).rowcount
    return count
