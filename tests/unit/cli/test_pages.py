"""The comparison of pages with the files in tests/unit/cli/snapshots/."""

from pathlib import Path

import pytest

from tests.unit.cli.pages import FOLDER, RENEW, compare, session
from tests.unit.commands import Command


def test_a_page_that_differs_fails_with_the_lines_and_the_command_that_renews_it(tmp_path: Path) -> None:
    compare("stats", {"One job": "queue  jobs\nmail      1"}, renew=True, folder=tmp_path)
    compare("stats", {"One job": "queue  jobs\nmail      1\n"}, renew=False, folder=tmp_path)

    with pytest.raises(pytest.fail.Exception) as failed:
        compare("stats", {"One job": "queue  jobs\nmail      2"}, renew=False, folder=tmp_path)

    assert "-mail      1\n+mail      2\n" in str(failed.value)
    assert RENEW in str(failed.value)
    assert (tmp_path / "stats.txt").read_text() == "== One job\n\nqueue  jobs\nmail      1\n"


@pytest.mark.parametrize("pages", [{}, {"One": "a"}, {"One": "a", "Two": "b", "Three": "c"}])
def test_a_page_too_few_or_too_many_fails(tmp_path: Path, pages: dict[str, str]) -> None:
    compare("stats", {"One": "a", "Two": "b"}, renew=True, folder=tmp_path)

    with pytest.raises(pytest.fail.Exception):
        compare("stats", pages, renew=False, folder=tmp_path)


def test_a_command_without_a_file_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="--renew"):
        compare("stats", {"One": "a"}, renew=False, folder=tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_session_shows_commands_output_errors_and_exit_codes(shigoto: Command) -> None:
    shown = session(shigoto, "shigoto stats absent.db", "shigoto --version")

    first, second = shown.split("\n\n")
    assert first.startswith("$ shigoto stats absent.db\nError [STORE.UNAVAILABLE]: There is no such file: ")
    assert first.endswith("\n[exit code 1]")
    assert second.startswith("$ shigoto --version\nshigoto")


def test_every_file_belongs_to_a_test() -> None:
    """A file that no test reads would prove nothing."""
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))

    unread = [file.name for file in FOLDER.iterdir() if f'snapshot("{file.stem}"' not in tests]

    assert unread == []
