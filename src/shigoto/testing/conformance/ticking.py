"""Promises about schedules: of all who decide at once one is heard, and a tick has one job, whatever happens."""

from threading import Barrier, Thread
from typing import TypedDict, Unpack
from uuid import UUID

from msgspec.structs import replace

from shigoto.model.clock import Millis
from shigoto.model.job import State
from shigoto.model.outcome import Ending
from shigoto.model.schedule import ASTRAY, KEPT, Change, Due, Entry, Firing, Schedule, TickOutcome
from shigoto.testing.conformance.fixture import EngineUnderTest, SpecOptions


class ScheduleOptions(TypedDict, total=False):
    """What tests say of a schedule."""

    definition: str
    origin: str
    paused: bool
    failed: bool
    held: bool
    look_at: Millis | None
    decided_to: Millis
    errors: int
    error: str | None
    counts: dict[str, int]
    declared_at: Millis


class Office:
    """A store, and short ways to keep schedules in it."""

    def __init__(self, store: EngineUnderTest) -> None:
        self.store = store
        self.engine = store.engine

    def add(self, name: str = "nightly", **options: Unpack[ScheduleOptions]) -> Schedule:
        """Store a schedule that is due now, unless something else is said."""
        now = self.store.clock.now
        plain = Schedule(
            id=self.store.new_id(),
            name=name,
            definition="{}",
            look_at=now,
            decided_to=now - 1,
            created_at=now,
        )
        schedule = replace(plain, **options)
        assert self.tick(Change(schedule=schedule, seen=0)) == [True]
        return self.get(name)

    def tick(self, *changes: Change) -> list[bool]:
        """Change schedules."""
        return self.engine.run(self.engine.tick(changes))

    def fire(
        self,
        schedule: Schedule,
        at: Millis,
        outcome: TickOutcome = TickOutcome.FIRED,
        *,
        cancel: tuple[UUID, ...] = (),
        **options: Unpack[SpecOptions],
    ) -> bool:
        """Fire one tick of a schedule, as it was seen."""
        firing = self.firing(schedule, at, outcome, **options)
        change = Change(schedule=schedule, seen=schedule.revision, firings=(firing,), cancel=cancel)
        return self.tick(change)[0]

    def firing(
        self,
        schedule: Schedule,
        at: Millis,
        outcome: TickOutcome = TickOutcome.FIRED,
        **options: Unpack[SpecOptions],
    ) -> Firing:
        """A tick, with a job if it fires."""
        now = self.store.clock.now
        if not outcome.fires:
            return Firing(entry=Entry(at=at, outcome=outcome, decided_at=now))
        spec = replace(self.store.spec(id=schedule.job_id(at)), **options)
        return Firing(entry=Entry(at=at, outcome=outcome, decided_at=now, job=spec.id), spec=spec)

    def get(self, name: str = "nightly") -> Schedule:
        """The schedule as it stands."""
        [schedule] = self.engine.run(self.engine.schedules([name]))
        return schedule

    def due(self, *declared: str, limit: int = 100) -> Due:
        """What is due."""
        return self.engine.run(self.engine.due(declared, limit))

    def names(self, *declared: str, limit: int = 100) -> list[str]:
        """The names of what is due."""
        return [each.schedule.name for each in self.due(*declared, limit=limit).schedules]

    def ledger(self, name: str = "nightly") -> list[Entry]:
        """The entries of a schedule, the oldest first."""
        return self.engine.run(self.engine.ledger(name, limit=KEPT + 10))[::-1]


