"""Schedules of each second, and one of every five: each job writes into the ledger for which tick it is there."""

import os
from pathlib import Path

from faults.evidence.records import Pen
from shigoto import Context, Shigoto, Tick

app = Shigoto()
pen = Pen(Path(os.environ.get("SHIGOTO_LEDGER", ".")))

SECONDS = 20
ZONES = ("UTC", "Asia/Tokyo", "Australia/Lord_Howe", "America/St_Johns", "Africa/Casablanca")
EACH_SECOND = tuple(f"second-{number:02}" for number in range(SECONDS))
FIVE = "five"


@app.task
async def note(ctx: Context, tick: Tick) -> None:
    """`key` is the schedule, `order` the instant, in milliseconds."""
    told(ctx, tick)


def told(ctx: Context, tick: Tick) -> None:
    """Write down that a run for this tick begins."""
    instant = str(round(tick.at.timestamp() * 1000))
    pen.write(
        "start",
        job=str(ctx.job_id),
        token=ctx.fence,
        attempt=ctx.attempt,
        key=tick.schedule,
        order=instant,
    )


for number, name in enumerate(EACH_SECOND):
    if number % 2:
        app.schedule(name, every="1s", call=note.call, catch_up="all", catch_up_most=10_000)
    else:
        zone = ZONES[number // 2 % len(ZONES)]
        app.schedule(name, "* * * * * *", call=note.call, tz=zone, catch_up="all", catch_up_most=10_000)
app.schedule(FIVE, every="5s", call=note.call, catch_up="all")
