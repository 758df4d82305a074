"""Schedules that are declared in code, and how they get into the store without losing what is remembered of them."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Optional
from uuid import UUID
from zoneinfo import ZoneInfoNotFoundError

import pytest
from msgspec.structs import replace

import shigoto
from shigoto import (
    Call,
    Context,
    DeclarationError,
    OptionInvalid,
    ScheduleInvalid,
    ScheduleRecord,
    ScheduleTaken,
    Shigoto,
    Tasks,
    Tick,
)
from shigoto.engine.memory import MemoryEngine
from shigoto.model.ids import uuid7
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.schedule.declare import HEARD_WITHIN, declare_op
from shigoto.schedule.tick import takes_tick
from shigoto.testing.store import START, VirtualClock

HOUR = 3_600_000


class Town:
    """A store on virtual time, and apps that come and go."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.engine = MemoryEngine(clock=self.clock)
        self.warnings: list[str] = []

    def app(self) -> Shigoto:
        return Shigoto(engine=self.engine)

    def start(self, app: Shigoto) -> list[str]:
        """What a worker of the app does first."""
        return self.engine.run(declare_op(self.engine, app.declared, uuid7, self.warnings.append))

    def stored(self, name: str) -> Schedule:
        [schedule] = self.engine.run(self.engine.schedules([name]))
        return schedule

    def shown(self, name: str) -> ScheduleRecord:
        return self.app().schedules.get(name)

    def write(self, name: str, at: int) -> None:
        """An entry of the history."""
        schedule = self.stored(name)
        entry = TickEntry(at=at, outcome=TickOutcome.MISSED, decided_at=at)
        change = Change(schedule=schedule, seen=schedule.revision, firings=(Firing(entry=entry),))
        self.engine.run(self.engine.tick([change]))

    def history(self, name: str) -> list[int]:
        return [entry.at for entry in self.engine.run(self.engine.history(name))]


@pytest.fixture
def town() -> Town:
    return Town()


def nightly(app: Shigoto, expression: str = "0 3 * * *", **options: Any) -> None:
    @app.cron(expression, **options)
    def aggregate(tick: Tick) -> None: ...


def making(call: Call[Any]) -> Callable[[Tick], Call[Any]]:
    return lambda tick: call


# Declaring


def test_a_declaration_is_a_task_and_a_schedule_of_the_same_name() -> None:
    app = Shigoto("memory:")
    nightly(app, tz="Asia/Tokyo", queue="nights", retries=2, overlap="skip")

    [declared] = app.declared.values()
    assert (declared.name, declared.definition.task) == ("aggregate", "aggregate")
    assert declared.definition.overlap == "skip"
    assert app.tasks["aggregate"].options.queue == "nights"
    assert declared.origin == "tests.unit.schedule.test_declare:nightly.<locals>.aggregate"


def test_collections_bring_their_schedules_along_with_their_tasks() -> None:
    app, tasks = Shigoto("memory:"), Tasks()

    @tasks.every("5m")
    def early() -> None: ...

    app.include(tasks)

    @tasks.cron("@daily")
    def late() -> None: ...

    assert list(app.declared) == ["early", "late"]


def test_the_tick_is_found_by_its_type_or_by_its_name_and_the_context_is_no_argument() -> None:
    app = Shigoto("memory:")

    @app.every("5m")
    def by_type(ctx: Context, occurrence: Tick) -> None: ...

    @app.every("5m")
    def by_name(tick: Tick | None = None, times: int = 3) -> None: ...

    @app.every("5m")
    def without(times: int = 3) -> None: ...

    tick = Tick.at("2026-05-06T03:00Z")
    made = {name: each.call(tick).payload for name, each in app.declared.items()}
    assert '"occurrence":{"at":"2026-05-06T03:00:00Z"' in made["by_type"]
    assert made["by_name"].startswith('{"tick":{')
    assert made["without"] == "{}"


def test_the_tick_is_found_however_its_type_is_written() -> None:
    app = Shigoto("memory:")

    @app.every("5m")
    def or_none(occurrence: Tick | None = None) -> None: ...

    @app.every("5m")
    def optional(occurrence: Optional[Tick] = None) -> None: ...  # noqa: UP045

    @app.every("5m")
    def by_module(occurrence: "shigoto.Tick") -> None: ...

    @app.every("5m")
    def by_text(occurrence: "Tick | None" = None, also: "int | None" = None) -> None: ...

    for each in app.declared.values():
        assert '"occurrence":{"at":' in each.call(Tick.at("2026-05-06T03:00Z")).payload


