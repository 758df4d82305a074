"""What becomes of ticks that are due: catching up, overlap, pauses, clocks. Pure, so every case is a line."""

from random import Random
from typing import TypedDict, Unpack
from uuid import UUID

import pytest
from msgspec.structs import replace

from shigoto.model.schedule import CLOCK_JUMPED_BACK, Schedule, TickEntry, TickOutcome
from shigoto.model.time import Millis
from shigoto.options import CatchUp, Overlap
from shigoto.schedule.decide import MOST_COUNTED, ON_TIME, OVERLAP_LOOK, Decision, cut_off, decide, left_of
from shigoto.schedule.definition import Definition
from shigoto.schedule.fire import portion
from shigoto.schedule.recurrence import Every

SECOND: Millis = 1_000
HOUR: Millis = 3_600_000

Told = tuple[str, Millis, Millis, int]


class Bounds(TypedDict, total=False):
    most: int
    within: Millis
    until: Millis


def every(
    interval: Millis, catch_up: CatchUp = "latest", overlap: Overlap = "allow", **bounds: Unpack[Bounds]
) -> Definition:
    return Definition(recurrence=Every(interval), catch_up=catch_up, overlap=overlap, **bounds)


def schedule(
    decided_to: Millis, *, paused_at: Millis | None = None, waiting_for_overlap: bool = False
) -> Schedule:
    return Schedule(
        id=UUID(int=1),
        name="s",
        definition="",
        decided_to=decided_to,
        created_at=0,
        paused_at=paused_at,
        waiting_for_overlap=waiting_for_overlap,
    )


def told(decision: Decision) -> list[Told]:
    """The entries as (outcome, first, last, count)."""
    return [(each.outcome, each.at, each.until or each.at, each.count) for each in decision.entries]


def fired(decision: Decision) -> list[Millis]:
    return [entry.at for entry in decision.fires]


class TestOnTime:
    """One tick, at its time."""

    @pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
    def test_it_fires_and_the_next_look_is_at_the_next_tick(self, catch_up: CatchUp) -> None:
        decision = decide(schedule(10_000), every(SECOND, catch_up), 11_007, busy=False)

        assert told(decision) == [("fired", 11_000, 11_000, 1)]
        assert (decision.decided_to, decision.look_at) == (11_007, 12_000)

    @pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
    def test_a_minute_late_is_still_on_time(self, catch_up: CatchUp) -> None:
        now = HOUR + ON_TIME

        decision = decide(schedule(0), every(HOUR, catch_up), now, busy=False)

        assert told(decision) == [("fired", HOUR, HOUR, 1)]

    def test_nothing_is_due_before_its_time(self) -> None:
        decision = decide(schedule(10_000), every(SECOND), 10_999, busy=False)

        assert told(decision) == []
        assert (decision.decided_to, decision.look_at) == (10_000, 11_000)

    def test_nothing_is_due_after_the_end(self) -> None:
        decision = decide(schedule(10_000), every(SECOND, until=11_000), 15_000, busy=False)

        assert fired(decision) == [11_000]
        assert (decision.decided_to, decision.look_at) == (15_000, None), (
            "if the clock is wrong, the store knows"
        )


