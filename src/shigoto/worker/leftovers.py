"""Whether a handler has left something behind in the strand that ran it, which the next job would find."""

from contextvars import Context, copy_context
from operator import is_not

from shigoto.middleware.tracing import Still


def has_changed(before: Context, still: Still | None) -> bool:
    """Whether the handler has set a context variable, other than our own, which every job sets.

    By identity: `before != after` asks values for equality, which raises for arrays, and holds for a fresh list
    in place of another. Mostly there is no variable but our own, and that of traces; with more it takes 0.3 µs.
    """
    after = copy_context()
    if still is None:
        if len(after) == 1:
            return False
    elif len(after) == 2 and after.get(still[0]) is still[1]:
        return False
    return len(after) != len(before) or sum(map(is_not, after.values(), before.values())) != 1
