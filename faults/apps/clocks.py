"""Jobs that look at the wall clock when they begin; as a program, a producer with the same clock.

    python -m faults.apps.clocks URL JOBS SECONDS SEED

stores so many jobs, due within so many seconds by the producer's clock, and writes them down as any producer does.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from random import Random

from faults.apps.jobs import recorded
from faults.evidence.records import Pen
from shigoto import Context, Shigoto
from shigoto.model.ids import uuid7

app = Shigoto()
LENGTHS = (0.01, 0.1, 3.0)  # seconds; the longest is at work while the clock steps


@app.task(retries=0)
async def look(ctx: Context, due: float, seconds: float) -> float:
    """By how many seconds it begins later than it was due, by its own clock."""
    late = time.time() - due
    with recorded(ctx):
        await asyncio.sleep(seconds)
        return late


def main() -> None:
    """Store the jobs."""
    url, count, within, seed = sys.argv[1:]
    app.url = url
    random, pen = Random(seed), Pen(Path(os.environ["SHIGOTO_LEDGER"]))
    for _ in range(int(count)):
        id, delay = uuid7(), random.uniform(0, float(within))
        pen.write("try", job=str(id))
        job = look.using(id=id, delay=delay)
        job.enqueue(due=time.time() + delay, seconds=random.choice(LENGTHS))
        pen.write("ok", job=str(id))
    app.close()


if __name__ == "__main__":
    main()
