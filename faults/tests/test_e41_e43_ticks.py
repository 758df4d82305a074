"""Schedulers that are killed, stopped and gone for a while: E41 and E43 in their short forms, on both engines; and that
their judges can see what they are there to see.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from faults.evidence.records import Record
from faults.evidence.ticks import judge, lateness, ticks_of
from faults.experiment import Outcome, Setting
from faults.experiments import e28_clocks, e41_schedulers, e43_downtime
from shigoto import TickOutcome, TickRecord
from shigoto.model.ids import uuid7

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc"),
]
EXPECTED = {"s": [1_000, 2_000, 3_000]}


@pytest.fixture
def in_a_file(tmp_path: Path) -> Setting:
    return Setting(engine="sqlite", folder=tmp_path, seed=41, full=False)


def expect_every_tick_once(outcome: Outcome) -> None:
    assert outcome.passed, (outcome.wrong, outcome.zeros, outcome.figures)
    assert outcome.n >= 20 * 20
    assert outcome.figures["deeds"]["kill"] > 0
    assert outcome.figures["deeds"]["stop"] > 0
    assert outcome.figures["outages"] > 0


@pytest.mark.engine("sqlite")
def test_e41_each_tick_has_one_job_though_schedulers_are_killed_and_stopped(in_a_file: Setting) -> None:
    """E41, I8, F26, S4-20, S4-21: five of them, and a file that nobody can write to for seconds."""
    expect_every_tick_once(e41_schedulers.EXPERIMENT.run(in_a_file))


@pytest.mark.engine("postgres")
@pytest.mark.newest_postgres
def test_e41_each_tick_has_one_job_though_the_server_is_killed_too(on_postgres: Setting) -> None:
    """E41, I8, F26, S4-20, S4-21: five schedulers, and a server that is killed and started again."""
    expect_every_tick_once(e41_schedulers.EXPERIMENT.run(on_postgres))


def expect_what_each_policy_says(outcome: Outcome) -> None:
    assert outcome.passed, (outcome.wrong, outcome.zeros, outcome.figures)
    minutes = {name: found["ran"] for name, found in outcome.figures["every minutes"].items()}
    assert minutes == {"none": 0, "latest": 1, "all": 10, "three": 3, "young": 2, "latest-young": 0}
    seconds = outcome.figures["every seconds"]
    assert all(found["due"] >= e43_downtime.TICKS for found in seconds.values())
    assert seconds["all"]["ran"] == seconds["all"]["due"]
    assert {seconds[name]["ran"] for name in ("none", "latest")} == {1}


@pytest.mark.engine("sqlite")
def test_e43_ten_ticks_without_a_scheduler_give_what_the_policy_says_and_the_history_shows_it(
    in_a_file: Setting,
) -> None:
    """E43, F27, S4-22: every scheduler is killed, and one is started after ten ticks."""
    expect_what_each_policy_says(e43_downtime.EXPERIMENT.run(in_a_file))


@pytest.mark.engine("postgres")
@pytest.mark.newest_postgres
def test_e43_ten_ticks_without_a_scheduler_give_what_the_policy_says_on_a_server(
    on_postgres: Setting,
) -> None:
    """E43, F27, S4-22."""
    expect_what_each_policy_says(e43_downtime.EXPERIMENT.run(on_postgres))


@pytest.mark.engine("postgres")
@pytest.mark.newest_postgres
def test_e28_workers_with_wrong_clocks_and_a_server_whose_clock_steps_fire_each_tick_once(
    on_postgres: Setting,
) -> None:
    """E28, F24, F25, I8, I10: only the server's clock counts, and what it shows twice fires once."""
    outcome = e28_clocks.EXPERIMENT.run(on_postgres)

    assert outcome.passed, (outcome.wrong, outcome.zeros, outcome.figures)
    assert outcome.figures["ticks that fired"] > 60


def began(schedule: str, at: int, job: str, when: float = 0.0) -> Record:
    return Record(what="start", at=when, pid=1, job=job, key=schedule, order=str(at))


