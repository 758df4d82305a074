"""Whether jobs wait where there is room for them: nobody waits for longer than the poll (I16)."""

from math import inf

SETTLED_AFTER = 90.0  # seconds until what happened before has no effect on how soon a job begins
STARTS_WITHIN = 3.0  # seconds until a worker that has come is at work


class Waiting:
    """Since when jobs are pending, and since when each that is due finds a place at once.

    That is so when all has been well for long, a worker that has a place for every job has come to stay, and no queue
    is paused. A job waits from then on, however long it has been due: a worker that stops takes no jobs, and the one
    that comes after it begins only when it has gone.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._pending_at: dict[int, float] = {}
        self._settled_at = inf
        self._staffed_at = inf
        self._queues_changed_at = -inf

    def calm(self, now: float) -> None:
        """Nothing bad happens any more."""
        self._settled_at = now + SETTLED_AFTER

    def staffed(self, now: float) -> None:
        """A worker has come that stays, and has a place for every job."""
        self._staffed_at = min(self._staffed_at, now + STARTS_WITHIN)

    def queues_changed(self, now: float) -> None:
        """A queue was paused or opened. What was paused is opened later on, or nobody could claim from it."""
        self._queues_changed_at = now

    def is_pending(self, number: int, now: float) -> None:
        """A job waits to be claimed, from now on or from when it is due."""
        self._pending_at[number] = now

    def was_claimed(self, number: int, now: float, due_for: float) -> str:
        """What is wrong with how long it has waited, if anything is.

        It was due for so many seconds, by the clock of the store: that may have been set since it became pending.
        """
        pending_at = self._pending_at.pop(number, now)
        since = max(pending_at, now - due_for, self._staffed_at, self._queues_changed_at)
        waited = now - since
        if since <= self._settled_at or waited <= self._longest:
            return ""
        return f"job {number} waited for {waited:g} s, with room for it (I16)"
