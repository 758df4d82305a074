"""What a worker asks of its store before it begins: whether it is there, is made for this release, and lets us no more
than work."""

from typing import Protocol, runtime_checkable

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import NotReady, StoreUnavailable


@runtime_checkable
class Prepared(Protocol):
    """An engine whose store others make and look after, so that it may not be what a worker needs."""

    def expect_ready(self, *, any_role: bool) -> Op[None]:
        """Raises StoreError if no worker may begin here, or not as this user; creates and changes nothing."""
        ...


async def expect_ready(engine: Engine, *, any_role: bool) -> None:
    """Raise SchemaMissing, SchemaTooNew or StoreRefused if a worker must not begin, NotReady if it cannot yet.

    A store that a worker makes by itself is always ready.
    """
    if not isinstance(engine, Prepared):
        return
    try:
        await engine.arun(engine.expect_ready(any_role=any_role))
    except StoreUnavailable as error:
        raise NotReady(f"The worker cannot begin. {error}") from error
