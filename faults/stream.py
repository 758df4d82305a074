"""A program that enqueues a mix of jobs at a steady rate, and cancels some; it writes down what it tried and was told.

    python -m faults.stream URL SECONDS [--rate R] [--seed S]

The mix is that of `faults.apps.soak`. A call that failed is repeated with the same id, see `faults/producer.py`.
"""

import argparse
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

from faults.apps.soak import MIX
from faults.evidence.records import Pen
from faults.stage import app_of
from shigoto import JobNotFound, StoreError, Task
from shigoto.model.ids import uuid7

TRIES = 20
LATER = 2.0  # seconds, for what shall be cancelled while it waits


def main() -> None:
    """Keep to the rate: what came late is caught up with."""
    options = _options()
    app = app_of("soak", options.url)
    random = Random(options.seed)
    pen = Pen(Path(os.environ["SHIGOTO_LEDGER"]))
    names, weights = list(MIX), list(MIX.values())
    cancels: deque[tuple[float, UUID]] = deque()
    began = time.monotonic()
    for sequence in range(round(options.rate * options.seconds)):
        time.sleep(max(0.0, began + sequence / options.rate - time.monotonic()))
        name, id = random.choices(names, weights)[0], uuid7()
        delay = random.choice((0.0, LATER)) if name == "cancelled" else 0.0
        _enqueue(pen, id, app.tasks[name].using(id=id, delay=delay), sequence)
        if name == "cancelled":
            cancels.append((time.monotonic() + random.uniform(0.0, 0.6), id))
        while cancels and cancels[0][0] <= time.monotonic():
            unwanted = cancels.popleft()[1]
            pen.write("cancel", job=str(unwanted))
            with suppress(StoreError, JobNotFound):  # nobody was told that it is cancelled
                app.job(unwanted).cancel()
    app.close()


def _enqueue(pen: Pen, id: UUID, task: Task[[], None], sequence: int) -> None:
    pen.write("try", job=str(id), sequence=sequence)
    for tried in range(1, TRIES + 1):
        try:
            task.enqueue()
        except StoreError as error:
            pen.write("err", job=str(id), outcome=type(error).__name__, ambiguous=True)
            time.sleep(min(0.02 * 2**tried, 1.0))
        else:
            pen.write("ok", job=str(id))
            return


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--seed", default="0")
    return parser.parse_args()


if __name__ == "__main__":
    main()
