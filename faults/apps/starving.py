"""The app of jobs that let nobody else run: not on their event loop, or not in their process at all."""

import time

from faults.apps.jobs import recorded
from faults.apps.processes import hold_the_interpreter
from shigoto import Context, Shigoto

app = Shigoto()


@app.task
async def block_the_loop(ctx: Context, seconds: float) -> None:
    with recorded(ctx):
        block(seconds)


@app.task
async def hold_in_the_loop(ctx: Context, seconds: float) -> None:
    with recorded(ctx):
        hold_the_interpreter(seconds)


@app.task
def hold_in_a_thread(ctx: Context, seconds: float) -> None:
    with recorded(ctx):
        hold_the_interpreter(seconds)


@app.task(executor="process")
def hold_in_a_process(ctx: Context, seconds: float) -> None:
    with recorded(ctx):
        hold_the_interpreter(seconds)


def block(seconds: float) -> None:
    """What must not be done on an event loop."""
    time.sleep(seconds)
