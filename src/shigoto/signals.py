"""What a run and its worker tell each other."""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from shigoto.cover import Cover
from shigoto.lines import Lines


class Signals(Struct, eq=False):
    """What a run and its worker tell each other; plain attributes, safe across threads.

    cancelled, stopping, overdue, lost   said by the worker: a cancel was asked for, it is about to stop, the
                                         soft limit has passed, the lease is somebody else's
    progress…, lines                     said by the handler; `lines` is None until it writes its first one
    ended, result                        said by a transaction: it has ended the job, with this result (JSON
                                         text), "committed" for good, or "joined" to the caller's own
                                         transaction, of which only the store can tell whether it was committed
    block                                the transaction is open, or was thrown away without an error that
                                         anybody saw, or nobody knows what became of it
    give_up                              how to roll the open one back without waiting
    cover                                what the run keeps from others: how its words are covered before they leave
    trouble                              what the store has raised instead of taking the transaction

    The worker clears `progress_changed` before it reads the progress, so news is sent twice rather than lost.
    """

    cancelled: bool = False
    stopping: bool = False
    overdue: bool = False
    lost: bool = False
    progress: float | None = None
    progress_text: str | None = None
    progress_changed: bool = False
    lines: Lines | None = None
    ended: Literal["committed", "joined"] | None = None
    result: str | None = None
    block: Literal["open", "dropped", "unknown"] | None = None
    give_up: Callable[[], None] | None = None
    trouble: Exception | None = None
    cover: Cover | None = None

    @property
    def news(self) -> bool:
        """Whether there is more to say of the run than how its handler ended."""
        return bool(
            self.cancelled
            or self.progress is not None
            or self.lines is not None
            or self.ended
            or self.block
            or self.cover
        )
