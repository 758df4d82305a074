"""The figures of the service: how they get into a page, and what else stands there."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import http

PAGE = """# The service

<!-- begin http sqlite -->
old figures
<!-- end http sqlite -->

<!-- begin http postgres -->
others
<!-- end http postgres -->
"""


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds without a server."""
    told: Iterator[dict[str, float]] = iter(
        {"drained over HTTP, jobs/s": figure, "over HTTP of at the store": figure / 60_000}
        for figure in (42_000.0, 51_000.0, 30_000.0)
    )
    monkeypatch.setattr(http, "one_round", lambda _: next(told))


@pytest.mark.usefixtures("rounds")
def test_they_stand_between_the_marks_of_their_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "http.md"
    path.write_text(PAGE)

    http.main(["--rounds", "3", "--jobs", "9", "--table", str(path)])

    page = path.read_text()
    assert page.startswith("# The service\n\n<!-- begin http sqlite -->\n\n### On SQLite\n")
    assert page.endswith("<!-- end http sqlite -->" + PAGE.partition("<!-- end http sqlite -->")[2])
    assert "| drained over HTTP, jobs/s | 42,000 | 30,000..51,000 |" in page
    assert "| over HTTP of at the store | 0.70 | 0.50..0.85 |" in page
    assert "with `python3 dev.py bench http --rounds 3 --jobs 9`: medians of 3 rounds." in page
    assert f"with SQLite {sqlite3.sqlite_version}." in page
    assert str(tmp_path) not in page
    assert "old figures" not in page
    assert "## On SQLite" in capsys.readouterr().out
