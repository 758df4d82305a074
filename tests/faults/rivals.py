"""The app of the tests in test_rivals.py."""

import os
import signal
import time
from pathlib import Path

from shigoto import Context, Retry, Shigoto
from tests.faults.ledger import Pen

app = Shigoto()
pen = Pen(Path(os.environ.get("SHIGOTO_LEDGER", ".")))


@app.task(timeout=0.5, retry=Retry.immediate(retries=2))
def outlives_its_limit(ctx: Context) -> str:
    """Does not listen to anybody, and would succeed long after its limit."""
    pen.write("start", ctx.job_id, ctx.fence)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(30)
    return f"attempt {ctx.attempt}"


@app.task(timeout=1.5)
def waits_its_turn(ctx: Context) -> None:
    pen.write("start", ctx.job_id, ctx.fence)
    time.sleep(0.4)
    pen.write("end", ctx.job_id, ctx.fence)


@app.task
def ordinary(ctx: Context) -> None:
    pen.write("start", ctx.job_id, ctx.fence)


@app.task(queue="mail")
def on_another_queue() -> str:
    return "sent"
