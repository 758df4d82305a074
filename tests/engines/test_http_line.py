"""The http engine on lines that fail: what is asked again, what is not, and how soon anybody notices."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from faults.tools.proxy import HalfOpen, Pass, Proxy, Refuse, Silent
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.engine.open import open_engine
from shigoto.engine.remote import RemoteEngine, driver, protocol
from shigoto.engine.remote.client import (
    HEARD_WITHIN,
    PendingRequest,
    ServerConnections,
    failure,
    read_address,
)
from shigoto.model import errors
from shigoto.model.job import JobSpec
from shigoto.model.service import mint_token
from shigoto.model.worker import CLAIM_DEADLINE, SweepOrder, Want
from tests.engines.tiny_server import TinyServer, tiny_server

TOKEN = mint_token(bytes(8), bytes(32))[0]


@pytest.fixture
def server() -> Iterator[TinyServer]:
    with tiny_server(MemoryEngine()) as server:
        yield server


@pytest.fixture
def engine(server: TinyServer) -> Iterator[RemoteEngine]:
    engine = RemoteEngine(server.url)
    yield engine
    engine.close()


def spec() -> JobSpec:
    return JobSpec(id=uuid4(), task="work", queue="default", payload="{}")


def with_deadline(op: Op[Any], seconds: float) -> Op[Any]:
    return Op(start=op.start, deadline=seconds)


class TestRepeats:
    """A kept connection may have been ended by the server; what may be asked twice is asked again at once."""

    def test_what_may_be_repeated_is(self, server: TinyServer, engine: RemoteEngine) -> None:
        engine.run(engine.stats())
        server.hang_up_on = 1

        assert engine.run(engine.stats()) == {}
        assert server.asked == ["stats", "stats", "stats"]

    def test_a_claim_is_not(self, server: TinyServer, engine: RemoteEngine) -> None:
        engine.run(engine.stats())
        server.hang_up_on = 1

        with pytest.raises(errors.StoreUnavailable, match="does not answer"):
            engine.run(engine.claim(uuid4(), [Want(tasks=("work",), queues=None, limit=1)]))
        assert server.asked == ["stats", "claim"]

    def test_jobs_are_submitted_again_and_are_one_each(
        self, server: TinyServer, engine: RemoteEngine
    ) -> None:
        server.hang_up_on = 2  # it has stored them, and nobody has heard of it
        jobs = [spec(), spec()]

        answers = engine.run(engine.enqueue_many(jobs))

        assert [answer.id for answer in answers] == [job.id for job in jobs]
        assert engine.run(engine.stats())["default"].pending == 2
        assert server.asked.count("enqueue_many") == 3

    def test_a_connection_that_has_ended_is_not_used(self, server: TinyServer, engine: RemoteEngine) -> None:
        engine.run(engine.stats())
        server.end_connections()
        worker = uuid4()

        assert engine.run(engine.claim(worker, [])) == []


class TestMany:
    """A server takes no more than so much at once."""

    def test_jobs_are_asked_for_in_parts(
        self, server: TinyServer, engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driver, "MOST_IDS", 2)
        jobs = [spec() for _ in range(5)]
        engine.run(engine.enqueue_many(jobs))
        ids = [job.id for job in jobs]

        found = engine.run(engine.get([*ids[:3], uuid4(), *ids[3:]]))

        assert [None if job is None else job.id for job in found] == [*ids[:3], None, *ids[3:]]
        assert server.asked.count("get") == 3
        assert engine.run(engine.get([])) == []

    def test_but_not_stored_in_parts(
        self, server: TinyServer, engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All or none cannot be promised of two requests."""
        monkeypatch.setattr(driver, "MOST_JOBS", 2)

        with pytest.raises(errors.PayloadTooLarge, match="in several parts"):
            engine.run(engine.enqueue_many([spec() for _ in range(3)]))
        assert server.asked == []


