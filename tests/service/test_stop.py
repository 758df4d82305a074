"""How a service stops: red at once, nobody is kept waiting, what was begun is finished."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from shigoto import Shigoto
from shigoto.server import listen as run_module
from shigoto.server.listen import ServerExit, Serving
from tests.journeys.yard import eventually
from tests.service.ground import Answer, Served, running, shop


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = shop(tmp_path)
    yield app
    app.close()


def serving(app: Shigoto, **options: Any) -> Serving:
    return Serving(app, port=0, name="tested", **options)


def lets_nobody_in(address: str) -> bool:
    """Whether a service has noticed that it shall stop: it still answers those who are in."""
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_it_is_red_from_the_first_moment_and_gives_out_no_more_work(app: Shigoto) -> None:
    """Readiness goes red at the first stop signal."""
    server = serving(app, housekeeping=False)
    with running(server):
        here = Served(server.address, server.service)
        assert here.ask("GET", "/readyz").status == 200

        server.service.stopping()

        answer = here.ask("GET", "/readyz")
        assert (answer.status, answer.json["reasons"]) == (503, ["The service is about to stop."])
        assert here.ask("GET", "/healthz").status == 200
        for method, path in (("POST", "/workers"), ("POST", "/workers/w/claim"), ("GET", "/events")):
            refused = here.ask(method, path, {})
            assert (refused.status, refused.code) == (503, "SERVER.STOPPING")
            assert refused.headers["retry-after"] == "1"
        made = here.ask("POST", "/jobs", {"task": "greet", "payload": {"name": "Ada"}})
        assert made.status == 201


def test_who_waits_is_answered_at_once(app: Shigoto) -> None:
    handle = app.tasks["greet"].enqueue("Ada")
    server = serving(app, housekeeping=False)
    answers: list[Answer] = []
    with running(server):
        here = Served(server.address, server.service)
        threads = [
            threading.Thread(
                target=lambda: answers.append(here.ask("GET", f"/jobs/{handle.id}?wait=50", timeout=60))
            )
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: len(server.service.feed._waiting.get(handle.id, ())) == 5)
        began = time.monotonic()
        server.stop()
        for thread in threads:
            thread.join(20)
        assert time.monotonic() - began < 5
    assert [(answer.status, answer.json["state"]) for answer in answers] == [(200, "pending")] * 5


def test_what_was_begun_is_finished(app: Shigoto, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    real = type(app.engine).arun

    async def slow(engine: Any, op: Any) -> Any:
        begun.set()
        await asyncio.to_thread(go.wait, 20)
        return await real(engine, op)

    server = serving(app, housekeeping=False)
    answers: list[Answer] = []
    with running(server):
        here = Served(server.address, server.service)
        here.ask("GET", "/jobs")
        monkeypatch.setattr(type(app.engine), "arun", slow)
        thread = threading.Thread(target=lambda: answers.append(here.ask("GET", "/jobs")))
        thread.start()
        assert begun.wait(10)
        server.stop()
        eventually(lambda: lets_nobody_in(here.url))
        assert thread.is_alive()
        go.set()
        thread.join(10)
        monkeypatch.undo()
    assert [answer.status for answer in answers] == [200]


async def test_asked_twice_it_cuts_off_what_still_runs(app: Shigoto, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serving(app, housekeeping=False)

    begun = asyncio.Event()

    async def stuck(*_: object) -> Any:
        begun.set()
        await asyncio.sleep(60)

    run = asyncio.create_task(server.run())
    await asyncio.wait_for(server.began.wait(), 10)
    address = server.address
    host, port = address.removeprefix("http://").split(":")
    monkeypatch.setattr(server.service.feed, "ended", stuck)
    handle = await app.tasks["greet"].aenqueue("Ada")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /api/v1/jobs/{handle.id}?wait=50 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    await writer.drain()
    await asyncio.wait_for(begun.wait(), 10)

    server.stop()
    await asyncio.to_thread(eventually, lambda: lets_nobody_in(address))
    assert not run.done()
    server.stop()

    assert await asyncio.wait_for(run, 5) == ServerExit(running=1)
    assert ServerExit(running=1).exit_code == 1
    writer.close()


async def test_what_is_not_finished_in_time_is_cut_off_and_told(
    app: Shigoto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The exit code says so; a client that never sends the rest of its body is no fault of ours."""
    monkeypatch.setattr(run_module, "GRACE", 0.3)
    server = serving(app, housekeeping=False)
    run = asyncio.create_task(server.run())
    await asyncio.wait_for(server.began.wait(), 10)
    host, port = server.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = "POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: 100\r\nExpect: 100-continue\r\n\r\n".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")  # it waits for the body
    writer.write(b'{"task": ')

    server.stop()

    assert await asyncio.wait_for(run, 5) == ServerExit(running=1)
    answer = await asyncio.wait_for(reader.read(), 5)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"SERVER.STOPPING" in answer
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    writer.close()


async def test_one_that_was_stopped_before_does_not_begin(app: Shigoto) -> None:
    server = serving(app)
    server.stop()

    assert await asyncio.wait_for(server.run(), 5) == ServerExit()
    assert not server.ready


async def test_it_can_be_entered(app: Shigoto) -> None:
    states: list[bool] = []
    async with serving(app) as server:
        await asyncio.wait_for(server.began.wait(), 10)
        states.append(server.ready)
    states.append(server.ready)
    assert states == [True, False]
    assert ServerExit().exit_code == 0


def test_with_housekeeping_it_ends_soon(app: Shigoto) -> None:
    server = serving(app)
    with running(server):
        assert Served(server.address, server.service).ask("GET", "/readyz").status == 200
        began = time.monotonic()
        server.stop()
    assert time.monotonic() - began < 8