@pytest.mark.parametrize(
    ("annotation", "is_tick"),
    [
        ("Tick", True),
        ("shigoto.Tick", True),
        ("later.Unknown", False),
        ("shigoto.Tick | None", True),
        ("None | 'Tick'", True),
        ("Optional[Tick]", True),
        ("typing.Optional[shigoto.Tick]", True),
        ("Optional['Tick']", True),
        ("list[Tick]", False),
        ("Ticket", False),
        (list[Tick], False),
        (Optional["Tick"], True),
        (None, False),
    ],
)
def test_the_tick_is_found_also_where_annotations_cannot_be_read_yet(
    annotation: Any, *, is_tick: bool
) -> None:
    assert takes_tick(annotation) is is_tick


@pytest.mark.parametrize("annotation", [str, int | None, list[Tick], dict])
def test_a_tick_that_is_declared_as_something_else_is_refused(annotation: Any) -> None:
    app = Shigoto("memory:")

    def nightly(tick: Any) -> None: ...

    nightly.__annotations__["tick"] = annotation
    with pytest.raises(DeclarationError, match="Write tick: Tick"):
        app.every("5m")(nightly)
    assert not app.declared


def test_a_decorator_without_its_times_is_refused() -> None:
    app, tasks = Shigoto("memory:"), Tasks()
    decorators: list[Any] = [app.cron, app.every, tasks.cron]
    for decorate in decorators:

        def nightly() -> None: ...

        with pytest.raises(DeclarationError, match=r"Say when it is due: @app\.cron\('0 3"):
            decorate(nightly)


def test_a_task_that_needs_more_than_the_tick_is_refused() -> None:
    app = Shigoto("memory:")

    with pytest.raises(DeclarationError, match=r"store would be missing.*call=lambda tick"):

        @app.cron("@daily")
        def for_store(tick: Tick, store: int) -> None: ...


def test_a_schedule_that_cannot_be_meant_leaves_no_task_behind() -> None:
    app = Shigoto("memory:")

    with pytest.raises(ScheduleInvalid, match="schedule 'aggregate': "):
        nightly(app, "0 25 * * *")
    assert not app.tasks
    nightly(app)


def test_two_schedules_of_one_name_are_refused() -> None:
    app = Shigoto("memory:")
    nightly(app)

    @app.task
    def report() -> None: ...

    with pytest.raises(DeclarationError, match="Two schedules are called 'aggregate'"):
        app.schedule("aggregate", "@daily", call=report.call())


@pytest.mark.parametrize("call", [5, None, "report"])
def test_what_is_no_call_is_refused_where_it_is_declared(call: Any) -> None:
    with pytest.raises(ScheduleInvalid, match=r"task\.call\(…\)") as refused:
        Shigoto("memory:").schedule("a", "@daily", call=call)
    assert refused.value.field == "call"


def test_a_task_is_no_call() -> None:
    app = Shigoto("memory:")

    @app.task
    def report() -> None: ...

    bare: Any = report
    with pytest.raises(ScheduleInvalid, match=r"task\.call\(…\)"):
        app.schedule("a", "@daily", call=bare)
    with pytest.raises(ScheduleInvalid, match="neither the id"):
        app.schedule("a", "@daily", call=report.using(id=UUID(int=7)).call())
    with pytest.raises(ScheduleInvalid, match=r"at its tick.*delay=") as refused:
        app.schedule("a", "@daily", call=report.using(run_at=datetime.now(UTC)).call())
    assert refused.value.field == "call"


def test_a_name_that_cannot_be_one_is_refused() -> None:
    app = Shigoto("memory:")

    @app.task
    def report() -> None: ...

    with pytest.raises(OptionInvalid, match="kebab-case"):
        app.schedule("Every Night", "@daily", call=report.call())


# Into the store


def test_what_is_declared_comes_into_the_store_once(town: Town) -> None:
    app = town.app()
    nightly(app)

    assert town.start(app) == ["aggregate"]
    assert town.start(app) == [], "nothing has changed"
    assert town.stored("aggregate").revision == 1
    assert town.shown("aggregate").status == "active"


