"""Edge (a): a first parameter that could be anything is taken for the Context and dropped from calls.

The run-time check in the decorator refuses these declarations, so no such task can exist.
"""

from typing import Any, Protocol, TypeVar

from shigoto import Context, Shigoto

T = TypeVar("T")

app = Shigoto("memory:")


class HasAttempt(Protocol):
    @property
    def attempt(self) -> int: ...


@app.task
def anything(value: Any) -> int:
    return 1 if value else 0


@app.task
def an_object(value: object) -> int:
    return 1 if value else 0


@app.task
def generic(value: T) -> T:
    return value


@app.task
def late(value: int, ctx: Context) -> int:
    return value + ctx.attempt


@app.task
def like_a_context(value: HasAttempt) -> int:
    return value.attempt


@app.task
def bare(value) -> int:  # expect: mypy, pyright
    return 1 if value else 0


anything.enqueue(1)  # expect: pyright
an_object.enqueue(1)  # expect: mypy, pyright
generic.enqueue(1)  # expect: mypy, pyright
like_a_context.enqueue(app)  # expect: mypy, pyright
bare.enqueue(1)  # expect: pyright
late.enqueue(1)  # expect: mypy, pyright
