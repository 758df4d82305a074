"""What is left to do for a runner process that is gone: to tell the store who was in it.

What ran in it has crashed and is suspected: it runs again alone. What only lay in its buffers is given back and
counts as nothing. If we have killed it ourselves, nothing has crashed.
"""

import signal
from collections.abc import Collection

from shigoto.model.outcome import Death
from shigoto.model.states import CRASH_DELAY

MOST_TRACE = 16_000  # characters


def how_it_ended(code: int) -> str:
    """An exit code as `subprocess` knows it, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def deaths_in(
    pid: int, code: int, *, inside: Collection[int], in_children: Collection[int], trace: str
) -> tuple[Death, ...]:
    """The jobs that have crashed: those `inside` the process, and those in child processes, which died with it."""
    how, count = how_it_ended(code), len(inside)
    error = f"The runner process {pid} {how} with {count} job{'' if count == 1 else 's'} inside."
    beside = f"The process of this job was ended together with the runner process {pid}, which {how}."
    # One alone in the process has most likely killed it: it waits, lest it kill the next one at once.
    delay = CRASH_DELAY if count == 1 else None
    return (
        *(
            Death(number=number, error=error, traceback=trace[:MOST_TRACE] or None, delay=delay)
            for number in inside
        ),
        *(Death(number=number, error=beside) for number in in_children),
    )