class TestSchedules:
    """The rows: kept as they are told, changed by whoever has seen the newest."""

    def test_a_schedule_is_kept_as_it_was_told(self, store: EngineUnderTest) -> None:
        """S4-3, C23: the store is the truth."""
        office = Office(store)
        schedule = Schedule(
            id=store.new_id(), name="nightly", definition='{"é": "\\u4ed5\\u4e8b"}', origin="shop.tasks:nightly",
            paused=True, failed=True, held=True, look_at=2**53, decided_to=-5, job=store.new_id(), errors=3,
            error="it broke", counts={"fired": 7}, created_at=11, declared_at=12,
        )  # fmt: skip

        assert office.tick(Change(schedule=schedule, seen=0)) == [True]

        assert office.get() == replace(schedule, revision=1)

    def test_what_nobody_ever_looks_at_again_has_no_time(self, store: EngineUnderTest) -> None:
        office = Office(store)
        office.add(look_at=None)

        assert office.get().look_at is None
        assert (office.names(), office.due().next_in) == ([], None)

    def test_a_second_of_the_same_name_is_refused(self, store: EngineUnderTest) -> None:
        office = Office(store)
        first = office.add(definition='{"v":1}')

        again = replace(first, id=store.new_id(), definition='{"v":2}')

        assert office.tick(Change(schedule=again, seen=0)) == [False]
        assert office.get() == first

    def test_a_change_by_somebody_who_has_not_seen_the_last_is_refused(self, store: EngineUnderTest) -> None:
        """S4-8, S4-20."""
        office = Office(store)
        seen = office.add()
        assert office.tick(Change(schedule=replace(seen, paused=True), seen=seen.revision)) == [True]

        late = Change(schedule=replace(seen, definition='{"v":2}'), seen=seen.revision)

        assert office.tick(late) == [False]
        assert (office.get().paused, office.get().definition, office.get().revision) == (True, "{}", 2)

    def test_one_that_is_not_known_cannot_be_changed(self, store: EngineUnderTest) -> None:
        office = Office(store)
        seen = office.add()
        assert office.engine.run(office.engine.remove_schedules(["nightly"])) == [True]

        assert office.tick(Change(schedule=seen, seen=seen.revision)) == [False]
        assert office.engine.run(office.engine.schedules()) == []

    def test_all_are_told_by_name(self, store: EngineUnderTest) -> None:
        office = Office(store)
        for name in ("b", "c", "a"):
            office.add(name)

        names = [each.name for each in office.engine.run(office.engine.schedules())]
        some = [each.name for each in office.engine.run(office.engine.schedules(["c", "x", "a"]))]

        assert (names, some) == (["a", "b", "c"], ["a", "c"])
        assert office.engine.run(office.engine.schedules([])) == []

    def test_a_removed_one_takes_its_ledger_with_it_and_leaves_its_jobs(self, store: EngineUnderTest) -> None:
        """S4-5."""
        office = Office(store)
        schedule = office.add()
        office.fire(schedule, 1_000)

        removed = office.engine.run(office.engine.remove_schedules(["nightly", "unknown"]))
        office.add()

        assert removed == [True, False]
        assert office.ledger() == []
        assert len(store.find()) == 1

    def test_whoever_declares_some_changes_nothing_else(self, store: EngineUnderTest) -> None:
        office = Office(store)
        before = office.add(origin="shop:nightly")
        office.add("hourly")
        store.clock.advance(5_000)

        office.engine.run(office.engine.declare(["nightly", "unknown"]))

        assert office.get() == replace(before, declared_at=store.clock.now)
        assert office.get("hourly").declared_at == 0
        assert office.tick(Change(schedule=before, seen=before.revision)) == [True]
        assert office.get().declared_at == store.clock.now


