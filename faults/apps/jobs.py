"""The app of most experiments: each job writes into the ledger when it begins and when it ends."""

import asyncio
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from faults.evidence.records import Pen
from shigoto import Cancel, Context, Shigoto, StoreUnavailable

app = Shigoto()
pen = Pen(Path(os.environ.get("SHIGOTO_LEDGER", ".")))


@contextmanager
def recorded(ctx: Context, *, effect: bool = False) -> Generator[None]:
    """Write down that a run begins here, and how it ends; with an `effect`, that it shall have one, once."""
    pen.write("start", job=str(ctx.job_id), token=ctx.fence, attempt=ctx.attempt, effect=effect)
    outcome = "error"
    try:
        yield
        outcome = "done"
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    except Cancel:
        outcome = "withdrawn"
        raise
    except StoreUnavailable:
        outcome = "trouble"
        raise
    finally:
        pen.write("end", job=str(ctx.job_id), token=ctx.fence, attempt=ctx.attempt, outcome=outcome)


async def have_an_effect(ctx: Context) -> None:
    """One row in the table `effects`, which the audit makes, in the transaction of the job's completion."""
    async with ctx.transaction() as tx:
        # Written out, since stores mark what is to be filled in by different signs.
        await tx.execute(f"INSERT INTO effects (job) VALUES ('{ctx.job_id}')")


@app.task
async def asynchronous(ctx: Context, milliseconds: int) -> None:
    with recorded(ctx):
        await asyncio.sleep(milliseconds / 1000)


@app.task
def in_a_thread(ctx: Context, milliseconds: int) -> None:
    with recorded(ctx):
        time.sleep(milliseconds / 1000)


@app.task(executor="process")
def in_a_process(ctx: Context, milliseconds: int) -> None:
    with recorded(ctx):
        time.sleep(milliseconds / 1000)


@app.task
async def long_at_first(ctx: Context) -> None:
    """Its first run lasts until somebody ends it."""
    with recorded(ctx):
        await asyncio.sleep(300 if ctx.attempt == 1 else 0)


@app.task
async def transactional(ctx: Context, milliseconds: int) -> None:
    with recorded(ctx, effect=True):
        await asyncio.sleep(milliseconds / 1000)
        await have_an_effect(ctx)
