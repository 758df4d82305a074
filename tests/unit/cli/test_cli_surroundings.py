"""The command line where the world around it is broken: paths, bytes, streams, terminals."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from shigoto import cli
from shigoto.cli import output
from shigoto.cli.jobs import jobs_table, stats_table
from shigoto.engine.open import open_engine
from shigoto.model.ids import uuid7
from shigoto.model.job import Counts, Job, JobFilter, State
from shigoto.model.time import to_datetime
from tests.unit.commands import own_signals

UNDECODABLE = "\udcff"  # what Python makes of the byte 0xff in an argument


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new store in the current directory."""
    for name in ("SHIGOTO_APP", "SHIGOTO_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    engine = open_engine("jobs.db")
    engine.migrate()
    engine.close()
    with own_signals():
        yield tmp_path / "jobs.db"


def complaint(capsys: pytest.CaptureFixture[str], *words: str, code: int = 1) -> str:
    """The one line of a command that fails."""
    assert cli.execute(list(words)) == code
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def run(redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a shell that redirects its output."""
    command = f'exec "$@" {redirection}'
    program = [sys.executable, "-m", "shigoto", *words]
    return subprocess.run(
        ["sh", "-c", command, "sh", *program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def stored() -> int:
    engine = open_engine("jobs.db")
    jobs = engine.run(engine.find(JobFilter()))
    engine.close()
    return len(jobs)


@pytest.mark.parametrize("command", ["stats", "list", "migrate", "worker"])
def test_a_name_that_is_too_long_is_explained(
    store: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert "File name too long." in complaint(
        capsys, command, f"{'n' * 300}.db", *(["--drain", "--log-level=error"] if command == "worker" else [])
    )


@pytest.mark.parametrize("command", ["stats", "list", "migrate", "worker"])
def test_links_that_lead_in_a_circle_are_explained(
    store: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    Path("circle").symlink_to("circle")
    quietly = ["--log-level=error"] if command == "worker" else []

    assert "cannot be the path of a store" in complaint(capsys, command, "circle/jobs.db", *quietly)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may search every folder")
@pytest.mark.parametrize("command", ["stats", "list", "migrate"])
def test_a_folder_that_may_not_be_searched_is_explained(
    store: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    Path("closed/inside").mkdir(parents=True)
    Path("closed").chmod(0)
    try:
        assert "Permission denied." in complaint(capsys, command, "closed/inside/jobs.db")
    finally:
        Path("closed").chmod(0o700)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *[
            (("enqueue", "jobs.db", "user_created", "x", option, UNDECODABLE), 2)
            for option in ("--key", "--tenant", "--tag", "--queue")
        ],
        (("enqueue", "jobs.db", "user_created", UNDECODABLE), 1),
        (("enqueue", "jobs.db", "user_created", "--arg", f"message={UNDECODABLE}"), 1),
        (("enqueue", "jobs.db", UNDECODABLE, "x"), 1),
        (("worker", "jobs.db", "--drain", "--name", UNDECODABLE), 2),
    ],
)
def test_bytes_that_are_no_text_are_refused_where_they_are_given(
    store: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int
) -> None:
    assert complaint(capsys, *words, code=code).startswith("Error [JOB.")
    assert stored() == 0


def test_a_queue_of_bytes_that_are_no_text_is_a_misuse(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.execute(["worker", "jobs.db", "--drain", "--queues", UNDECODABLE]) == 2
    assert "Invalid value for --queues" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [(option, UNDECODABLE) for option in ("--key", "--tag", "--queue", "--task")] + [(UNDECODABLE,)]
)
def test_a_filter_of_bytes_that_are_no_text_is_a_misuse(
    store: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert cli.execute(["list", "jobs.db", *words]) == 2
    assert "is not valid text" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("stats", "jobs.db"), ("list", "jobs.db", "--json"), ("--help",)])
def test_a_closed_standard_output_is_no_error(store: Path, words: tuple[str, ...]) -> None:
    ended = run(">&-", *words)

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [("stats", "jobs.db"), ("list", "jobs.db"), ("--help",)])
def test_what_cannot_be_printed_is_one_line_and_an_error(store: Path, words: tuple[str, ...]) -> None:
    ended = run(">/dev/full", *words)

    text = "Error [CLI.SYSTEM]: Standard output cannot be written: No space left on device.\n"
    assert (ended.returncode, ended.stderr) == (1, text)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("json", [(), ("--json",)])
def test_a_job_that_is_stored_is_a_success_even_if_it_cannot_be_told(
    store: Path, json: tuple[str, ...]
) -> None:
    """A script that enqueues again after an error would have the job twice."""
    ended = run(">/dev/full", "enqueue", "jobs.db", "user_created", "x", *json)

    assert ended.returncode == 0
    assert ended.stderr.startswith("Warning: #1 (")
    assert ended.stderr.endswith(
        " inserted, but standard output cannot be written: No space left on device. Do not enqueue it again.\n"
    )
    assert stored() == 1


def test_a_current_directory_that_is_gone_is_no_reason_to_fail(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = store.parent / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()

    assert cli.execute(["stats", str(store)]) == 0
    assert "looked for among the installed ones" in complaint(capsys, "--app", "no_such_shop:app", "stats")
    assert "cannot be the path of a store" in complaint(capsys, "stats")
    os.chdir(store.parent)


@pytest.mark.parametrize("width", [1, 2, 5, 10, 20, 30])
def test_no_table_is_wider_than_the_terminal(width: int) -> None:
    at = to_datetime(1_900_000_000_000)
    job = Job(
        id=uuid7(),
        number=12_345,
        task="a_rather_long_name",
        queue="another_long_name",
        tenant="",
        state=State.PROCESSING,
        progress=0.5,
        payload="x" * 300,
        priority=0,
        run_at=at,
        created_at=at,
        max_failures=4,
    )

    jobs = jobs_table([job], width, datetime.now(UTC))
    counts = stats_table({"a_long_name": Counts(pending=5, failed=1)}, width)

    for line in (*jobs, *counts):
        assert 0 < output.cells(click.unstyle(line)) <= width
