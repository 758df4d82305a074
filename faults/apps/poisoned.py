"""The app of the poison: each deed ends the process it is done in. And innocents, who happen to be there."""

import asyncio
import ctypes
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator

from faults.apps.jobs import pen, recorded
from shigoto import Context, Shigoto

app = Shigoto()
logger = logging.getLogger("poison")

BLOCK = 16 * 1024 * 1024  # bytes
DEEP = 300_000


@app.task
async def innocent(ctx: Context, milliseconds: int) -> None:
    with recorded(ctx):
        await asyncio.sleep(milliseconds / 1000)


@app.task
def innocent_in_a_thread(ctx: Context, milliseconds: int) -> None:
    with recorded(ctx):
        time.sleep(milliseconds / 1000)


@app.task(executor="process")
def innocent_in_a_process(ctx: Context, milliseconds: int) -> None:
    with recorded(ctx):
        time.sleep(milliseconds / 1000)


@app.task
def poison_in_a_thread(ctx: Context, deed: str) -> None:
    die(ctx, deed)


@app.task(executor="process")
def poison_in_a_process(ctx: Context, deed: str) -> None:
    die(ctx, deed)


def die(ctx: Context, deed: str) -> None:
    """Write down that this process is about to end, and for which job's sake; then end it."""
    with recorded(ctx):
        logger.info("about to %s", deed)
        DEEDS[deed](lambda: pen.write("fault", deed="suicide", job=str(ctx.job_id), token=ctx.fence))


def kill(confess: Callable[[], None]) -> None:
    confess()
    os.kill(os.getpid(), signal.SIGKILL)


def null(confess: Callable[[], None]) -> None:
    confess()
    ctypes.string_at(0)


def leave(confess: Callable[[], None]) -> None:
    confess()
    os._exit(3)


def leave_like_a_watchdog(confess: Callable[[], None]) -> None:
    confess()
    os._exit(70)


def leave_like_an_orphan(confess: Callable[[], None]) -> None:
    confess()
    os._exit(71)


def recurse(confess: Callable[[], None]) -> None:
    """Each step calls the next one in C, where nobody counts how deep it is."""
    chain: Iterator[int] = iter(())
    for _ in range(DEEP):
        chain = itertools.chain(chain, ())
    confess()
    next(chain, None)


def hoard(confess: Callable[[], None]) -> None:
    """Takes all memory there is; only for processes that may not have much."""
    hoarded: list[bytearray] = []
    while True:
        confess()
        hoarded.append(bytearray(b"x") * BLOCK)


DEEDS: dict[str, Callable[[Callable[[], None]], None]] = {
    "kill": kill,
    "null": null,
    "leave": leave,
    "leave like a watchdog": leave_like_a_watchdog,
    "leave like an orphan": leave_like_an_orphan,
    "recurse": recurse,
    "hoard": hoard,
}
