"""Whether sweepers keep their manners: nobody is fenced who was seen expired only once, nor soon after an outage."""

from uuid import UUID

from shigoto.model.worker import Swept

TRIFLE = 0.001  # seconds


class Manners:
    """What one process has seen of others when it swept, and what it may conclude from that."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._first_seen: dict[UUID, float] = {}
        self._out_of_touch = False
        self._not_before = 0.0

    def failed(self) -> None:
        """A sweep was not answered."""
        self._first_seen.clear()
        self._out_of_touch = True

    def answered(self, asked_at: float, now: float, swept: Swept) -> str:
        """What is wrong with a sweep that has just been answered, if anything is."""
        problem = ""
        for worker in swept.fenced:
            first = self._first_seen.get(worker)
            if first is None or asked_at - first < self._lease / 3 - TRIFLE:
                problem = "fenced a worker that it had not seen expired twice"
            elif asked_at < self._not_before - TRIFLE:
                problem = "fenced a worker soon after it had lost touch with the store"
        if self._out_of_touch:
            self._out_of_touch, self._not_before = False, now + self._lease
        if swept.clock_step:
            self._first_seen.clear()
        else:
            self._first_seen = {worker: self._first_seen.get(worker, now) for worker in swept.expired_workers}
        return problem
