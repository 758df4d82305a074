"""A service on a port of its own, and somebody who asks it: for all tests of the service.

    with served(app) as server:
        assert server.ask("GET", "/healthz").status == 200

It is the real thing: uvicorn on an event loop in a thread, asked over a socket by `http.client`.
"""

import asyncio
import http.client
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_bytes
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from msgspec import DecodeError, Struct, json

from shigoto import Shigoto
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.service import Scope, Token, mint_token
from shigoto.model.worker import Announcement, Ending, Settlement, Want
from shigoto.server.listen import Serving
from shigoto.server.service import Service
from tests.postgres import ALWAYS, Yard, make_store


def shop(folder: Path, url: str | None = None) -> Shigoto:
    """An app with a few tasks, and a file for its jobs, or another store."""
    app = Shigoto(folder / "jobs.db" if url is None else url)

    @app.task
    async def greet(name: str, times: int = 1) -> str:
        return f"Hello, {name}" * times

    @app.task(queue="mail")
    async def send(to: str) -> None: ...

    return app


# What the service adds is the same on each store, so the quick tier has it on two.
STORES = (
    "sqlite",
    pytest.param("postgres", marks=[pytest.mark.engine("postgres"), pytest.mark.tier("full")]),
    "memory",
)


@contextmanager
def shop_on(store: str, request: pytest.FixtureRequest) -> Iterator[Shigoto]:
    """The same on one of the STORES, for what every engine must do alike."""
    folder: Path = request.getfixturevalue("tmp_path")
    with ExitStack() as stack:
        url = {"sqlite": None, "memory": "memory:"}.get(store)
        if store == "postgres":
            yard: Yard = request.getfixturevalue("postgres_yard")
            url = stack.enter_context(yard.emptied(ALWAYS, make_store))
        app = shop(folder, url)
        stack.callback(app.close)
        yield app


def claim_all(app: Shigoto, *more: str) -> tuple[UUID, list[Lease]]:
    """Take all that is ready, as a worker would, and tell by which worker; `more` tasks are those of others."""
    engine, id, tasks = app.engine, uuid7(), (*app.tasks, *more)
    engine.run(
        engine.announce(Announcement(id=id, name="by hand", tasks=tasks, queues=None, slots=9, version="1"))
    )
    return id, engine.run(engine.claim(id, [Want(tasks=tasks, queues=None, limit=100)]))


def work_off(app: Shigoto, *, ending: Ending = Ending.COMPLETED, **fields: Any) -> list[Lease]:
    """Run all that is ready, as a worker would, and let every run end so."""
    engine = app.engine
    id, leases = claim_all(app)
    ends = [
        Settlement(number=each.number, token=each.token, queue=each.queue, ending=ending, **fields)
        for each in leases
    ]
    engine.run(engine.settle(id, ends))
    engine.run(engine.leave(id))
    return leases


class Key(Struct, frozen=True):
    """A token, and the text that opens with it."""

    text: str
    token: Token


def key(*scopes: Scope, name: str = "test", **fields: Any) -> Key:
    """A new token with these scopes, still to be stored: hand `key.token` to `served`, and `key.text` to `ask`."""
    text, id, hash = mint_token(token_bytes(8), token_bytes(32))
    return Key(text, Token(id=id, name=name, hash=hash, scopes=scopes, **fields))


class Answer(Struct, frozen=True):
    """What came back."""

    status: int
    headers: Mapping[str, str]  # names in small letters
    raw: bytes

    @property
    def json(self) -> Any:
        """The body, read as JSON; None if it is none."""
        try:
            return json.decode(self.raw)
        except DecodeError:
            return None

    @property
    def code(self) -> str | None:
        """The code of the problem, None if it is none."""
        problem = self.headers.get("content-type") == "application/problem+json"
        return self.json["code"] if problem else None


class Served:
    """A service that runs, and how to ask it."""

    def __init__(self, url: str, service: Service) -> None:
        self.url = url
        self.service = service

    def ask(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        token: str | Key | None = None,
        headers: Mapping[str, str] = {},
        body: bytes | None = None,
        timeout: float = 30,
    ) -> Answer:
        """One request on a connection of its own; paths that do not begin with /api, /healthz … get /api/v1 before."""
        return self.ask_at(
            method, whole(path), json, token=token, headers=headers, body=body, timeout=timeout
        )

    def ask_at(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        token: str | Key | None = None,
        headers: Mapping[str, str] = {},
        body: bytes | None = None,
        timeout: float = 30,
    ) -> Answer:
        """The same at exactly this path."""
        parts = urlsplit(self.url)
        sent = body if json is None else encoded(json)
        said = dict(headers)
        if json is not None:
            said.setdefault("Content-Type", "application/json")
        if token is not None:
            said["Authorization"] = f"Bearer {token.text if isinstance(token, Key) else token}"
        line = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was read
                line.request(method, path, sent, said)
            response = line.getresponse()
            raw = response.read()
            return Answer(
                response.status, {name.lower(): value for name, value in response.getheaders()}, raw
            )
        finally:
            line.close()


def whole(path: str) -> str:
    """The path as it is sent."""
    return path if path.startswith(("/api/", "/healthz", "/readyz", "http")) else f"/api/v1{path}"


def encoded(value: Any) -> bytes:
    return json.encode(value)


@contextmanager
def served(app: Shigoto, *, tokens: Sequence[Token | Key] = (), **options: Any) -> Iterator[Served]:
    """The app behind a service that listens on 127.0.0.1; options are those of `Serving`, such as housekeeping."""
    keep(app, tokens)
    usual: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "name": "tested"}
    serving = Serving(app, **usual | options)
    with running(serving):
        yield Served(serving.address, serving.service)


def keep(app: Shigoto, tokens: Sequence[Token | Key]) -> None:
    """Store tokens."""
    registry = app.engine.registry
    for each in tokens:
        assert app.engine.run(registry.add_token(each.token if isinstance(each, Key) else each))


@contextmanager
def running(serving: Serving) -> Iterator[None]:
    """It serves on an event loop in a thread of its own, for as long as the block runs."""
    begun = threading.Event()
    failed: list[BaseException] = []

    async def main() -> None:
        run = asyncio.create_task(serving.run())
        told = asyncio.create_task(serving.began.wait())
        await asyncio.wait((run, told), return_when=asyncio.FIRST_COMPLETED)
        begun.set()
        told.cancel()
        await run

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failed.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=work, name="served")
    thread.start()
    try:
        assert begun.wait(20), "the service has not begun"
        if failed:
            raise failed[0]
        yield
    finally:
        serving.stop()
        thread.join(20)
        if thread.is_alive():
            serving.stop()
            thread.join(10)
        assert not thread.is_alive(), "the service has not ended"
    if failed:
        raise failed[0]
