"""A service inside of somebody's own ASGI app."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from shigoto import Shigoto
from shigoto.server import Service
from shigoto.server.listen import listening
from tests.service.ground import Served, keep, key, shop

DOES_ALL = key("submit", "read", "admin", name="all")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = shop(tmp_path)
    yield app
    app.close()


@contextmanager
def hosted(outer: Any, service: Service, *, lifespan: str = "auto") -> Iterator[Served]:
    """The outer app on a plain uvicorn, as users run it."""
    listener = listening("127.0.0.1", 0)
    config: Any = uvicorn.Config(outer, lifespan=lifespan, log_config=None, log_level="error")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        yield Served(f"http://127.0.0.1:{listener.getsockname()[1]}", service)
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
        assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["fastapi", "starlette"])
def test_it_serves_under_a_path(app: Shigoto, kind: str) -> None:
    keep(app, [DOES_ALL])
    service = Service(app, name="mounted")
    outer: Any = FastAPI() if kind == "fastapi" else Starlette(routes=[Mount("/work", service)])
    if kind == "fastapi":
        outer.mount("/work", service)
    with hosted(outer, service) as server:
        job = {"task": "greet", "payload": {"name": "Ada"}}
        made = _ask(server, "POST", "/work/api/v1/jobs", job)
        assert made.status == 201
        assert made.headers["location"] == f"/work/api/v1/jobs/{made.json['id']}"

        got = _ask(server, "GET", made.headers["location"])
        assert got.json["status_url"] == made.headers["location"]
        assert _ask(server, "GET", "/work/healthz").status == 200
        assert _ask(server, "GET", "/work/readyz").status == 200
        assert _ask(server, "GET", "/api/v1/jobs").status == 404
        too_large = _ask(server, "POST", "/work/api/v1/jobs/actions", {"filter": "x" * 70_000})
        assert too_large.code == "REQUEST.TOO_LARGE"


def _ask(server: Served, method: str, path: str, json: Any = None) -> Any:
    return server.ask_at(method, path, json, token=DOES_ALL)


def test_nobody_gets_in_without_a_token(app: Shigoto) -> None:
    """S04: whoever mounts it may listen anywhere."""
    service = Service(app, housekeeping=False)
    outer = Starlette(routes=[Mount("/work", service)])
    with hosted(outer, service) as server:
        assert server.ask_at("GET", "/work/api/v1/jobs").code == "AUTH.MISSING"


def test_without_a_lifespan_its_parts_begin_with_the_first_request(app: Shigoto) -> None:
    keep(app, [DOES_ALL])
    service = Service(app)
    with hosted(Starlette(routes=[Mount("/work", service)]), service, lifespan="off") as server:
        assert service.scheduler is not None
        assert service.scheduler.idle is None
        assert _ask(server, "GET", "/work/readyz").status == 200


def test_with_one_they_begin_and_end_in_it(app: Shigoto) -> None:
    keep(app, [DOES_ALL])
    service = Service(app)
    seen: list[bool] = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with service:
            seen.append(service.running)
            yield
        seen.append(service.running)

    outer = Starlette(routes=[Mount("/work", service)], lifespan=lifespan)
    with hosted(outer, service, lifespan="on") as server:
        assert _ask(server, "GET", "/work/readyz").status == 200
    assert seen == [True, False]


def test_by_itself_it_has_a_lifespan_of_its_own(app: Shigoto) -> None:
    keep(app, [DOES_ALL])
    service = Service(app)
    with hosted(service, service, lifespan="on") as server:
        assert service.running
        assert _ask(server, "GET", "/readyz").status == 200
    assert not service.running


def test_it_serves_on_one_loop_after_the_other(app: Shigoto) -> None:
    keep(app, [DOES_ALL])
    service = Service(app)
    for _ in range(2):
        with hosted(Starlette(routes=[Mount("/work", service)]), service, lifespan="off") as server:
            assert _ask(server, "GET", "/work/readyz").status == 200
            assert _ask(server, "GET", "/work/api/v1/jobs").status == 200


async def test_what_it_cannot_serve_is_refused(app: Shigoto) -> None:
    service = Service(app)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await service({"type": "websocket"}, receive, send)
    assert sent[0]["type"] == "websocket.close"
    with pytest.raises(RuntimeError):
        await service({"type": "carrier pigeon"}, receive, send)
