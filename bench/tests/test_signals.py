"""What watching costs: how the figures are compared, and that a signal which told of nothing is no figure."""

import pytest

from bench import signals
from bench.http import Setting
from bench.signals import Drained

SETTING = Setting(
    date="2026-11-18", command="bench signals", machine="a machine", software="software", rounds=3
)


def test_each_way_is_compared_with_off_in_its_own_round() -> None:
    """A machine that is slower for a while is so for both."""
    figures = {
        "off": [Drained(1.0, 1.0), Drained(2.0, 2.0), Drained(1.0, 1.0)],
        "logs": [Drained(1.25, 1.4), Drained(2.5, 2.4), Drained(1.25, 1.4)],
    }

    told = signals.page("sqlite", 100_000, figures, SETTING)

    assert "| off | 100,000 | 1.00 | 1.00..1.00 | 10.0 |  |" in told
    assert "| logs | 80,000 | 0.80 | 0.80..0.80 | 14.0 | 4.0 |" in told
    assert "medians of 3 rounds of 100,000 jobs" in told


def test_each_signal_is_measured_alone_and_all_together() -> None:
    assert signals.ways_to_watch() == {
        "off": (),
        "logs": ("logs",),
        "metrics": ("metrics",),
        "traces": ("traces",),
        "all": ("logs", "metrics", "traces"),
    }


def test_every_way_comes_first_once() -> None:
    names = ["off", "logs", "all"]

    assert [signals.turned(names, turn)[0] for turn in range(4)] == ["off", "logs", "all", "off"]


@pytest.mark.parametrize(
    ("on", "drained", "lines"),
    [(["logs"], Drained(1, 1), 99), ([], Drained(1, 1), 1), (["metrics"], Drained(1, 1, 99), 0)],
)
def test_what_has_not_told_of_every_job_is_no_figure(on: list[str], drained: Drained, lines: int) -> None:
    with pytest.raises(SystemExit):
        signals._expect(100, on, drained, lines)


def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    signals.main(["--rounds", "1", "--jobs", "200"])

    told = capsys.readouterr().out
    assert all(f"| {name} |" in told for name in signals.ways_to_watch())
