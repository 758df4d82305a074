"""Schedules on the command line: `shigoto schedules`."""

import json
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from shigoto import Shigoto, Tick
from shigoto.engine.open import open_engine
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.time import to_millis
from tests.unit.cli.pages import SnapshotCheck, session
from tests.unit.commands import Command, Store, command

SHOP = """
from shigoto import Shigoto, Tick

app = Shigoto("sqlite:///jobs.db")

@app.cron("0 3 * * *", tz="Asia/Tokyo")
def aggregate(tick: Tick) -> None: ...

@app.task(queue="reports")
def report(kind: str, copies: int = 1) -> None: ...
"""
BERLIN = ("--tz", "Europe/Berlin")
LINE = re.compile(r"\w{3} (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d\d:\d\d)")


@pytest.fixture
def shigoto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    for name in list(os.environ):
        if name.startswith("SHIGOTO_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SHIGOTO_URL", "jobs.db")
    (tmp_path / "schedule_shop.py").write_text(SHOP)
    Store().engine.close()
    yield command(capsys)
    sys.modules.pop("schedule_shop", None)


def added(shigoto: Command, name: str, *words: str) -> dict[str, Any]:
    """A schedule that was just added."""
    done = shigoto("schedules", "add", name, "user_created", '{"message": "hi"}', *words, "--json")
    assert done.code == 0, done.err
    record: dict[str, Any] = done.json
    return record


def declared(shigoto: Command) -> None:
    """Bring what the shop declares into the store, as a worker does."""
    from shigoto.app import load_app
    from shigoto.model.ids import uuid7
    from shigoto.schedule.declare import declare_op

    app: Shigoto = load_app("schedule_shop:app")
    app.engine.run(declare_op(app.engine, app.declared, uuid7))
    app.close()
    sys.modules.pop("schedule_shop")


# Looking


def test_a_schedule_is_added_and_listed_with_its_next_tick(shigoto: Command) -> None:
    """S4-3: it is validated and stored, its next run is computed, and it can be named."""
    done = shigoto("schedules", "add", "nightly", "user_created", '{"message": "hi"}', "--cron", "0 3 * * *")
    assert (done.code, done.out[:43]) == (0, "Schedule nightly is added: due next at 20" + done.out[41:43])

    [header, line] = shigoto("schedules").lines

    assert header.split()[:3] == ["schedule", "when", "time"]
    assert re.match(
        r"nightly +0 3 \* \* \* +UTC +user_created +active +20\d\d-\d\d-\d\dT03:00:00Z +0 +0 +-", line
    )


def test_without_schedules_the_list_says_how_to_get_some(shigoto: Command) -> None:
    assert "@app.cron" in shigoto("schedules").out
    assert shigoto("schedules", "--json").json == []


@pytest.mark.parametrize(
    "words", [["jobs.db"], ["list"], ["list", "jobs.db"], ["--url", "jobs.db"], ["--json"]]
)
def test_the_list_is_what_is_meant_where_no_command_is_named(shigoto: Command, words: list[str]) -> None:
    added(shigoto, "nightly", "--cron", "@daily")

    done = shigoto("schedules", *words)

    assert done.code == 0
    assert "nightly" in done.out


def test_the_record_for_programs_has_the_arguments_as_json(shigoto: Command) -> None:
    record = added(shigoto, "nightly", "--cron", "30 2 * * *", *BERLIN, "--overlap", "skip", "--jitter", "90")

    assert record["payload"] == {"message": "hi"}
    assert (record["when"], record["tz"], record["overlap"]) == ("30 2 * * *", "Europe/Berlin", "skip")
    assert (
        record
        == shigoto("schedules", "show", "nightly", "--json").json
        == shigoto("schedules", "--json").json[0]
    )


def test_one_schedule_is_shown_with_all_that_was_said_of_it(shigoto: Command) -> None:
    words = ("--catch-up", "all", "--catch-up-most", "7", "--catch-up-within", "2h", "--until", "2090-01-01")
    added(shigoto, "nightly", "--cron", "30 2 * * *", *BERLIN, *words)

    out = shigoto("schedules", "show", "nightly").out

    assert "all, at most 7 at once, up to 2 h 0 min late" in out
    assert "Sun 2090-01-01 00:00:00 +01:00" in out  # on the wall of the schedule
    assert '{"message":"hi"}' in out


