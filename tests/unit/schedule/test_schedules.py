"""`app.schedules`: what can be done to schedules while the system runs. Each verb has an async twin."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from msgspec.structs import replace

from shigoto import (
    OptionInvalid,
    ScheduleInvalid,
    ScheduleNotFound,
    ScheduleTaken,
    Shigoto,
    StoreUnavailable,
    Tick,
    TickOutcome,
)
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op, Steps
from shigoto.model.ids import uuid7
from shigoto.model.schedule import Change, Firing, TickEntry
from shigoto.model.time import to_datetime, to_millis
from shigoto.schedule.decide import MOST_PAUSES
from shigoto.schedule.declare import declare_op
from shigoto.schedule.fire import due_op, looked_at
from shigoto.testing.store import START, VirtualClock

HOUR = 3_600_000
BERLIN = "Europe/Berlin"

Verb = Callable[..., Any]


class Desk:
    """An app on virtual time, with a task to schedule, and its verbs."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.engine = MemoryEngine(clock=self.clock)
        self.app = Shigoto(engine=self.engine)

        @self.app.task(queue="reports")
        def report(kind: str = "short") -> None: ...

        self.report = report

    @property
    def now(self) -> datetime:
        return to_datetime(self.clock.now)

    def add(self, name: str = "weekly", **words: Any) -> None:
        self.app.schedules.add(name, self.report.call(), **({"every": "1h"} | words))

    def missed(self, name: str, first: int, ticks: int) -> None:
        """A stretch of ticks that nobody was there for, an hour apart."""
        [schedule] = self.engine.run(self.engine.schedules([name]))
        last = first + (ticks - 1) * HOUR
        entry = TickEntry(at=first, outcome=TickOutcome.MISSED, decided_at=last, until=last, count=ticks)
        change = Change(schedule=schedule, seen=schedule.revision, firings=(Firing(entry=entry),))
        assert self.engine.run(self.engine.tick([change])) == [change]

    def set(self, name: str, **state: Any) -> None:
        """Bring a schedule into a state."""
        [schedule] = self.engine.run(self.engine.schedules([name]))
        change = Change(schedule=replace(schedule, **state), seen=schedule.revision)
        heard = self.engine.run(self.engine.tick([change]))
        assert all(heard)

    def looked(self, most: int = 1_000) -> list[tuple[str, int, int]]:
        """What became of ticks, once somebody has looked at all that is due, for so many jobs."""
        due = self.engine.run(due_op(self.engine, (), 100))
        self.engine.run(self.engine.tick([looked_at(each, {}, due.now, most=most) for each in due.schedules]))
        return self.history()

    def history(self, name: str = "weekly") -> list[tuple[str, int, int]]:
        """What became of ticks, the oldest first: the outcome, in which hour since the start, and how many."""
        told = self.app.schedules.history(name)[::-1]
        return [(each.outcome, (to_millis(each.at) - START) // HOUR, each.count) for each in told]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture(params=["sync", "async"])
def do(request: pytest.FixtureRequest, desk: Desk) -> Verb:
    """Calls a verb by its name, or its twin."""

    async def call(name: str, *words: Any, **options: Any) -> Any:
        if request.param == "sync":
            return getattr(desk.app.schedules, name)(*words, **options)
        return await getattr(desk.app.schedules, f"a{name}")(*words, **options)

    return call


async def test_a_schedule_is_added_with_its_next_tick(desk: Desk, do: Verb) -> None:
    """S4-3: validated, stored, its next run computed; from now on it can be named."""
    added = await do("add", "weekly", desk.report.call("long"), cron="0 7 * * MON", tz=BERLIN, jitter=90)

    assert added == await do("get", "weekly") == (await do("all"))[0]
    assert (added.name, added.when, added.tz, added.task) == ("weekly", "0 7 * * MON", BERLIN, "report")
    assert (added.status, added.origin, added.payload) == ("active", None, '{"kind":"long"}')
    assert (added.queue, added.jitter) == ("reports", timedelta(seconds=90))
    local = added.next_at.astimezone(ZoneInfo(BERLIN))
    assert (local.isoweekday(), local.hour, added.next_at > desk.now) == (1, 7, True)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ({}, "missed"),
        ({"paused_at": START}, "suppressed"),
        ({"waiting_for_overlap": True}, "skipped"),
        ({"errors": 1}, "missed"),
    ],
)
async def test_a_time_zone_that_nobody_knows_can_be_changed(
    desk: Desk, do: Verb, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], outcome: str
) -> None:
    """S4-4: what was due there is told as one entry, since nobody can count it."""
    await do("add", "weekly", desk.report.call(), cron="0 * * * *", tz=BERLIN)
    desk.set("weekly", **state)
    desk.clock.advance(3 * HOUR)
    monkeypatch.setattr("shigoto.schedule.recurrence.ZoneInfo", _unknown)
    with pytest.raises(ScheduleInvalid, match="Europe/Berlin"):
        await do("update", "weekly", jitter=5)

    mended = await do("update", "weekly", tz="UTC")

    assert (mended.tz, mended.errors, mended.counts) == ("UTC", 0, {outcome: 1})
    [entry] = await do("history", "weekly")
    assert (entry.outcome, entry.count, to_millis(entry.until)) == (outcome, 1, desk.clock.now)


