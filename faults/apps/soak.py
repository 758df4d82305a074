"""The app of the soak: jobs as they are mixed in the world, most of them brief, a few long, failing or deadly."""

import asyncio
import os
import signal
import time

from faults.apps.jobs import have_an_effect, pen, recorded
from shigoto import Context, Retry, Shigoto

app = Shigoto()

# How many of 10 000 jobs are of which task; `faults/stream.py` enqueues them, and cancels those that are named so.
MIX = {
    "brief": 8_000,
    "medium": 1_250,
    "transactional": 200,
    "in_a_process": 49,
    "long": 300,
    "cancelled": 100,
    "failing": 100,
    "poison": 1,
}
RISKY = "risky"  # the queue of what kills its process, so that a worker can be spared


@app.task
async def brief(ctx: Context) -> None:
    with recorded(ctx):
        await asyncio.sleep(0.005)


@app.task
def medium(ctx: Context) -> None:
    with recorded(ctx):
        time.sleep(0.2)


@app.task
async def transactional(ctx: Context) -> None:
    with recorded(ctx, effect=True):
        await asyncio.sleep(0.005)
        await have_an_effect(ctx)


@app.task(executor="process")
def in_a_process(ctx: Context) -> None:
    with recorded(ctx):
        time.sleep(0.02)


@app.task
async def long(ctx: Context) -> None:
    with recorded(ctx):
        await asyncio.sleep(2 + ctx.number % 4)


@app.task
async def cancelled(ctx: Context) -> None:
    """Somebody cancels it soon: while it waits, while it runs, or too late."""
    with recorded(ctx):
        await asyncio.sleep(4)


@app.task(retry=Retry.linear(seconds=1, retries=3))
async def failing(ctx: Context) -> None:
    """Fails once or twice, and each fifth for good."""
    with recorded(ctx):
        if ctx.failures <= ctx.number % 2 or ctx.number % 5 == 0:
            raise RuntimeError("as it was meant to")


@app.task(queue=RISKY)
def poison(ctx: Context) -> None:
    """Kills the process it runs in, and says so in the ledger: it is a fault like those of the monkey."""
    with recorded(ctx):
        pen.write("fault", deed="kill")
        os.kill(os.getpid(), signal.SIGKILL)
