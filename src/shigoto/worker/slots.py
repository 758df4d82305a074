"""How many jobs one pool may ask for: what it can start now, and what it has earned beyond.

A claim costs a round trip. A pool that asked only for its free slots would stand still for that long whenever
its jobs are short. So it looks ahead: it may hold as many further leases as it completes in 80 ms, which
keeps it busy during the trip, and lets no job wait noticeably behind others while another worker could have
run it.

    cold ──two measures──► warm ──a lease lay unstarted for 250 ms──► cold, with a narrow window: one job at
      ahead = 0              ahead = rate × 80 ms, at most 10 000,      a time, doubled by each claim that
                             none if jobs run longer than that          starts in time

The rate is that of a pool with something to run: what it waits for a claim is left out, as far as it is known, else the
first claims of a cold pool would look like slow jobs.
A measure takes 100 ms, or less if a cold pool has ended so many that it is plain how fast they are, or if a warm one
was starved: it had ended everything before the next jobs came, so it is faster than was believed. The first jobs of a
large backlog need not be fetched in small portions for long.

Long jobs are thus never hoarded. The window answers another trouble: handlers that block the event loop start
one after the other, however many slots are free; what they keep waiting is given back, and fewer are asked
for at once. It bounds what is asked for beside what runs, so that long jobs in some slots never keep the
others empty.

Nothing here reads a clock or touches a job: the pool says what it holds, and gets a number.
"""

from collections import deque

# Seconds of work to look ahead. A large claim of PostgreSQL takes 25 ms, in which a pool ends half of what it
# held. More than two of these keep it from running dry: a drain is 2 to 7 % slower with 60 ms, and 10 % with 30.
HORIZON = 0.080
MOST_AHEAD = 10_000
WARM_AFTER = 2  # measures
SAMPLE = 0.100  # seconds; in less, jobs that end together look like a rate
# It need not wait for that if it has ended so many jobs, for each slot and in all, that they are no chance.
TURNS, ENOUGH = 1, 100
SHORTEST = 0.010  # seconds; in less, jobs look faster than they are
COARSE = 0.001  # seconds that the clock of an event loop may stand still
PATIENCE = 0.250  # seconds that a lease may lie unstarted


class Slots:
    """The ledger of one pool. `size` is how many jobs it can run at once.

    Everything is counted from what the pool was given: given = finished + running + buffered.
    """

    def __init__(self, size: int, now: float) -> None:
        self.size = size
        self.window = size
        self.ahead = 0
        # The number of buffered leases at which it is time to ask again; none without look-ahead.
        self.low_water = -1
        self._given = 0
        self._finished = 0
        self._rate = 0.0
        self._samples = 0
        self._sampled_at = now
        self._finished_then = 0
        self._busiest = 0  # the most that ran at once since the last measure
        self._starved = False  # since the last measure
        self._dry_since: float | None = now  # when it was seen with nothing to run
        self._waited = 0.0  # seconds with nothing to run since the last measure, as far as was seen
        # One entry per claim: until when its last lease must have started, and how many were given up to it.
        self._deadlines: deque[tuple[float, int]] = deque()

    def want(self, now: float, *, buffered: int, running: int) -> int:
        """Return how many jobs to ask for now; zero while the buffer still has most of the look-ahead."""
        self._measure(now, buffered, running)
        if not (buffered or running) and self._dry_since is None:
            self._dry_since = now
        if buffered > _most_of(self.ahead):
            return 0
        return max(0, min(self.window, self.size - running) + self.ahead - buffered)

    def gave(self, now: float, count: int, *, starved: bool = False) -> None:
        """Note that so many leases came from the store; `starved` if there was nothing left to run."""
        self._given += count
        if self._dry_since is not None:
            self._waited += now - max(self._dry_since, self._sampled_at)
            self._dry_since = None
        self._starved = self._starved or starved
        self._busiest = max(self._busiest, min(self.size, self._given - self._finished))
        self._deadlines.append((now + PATIENCE, self._given))

    def late(self, now: float, buffered: int) -> bool:
        """Return True if a lease has been lying unstarted for too long."""
        started = self._given - buffered
        while self._deadlines and self._deadlines[0][1] <= started:
            self._deadlines.popleft()
            self.window = min(self.size, self.window * 2)
        return bool(self._deadlines) and now >= self._deadlines[0][0]

    @property
    def next_deadline(self) -> float | None:
        """The time to ask `late` again, if nothing else happens."""
        return self._deadlines[0][0] if self._deadlines else None

    def took_back(self, count: int) -> None:
        """Note that so many unstarted leases go back to the store; they count as never given."""
        self._given -= count
        self._deadlines.clear()

    def collapse(self) -> None:
        """Look ahead only when it is earned again: leases were late. Ask for one at a time until one starts."""
        self._look_ahead(0)
        self.window = 1
        self._rate = 0.0
        self._samples = 0

    def _measure(self, now: float, buffered: int, running: int) -> None:
        elapsed = now - self._sampled_at
        self._finished = self._given - buffered - running
        progress = self._finished - self._finished_then
        if elapsed < SAMPLE and not (elapsed >= SHORTEST and self._is_plain(progress)):
            return
        rate = progress / (elapsed - self._waited + COARSE)
        self._rate = max(rate, (self._rate + rate) / 2)
        self._starved = False
        self._samples = self._samples + 1 if progress > 0 else 0
        self._sampled_at, self._finished_then, self._waited = now, self._finished, 0.0
        self._look_ahead(self._earned())
        self._busiest = running

    def _is_plain(self, progress: int) -> bool:
        """Return True if so many have ended that their rate is beyond doubt, and is news."""
        return progress >= max(ENOUGH, TURNS * self.size) and (self._samples < WARM_AFTER or self._starved)

    def _earned(self) -> int:
        if self._samples < WARM_AFTER:
            return 0
        ahead = min(MOST_AHEAD, int(self._rate * HORIZON))
        # By Little's law a run takes running / rate seconds: more running than finish within the horizon
        # means that runs take longer than the horizon, and then a claim costs little beside them.
        return ahead if ahead >= self._busiest else 0

    def _look_ahead(self, ahead: int) -> None:
        self.ahead = ahead
        self.low_water = _most_of(ahead) if ahead else -1


def _most_of(ahead: int) -> int:
    """Return what a buffer may have left when it is time to ask again; half is gone before the answer comes."""
    return ahead * 3 // 4
