"""How a scheduler is, from what its ticker has counted."""

from msgspec.structs import replace

from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.time import to_datetime
from shigoto.scheduler import SHORT_OUTAGE, SLOW, STUCK, judge
from shigoto.worker.health import LOCKED, UNWRITTEN
from shigoto.worker.ticker import MOST_NAMED, Figures, ScheduleFigures, Spread, Tally, spread

NOW = 1_800_000_000_000


class Time:
    """Seconds that pass when they are told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def counted(time: Time | None = None, cycles: int = 10) -> tuple[Tally, Time]:
    time = time or Time()
    tally = Tally(time)
    for _ in range(cycles):
        tally.begin()
        time.now += 0.5
        tally.end()
    return tally, time


def figures() -> Figures:
    return counted()[0].figures()


def change(
    name: str = "nightly", *outcomes: TickOutcome, late: int = 0, priority: int = 0, errors: int = 0
) -> Change:
    schedule = Schedule(
        id=uuid7(),
        name=name,
        definition="{}",
        decided_to=NOW,
        created_at=NOW,
        errors=errors,
        error="no" if errors else None,
    )
    firings = [
        Firing(
            entry=TickEntry(at=NOW - late, outcome=outcome, decided_at=NOW, count=1 if outcome.fires else 3),
            spec=JobSpec(id=uuid7(), task="t", queue="q", payload="{}", priority=priority)
            if outcome.fires
            else None,
        )
        for outcome in outcomes
    ]
    return Change(schedule=schedule, seen=1, firings=tuple(firings))


def test_a_scheduler_that_does_its_work_is_ok() -> None:
    """S4-18."""
    health = judge(replace(figures(), last_fired=NOW), "running", 1.0)

    assert (health.status, health.details) == ("OK", ())
    assert (health.state, health.connected, health.error_rate) == ("running", True, 0.0)
    assert health.last_tick == to_datetime(NOW)


def test_a_scheduler_that_does_not_run_is_an_error() -> None:
    """S4-18: scheduler status."""
    assert judge(None, "new", 1.0).details == ("The scheduler has not begun.",)
    stopped = judge(figures(), "stopped", 1.0)
    assert (stopped.status, stopped.details) == ("Error", ("The scheduler has stopped.",))
    assert judge(figures(), "stopping", 1.0).status == "Warning"


def test_an_outage_is_a_warning_and_a_long_one_an_error() -> None:
    """S4-14, S4-18: connectivity."""
    tally, time = counted()
    tally.begin()
    assert tally.broke(ConnectionError("no route")) is True
    assert tally.broke(ConnectionError("no route")) is False
    short = judge(tally.figures(), "running", 1.0)
    time.now += SHORT_OUTAGE + 1
    long = judge(tally.figures(), "running", 1.0)
    tally.end()
    after = judge(tally.figures(), "running", 1.0)

    assert (short.status, short.connected) == ("Warning", False)
    assert (long.status, long.connected) == ("Error", False)
    assert long.details[0] == "The store has not answered for 11 s: no route."
    assert after.connected
    assert tally.figures().errors == 2


def test_an_outage_counts_from_when_the_store_was_asked() -> None:
    """S4-14: SQLite waits a minute for a lock before it says that it cannot."""
    tally, time = counted()
    tally.begin()
    time.now += 60
    tally.broke(ConnectionError("locked"))
    time.now += 5

    assert tally.down_for == 65


def test_a_tick_that_had_to_wait_for_the_store_is_as_late_as_it_was_stored() -> None:
    """S4-18, S4-19: decided in time, and then a lock was in its way."""
    tally, time = counted()
    tally.begin()
    time.now += 20
    tally.told(change("a", TickOutcome.FIRED, late=30))
    tally.end()

    assert tally.figures().lateness.p99 == 20_030


def test_a_scheduler_that_is_stuck_is_an_error() -> None:
    """S4-18: last execution time."""
    tally, time = counted()
    time.now += SLOW + 2
    assert judge(tally.figures(), "running", 1.0).status == "Warning"
    time.now += STUCK - SLOW

    assert judge(tally.figures(), "running", 1.0).details == ("No cycle has ended for 32 s.",)
    assert judge(tally.figures(), "running", 60.0).status == "OK"


def test_a_store_that_nobody_can_write_to_is_an_error() -> None:
    """S4-18: cycles in which nothing is due only read, and end well."""
    assert judge(figures(), "running", 1.0, UNWRITTEN).status == "OK"
    locked = judge(figures(), "running", 1.0, UNWRITTEN + 1)
    assert (locked.status, locked.details, locked.connected) == ("Error", (LOCKED,), True)


def test_few_errors_are_a_warning_and_many_an_error() -> None:
    """S4-18: error rate."""
    tally, _ = counted(cycles=9)
    tally.begin()
    tally.told(change(errors=1))
    tally.end()
    few = judge(tally.figures(), "running", 1.0)
    many = judge(replace(tally.figures(), error_rate=0.5), "running", 1.0)

    assert (few.status, few.error_rate) == ("Warning", 0.1)
    assert few.details == ("Something failed in 10% of the newest cycles.",)
    assert many.status == "Error"


def test_lateness_is_a_warning_and_much_of_it_an_error() -> None:
    """S4-18, S4-19."""
    on_time, late, hour = 1_000, 1_001, 3_600_000
    told: list[str] = []
    for by, outcome in (
        (on_time, TickOutcome.FIRED),
        (late, TickOutcome.FIRED),
        (hour, TickOutcome.CAUGHT_UP),
    ):
        tally, _ = counted()
        tally.begin()
        for _ in range(50):
            tally.told(change("a", outcome, late=by))
        told.append(judge(tally.figures(), "running", 1.0).status)

    assert told == ["OK", "Warning", "Error"]


def test_a_tick_that_waited_for_the_job_before_is_late_on_purpose() -> None:
    """S4-18: overlap="queue" is no fault of the scheduler."""
    tally, _ = counted()
    tally.told(change("a", TickOutcome.CAUGHT_UP, late=3_600_000), waiting_for_overlap=True)

    assert tally.figures().fired == 1
    assert judge(tally.figures(), "running", 1.0).status == "OK"


def test_a_tick_is_not_late_by_what_was_done_before_anybody_looked() -> None:
    """S4-18: declaring schedules may take a while, and the store tells its time after that."""
    tally, time = counted()
    tally.begin()
    time.now += 5.0
    tally.look()
    time.now += 0.25
    tally.told(change("a", TickOutcome.FIRED, late=30))

    assert (tally.waited, tally.figures().lateness.p99) == (250, 280)


def test_everything_is_counted_by_schedule_and_by_priority() -> None:
    """S4-19, S4-23: success and failure counts, statistics per schedule and priority."""
    tally, _ = counted(cycles=2)
    tally.begin()
    tally.told(change("a", TickOutcome.FIRED, late=30, priority=5))
    tally.told(change("a", TickOutcome.CAUGHT_UP, late=90_000))
    tally.told(change("a", TickOutcome.MISSED))
    tally.lost("b")
    tally.told(change("b", errors=2))
    told = tally.figures()

    assert (told.fired, told.passed, told.lost, told.failures) == (2, 3, 1, 1)
    assert (told.cycles, told.cycle_seconds, told.cycle) == (2, 1.0, Spread(p50=0.5, p99=0.5))
    assert told.by_schedule == {
        "a": ScheduleFigures(fired=2, passed=3, last_at=NOW - 90_000),
        "b": ScheduleFigures(lost=1, failures=1),
    }
    assert told.by_priority == {5: 1, 0: 1}
    assert told.lateness == Spread(p50=30, p99=90_000)
    assert told.last_fired == NOW


def test_the_tally_does_not_grow_for_ever() -> None:
    tally, _ = counted()
    for number in range(MOST_NAMED + 5):
        tally.told(change(f"s{number}", TickOutcome.FIRED))
    told = tally.figures()

    assert (len(told.by_schedule), told.fired) == (MOST_NAMED, MOST_NAMED + 5)


def test_spread() -> None:
    """S4-19: latency as p50 and p99."""
    assert spread([]) == Spread(p50=None, p99=None)
    assert spread([7.0]) == Spread(p50=7.0, p99=7.0)
    assert spread(range(1, 201)) == Spread(p50=100, p99=198)
