"""Promises about ticks: of all who decide at once one is heard, and a tick has one job, whatever happens."""

from threading import Barrier, Thread

from msgspec.structs import replace

from conformance.engine_under_test import EngineUnderTest
from conformance.schedule_fixture import ScheduleFixture
from shigoto.model.job import State
from shigoto.model.schedule import KEPT, Change, Firing, TickEntry, TickOutcome
from shigoto.model.worker import Ending


class TestTick:
    """A tick and its job are one, and there is one of each."""

    def test_a_tick_and_its_job_are_stored_together(self, store: EngineUnderTest) -> None:
        """S4-6, I8."""
        fixture = ScheduleFixture(store)
        schedule = fixture.add()

        assert fixture.fire(replace(schedule, look_at=9_000_000, decided_to=1_000), 1_000, payload='{"a":1}')

        [job] = store.find()
        [entry] = fixture.history()
        after = fixture.get()
        assert (job.id, job.payload, job.state) == (schedule.job_id(1_000), '{"a":1}', State.PENDING)
        assert (entry.at, entry.outcome, entry.job) == (1_000, TickOutcome.FIRED, job.id)
        assert (entry.decided_at, entry.until, entry.count) == (store.clock.now, None, 1)
        assert (after.job, after.decided_to, after.revision) == (job.id, 1_000, 2)

    def test_whoever_comes_second_stores_nothing(self, store: EngineUnderTest) -> None:
        """S4-8, S4-10, S4-21: the seed's lock could outlive its expiry, and then both would fire."""
        fixture = ScheduleFixture(store)
        schedule = fixture.add()

        heard = [fixture.fire(schedule, 1_000) for _ in range(2)]

        assert heard == [True, False]
        assert len(store.find()) == 1
        assert len(fixture.history()) == 1

    def test_a_tick_never_fires_twice_even_if_the_clock_goes_back(self, store: EngineUnderTest) -> None:
        """F25, S4-21."""
        fixture = ScheduleFixture(store)
        fixture.fire(fixture.add(), 1_000)
        [job] = store.find()
        worker = store.announce()
        [lease] = store.claim(worker)
        store.settle(worker, lease, Ending.COMPLETED)
        store.engine.run(store.engine.delete([job.number], [State.COMPLETED]))

        heard = fixture.fire(fixture.get(), 1_000, TickOutcome.CAUGHT_UP)

        assert heard
        assert store.find() == []
        assert [entry.outcome for entry in fixture.history()] == [TickOutcome.FIRED]

    def test_a_tick_that_has_fired_before_makes_no_room_and_does_not_count(
        self, store: EngineUnderTest
    ) -> None:
        """F23, F25: after the clock went back, the newest job would be cancelled, and none put in its place."""
        fixture = ScheduleFixture(store)
        for at in (1_000, 2_000, 3_000):
            fixture.fire(fixture.get() if at > 1_000 else fixture.add(), at)
        schedule = fixture.get()
        assert schedule.job is not None
        counted = replace(schedule, counts={TickOutcome.FIRED: 4, TickOutcome.MISSED: 2})
        again = fixture.firing(schedule, 2_000)
        passed = Firing(entry=TickEntry(at=500, outcome=TickOutcome.MISSED, decided_at=5_000, count=2))
        change = Change(
            schedule=counted, seen=schedule.revision, firings=(passed, again), cancel=(schedule.job,)
        )

        [done] = fixture.engine.run(fixture.engine.tick([change]))

        assert done is not None
        assert (done.firings, done.cancel) == ((passed,), ())
        assert {job.state for job in store.find()} == {State.PENDING}
        assert (fixture.get().counts, fixture.get().job) == ({"fired": 3, "missed": 2}, schedule.job)
        assert len(fixture.history()) == 4

    def test_a_new_tick_makes_room_whatever_has_fired_before(self, store: EngineUnderTest) -> None:
        """F23, F25."""
        fixture = ScheduleFixture(store)
        fixture.fire(fixture.add(), 1_000)
        schedule = fixture.get()
        assert schedule.job is not None
        firings = tuple(fixture.firing(schedule, at) for at in (1_000, 2_000))

        change = Change(schedule=schedule, seen=schedule.revision, firings=firings, cancel=(schedule.job,))
        [done] = fixture.engine.run(fixture.engine.tick([change]))

        assert done is not None
        assert (done.firings, done.cancel) == (firings[1:], (schedule.job,))
        assert {job.id: job.state for job in store.find()} == {
            schedule.job: State.CANCELLED,
            schedule.job_id(2_000): State.PENDING,
        }

    def test_counts_are_told_by_plain_words(self, store: EngineUnderTest) -> None:
        """S4-19: on every engine."""
        fixture = ScheduleFixture(store)
        fixture.add(counts={TickOutcome.FIRED: 1})

        assert {type(word) for word in fixture.get().counts} == {str}

    def test_what_did_not_fire_can_still_do_so(self, store: EngineUnderTest) -> None:
        """A backfill of what was missed."""
        fixture = ScheduleFixture(store)
        fixture.fire(fixture.add(), 1_000, TickOutcome.MISSED)
        before = len(store.find())

        fixture.fire(fixture.get(), 1_000, TickOutcome.BACKFILLED)

        [entry] = fixture.history()
        assert (before, len(store.find())) == (0, 1)
        assert (entry.outcome, entry.job) == (TickOutcome.BACKFILLED, fixture.get().job_id(1_000))

    def test_a_tick_that_was_filled_in_is_not_counted_among_those_that_pass(
        self, store: EngineUnderTest
    ) -> None:
        """S4-22: somebody filled in one of many before they were decided; a run now beside them is no tick."""
        fixture = ScheduleFixture(store)
        fixture.fire(fixture.add(), 5_000, TickOutcome.BACKFILLED)
        fixture.fire(fixture.get(), 6_001, TickOutcome.RUN_NOW)
        seen = fixture.get()
        missed = TickEntry(at=1_000, until=9_000, count=9, outcome=TickOutcome.MISSED, decided_at=11_000)
        counted = replace(seen, counts={"backfilled": 1, "run_now": 1, "missed": 9}, stretch=missed)

        [done] = fixture.engine.run(
            fixture.engine.tick(
                [Change(schedule=counted, seen=seen.revision, firings=(Firing(entry=missed),))]
            )
        )

        assert done is not None
        assert [firing.ticks for firing in done.firings] == [8]
        assert [(entry.at, entry.count) for entry in fixture.history()] == [
            (1_000, 8),
            (5_000, 1),
            (6_001, 1),
        ]
        assert fixture.get().counts == {"backfilled": 1, "run_now": 1, "missed": 8}
        assert fixture.get().stretch is None, "the next one begins anew"

    def test_where_a_clock_has_gone_back_later_ticks_are_forgotten_unless_they_fired(
        self, store: EngineUnderTest
    ) -> None:
        """E28, S4-22: they are decided again, and told and counted once."""
        fixture = ScheduleFixture(store)
        schedule = fixture.add()
        entries = [fixture.firing(schedule, at, TickOutcome.SUPPRESSED) for at in (1_000, 2_000, 4_000)]
        stretch = TickEntry(at=5_000, until=9_000, count=5, outcome=TickOutcome.SUPPRESSED, decided_at=11_000)
        skipped, fired = fixture.firing(schedule, 4_500, TickOutcome.SKIPPED), fixture.firing(schedule, 3_000)
        counted = replace(schedule, counts={"suppressed": 8, "skipped": 1, "fired": 1})
        firings = (*entries, skipped, fired, Firing(entry=stretch))
        fixture.tick(Change(schedule=counted, seen=schedule.revision, firings=firings))
        other = fixture.add("other")
        fixture.fire(other, 4_000, TickOutcome.SUPPRESSED)
        seen = fixture.get()

        late = Change(schedule=seen, seen=seen.revision - 1, back_to=0)
        back = Change(schedule=replace(seen, decided_to=2_500), seen=seen.revision, back_to=2_500)
        heard = fixture.tick(late)
        [done] = fixture.engine.run(fixture.engine.tick([back]))

        assert heard == [False]
        assert done is not None
        assert [entry.at for entry in fixture.history()] == [1_000, 2_000, 3_000]
        assert fixture.get().counts == done.schedule.counts == {"suppressed": 2, "fired": 1}
        assert len(fixture.history("other")) == 1

    def test_entries_that_others_stand_for_are_forgotten_unless_they_fired(
        self, store: EngineUnderTest
    ) -> None:
        """S4-22: a stretch of which every tick was filled in, and which begins beside all of them."""
        fixture = ScheduleFixture(store)
        schedule = fixture.add()
        missed = TickEntry(at=1_001, until=3_000, count=2, outcome=TickOutcome.MISSED, decided_at=4_000)
        counted = replace(schedule, counts={"fired": 1, "missed": 2})
        firings = (fixture.firing(schedule, 1_000), Firing(entry=missed))
        fixture.tick(Change(schedule=counted, seen=schedule.revision, firings=firings))
        fixture.fire(fixture.add("other"), 1_001, TickOutcome.MISSED)
        seen = fixture.get()
        filled = tuple(fixture.firing(seen, at, TickOutcome.BACKFILLED) for at in (2_000, 3_000))

        late = Change(schedule=seen, seen=seen.revision - 1, forgets=(1_001,))
        change = Change(schedule=seen, seen=seen.revision, firings=filled, forgets=(1_000, 1_001))

        assert fixture.tick(late, change) == [False, True]
        assert [(entry.at, entry.outcome) for entry in fixture.history()] == [
            (1_000, TickOutcome.FIRED),
            (2_000, TickOutcome.BACKFILLED),
            (3_000, TickOutcome.BACKFILLED),
        ]
        assert fixture.get().counts == counted.counts
        assert len(fixture.history("other")) == 1

    def test_many_ticks_of_many_schedules_go_in_at_once(self, store: EngineUnderTest) -> None:
        fixture = ScheduleFixture(store)
        schedules = [fixture.add(f"s{number}") for number in range(20)]
        stale = replace(schedules[7], revision=5)
        changes = [
            Change(
                schedule=schedule,
                seen=schedule.revision,
                firings=tuple(fixture.firing(schedule, at) for at in (1_000, 2_000, 3_000)),
            )
            for schedule in [*schedules[:7], stale, *schedules[8:]]
        ]

        heard = fixture.tick(*changes)

        assert heard == [True] * 7 + [False] + [True] * 12
        assert len(store.find()) == 19 * 3
        assert [len(fixture.history(f"s{number}")) for number in range(20)] == [3] * 7 + [0] + [3] * 12

    def test_of_several_changes_of_one_the_first_that_has_seen_the_newest_is_heard(
        self, store: EngineUnderTest
    ) -> None:
        """S4-8: whatever else comes with it, also one that has seen less."""
        fixture = ScheduleFixture(store)
        seen = fixture.add()
        fixture.fire(seen, 1_000)
        newest = fixture.get()
        stale = Change(schedule=seen, seen=seen.revision, firings=(fixture.firing(seen, 2_000),))
        good, late = (
            Change(schedule=newest, seen=newest.revision, firings=(fixture.firing(newest, at),))
            for at in (3_000, 4_000)
        )
        anew = Change(schedule=replace(seen, id=store.new_id()), seen=0)

        assert fixture.tick(stale, anew, good, stale, late) == [False, False, True, False, False]
        assert [entry.at for entry in fixture.history()] == [1_000, 3_000]
        assert len(store.find()) == 2
        assert fixture.get().revision == newest.revision + 1

    def test_a_stretch_of_ticks_is_one_entry(self, store: EngineUnderTest) -> None:
        """S4-22: missed while every scheduler was down, or suppressed, or skipped."""
        fixture = ScheduleFixture(store)
        schedule = fixture.add()
        entry = TickEntry(at=1_000, until=9_000, count=9, outcome=TickOutcome.MISSED, decided_at=11_000)

        fixture.tick(Change(schedule=schedule, seen=1, firings=(Firing(entry=entry),)))

        assert fixture.history() == [entry]

    def test_a_stretch_is_cut_where_some_of_it_fires_after_all(self, store: EngineUnderTest) -> None:
        """A backfill of two of nine: the history still tells of the others."""
        fixture = ScheduleFixture(store)
        missed = TickEntry(at=1_000, until=9_000, count=9, outcome=TickOutcome.MISSED, decided_at=11_000)
        fixture.tick(Change(schedule=fixture.add(), seen=1, firings=(Firing(entry=missed),)))
        schedule, left = fixture.get(), replace(missed, at=3_000, count=7)
        filled = [fixture.firing(schedule, at, TickOutcome.BACKFILLED) for at in (1_000, 2_000)]

        fixture.tick(Change(schedule=schedule, seen=schedule.revision, firings=(Firing(entry=left), *filled)))

        assert fixture.history() == [filled[0].entry, filled[1].entry, left]
        assert len(store.find()) == 2

    def test_the_job_before_makes_room(self, store: EngineUnderTest) -> None:
        """F23: overlap by cancelling the previous one."""
        fixture = ScheduleFixture(store)
        fixture.fire(fixture.add(), 1_000)
        first = fixture.get().job
        assert first is not None

        fixture.fire(fixture.get(), 2_000, cancel=(first,))

        assert {job.id: job.state for job in store.find()} == {
            first: State.CANCELLED,
            fixture.get().job_id(2_000): State.PENDING,
        }
        assert fixture.get().job == fixture.get().job_id(2_000)

    def test_the_job_before_makes_room_also_for_one_with_its_key(self, store: EngineUnderTest) -> None:
        """F23: else the new tick would be answered with the very job that is cancelled, and none would run."""
        fixture = ScheduleFixture(store)
        fixture.fire(fixture.add(), 1_000, key="one")
        first = fixture.get().job
        assert first is not None

        fixture.fire(fixture.get(), 2_000, cancel=(first,), key="one")

        second = fixture.get().job_id(2_000)
        assert {job.id: job.state for job in store.find()} == {first: State.CANCELLED, second: State.PENDING}
        assert (fixture.get().job, fixture.history()[-1].job) == (second, second)

    def test_what_somebody_asked_for_is_not_the_job_before(self, store: EngineUnderTest) -> None:
        """F23: else a run by hand would let the next tick overlap the last one, or be cancelled in its stead."""
        fixture = ScheduleFixture(store)
        fixture.fire(fixture.add(), 1_000)
        first = fixture.get().job
        for at, outcome in ((500, TickOutcome.BACKFILLED), (1_001, TickOutcome.RUN_NOW)):
            fixture.fire(fixture.get(), at, outcome)
        asked = [fixture.get().job_id(at) for at in (500, 1_001)]
        fixture.engine.run(fixture.engine.cancel(asked))

        assert len(fixture.history()) == 3
        assert (fixture.get().job, fixture.due().schedules[0].busy) == (first, True)
        fixture.fire(fixture.get(), 2_000, TickOutcome.CAUGHT_UP)
        assert fixture.get().job == fixture.get().job_id(2_000)

    def test_where_a_key_is_taken_the_job_that_has_it_stands(self, store: EngineUnderTest) -> None:
        fixture = ScheduleFixture(store)
        holder = store.enqueue(key="one")

        fixture.fire(fixture.add(), 1_000, key="one")

        [entry] = fixture.history()
        assert (entry.job, fixture.get().job) == (holder.id, holder.id)
        assert len(store.find()) == 1

    def test_a_job_for_later_waits(self, store: EngineUnderTest) -> None:
        """Jitter."""
        fixture = ScheduleFixture(store)
        fixture.fire(fixture.add(), 1_000, run_at=store.clock.now + 5_000)

        assert store.promote().next_in == 5_000
        assert store.claim(store.announce()) == []

    def test_only_the_newest_entries_are_kept(self, store: EngineUnderTest) -> None:
        fixture = ScheduleFixture(store)
        schedule = fixture.add()
        missed = tuple(fixture.firing(schedule, at, TickOutcome.MISSED) for at in range(1, KEPT + 6))
        fixture.tick(Change(schedule=schedule, seen=1, firings=missed))

        kept = [entry.at for entry in fixture.history()]

        assert (len(kept), kept[0], kept[-1]) == (KEPT, 6, KEPT + 5)

    def test_an_entry_that_reaches_into_the_newest_is_kept(self, store: EngineUnderTest) -> None:
        """S4-22: a stretch that began long ago, and has ticks that are newer than all the others."""
        fixture = ScheduleFixture(store)
        schedule = fixture.add()
        long = TickEntry(at=1, until=KEPT + 7, count=9, outcome=TickOutcome.SUPPRESSED, decided_at=1)
        over = TickEntry(at=2, until=5, count=2, outcome=TickOutcome.SUPPRESSED, decided_at=1)
        later = [fixture.firing(schedule, at, TickOutcome.MISSED) for at in range(3, KEPT + 8)]
        firings = (Firing(entry=long), Firing(entry=over), *later)
        fixture.tick(Change(schedule=schedule, seen=1, firings=firings))

        kept = [entry.at for entry in fixture.history()]

        assert (kept[:2], len(kept)) == ([1, 8], KEPT + 1)

    def test_the_history_is_cut_whichever_changes_have_entries(self, store: EngineUnderTest) -> None:
        """S4-22: with overlap="queue" every other change is a look that finds the job before at work."""
        fixture = ScheduleFixture(store)
        schedule, at = fixture.add(), 0

        def change(*outcomes: TickOutcome) -> None:
            nonlocal schedule, at
            firings = [fixture.firing(schedule, at + nth, outcome) for nth, outcome in enumerate(outcomes, 1)]
            assert fixture.tick(
                Change(schedule=schedule, seen=schedule.revision, firings=tuple(firings))
            ) == [True]
            schedule, at = replace(schedule, revision=schedule.revision + 1), at + len(outcomes)

        change(*[TickOutcome.MISSED] * (KEPT - 5))
        for _ in range(KEPT // 5 + 10):
            change(TickOutcome.SKIPPED)
            change()
        for _ in range(KEPT // 10 + 5):
            change(TickOutcome.MISSED, TickOutcome.SKIPPED)
        for _ in range(5):
            change(*[TickOutcome.SKIPPED] * 90)

        assert KEPT <= len(fixture.history(limit=3 * KEPT)) <= KEPT + KEPT // 5
        assert fixture.history()[-1].at == at

    def test_the_history_is_read_in_pages_newest_first(self, store: EngineUnderTest) -> None:
        fixture = ScheduleFixture(store)
        schedule = fixture.add()
        missed = tuple(fixture.firing(schedule, at, TickOutcome.SKIPPED) for at in range(1, 8))
        fixture.tick(Change(schedule=schedule, seen=1, firings=missed))
        engine = fixture.engine

        first = [entry.at for entry in engine.run(engine.history("nightly", limit=3))]
        second = [entry.at for entry in engine.run(engine.history("nightly", before=first[-1], limit=3))]

        assert (first, second) == ([7, 6, 5], [4, 3, 2])
        assert engine.run(engine.history("unknown")) == []

    def test_of_many_who_decide_at_once_one_is_heard(self, store: EngineUnderTest) -> None:
        """S4-20: no leader, and no lock that could expire."""
        fixture = ScheduleFixture(store)
        schedule = fixture.add()
        together = Barrier(4)
        heard: list[bool] = []

        def decide() -> None:
            together.wait()
            heard.append(fixture.fire(schedule, 1_000))

        threads = [Thread(target=decide) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(heard) == [False, False, False, True]
        assert len(store.find()) == 1
