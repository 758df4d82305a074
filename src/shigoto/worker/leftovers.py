"""Whether a handler has left something behind in the strand that ran it, which the next job would find."""

from contextvars import Context, copy_context
from operator import is_not

from shigoto.middleware.tracing import Resting


def left_something(before: Context, resting: Resting | None) -> bool:
    """Whether the handler has set a context variable, other than our own, which every job sets. A place in a trace that
    it has gone to, and not left again, is taken back: that is a frequent slip.

    By identity: `before != after` asks values for equality, which raises for arrays, and holds for a fresh list
    in place of another. Mostly there is no variable but our own, and that of traces; with more it takes 0.3 µs.
    """
    after = copy_context()
    if resting is None:
        if len(after) == 1:
            return False
    else:
        if after.get(resting.current) is not resting.inside:
            resting.current.set(resting.inside)
            after = copy_context()
        if len(after) == 2:
            return False
    return len(after) != len(before) or sum(map(is_not, after.values(), before.values())) != 1
