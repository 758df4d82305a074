"""What a service manager is told, over a real socket."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto.worker.supervisor.notify import ServiceManager


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(tmp_path / "notify"))
        ear.settimeout(30)
        yield ear


def environment_for(systemd: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(systemd.getsockname()), **more}


def test_it_hears_that_the_worker_is_ready(systemd: socket.socket) -> None:
    """S0-78: what `Type=notify` waits for."""
    ServiceManager(environment_for(systemd)).ready("at work")

    assert systemd.recv(4096).decode() == "READY=1\nSTATUS=at work"


def test_it_hears_that_the_worker_stops(systemd: socket.socket) -> None:
    ServiceManager(environment_for(systemd)).stopping()

    assert systemd.recv(4096).decode().startswith("STOPPING=1\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has names that are no files")
def test_its_socket_may_have_a_name_that_is_no_file() -> None:
    name = f"shigoto-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(f"\0{name}")
        ear.settimeout(30)

        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).stopping()

        assert ear.recv(4096).startswith(b"STOPPING=1")


async def test_a_watchdog_is_told_more_often_than_it_asks(systemd: socket.socket) -> None:
    manager = ServiceManager(environment_for(systemd, WATCHDOG_USEC="90000", WATCHDOG_PID=str(os.getpid())))
    telling = asyncio.create_task(manager.run())

    heard = [await asyncio.to_thread(systemd.recv, 4096) for _ in range(3)]

    telling.cancel()
    assert heard == [b"WATCHDOG=1"] * 3


@pytest.mark.parametrize(
    "asked", [{}, {"WATCHDOG_USEC": "90000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "often"}]
)
async def test_where_no_watchdog_asks_us_none_is_told(systemd: socket.socket, asked: dict[str, str]) -> None:
    await asyncio.wait_for(ServiceManager(environment_for(systemd, **asked)).run(), 30)

    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(4096)


def test_what_it_asks_is_not_for_those_whom_we_start(systemd: socket.socket) -> None:
    environment = environment_for(systemd, WATCHDOG_USEC="1", WATCHDOG_PID="1", HOME="/")

    ServiceManager(environment)

    assert environment == {"HOME": "/"}


def test_without_one_nothing_happens() -> None:
    manager = ServiceManager({})

    manager.ready("at work")
    manager.stopping()


def test_one_that_is_gone_is_missed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})

    with caplog.at_level(logging.WARNING):
        manager.ready("at work")
        manager.stopping()

    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "The service manager cannot be told READY=1"
    ]