def test_a_restart_keeps_the_id_the_history_the_pause_and_how_far_it_was_decided(town: Town) -> None:
    first = town.app()
    nightly(first)
    town.start(first)
    town.write("aggregate", START)
    first.schedules.pause("aggregate")
    before = town.stored("aggregate")
    town.clock.advance(HOUR)

    second = town.app()
    nightly(second, overlap="skip")  # another policy, the same times
    assert town.start(second) == ["aggregate"]

    after = town.stored("aggregate")
    assert (after.id, after.paused_at, after.decided_to, after.look_at) == (
        before.id,
        START,
        before.decided_to,
        before.look_at,
    )
    assert town.history("aggregate") == [START]
    assert town.shown("aggregate").overlap == "skip"


def test_other_times_hold_from_now_on(town: Town) -> None:
    first = town.app()
    nightly(first)
    town.start(first)
    town.clock.advance(HOUR)

    second = town.app()
    nightly(second, "*/5 * * * *")
    town.start(second)

    after = town.stored("aggregate")
    assert after.decided_to == town.clock.now, "what the new times would have been before is nobody's"
    assert after.look_at is not None
    assert 0 < after.look_at - town.clock.now <= 300_000


def test_ticks_that_were_due_at_the_times_before_are_written_down(town: Town) -> None:
    first, second = town.app(), town.app()
    nightly(first, "0 * * * *")
    town.start(first)
    town.clock.advance(5 * HOUR)

    nightly(second, "*/5 * * * *")
    town.start(second)

    [entry] = town.engine.run(town.engine.history("aggregate"))
    assert (entry.outcome, entry.count) == (TickOutcome.MISSED, 5)
    assert town.stored("aggregate").counts == {"missed": 5}


