"""What a case of the zoo is (`zoo.py`), and all there are, by name: `endings.py` and `oddities.py` put them here."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from msgspec import Struct

LOOP, THREAD, PROCESS, OWN_LOOP = "in_loop", "in_thread", "in_process", "in_own_loop"
SYNC = (LOOP, THREAD, PROCESS)
ASYNC = (LOOP, OWN_LOOP)

F = TypeVar("F", bound=Callable[..., Any])


class Case(Struct, frozen=True, kw_only=True):
    """A handler, where it runs, and what it must come to; `words` must stand in the error."""

    run: Callable[..., Any]
    where: tuple[str, ...]
    state: str
    kind: str
    words: str
    timeout: float | None


CASES: dict[str, Case] = {}


def case(
    words: str = "",
    *,
    state: str = "failed",
    kind: str = "error",
    where: tuple[str, ...] | None = None,
    timeout: float | None = None,
) -> Callable[[F], F]:
    """Put a function into the zoo."""

    def add(run: F) -> F:
        places = where or (ASYNC if iscoroutinefunction(run) else SYNC)
        wanted = "" if state != "failed" else kind
        CASES[run.__name__] = Case(
            run=run, where=places, state=state, kind=wanted, words=words, timeout=timeout
        )
        return run

    return add
