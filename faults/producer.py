"""A program that enqueues, and writes down what it tried, and what it was told.

    python -m faults.producer APP URL JOBS [--rate R] [--tasks a,b] [--milliseconds 5,50]
        [--bulk N] [--seconds T] [--until FILE] [--seed S] [--then URL]

Each job has its id before the call, so that what was tried is known whatever becomes of the call. A call that raised
StoreUnavailable may have been stored all the same, and is repeated with the same id until it is acknowledged, up to
`--tries` times; any other error is final. One that hears that its store was moved goes on at `--then`, if it is told to
go there.
"""

import argparse
import os
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from faults.evidence.records import Pen, What
from faults.stage import app_of
from shigoto import Shigoto, StoreError, StoreMoved
from shigoto.model.ids import uuid7


def main() -> None:
    """Enqueue, at this rate if there is one."""
    options = _options()
    app = app_of(options.app, options.url)
    random = Random(options.seed)
    pen = Pen(Path(os.environ["SHIGOTO_LEDGER"]))
    began = time.monotonic()
    for first in range(0, options.jobs, options.bulk):
        if options.rate:
            time.sleep(max(0.0, began + first / options.rate - time.monotonic()))
        if options.seconds and time.monotonic() > began + options.seconds:
            break
        if options.until and options.until.exists():
            break
        count = min(options.bulk, options.jobs - first)
        app = _enqueue(app, pen, options, random, first, count)
    app.close()


def _enqueue(
    app: Shigoto, pen: Pen, options: argparse.Namespace, random: Random, first: int, count: int
) -> Shigoto:
    """Enqueue so many jobs, and tell by which app the next ones are to be enqueued."""
    low, high = options.milliseconds
    wanted = {uuid7(): (random.choice(options.tasks), random.randint(low, high)) for _ in range(count)}
    for offset, id in enumerate(wanted):
        pen.write("try", job=str(id), sequence=first + offset)
    for tried in range(1, options.tries + 1):
        try:
            app.enqueue_many(
                app.tasks[task].using(id=id).call(milliseconds=length)
                for id, (task, length) in wanted.items()
            )
        except StoreMoved as error:
            _write_all(pen, "err", wanted, outcome=type(error).__name__, ambiguous=True)
            app.close()
            app = _elsewhere(options, str(error))
        except StoreError as error:
            _write_all(pen, "err", wanted, outcome=type(error).__name__, ambiguous=True)
            time.sleep(min(0.02 * 2**tried, 1.0))
        else:
            _write_all(pen, "ok", wanted)
            break
    return app


def _elsewhere(options: argparse.Namespace, told: str) -> Shigoto:
    """The app on the other store, which must be the one that the old store names."""
    there = urlsplit(options.then or "")
    address = f"{there.hostname}:{there.port}{there.path}"
    if not options.then or address not in told:
        raise SystemExit(f"Told to go elsewhere than to {address}: {told}")
    return app_of(options.app, options.then)


def _write_all(pen: Pen, what: What, ids: Iterable[UUID], **fields: Any) -> None:
    for id in ids:
        pen.write(what, job=str(id), **fields)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("app")
    parser.add_argument("url")
    parser.add_argument("jobs", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=["asynchronous", "in_a_thread"])
    parser.add_argument(
        "--milliseconds", type=lambda text: tuple(int(part) for part in text.split(",")), default=(5, 50)
    )
    parser.add_argument("--bulk", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="stop after so long, however many there are left")
    parser.add_argument("--until", type=Path, metavar="FILE", help="stop when this is there")
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--then", metavar="URL", help="where to go on when the store was moved")
    return parser.parse_args()


if __name__ == "__main__":
    main()
