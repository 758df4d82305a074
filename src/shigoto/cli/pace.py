"""How fast jobs end, from the counts of one look after the other."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from math import floor

from msgspec import Struct

from shigoto.model.job import Counts

RATE_OVER = 10.0  # seconds
KEPT_FOR = 60.0
STEP = 2.0  # seconds that one column of the sparkline stands for
COLUMNS = int(KEPT_FOR / STEP)


class Sample(Struct, frozen=True, kw_only=True):
    """How many jobs have been seen to end since the first look, by queue; and how many of all have failed."""

    at: float
    ended: dict[str, int]
    whole: int = 0
    failed: int = 0


class Pace(Struct, frozen=True, kw_only=True):
    """What the looks of the last minute say. Every look makes a new one."""

    samples: tuple[Sample, ...] = ()
    counts: dict[str, Counts] = {}

    def after(self, at: float, counts: dict[str, Counts]) -> "Pace":
        """The pace after one more look, at a time in seconds.

        Counts also go down, when jobs are retried, pruned or deleted. That is no negative work: a count that went down
        says that nothing has ended, which may be too little, never too much.
        """
        if not self.samples:
            return Pace(samples=(Sample(at=at, ended={}),), counts=counts)
        last = self.samples[-1]
        ended = dict(last.ended)
        failed = 0
        for queue, now in counts.items():
            before = self.counts.get(queue, Counts())
            failures = max(0, now.failed - before.failed)
            others = max(0, now.completed - before.completed) + max(0, now.cancelled - before.cancelled)
            ended[queue] = ended.get(queue, 0) + failures + others
            failed += failures
        sample = Sample(at=at, ended=ended, whole=sum(ended.values()), failed=last.failed + failed)
        return Pace(samples=(*self._recent(at), sample), counts=counts)

    def per_second(self, queue: str | None = None) -> float:
        """Jobs that end per second, of one queue or of all."""
        count: Callable[[Sample], int] = (
            (lambda sample: sample.whole) if queue is None else (lambda sample: sample.ended.get(queue, 0))
        )
        return self._rate(count, RATE_OVER)

    def since_last(self, queue: str) -> float | None:
        """Jobs of a queue that have ended per second since the look before; None where there was none."""
        if len(self.samples) < 2:
            return None
        before, last = self.samples[-2:]
        if last.at <= before.at:
            return None
        return (last.ended.get(queue, 0) - before.ended.get(queue, 0)) / (last.at - before.at)

    def failures_of_last_minute(self) -> int:
        """How many jobs were seen to fail for good."""
        if not self.samples:
            return 0
        last = self.samples[-1]
        return round(last.failed - self._at(last.at - KEPT_FOR, lambda sample: sample.failed))

    def columns(self) -> list[float]:
        """Jobs that ended in each of the last spans of two seconds, oldest first; only spans that are over."""
        if not self.samples:
            return [0.0] * COLUMNS
        end = floor(self.samples[-1].at / STEP) * STEP
        marks = [
            self._at(end - STEP * place, lambda sample: sample.whole) for place in range(COLUMNS, -1, -1)
        ]
        return [later - earlier for earlier, later in pairwise(marks)]

    def _recent(self, at: float) -> tuple[Sample, ...]:
        """The samples of the last minute and the one before them, from which the oldest of it are counted."""
        first = bisect_right(self.samples, at - KEPT_FOR, key=lambda sample: sample.at)
        return self.samples[max(0, first - 1) :]

    def _rate(self, count: Callable[[Sample], int], seconds: float) -> float:
        if len(self.samples) < 2:
            return 0.0
        last = self.samples[-1]
        since = max(self.samples[0].at, last.at - seconds)
        return (count(last) - self._at(since, count)) / (last.at - since) if last.at > since else 0.0

    def _at(self, at: float, count: Callable[[Sample], int]) -> float:
        """The count at any time, as if jobs had ended evenly between two looks."""
        place = bisect_right(self.samples, at, key=lambda sample: sample.at)
        if place == 0:
            return count(self.samples[0])
        if place == len(self.samples):
            return count(self.samples[-1])
        before, after = self.samples[place - 1], self.samples[place]
        share = (at - before.at) / (after.at - before.at)
        return count(before) + (count(after) - count(before)) * share
