"""How long a part of a worker leaves the store alone between two trips: congestion control.

A trip should take as long as the quickest one of late, and so long more for each job. What it takes beyond that, it has
waited for others: for a lock, a connection or a processor. The pause grows with the square of that excess, so that a
short queue costs nothing, and a long one keeps workers away until only a few of them press, however many there are.

All workers of a store meet the same queue, so all pause alike, and each gets its turn. One long trip, as after an
outage, says little: a pause grows to no more than twice the one before it.
"""

from math import inf
from random import Random

EXCESS = 0.010  # seconds, after which a pause is as long as the excess
LEAST, FIRST, LONGEST = 0.001, 0.005, 1.0  # seconds of a pause
FORGET = 1.02  # for each trip: the quickest one may have been luck, or the store is slower by now
MANY = 100  # jobs, from which on a trip tells what each of them costs


class Backoff:
    """The pauses of one part of a worker, by what its trips took."""

    def __init__(self) -> None:
        self._quickest = self._each = inf
        self._pause = 0.0

    def note(self, seconds: float, jobs: int) -> None:
        """Note what a trip took that moved so many jobs."""
        self._quickest = min(seconds, self._quickest * FORGET)
        expected = self._quickest
        if jobs >= MANY:
            self._each = min(seconds / jobs, self._each * FORGET)
            expected += jobs * self._each
        excess = max(0.0, seconds - expected)
        pause = min(excess * excess / EXCESS, 2 * self._pause + FIRST, LONGEST)
        self._pause = pause if pause >= LEAST else 0.0

    def pause(self, random: Random) -> float:
        """Return how many seconds to wait before the next trip; not the same for all, so that they come apart."""
        return self._pause * random.uniform(0.75, 1.25) if self._pause else 0.0