class TestJudge:
    """What handlers have written down, held against what was expected."""

    FIRED = (began("s", 1_000, "a"), began("s", 2_000, "b"), began("s", 3_000, "c"))

    def test_each_once_is_right(self) -> None:
        assert judge(ticks_of(self.FIRED), EXPECTED).wrong == []

    def test_a_job_that_runs_again_is_the_same_job(self) -> None:
        again = (*self.FIRED, began("s", 2_000, "b", when=5.0))

        assert judge(ticks_of(again), EXPECTED).wrong == []
        assert ticks_of(again)["s"][2_000] == {"b": 0.0}

    def test_a_missing_tick_is_seen(self) -> None:
        assert judge(ticks_of(self.FIRED[:2]), EXPECTED).missing == [("s", 3_000)]
        assert judge({}, EXPECTED).missing == [("s", 1_000), ("s", 2_000), ("s", 3_000)]

    def test_two_jobs_of_one_tick_are_seen_at_whatever_time(self) -> None:
        twice = (*self.FIRED, began("s", 2_000, "other"), began("s", 9_000, "d"), began("s", 9_000, "e"))

        assert judge(ticks_of(twice), EXPECTED).doubled == [("s", 2_000), ("s", 9_000)]

    def test_what_is_no_tick_is_seen(self) -> None:
        odd = (*self.FIRED, began("s", 2_001, "x"), began("s", 4_000, "later"))

        assert judge(ticks_of(odd), EXPECTED).odd == [("s", 2_001)]

    def test_lateness_is_that_of_the_first_handler(self) -> None:
        records = [began("s", 1_000, "a", when=0.25), began("s", 1_000, "a", when=7.0)]

        assert lateness(ticks_of(records), 0, 2_000, host=1.0) == [0.25]


class TestPolicies:
    """What E43 expects is written down here by hand."""

    def test_by_the_second_the_newest_is_on_time(self) -> None:
        def lines(name: str) -> list[e43_downtime.Line]:
            return e43_downtime.expected(name, 10_000, 20_300, 1_000)

        newest = ("fired", 20_000, 20_000, 1)
        assert lines("none") == lines("latest") == [("missed", 11_000, 19_000, 9), newest]
        assert [line[0] for line in lines("all")] == ["caught_up"] * 9 + ["fired"]
        assert lines("three")[0] == lines("young")[0] == ("missed", 11_000, 17_000, 7)

    def test_by_two_minutes_it_is_late(self) -> None:
        now = 10 * 120_000 + 75_000

        def lines(name: str) -> list[e43_downtime.Line]:
            return e43_downtime.expected(name, 0, now, 120_000)

        assert lines("none") == lines("latest-young") == [("missed", 120_000, 1_200_000, 10)]
        assert lines("latest")[1:] == [("caught_up", 1_200_000, 1_200_000, 1)]
        assert lines("young") == [
            ("missed", 120_000, 960_000, 8),
            ("caught_up", 1_080_000, 1_080_000, 1),
            ("caught_up", 1_200_000, 1_200_000, 1),
        ]


def test_e28_sees_ticks_that_fire_early_twice_or_beside_the_history() -> None:
    """E28: the judge of its ticks."""
    job = uuid7()
    instant = datetime(2026, 1, 1, tzinfo=UTC)
    at = round(instant.timestamp())
    line = TickRecord(
        at=instant, outcome=TickOutcome.FIRED, decided_at=instant + timedelta(seconds=1), job=job
    )
    lines, states = {"s": [line]}, {str(job): "completed"}

    def judged(*records: Record, shows: float = 1.0) -> list[str]:
        return e28_clocks.judged_ticks(records, states, lines, lambda when: at + shows + when).wrong

    own = began("s", at * 1000, str(job))
    assert judged(own) == []
    assert judged(own, shows=-0.1) == ["1 fired before they were due"]
    assert judged(own, began("s", at * 1000, "other")) == [
        "1 fired twice",
        "1 ran, and are not in the history",
    ]
    assert judged() == ["1 have a job that ended without a run"]
