"""Jobs of which half are in the midst of a transaction when their server goes away.

`SHIGOTO_DEADLINE` makes the deadline of every call to the store as short as it says, in seconds, so that a short form
need not wait for the usual one.
"""

import asyncio
import os
import time
from functools import partial

from faults.apps.jobs import recorded
from shigoto import Context, Retry, Shigoto
from shigoto.engine.postgres import engine
from shigoto.engine.postgres.driver import Driver

DEADLINE = "SHIGOTO_DEADLINE"

app = Shigoto()

if DEADLINE in os.environ:
    vars(engine).update(Driver=partial(Driver, deadline=float(os.environ[DEADLINE])))


@app.task
async def plain(ctx: Context, milliseconds: int) -> None:
    with recorded(ctx):
        await asyncio.sleep(milliseconds / 1000)


@app.task
def in_a_thread(ctx: Context, milliseconds: int) -> None:
    with recorded(ctx):
        time.sleep(milliseconds / 1000)


@app.task(retry=Retry.linear(seconds=1, retries=3))
async def transactional(ctx: Context, milliseconds: int) -> None:
    """Has its effect, and stays in the block for a while before it commits."""
    with recorded(ctx, effect=True):
        await asyncio.sleep(milliseconds / 2000)
        async with ctx.transaction() as tx:
            await tx.execute(f"INSERT INTO effects (job) VALUES ('{ctx.job_id}')")
            await asyncio.sleep(milliseconds / 2000)
