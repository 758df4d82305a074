"""What a worker asks of its store before it begins: whether it is there, is made for this release, and lets us no more
than work. Then it tells the store of the schedules that its code declares, and of itself."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, Protocol, TypeVar, runtime_checkable

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import NotReady, StoreUnavailable
from shigoto.model.ids import uuid7
from shigoto.model.worker import Announcement
from shigoto.schedule.declaring import Declared, reconciling

T = TypeVar("T")

ANNOUNCED_WITHIN = 5.0  # seconds, if the store cannot be reached at first
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds

logger = logging.getLogger("shigoto.worker")


@runtime_checkable
class Prepared(Protocol):
    """An engine whose store others make and look after, so that it may not be what a worker needs."""

    def expect_ready(self, *, any_role: bool) -> Op[None]:
        """Raises StoreError if no worker may begin here, or not as this user; creates and changes nothing."""
        ...


async def expect_ready(engine: Engine, *, any_role: bool, kind: str = "worker") -> None:
    """Raise SchemaMissing, SchemaTooNew or StoreRefused if a worker must not begin, NotReady if it cannot yet.

    A store that a worker makes by itself is always ready.
    """
    if not isinstance(engine, Prepared):
        return
    try:
        await engine.arun(engine.expect_ready(any_role=any_role))
    except StoreUnavailable as error:
        raise NotReady(f"The {kind} cannot begin. {error}") from error


def expect_ready_now(engine: Engine, *, any_role: bool, kind: str) -> None:
    """The same in the caller's thread; a store that is made by whoever needs it is made now."""
    try:
        if isinstance(engine, Prepared):
            engine.run(engine.expect_ready(any_role=any_role))
        engine.run(engine.due((), 0))
    except StoreUnavailable as error:
        raise NotReady(f"The {kind} cannot begin. {error}") from error


def probing(engine: Engine) -> Op[Any]:
    """What any store answers that is there and is made for this release; it changes nothing."""
    return engine.expect_ready(any_role=True) if isinstance(engine, Prepared) else engine.due((), 0)


async def announce(
    engine: Engine, announcement: Announcement, clock: Callable[[], float], random: Random
) -> float:
    """Tell the store of a worker, and return when, on `clock`: its lease began no earlier.

    A store that cannot be reached just now is asked again for a while. Raises NotReady if that is of no use.
    """

    async def tell() -> float:
        sent_at = clock()
        await engine.arun(engine.announce(announcement))
        return sent_at

    return await _patiently(tell, ("worker", announcement.name), "announce itself", random)


async def declare(
    engine: Engine, declared: Mapping[str, Declared], who: tuple[str, str], random: Random
) -> list[str]:
    """Bring schedules of our code into the store, and tell which of them are new or have changed.

    A store that cannot be reached just now is asked again for a while. Raises NotReady if that is of no use, and
    ScheduleTaken if somebody else has one of their names.
    """

    async def tell() -> list[str]:
        return await engine.arun(reconciling(engine, declared, uuid7, logger.warning))

    return await _patiently(tell, who, "declare its schedules", random)


async def want_notices(engine: Engine, who: tuple[str, str], random: Random) -> None:
    """Say that notices are wanted, so that whoever uses the store writes them from now on.

    A store that cannot be reached just now is asked again for a while. Raises NotReady if that is of no use.
    """
    if not engine.capabilities.repairs:
        logger.warning(
            "%s %s has a server for its store, and leaves it to that to ask for notices: it does if it was started with"
            " an app that has rules, `shigoto --app … server`",
            who[0].capitalize(),
            who[1],
        )
        return

    async def tell() -> bool:
        return await engine.arun(engine.switch_notices(True))

    await _patiently(tell, who, "ask for notices", random)


async def _patiently(ask: Callable[[], Awaitable[T]], who: tuple[str, str], wanted: str, random: Random) -> T:
    """`who` is of a kind and has a name."""
    kind, name = who
    time = asyncio.get_running_loop().time
    give_up_at, pause = time() + ANNOUNCED_WITHIN, FIRST_PAUSE
    while True:
        try:
            return await ask()
        except StoreUnavailable as error:
            if time() + pause > give_up_at:
                raise NotReady(f"The {kind} cannot begin. {error}") from error
            logger.warning("%s %s cannot %s, and tries again: %s", kind.capitalize(), name, wanted, error)
        await asyncio.sleep(pause * random.uniform(0.5, 1))
        pause = min(LONGEST_PAUSE, 2 * pause)
