"""The verbs that are the same on every database: of the registry all, of an engine most, which adds the others."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, TypeVar
from uuid import UUID

from msgspec import json

from shigoto.engine.op import Op
from shigoto.engine.sql import looking, managing, repairing, settling, ticking
from shigoto.engine.sql.commands import Dialect, Steps, sql, sql_each
from shigoto.engine.sql.looking import STATES, UNREADABLE
from shigoto.model.job import Attempt, Counts, Enqueued, Job, JobFilter, LoggedLine, QueueSettings, State
from shigoto.model.schedule import Change, Due, Schedule, TickEntry
from shigoto.model.secrets import HELD, PREFIX, EncryptedText, ReencryptedText, prefix_of
from shigoto.model.service import AUDIT_NAME, AuditEntry, FeedPosition, Happening, Scope, Token, bounded_entry
from shigoto.model.text import fit
from shigoto.model.time import Millis
from shigoto.model.worker import Announcement, Death, Orders, Report, Rescued, SweepOrder, Swept, WorkerRecord

T = TypeVar("T")


class SqlRegistry:
    """What the service keeps beside the jobs. `now` is store time, `watch` what makes the feed cheap, once."""

    def __init__(self, now: Callable[[], Steps[Millis]], watch: Callable[[], Steps[None]]) -> None:
        self._now, self._watch = now, watch

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
        def start() -> Steps[list[Token]]:
            return [_token(row) for row in (yield sql("tokens")).fetchall()]

        return Op(start=start, mode="read")

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
        at, number, step, outcome, id, task, queue, tenant, kind = row
        final = bool(step % 2)
        return Happening(
            place=FeedPosition(at, number, step), final=final, outcome=STATES[outcome].value if final else outcome,
            id=UUID(bytes=id), task=task, queue=queue, tenant=tenant, failure_kind=kind,
        )  # fmt: skip
    except UNREADABLE:
        return None


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


class SqlEngine:
    """The base class of the SQL engines: their common verbs, each an operation over named statements.

    It is an exception to "no inheritance to share code": else each engine would hand on thirty typed verbs by hand.
    `now` tells store time inside an op: one engine knows it, the other asks the server. `watch` makes the feed cheap.
    An engine adds enqueues, claims, settlements, promotions, its driver, and whatever is not an operation.
    """

    def __init__(
        self, dialect: Dialect, *, now: Callable[[], Steps[Millis]], watch: Callable[[], Steps[None]]
    ) -> None:
        self._dialect, self._now, self._watch = dialect, now, watch

    @property
    def registry(self) -> SqlRegistry:
        return SqlRegistry(self._now, self._watch)

    def _timed(
        self,
        steps: Callable[[Millis], Steps[T]],
        *,
        rings: Callable[[T], bool] | None = None,
        urgent: bool = False,
        mode: Literal["read", "write"] = "write",
    ) -> Op[T]:
        """Make an op that needs store time."""

        def start() -> Steps[T]:
            return (yield from steps((yield from self._now())))

        return Op(start=start, rings=rings, urgent=urgent, mode=mode)

    # Leases and repair.

    def report(self, worker: UUID, reports: Sequence[Report]) -> Op[list[bool]]:
        return Op(start=lambda: repairing.report(worker, reports))

    def announce(self, announcement: Announcement) -> Op[None]:
        return self._timed(lambda now: repairing.announce(now, announcement))

    def leave(self, worker: UUID) -> Op[int]:
        return self._timed(
            lambda now: repairing.leave(self._dialect.submit, now, worker), rings=bool, urgent=True
        )

    def report_dead(self, worker: UUID, deaths: Sequence[Death]) -> Op[list[Rescued]]:
        return self._timed(
            lambda now: repairing.report_dead(self._dialect.submit, now, worker, deaths),
            rings=repairing.any_freed,
            urgent=True,
        )

    def beat(self, worker: UUID, held: Sequence[tuple[int, int]] | None) -> Op[Orders]:
        return Op(
            start=lambda: repairing.beat(self._dialect, worker, held),
            rings=lambda orders: orders.released > 0,
            urgent=True,
        )

    def sweep(self, order: SweepOrder) -> Op[Swept]:
        return Op(start=lambda: repairing.sweep(self._dialect, order), rings=repairing.any_work)

    def switch_notices(self, on: bool) -> Op[bool]:
        return Op(start=lambda: settling.switch_notices(on))

    # People.

    def cancel(self, ids: Sequence[UUID], *, force: bool = False) -> Op[list[State | None]]:
        heard = State.CANCELLED if force else State.PROCESSING  # by the worker that runs it
        return self._timed(
            lambda now: managing.cancel(self._dialect, now, ids, force=force),
            rings=lambda states: heard in states,
        )

    def retry(self, ids: Sequence[UUID]) -> Op[list[Enqueued]]:
        return self._timed(lambda now: managing.retry(self._dialect, now, ids), rings=bool)

    def deletable(self, wanted: JobFilter, *, after: int = 0) -> Op[list[int]]:
        return Op(start=lambda: looking.deletable(self._dialect, wanted, after), mode="read")

    def delete(self, numbers: Sequence[int], states: Collection[State]) -> Op[int]:
        return Op(start=lambda: managing.delete(self._dialect, numbers, states))

    def count(self, wanted: JobFilter) -> Op[int]:
        return Op(start=lambda: looking.count(self._dialect, wanted), mode="read")

    def get(self, ids: Sequence[UUID]) -> Op[list[Job | None]]:
        return Op(start=lambda: looking.get(self._dialect, list(ids)), mode="read")

    def find(self, wanted: JobFilter) -> Op[list[Job]]:
        return Op(start=lambda: looking.find(self._dialect, wanted), mode="read")

    def attempts(self, id: UUID) -> Op[list[Attempt]]:
        return Op(start=lambda: looking.attempts(id), mode="read")

    def logs(self, id: UUID) -> Op[list[LoggedLine]]:
        return Op(start=lambda: looking.logs(id), mode="read")

    def stats(self) -> Op[dict[str, Counts]]:
        return Op(start=lambda: looking.stats(self._dialect), mode="read")

    def oldest(self) -> Op[dict[str, Millis]]:
        return Op(start=looking.oldest, mode="read")

    def configure(self, settings: QueueSettings) -> Op[None]:
        return Op(start=lambda: managing.configure(settings), rings=lambda _: not settings.paused)

    def settings(self) -> Op[list[QueueSettings]]:
        return Op(start=looking.settings, mode="read")

    def workers(self) -> Op[list[WorkerRecord]]:
        return Op(start=looking.workers, mode="read")

    # Schedules.

    def time(self) -> Op[Millis]:
        return Op(start=self._now, mode="read")

    def schedules(self, names: Sequence[str] | None = None) -> Op[list[Schedule]]:
        return Op(start=lambda: ticking.schedules(names), mode="read")

    def due(self, declared: Collection[str], limit: int) -> Op[Due]:
        return self._timed(lambda now: ticking.due(now, declared, limit), mode="read")

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        return self._timed(lambda now: ticking.tick(self._dialect, now, changes), rings=any)

    def remove_schedules(self, names: Sequence[str]) -> Op[list[bool]]:
        return Op(start=lambda: ticking.remove(names))

    def declare(self, names: Collection[str]) -> Op[int]:
        return self._timed(lambda now: ticking.declare(now, names))

    def history(self, name: str, *, before: Millis | None = None, limit: int = 100) -> Op[list[TickEntry]]:
        return Op(start=lambda: ticking.history(name, before, limit), mode="read")
