"""The app of the tests in faults/tests/test_rivals.py."""

import signal
import time

from faults.apps.jobs import recorded
from shigoto import Context, Retry, Shigoto

app = Shigoto()


@app.task(timeout=0.5, retry=Retry.immediate(retries=2))
def outlives_its_limit(ctx: Context) -> str:
    """Does not listen to anybody, and would succeed long after its limit."""
    with recorded(ctx):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(30)
    return f"attempt {ctx.attempt}"


@app.task(timeout=1.5)
def waits_its_turn(ctx: Context) -> None:
    with recorded(ctx):
        time.sleep(0.4)


@app.task
def ordinary(ctx: Context) -> None:
    with recorded(ctx):
        pass


@app.task(queue="mail")
def on_another_queue() -> str:
    return "sent"