class TestDue:
    """Who has to be looked at, and when."""

    def test_it_is_due_at_its_time_and_not_before(self, store: EngineUnderTest) -> None:
        """S4-9."""
        office = Office(store)
        office.add(look_at=store.clock.now + 1_000)

        early = office.due()
        store.clock.advance(999)
        almost = office.due()
        store.clock.advance(1)

        assert (early.schedules, early.next_in) == ([], 1_000)
        assert (almost.schedules, almost.next_in) == ([], 1)
        assert office.names() == ["nightly"]
        assert (office.due().now, office.due().next_in) == (store.clock.now, None)

    def test_the_longest_overdue_come_first_and_no_more_than_wanted(self, store: EngineUnderTest) -> None:
        office = Office(store)
        for name, since in (("a", 10), ("b", 30), ("c", 20), ("d", -500)):
            office.add(name, look_at=store.clock.now - since)

        assert office.names() == ["b", "c", "a"]
        assert office.due().next_in == 500
        assert office.names(limit=2) == ["b", "c"]
        assert office.due(limit=2).next_in == 0
        assert (office.due(limit=0).now, office.due(limit=0).next_in) == (store.clock.now, 0)

    def test_one_that_is_declared_in_code_is_left_to_those_who_have_that_code(
        self, store: EngineUnderTest
    ) -> None:
        """A24."""
        office = Office(store)
        office.add("ours", origin="shop:ours")
        office.add("theirs", origin="bank:theirs")
        office.add("anyone")

        assert office.names("ours", "new") == ["anyone", "ours"]
        assert office.names() == ["anyone"]
        assert office.due().next_in is None

    def test_a_busy_one_has_a_job_that_has_not_ended(self, store: EngineUnderTest) -> None:
        """F23: pending, running, or back for another try; not once it has ended, or is gone."""
        office = Office(store)
        office.fire(office.add(), 1_000)
        worker = store.announce()

        waiting = office.due().schedules[0].busy
        [lease] = store.claim(worker)
        running = office.due().schedules[0].busy
        store.settle(worker, lease, Ending.ERRORED, delay=60_000)
        retrying = office.due().schedules[0].busy
        store.clock.advance(60_000)
        store.promote()
        [lease] = store.claim(worker)
        store.settle(worker, lease, Ending.COMPLETED)

        assert (waiting, running, retrying) == (True, True, True)
        assert not office.due().schedules[0].busy

    def test_one_without_a_job_is_not_busy(self, store: EngineUnderTest) -> None:
        office = Office(store)
        office.add()

        assert not office.due().schedules[0].busy

    def test_one_that_is_decided_far_ahead_of_the_clock_is_due(self, store: EngineUnderTest) -> None:
        """E28: the clock was wrong, and is right again; nobody shall wait until it gets there."""
        office = Office(store)
        far = store.clock.now + ASTRAY + 5_000
        office.add(look_at=far + 1_000, decided_to=far)
        office.add("sound", look_at=far + 1_000, decided_to=store.clock.now + ASTRAY)

        assert office.names() == ["nightly"]