def test_a_time_zone_that_nobody_knows_is_mended_by_declaring_another(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4-12: what was due there nobody can count, but the history says that something was."""
    first, second = town.app(), town.app()
    nightly(first, "0 * * * *", tz="Asia/Tokyo")
    town.start(first)
    town.clock.advance(5 * HOUR)
    due = town.stored("aggregate").look_at
    nightly(second, "0 * * * *")

    monkeypatch.setattr("shigoto.schedule.recurrence.ZoneInfo", unknown)
    assert town.start(second) == ["aggregate"]

    [entry] = town.engine.run(town.engine.history("aggregate"))
    assert (entry.outcome, entry.at, entry.until, entry.count) == ("missed", due, town.clock.now, 1)
    assert (town.shown("aggregate").status, town.shown("aggregate").tz) == ("active", "UTC")


def unknown(name: str) -> Any:
    raise ZoneInfoNotFoundError(name)


@pytest.mark.parametrize("expression", ["0 * * * *", "*/5 * * * *"])
def test_one_that_has_failed_goes_on_when_its_code_changes(town: Town, expression: str) -> None:
    """S4-12: as if somebody had changed it while the system runs."""
    first, second = town.app(), town.app()
    nightly(first, "0 * * * *")
    town.start(first)
    schedule = town.stored("aggregate")
    broken = replace(schedule, failed=True, errors=6, error="…", look_at=None)
    town.engine.run(town.engine.tick([Change(schedule=broken, seen=schedule.revision)]))
    town.clock.advance(5 * HOUR)

    nightly(second, expression, jitter=5)
    town.start(second)

    after = town.stored("aggregate")
    assert (after.failed, after.errors, after.error) == (False, 0, None)
    assert town.shown("aggregate").status == "active"


def test_a_function_that_has_moved_is_the_same_schedule(town: Town) -> None:
    first, second = town.app(), town.app()
    nightly(first)
    town.start(first)

    @second.cron("0 3 * * *")
    def aggregate(tick: Tick) -> None: ...

    assert town.start(second) == ["aggregate"]
    assert town.stored("aggregate").origin.endswith("same_schedule.<locals>.aggregate")
    assert town.warnings == []


def test_a_maker_that_has_moved_gets_past_the_one_before_with_a_warning(town: Town) -> None:
    """As in every roll-out: which task a maker calls is not known, so it cannot be told from one of another service."""
    first, second = town.app(), town.app()

    def here(tick: Tick) -> Any: ...

    def there(tick: Tick) -> Any: ...

    first.schedule("report", "@daily", call=here)
    second.schedule("report", "@hourly", call=there)
    town.start(first)
    assert town.start(second) == ["report"]

    assert town.stored("report").origin.endswith("<locals>.there")
    [warning] = town.warnings
    assert "<locals>.here until now" in warning
    assert "<locals>.there from now on" in warning
    assert town.start(second) == []
    assert len(town.warnings) == 1


@pytest.mark.parametrize("maker_first", [True, False])
def test_a_fixed_call_may_become_a_maker_and_a_maker_a_fixed_call(town: Town, *, maker_first: bool) -> None:
    first, second = town.app(), town.app()
    for app, makes in ((first, maker_first), (second, not maker_first)):

        @app.task
        def report() -> None: ...

        app.schedule("report", "@daily", call=making(report.call()) if makes else report.call())
        assert town.start(app) == ["report"]

    assert len(town.warnings) == 1


def test_of_a_maker_that_is_gone_nobody_is_warned(town: Town) -> None:
    first, second = town.app(), town.app()

    def here(tick: Tick) -> Any: ...

    def there(tick: Tick) -> Any: ...

    first.schedule("report", "@daily", call=here)
    second.schedule("report", "@daily", call=there)
    town.start(first)
    town.clock.advance(HEARD_WITHIN + 1)

    assert town.start(second) == ["report"]
    assert town.warnings == []


def test_two_services_that_declare_one_name_for_different_tasks_are_an_error(town: Town) -> None:
    first, second = town.app(), town.app()
    nightly(first)
    town.start(first)

    @second.task
    def other() -> None: ...

    second.schedule("aggregate", "@daily", call=other.call())
    with pytest.raises(ScheduleTaken, match="which run at the same time"):
        town.start(second)

    town.clock.advance(HEARD_WITHIN + 1)
    assert town.start(second) == ["aggregate"], "of the first nothing was heard any more"


def test_two_services_that_declare_one_name_for_fixed_calls_are_an_error_too(town: Town) -> None:
    first, second = town.app(), town.app()

    def ours() -> None: ...

    def theirs() -> None: ...

    theirs.__module__ = "another.service"
    first.schedule("report", "@daily", call=first.task(ours).call())
    second.schedule("report", "@hourly", call=second.task(theirs).call())
    town.start(first)

    with pytest.raises(ScheduleTaken, match=f"{__name__}:report and by another.service:report"):
        town.start(second)


def test_a_new_release_may_let_a_schedule_call_another_task(town: Town) -> None:
    """While the one before still runs, as in every roll-out."""
    before, after = town.app(), town.app()

    @before.task
    def report() -> None: ...

    @after.task
    def better_report() -> None: ...

    before.schedule("report", "@daily", call=report.call())
    after.schedule("report", "@daily", call=better_report.call())
    town.start(before)

    assert town.start(after) == ["report"]


def test_what_is_declared_cannot_be_removed_when_it_has_failed(town: Town) -> None:
    """S4-12 is for what is added at run time: the code would declare it again, for ever."""
    app = town.app()

    def fail(tick: Tick) -> Any:
        raise ValueError("no call today")

    with pytest.raises(ScheduleInvalid, match="would be back at once") as refused:
        app.schedule("broken", "* * * * *", call=fail, when_failed="remove")
    assert refused.value.field == "when_failed"
    with pytest.raises(ScheduleInvalid, match="would be back at once"):
        nightly(app, when_failed="remove")


def test_several_services_own_disjoint_sets(town: Town) -> None:
    first, second = town.app(), town.app()
    nightly(first)

    @second.every("5m")
    def expire() -> None: ...

    town.start(first)
    town.start(second)

    assert [each.name for each in first.schedules.all()] == ["aggregate", "expire"]


def test_a_name_that_was_added_at_run_time_is_not_taken_over(town: Town) -> None:
    first = town.app()

    @first.task
    def report() -> None: ...

    first.schedules.add("aggregate", report.call(), cron="@daily")
    second = town.app()
    nightly(second)

    with pytest.raises(ScheduleTaken, match="shigoto schedules remove aggregate"):
        town.start(second)


def test_one_that_has_vanished_from_the_code_stays_and_is_shown_so(town: Town) -> None:
    first = town.app()
    nightly(first)
    town.start(first)
    town.write("aggregate", START)

    town.clock.advance(HEARD_WITHIN + 1)
    town.start(town.app())

    assert town.shown("aggregate").status == "undeclared"
    assert [each.status for each in town.app().schedules.all()] == ["undeclared"]
    assert town.history("aggregate") == [START]
    town.app().schedules.remove("aggregate")  # now it can be
    assert town.app().schedules.all() == []


def test_of_two_processes_that_start_at_once_one_is_heard(town: Town) -> None:
    first, second = town.app(), town.app()
    nightly(first)

    @second.cron("0 3 * * *", name="aggregate", overlap="skip")
    def moved(tick: Tick) -> None: ...

    assert town.start(first) == ["aggregate"]
    town.start(second)
    assert len(town.app().schedules.all()) == 1
