"""The peers for Node.js: what is done where something cannot be had. A program that answers like npm stands for npm."""

import json
import os
from pathlib import Path

import pytest

from bench.comparison import nodejs

NPM = """#!/bin/sh
echo "$@" >> "{calls}"
case "$*" in
  "view "*) echo '["1.0.0", "1.9.0", "1.10.0", "2.0.0-beta.1"]' ;;
  *broken@latest*|*broken@1.10.0*) echo "npm error notarget No matching version found for it" >&2; exit 1 ;;
  *hopeless*) echo "npm error notarget No matching version found for it" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What npm was asked for, line by line."""
    programs, calls = tmp_path / "programs", tmp_path / "calls"
    programs.mkdir()
    for name, text in {"npm": NPM.format(calls=calls), "node": "#!/bin/sh\necho v22.1.0\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.defpath}")
    return calls


def test_without_npm_every_peer_is_missing_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    there = nodejs.prepare(["a", "b"], place=tmp_path / "node")

    assert there.missing == dict.fromkeys(["a", "b"], "there is no npm on this machine")


def test_an_older_release_is_taken_where_the_newest_cannot_be_had(tmp_path: Path, calls: Path) -> None:
    there = nodejs.prepare(["broken"], place=tmp_path / "node")

    assert (there.version, there.missing) == ("22.1.0", {})
    asked = [line.split()[-1] for line in calls.read_text().splitlines() if line.startswith("install")]
    assert asked == ["pg@latest", "broken@latest", "broken@1.10.0", "broken@1.9.0"]


def test_who_cannot_be_had_at_all_is_named_with_the_reason(tmp_path: Path, calls: Path) -> None:
    there = nodejs.prepare(["hopeless", "fine"], place=tmp_path / "node")

    assert list(there.missing) == ["hopeless"]
    assert "No matching version found" in there.missing["hopeless"]


def test_the_folder_is_used_again_for_the_same_names(tmp_path: Path, calls: Path) -> None:
    place = tmp_path / "node"
    first = nodejs.prepare(["fine"], place=place)
    before = calls.read_text()

    assert nodejs.prepare(["fine"], place=place) == first
    assert calls.read_text() == before
    assert json.loads((place / "comparison.json").read_text())["packages"] == ["fine"]
    nodejs.prepare(["fine"], place=place, renew=True)
    assert calls.read_text() != before
