"""Promises about schedules: kept as they are told, changed by who has seen the newest, found when they are due."""

from msgspec.structs import replace

from conformance.engine_under_test import EngineUnderTest
from conformance.schedule_fixture import Office
from shigoto.model.schedule import CLOCK_JUMPED_BACK, SOON, Change, Schedule, TickEntry, TickOutcome
from shigoto.model.worker import Ending


class TestSchedules:
    """The rows: kept as they are told, changed by whoever has seen the newest."""

    def test_a_schedule_is_kept_as_it_was_told(self, store: EngineUnderTest) -> None:
        """S4-3, C23: the store is the truth."""
        office = Office(store)
        stretch = TickEntry(at=1, until=4, count=3, outcome=TickOutcome.SKIPPED, decided_at=5)
        schedule = Schedule(
            id=store.new_id(), name="nightly", definition='{"é": "\\u4ed5\\u4e8b"}', origin="shop.tasks:nightly",
            paused_at=-7, failed=True, waiting_for_overlap=True, look_at=2**53, decided_to=-5, job=store.new_id(),
            errors=3, error="it broke", counts={"fired": 7}, created_at=11, declared_at=12, stretch=stretch,
            pauses=((-9, -8), (-8, 2**53)),
        )  # fmt: skip

        assert office.tick(Change(schedule=schedule, seen=0)) == [True]

        assert office.get() == replace(schedule, revision=1)
        changed = replace(schedule, paused_at=None, pauses=(), stretch=replace(stretch, count=4))
        assert office.tick(Change(schedule=changed, seen=1)) == [True]
        assert office.get() == replace(changed, revision=2)

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
        assert office.tick(Change(schedule=replace(seen, paused_at=5), seen=seen.revision)) == [True]

        late = Change(schedule=replace(seen, definition='{"v":2}'), seen=seen.revision)

        assert office.tick(late) == [False]
        assert (office.get().paused_at, office.get().definition, office.get().revision) == (5, "{}", 2)

    def test_one_that_is_not_known_cannot_be_changed(self, store: EngineUnderTest) -> None:
        office = Office(store)
        seen = office.add()
        assert office.engine.run(office.engine.remove_schedules(["nightly"])) == [True]

        assert office.tick(Change(schedule=seen, seen=seen.revision)) == [False]
        assert office.engine.run(office.engine.schedules()) == []

    def test_one_that_was_removed_and_added_again_is_another(self, store: EngineUnderTest) -> None:
        """S4-5, S4-8: it begins with the same revisions, and who has seen the first knows nothing of the second."""
        office = Office(store)
        seen = office.add(definition='{"v":1}')
        office.engine.run(office.engine.remove_schedules(["nightly"]))
        second = office.add(definition='{"v":2}')

        assert second.revision == seen.revision
        assert not office.fire(seen, 1_000)
        assert (office.get(), office.history(), store.find()) == (second, [], [])

    def test_all_are_told_by_name(self, store: EngineUnderTest) -> None:
        office = Office(store)
        for name in ("b", "c", "a"):
            office.add(name)

        names = [each.name for each in office.engine.run(office.engine.schedules())]
        some = [each.name for each in office.engine.run(office.engine.schedules(["c", "x", "a"]))]

        assert (names, some) == (["a", "b", "c"], ["a", "c"])
        assert office.engine.run(office.engine.schedules([])) == []

    def test_a_removed_one_takes_its_history_with_it_and_leaves_its_jobs(
        self, store: EngineUnderTest
    ) -> None:
        """S4-5."""
        office = Office(store)
        schedule = office.add()
        office.fire(schedule, 1_000)

        removed = office.engine.run(office.engine.remove_schedules(["nightly", "unknown"]))
        office.add()

        assert removed == [True, False]
        assert office.history() == []
        assert len(store.find()) == 1

    def test_one_is_removed_by_who_has_seen_its_last_change(self, store: EngineUnderTest) -> None:
        """S4-12: with its history, in one step with the change before it; its jobs stay."""
        office = Office(store)
        office.fire(office.add(), 1_000)
        seen = office.get()

        assert office.tick(Change(schedule=replace(seen, failed=True), seen=seen.revision, removes=True)) == [
            True
        ]

        assert office.engine.run(office.engine.schedules()) == []
        again = replace(seen, revision=0)
        assert office.tick(Change(schedule=again, seen=0)) == [True]
        assert office.history() == []
        assert len(store.find()) == 1

    def test_one_that_was_changed_meanwhile_is_not_removed(self, store: EngineUnderTest) -> None:
        """S4-8, S4-12: somebody has mended it, or it is another by now."""
        office = Office(store)
        seen = office.add()
        assert office.tick(Change(schedule=replace(seen, errors=0), seen=seen.revision)) == [True]

        assert office.tick(Change(schedule=seen, seen=seen.revision, removes=True)) == [False]
        assert office.get().revision == 2

    def test_whoever_declares_some_changes_nothing_else(self, store: EngineUnderTest) -> None:
        office = Office(store)
        before = office.add(origin="shop:nightly")
        office.add("hourly")
        store.clock.advance(5_000)

        known = office.engine.run(office.engine.declare(["nightly", "unknown"]))

        assert known == 1
        assert office.engine.run(office.engine.declare([])) == 0
        assert office.get() == replace(before, declared_at=store.clock.now)
        assert office.get("hourly").declared_at == 0
        assert office.tick(Change(schedule=before, seen=before.revision)) == [True]
        assert office.get().declared_at == store.clock.now


class TestDue:
    """Who has to be looked at, and when."""

    def test_the_store_tells_its_time(self, store: EngineUnderTest) -> None:
        before = store.engine.run(store.engine.time())
        store.clock.advance(1_500)

        assert (before, store.engine.run(store.engine.time())) == (store.clock.now - 1_500, store.clock.now)
        assert Office(store).due().now == store.clock.now

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
        far = store.clock.now + CLOCK_JUMPED_BACK + 5_000
        office.add(look_at=far + 1_000, decided_to=far)
        office.add("sound", look_at=far + 1_000, decided_to=store.clock.now + CLOCK_JUMPED_BACK)

        assert office.names() == ["nightly"]
        assert (office.due(limit=0).next_in, office.due().next_in) == (0, far + 1_000 - store.clock.now)

    def test_one_that_waits_by_a_clock_that_was_ahead_is_due(self, store: EngineUnderTest) -> None:
        """E28: for the job before, or for another try; it has not been decided any further."""
        office = Office(store)
        far = store.clock.now + CLOCK_JUMPED_BACK + SOON + 1
        office.add("held", look_at=far, waiting_for_overlap=True)
        office.add("retried", look_at=far, errors=2)
        office.add("monthly", look_at=far)
        office.add("failed", look_at=None, decided_to=far, errors=6, failed=True)
        office.add("soon", look_at=far - 1, waiting_for_overlap=True, errors=1)

        assert office.names() == ["held", "retried"]

    def test_one_that_ended_by_a_clock_that_was_ahead_is_due(self, store: EngineUnderTest) -> None:
        """E28: its end has not come yet, also if no other schedule is left."""
        office = Office(store)
        office.add(look_at=None, decided_to=store.clock.now + CLOCK_JUMPED_BACK + 1)
        office.add("ended", look_at=None, decided_to=store.clock.now + CLOCK_JUMPED_BACK)

        assert office.names() == ["nightly"]
        assert office.due(limit=0).next_in == 0
