"""Operations that happen at once, under the engine's lock."""

from collections.abc import Callable
from typing import TypeVar

from shigoto.engine.op import Op, Steps

T = TypeVar("T")


def change(work: Callable[[], T], *, rings: Callable[[T], bool] | None = None) -> Op[T]:
    """One that may change something."""
    return Op(start=lambda: _at_once(work), rings=rings)


def read(work: Callable[[], T]) -> Op[T]:
    """One that changes nothing."""
    return Op(start=lambda: _at_once(work), mode="read")


def _at_once(work: Callable[[], T]) -> Steps[T]:
    """Steps without a command: the whole op happens when it is started, under the engine's lock."""
    yield from ()
    return work()
