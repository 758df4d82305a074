"""Promises about schedules: kept as they are told, changed by who has seen the newest, found when they are due."""

from msgspec.structs import replace

from conformance.engine_under_test import EngineUnderTest
from conformance.schedule_fixture import ScheduleFixture
from shigoto.model.schedule import CLOCK_JUMPED_BACK, SOON, Change, Schedule, TickEntry, TickOutcome
from shigoto.model.worker import Ending


class TestSchedules:
    """The rows: kept as they are told, changed by whoever has seen the newest."""

    def test_a_schedule_is_kept_as_it_was_told(self, store: EngineUnderTest) -> None:
        """S4-3, C23: the store is the truth."""
        fixture = ScheduleFixture(store)
        stretch = TickEntry(at=1, until=4, count=3, outcome=TickOutcome.SKIPPED, decided_at=5)
        schedule = Schedule(
            id=store.new_id(), name="nightly", definition='{"é": "\\u4ed5\\u4e8b"}', origin="shop.tasks:nightly",
            paused_at=-7, failed=True, waiting_for_overlap=True, look_at=2**53, decided_to=-5, job=store.new_id(),
            errors=3, error="it broke", counts={"fired": 7}, created_at=11, declared_at=12, stretch=stretch,
            pauses=((-9, -8), (-8, 2**53)),
        )  # fmt: skip

        assert fixture.tick(Change(schedule=schedule, seen=0)) == [True]

        assert fixture.get() == replace(schedule, revision=1)
        changed = replace(schedule, paused_at=None, pauses=(), stretch=replace(stretch, count=4))
        assert fixture.tick(Change(schedule=changed, seen=1)) == [True]
        assert fixture.get() == replace(changed, revision=2)

    def test_what_nobody_ever_looks_at_again_has_no_time(self, store: EngineUnderTest) -> None:
        fixture = ScheduleFixture(store)
        fixture.add(look_at=None)

        assert fixture.get().look_at is None
        assert (fixture.names(), fixture.due().next_in) == ([], None)

    def test_a_second_of_the_same_name_is_refused(self, store: EngineUnderTest) -> None:
        fixture = ScheduleFixture(store)
        first = fixture.add(definition='{"v":1}')

        again = replace(first, id=store.new_id(), definition='{"v":2}')

        assert fixture.tick(Change(schedule=again, seen=0)) == [False]
        assert fixture.get() == first

    def test_a_change_by_somebody_who_has_not_seen_the_last_is_refused(self, store: EngineUnderTest) -> None:
        """S4-8, S4-20."""
        fixture = ScheduleFixture(store)
        seen = fixture.add()
        assert fixture.tick(Change(schedule=replace(seen, paused_at=5), seen=seen.revision)) == [True]

        late = Change(schedule=replace(seen, definition='{"v":2}'), seen=seen.revision)

        assert fixture.tick(late) == [False]
        assert (fixture.get().paused_at, fixture.get().definition, fixture.get().revision) == (5, "{}", 2)

    def test_one_that_is_not_known_cannot_be_changed(self, store: EngineUnderTest) -> None:
        fixture = ScheduleFixture(store)
        seen = fixture.add()
        assert fixture.engine.run(fixture.engine.remove_schedules(["nightly"])) == [True]

        assert fixture.tick(Change(schedule=seen, seen=seen.revision)) == [False]
        assert fixture.engine.run(fixture.engine.schedules()) == []

    def test_one_that_was_removed_and_added_again_is_another(self, store: EngineUnderTest) -> None:
        """S4-5, S4-8: it begins with the same revisions, and who has seen the first knows nothing of the second."""
        fixture = ScheduleFixture(store)
        seen = fixture.add(definition='{"v":1}')
        fixture.engine.run(fixture.engine.remove_schedules(["nightly"]))
        second = fixture.add(definition='{"v":2}')

        assert second.revision == seen.revision
        assert not fixture.fire(seen, 1_000)
        assert (fixture.get(), fixture.history(), store.find()) == (second, [], [])

    def test_all_are_told_by_name(self, store: EngineUnderTest) -> None:
        fixture = ScheduleFixture(store)
        for name in ("b", "c", "a"):
            fixture.add(name)

        names = [each.name for each in fixture.engine.run(fixture.engine.schedules())]
        some = [each.name for each in fixture.engine.run(fixture.engine.schedules(["c", "x", "a"]))]

        assert (names, some) == (["a", "b", "c"], ["a", "c"])
        assert fixture.engine.run(fixture.engine.schedules([])) == []

    def test_a_removed_one_takes_its_history_with_it_and_leaves_its_jobs(
        self, store: EngineUnderTest
    ) -> None:
        """S4-5."""
        fixture = ScheduleFixture(store)
        schedule = fixture.add()
        fixture.fire(schedule, 1_000)

        removed = fixture.engine.run(fixture.engine.remove_schedules(["nightly", "unknown"]))
        fixture.add()

        assert removed == [True, False]
        assert fixture.history() == []
        assert len(store.find()) == 1

    def test_one_is_removed_by_who_has_seen_its_last_change(self, store: EngineUnderTest) -> None:
        """S4-12: with its history, in one step with the change before it; its jobs stay."""
        fixture = ScheduleFixture(store)
        fixture.fire(fixture.add(), 1_000)
        seen = fixture.get()

        assert fixture.tick(
            Change(schedule=replace(seen, failed=True), seen=seen.revision, removes=True)
        ) == [True]

        assert fixture.engine.run(fixture.engine.schedules()) == []
        again = replace(seen, revision=0)
        assert fixture.tick(Change(schedule=again, seen=0)) == [True]
        assert fixture.history() == []
        assert len(store.find()) == 1

    def test_one_that_was_changed_meanwhile_is_not_removed(self, store: EngineUnderTest) -> None:
        """S4-8, S4-12: somebody has mended it, or it is another by now."""
        fixture = ScheduleFixture(store)
        seen = fixture.add()
        assert fixture.tick(Change(schedule=replace(seen, errors=0), seen=seen.revision)) == [True]

        assert fixture.tick(Change(schedule=seen, seen=seen.revision, removes=True)) == [False]
        assert fixture.get().revision == 2

    def test_whoever_declares_some_changes_nothing_else(self, store: EngineUnderTest) -> None:
        fixture = ScheduleFixture(store)
        before = fixture.add(origin="shop:nightly")
        fixture.add("hourly")
        store.clock.advance(5_000)

        known = fixture.engine.run(fixture.engine.declare(["nightly", "unknown"]))

        assert known == 1
        assert fixture.engine.run(fixture.engine.declare([])) == 0
        assert fixture.get() == replace(before, declared_at=store.clock.now)
        assert fixture.get("hourly").declared_at == 0
        assert fixture.tick(Change(schedule=before, seen=before.revision)) == [True]
        assert fixture.get().declared_at == store.clock.now


