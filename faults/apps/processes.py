"""The app of experiments with processes: jobs that last until they are told, and jobs that start what outlives them."""

import asyncio
import ctypes
import os
import subprocess
import time
from pathlib import Path

from faults.apps.jobs import recorded
from shigoto import Context, Shigoto

app = Shigoto()

GO = Path(os.environ.get("SHIGOTO_LEDGER", "."), "..", "go")
LOOK = 0.02  # seconds between two looks at the file


@app.task
async def short(ctx: Context) -> None:
    with recorded(ctx):
        await asyncio.sleep(0.005)


@app.task
async def until_told(ctx: Context) -> None:
    with recorded(ctx):
        going_on = True
        while going_on:
            await asyncio.sleep(LOOK)
            going_on = lasts(ctx)


@app.task
def until_told_in_a_thread(ctx: Context) -> None:
    with recorded(ctx):
        while lasts(ctx):
            time.sleep(LOOK)


@app.task(executor="process")
def until_told_in_a_process(ctx: Context) -> None:
    with recorded(ctx):
        while lasts(ctx):
            time.sleep(LOOK)


@app.task(executor="process")
def deaf_in_a_process(ctx: Context) -> None:
    """No thread of its process does anything: not even the one that would notice the end of the parent."""
    with recorded(ctx):
        hold_the_interpreter(60.0 if lasts(ctx) else 0.0)


@app.task
def deaf(ctx: Context) -> None:
    """The same, in a runner process."""
    with recorded(ctx):
        hold_the_interpreter(60.0 if lasts(ctx) else 0.0)


@app.task
def leave_an_orphan(ctx: Context, seconds: float) -> None:
    """Start a process whose parent ends at once, so that it belongs to whoever adopts orphans."""
    with recorded(ctx):
        subprocess.run(["sh", "-c", f"sleep {seconds} >/dev/null 2>&1 &"], check=True)


def lasts(ctx: Context) -> bool:
    """Whether a long job goes on. One that a crash has cut short does not; a run that was given back is no attempt."""
    return ctx.attempt == 1 and not GO.exists()


def hold_the_interpreter(seconds: float) -> None:
    """Sleep in native code that lets no other thread of this process run meanwhile."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:  # a signal ends the sleep early
        ctypes.PyDLL(None).usleep(int(left * 1e6) + 1)
