"""The figures of schedules: how they get into a page."""

from pathlib import Path

import pytest

from bench import schedules

PAGE = """# Schedules

<!-- begin schedules sqlite -->
old figures
<!-- end schedules sqlite -->

The rest.
"""


def test_they_stand_between_the_marks_of_their_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def lateness(*_: object) -> tuple[str, str, str, str]:
        return "lateness at rest, ms", "3.00", "9.00", "11.00"

    monkeypatch.setattr(
        schedules, "_look_and_crowd", lambda _url, kind, _options: [(kind, "1.00", "2.00", "3.00")]
    )
    monkeypatch.setattr(schedules, "_lateness", lateness)
    path = tmp_path / "schedules.md"
    path.write_text(PAGE)

    schedules.main(["--crowd", "9", "--table", str(path)])

    page = path.read_text()
    assert page.startswith("# Schedules\n\n<!-- begin schedules sqlite -->\n\n### On SQLite\n")
    assert page.endswith("<!-- end schedules sqlite -->\n\nThe rest.\n")
    assert "with `python3 dev.py bench schedules --crowd 9`." in page
    for row in ("| added | 1.00 |", "| declared | 1.00 |", "| lateness at rest, ms | 3.00 | 9.00 | 11.00 |"):
        assert row in page
    assert "old figures" not in page
    assert str(tmp_path) not in page
    assert "## On SQLite" in capsys.readouterr().out
