"""How fast callers on one event loop are together: $CALLERS of them, each with one awaited `aenqueue` at a time."""

import asyncio
import os
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from bench.shigoto_app import app, noop

WARM_UP = 1


class Asked(Protocol):
    """A runner of ours, whichever its engine is."""

    def reset(self) -> None: ...

    def run(self, work: Coroutine[Any, Any, Any]) -> Any: ...

    async def pending(self) -> int | None: ...


def concurrent(runner: Asked, jobs: int) -> dict[str, Any]:
    """How fast callers on one event loop are together."""
    runner.reset()
    callers = int(os.environ.get("CALLERS", "64"))
    each = max(1, jobs // callers)
    done = each * callers
    seconds = runner.run(_concurrent(each, callers))
    app.close()
    stored = runner.run(runner.pending())
    app.close()
    return {
        "n": done,
        "callers": callers,
        "jobs_per_s": round(done / seconds, 1),
        "enqueued": WARM_UP + done,
        "stored": stored,
    }


async def _concurrent(each: int, callers: int) -> float:
    async def calls() -> None:
        for number in range(each):
            await noop.aenqueue(number)

    for number in range(WARM_UP):
        await noop.aenqueue(number)
    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(calls())
    return time.monotonic() - started
