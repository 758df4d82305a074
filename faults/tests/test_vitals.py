"""The watch over memory, files and threads sees growth where there is some, and none where there is none."""

import os
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest

from faults.tools.vitals import MB, Sample, Vitals, family, grown, sample_of, slope, trends


def seen(
    *, memory: float = 0.0, files: float = 0.0, threads: float = 0.0, noise: float = 0.0
) -> list[Sample]:
    """A look each 5 s for half an hour at a process that takes 20 MB in its first minutes, and then grows like this
    (megabytes, files and threads in ten minutes)."""
    random = Random(7)
    return [
        Sample(
            at=at,
            pid=1,
            role="runner",
            rss=round((40 + min(at, 240) / 12 + memory * at / 600 + random.uniform(-noise, noise)) * MB),
            private=0,
            files=round(20 + files * at / 600),
            threads=round(8 + threads * at / 600) + (1 if random.random() < 0.1 else 0),
        )
        for at in (float(second) for second in range(0, 1800, 5))
    ]


def wrong_with(samples: list[Sample]) -> list[str]:
    [trend] = trends(samples, warm_up=300, at_least=600)
    return grown(trend, rss_in_ten_minutes=1.0)


def test_a_line_through_points_on_a_line_is_that_line() -> None:
    assert slope([(x, 3 * x + 4) for x in range(10)]) == pytest.approx(3)
    assert slope([(1, 5), (1, 7)]) == 0
    assert slope([]) == 0


def test_what_a_process_takes_while_it_warms_up_is_no_growth() -> None:
    """I18"""
    assert wrong_with(seen(noise=1.0)) == []


def test_a_slow_leak_of_memory_is_seen_through_noise() -> None:
    """I18"""
    [sentence] = wrong_with(seen(memory=1.5, noise=1.0))
    assert "memory grows by 1.5" in sentence


def test_leaks_of_files_and_threads_are_seen() -> None:
    """I18"""
    assert ["open files" in each or "threads" in each for each in wrong_with(seen(files=1, threads=1))] == [
        True,
        True,
    ]


def test_files_that_go_away_are_a_change_as_well() -> None:
    [sentence] = wrong_with(seen(files=-2))
    assert "open files" in sentence


def test_a_process_that_was_not_there_for_long_is_not_judged() -> None:
    samples = [sample for sample in seen(memory=50) if sample.at < 800]
    assert trends(samples, warm_up=300, at_least=600) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_this_process_is_seen_with_its_files_and_threads(tmp_path: Path) -> None:
    before = sample_of(os.getpid(), "test", 0.0)
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    with (tmp_path / "file").open("w"):
        thread.start()
        after = sample_of(os.getpid(), "test", 1.0)
    go.set()
    thread.join()

    assert before is not None
    assert after is not None
    assert (after.files - before.files, after.threads - before.threads) == (1, 1)
    assert after.rss > 10 * MB
    assert sample_of(2**22 + 1, "nobody", 0.0) is None
    assert family([os.getpid()])[os.getpid()] == "supervisor"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_the_watch_looks_until_it_ends_and_keeps_what_it_saw(tmp_path: Path) -> None:
    store = tmp_path / "jobs.db"
    (tmp_path / "jobs.db-wal").write_bytes(bytes(1000))
    with Vitals(lambda: {os.getpid(): "test"}, store, every=0.01) as vitals:
        deadline = time.monotonic() + 30
        while len(vitals.samples) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    vitals.save(tmp_path / "vitals.csv")

    assert len(vitals.samples) >= 3
    assert vitals.longest_log() == 1000
    assert vitals.longest_log(outside=[(0.0, vitals.now)]) == 0
    assert len((tmp_path / "vitals.csv").read_text().splitlines()) == 1 + len(vitals.samples) + len(
        vitals.logs
    )