class TestDue:
    """Who has to be looked at, and when."""

    def test_the_store_tells_its_time(self, store: EngineUnderTest) -> None:
        before = store.engine.run(store.engine.time())
        store.clock.advance(1_500)

        assert (before, store.engine.run(store.engine.time())) == (store.clock.now - 1_500, store.clock.now)
        assert ScheduleFixture(store).due().now == store.clock.now

    def test_it_is_due_at_its_time_and_not_before(self, store: EngineUnderTest) -> None:
        """S4-9."""
        fixture = ScheduleFixture(store)
        fixture.add(look_at=store.clock.now + 1_000)

        early = fixture.due()
        store.clock.advance(999)
        almost = fixture.due()
        store.clock.advance(1)

        assert (early.schedules, early.next_in) == ([], 1_000)
        assert (almost.schedules, almost.next_in) == ([], 1)
        assert fixture.names() == ["nightly"]
        assert (fixture.due().now, fixture.due().next_in) == (store.clock.now, None)

    def test_the_longest_overdue_come_first_and_no_more_than_wanted(self, store: EngineUnderTest) -> None:
        fixture = ScheduleFixture(store)
        for name, since in (("a", 10), ("b", 30), ("c", 20), ("d", -500)):
            fixture.add(name, look_at=store.clock.now - since)

        assert fixture.names() == ["b", "c", "a"]
        assert fixture.due().next_in == 500
        assert fixture.names(limit=2) == ["b", "c"]
        assert fixture.due(limit=2).next_in == 0
        assert (fixture.due(limit=0).now, fixture.due(limit=0).next_in) == (store.clock.now, 0)

    def test_one_that_is_declared_in_code_is_left_to_those_who_have_that_code(
        self, store: EngineUnderTest
    ) -> None:
        """A24."""
        fixture = ScheduleFixture(store)
        fixture.add("ours", origin="shop:ours")
        fixture.add("theirs", origin="bank:theirs")
        fixture.add("anyone")

        assert fixture.names("ours", "new") == ["anyone", "ours"]
        assert fixture.names() == ["anyone"]
        assert fixture.due().next_in is None

    def test_a_busy_one_has_a_job_that_has_not_ended(self, store: EngineUnderTest) -> None:
        """F23: pending, running, or back for another try; not once it has ended, or is gone."""
        fixture = ScheduleFixture(store)
        fixture.fire(fixture.add(), 1_000)
        worker = store.announce()

        waiting = fixture.due().schedules[0].busy
        [lease] = store.claim(worker)
        running = fixture.due().schedules[0].busy
        store.settle(worker, lease, Ending.ERRORED, delay=60_000)
        retrying = fixture.due().schedules[0].busy
        store.clock.advance(60_000)
        store.promote()
        [lease] = store.claim(worker)
        store.settle(worker, lease, Ending.COMPLETED)

        assert (waiting, running, retrying) == (True, True, True)
        assert not fixture.due().schedules[0].busy

    def test_one_without_a_job_is_not_busy(self, store: EngineUnderTest) -> None:
        fixture = ScheduleFixture(store)
        fixture.add()

        assert not fixture.due().schedules[0].busy

    def test_one_that_is_decided_far_ahead_of_the_clock_is_due(self, store: EngineUnderTest) -> None:
        """E28: the clock was wrong, and is right again; nobody shall wait until it gets there."""
        fixture = ScheduleFixture(store)
        far = store.clock.now + CLOCK_JUMPED_BACK + 5_000
        fixture.add(look_at=far + 1_000, decided_to=far)
        fixture.add("sound", look_at=far + 1_000, decided_to=store.clock.now + CLOCK_JUMPED_BACK)

        assert fixture.names() == ["nightly"]
        assert (fixture.due(limit=0).next_in, fixture.due().next_in) == (0, far + 1_000 - store.clock.now)

    def test_one_that_waits_by_a_clock_that_was_ahead_is_due(self, store: EngineUnderTest) -> None:
        """E28: for the job before, or for another try; it has not been decided any further."""
        fixture = ScheduleFixture(store)
        far = store.clock.now + CLOCK_JUMPED_BACK + SOON + 1
        fixture.add("held", look_at=far, waiting_for_overlap=True)
        fixture.add("retried", look_at=far, errors=2)
        fixture.add("monthly", look_at=far)
        fixture.add("failed", look_at=None, decided_to=far, errors=6, failed=True)
        fixture.add("soon", look_at=far - 1, waiting_for_overlap=True, errors=1)

        assert fixture.names() == ["held", "retried"]

    def test_one_that_ended_by_a_clock_that_was_ahead_is_due(self, store: EngineUnderTest) -> None:
        """E28: its end has not come yet, also if no other schedule is left."""
        fixture = ScheduleFixture(store)
        fixture.add(look_at=None, decided_to=store.clock.now + CLOCK_JUMPED_BACK + 1)
        fixture.add("ended", look_at=None, decided_to=store.clock.now + CLOCK_JUMPED_BACK)

        assert fixture.names() == ["nightly"]
        assert fixture.due(limit=0).next_in == 0
