"""What a server knows of the workers of its store."""

import asyncio
import gc
from typing import Any, cast
from uuid import uuid4

from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.model.errors import StoreUnavailable
from shigoto.model.worker import Announcement
from shigoto.server.auth import Caller
from shigoto.server.remote_workers import RemoteWorkers
from tests.service.ground import key


class Slow(MemoryEngine):
    """Answers when it is told to, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self._fails = fails

    async def arun(self, op: Op[Any]) -> Any:
        value = await super().arun(op)
        self.asked.set()
        await self.go.wait()
        if self._fails:
            raise StoreUnavailable("away")
        return value


async def test_a_reading_that_fails_when_all_have_gone_is_heard() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
    engine = Slow(fails=True)
    remote_workers = RemoteWorkers(lambda: engine, asyncio.get_running_loop().time)
    asking = asyncio.create_task(remote_workers.remote(uuid4()))
    await engine.asked.wait()
    asking.cancel()
    await asyncio.wait((asking,))
    engine.go.set()
    [reading] = asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
    await asyncio.wait((reading,))
    del reading, asking, remote_workers
    gc.collect()

    assert complaints == []


async def test_a_reading_that_began_earlier_says_nothing_of_a_newcomer() -> None:
    """Else who knows its id in that moment could take it for its own."""
    engine, mine = Slow(), Caller(key("work").token, "me")
    remote_workers = RemoteWorkers(lambda: engine, asyncio.get_running_loop().time)
    early = asyncio.create_task(remote_workers.owns(mine, uuid4()))
    await engine.asked.wait()
    worker, token = uuid4(), mine.token
    assert token is not None
    said = Announcement(id=worker, name="w", tasks=(), queues=None, slots=1, version="1", owner=token.id)
    engine.run(engine.announce(said))
    late = asyncio.create_task(remote_workers.owns(mine, worker))
    await asyncio.sleep(0)
    engine.go.set()

    assert (await early, await late) == (False, True)
