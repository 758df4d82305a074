"""When a commit on PostgreSQL rings the doorbell: at once in sparse flow, seldom in a crowd. On a clock that obeys."""

from shigoto.engine.postgres.doorbell import APART, COALESCE_FOR, MANY_RINGS, TOO_LATE, NotifyRate


class Flow:
    """A rate, its clock, and what comes of commits: those that ring, and those that promise to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.rate = NotifyRate(clock=lambda: self.now)
        self.rung: list[float] = []
        self.due: float | None = None

    def wait(self, seconds: float) -> None:
        """Let time pass; what was promised is kept."""
        end = self.now + seconds
        if self.due is not None and self.due <= end:
            self.now, self.due = max(self.now, self.due), None
            self.rate.note_ring()
            self.rung.append(self.now)
        self.now = end

    def commit(self, *, after: bool = False) -> bool:
        """A commit that rings by itself, if it may; one that only knows `after` whether to ring owes it."""
        if not after and self.rate.ring_now():
            self.rung.append(self.now)
            return True
        delay = self.rate.ring_later()
        if delay is not None:
            self.due = self.now + delay
            self.wait(0.0)
        return False

    def commits(self, count: int, *, every: float, after: bool = False) -> list[bool]:
        told = []
        for _ in range(count):
            told.append(self.commit(after=after))
            self.wait(every)
        return told


def test_in_sparse_flow_every_commit_rings_at_once() -> None:
    flow = Flow()

    assert all(flow.commits(100, every=1.01 * COALESCE_FOR / (MANY_RINGS - 1)))

    assert not flow.rate.is_ring_due


def test_two_close_together_are_two_rings_a_little_apart() -> None:
    flow = Flow()

    assert flow.commits(2, every=APART / 4) == [True, False]
    flow.wait(1.0)

    first, second = flow.rung
    assert APART <= second - first < 1.01 * APART


def test_a_commit_that_finds_the_promised_ring_due_does_not_wait_for_it() -> None:
    flow = Flow()
    flow.commit()
    flow.now += APART / 2
    assert not flow.rate.ring_now()
    assert flow.rate.ring_later() is not None
    flow.now += APART  # whoever has promised is late

    assert flow.rate.ring_now()
    assert flow.rate.is_ring_due


def test_a_crowd_is_rung_for_once_in_a_while() -> None:
    flow = Flow()
    seconds = 2.0

    flow.commits(int(seconds / 0.0005), every=0.0005)

    assert seconds / COALESCE_FOR - 1 <= len(flow.rung) <= seconds / COALESCE_FOR + 3


def test_the_last_of_a_crowd_is_rung_for() -> None:
    for count in range(1, 40):
        flow = Flow()
        flow.commits(count, every=0.001)
        last = flow.now - 0.001
        flow.wait(1.0)

        assert last <= flow.rung[-1] <= last + 1.01 * COALESCE_FOR


def test_when_a_crowd_is_gone_commits_ring_at_once_again() -> None:
    flow = Flow()
    flow.commits(100, every=0.0005)
    flow.wait(COALESCE_FOR)

    assert all(flow.commits(10, every=COALESCE_FOR / 4))


def test_what_rings_after_its_commit_keeps_to_the_same() -> None:
    sparse = Flow()
    sparse.commits(50, every=2 * APART, after=True)
    assert len(sparse.rung) == 50

    crowd = Flow()
    crowd.commits(4_000, every=0.0005, after=True)
    assert len(crowd.rung) <= 2.0 / COALESCE_FOR + MANY_RINGS


def test_a_promise_to_ring_that_was_not_kept_is_made_again() -> None:
    flow = Flow()
    rate = flow.rate
    assert rate.ring_now()
    assert not rate.ring_now()

    delay = rate.ring_later()
    assert delay is not None
    assert 0.0 < delay < 1.01 * APART
    assert rate.ring_later() is None
    flow.now += TOO_LATE + 1
    assert rate.ring_later() == 0.0
    rate.note_ring()
    assert not rate.is_ring_due
    assert not rate.ring_now()
