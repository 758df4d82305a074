"""When a supervisor says that its runners are at work."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shigoto.model.errors import StoreUnavailable
from shigoto.worker.process import Source
from shigoto.worker.process_main import Watchdog
from shigoto.worker.supervisor import supervisor as module
from shigoto.worker.supervisor.host import Orphans
from shigoto.worker.supervisor.runner_process import Start
from shigoto.worker.supervisor.supervisor import Supervisor, SupervisorSettings


def test_it_is_not_ready_before_it_vouches(monkeypatch: pytest.MonkeyPatch) -> None:
    """E04: it would not notice that it has slept, and would fence a runner that is about to wake up."""
    told = list[str]()

    async def ready() -> str:
        return "hello"

    async def vouch(*_: object) -> None:
        told.append("vouches")

    def serve(hello: str) -> None:
        told.append("at the store")
        if told.count("at the store") == 1:
            raise StoreUnavailable("not yet")

    monkeypatch.setattr(module, "beat_for", vouch)
    start = Start(source=Source(reference="shop:app"))
    supervisor: Any = Supervisor(
        start, SupervisorSettings(processes=1, stop_timeout=1.0), Watchdog(), Orphans()
    )
    supervisor._slots = [SimpleNamespace(ready=True)]
    supervisor._store = SimpleNamespace(serve=serve)
    supervisor._ready_file = SimpleNamespace(show=lambda: told.append("ready"))
    runner = SimpleNamespace(ready=ready)

    with pytest.raises(StoreUnavailable):
        asyncio.run(supervisor._beat_for(runner))
    asyncio.run(supervisor._beat_for(runner))

    assert told == ["at the store", "at the store", "ready", "vouches"]
