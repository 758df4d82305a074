"""The engine: every operation is asked of the server, whose own engine keeps the promises.

Of the server's registry the audit is to be had. Tokens and the feed are for whoever is at the store itself.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast
from urllib.parse import urlencode
from uuid import UUID

from msgspec import Raw, Struct, structs

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Capabilities, DynamicEngine, Registry
from shigoto.engine.remote import protocol
from shigoto.engine.remote.client import read_address
from shigoto.engine.remote.driver import Driver, GetPage, RemoteDoorbell, VerbCall
from shigoto.model.errors import StoreRefused, Unsupported
from shigoto.model.job import Enqueued, JobSpec, Lease
from shigoto.model.schedule import Change
from shigoto.model.service import AuditEntry
from shigoto.model.time import to_millis
from shigoto.model.worker import CLAIM_DEADLINE, SweepOrder, Swept, Want

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

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if not hasattr(Registry, name):
            raise AttributeError(f"a registry has no {name!r}")
        return self._refuse

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        # A stolen token must not make more of its kind; and the server notes what it is asked to do, and by whom.
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


class RemoteEngine(DynamicEngine):
    """Jobs behind a server. It repairs its store by itself; `whole` asks for that all the same, as tests do.

    A verb that is not defined here is a plain request: its row in `protocol.VERBS` says how.
    """

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
        return cast("Registry", RemoteRegistry(self.shown))

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
        return structs.replace(_call("claim", lambda: (worker, wants)), deadline=CLAIM_DEADLINE / 1000)

    def sweep(self, order: SweepOrder) -> Op[Swept]:
        """Nothing: the server sweeps."""
        return _call("sweep", lambda: (order,)) if self._whole else Op(start=_nothing_swept, mode="read")

    def tick(self, changes: Sequence[Change]) -> Op[list[Change | None]]:
        """Change schedules, with all that goes with it."""
        return _call("tick", lambda: ([_plain(change) for change in changes],))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Op[Any]]:
            if name not in protocol.METHODS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return partial(_plain_call, protocol.METHODS[name])


def _plain_call(verb: protocol.Verb, *args: Any, **named: Any) -> Op[Any]:
    sent = protocol.arguments(verb, args, named)
    return _call(verb.name, lambda: sent)


def _call(name: str, args: Callable[[], tuple[Any, ...]]) -> Op[Any]:
    verb = protocol.VERBS[name]

    def start() -> Steps[Any]:
        return (yield VerbCall(name, args()))

    return Op(start=start, mode=verb.mode, urgent=verb.urgent)


def _nothing_swept() -> Steps[Swept]:
    yield from ()
    return Swept()


def _plain(change: Change) -> Change:
    """The change without what means something in its own process only."""
    firings = (
        firing if firing.spec is None else structs.replace(firing, spec=protocol.plain([firing.spec])[0])
        for firing in change.firings
    )
    return structs.replace(change, firings=tuple(firings))
