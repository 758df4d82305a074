"""E29, E30, E33 and E34 in their short forms: what may happen to a file that many processes use at once."""

import sys
from pathlib import Path

import pytest

from faults.evidence.records import Record
from faults.evidence.runs import Faults
from faults.experiment import Outcome, Setting
from faults.experiments import e29_contention, e30_kills, e33_checkpoint_starvation, e34_wal_reset

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc"),
]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(engine="sqlite", folder=tmp_path, seed=1, full=False)


def passed(outcome: Outcome) -> Outcome:
    print(outcome)
    assert outcome.passed, repr(outcome)
    return outcome


def test_many_producers_and_runners_share_a_file_and_never_hear_of_a_lock(setting: Setting) -> None:
    """S1-5, S1-6, S1-12, E29, I1-I6."""
    outcome = passed(e29_contention.EXPERIMENT.run(setting))

    assert outcome.n > 50
    assert outcome.figures["errors"] == 0
    assert outcome.figures["wait_max_ms"] > 0


def test_trouble_with_a_lock_would_be_found_in_a_log(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    assert e29_contention.trouble(log) == []

    log.write_text("a runner was replaced\n/jobs.db is locked by another's transaction\n")
    assert e29_contention.trouble(log) == ["/jobs.db is locked by another's transaction"]


def test_processes_killed_beside_the_file_lose_no_job_and_damage_nothing(setting: Setting) -> None:
    """S1-7, S1-8, S1-14, E30, I1-I6: runners, supervisors and producers are killed by SIGKILL."""
    outcome = passed(e30_kills.EXPERIMENT.run(setting))

    assert outcome.n >= 400
    assert sum(outcome.figures["kills"].values()) >= 4
    assert sum(outcome.figures["reruns"].values()) > 0, "what they had was taken back"
    assert outcome.figures["corrupt"] == 0
    assert outcome.figures["integrity_checks"] > 1


def test_what_an_orphan_claims_before_it_notices_is_cut_short_by_the_death_of_its_parent() -> None:
    """E08, E30: the supervisor is killed at 10 s; its runner claims once more, and ends."""
    faults = Faults([Record(what="fault", deed="bereave", pid=5, parent=4, at=10.0)])

    assert faults.that_explain(5, since=10.2, until=30.0, lease=10.0)
    assert not faults.that_explain(5, since=12.0, until=30.0, lease=10.0)


def test_a_reader_that_starves_the_checkpoint_is_told_of_and_the_log_shrinks_after_it(
    setting: Setting,
) -> None:
    """E33, I1, I18: the log grows under a held snapshot, the doctor warns, and it is cut without a restart."""
    outcome = passed(e33_checkpoint_starvation.EXPERIMENT.run(setting))

    assert outcome.figures["peak_mib"] > 64
    assert outcome.figures["doctor"].startswith("warning")
    assert outcome.figures["after_mib"] < 10


def test_constant_checkpoints_damage_nothing(setting: Setting) -> None:
    """E34, I1-I6: a few seconds of the hunt, which shows that the hunt works."""
    outcome = passed(e34_wal_reset.EXPERIMENT.run(setting))

    assert outcome.figures["rounds"] >= 1
    assert outcome.figures["rounds_without_mitigation"] >= 1
    assert outcome.figures["damaged_files"] == 0