async def test_of_a_time_zone_that_nobody_knows_nothing_is_told_if_nothing_is_due(
    desk: Desk, do: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    await do("add", "weekly", desk.report.call(), cron="0 * * * *", tz=BERLIN)
    monkeypatch.setattr("shigoto.schedule.recurrence.ZoneInfo", _unknown)

    await do("update", "weekly", tz="UTC")

    assert await do("history", "weekly") == []


def _unknown(name: str) -> ZoneInfo:
    raise ZoneInfoNotFoundError(name)


async def test_a_name_can_be_added_once(desk: Desk, do: Verb) -> None:
    desk.add()

    with pytest.raises(ScheduleTaken, match="There is a schedule 'weekly' already"):
        await do("add", "weekly", desk.report.call(), every="5m")
    with pytest.raises(OptionInvalid, match="kebab-case"):
        await do("add", "Every Week", desk.report.call(), every="5m")


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("update", {"every": "5m"}),
        ("remove", {}),
        ("pause", {}),
        ("resume", {}),
        ("run_now", {}),
        ("get", {}),
        ("preview", {}),
        ("history", {}),
        ("backfill", {"since": datetime.now(UTC), "to": datetime.now(UTC)}),
    ],
)
async def test_an_unknown_name_is_an_error_with_a_suggestion(
    desk: Desk, do: Verb, verb: str, words: dict[str, Any]
) -> None:
    """S4-4, S4-5: nothing is done to a schedule that is not there."""
    desk.add()

    with pytest.raises(ScheduleNotFound, match=r"There is no schedule 'weakly'\. Did you mean 'weekly'"):
        await do(verb, "weakly", **words)


NAMED = ["update", "remove", "pause", "resume", "run_now", "get", "preview", "history"]


@pytest.mark.parametrize("verb", NAMED)
@pytest.mark.parametrize("name", ["\ud800", "a\0b", "", "Every Week", "x" * 10_000])
async def test_a_name_that_no_schedule_can_have_is_not_known(
    desk: Desk, do: Verb, verb: str, name: str
) -> None:
    words = {"every": "5m"} if verb == "update" else {}
    with pytest.raises(ScheduleNotFound, match="There is no schedule '") as refused:
        await do(verb, name, **words)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("verb", NAMED)
@pytest.mark.parametrize("name", [None, 5, ["weekly"]])
async def test_what_is_no_name_is_an_error_that_says_so(desk: Desk, do: Verb, verb: str, name: Any) -> None:
    words = {"every": "5m"} if verb == "update" else {}
    with pytest.raises(ScheduleInvalid, match="must be a text, not ") as refused:
        await do(verb, name, **words)
    assert refused.value.field == "name"


@pytest.mark.parametrize("verb", ["run_now", "backfill"])
async def test_what_the_code_of_a_schedule_raises_is_told_as_such(desk: Desk, do: Verb, verb: str) -> None:
    def maker(tick: Tick) -> Any:
        raise ConnectionError("no customers today")

    desk.app.schedule("mails", every="1h", call=maker)
    desk.engine.run(declare_op(desk.engine, desk.app.declared, uuid7))
    desk.clock.advance(2 * HOUR)
    words = {"since": desk.now - timedelta(hours=1), "to": desk.now} if verb == "backfill" else {}

    with pytest.raises(ScheduleInvalid, match=r"maker could not make the job.*no customers today") as refused:
        await do(verb, "mails", **words)
    assert refused.value.field == "call"
    assert isinstance(refused.value.__cause__, ConnectionError)


@pytest.mark.parametrize(
    ("words", "since", "ticks"),
    [
        ({"cron": "0 3 * * *", "tz": "Asia/Tokyo"}, datetime(2, 1, 1, tzinfo=UTC), 5),
        ({"cron": "0 3 * * *", "tz": "America/Lima"}, datetime(9998, 12, 30, tzinfo=UTC), 2),
        ({"cron": "0 0 29 2 *"}, datetime(9990, 1, 1, tzinfo=UTC), 2),
        ({"every": "1d", "tz": "Asia/Tokyo"}, datetime(9998, 12, 30, 12, tzinfo=UTC), 1),
        ({"every": "1d"}, datetime(2, 1, 1, tzinfo=UTC), 5),
    ],
)
async def test_a_preview_goes_as_far_as_the_calendar(
    desk: Desk, do: Verb, words: dict[str, Any], since: datetime, ticks: int
) -> None:
    desk.add(**({"every": None} | words))

    assert len(await do("preview", "weekly", since=since, limit=5)) == ticks


@pytest.mark.parametrize(
    ("verb", "words", "field"),
    [
        ("preview", {"since": "today"}, "since"),
        ("preview", {"to": datetime(2030, 1, 1)}, "to"),  # noqa: DTZ001
        ("preview", {"limit": 0}, "limit"),
        ("history", {"before": 5}, "before"),
        ("history", {"limit": 10**9}, "limit"),
        ("backfill", {"since": None, "to": datetime.now(UTC)}, "since"),
        (
            "backfill",
            {"since": datetime(2026, 1, 2, tzinfo=UTC), "to": datetime(2026, 1, 1, tzinfo=UTC)},
            "to",
        ),
        ("preview", {"since": datetime.min.replace(tzinfo=UTC)}, "since"),
        ("preview", {"to": datetime.max.replace(tzinfo=UTC)}, "to"),
        ("history", {"before": datetime.max.replace(tzinfo=UTC)}, "before"),
        ("update", {"call": lambda tick: None}, "call"),
        ("update", {"tz": "Nowhere"}, "tz"),
    ],
)
async def test_what_cannot_be_meant_is_an_error_that_names_the_field(
    desk: Desk, do: Verb, verb: str, words: dict[str, Any], field: str
) -> None:
    """S4-15."""
    desk.add()

    with pytest.raises(ScheduleInvalid) as refused:
        await do(verb, "weekly", **words)
    assert refused.value.field == field


async def test_a_call_of_another_app_is_refused(desk: Desk, do: Verb) -> None:
    with pytest.raises(ScheduleInvalid, match="another app"):
        await do("add", "weekly", Desk().report.call(), every="5m")


