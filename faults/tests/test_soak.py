"""The soak's machinery in a few seconds; `python3 dev.py faults --experiment SOAK` takes half an hour."""

import sys
from pathlib import Path

import pytest

from faults.experiment import Outcome, Setting
from faults.experiments import soak
from faults.tools.vitals import MB, MIB, Sample, Vitals

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc"),
]


def test_a_mix_of_jobs_survives_a_mix_of_faults(tmp_path: Path) -> None:
    """S1-1, S1-4, S1-8, S1-14, E60, I1-I6: every kind of fault happens at least once."""
    outcome = soak.EXPERIMENT.run(Setting(engine="sqlite", folder=tmp_path, seed=1, full=False))

    print(outcome)
    assert outcome.passed, repr(outcome)
    assert set(outcome.figures["faults"]) == {
        "kill a runner",
        "kill a worker",
        "stop",
        "restart",
        "hold",
        "let go",
    }
    assert outcome.n == soak.SHORT.rate * soak.SHORT.seconds
    assert len((tmp_path / "vitals.csv").read_text().splitlines()) > 20


def test_the_timetable_of_half_an_hour_has_as_many_faults_as_it_should(tmp_path: Path) -> None:
    setting = Setting(engine="sqlite", folder=tmp_path, seed=1, full=True)
    entries = soak.timetable(soak.FULL, setting.random("timetable"))
    deeds = [deed for _, deed in entries]

    assert entries == soak.timetable(soak.FULL, setting.random("timetable")), "a seed gives the same again"
    assert 20 <= deeds.count("kill a runner") <= 45
    assert 3 <= deeds.count("kill a worker") <= 12
    assert 3 <= deeds.count("stop") <= 12
    assert deeds.count("restart") == 2
    assert deeds.count("hold") == deeds.count("let go") == 1


def half_an_hour(tmp_path: Path, *, memory: float = 0.0, files: float = 0.0, log: int = 0) -> Vitals:
    """What a soak has seen whose witness grows like this: megabytes and files in ten minutes, a log of so many MiB."""
    vitals = Vitals(dict, tmp_path / "jobs.db", every=5)
    roles = ["witness supervisor", "witness runner", "producer"]
    for at in range(0, 1800, 5):
        vitals.logs.append((at, (700 if 1310 < at < 1430 else log) * MIB))
        for pid, role in enumerate(roles):
            grows = at / 600 if role == "witness runner" else 0.0
            rss, open_files = round((50 + memory * grows) * MB), round(20 + files * grows)
            vitals.samples.append(
                Sample(at=at, pid=pid, role=role, rss=rss, private=rss, files=open_files, threads=9)
            )
    return vitals


@pytest.mark.parametrize(
    ("growth", "said"),
    [
        ({}, ""),
        ({"memory": 0.9}, ""),
        ({"memory": 1.2}, "memory grows by 1.20 MB"),
        ({"files": 1.0}, "open files"),
        ({"log": 65}, "the log had 65 MiB"),
    ],
)
def test_what_grows_in_half_an_hour_is_seen(tmp_path: Path, growth: dict[str, int], said: str) -> None:
    """I18; under a held snapshot the log may be long."""
    outcome = Outcome()
    soak.judge(outcome, half_an_hour(tmp_path, **growth), soak.FULL, held=[(1300.0, 1440.0)], strictly=True)

    assert [said in sentence for sentence in outcome.wrong] == ([True] if said else [])
    assert outcome.figures["longest_log_under_a_snapshot_mib"] == 700


def test_a_soak_whose_witness_died_shows_nothing(tmp_path: Path) -> None:
    vitals = half_an_hour(tmp_path)
    vitals.samples = [
        sample for sample in vitals.samples if sample.role != "witness runner" or sample.at < 700
    ]
    outcome = Outcome()
    soak.judge(outcome, vitals, soak.FULL, held=[(1300.0, 1440.0)], strictly=True)

    assert outcome.wrong == ["only these lived long enough: ['producer', 'witness supervisor']"]
