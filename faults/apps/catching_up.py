"""One schedule for each policy of catching up; all of them are due at the same times, at an interval that is told."""

import os
from datetime import timedelta

from faults.apps.ticking import told
from shigoto import Context, Shigoto, Tick
from shigoto.options import ScheduleOptions

app = Shigoto()
EVERY = "SHIGOTO_TEST_EVERY"  # the variable that tells, in seconds
INTERVAL = timedelta(seconds=float(os.environ.get(EVERY, "1")))
POLICIES: dict[str, ScheduleOptions] = {
    "none": {"catch_up": "none"},
    "latest": {"catch_up": "latest"},
    "all": {"catch_up": "all"},
    "three": {"catch_up": "all", "catch_up_most": 3},
    "young": {"catch_up": "all", "catch_up_within": INTERVAL * 2.6},
    "latest-young": {"catch_up": "latest", "catch_up_within": INTERVAL * 0.5},
}


@app.task
async def note(ctx: Context, tick: Tick) -> None:
    told(ctx, tick)


for name, options in POLICIES.items():
    app.schedule(name, every=INTERVAL, call=note.call, **options)