class TestTick:
    """A tick and its job are one, and there is one of each."""

    def test_a_tick_and_its_job_are_stored_together(self, store: EngineUnderTest) -> None:
        """S4-6, I8."""
        office = Office(store)
        schedule = office.add()

        assert office.fire(replace(schedule, look_at=9_000_000, decided_to=1_000), 1_000, payload='{"a":1}')

        [job] = store.find()
        [entry] = office.ledger()
        after = office.get()
        assert (job.id, job.payload, job.state) == (schedule.job_id(1_000), '{"a":1}', State.PENDING)
        assert (entry.at, entry.outcome, entry.job) == (1_000, TickOutcome.FIRED, job.id)
        assert (entry.decided_at, entry.until, entry.count) == (store.clock.now, None, 1)
        assert (after.job, after.decided_to, after.revision) == (job.id, 1_000, 2)

    def test_whoever_comes_second_stores_nothing(self, store: EngineUnderTest) -> None:
        """S4-8, S4-10, S4-21: the seed's lock could outlive its expiry, and then both would fire."""
        office = Office(store)
        schedule = office.add()

        heard = [office.fire(schedule, 1_000) for _ in range(2)]

        assert heard == [True, False]
        assert len(store.find()) == 1
        assert len(office.ledger()) == 1

    def test_a_tick_never_fires_twice_even_if_the_clock_goes_back(self, store: EngineUnderTest) -> None:
        """F25, S4-21."""
        office = Office(store)
        office.fire(office.add(), 1_000)
        [job] = store.find()
        worker = store.announce()
        [lease] = store.claim(worker)
        store.settle(worker, lease, Ending.COMPLETED)
        store.engine.run(store.engine.delete([job.number], [State.COMPLETED]))

        heard = office.fire(office.get(), 1_000, TickOutcome.CAUGHT_UP)

        assert heard
        assert store.find() == []
        assert [entry.outcome for entry in office.ledger()] == [TickOutcome.FIRED]

    def test_what_did_not_fire_can_still_do_so(self, store: EngineUnderTest) -> None:
        """A backfill of what was missed."""
        office = Office(store)
        office.fire(office.add(), 1_000, TickOutcome.MISSED)
        before = len(store.find())

        office.fire(office.get(), 1_000, TickOutcome.BACKFILLED)

        [entry] = office.ledger()
        assert (before, len(store.find())) == (0, 1)
        assert (entry.outcome, entry.job) == (TickOutcome.BACKFILLED, office.get().job_id(1_000))

    def test_many_ticks_of_many_schedules_go_in_at_once(self, store: EngineUnderTest) -> None:
        office = Office(store)
        schedules = [office.add(f"s{number}") for number in range(20)]
        stale = replace(schedules[7], revision=5)
        changes = [
            Change(
                schedule=schedule,
                seen=schedule.revision,
                firings=tuple(office.firing(schedule, at) for at in (1_000, 2_000, 3_000)),
            )
            for schedule in [*schedules[:7], stale, *schedules[8:]]
        ]

        heard = office.tick(*changes)

        assert heard == [True] * 7 + [False] + [True] * 12
        assert len(store.find()) == 19 * 3
        assert [len(office.ledger(f"s{number}")) for number in range(20)] == [3] * 7 + [0] + [3] * 12

    def test_a_stretch_of_ticks_is_one_entry(self, store: EngineUnderTest) -> None:
        """S4-22: missed while every scheduler was down, or suppressed, or skipped."""
        office = Office(store)
        schedule = office.add()
        entry = Entry(at=1_000, until=9_000, count=9, outcome=TickOutcome.MISSED, decided_at=11_000)

        office.tick(Change(schedule=schedule, seen=1, firings=(Firing(entry=entry),)))

        assert office.ledger() == [entry]

    def test_the_job_before_makes_room(self, store: EngineUnderTest) -> None:
        """F23: overlap by cancelling the previous one."""
        office = Office(store)
        office.fire(office.add(), 1_000)
        first = office.get().job
        assert first is not None

        office.fire(office.get(), 2_000, cancel=(first,))

        assert {job.id: job.state for job in store.find()} == {
            first: State.CANCELLED,
            office.get().job_id(2_000): State.PENDING,
        }
        assert office.get().job == office.get().job_id(2_000)

    def test_where_a_key_is_taken_the_job_that_has_it_stands(self, store: EngineUnderTest) -> None:
        office = Office(store)
        holder = store.enqueue(key="one")

        office.fire(office.add(), 1_000, key="one")

        [entry] = office.ledger()
        assert (entry.job, office.get().job) == (holder.id, holder.id)
        assert len(store.find()) == 1

    def test_a_job_for_later_waits(self, store: EngineUnderTest) -> None:
        """Jitter."""
        office = Office(store)
        office.fire(office.add(), 1_000, run_at=store.clock.now + 5_000)

        assert store.promote().next_in == 5_000
        assert store.claim(store.announce()) == []

    def test_only_the_newest_entries_are_kept(self, store: EngineUnderTest) -> None:
        office = Office(store)
        schedule = office.add()
        missed = tuple(office.firing(schedule, at, TickOutcome.MISSED) for at in range(1, KEPT + 6))
        office.tick(Change(schedule=schedule, seen=1, firings=missed))

        kept = [entry.at for entry in office.ledger()]

        assert (len(kept), kept[0], kept[-1]) == (KEPT, 6, KEPT + 5)

    def test_the_ledger_is_read_in_pages_newest_first(self, store: EngineUnderTest) -> None:
        office = Office(store)
        schedule = office.add()
        missed = tuple(office.firing(schedule, at, TickOutcome.SKIPPED) for at in range(1, 8))
        office.tick(Change(schedule=schedule, seen=1, firings=missed))
        engine = office.engine

        first = [entry.at for entry in engine.run(engine.ledger("nightly", limit=3))]
        second = [entry.at for entry in engine.run(engine.ledger("nightly", before=first[-1], limit=3))]

        assert (first, second) == ([7, 6, 5], [4, 3, 2])
        assert engine.run(engine.ledger("unknown")) == []

    def test_of_many_who_decide_at_once_one_is_heard(self, store: EngineUnderTest) -> None:
        """S4-20: no leader, and no lock that could expire."""
        office = Office(store)
        schedule = office.add()
        together = Barrier(4)
        heard: list[bool] = []

        def decide() -> None:
            together.wait()
            heard.append(office.fire(schedule, 1_000))

        threads = [Thread(target=decide) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(heard) == [False, False, False, True]
        assert len(store.find()) == 1
