"""What the demo puts on: tasks of every kind, and the programme in which they appear.

Nothing is left to chance: the same beat always brings the same jobs.
"""

import hashlib
from typing import Any

from shigoto.app import Shigoto
from shigoto.context import Context
from shigoto.enqueue import Call
from shigoto.retry import Retry

BEAT = 0.1  # seconds between two entries of the programme
BURST = 150  # jobs

Calls = list[Call[Any]]


async def demo_add(a: int, b: int) -> int:
    """A short async task, one of many that run at once on the event loop."""
    import asyncio

    await asyncio.sleep(0.02)
    return a + b


def demo_hash(text: str) -> str:
    """A plain function that keeps a processor busy: it runs in a thread."""
    return hashlib.pbkdf2_hmac("sha256", text.encode(), b"shigoto", 20_000).hex()[:12]


async def demo_report(ctx: Context, pages: int) -> str:
    """A longer task that tells how far it is."""
    import asyncio

    for page in range(1, pages + 1):
        await asyncio.sleep(0.25)
        ctx.progress(page / pages, f"page {page} of {pages}")
    return f"{pages} pages"


async def demo_flaky(ctx: Context, service: str) -> str:
    """A task that fails the first time, as if a server were down for a moment; its retry succeeds."""
    if ctx.attempt == 1:
        raise ConnectionError(f"{service} did not answer")
    return f"{service} answered"


async def demo_reminder(text: str) -> str:
    """A task that is enqueued now to run later."""
    return text


class Acts:
    """The demo's tasks, declared on one app."""

    def __init__(self, app: Shigoto) -> None:
        self.add = app.task(demo_add)
        self.hash = app.task(demo_hash)
        self.report = app.task(queue="reports")(demo_report)
        self.flaky = app.task(retry=Retry.delays([0.8, 0.8]))(demo_flaky)
        self.reminder = app.task(demo_reminder)
        self.telling = {self.report.name, self.flaky.name, self.reminder.name}

    def at(self, beat: int) -> Calls:
        """The jobs of one beat: about five, now and then a burst; all kinds appear at the first."""
        burst = self.add.using(priority=-5)
        calls: Calls = [self.add.call(beat, n) for n in range(3)]
        if beat % 20 == 10:
            calls += [burst.call(beat, n) for n in range(BURST)]
        if beat % 2 == 0:
            calls.append(self.hash.call(f"text {beat}"))
        if beat % 5 == 0:
            calls.append(self.add.using(priority=10, tags=["urgent"]).call(beat, 100))
        if beat % 6 == 0:
            calls.append(self.flaky.call("api.example.com"))
        if beat % 8 == 0:
            calls.append(self.reminder.using(delay=1.5).call("Time for tea"))
        if beat % 10 == 0:
            calls.append(self.report.using(priority=-1).call(pages=12 + beat % 3))
        return calls