class TestCatchUp:
    """E43, S4-22: ten ticks while nobody was there."""

    def test_none_fires_what_is_on_time_and_nothing_else(self) -> None:
        decision = decide(schedule(10_000), every(SECOND, "none"), 20_300, busy=False)

        assert told(decision) == [("missed", 11_000, 19_000, 9), ("fired", 20_000, 20_000, 1)]

    def test_none_fires_nothing_if_the_newest_is_late(self) -> None:
        decision = decide(schedule(0), every(HOUR, "none"), 3 * HOUR + ON_TIME + 1, busy=False)

        assert told(decision) == [("missed", HOUR, 3 * HOUR, 3)]

    def test_latest_fires_the_newest_however_late(self) -> None:
        decision = decide(schedule(0), every(HOUR, "latest"), 3 * HOUR + ON_TIME + 1, busy=False)

        assert told(decision) == [("missed", HOUR, 2 * HOUR, 2), ("caught_up", 3 * HOUR, 3 * HOUR, 1)]

    def test_latest_is_bounded_by_age(self) -> None:
        definition = every(HOUR, "latest", within=HOUR // 2)

        decision = decide(schedule(0), definition, 4 * HOUR - 1, busy=False)

        assert told(decision) == [("missed", HOUR, 3 * HOUR, 3)]

    def test_all_fires_every_one_of_them(self) -> None:
        decision = decide(schedule(10_000), every(SECOND, "all"), 20_300, busy=False)

        assert fired(decision) == list(range(11_000, 20_001, 1_000))
        assert {entry.outcome for entry in decision.entries[:-1]} == {TickOutcome.CAUGHT_UP}
        assert decision.entries[-1].outcome is TickOutcome.FIRED

    def test_all_is_bounded_by_count(self) -> None:
        decision = decide(schedule(10_000), every(SECOND, "all", most=3), 20_300, busy=False)

        assert told(decision)[0] == ("missed", 11_000, 17_000, 7)
        assert fired(decision) == [18_000, 19_000, 20_000]

    def test_all_is_bounded_by_age(self) -> None:
        decision = decide(schedule(10_000), every(SECOND, "all", within=2_500), 20_300, busy=False)

        assert told(decision)[0] == ("missed", 11_000, 17_000, 7)
        assert fired(decision) == [18_000, 19_000, 20_000]

    def test_a_year_of_seconds_costs_no_more_than_what_is_counted(self) -> None:
        year = 365 * 24 * HOUR

        decision = decide(schedule(0), every(SECOND, "all", most=5), year, busy=False)

        missed, *rest = told(decision)
        assert missed == ("missed", SECOND, year - 4 * SECOND - 1, MOST_COUNTED)
        assert len(rest) == 5

    def test_every_tick_has_one_entry(self) -> None:
        for catch_up in ("none", "latest", "all"):
            for overlap in ("allow", "skip", "cancel"):
                for busy in (False, True):
                    decision = decide(schedule(10_000), every(SECOND, catch_up, overlap), 20_300, busy=busy)

                    assert sum(entry.count for entry in decision.entries) == 10, (catch_up, overlap, busy)

    def test_whatever_is_due_every_tick_has_one_entry_and_none_has_two(self) -> None:
        """S4-22: for any times and policies; entries are in order, and tell of as many ticks as lie in them."""
        random = Random(43)
        for _ in range(2_000):
            definition = Definition(
                recurrence=Every(random.choice([1_000, 5_000, 60_000, HOUR]), random.choice([0, 7_000])),
                catch_up=random.choice(["none", "latest", "all"]),
                overlap=random.choice(["allow", "skip", "queue", "cancel"]),
                most=random.choice([1, 3, 100]),
                within=random.choice([None, 0, 1_500, 90_000, 10_000_000]),
                until=random.choice([None, random.randrange(20_000_000)]),
            )
            after = random.randrange(10_000_000)
            now = after + random.choice([0, 999, 1_000, 59_999, 61_000, 600_000, 2 * HOUR])
            paused_at = random.choice([None, after - 500, random.randrange(after, now + 2_000)])
            waiting_for_overlap, busy = (random.random() < chance for chance in (0.2, 0.5))

            seen = schedule(after, paused_at=paused_at, waiting_for_overlap=waiting_for_overlap)
            if paused_at is not None and paused_at < now and random.random() < 0.5:
                count = 2 if now - paused_at < 10 else random.choice([2, 4])
                times = sorted(random.choices(range(paused_at, now + 1), k=count))
                seen = replace(
                    seen,
                    paused_at=random.choice([None, now]),
                    pauses=tuple(zip(times[::2], times[1::2], strict=True)),
                )

            decision = decide(seen, definition, now, busy=busy)

            due = definition.between(after, decision.decided_to)
            spans = [range(each.at, (each.until or each.at) + 1) for each in decision.entries]
            assert [sum(at in span for span in spans) for at in due] == [1] * len(due), definition
            assert [sum(at in span for at in due) for span in spans] == [
                each.count for each in decision.entries
            ]
            assert decision.look_at is None or decision.look_at > (after if seen.pauses else now)
            assert len(decision.pauses) == len(seen.pauses) - (
                bool(seen.pauses) and not decision.waiting_for_overlap
            )


class TestOverlap:
    """F23: the job of the tick before has not ended."""

    def test_allow_fires_all_the_same(self) -> None:
        assert fired(decide(schedule(10_000), every(SECOND), 11_000, busy=True)) == [11_000]

    def test_skip_writes_it_down(self) -> None:
        decision = decide(schedule(10_000), every(SECOND, overlap="skip"), 11_000, busy=True)

        assert told(decision) == [("skipped", 11_000, 11_000, 1)]
        assert decision.look_at == 12_000

    def test_skip_fires_one_of_those_that_are_caught_up(self) -> None:
        decision = decide(schedule(10_000), every(SECOND, "all", "skip"), 20_300, busy=False)

        assert told(decision) == [("skipped", 11_000, 19_000, 9), ("fired", 20_000, 20_000, 1)]

    def test_queue_waits_and_looks_again(self) -> None:
        decision = decide(schedule(10_000), every(HOUR, overlap="queue"), HOUR, busy=True)

        assert (told(decision), decision.waiting_for_overlap) == ([], True)
        assert (decision.decided_to, decision.look_at) == (10_000, HOUR + OVERLAP_LOOK)

    def test_queue_fires_what_has_waited_and_skips_what_else_came(self) -> None:
        decision = decide(
            schedule(10_000, waiting_for_overlap=True), every(SECOND, overlap="queue"), 13_500, busy=False
        )

        assert told(decision) == [("skipped", 11_000, 12_000, 2), ("fired", 13_000, 13_000, 1)]
        assert not decision.waiting_for_overlap

    def test_queue_and_all_go_one_after_the_other(self) -> None:
        definition = every(SECOND, "all", "queue")

        first = decide(schedule(10_000), definition, 13_500, busy=False)
        waiting = decide(schedule(first.decided_to, waiting_for_overlap=True), definition, 13_900, busy=True)
        second = decide(
            schedule(waiting.decided_to, waiting_for_overlap=True), definition, 13_950, busy=False
        )

        assert (fired(first), first.waiting_for_overlap, first.decided_to) == ([11_000], True, 11_999)
        assert (fired(waiting), waiting.decided_to) == ([], 11_999)
        assert (fired(second), second.waiting_for_overlap) == ([12_000], True)

    @pytest.mark.parametrize(
        ("catch_up", "bounds"),
        [("none", Bounds()), ("latest", Bounds(within=SECOND)), ("all", Bounds(within=1))],
    )
    def test_what_waits_may_get_late(self, catch_up: CatchUp, bounds: Bounds) -> None:
        definition = every(HOUR, catch_up, "queue", **bounds)

        waiting = decide(schedule(0), definition, HOUR, busy=True)
        free = decide(
            schedule(waiting.decided_to, waiting_for_overlap=waiting.waiting_for_overlap),
            definition,
            HOUR + 5 * ON_TIME,
            busy=False,
        )

        assert (told(waiting), waiting.waiting_for_overlap) == ([], True)
        assert told(free) == [("caught_up", HOUR, HOUR, 1)]

    def test_what_is_too_late_to_be_caught_up_does_not_wait(self) -> None:
        late = decide(schedule(0), every(HOUR, "none", "queue"), 4 * HOUR - 1, busy=True)
        some = decide(schedule(0), every(HOUR, "all", "queue", within=HOUR), 4 * HOUR, busy=True)

        assert (told(late), late.waiting_for_overlap) == ([("missed", HOUR, 3 * HOUR, 3)], False)
        assert (told(some), some.waiting_for_overlap) == ([("missed", HOUR, 2 * HOUR, 2)], True)
        assert some.decided_to < 3 * HOUR

    def test_cancel_makes_room(self) -> None:
        decision = decide(schedule(10_000), every(SECOND, "all", "cancel"), 13_000, busy=True)

        assert told(decision) == [("skipped", 11_000, 12_000, 2), ("fired", 13_000, 13_000, 1)]
        assert decision.cancels

    def test_nothing_is_cancelled_for_nothing(self) -> None:
        late = decide(schedule(0), every(HOUR, "none", "cancel"), 2 * HOUR - 1, busy=True)
        free = decide(schedule(10_000), every(SECOND, overlap="cancel"), 11_000, busy=False)

        assert not late.cancels
        assert not free.cancels


class TestPausedAndClockJumpedBack:
    """What is not fired by somebody's will, and clocks that were wrong."""

    def test_a_paused_one_writes_down_what_it_suppresses(self) -> None:
        decision = decide(schedule(10_000, paused_at=10_000), every(SECOND, "all", most=2), 15_200, busy=True)

        assert told(decision) == [("suppressed", 11_000, 15_000, 5)]
        assert (decision.decided_to, decision.look_at) == (15_200, 16_000)

    def test_what_was_due_before_the_pause_is_decided_as_usual(self) -> None:
        late = decide(schedule(10_000, paused_at=13_500), every(SECOND), 16_200, busy=False)
        all_of_them = decide(schedule(10_000, paused_at=12_000), every(SECOND, "all"), 13_000, busy=False)
        none = decide(schedule(0, paused_at=HOUR), every(HOUR, "none"), 3 * HOUR, busy=False)

        assert told(late) == [
            ("missed", 11_000, 12_000, 2), ("fired", 13_000, 13_000, 1), ("suppressed", 14_000, 16_000, 3)
        ]  # fmt: skip
        assert (late.decided_to, late.look_at) == (16_200, 17_000)
        assert fired(all_of_them) == [11_000, 12_000]
        assert told(none) == [("missed", HOUR, HOUR, 1), ("suppressed", 2 * HOUR, 3 * HOUR, 2)]

    def test_what_waits_since_before_the_pause_goes_on_waiting(self) -> None:
        definition = every(SECOND, overlap="queue")

        waiting = decide(
            schedule(10_000, paused_at=11_500, waiting_for_overlap=True), definition, 13_000, busy=True
        )
        free = decide(
            schedule(10_000, paused_at=11_500, waiting_for_overlap=True), definition, 13_000, busy=False
        )

        assert (told(waiting), waiting.waiting_for_overlap, waiting.decided_to) == ([], True, 10_000)
        assert told(free) == [("fired", 11_000, 11_000, 1), ("suppressed", 12_000, 13_000, 2)]
        assert not free.waiting_for_overlap

    def test_a_pause_stays_one_when_the_clock_goes_back(self) -> None:
        decision = decide(schedule(10_000, paused_at=500_000), every(SECOND, "all"), 13_000, busy=False)

        assert told(decision) == [("suppressed", 11_000, 13_000, 3)]

    def test_an_ended_pause_is_over_when_the_clock_goes_back(self) -> None:
        """E28: whatever was resumed fires."""
        for ahead in (CLOCK_JUMPED_BACK // 2, 10 * HOUR):
            resumed = replace(schedule(10_000), pauses=((10_500 + ahead, 20_000 + ahead),))
            decision = decide(resumed, every(SECOND, "all"), 13_000, busy=False)

            assert fired(decision) == [11_000, 12_000, 13_000]
            assert decision.pauses == ()

    def test_what_fires_after_a_pause_makes_room_as_before(self) -> None:
        seen = replace(schedule(10_000), pauses=((11_500, 13_500),))

        decision = decide(seen, every(SECOND, overlap="cancel"), 16_200, busy=True)

        assert told(decision) == [("fired", 11_000, 11_000, 1), ("suppressed", 12_000, 13_000, 2)]
        assert (decision.cancels, decision.decided_to, decision.look_at) == (True, 13_500, 14_000)

    def test_the_rest_of_a_portion_is_due_by_any_clock(self) -> None:
        """E28: also if the clock goes back by hours before somebody looks again."""
        decision = portion(schedule(0), decide(schedule(0), every(HOUR, "all"), 10 * HOUR, busy=False), 3)

        assert fired(decision) == [HOUR, 2 * HOUR, 3 * HOUR]
        assert (decision.decided_to, decision.look_at) == (3 * HOUR, 3 * HOUR)

    def test_a_clock_that_was_far_ahead_does_not_silence_it(self) -> None:
        """F25, E28."""
        decision = decide(schedule(10_000 + CLOCK_JUMPED_BACK + 1), every(SECOND), 10_000, busy=False)

        assert told(decision) == []
        assert (decision.decided_to, decision.look_at) == (10_000, 11_000)

    def test_a_clock_that_was_a_little_ahead_is_waited_for(self) -> None:
        decision = decide(schedule(12_500), every(SECOND), 10_000, busy=False)

        assert told(decision) == []
        assert decision.decided_to == 12_500


class TestCutOff:
    """A stretch of ticks, and a clock that goes back into it or before it."""

    SUPPRESSED = TickEntry(
        at=11_000, until=19_000, count=9, outcome=TickOutcome.SUPPRESSED, decided_at=20_000
    )

    @pytest.mark.parametrize(
        ("to", "left"),
        [
            (15_500, (11_000, 15_500, 5)),
            (11_000, (11_000, None, 1)),
            (18_999, (11_000, 18_999, 8)),
        ],
    )
    def test_what_is_later_is_decided_again(
        self, to: Millis, left: tuple[Millis, Millis | None, int]
    ) -> None:
        stretch = cut_off(every(SECOND), self.SUPPRESSED, to)

        assert stretch is not None
        assert (stretch.at, stretch.until, stretch.count) == left

    def test_what_has_fired_in_it_does_not_count(self) -> None:
        stretch = replace(self.SUPPRESSED, at=11_001, count=6)
        fired = (11_000, 13_000, 17_000)

        left = cut_off(every(SECOND), stretch, 15_500, fired)

        assert left == replace(stretch, until=15_500, count=3)
        assert cut_off(every(SECOND), stretch, 11_500, fired) is None

    def test_what_was_due_at_other_times_stays(self) -> None:
        for interval in (2_000, 500):
            assert cut_off(every(interval), self.SUPPRESSED, 15_500) == self.SUPPRESSED

    def test_what_was_not_counted_to_its_end_is_cut_too(self) -> None:
        long = replace(self.SUPPRESSED, until=50_000_000, count=MOST_COUNTED)

        assert cut_off(every(SECOND), long, 40_000_000) == replace(long, until=40_000_000)


class TestLeftOf:
    """A stretch of missed ticks in the history, some of which are filled in later."""

    MISSED = TickEntry(at=11_000, until=19_000, count=9, outcome=TickOutcome.MISSED, decided_at=20_000)

    def left(
        self, *fired: Millis, stretch: TickEntry = MISSED, interval: Millis = SECOND
    ) -> list[tuple[Millis, Millis, int]]:
        parts = left_of(every(interval), stretch, fired)
        return [(each.at, each.until or each.at, each.count) for each in parts or ()]

    def test_the_others_stay_written_down(self) -> None:
        assert self.left(11_000, 12_000) == [(13_000, 19_000, 7)]
        assert self.left(15_000) == [(11_000, 14_000, 4), (16_000, 19_000, 4)]
        assert self.left(18_000, 19_000) == [(11_000, 17_000, 7)]
        assert self.left(12_000) == [(11_000, 11_000, 1), (13_000, 19_000, 7)]

    def test_those_that_had_fired_before_lie_in_it_and_do_not_count(self) -> None:
        eight = replace(self.MISSED, count=8)

        def left(
            *fired: Millis, at: Millis = 11_000, before: Millis = 15_000
        ) -> list[tuple[Millis, Millis, int]]:
            parts = left_of(every(SECOND), replace(eight, at=at), fired, {before})
            return [(each.at, each.until or each.at, each.count) for each in parts or ()]

        assert left(17_000) == [(11_000, 14_000, 4), (16_000, 16_000, 1), (18_000, 19_000, 2)]
        assert left(13_000, at=11_001, before=11_000) == [(11_001, 12_000, 1), (14_000, 19_000, 6)]
        assert left(12_000, at=11_001, before=11_000) == [(11_001, 19_000, 7)]

    def test_nothing_is_left_if_all_of_them_fire(self) -> None:
        assert self.left(*range(11_000, 20_000, SECOND)) == []

    def test_of_what_was_due_at_other_times_nothing_is_known(self) -> None:
        assert left_of(every(2_000), self.MISSED, [12_000]) is None

    def test_what_was_not_counted_to_its_end_still_ends_there(self) -> None:
        end = 20_000 * SECOND
        long = TickEntry(at=SECOND, until=end, count=MOST_COUNTED, outcome=TickOutcome.MISSED, decided_at=end)

        assert self.left(SECOND, stretch=long) == [(2 * SECOND, end, MOST_COUNTED)]

    @pytest.mark.parametrize("ticks", [MOST_COUNTED + 1, 3 * MOST_COUNTED])
    def test_a_long_stretch_is_not_lost(self, ticks: int) -> None:
        end = ticks * SECOND
        [stretch] = decide(schedule(0, paused_at=0), every(SECOND), end, busy=False).entries

        assert (stretch.at, stretch.until, stretch.count) == (SECOND, end, MOST_COUNTED + 1)
        assert self.left(SECOND, stretch=stretch) == [(2 * SECOND, end, MOST_COUNTED)]
        assert self.left(5 * SECOND, stretch=stretch) == [
            (SECOND, 4 * SECOND, 4),
            (6 * SECOND, end, min(MOST_COUNTED, ticks - 5)),
        ]
        parts = left_of(every(SECOND), stretch, [5 * SECOND])
        assert parts
        assert len(self.left(7 * SECOND, stretch=parts[-1])) == 2, "nor is it the second time"
