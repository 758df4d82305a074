"""A program that enqueues job after job while a worker in it runs them, and says what it was told.

    python -m faults.apps.steady URL JOBS SAID LOG_LIMIT

Each line of the file SAID is one write: `stored ID` once an enqueue has returned, `settled ID` once the store has
accepted a job's end. The log is checkpointed when it is longer than LOG_LIMIT bytes, which is less than usual.
"""

import asyncio
import os
import sys

from faults.apps.cycle import KINDS
from faults.stage import app_of
from shigoto.engine.sqlite import file
from shigoto.observe.events import JobCompleted
from shigoto.worker.worker import Worker


async def main(url: str, jobs: int, said: str, limit: int) -> None:
    """Enqueue so many jobs, and end when all are settled."""
    file.WAL_LIMIT = limit
    app = app_of("cycle", url)
    report = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    left, settled = jobs, asyncio.Event()

    def note(event: JobCompleted) -> None:
        nonlocal left
        os.write(report, f"settled {event.job_id}\n".encode())
        left -= 1
        if not left:
            settled.set()

    app.bus.subscribe(note, JobCompleted)
    async with Worker(app, children=0, concurrency=4):
        for number in range(jobs):
            handle = await app.tasks[KINDS[number % 2]].aenqueue()
            os.write(report, f"stored {handle.id}\n".encode())
        await settled.wait()
    app.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