class TestNoAnswer:
    """A proxy that is before the server says 200, too: a page that tells people to come back later."""

    @pytest.mark.parametrize(
        "instead",
        [
            ("text/html", b"<html>Back soon</html>"),
            (protocol.MEDIA_TYPE, b"<html>Back soon</html>"),
            (protocol.MEDIA_TYPE, b""),
            (protocol.MEDIA_TYPE, b"\xa1\xff"),
            ("", protocol.encode({})),
        ],
    )
    def test_is_a_store_that_is_away_for_a_moment(
        self, server: TinyServer, engine: RemoteEngine, instead: tuple[str, bytes]
    ) -> None:
        server.instead = instead
        ops: list[Op[Any]] = [engine.stats(), engine.beat(uuid4(), None), engine.leave(uuid4())]
        for op in ops:
            with pytest.raises(errors.StoreUnavailable, match="no answer of a Shigoto server"):
                engine.run(op)

        server.instead = None
        assert engine.run(engine.stats()) == {}


class TestTime:
    """Nobody waits for longer than he said."""

    def test_a_silent_line_ends_with_the_deadline(self, server: TinyServer) -> None:
        with Proxy(server.port) as proxy:
            engine = RemoteEngine(f"http://127.0.0.1:{proxy.port}")
            engine.run(engine.stats())
            for mode in (Silent(), HalfOpen()):
                proxy.mode = mode
                began = time.monotonic()
                with pytest.raises(errors.StoreUnavailable, match="does not answer"):
                    engine.run(with_deadline(engine.stats(), 0.3))
                assert time.monotonic() - began < 5
                proxy.mode = Pass()
                assert engine.run(engine.stats()) == {}
            proxy.mode = Refuse()
            proxy.cut()
            with pytest.raises(errors.StoreUnavailable):
                engine.run(engine.stats())
            engine.close()

    def test_a_claim_waits_no_longer_than_its_answer_is_of_use(self, engine: RemoteEngine) -> None:
        """C3: what is answered after the claim deadline is given back."""
        assert engine.claim(uuid4(), ()).deadline == CLAIM_DEADLINE / 1000

    @pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system does not know how")
    def test_the_system_gives_a_line_up_that_acknowledges_nothing(self, server: TinyServer) -> None:
        """E18: else it is silent for as long again, since each repetition comes after twice the time."""
        line = ServerConnections(read_address(f"http://127.0.0.1:{server.port}"))

        wire = line._connect(PendingRequest(5.0))

        with wire:
            assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == HEARD_WITHIN * 1000

    async def test_a_cancelled_op_hangs_up_at_once(self, server: TinyServer) -> None:
        with Proxy(server.port) as proxy:
            engine = RemoteEngine(f"http://127.0.0.1:{proxy.port}")
            proxy.mode = Silent()
            asking = asyncio.create_task(engine.arun(engine.stats()))
            await asyncio.to_thread(proxy.wait_for, lambda proxy: proxy.accepted == 1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

            threads = [each for each in threading.enumerate() if each.name.startswith("shigoto-http")]
            engine.close()
            for thread in threads:
                await asyncio.to_thread(thread.join, 10)
                assert not thread.is_alive()
            proxy.mode = Pass()

    async def test_slow_requests_do_not_keep_a_beat_waiting(self, server: TinyServer) -> None:
        engine = RemoteEngine(server.url)
        server.slow.clear()
        asking = [asyncio.create_task(engine.arun(engine.stats())) for _ in range(12)]
        orders = await asyncio.wait_for(engine.arun(engine.beat(uuid4(), None)), 10)
        server.slow.set()

        assert orders.fenced
        assert await asyncio.gather(*asking) == [{}] * 12
        engine.close()


def test_a_child_opens_its_own_connections(engine: RemoteEngine) -> None:
    engine.run(engine.stats())
    pid = os.fork()
    if pid == 0:
        ended = 1
        try:
            ended = 0 if engine.run(engine.stats()) == {} else 1
        finally:
            os._exit(ended)

    assert os.waitpid(pid, 0)[1] == 0
    assert engine.run(engine.stats()) == {}


async def test_a_bell_survives_a_server_that_is_away(server: TinyServer) -> None:
    with Proxy(server.port) as proxy:
        engine = RemoteEngine(f"http://127.0.0.1:{proxy.port}")
        proxy.mode = Refuse()
        doorbell = engine.listen()
        assert not await doorbell.wait(0.2)
        proxy.mode = Pass()
        assert await doorbell.wait(10)
        doorbell.close()
        doorbell.close()
        engine.close()


class TestAddress:
    """Who we are, and where."""

    def test_the_token_is_hidden_from_people_and_told_to_children(self) -> None:
        engine = open_engine(f"http://:{TOKEN}@queue.example:8710/")

        assert isinstance(engine, RemoteEngine)
        assert engine.address == f"http://:{TOKEN}@queue.example:8710"
        assert engine.shown == "http://queue.example:8710"
        assert TOKEN not in repr(read_address(engine.address))

    def test_it_is_taken_from_the_environment(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        for environ in ({"SHIGOTO_TOKEN": TOKEN}, {"SHIGOTO_TOKEN_FILE": str(tmp_path / "token")}):
            assert read_address("http://queue.example", environ).token == TOKEN
        assert read_address("http://queue.example", {}).token is None

    @pytest.mark.parametrize(
        "url",
        ["http://", "http://host:x", "http://host/?a=1", "http://host/#x", "http://:a%0d%0ab@host"],
    )
    def test_what_cannot_be_meant_is_refused(self, url: str) -> None:
        with pytest.raises(errors.StoreRefused):
            read_address(url, {})

    def test_parts(self) -> None:
        mounted = read_address("https://host/jobs/api/v1/", {})
        assert (mounted.port, mounted.path, mounted.tls) == (443, "/jobs", True)
        assert read_address("http://[::1]", {}).shown == "http://[::1]:8710"

    def test_a_token_in_the_clear_is_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        RemoteEngine(f"http://:{TOKEN}@localhost")
        assert caplog.messages == []
        RemoteEngine(f"http://:{TOKEN}@queue.example")
        assert "in the clear" in caplog.text
        assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, b'{"code": "STORE.BUSY", "detail": "x"}', errors.StoreBusy),
        (503, b'{"code": "SERVER.STOPPING", "detail": "x"}', errors.StoreUnavailable),
        (502, b"<html>", errors.StoreUnavailable),
        (401, b'{"code": "AUTH.INVALID", "detail": "x"}', errors.StoreRefused),
        (403, b"", errors.StoreRefused),
        (302, b"", errors.StoreRefused),
        (404, b"<html>", errors.StoreRefused),
        (429, b'{"code": "JOB.QUEUE_FULL", "detail": "x"}', errors.QueueFull),
        (409, b'{"code": "JOB.NOT_RETRYABLE", "detail": "x"}', errors.JobNotRetryable),
        (422, b'{"code": "SCHEDULE.INVALID", "detail": "x", "field": "cron"}', errors.ScheduleInvalid),
        (422, b'{"code": "REQUEST.INVALID", "detail": "x"}', errors.StoreError),
        (500, b'{"code": "SERVER.ERROR", "detail": "x"}', errors.StoreError),
        (418, b'{"code": "NEW.CODE", "detail": "x"}', errors.StoreError),
        (410, b'{"code": "WORKER.SCHEMA_TOO_NEW", "detail": "x"}', errors.SchemaTooNew),
    ],
)
def test_a_problem_is_the_error_of_the_engine_behind(status: int, body: bytes, kind: type[Exception]) -> None:
    error = failure(status, body, "there")

    assert type(error) is kind
    assert str(error)


def test_too_much_at_once_is_refused_here(engine: RemoteEngine) -> None:
    huge = JobSpec(id=uuid4(), task="work", queue="default", payload="x" * (33 * 2**20))
    with pytest.raises(errors.PayloadTooLarge, match="several parts"):
        engine.run(engine.enqueue_many([huge]))


def test_another_protocol_is_refused(
    server: TinyServer, engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.run(engine.expect_ready(any_role=False))
    monkeypatch.setattr(server, "protocol", protocol.PROTOCOL + 1)
    with pytest.raises(errors.StoreRefused, match="same release"):
        engine.run(engine.expect_ready(any_role=False))


def test_the_server_repairs(server: TinyServer, engine: RemoteEngine) -> None:
    assert not engine.capabilities.repairs
    engine.run(engine.sweep(SweepOrder()))
    assert server.asked == []
    assert engine.migrate() == []
