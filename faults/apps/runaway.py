"""The app of handlers that go on and on, each in another way; and of jobs that want their place afterwards."""

import asyncio
import os
import signal
import time
from typing import NoReturn

from faults.apps.jobs import recorded
from faults.apps.processes import hold_the_interpreter
from shigoto import Context, Shigoto, SoftTimeout

app = Shigoto()

LIMIT = 0.5  # seconds
LONG = 120.0  # seconds, longer than any experiment waits


@app.task(executor="process")
def after(ctx: Context) -> None:
    with recorded(ctx):
        pass


@app.task(timeout=LIMIT, retries=0)
def spins(ctx: Context) -> None:
    with recorded(ctx):
        while True:
            pass


@app.task(timeout=LIMIT, retries=0)
def reads(ctx: Context) -> None:
    with recorded(ctx):
        read, _write = os.pipe()
        os.read(read, 1)


@app.task(timeout=LIMIT, retries=0)
def ignores_exceptions(ctx: Context) -> None:
    with recorded(ctx):
        _sleep_whatever_is_raised()


@app.task(timeout=LIMIT, retries=0)
def ignores_signals(ctx: Context) -> None:
    with recorded(ctx):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(LONG)


@app.task(timeout=LIMIT, retries=0)
def is_in_native_code(ctx: Context) -> None:
    with recorded(ctx):
        hold_the_interpreter(LONG)


@app.task(timeout=LIMIT, retries=0, executor="process")
async def ignores_cancels(ctx: Context) -> None:
    with recorded(ctx):
        while True:
            try:
                await asyncio.sleep(LONG)
            except asyncio.CancelledError:
                continue


@app.task(soft_timeout=LIMIT, timeout=LONG, retries=0)
def gives_in_softly(ctx: Context) -> None:
    with recorded(ctx):
        try:
            time.sleep(LONG)
        except SoftTimeout:
            return


@app.task(soft_timeout=LIMIT, timeout=2 * LIMIT, retries=0)
def ignores_the_soft_limit(ctx: Context) -> None:
    with recorded(ctx):
        _sleep_whatever_is_raised()


@app.task(soft_timeout=LIMIT, retries=0)
def looks_in_a_thread(ctx: Context) -> None:
    """A thread cannot be ended, so it is told, and has to look."""
    with recorded(ctx):
        while not ctx.overdue:
            time.sleep(0.01)


@app.task(soft_timeout=LIMIT, retries=0)
def never_looks(ctx: Context) -> None:
    """Nobody can end it before it ends by itself."""
    with recorded(ctx):
        time.sleep(4 * LIMIT)


def _sleep_whatever_is_raised() -> NoReturn:
    while True:
        try:
            time.sleep(LONG)
        except Exception:
            continue
