"""Tasks that take anything, give anything back, and fail with anything; what nobody knows fails after a second."""

import asyncio
from datetime import datetime
from typing import Any

from faults.apps.jobs import recorded
from shigoto import JSON, Context, Shigoto

app = Shigoto(unknown_after=1)


@app.task(retries=0)
async def echo(ctx: Context, value: JSON) -> JSON:
    with recorded(ctx):
        return value


@app.task(retries=0)
def echo_in_a_thread(ctx: Context, value: Any) -> Any:
    with recorded(ctx):
        return value


@app.task(retries=0)
async def fail(ctx: Context, value: JSON) -> None:
    """Says what it was given, and more, in every way a handler can speak."""
    with recorded(ctx):
        text = value if isinstance(value, str) else repr(value)
        ctx.log(text)
        ctx.progress(0.5, text)
        await asyncio.sleep(0)
        raise ValueError(value)


@app.task(retries=0)
async def typed(ctx: Context, number: int, at: datetime | None = None, names: list[str] | None = None) -> int:
    with recorded(ctx):
        return number


@app.task(retries=0)
async def keep(ctx: Context, value: JSON) -> object:
    """Remembers what it was given, and resumes from that."""
    with recorded(ctx):
        await ctx.acheckpoint(value)
        return ctx.resume_from


@app.task(retries=0)
async def healthy(ctx: Context) -> str:
    with recorded(ctx):
        return "well"
