"""The app of the move: the jobs of `jobs.py`, and others that leave as much behind in the store as a job can."""

import asyncio
import importlib

from faults.apps import jobs
from faults.apps.jobs import recorded
from shigoto import Context, Retry, Shigoto

app: Shigoto = importlib.reload(jobs).app


@app.task
async def talkative(ctx: Context, milliseconds: int) -> dict[str, object]:
    """Leaves a result, lines of a log, progress and a checkpoint."""
    with recorded(ctx):
        ctx.log(f"begins with token {ctx.fence}: 仕事\t'\\\\N'")
        ctx.progress(0.5, "half of it")
        await ctx.acheckpoint({"at": milliseconds})
        await asyncio.sleep(milliseconds / 1000)
        ctx.log("ends", "warning")
    return {"number": ctx.number, "text": "a\\tb\n"}


@app.task(retry=Retry.linear(seconds=1, retries=1))
async def failing(ctx: Context, milliseconds: int) -> None:
    """Fails once, and each second for good."""
    with recorded(ctx):
        await asyncio.sleep(milliseconds / 1000)
        if ctx.failures == 0 or ctx.number % 2:
            raise RuntimeError(f"as it was meant to, with token {ctx.fence}")