async def test_an_update_changes_what_is_named_from_now_on(desk: Desk, do: Verb) -> None:
    """S4-4: validated, stored, the next run computed again."""
    desk.add(
        every=None, cron="30 2 * * *", tz=BERLIN, gap="skip", overlap="skip", catch_up_within=60, until=NEVER
    )
    desk.clock.advance(90_000)

    times = await do("update", "weekly", every="5m")
    assert (times.when, times.tz, times.overlap) == ("every 5m", BERLIN, "skip")
    assert times.next_at - desk.now <= timedelta(minutes=5)
    rest = await do("update", "weekly", until=None, catch_up_within=None, call=desk.report.call("long"))
    assert (rest.when, rest.until, rest.catch_up_within) == ("every 5m", None, None)
    assert (rest.payload, rest.overlap) == ('{"kind":"long"}', "skip")


async def test_an_update_leaves_what_is_due_at_the_same_times_due(desk: Desk, do: Verb) -> None:
    desk.add(catch_up="all")
    desk.clock.advance(5 * HOUR)

    await do("update", "weekly", jitter=5, until=NEVER)

    assert desk.history() == []
    assert [(outcome, count) for outcome, _, count in desk.looked()] == [
        *[("caught_up", 1)] * 4,
        ("fired", 1),
    ]


@pytest.mark.parametrize(
    ("words", "state", "outcome"),
    [
        ({"every": "5m"}, {}, "missed"),
        ({"cron": "30 2 * * *"}, {"waiting_for_overlap": True}, "skipped"),
    ],
)
async def test_other_times_lose_no_tick_of_those_before_without_a_word(
    desk: Desk, do: Verb, words: dict[str, Any], state: dict[str, Any], outcome: str
) -> None:
    desk.add(catch_up="all")
    desk.set("weekly", **state)
    desk.clock.advance(5 * HOUR)

    updated = await do("update", "weekly", **words)

    assert [(outcome, count) for outcome, _, count in desk.history()] == [(outcome, 5)]
    assert updated.counts == {outcome: 5}
    assert updated.next_at > desk.now


async def test_an_end_that_has_passed_is_not_taken_back_for_ticks_before_now(desk: Desk, do: Verb) -> None:
    desk.add(catch_up="all", until=desk.now + timedelta(hours=2))
    desk.clock.advance(5 * HOUR)

    await do("update", "weekly", until=NEVER)

    assert [(outcome, count) for outcome, _, count in desk.looked()] == [("missed", 2)]


async def test_an_update_mends_one_that_has_failed_and_its_only_tick_fires(desk: Desk, do: Verb) -> None:
    desk.add(every=None, at=desk.now + timedelta(hours=1))
    desk.clock.advance(2 * HOUR)
    desk.set("weekly", failed=True, errors=6, error="…", look_at=None)

    updated = await do("update", "weekly", call=desk.report.call("long"))

    assert (updated.status, updated.errors, updated.error) == ("active", 0, None)
    assert [(outcome, count) for outcome, _, count in desk.looked()] == [("caught_up", 1)]
    with pytest.raises(ScheduleInvalid, match="in the past"):
        await do("update", "weekly", jitter=5)


async def test_a_change_that_cannot_be_meant_changes_nothing(desk: Desk, do: Verb) -> None:
    desk.add()
    before = await do("get", "weekly")

    for words in ({"cron": "* * *"}, {"at": desk.now - timedelta(days=1)}, {"overlap": "never"}):
        with pytest.raises(ScheduleInvalid):
            await do("update", "weekly", **words)
    assert await do("get", "weekly") == before


async def test_what_is_removed_is_gone_with_its_history_and_its_jobs_stay(desk: Desk, do: Verb) -> None:
    """S4-5."""
    desk.add()
    job = await do("run_now", "weekly")

    await do("remove", "weekly")

    assert await do("all") == []
    assert desk.app.job(job).job().task == "report"
    desk.add()
    assert desk.history() == []


async def test_a_pause_lasts_until_it_is_resumed_and_the_history_tells_what_was_suppressed(
    desk: Desk, do: Verb
) -> None:
    desk.add()
    assert (await do("pause", "weekly")).status == "paused"
    desk.clock.advance(3 * HOUR)

    resumed = await do("resume", "weekly")

    assert (resumed.status, resumed.next_at > desk.now) == ("active", True)
    assert [(outcome, count) for outcome, _, count in desk.history()] == [("suppressed", 3)]
    assert resumed.counts == {"suppressed": 3}


async def test_what_was_due_before_a_pause_still_fires(desk: Desk, do: Verb) -> None:
    desk.add()
    desk.clock.advance(2 * HOUR)
    await do("pause", "weekly")
    desk.clock.advance(2 * HOUR)
    await do("pause", "weekly")  # it is already

    assert [(outcome, count) for outcome, _, count in desk.looked()] == [
        ("missed", 1),
        ("caught_up", 1),
        ("suppressed", 2),
    ]


@pytest.mark.parametrize(
    ("hours", "outcomes"), [(0, [("caught_up", 2)]), (3, [("caught_up", 2), ("suppressed", 3)])]
)
async def test_a_pause_that_nobody_has_noticed_suppresses_what_it_has_to_and_nothing_else(
    desk: Desk, do: Verb, hours: int, outcomes: list[tuple[str, int]]
) -> None:
    desk.add(catch_up="all")
    desk.clock.advance(2 * HOUR + 120_000)
    await do("pause", "weekly")
    desk.clock.advance(hours * HOUR)
    await do("resume", "weekly")

    told = Counter[str]()
    for outcome, _, count in desk.looked():
        told[outcome] += count
    assert list(told.items()) == outcomes


