"""The engine: every operation is asked of the server, whose own engine keeps the promises.

Of the server's registry the audit is to be had. Tokens and the feed are for whoever is at the store itself.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from msgspec import Raw, Struct, structs

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Capabilities, Registry
from shigoto.engine.remote import protocol
from shigoto.engine.remote.client import read_address
from shigoto.engine.remote.driver import Driver, GetPage, RemoteDoorbell, VerbCall
from shigoto.model.errors import StoreRefused, Unsupported
from shigoto.model.job import (
    Attempt,
    Counts,
    Enqueued,
    Job,
    JobFilter,
    JobSpec,
    Lease,
    LoggedLine,
    QueueSettings,
    State,
)
from shigoto.model.schedule import Change, Due, Firing, Schedule, TickEntry
from shigoto.model.secrets import EncryptedText, ReencryptedText
from shigoto.model.service import AuditEntry, FeedPosition, Happening, Token
from shigoto.model.time import Millis, to_millis
from shigoto.model.worker import (
    CLAIM_DEADLINE,
    Announcement,
    Death,
    Orders,
    Promoted,
    Report,
    Rescued,
    Settlement,
    SweepOrder,
    Swept,
    Verdict,
    Want,
    WorkerRecord,
)

AUDIT = "/api/v1/audit"

T = TypeVar("T")
logger = logging.getLogger("shigoto")


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
            page: _Page = yield GetPage(f"{AUDIT}?{query}", _Page)
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

    def happened(self, after: FeedPosition, until: Millis, limit: int) -> Op[tuple[list[Happening], Millis]]:
        """Refuse."""
        self._refuse()

    def encrypted(
        self, current: str, *, after: int, limit: int
    ) -> Op[tuple[list[EncryptedText], int | None]]:
        """Refuse: a rotation is for whoever is at the store itself."""
        self._refuse()

    def reencrypt(self, changes: Sequence[ReencryptedText]) -> Op[int]:
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


class RemoteEngine:
    """Jobs behind a server. It repairs its store by itself; `whole` asks for that all the same, as tests do."""

    def __init__(self, url: str, *, whole: bool = False) -> None:
        self._where = read_address(url)
        self._driver = Driver(self._where)
        self._whole = whole
        if self._where.naked:
            logger.warning(
                "The token for %s travels in the clear: anybody between can read it. Use https.",
                self._where.shown,
            )

    @property
    def capabilities(self) -> Capabilities:
        """Everything but a transaction of the caller's; and no repairs, which are the server's."""
        return Capabilities(
            name="http", durable=True, shared=True, joins=False, repairs=self._whole, served=True
        )

    @property
    def address(self) -> str:
        """Where the server is; the token is in it."""
        return self._where.url

    @property
    def shown(self) -> str:
        """Where the server is, for people."""
        return self._where.shown

    @property
    def registry(self) -> Registry:
        """The audit, to be read; who may do what is decided at the store itself."""
        return RemoteRegistry(self.shown)

    def run(self, op: Op[T]) -> T:
        """Run an op in the calling thread."""
        return self._driver.run(op)

    async def arun(self, op: Op[T]) -> T:
        """Run an op without blocking the event loop."""
        return await self._driver.arun(op)

    def join(self, connection: object, op: Op[T]) -> T:
        """Refuse: what the server writes is not in the caller's transaction."""
        raise Unsupported(
            f"An http store cannot join the transaction of a {type(connection).__name__}: its jobs are behind the"
            f" server {self.shown}. Open the database itself to commit both together, or enqueue after your commit."
        )

    async def ajoin(self, connection: object, op: Op[T]) -> T:
        """Refuse, as `join` does."""
        return self.join(connection, op)

    def block(self, last: Callable[[], Op[Any]], *, limit: float) -> NoReturn:
        """Refuse: a handler's own statements have no place here."""
        raise Unsupported(
            f"This store is a server ({self.shown}): it has no transaction to share. Run this task on a worker that"
            " opens the database itself."
        )

    def listen(self) -> RemoteDoorbell:
        """A new doorbell, for use on the running event loop."""
        return RemoteDoorbell(self._driver.get)

    def close(self) -> None:
        """Close every connection. A later call opens them again."""
        self._driver.close()

    def migrate(self) -> list[str]:
        """Nothing to migrate: that is done where the store is."""
        return []

    def expect_ready(self, *, any_role: bool) -> Op[None]:
        """Raises StoreError if the server is not there, does not know us, or speaks another language."""

        def start() -> Steps[None]:
            hello: protocol.ServerHello = yield VerbCall("hello", ())
            if hello.protocol != protocol.PROTOCOL:
                raise StoreRefused(
                    f"The server {self.shown} is of release {hello.version} and speaks protocol {hello.protocol}; this"
                    f" release speaks {protocol.PROTOCOL}. Use the same release on both sides."
                )

        return Op(start=start, mode="read")

    def enqueue_many(self, specs: Sequence[JobSpec]) -> Op[list[Enqueued]]:
        """T1, T17: store the jobs, all or none, and answer in the order of `specs`."""
        return _call("enqueue_many", lambda: (protocol.plain(specs),))

    def claim(self, worker: UUID, wants: Sequence[Want]) -> Op[list[Lease]]:
        """T2: lease ready jobs to the worker, each want by itself, best first."""
        # What is answered later is given back, so there is no use in waiting for it.
        return structs.replace(_said("claim", worker, wants), deadline=CLAIM_DEADLINE / 1000)

    def beat(self, worker: UUID, held: Sequence[tuple[int, int]] | None) -> Op[Orders]:
        """Renew the worker's lease, unless it is fenced, and tell what it must know."""
        return _said("beat", worker, held, urgent=True)

    def report(self, worker: UUID, reports: Sequence[Report]) -> Op[list[bool]]:
        """T3: store progress, checkpoints and log lines of running jobs; False for each lease that is lost."""
        return _said("report", worker, reports)

    def settle(self, worker: UUID, settlements: Sequence[Settlement]) -> Op[list[Verdict]]:
        """T4-T8, T13: end runs, each guarded by (number, token, worker)."""
        return _said("settle", worker, settlements, urgent=True)

    def announce(self, announcement: Announcement) -> Op[None]:
        """Register a worker, or change what it said of itself; its lease starts now."""
        return _said("announce", announcement, urgent=True)

    def leave(self, worker: UUID) -> Op[int]:
        """Forget a worker; what it still held is released."""
        return _said("leave", worker, urgent=True)

    def report_dead(self, worker: UUID, deaths: Sequence[Death]) -> Op[list[Rescued]]:
        """Forget a worker whose process is known to have ended, and free what it held (T8, T9)."""
        return _said("bury", worker, deaths, urgent=True)

    def promote(self, limit: int) -> Op[Promoted]:
        """Make due scheduled jobs ready, in run_at order, at most `limit`."""
        return _said("promote", limit)

    def sweep(self, order: SweepOrder) -> Op[Swept]:
        """Nothing: the server sweeps."""
        return _said("sweep", order) if self._whole else Op(start=_nothing_swept, mode="read")

    def switch_notices(self, on: bool) -> Op[bool]:
        """Say whether notices are wanted. A server that has rules says so by itself."""
        return _said("switch_notices", on)

    def cancel(self, ids: Sequence[UUID], *, force: bool = False) -> Op[list[State | None]]:
        """T11, T12, T14."""
        return _said("cancel", ids, force)

    def retry(self, ids: Sequence[UUID]) -> Op[list[Enqueued]]:
        """T15: make failed or cancelled jobs ready again, all or none."""
        return _said("retry", ids)

    def deletable(self, wanted: JobFilter, *, after: int = 0) -> Op[list[int]]:
        """The numbers of matching jobs that may be deleted, oldest first."""
        return _read("deletable", wanted, after)

    def delete(self, numbers: Sequence[int], states: Collection[State]) -> Op[int]:
        """Delete those of the jobs that are in one of the states; never a processing or blocked one."""
        return _said("delete", numbers, list(states))

    def count(self, wanted: JobFilter) -> Op[int]:
        """How many jobs match."""
        return _read("count", wanted)

    def get(self, ids: Sequence[UUID]) -> Op[list[Job | None]]:
        """The jobs, in order; None where an id is not stored."""
        return _read("get", ids)

    def find(self, wanted: JobFilter) -> Op[list[Job]]:
        """A page of matching jobs, newest first."""
        return _read("find", wanted)

    def attempts(self, id: UUID) -> Op[list[Attempt]]:
        """The runs of a job that did not end completed, oldest first."""
        return _read("attempts", id)

    def logs(self, id: UUID) -> Op[list[LoggedLine]]:
        """The lines that the runs of a job have written, oldest first."""
        return _read("logs", id)

    def stats(self) -> Op[dict[str, Counts]]:
        """Exact counts by queue."""
        return _read("stats")

    def oldest(self) -> Op[dict[str, Millis]]:
        """By queue, since when its longest waiting job could have been claimed."""
        return _read("oldest")

    def configure(self, settings: QueueSettings) -> Op[None]:
        """Replace an operator's settings of one queue, pausing or resuming it."""
        return _said("configure", settings)

    def settings(self) -> Op[list[QueueSettings]]:
        """The settings of every queue that has had a job or a setting, by name."""
        return _read("settings")

    def workers(self) -> Op[list[WorkerRecord]]:
        """The workers that are registered and not fenced, oldest first."""
        return _read("workers")

    def schedules(self, names: Sequence[str] | None = None) -> Op[list[Schedule]]:
        """The schedules of these names, or all of them, by name."""
        return _read("schedules", names)

    def time(self) -> Op[Millis]:
        """What time it is at the store."""
        return _read("time")

    def due(self, declared: Collection[str], limit: int) -> Op[Due]:
        """The schedules that somebody has to look at."""
        return _read("due", list(declared), limit)

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        """Change schedules, with all that goes with it."""
        return _call("tick", lambda: ([_plain(change) for change in changes],))

    def remove_schedules(self, names: Sequence[str]) -> Op[list[bool]]:
        """Forget schedules and their histories."""
        return _said("remove_schedules", names)

    def declare(self, names: Collection[str]) -> Op[int]:
        """Say of schedules that a living process declares them."""
        return _said("declare", list(names))

    def history(self, name: str, *, before: Millis | None = None, limit: int = 100) -> Op[list[TickEntry]]:
        """The entries of a schedule, the newest first."""
        return _read("history", name, before, limit)


def _said(verb: str, *args: Any, urgent: bool = False) -> Op[Any]:
    return structs.replace(_call(verb, lambda: args), urgent=urgent)


def _read(verb: str, *args: Any) -> Op[Any]:
    return structs.replace(_call(verb, lambda: args), mode="read")


def _call(verb: str, args: Callable[[], tuple[Any, ...]]) -> Op[Any]:
    def start() -> Steps[Any]:
        return (yield VerbCall(verb, args()))

    return Op(start=start)


def _nothing_swept() -> Steps[Swept]:
    yield from ()
    return Swept()


def _plain(change: Change) -> Change:
    """The change without what means something in its own process only."""
    return structs.replace(change, firings=tuple(map(_plain_firing, change.firings)))


def _plain_firing(firing: Firing) -> Firing:
    return firing if firing.spec is None else structs.replace(firing, spec=protocol.plain([firing.spec])[0])
