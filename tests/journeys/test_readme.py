"""The README does what it says: every snippet is run, in its order, in an empty folder."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shigoto import Shigoto, State

README = Path(__file__).parents[2] / "README.md"
PATIENCE = 60.0


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the reader has after following the README: shop.py and a script with all that comes after."""
    parts = [text for text in snippets("python") if text.startswith("# shop.py")]
    others = [text for text in snippets("python") if text not in parts]
    assert len(parts) == 2
    (tmp_path / "shop.py").write_text("\n\n".join(parts))
    (tmp_path / "web.py").write_text("\n".join(others) + "\nimport asyncio\nasyncio.run(lifespan())\n")
    return tmp_path


@pytest.fixture
def worker(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The worker as the README starts it."""
    process = subprocess.Popen(command("worker"), cwd=folder, env=environment())
    yield process
    process.kill()
    process.wait()


def command(word: str) -> list[str]:
    """The README's own line for this command."""
    lines = [line.split("#")[0].split() for block in snippets("sh") for line in block.splitlines()]
    [words] = [words for words in lines if words[0] == "shigoto" and words[3] == word]
    return [sys.executable, "-m", *words]


def run_command(word: str, folder: Path) -> str:
    told = subprocess.run(
        command(word),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return told.stdout


def environment() -> dict[str, str]:
    """No settings of our own, and the package found where the tests found it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHIGOTO_")}
    return kept | {"PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_reader_who_follows_it_sees_every_job_done(folder: Path, worker: "subprocess.Popen[bytes]") -> None:
    """S0-64, S0-77, S1-3: declare with one decorator, enqueue in one process, work in another, ask for the state."""
    enqueued = subprocess.run(
        [sys.executable, "web.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert enqueued.stdout.strip() in ("pending", "processing", "completed")

    app = Shigoto(f"sqlite:///{folder / 'jobs.db'}")
    jobs = app.find(limit=100)
    due = [job for job in jobs if job.key is None]
    for job in due:
        app.job(job.id).result(timeout=PATIENCE)
    [later] = [job for job in jobs if job.key == "invite:7"]
    assert app.job(later.id).status() is State.PENDING
    assert app.job(due[-1].id).result() == "invited ada@example.org to store 7"
    with app.connect() as connection:
        assert connection.execute("SELECT invoice FROM payment").fetchall() == [(42,)]
    connection.close()
    tasks = sorted(job.task for job in app.find(limit=100))
    assert tasks == ["analyse"] * 2 + ["charge", "render"] + ["send_invitation"] * 4, (
        "one was enqueued by charge"
    )
    app.close()

    assert re.search(r"mail\b.*\b1\b", run_command("stats", folder))
    assert "send_invitation" not in run_command("list", folder)  # of the failed ones there are none

    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0


def test_the_customer_and_the_job_were_committed_together(folder: Path) -> None:
    """The README's transaction, alone: rows and job are there together."""
    [joined] = [text for text in snippets("python") if text.startswith("connection =")]
    (folder / "join.py").write_text("from shop import app, send_invitation\n" + joined)

    subprocess.run([sys.executable, "join.py"], cwd=folder, env=environment(), check=True, timeout=PATIENCE)

    app = Shigoto(f"sqlite:///{folder / 'jobs.db'}")
    connection = app.connect()
    assert connection.execute("SELECT name FROM customer").fetchall() == [("Ada",)]
    connection.close()
    assert [job.task for job in app.find()] == ["send_invitation"]
    app.close()


def test_the_example_fits_on_a_page() -> None:
    code = [line for line in snippets("python")[0].splitlines() if line.strip() and not line.startswith("#")]

    assert len(code) <= 15
