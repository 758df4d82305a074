"""The app whose jobs are disturbed: each writes into the ledger when it begins and when it ends."""

import asyncio
import os
import time
from pathlib import Path

from shigoto import Context, Shigoto
from tests.faults.ledger import Pen

app = Shigoto()
pen = Pen(Path(os.environ.get("SHIGOTO_LEDGER", ".")))


@app.task
async def asynchronous(ctx: Context, milliseconds: int) -> None:
    pen.write("start", ctx.job_id, ctx.fence)
    await asyncio.sleep(milliseconds / 1000)
    pen.write("end", ctx.job_id, ctx.fence)


@app.task
def in_a_thread(ctx: Context, milliseconds: int) -> None:
    pen.write("start", ctx.job_id, ctx.fence)
    time.sleep(milliseconds / 1000)
    pen.write("end", ctx.job_id, ctx.fence)


@app.task
async def long_at_first(ctx: Context) -> None:
    pen.write("start", ctx.job_id, ctx.fence)
    await asyncio.sleep(300 if ctx.attempt == 1 else 0)
    pen.write("end", ctx.job_id, ctx.fence)
