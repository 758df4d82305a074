"""When a worker says that it is ready, and how it says so on its port."""

import asyncio
import json
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import click
import pytest
from msgspec.structs import replace

from shigoto.cli.daemon import place_of
from shigoto.cli.settings import HealthPlace
from shigoto.engine.memory.engine import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.errors import OptionInvalid, SchemaMissing, StoreUnavailable
from shigoto.worker.health import (
    LOCKED,
    MOST_CONNECTIONS,
    MOST_HEAD,
    SILENT,
    STUCK,
    UNWRITTEN,
    HealthPort,
    Probe,
    Readiness,
    Signs,
    StoreSigns,
    judge,
)
from shigoto.worker.process import RunningJobs, WorkerFlag
from shigoto.worker.supervisor.supervisor import signs_of

WELL = Signs(stores=[StoreSigns(1.0)], cycles=[0.5, 0.9], poll=1.0)


def test_who_works_is_ready() -> None:
    assert judge(WELL) == (True, ())


def test_a_stop_makes_it_red_whatever_else_is_well() -> None:
    """S3-14: at the first signal."""
    assert judge(replace(WELL, stopping=True)) == (False, ("It was asked to stop.",))


@pytest.mark.parametrize(("count", "text"), [(1, "1 runner process is"), (2, "2 runner processes are")])
def test_a_runner_that_is_not_there_makes_it_red(count: int, text: str) -> None:
    assert judge(replace(WELL, missing=count)) == (False, (f"{text} not at work yet.",))


def test_a_store_that_is_silent_makes_it_red_in_time() -> None:
    """E18: within 15 seconds; GWT-3: the database is down."""
    assert SILENT <= 15
    assert judge(replace(WELL, stores=[StoreSigns(SILENT)]))[0]
    assert judge(replace(WELL, stores=[StoreSigns(SILENT + 1), StoreSigns(1.0)])) == (
        False,
        ("The store has not answered for 11 s.",),
    )


def test_a_store_that_nobody_can_write_to_makes_it_red_but_not_for_a_moment() -> None:
    """E18: a sweep that is overdue tells it, whatever can be read."""
    assert judge(replace(WELL, stores=[StoreSigns(1.0, overdue=UNWRITTEN)]))[0]
    assert judge(replace(WELL, stores=[StoreSigns(1.0, overdue=UNWRITTEN + 1)])) == (False, (LOCKED,))
    silent = replace(WELL, stores=[StoreSigns(SILENT + 1, overdue=60.0)])
    assert judge(silent) == (False, ("The store has not answered for 11 s.",))


def test_a_store_that_says_no_makes_it_red_at_once() -> None:
    """S3-11: the schema is right, or it is not ready."""
    refused = StoreSigns(0.1, "WORKER.SCHEMA_MISSING")
    assert judge(replace(WELL, stores=[refused, refused])) == (
        False,
        ("The store cannot be used (WORKER.SCHEMA_MISSING).",),
    )


def test_claim_cycles_must_end_now_and_then() -> None:
    """S3-11: one that cannot claim is not ready, however well its store is; the wait between two is no fault."""
    assert judge(replace(WELL, cycles=[1.0 + STUCK]))[0]
    assert judge(replace(WELL, cycles=[0.1, 2.0 + STUCK])) == (False, ("No claim cycle has ended for 17 s.",))
    assert judge(replace(WELL, cycles=[0.1, None])) == (False, ("No claim cycle has ended yet.",))
    assert judge(replace(WELL, cycles=[3_600.0], poll=86_400.0))[0]


def test_all_reasons_are_told_together() -> None:
    ready, reasons = judge(
        Signs(stopping=True, missing=1, stores=[StoreSigns(99.0)], cycles=[None], details=("Late.",))
    )
    assert not ready
    assert len(reasons) == 5


# What is read from outside of runners.


def test_running_jobs_tell_of_the_newest_cycle() -> None:
    running_jobs = RunningJobs.private(2)
    assert running_jobs.cycled_at() is None
    running_jobs.raise_flag(WorkerFlag.CYCLED, 1_500)
    running_jobs.numbers[0] = 7
    assert running_jobs.cycled_at() == 1.5
    assert not running_jobs.has(WorkerFlag.LEAVING)


def test_signs_are_those_of_runners_at_work() -> None:
    def slot(cycled_at: float | None, *, ready: bool = True) -> Any:
        hello = SimpleNamespace(url="sqlite:///a.db")
        return SimpleNamespace(
            ready=ready,
            runner=SimpleNamespace(hello=hello, running_jobs=SimpleNamespace(cycled_at=lambda: cycled_at)),
        )

    store: Any = SimpleNamespace(signs=lambda stores: [StoreSigns(float(len(stores)))])
    slots = [slot(98.0), slot(None), slot(5.0, ready=False)]

    signs = signs_of(slots, store, lambda: 100.0, poll=2.0, stopping=False)

    assert signs == Signs(missing=1, stores=[StoreSigns(1.0)], cycles=[2.0, None], poll=2.0)


# The probe.


