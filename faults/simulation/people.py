"""Those who use the store of a world from outside: producers, and an operator."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from faults.simulation.book import Book
from faults.simulation.line import Line
from faults.simulation.plan import Intervention, Order
from shigoto import Shigoto, StoreUnavailable
from shigoto.engine.op import Op
from shigoto.model.errors import ShigotoError
from shigoto.model.ids import uuid7
from shigoto.model.job import QueueSettings
from shigoto.testing.store import START

TRIES = 30


async def enqueue_all(app: Shigoto, orders: tuple[Order, ...], random: Random, book: Book) -> None:
    """One after the other; the book is told which were acknowledged."""
    for order in orders:
        await asyncio.sleep(order.after)
        id = uuid7(START, random.randbytes(10))
        task: Any = app.tasks[order.task]
        call = task.using(
            id=id,
            queue=order.queue,
            priority=order.priority,
            delay=order.delay,
            timeout=order.timeout,
            expires=order.expires,
        )
        book.tried[id] = False
        if order.expires is not None:
            book.expiring.add(id)
        for _ in range(TRIES):
            try:
                await call.aenqueue(list(order.steps))
            except StoreUnavailable:
                await asyncio.sleep(random.random() * 5)
            else:
                book.tried[id] = True
                break


async def intervene(
    line: Line, interventions: tuple[Intervention, ...], known: Callable[[], list[UUID]], book: Book
) -> None:
    """What an operator does to queues, and to some of the jobs that are known by then."""
    for act in interventions:
        await asyncio.sleep(act.after)
        ids = known()
        if act.what == "pause":
            queue = "a" if act.which < 0.5 else "b"
            await _insist(line, line.configure(QueueSettings(name=queue, paused=True)))
            await asyncio.sleep(act.seconds)
            await _insist(line, line.configure(QueueSettings(name=queue)))
        elif ids:
            chosen = [ids[int(act.which * len(ids))]]
            if act.what != "retry":
                book.cancelled.update(chosen)
            retry = act.what == "retry"
            op = line.retry(chosen) if retry else line.cancel(chosen, force=act.what == "force")
            await _insist(line, op)


async def _insist(line: Line, op: Op[Any]) -> None:
    """Until it is answered; a refusal is an answer."""
    while True:
        try:
            await line.arun(op)
        except StoreUnavailable:
            await asyncio.sleep(1)
        except ShigotoError:
            return
        else:
            return
