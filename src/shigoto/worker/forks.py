"""Children that a handler has forked and that came back instead of leaving: each would go on as a second worker."""

import os
import sys
import weakref
from typing import NoReturn, Protocol


class Forkable(Protocol):
    """Whoever must know that it finds itself in a child."""

    forked: bool


def watch_forks(runner: Forkable) -> None:
    """Tell the runner when it finds itself in a child; asking for the process id after every job costs more."""
    known = weakref.ref(runner)

    def forked() -> None:
        here = known()
        if here is not None:
            here.forked = True

    if sys.platform != "win32":
        os.register_at_fork(after_in_child=forked)


def end_child(error: BaseException | None = None) -> NoReturn:
    """End the process as its handler wanted, without its parent's exit handlers and open transactions."""
    code = error.code if isinstance(error, SystemExit) else int(error is not None)
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))