class Sick:
    """An engine that answers as it is told to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.deadline: float | None = None
        self._well = MemoryEngine()

    def expect_ready(self, *, any_role: bool) -> Op[Any]:
        assert any_role
        return self._well.settings()

    async def arun(self, op: Op[Any]) -> Any:
        self.deadline = op.deadline
        if self.error is not None:
            raise self.error


def test_a_probe_tells_an_outage_from_a_refusal() -> None:
    engine: Any = Sick()
    now = 10.0
    probe = Probe(lambda: engine, lambda: now)

    now = 13.0
    asyncio.run(probe.ask())
    assert probe.signs() == StoreSigns(0.0)
    assert engine.deadline is not None
    engine.error = StoreUnavailable("postgresql://secret@host")
    now = 15.0
    asyncio.run(probe.ask())
    assert probe.signs() == StoreSigns(2.0)
    engine.error = SchemaMissing("run shigoto migrate")
    asyncio.run(probe.ask())
    assert probe.signs() == StoreSigns(2.0, SchemaMissing.code)
    engine.error = None
    asyncio.run(probe.ask())
    assert probe.signs() == StoreSigns(0.0)


# The port.


async def say(port: HealthPort, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(port.host, port.port)
    try:
        writer.write(text)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def answers(*requests: bytes, ready: Callable[[], Readiness] = lambda: (True, ())) -> list[bytes]:
    async def ask() -> list[bytes]:
        async with HealthPort("127.0.0.1", 0, ready) as port:
            return [await say(port, request) for request in requests]

    return asyncio.run(ask())


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def test_it_answers_what_it_is_asked() -> None:
    """S3-11, S3-18: alive and ready are two questions."""
    alive, well = answers(b"GET /healthz HTTP/1.1\r\n\r\n", b"GET /readyz?x=1 HTTP/1.0\r\nHost: a\r\n\r\n")
    assert alive.startswith(b"HTTP/1.1 200 OK\r\n")
    assert alive.endswith(b'\r\n\r\n{"status":"ok"}')
    assert b"\r\nConnection: close\r\n" in alive
    assert b"\r\nContent-Length: 15\r\n" in alive
    assert json.loads(well.partition(b"\r\n\r\n")[2]) == {"ready": True, "reasons": []}


def test_not_ready_is_503_and_alive_is_still_200() -> None:
    """GWT-3."""
    alive, ready = answers(
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /readyz HTTP/1.1\r\n\r\n",
        ready=lambda: (False, ("The store has not answered for 12 s.",)),
    )
    assert status_of(alive) == 200
    assert status_of(ready) == 503
    assert json.loads(ready.partition(b"\r\n\r\n")[2]) == {
        "ready": False,
        "reasons": ["The store has not answered for 12 s."],
    }


def test_a_head_has_no_body() -> None:
    (answer,) = answers(b"HEAD /readyz HTTP/1.1\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", 404),
        (b"GET /metric HTTP/1.1", 404),
        (b"GET /metrics HTTP/1.1", 501),
        (b"POST /metrics HTTP/1.1", 405),
        (b"POST /readyz HTTP/1.1", 405),
        (b"DELETE /healthz HTTP/1.1", 405),
        (b"GET /readyz", 400),
        (b"GET /readyz HTTP/9", 400),
        (b"\x16\x03\x01 hello", 400),
        (b"", 400),
    ],
)
def test_whatever_else_is_said_is_refused(request_line: bytes, status: int) -> None:
    (answer,) = answers(request_line + b"\r\n\r\n")
    assert status_of(answer) == status
    assert (b"\r\nAllow: GET, HEAD\r\n" in answer) == (status == 405)


def test_a_long_head_is_refused() -> None:
    (answer,) = answers(b"GET /readyz HTTP/1.1\r\nX: " + b"x" * (2 * MOST_HEAD) + b"\r\n\r\n")
    assert answer == b"" or status_of(answer) == 400


def test_who_says_nothing_does_not_keep_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shigoto.worker.health.EXCHANGE_PATIENCE", 0.05)
    assert answers(b"GET /readyz HT") == [b""]


def test_too_many_at_once_are_turned_away_and_others_are_not_kept_waiting() -> None:
    async def crowd() -> tuple[bytes, bytes]:
        async with HealthPort("127.0.0.1", 0, lambda: (True, ())) as port:
            idle = [await asyncio.open_connection(port.host, port.port) for _ in range(MOST_CONNECTIONS)]
            refused = await say(port, b"GET /healthz HTTP/1.1\r\n\r\n")
            for _, writer in idle:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for _, writer in idle))
            answer = b""
            while not answer:
                answer = await say(port, b"GET /healthz HTTP/1.1\r\n\r\n")
            return refused, answer

    refused, answer = asyncio.run(crowd())
    assert refused == b""
    assert status_of(answer) == 200


def test_a_port_that_somebody_has_is_refused_before_anything_begins() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OptionInvalid, match=f"no health port {port} on 127.0.0.1"):
            HealthPort("127.0.0.1", port, lambda: (True, ()))


# The option.


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("8711", ("127.0.0.1", 8711)),
        (8711, ("127.0.0.1", 8711)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:8711", ("::1", 8711)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_a_place_is_a_port_with_or_without_a_host(given: object, place: tuple[str, int]) -> None:
    assert place_of(HealthPlace().convert(given, None, None)) == place


@pytest.mark.parametrize("given", ["", "a", ":80", "65536", "-1", "::1:80", "host:", "[]:80", "host:8o", "٣"])
def test_what_is_no_place_is_refused(given: str) -> None:
    with pytest.raises(click.BadParameter):
        HealthPlace().convert(given, None, None)


def test_no_place_is_no_port() -> None:
    assert place_of(None) is None
