"""What a worker opens when it starts and closes when it stops, as the app declares it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from inspect import isasyncgenfunction, iscoroutine
from typing import TYPE_CHECKING, Any

from shigoto.model.errors import DeclarationError
from shigoto.model.text import shown

if TYPE_CHECKING:
    from shigoto.app import Shigoto

Lifespan = Callable[["Shigoto"], AsyncIterator[Any]] | Callable[["Shigoto"], AbstractAsyncContextManager[Any]]


def entered(lifespan: Lifespan, app: "Shigoto") -> AbstractAsyncContextManager[Any]:
    """The lifespan as a context manager, still to be entered. Raises DeclarationError."""
    made: object = asynccontextmanager(lifespan)(app) if isasyncgenfunction(lifespan) else lifespan(app)
    if isinstance(made, AbstractAsyncContextManager):
        return made
    if iscoroutine(made):
        made.close()
    raise DeclarationError(
        f"The lifespan {called(lifespan)} must be an async generator function (async def, with a yield), or make"
        f" an async context manager; it gave {shown(made)}."
    )


def called(fn: object) -> str:
    """A function's name, for messages."""
    return str(getattr(fn, "__qualname__", None) or shown(fn))
