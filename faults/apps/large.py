"""Jobs with large arguments, one kind of which has its effect in the transaction of its completion."""

import asyncio

from faults.apps.jobs import have_an_effect, recorded
from shigoto import Context, Shigoto

app = Shigoto()


@app.task
async def plain(ctx: Context, text: str, milliseconds: int) -> int:
    with recorded(ctx):
        await asyncio.sleep(milliseconds / 1000)
        return len(text)


@app.task
async def transactional(ctx: Context, text: str, milliseconds: int) -> None:
    with recorded(ctx, effect=True):
        await asyncio.sleep(milliseconds / 1000)
        await have_an_effect(ctx)
