"""The app of `shigoto_runner.py`, as a user would write it; its workers are `shigoto worker`.

$ENGINE is `sqlite` or `postgres`. For SQLite $BENCH_SQLITE_DIR is the folder of the store, and $SYNC how it syncs
(FULL, our default, or NORMAL). For PostgreSQL $BENCH_POSTGRES is the address of the server, $DATABASE the database, and
$OPTIONS what the address of the store says beside that, such as `prepare=off`.

$KIND is which handler is measured: async, sync (a plain function, in a thread), payload (async, with 10 KB beside the
number), failures (async; one job in twenty fails once, and is retried without a delay), sleeping or computing (async,
for $MS milliseconds).
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from shigoto import Call, Context, Retry, Shigoto, Tasks

if TYPE_CHECKING:
    from bench import protocol
else:
    from bench.choice import protocol

ENGINE = os.environ.get("ENGINE", "sqlite")
DATABASE = os.environ.get("DATABASE", "bench_shigoto")
KIND = os.environ.get("KIND", "async")
STORE = Path(protocol.SQLITE_DIR) / "shigoto.db"
TEXT = "".join(f"{number:04x} some words of a payload; " for number in range(400))[:10_240]
ONE_IN = 20
MS = float(os.environ.get("MS", "10"))


def address() -> str:
    """Of the store."""
    if ENGINE == "sqlite":
        return f"sqlite:///{STORE}{'?synchronous=normal' if os.environ.get('SYNC') == 'NORMAL' else ''}"
    server = urlsplit(os.environ["BENCH_POSTGRES"])
    return urlunsplit(server._replace(path=f"/{DATABASE}", query=os.environ.get("OPTIONS", "")))


app = Shigoto(address())
# Not a part of the app, so that its workers do not know them.
strangers = Tasks()


@app.task
async def noop(number: int) -> None:
    """What is drained unless something else is asked for."""
    protocol.hit(number)


@app.task
def sync_noop(number: int) -> None:
    """The same as a plain function."""
    protocol.hit(number)


@app.task
async def with_payload(number: int, text: str) -> None:
    """The same with something to read."""
    protocol.hit(number)


@app.task(retry=Retry.immediate())
async def failing(ctx: Context, number: int) -> None:
    """One in twenty fails at its first attempt."""
    protocol.hit(number)
    if ctx.attempt == 1 and number % ONE_IN == 0:
        raise ValueError(f"job {number} fails once")


@app.task
async def sleeping(number: int) -> None:
    """Waits for somebody else."""
    protocol.hit(number)
    await asyncio.sleep(MS / 1000)


@app.task
async def computing(number: int) -> None:
    """Needs the processor for so long."""
    protocol.hit(number)
    until = time.thread_time() + MS / 1000
    while time.thread_time() < until:
        pass


@app.task
async def unmeasured(number: int) -> None:
    """What makes history."""


@strangers.task
async def stranger(number: int) -> None:
    """What no worker of the app knows."""


CALLS: dict[str, Callable[[int], Call[Any]]] = {
    "async": noop.call,
    "sync": sync_noop.call,
    "payload": lambda number: with_payload.call(number, TEXT),
    "failures": failing.call,
    "sleeping": sleeping.call,
    "computing": computing.call,
}
