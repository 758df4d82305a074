"""Settings of a folder reach every process of a worker."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import Shigoto, State
from tests.journeys.yard import SHIGOTO, Yard, ended_within, runners_of

SETTINGS = """
app = "shop"
url = "sqlite:///other.db"

[worker]
processes = 2
name = "anvil"
queues = ["default", "mail"]
stop-timeout = 5
log_format = "json"
"""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yard.app.close()
    yard.app = Shigoto(f"sqlite:///{tmp_path / 'other.db'}")
    yield yard
    yard.end()


def prefixed(settings: str) -> str:
    """The same settings for a pyproject.toml."""
    return "[tool.shigoto]" + settings.replace("[worker]", "[tool.shigoto.worker]")


@pytest.mark.parametrize("file", ["shigoto.toml", "pyproject.toml"])
def test_a_worker_without_any_flag_does_what_the_file_says(yard: Yard, file: str) -> None:
    (yard.folder / file).write_text(SETTINGS if file == "shigoto.toml" else prefixed(SETTINGS))

    worker = yard.start(app=None)
    yard.until_at_work(2)

    assert len(runners_of(worker)) == 2
    assert {name.partition("-")[0] for name, _ in yard.workers()} == {"anvil"}
    engine = yard.app.engine
    assert {worker.queues for worker in engine.run(engine.workers())} == {("default", "mail")}
    job = yard.enqueue("until", file="go")
    yard.touch("go")
    yard.until_done(job)
    assert job.status() is State.COMPLETED
    assert all(json.loads(line) for line in yard.log().splitlines())
    worker.send_signal(signal.SIGTERM)
    assert ended_within(worker, 5) == 0
    assert not (yard.folder / "shop.db").exists()


def test_a_variable_and_a_flag_win_over_the_file(yard: Yard) -> None:
    (yard.folder / "shigoto.toml").write_text(SETTINGS)
    yard.environment["SHIGOTO_PROCESSES"] = "1"
    yard.environment["SHIGOTO_NAME"] = "hammer"

    worker = yard.start("--name", "tongs", app=None)
    yard.until_at_work(1)

    assert len(runners_of(worker)) == 1
    assert yard.workers()[0][0].startswith("tongs")


@pytest.mark.parametrize(
    ("settings", "variables", "told"),
    [
        ("[worker]\nqueues = []\n", {}, "shigoto.toml: worker.queues: [] names no queue."),
        ("", {"SHIGOTO_QUEUES": "mail,a:b"}, "Invalid value for $SHIGOTO_QUEUES: The queue 'a:b' must be"),
        ("", {"SHIGOTO_PROCESSES": "0", "NOTIFY_SOCKET": "@none"}, "use --processes 1 or more."),
    ],
)
def test_a_worker_whose_settings_make_no_sense_does_not_begin(
    yard: Yard, settings: str, variables: dict[str, str], told: str
) -> None:
    (yard.folder / "shigoto.toml").write_text(settings)
    yard.environment.update(variables)

    worker = yard.start(app=None)

    assert ended_within(worker, 10) == 2
    assert told in yard.log()
    assert not list(yard.folder.glob("*.db"))


def test_a_worker_whose_app_ends_the_program_says_where(yard: Yard) -> None:
    (yard.folder / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    (yard.folder / "shigoto.toml").write_text(SETTINGS.replace('"shop"', '"leaving"'))

    worker = yard.start(app=None)

    assert ended_within(worker, 10) == 1
    place = f"(sys.exit(0) at {yard.folder / 'leaving.py'}, line 2)"
    assert f"'leaving' cannot be loaded: importing it ended the program {place}" in yard.log()


def test_the_demo_is_left_alone_by_the_settings_of_the_folder(yard: Yard) -> None:
    (yard.folder / "shigoto.toml").write_text(
        SETTINGS.replace('"mail"', '"none"').replace('"default"', '"no"')
    )
    yard.environment["SHIGOTO_QUEUES"] = "none"
    yard.environment["SHIGOTO_URL"] = "nowhere.db"

    done = subprocess.run(
        [*SHIGOTO, "demo", "--seconds", "1", "--json"],
        cwd=yard.folder,
        env=yard.environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert not list(yard.folder.glob("*.db"))
