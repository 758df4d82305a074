"""A program in which a few jobs go all the way: enqueued, claimed, run and settled, while something happens to it.

    python -m faults.apps.cycle URL TASK=ID ...

The ids are given, so that what was tried is known whatever becomes of the program. An enqueue that the store refuses is
tried again. It ends with 0, or with STORE_TROUBLE and a line that says what the store said.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from faults.apps.jobs import have_an_effect, recorded
from faults.evidence.records import Pen
from shigoto import Context, Shigoto, StoreError
from shigoto.worker.worker import Worker

LEASE = 1.0  # seconds: the least there is
STORE_TROUBLE = 3

app = Shigoto()


@app.task
async def plain(ctx: Context) -> None:
    with recorded(ctx):
        await asyncio.sleep(0)


@app.task
async def transactional(ctx: Context) -> None:
    with recorded(ctx, effect=True):
        await have_an_effect(ctx)


KINDS = ("plain", "transactional")


def go_round(
    app: Shigoto,
    jobs: Sequence[tuple[str, UUID]],
    *,
    children: int = 0,
    tries: int = 1,
    acknowledged: Callable[[], object] = bool,
) -> None:
    """Enqueue these jobs, each with so many tries, and run all that there is to run."""
    pen = Pen(Path(os.environ["SHIGOTO_LEDGER"]))
    for task, id in jobs:
        pen.write("try", job=str(id))
        for left in reversed(range(tries)):
            try:
                app.tasks[task].using(id=id).enqueue()
            except StoreError as error:
                pen.write("err", job=str(id), outcome=type(error).__name__, ambiguous=True)
                if not left:
                    raise
            else:
                pen.write("ok", job=str(id))
                acknowledged()
                break
    asyncio.run(Worker(app, drain=True, children=children, concurrency=2, lease=LEASE, poll=0.1).run())
    app.close()


def main(url: str, *words: str) -> None:
    from faults.stage import app_of

    jobs = [(word.partition("=")[0], UUID(word.partition("=")[2])) for word in words]
    try:
        go_round(app_of("cycle", url), jobs, tries=3)
    except StoreError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(STORE_TROUBLE)


if __name__ == "__main__":
    main(*sys.argv[1:])