def test_what_is_declared_in_code_is_shown_with_its_origin(shigoto: Command) -> None:
    declared(shigoto)

    assert "schedule_shop:aggregate" in shigoto("schedules").out


# Errors


@pytest.mark.parametrize(
    "words",
    [["preview"], ["resume"], ["run-now"], ["backfill", "--from", "2026-01-01", "--to", "2026-01-02"]],
)
def test_a_zone_that_is_not_known_here_is_an_error_that_says_so(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Looking is none: `show` and `list` tell times in UTC then."""
    added(shigoto, "nightly", "--cron", "0 3 * * *", *BERLIN)
    assert shigoto("schedules", "pause", "nightly").code == 0

    def unknown(name: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr("shigoto.schedule.recurrence.ZoneInfo", unknown)
    verb, *options = words
    done = shigoto("schedules", verb, "nightly", *options)

    assert "This system does not know the time zone 'Europe/Berlin'. `pip install tzdata`" in done.err
    assert done.code == (1 if verb == "resume" else 2)  # which goes on with the next name
    assert [shigoto("schedules", *look).code for look in (["show", "nightly"], ["list"])] == [0, 0]


def test_a_schedule_whose_zone_nobody_here_knows_is_shown_as_such(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    added(shigoto, "nightly", "--cron", "0 3 * * *", *BERLIN)

    def unknown(name: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(name)

    monkeypatch.setattr("shigoto.schedule.recurrence.ZoneInfo", unknown)

    assert "unreadable" in shigoto("schedules", "list").out
    shown = " ".join(shigoto("schedules", "show", "nightly").out.split())
    assert "unreadable: nobody here can tell when it is due" in shown
    assert "This system does not know the time zone 'Europe/Berlin'." in shown
    assert shigoto("schedules", "update", "nightly", "--tz", "UTC").code == 0
    assert "active" in shigoto("schedules", "list").out


@pytest.mark.parametrize("verb", ["show", "pause", "resume", "remove", "run-now", "history", "preview"])
def test_an_unknown_name_is_an_error_with_a_suggestion(shigoto: Command, verb: str) -> None:
    """S4-4, S4-5: an unknown id is an error."""
    added(shigoto, "nightly", "--cron", "@daily")

    done = shigoto("schedules", verb, "nihgtly")

    assert done.code == 1
    assert "[SCHEDULE.NOT_FOUND]: There is no schedule 'nihgtly'. Did you mean 'nightly'?" in done.err


@pytest.mark.parametrize(
    ("words", "field", "why"),
    [
        (["--cron", "61 * * * *"], "cron", "the minute of cron '61 * * * *' cannot be meant"),
        (["--cron", "* * *"], "cron", "has 3"),
        (["--cron", "@dayly"], "cron", "@daily"),
        (["--cron", "0 0 30 2 *"], "cron", "is never due"),
        (["--cron", "@daily", "--tz", "Europe/Berlni"], "tz", "Did you mean 'Europe/Berlin'?"),
        (["--every", "0.5s"], "every", "at least a second"),
        (["--every", "often"], "every", "not 'often'"),
        (["--at", "2020-01-01"], "at", "lies in the past"),
        (["--cron", "@daily", "--until", "2020-01-01"], "until", "lies in the past"),
        (["--cron", "@daily", "--every", "5m"], "every", "one of cron, every and at, not cron and every"),
        ([], "cron", "one of cron, every and at, not none of them"),
        (["--every", "5m", "--gap", "skip"], "gap", "goes with cron"),
        (["--cron", "@daily", "--catch-up-most", "0"], "catch_up_most", "from 1 to"),
    ],
)
def test_an_error_names_the_field_and_says_why(
    shigoto: Command, words: list[str], field: str, why: str
) -> None:
    """S4-15: expression, parameters and times are validated, and the caller gets a detailed error."""
    done = shigoto("schedules", "add", "nightly", "user_created", '{"message": "hi"}', *words, "--json")

    error = json.loads(done.err)["error"]
    assert (done.code, error["code"], error["field"]) == (2, "SCHEDULE.INVALID", field)
    assert why in error["message"]
    assert shigoto("schedules", "--json").json == []


def test_the_arguments_of_the_task_are_checked(shigoto: Command) -> None:
    """S4-15: task parameters are validated, too."""
    words = ("--app", "schedule_shop:app", "schedules", "add", "weekly", "report")

    done = shigoto(*words, '{"kind": 7}', "--cron", "@weekly")
    unknown = shigoto(*words[:-1], "reprot", "--cron", "@weekly")

    assert (done.code, unknown.code) == (1, 1)
    assert "argument 'kind'" in done.err
    assert "Did you mean 'report'?" in unknown.err


def test_a_name_that_is_taken_is_an_error(shigoto: Command) -> None:
    added(shigoto, "nightly", "--cron", "@daily")

    done = shigoto("schedules", "add", "nightly", "user_created", '{"message": "hi"}', "--every", "5m")

    assert (done.code, "[SCHEDULE.TAKEN]" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["pasue", "x"], "There is no command 'schedules pasue'. Did you mean 'pause'?"),
        (["show"], "Which schedule?"),
        (["show", "jobs.db"], "jobs.db is the store."),
        (["show", "a", "b"], "one word too many"),
        (["add", "nightly"], "Which task?"),
        (["add", "a", "b", "{}", "c"], "one word too many"),
        (["update", "nightly"], "What shall be changed?"),
        (["update", "nightly", "--arg", "a=1"], "--arg needs the TASK"),
        (["update", "nightly", "--tag", "a"], "--tag needs the TASK"),
        (["preview"], "Or say --cron."),
        (["preview", "nightly", "--cron", "@daily"], "not both"),
        (["preview", "nightly", *BERLIN], "--tz goes with --cron"),
        (["preview", "--cron", "@daily", "--from", "soon"], "'soon' is no time"),
        (["preview", "--cron", "@daily", "--from", "0001-01-01"], "not in a year from 2 to 9998"),
        (["preview", "--cron", "@daily", "--from", "9999-12-30"], "not in a year from 2 to 9998"),
        (["add", "y", "t", "--at", "0001-01-01", "--tz", "Asia/Tokyo"], "not in a year from 2 to 9998"),
        (["update", "nightly", "--cron", "none"], "--cron none: a schedule must be due at some time"),
        (["update", "nightly", "--every", "none"], "--every none: a schedule must be due at some time"),
        (["backfill", "nightly", "--from", "2030-01-01"], "Missing option '--to'"),
    ],
)
def test_misuse_is_told_before_anything_is_done(shigoto: Command, words: list[str], why: str) -> None:
    done = shigoto("schedules", *words)

    assert done.code == 2
    assert why in " ".join(done.err.split())


def test_looking_creates_no_store(shigoto: Command) -> None:
    done = shigoto("--url", "none.db", "schedules", "list")

    assert done.code == 2 or done.code == 1
    assert not Path("none.db").exists()


# Changing


def test_an_update_changes_what_is_named_and_leaves_the_rest(shigoto: Command) -> None:
    """S4-4: the change is validated and stored, and the next run is computed again."""
    before = added(
        shigoto, "nightly", "--cron", "30 2 * * *", *BERLIN, "--overlap", "skip", "--until", "2090-01-01"
    )

    after = shigoto("schedules", "update", "nightly", "--cron", "0 4 * * *", "--until", "none", "--json").json

    assert after == {**before, "when": "0 4 * * *", "until": None, "next_at": after["next_at"]}
    assert after["next_at"] != before["next_at"]


def test_to_catch_up_none_is_a_policy_and_no_missing_limit(shigoto: Command) -> None:
    record = added(shigoto, "nightly", "--cron", "@daily", "--catch-up", "none", "--catch-up-within", "2h")
    changed = shigoto("schedules", "update", "nightly", "--catch-up", "latest", "--json").json
    again = shigoto("schedules", "update", "nightly", "--catch-up", "none", "--json").json
    unlimited = shigoto("schedules", "update", "nightly", "--catch-up-within", "none", "--json").json

    assert [each["catch_up"] for each in (record, changed, again)] == ["none", "latest", "none"]
    assert (record["catch_up_within"], unlimited["catch_up_within"]) == ("PT7200S", None)


def test_what_becomes_of_one_that_has_failed_is_said_and_shown(shigoto: Command) -> None:
    """S4-12: removed if so configured."""
    record = added(shigoto, "nightly", "--cron", "@daily", "--when-failed", "remove")
    shown = shigoto("schedules", "show", "nightly").out
    kept = shigoto("schedules", "update", "nightly", "--when-failed", "keep", "--json").json

    assert (record["when_failed"], kept["when_failed"]) == ("remove", "keep")
    assert re.search(r"when failed +remove", shown)


@pytest.mark.parametrize("option", ["--cron", "--every", "--at", "--tz", "--jitter"])
def test_none_is_a_wrong_word_where_something_has_to_be_said(shigoto: Command, option: str) -> None:
    added(shigoto, "nightly", "--cron", "@daily")

    done = shigoto("schedules", "update", "nightly", option, "none")

    assert (done.code, "none" in done.err) == (2, True)


def test_an_update_from_times_on_the_wall_to_an_interval_forgets_gap_and_fold(shigoto: Command) -> None:
    added(shigoto, "nightly", "--cron", "30 2 * * *", *BERLIN, "--gap", "skip")

    done = shigoto("schedules", "update", "nightly", "--every", "1h", "--json")

    assert (done.json["when"], done.json["tz"]) == ("every 1h", "Europe/Berlin")


def test_an_update_with_a_task_says_its_jobs_anew(shigoto: Command) -> None:
    added(shigoto, "nightly", "--cron", "@daily")
    words = ("--app", "schedule_shop:app", "schedules", "update", "nightly", "report")

    done = shigoto(*words, '{"kind": "short"}', "--arg", "copies=2", "--queue", "other", "--json")

    assert done.json["payload"] == {"kind": "short", "copies": 2}
    assert (done.json["task"], done.json["queue"], done.json["when"]) == ("report", "other", "@daily")


def test_schedules_are_paused_resumed_and_removed_by_name(shigoto: Command) -> None:
    """S4-5: of one that is removed nothing is left."""
    for name in ("a", "b"):
        added(shigoto, name, "--cron", "@daily")

    paused = shigoto("schedules", "pause", "a", "b")
    assert paused.lines == ["Schedule a is paused.", "Schedule b is paused."]
    assert {each["status"] for each in shigoto("schedules", "--json").json} == {"paused"}
    assert shigoto("schedules", "resume", "a").out.startswith("Schedule a goes on: due next at ")
    assert shigoto("schedules", "remove", "jobs.db", "a", "--json").json == [{"schedule": "a"}]
    assert [each["name"] for each in shigoto("schedules", "--json").json] == ["b"]


def test_of_several_names_each_is_told_of_and_one_that_is_unknown_is_an_error(shigoto: Command) -> None:
    added(shigoto, "b", "--cron", "@daily")

    done = shigoto("schedules", "pause", "a", "b", "--json")

    assert done.code == 1
    assert [each["schedule"] for each in done.json] == ["a", "b"]
    assert done.json[0]["error"]["code"] == "SCHEDULE.NOT_FOUND"
    assert "error" not in done.json[1]


def test_a_declared_schedule_is_neither_changed_nor_removed_from_outside(shigoto: Command) -> None:
    declared(shigoto)

    for words in (["remove", "aggregate"], ["update", "aggregate", "--cron", "@daily"]):
        done = shigoto("schedules", *words)
        assert (done.code, "[SCHEDULE.TAKEN]" in done.err) == (1, True)
    assert shigoto("schedules", "pause", "aggregate").code == 0


def test_a_job_now_stands_beside_the_ticks(shigoto: Command) -> None:
    added(shigoto, "nightly", "--cron", "@daily")

    jobs = [shigoto("schedules", "run-now", "nightly", "--json").json["job"] for _ in range(3)]

    assert len(set(jobs)) == 3
    assert [each["outcome"] for each in shigoto("schedules", "history", "nightly", "--json").json] == [
        "run_now"
    ] * 3
    assert {job["id"] for job in shigoto("list", "all", "--json").json} == set(jobs)


def test_a_job_that_code_makes_needs_the_app(shigoto: Command) -> None:
    declared(shigoto)

    without = shigoto("schedules", "run-now", "aggregate")
    with_app = shigoto("--app", "schedule_shop:app", "schedules", "run-now", "aggregate", "--json")

    assert (without.code, "--app" in without.err) == (2, True)
    [job] = shigoto("list", "all", "--json").json
    assert (job["id"], job["task"]) == (with_app.json["job"], "aggregate")
    assert job["payload"]["tick"]["tz"] == "Asia/Tokyo"


def test_a_backfill_fires_what_has_not_fired_and_no_more_the_second_time(shigoto: Command) -> None:
    added(shigoto, "nightly", "--cron", "30 2 * * *", *BERLIN)
    words = ("schedules", "backfill", "nightly", "--from", "2026-03-28", "--to", "2026-03-31")

    assert shigoto(*words).out == "3 ticks of schedule nightly fired.\n"
    assert shigoto(*words).out == "0 ticks of schedule nightly fired.\n"
    ticks = shigoto("schedules", "history", "nightly")
    assert [line.split()[1:3] for line in ticks.lines[1:]] == [
        ["2026-03-30", "02:30:00"],
        ["2026-03-29", "03:00:00"],
        ["2026-03-28", "02:30:00"],
    ]
    older = shigoto(
        "schedules", "history", "nightly", "--before", "2026-03-30", "--limit", "1", "--json"
    ).json
    assert [each["at"] for each in older] == ["2026-03-29T01:00:00Z"]


def test_a_backfill_whose_end_lies_before_its_begin_is_refused(shigoto: Command) -> None:
    added(shigoto, "nightly", "--cron", "@daily")

    done = shigoto("schedules", "backfill", "nightly", "--from", "2026-01-02", "--to", "2026-01-01")

    assert (done.code, "must not lie before since" in done.err) == (2, True)


def test_too_many_ticks_at_once_are_refused(shigoto: Command) -> None:
    added(shigoto, "often", "--every", "1s")

    done = shigoto("schedules", "backfill", "often", "--from", "1990-01-01", "--to", "2020-01-01", "--json")

    assert (done.code, json.loads(done.err)["error"]["field"]) == (2, "to")


# What will happen


def oracle(hour: int, minute: int, zone: str, first: datetime, last: datetime) -> list[str]:
    """Every minute of real time, asked what the clocks show; and what they never show, at the leap."""
    tz = ZoneInfo(zone)
    local = [at.astimezone(tz) for at in minutes(first, last)]
    due: list[datetime] = []
    seen: set[datetime] = set()
    for before, at in zip([None, *local], local, strict=False):
        naive = at.replace(tzinfo=None, fold=0)
        shown = at.hour == hour and at.minute == minute
        # By how much the clocks show more than the minute that has passed since.
        leap = timedelta(0) if before is None else naive - before.replace(tzinfo=None) - timedelta(minutes=1)
        leapt = [naive - timedelta(minutes=ago) for ago in range(1, int(leap.total_seconds() // 60) + 1)]
        if any(each.hour == hour and each.minute == minute for each in leapt) or (
            shown and naive not in seen
        ):
            due.append(at)
        seen.add(naive)
    return [f"{at:%Y-%m-%d %H:%M:%S} {at.isoformat()[-6:]}" for at in due]


def minutes(first: datetime, last: datetime) -> list[datetime]:
    count = int((last - first).total_seconds() // 60)
    return [first + timedelta(minutes=passed) for passed in range(count + 1)]


@pytest.mark.parametrize(
    ("zone", "days"),
    [
        ("Europe/Berlin", ["2026-03-29", "2026-10-25"]),
        ("America/New_York", ["2026-03-08", "2026-11-01"]),
        ("Australia/Lord_Howe", ["2026-04-05", "2026-10-04"]),  # by half an hour
        ("Asia/Tokyo", ["2026-03-29"]),  # nothing changes
    ],
)
@pytest.mark.parametrize("minute", [0, 15, 30, 45])
@pytest.mark.parametrize("hour", [1, 2, 3])
def test_a_preview_across_a_change_of_the_clocks_is_what_a_walk_over_every_minute_finds(
    shigoto: Command, zone: str, days: list[str], hour: int, minute: int
) -> None:
    """S4-22: both days on which the clocks are changed, against an oracle that knows nothing of cron."""
    for day in days:
        noon = datetime.fromisoformat(f"{day}T12:00Z")
        first, last = noon - timedelta(days=2), noon + timedelta(days=2)

        done = shigoto(
            *("schedules", "preview", "--cron", f"{minute} {hour} * * *", "--tz", zone),
            *("--from", first.isoformat(), "--to", last.isoformat()),
        )

        assert LINE.findall(done.out) == oracle(hour, minute, zone, first, last)


def test_a_preview_says_what_happens_where_the_clocks_are_changed(
    shigoto: Command, snapshot: SnapshotCheck
) -> None:
    preview = "shigoto schedules preview --tz Europe/Berlin"
    spring, autumn = "--from 2026-03-28 --to 2026-03-30", "--from 2026-10-24 --to 2026-10-26"
    night = "--from 2026-03-29T01:00 --to 2026-03-29T04:00"
    titles = {
        "A time that does not exist runs after the change": f"--cron '30 2 * * *' {spring}",
        "Or it is left out": f"--cron '30 2 * * *' {spring} --gap skip",
        "Several times that do not exist run once": f"--cron '0,20,40,50 2 * * *' {spring}",
        "A time that comes twice runs the first time": f"--cron '30 2 * * *' {autumn}",
        "Or both times": f"--cron '30 2 * * *' {autumn} --fold both",
        "Other times are not touched": f"--cron '0 4 * * *' {autumn}",
        "What is due again soon is left out": f"--cron '*/30 * * * *' {night}",
    }

    snapshot("schedules", {title: session(shigoto, f"{preview} {words}") for title, words in titles.items()})


def test_a_preview_has_a_limit_and_says_that_there_is_more(shigoto: Command) -> None:
    added(shigoto, "often", "--every", "1h")

    named = shigoto("schedules", "preview", "often", "--limit", "3", "--json").json
    cut = shigoto("schedules", "preview", "often", "--limit", "3", "--to", "2090-01-01")
    none = shigoto("schedules", "preview", "--cron", "@yearly", "--from", "2030-02-01", "--to", "2030-03-01")

    assert (len(named["ticks"]), named["more"], named["clock_changes"]) == (3, True, [])
    assert all(datetime.fromisoformat(at) > datetime.now(UTC) for at in named["ticks"])
    assert "the first 3" in cut.err
    assert none.out == "It is not due in that time.\n"


def test_a_preview_begins_at_the_time_of_the_store(shigoto: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    added(shigoto, "often", "--every", "1h")
    ahead = datetime.now(UTC) + timedelta(days=3)  # of the host, as the clock of a server may be
    words = {"synchronous": "full", "clock": lambda: to_millis(ahead)}
    monkeypatch.setattr(SqliteEngine.__init__, "__kwdefaults__", words)

    told = shigoto("schedules", "preview", "often", "--limit", "1", "--json").json

    assert timedelta(0) < datetime.fromisoformat(told["ticks"][0]) - ahead <= timedelta(hours=1)


def test_a_preview_for_programs_has_the_changes_of_the_clocks(shigoto: Command) -> None:
    words = ("--from", "2026-03-28", "--to", "2026-03-30")

    told = shigoto("schedules", "preview", "--cron", "30 2 * * *", *BERLIN, *words, "--json").json

    assert told["ticks"] == ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00"]
    [change] = told["clock_changes"]
    assert (change["at"], change["by"], change["times"]) == ("2026-03-29T03:00:00+02:00", 3600.0, ["02:30"])


def test_the_tick_of_an_interval_is_told_in_the_zone_that_was_named() -> None:
    engine = open_engine("memory:")
    app = Shigoto(engine=engine)

    @app.every("1h", tz="Asia/Tokyo")
    def hourly(tick: Tick) -> str:
        return str(tick.local)

    assert app.declared["hourly"].definition.tz == "Asia/Tokyo"
