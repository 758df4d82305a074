"""What the jobs of a world do: what stands in their payload, step by step, a step for each failure so far."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from faults.simulation.loop import Process
from shigoto import Cancel, Context, Fail, Retry, RetryLater, Shigoto, Snooze

Step = tuple[str, float]  # a word, and how many seconds

MOST_SNOOZES = 3


class Scene(Protocol):
    """Where a handler finds itself."""

    process: Process

    def begins(self, ctx: Context) -> None:
        """A run has begun here."""
        ...

    def ends(self, ctx: Context, outcome: str) -> None:
        """It has ended, as far as its handler knows."""
        ...


SCENE: ContextVar[Scene] = ContextVar("scene")


async def work(ctx: Context, steps: list[Step]) -> str:
    """Do what the step for this failure says."""
    with _told(ctx):
        word, seconds = steps[min(ctx.failures, len(steps) - 1)]
        return await _play(ctx, word, seconds)


async def sole(ctx: Context, steps: list[Step]) -> str:
    """The same, but never twice at once."""
    return await work(ctx, steps)


def make_app() -> Shigoto:
    """An app with these tasks; a world lends it an engine."""
    app = Shigoto("memory:")
    app.task(name="work", retry=Retry.exponential(retries=3, base=2))(work)
    app.task(name="sole", retry=Retry.exponential(retries=3, base=2), exclusive=True)(sole)
    return app


@contextmanager
def _told(ctx: Context) -> Iterator[None]:
    scene = SCENE.get()
    scene.begins(ctx)
    outcome = "error"
    try:
        yield
        outcome = "done"
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    finally:
        scene.ends(ctx, outcome)


async def _play(ctx: Context, word: str, seconds: float) -> str:
    match word:
        case "sleep":
            await asyncio.sleep(seconds)
        case "fail":
            await asyncio.sleep(seconds)
            raise ValueError("as planned")
        case "later":
            raise RetryLater(max(1, round(seconds)))
        case "snooze" if ctx.fence <= MOST_SNOOZES:
            raise Snooze(max(1, round(seconds)))
        case "cancel":
            raise Cancel
        case "give up":
            raise Fail("as planned")
        case "progress":
            ctx.progress(0.5, word)
            await asyncio.sleep(seconds)
        case "checkpoint":
            await ctx.acheckpoint(ctx.fence)
            await asyncio.sleep(seconds)
        case "block":
            SCENE.get().process.pause(seconds)
            await asyncio.sleep(0)
        case "stubborn":
            await _sleep_on(seconds)
        case "tidy":
            await _sleep_and_tidy_up(seconds)
        case _:
            pass
    return word


async def _sleep_on(seconds: float) -> None:
    """Sleep, and let every cancel pass."""
    loop, process = asyncio.get_running_loop(), SCENE.get().process
    end = loop.time() + seconds
    while process.alive and (left := end - loop.time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


async def _sleep_and_tidy_up(seconds: float) -> None:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        await asyncio.sleep(1.5)
        raise