async def test_what_is_to_be_caught_up_survives_a_pause_that_begins_and_ends_in_the_middle(
    desk: Desk, do: Verb
) -> None:
    """S4-22: between two portions, or while nobody was there; what came in the pause is suppressed, and no more."""
    desk.add(catch_up="all")
    desk.clock.advance(3 * HOUR)
    desk.looked(most=1)
    await do("pause", "weekly")
    desk.clock.advance(2 * HOUR)
    assert (await do("resume", "weekly")).status == "active"
    desk.clock.advance(HOUR)

    for _ in range(4):
        desk.looked(most=1)

    outcomes = [(outcome, count) for outcome, _, count in desk.history()]
    assert outcomes == [("caught_up", 1)] * 3 + [("suppressed", 2), ("fired", 1)]
    assert desk.app.schedules.get("weekly").counts == {"caught_up": 3, "fired": 1, "suppressed": 2}
    [schedule] = desk.engine.run(desk.engine.schedules(["weekly"]))
    assert (schedule.paused_at, schedule.pauses) == (None, ())


@pytest.mark.parametrize("hours", [2, 5])
async def test_after_a_clock_went_back_in_a_pause_every_tick_is_told_once(
    desk: Desk, do: Verb, hours: int
) -> None:
    """E28, S4-22: by a stretch that is cut where the clock is now, or forgotten if all of it is later."""
    desk.clock.advance(10 * HOUR - 1)
    desk.add()
    await do("pause", "weekly")
    for _ in range(4):
        desk.clock.advance(HOUR)
        desk.looked()
    desk.clock.advance(-hours * HOUR)
    for _ in range(16):
        desk.looked()
        desk.clock.advance(HOUR // 4)
    desk.looked()

    ticks = {2: [("suppressed", 10, 6)], 5: [("suppressed", 9, 4)]}[hours]
    assert desk.history() == ticks
    assert desk.app.schedules.get("weekly").counts == {"suppressed": ticks[0][2]}


def test_after_a_clock_went_back_behind_ticks_that_fired_an_older_stretch_is_cut(desk: Desk) -> None:
    """E28, S4-22: no tick is told twice, or has two outcomes."""
    desk.clock.advance(60_000)
    desk.add()
    desk.app.schedules.pause("weekly")
    for hours in (5, 1, 1, 1):
        desk.clock.advance(hours * HOUR)
        desk.looked()
        desk.app.schedules.resume("weekly")
    assert [(outcome, count) for outcome, _, count in desk.history()] == [("suppressed", 5)] + [
        ("fired", 1)
    ] * 3

    desk.clock.advance(-5 * HOUR)
    for _ in range(6):
        desk.looked()
        desk.clock.advance(HOUR)

    assert [(outcome, count) for outcome, _, count in desk.history()] == [("suppressed", 3)] + [
        ("fired", 1)
    ] * 5
    assert desk.app.schedules.get("weekly").counts == {"suppressed": 3, "fired": 5}


async def test_other_times_after_a_clock_went_back_leave_nothing_of_later_ticks(desk: Desk, do: Verb) -> None:
    """E28, S4-22: they are decided again, by whoever looks next."""
    desk.add()
    await do("pause", "weekly")
    desk.clock.advance(5 * HOUR)
    desk.looked()
    desk.clock.advance(-5 * HOUR)

    updated = await do("update", "weekly", every="2h")

    assert updated.next_at - desk.now <= timedelta(hours=2)
    assert desk.looked() == []
    assert (await do("get", "weekly")).counts == {}
    desk.clock.advance(5 * HOUR)
    assert sum(count for _, _, count in desk.looked()) in (2, 3)


@pytest.mark.parametrize("fills_in", [False, True])
def test_whatever_clocks_and_operators_do_every_tick_is_told_once(fills_in: bool) -> None:
    """E28, S4-22: pauses, other times, clocks that go back and forth; what is counted is what is told."""
    random = Random(47)
    for _ in range(150):
        desk = Desk()
        policy = random.choice(["none", "latest", "all"])
        desk.add(catch_up=policy)
        schedules = desk.app.schedules
        for _ in range(40):
            step = random.choice(["look", "look", "look", "pause", "resume", "back", "update", "backfill"])
            if step == "look":
                desk.looked(most=random.choice([1, 1_000]))
            elif step == "back":
                desk.clock.advance(-random.randrange(8 * HOUR))
            elif step == "update":
                schedules.update("weekly", catch_up=random.choice(["latest", "all"]))
            elif step != "backfill":
                getattr(schedules, step)("weekly")
            elif fills_in:
                begin = desk.now - timedelta(hours=random.randrange(8))
                schedules.backfill("weekly", begin, begin + timedelta(hours=random.randrange(3)))
            desk.clock.advance(random.choice([0, 1, HOUR // 3, HOUR, 4 * HOUR]))
            expect_told_once(desk)


def expect_told_once(desk: Desk) -> None:
    entries = desk.engine.run(desk.engine.history("weekly", limit=10_000))[::-1]
    fired = {each.at for each in entries if each.outcome.fires}
    passed = [each for each in entries if not each.outcome.fires]
    for before, after in pairwise(passed):
        assert (before.until or before.at) < after.at
    for each in passed:
        ticks = range(-(-each.at // HOUR) * HOUR, (each.until or each.at) + 1, HOUR)
        assert len(set(ticks) - fired) == each.count
    told = Counter[str]()
    for each in entries:
        told[each.outcome] += each.count
    assert desk.app.schedules.get("weekly").counts == told


async def test_a_tick_that_is_filled_in_before_it_is_decided_is_not_counted_as_missed(
    desk: Desk, do: Verb
) -> None:
    """S4-22: and the others can be filled in afterwards."""
    desk.add(catch_up="none")
    desk.clock.advance(5 * HOUR + 120_000)
    third = to_datetime((desk.clock.now // HOUR - 2) * HOUR)
    await do("backfill", "weekly", third, third)

    assert sorted((outcome, count) for outcome, _, count in desk.looked()) == [
        ("backfilled", 1),
        ("missed", 4),
    ]
    assert desk.app.schedules.get("weekly").counts == {"backfilled": 1, "missed": 4}
    await do("backfill", "weekly", third - timedelta(hours=1), third)
    assert [(outcome, count) for outcome, _, count in desk.history()] == [
        ("missed", 1), ("backfilled", 1), ("backfilled", 1), ("missed", 2)
    ]  # fmt: skip


async def test_what_waits_for_a_job_since_before_a_pause_waits_on_after_it(desk: Desk, do: Verb) -> None:
    desk.add(overlap="queue")
    desk.clock.advance(HOUR)
    desk.set("weekly", waiting_for_overlap=True)
    await do("pause", "weekly")
    desk.clock.advance(2 * HOUR)
    await do("resume", "weekly")

    assert [(outcome, count) for outcome, _, count in desk.looked()] == [("caught_up", 1), ("suppressed", 2)]


async def test_two_pauses_between_which_nobody_has_looked_are_two(desk: Desk, do: Verb) -> None:
    """S4-22: the tick between them was due, and is caught up."""
    desk.add()
    for verb in ("pause", "resume", "pause"):
        desk.clock.advance(HOUR)
        assert (await do(verb, "weekly")).status == ("active" if verb == "resume" else "paused")
    desk.clock.advance(HOUR)

    for _ in range(3):
        desk.looked()

    outcomes = [(outcome, count) for outcome, _, count in desk.history()]
    assert outcomes == [("caught_up", 1), ("suppressed", 1)] * 2
    assert desk.app.schedules.get("weekly").counts == {"caught_up": 2, "suppressed": 2}
    assert (await do("resume", "weekly")).status == "active"
    [schedule] = desk.engine.run(desk.engine.schedules(["weekly"]))
    assert (schedule.paused_at, schedule.pauses) == (None, ())


async def test_other_times_pass_over_what_was_due_between_pauses(desk: Desk, do: Verb) -> None:
    """S4-22."""
    desk.add()
    for verb in ("pause", "resume", "pause", "resume"):
        desk.clock.advance(HOUR)
        await do(verb, "weekly")
    desk.clock.advance(HOUR)

    await do("update", "weekly", every="5m")

    outcomes = [(outcome, count) for outcome, _, count in desk.history()]
    assert outcomes == [("missed", 1), ("suppressed", 1), ("missed", 1), ("suppressed", 1), ("missed", 1)]


async def test_a_pause_in_which_no_tick_came_leaves_no_trace(desk: Desk, do: Verb) -> None:
    desk.add(catch_up="all")
    desk.clock.advance(HOUR)
    for _ in range(3):
        for verb in ("pause", "resume"):
            desk.clock.advance(60_000)
            await do(verb, "weekly")

    [schedule] = desk.engine.run(desk.engine.schedules(["weekly"]))
    assert schedule.pauses == ()
    assert [(outcome, count) for outcome, _, count in desk.looked()] == [("caught_up", 1)]


async def test_of_very_many_pauses_that_nobody_has_noticed_the_last_ones_are_one(
    desk: Desk, do: Verb
) -> None:
    desk.add(catch_up="all", catch_up_most=1_000)
    for _ in range(MOST_PAUSES + 5):
        for verb in ("pause", "resume"):
            desk.clock.advance(HOUR)
            await do(verb, "weekly")
    for _ in range(MOST_PAUSES + 1):
        desk.looked()

    counts = desk.app.schedules.get("weekly").counts
    assert counts == {"caught_up": MOST_PAUSES, "suppressed": MOST_PAUSES + 10}


@pytest.mark.parametrize("hours", [1, 4])
async def test_other_times_pass_over_what_was_due_before_in_and_after_a_pause(
    desk: Desk, do: Verb, hours: int
) -> None:
    desk.add()
    desk.clock.advance(2 * HOUR)
    await do("pause", "weekly")
    desk.clock.advance(2 * HOUR)
    await do("resume", "weekly")
    desk.clock.advance(hours * HOUR)

    updated = await do("update", "weekly", every="5m")

    outcomes = [(outcome, count) for outcome, _, count in desk.history()]
    assert outcomes == [("missed", 2), ("suppressed", 2), ("missed", hours)]
    assert updated.status == "active"


async def test_times_that_are_changed_in_a_pause_lose_nothing(desk: Desk, do: Verb) -> None:
    desk.add()
    desk.clock.advance(2 * HOUR)
    await do("pause", "weekly")
    desk.clock.advance(3 * HOUR)

    updated = await do("update", "weekly", every="5m")

    assert [(outcome, count) for outcome, _, count in desk.history()] == [("missed", 2), ("suppressed", 3)]
    assert updated.status == "paused"


async def test_one_that_has_failed_goes_on_when_it_is_resumed(desk: Desk, do: Verb) -> None:
    """S4-12: marked failed, until somebody has looked at it."""
    desk.add()
    [schedule] = desk.engine.run(desk.engine.schedules(["weekly"]))
    broken = replace(schedule, failed=True, errors=6, error="StoreBusy: …", look_at=None)
    desk.engine.run(desk.engine.tick([Change(schedule=broken, seen=schedule.revision)]))
    assert (await do("get", "weekly")).status == "failed"

    resumed = await do("resume", "weekly")

    assert (resumed.status, resumed.errors, resumed.error) == ("active", 0, None)


async def test_one_that_has_failed_tries_again_what_is_due_when_it_is_resumed(desk: Desk, do: Verb) -> None:
    """S4-12: resuming means to try again, by its policy of catching up."""
    desk.add(every=None, at=desk.now + timedelta(hours=1))
    desk.clock.advance(2 * HOUR)
    desk.set("weekly", failed=True, errors=6, error="…", look_at=None)

    assert (await do("resume", "weekly")).status == "active"

    assert [(outcome, count) for outcome, _, count in desk.looked()] == [("caught_up", 1)]
    assert desk.app.schedules.get("weekly").status == "ended"


@pytest.mark.parametrize("state", [{}, {"waiting_for_overlap": True}, {"errors": 3, "error": "…"}])
async def test_one_that_neither_is_paused_nor_has_failed_is_left_alone_by_a_resume(
    desk: Desk, do: Verb, state: dict[str, Any]
) -> None:
    desk.add(catch_up="all")
    desk.set("weekly", look_at=desk.clock.now + 2 * HOUR, **state)
    desk.clock.advance(3 * HOUR)
    before = desk.engine.run(desk.engine.schedules(["weekly"]))

    assert (await do("resume", "weekly")).status == "active"

    assert desk.engine.run(desk.engine.schedules(["weekly"])) == before
    assert desk.history() == []


async def test_a_run_now_is_a_job_beside_the_ticks_at_once(desk: Desk, do: Verb) -> None:
    desk.add(jitter=timedelta(hours=5))
    desk.clock.advance(-desk.clock.now % HOUR)  # the very instant of a tick

    jobs = [await do("run_now", "weekly") for _ in range(3)]

    assert len(set(jobs)) == 3
    assert {desk.app.job(job).job().run_at for job in jobs} == {desk.now}
    told = desk.app.schedules.history("weekly")
    assert [each.outcome for each in told] == ["run_now"] * 3
    assert desk.now not in {each.at for each in told}, "that is the tick's own"
    assert (await do("get", "weekly")).counts == {"run_now": 3}


async def test_a_run_now_of_a_key_that_is_taken_is_the_job_that_stands(desk: Desk, do: Verb) -> None:
    desk.app.schedules.add("weekly", desk.report.using(key="k").call(), every="1h")

    assert await do("run_now", "weekly") == await do("run_now", "weekly")


async def test_the_job_of_a_declared_schedule_is_made_by_its_code(desk: Desk, do: Verb) -> None:
    @desk.app.cron("0 3 * * *", tz="Asia/Tokyo")
    def aggregate(tick: Tick) -> None: ...

    desk.engine.run(declare_op(desk.engine, desk.app.declared, uuid7))

    job = desk.app.job(await do("run_now", "aggregate")).job()

    assert '"tz":"Asia/Tokyo","schedule":"aggregate"' in job.payload
    stranger = Shigoto(engine=desk.engine)
    with pytest.raises(ScheduleInvalid, match="not in this process"):
        stranger.schedules.run_now("aggregate")


async def test_what_is_declared_by_living_code_is_changed_there(desk: Desk, do: Verb) -> None:
    @desk.app.cron("@daily")
    def aggregate() -> None: ...

    desk.engine.run(declare_op(desk.engine, desk.app.declared, uuid7))

    for verb, words in (("remove", {}), ("update", {"every": "5m"})):
        with pytest.raises(ScheduleTaken, match="is declared by"):
            await do(verb, "aggregate", **words)
    assert (await do("pause", "aggregate")).status == "paused"


@pytest.mark.parametrize("reason", ["suppressed", "skipped", "missed"])
async def test_ticks_in_a_row_that_did_not_fire_for_one_reason_are_one_entry(
    desk: Desk, do: Verb, reason: str
) -> None:
    """Whoever looks at each of them by itself: history is not pushed out by what did not happen."""
    words = {"missed": {"catch_up": "none"}, "skipped": {"overlap": "skip"}}.get(reason, {})
    desk.add(**words)
    desk.clock.advance(HOUR)
    desk.looked()
    if reason == "suppressed":
        await do("pause", "weekly")
    for _ in range(5):
        desk.clock.advance(HOUR + 1 + (120_000 if reason == "missed" else 0))
        desk.looked()
        if reason == "skipped":
            await do("run_now", "weekly")

    told = [entry for entry in await do("history", "weekly") if entry.outcome == reason]
    assert [(to_millis(each.at) - START < 3 * HOUR, each.count) for each in told] == [(True, 5)]
    assert (await do("get", "weekly")).counts[reason] == 5


async def test_a_stretch_that_was_filled_in_or_is_another_schedule_s_is_not_joined(
    desk: Desk, do: Verb
) -> None:
    desk.add()
    await do("pause", "weekly")
    for _ in range(3):
        desk.clock.advance(HOUR)
        desk.looked()
    await do("backfill", "weekly", desk.now - timedelta(hours=2), desk.now - timedelta(hours=1))
    desk.clock.advance(HOUR)
    desk.looked()
    await do("update", "weekly", every="90m")
    desk.clock.advance(3 * HOUR)
    desk.looked()

    told = [(outcome, count) for outcome, _, count in desk.history()]
    counts = (await do("get", "weekly")).counts
    assert [each for each in told if each[0] == "suppressed"][-1] == ("suppressed", 2)
    assert sum(count for outcome, count in told) == 4 + 2
    assert counts == {"suppressed": 4, "backfilled": 2}, "what was filled in is not suppressed any more"


async def test_what_a_clock_says_again_is_not_joined(desk: Desk, do: Verb) -> None:
    desk.add()
    await do("pause", "weekly")
    desk.clock.advance(5 * HOUR)
    desk.looked()
    desk.clock.advance(-4 * HOUR)
    desk.looked()
    desk.clock.advance(HOUR)
    desk.looked()

    assert all(each.until is None or each.at < each.until for each in await do("history", "weekly"))


async def test_a_clock_that_was_past_the_end_for_a_while_ends_nothing(desk: Desk, do: Verb) -> None:
    """F25, E28."""
    desk.add(catch_up="none", until=desk.now + timedelta(hours=5))
    desk.clock.advance(1_000 * HOUR)
    desk.looked()
    assert (await do("get", "weekly")).status == "ended"

    desk.clock.advance(-1_000 * HOUR)
    desk.looked()
    assert (await do("get", "weekly")).status == "active"
    desk.clock.advance(HOUR)

    assert "fired" in {outcome for outcome, _, _ in desk.looked()}


async def test_nobody_looks_for_ever_at_one_that_has_ended(desk: Desk, do: Verb) -> None:
    desk.add(every=None, at=desk.now + timedelta(hours=1))
    for _ in range(5):
        desk.clock.advance(HOUR)
        desk.looked()

    assert desk.engine.run(desk.engine.due((), 0)).next_in is None
    assert (await do("get", "weekly")).status == "ended"


async def test_a_backfill_fires_what_has_not_fired_and_once(desk: Desk, do: Verb) -> None:
    desk.add()
    first = START // HOUR * HOUR + HOUR
    desk.clock.advance(10 * HOUR)
    desk.missed("weekly", first, 9)
    words = (to_datetime(first + 3 * HOUR), to_datetime(first + 5 * HOUR))

    jobs = await do("backfill", "weekly", *words)

    assert len(jobs) == 3
    assert [desk.app.job(job).job().run_at for job in jobs] == [
        to_datetime(first + hour * HOUR) for hour in (3, 4, 5)
    ]
    told = [(outcome, count) for outcome, _, count in desk.history()]
    assert told == [("missed", 3), *[("backfilled", 1)] * 3, ("missed", 3)], "the rest stays missed"
    assert await do("backfill", "weekly", *words) == []


@pytest.mark.parametrize(
    ("since", "to", "told"),
    [
        (0, 1, [("backfilled", 1), ("backfilled", 1), ("missed", 7)]),
        (7, 8, [("missed", 7), ("backfilled", 1), ("backfilled", 1)]),
        (0, 8, [("backfilled", 1)] * 9),
    ],
)
def test_what_a_backfill_leaves_of_a_stretch_stays_in_the_history(
    desk: Desk, since: int, to: int, told: list[tuple[str, int]]
) -> None:
    desk.add()
    first = START // HOUR * HOUR + HOUR
    desk.clock.advance(10 * HOUR)
    desk.missed("weekly", first, 9)

    desk.app.schedules.backfill("weekly", to_datetime(first + since * HOUR), to_datetime(first + to * HOUR))

    assert [(outcome, count) for outcome, _, count in desk.history()] == told


def test_ticks_behind_one_that_was_filled_in_before_anybody_looked_are_written_down(desk: Desk) -> None:
    desk.add()
    first = START // HOUR * HOUR + HOUR
    desk.clock.advance(first + 5 * HOUR - desk.clock.now)
    desk.app.schedules.backfill("weekly", to_datetime(first), to_datetime(first))

    assert [(outcome, count) for outcome, _, count in desk.looked()] == [
        ("backfilled", 1),
        ("missed", 4),
        ("fired", 1),
    ]
    assert desk.app.schedules.get("weekly").counts == {"backfilled": 1, "missed": 4, "fired": 1}


def test_a_second_backfill_takes_nothing_from_what_the_first_has_left(desk: Desk) -> None:
    desk.add()
    first = START // HOUR * HOUR + HOUR
    desk.clock.advance(first + 5 * HOUR - desk.clock.now)
    third = to_datetime(first + 2 * HOUR)
    desk.app.schedules.backfill("weekly", third, third)
    desk.looked()
    desk.app.schedules.backfill("weekly", to_datetime(first), to_datetime(first + HOUR))

    assert [(outcome, count) for outcome, _, count in desk.history()] == [
        *[("backfilled", 1)] * 3,
        ("missed", 2),
        ("fired", 1),
    ]


def test_a_long_stretch_ends_somewhere(desk: Desk) -> None:
    """Whoever fills in one of its ticks has to go through all of them."""
    desk.add(every=1)
    desk.app.schedules.pause("weekly")
    desk.clock.advance(9_000_000)
    desk.looked()
    desk.clock.advance(9_000_000)
    desk.looked()

    assert [outcome for outcome, _, _ in desk.history()] == ["suppressed"] * 2


async def test_a_backfill_never_reaches_into_the_future_nor_beyond_the_end(desk: Desk, do: Verb) -> None:
    desk.add(until=desk.now + timedelta(hours=4))
    desk.clock.advance(2 * HOUR)
    ahead = desk.now + timedelta(days=1)

    assert len(await do("backfill", "weekly", desk.now - timedelta(hours=2), ahead)) == 3
    desk.clock.advance(12 * HOUR)
    assert len(await do("backfill", "weekly", desk.now - timedelta(hours=14), ahead)) == 2


def test_too_many_ticks_are_refused_without_counting_them_all(desk: Desk) -> None:
    desk.add(every=1)

    with pytest.raises(ScheduleInvalid, match="more than 1000 ticks") as refused:
        desk.app.schedules.backfill("weekly", datetime(1990, 1, 1, tzinfo=UTC), desk.now)
    assert refused.value.field == "to"


async def test_a_preview_begins_with_its_first_instant_and_ends_with_its_last(desk: Desk, do: Verb) -> None:
    desk.add(every=None, cron="30 2 * * *", tz=BERLIN)
    zone = ZoneInfo(BERLIN)
    first, last = datetime(2026, 3, 28, 2, 30, tzinfo=zone), datetime(2026, 3, 30, 2, 30, tzinfo=zone)

    ticks = await do("preview", "weekly", since=first, to=last)

    assert [f"{at:%d %H:%M %z}" for at in ticks] == ["28 02:30 +0100", "29 03:00 +0200", "30 02:30 +0200"]
    assert len(await do("preview", "weekly")) == 10
    assert all(at > desk.now for at in await do("preview", "weekly", limit=3))


async def test_the_history_is_read_in_pages(desk: Desk, do: Verb) -> None:
    desk.add()
    desk.clock.advance(10 * HOUR)
    await do("backfill", "weekly", desk.now - timedelta(hours=9), desk.now)

    page = await do("history", "weekly", limit=4)
    rest = await do("history", "weekly", before=page[-1].at, limit=100)

    assert (len(page), len(rest)) == (4, len(desk.history()) - 4)
    assert page[-1].at > rest[0].at
    assert rest[-1].lateness > page[0].lateness >= 0


@pytest.mark.parametrize("text", ["", "{}", '{"recurrence":{"type":"lunar"}}'])
async def test_one_that_cannot_be_read_hides_no_other_and_can_be_removed(
    desk: Desk, do: Verb, text: str
) -> None:
    desk.add("a")
    desk.add("b")
    [schedule] = desk.engine.run(desk.engine.schedules(["a"]))
    broken = Change(schedule=replace(schedule, definition=text), seen=schedule.revision)
    desk.engine.run(desk.engine.tick([broken]))

    first, second = await do("all")

    assert (first.when, second.when) == ("?", "every 1h")
    assert "cannot be read" in first.error
    with pytest.raises(ScheduleInvalid, match="Remove it, and add it again"):
        await do("run_now", "a")
    await do("remove", "a")
    assert [each.name for each in await do("all")] == ["b"]


# Others at the same time


class Rival:
    """Somebody who changes a schedule between the look and the change of another, some times."""

    def __init__(self, desk: Desk, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = times
        engine, tick = desk.engine, desk.engine.tick

        def rivalled(changes: Any) -> Op[list[Change | None]]:
            def steps() -> Steps[list[Change | None]]:
                if self.left:
                    self.left -= 1
                    [known] = yield from engine.schedules([changes[0].schedule.name]).start()
                    yield from tick([Change(schedule=known, seen=known.revision)]).start()
                return (yield from tick(changes).start())

            return Op(start=steps)

        monkeypatch.setattr(engine, "tick", rivalled)


@pytest.mark.parametrize("verb", ["pause", "resume", "run_now", "update", "backfill"])
async def test_a_verb_that_somebody_else_has_overtaken_looks_again(
    desk: Desk, do: Verb, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.add()
    desk.clock.advance(2 * HOUR)
    words: dict[str, Any] = {}
    if verb == "update":
        words = {"overlap": "skip"}
    if verb == "backfill":
        words = {"since": desk.now - timedelta(hours=1), "to": desk.now}
    Rival(desk, 3, monkeypatch)

    done = await do(verb, "weekly", **words)

    match verb:
        case "pause":
            assert desk.app.schedules.get("weekly").status == "paused"
        case "update":
            assert desk.app.schedules.get("weekly").overlap == "skip"
        case "run_now":
            assert isinstance(done, UUID)
        case "backfill":
            assert len(done) == 2
        case _:
            assert done.status == "active"


@pytest.mark.parametrize("verb", ["pause", "run_now", "backfill"])
async def test_a_verb_that_is_overtaken_again_and_again_says_so(
    desk: Desk, do: Verb, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.add()
    desk.clock.advance(2 * HOUR)
    words = {"since": desk.now - timedelta(hours=1), "to": desk.now} if verb == "backfill" else {}
    Rival(desk, 1_000, monkeypatch)

    with pytest.raises(StoreUnavailable, match="Try again"):
        await do(verb, "weekly", **words)


# Ticks


def test_a_tick_is_an_instant_and_its_zone() -> None:
    tick = Tick.at("2026-05-06T03:00", tz="Asia/Tokyo")

    assert tick.at == datetime(2026, 5, 5, 18, tzinfo=UTC)
    assert (tick.local_date.isoformat(), tick.local.hour) == ("2026-05-06", 3)
    assert tick == Tick.at(datetime(2026, 5, 5, 18, tzinfo=UTC), tz="Asia/Tokyo")
    assert Tick.at("2026-05-06T03:00+09:00") == Tick.at("2026-05-05T18:00Z")


@pytest.mark.parametrize(
    ("at", "tz"),
    [
        ("soon", "UTC"),
        (5, "UTC"),
        ("2026-05-06T03:00", "Nowhere/At_All"),
        (None, "UTC"),
        ("0001-01-01", "Asia/Tokyo"),
    ],
)
def test_what_is_no_tick_is_refused(at: Any, tz: str) -> None:
    with pytest.raises(OptionInvalid, match="There is no tick at"):
        Tick.at(at, tz=tz)


def test_a_tick_survives_the_store(desk: Desk) -> None:
    """What a handler makes of the tick is the same in every run."""
    seen: list[Tick] = []

    @desk.app.task
    def aggregate(tick: Tick) -> None:
        seen.append(tick)

    tick = Tick.at("2026-05-06T03:00", tz="Asia/Tokyo", schedule="aggregate")
    with desk.app.test() as jobs:
        aggregate.enqueue(tick)
        jobs.run_all()

    assert seen == [tick]


NEVER = datetime(2090, 1, 1, tzinfo=UTC)
