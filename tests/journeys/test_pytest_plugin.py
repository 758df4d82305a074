"""The tests of a user's own project: a folder with an app and its tests, and a real pytest that finds our plugin."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SHOP = """
from shigoto import Context, Retry, Shigoto

app = Shigoto("sqlite:///shop.db")
outbox = []


@app.task(queue="mail", retry=Retry.linear(minutes=5, retries=3))
def send_welcome(ctx: Context, address: str) -> str:
    if not address.endswith(".org"):
        raise ConnectionError(f"no route to {address}")
    outbox.append((ctx.idempotency_key, address))
    return f"welcome, {address}"


@app.task
async def analyse(pages: int) -> int:
    return pages * 2


def sign_up(address: str) -> None:
    send_welcome.enqueue(address)


async def upload(pages: int) -> int:
    handle = await analyse.aenqueue(pages)
    return await handle.aresult()
"""

TESTS = """
import pytest
from shigoto import State
from shigoto.testing import Jobs
from shop import analyse, app, outbox, send_welcome, sign_up, upload


def test_signing_up_sends_a_welcome(jobs: Jobs) -> None:
    sign_up("ada@example.org")

    jobs.assert_enqueued(send_welcome.call("ada@example.org"), queue="mail", count=1)
    jobs.refute_enqueued(analyse)
    [job] = jobs.run_all(raise_errors=True).completed
    assert (str(job.id), "ada@example.org") in outbox


def test_a_welcome_is_sent_again_when_the_mail_is_down(jobs: Jobs) -> None:
    sign_up("ada@nowhere")
    for minutes in (5, 10, 15):
        assert len(jobs.run_all().retried) == 1
        jobs.advance(minutes=minutes)
    assert len(jobs.run_all().failed) == 1


def test_a_second_run_is_recognised(jobs: Jobs) -> None:
    outbox.clear()
    sign_up("bob@example.org")
    jobs.crash(send_welcome)
    jobs.run_all()
    assert len(outbox) == 2
    assert len(set(outbox)) == 1


@pytest.mark.shigoto(run="inline")
def test_inline(jobs: Jobs) -> None:
    assert send_welcome.enqueue("ada@example.org").status() is State.COMPLETED


@pytest.mark.shigoto(run="inline")
class TestUpload:
    ASYNC
    async def test_async(self, jobs: Jobs) -> None:
        assert await upload(21) == 42

    @pytest.mark.shigoto(run="drain")
    ASYNC
    async def test_the_nearest_marker_wins(self, jobs: Jobs) -> None:
        await analyse.aenqueue(1)
        assert not jobs.runs
        assert len((await jobs.arun_all()).completed) == 1


def test_the_real_store_was_never_opened(jobs: Jobs) -> None:
    import pathlib
    assert app.url == "memory:"
    assert not pathlib.Path("shop.db").exists()
"""

SETTINGS = """
[pytest]
addopts = --strict-markers --strict-config
filterwarnings = error
"""
ASYNCIO = "asyncio_default_fixture_loop_scope = function\n"
ALONE = ("-p", "no:asyncio")


class Project:
    """A folder of a user, in whose Python our distribution is installed as `pyproject.toml` describes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        self.installed = folder / "installed"
        metadata = self.installed / "shigoto-0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shigoto\nVersion: 0\n")
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        plugins = project["entry-points"]["pytest11"]
        (metadata / "entry_points.txt").write_text(
            "\n".join(["[pytest11]", *(f"{name} = {module}" for name, module in plugins.items())])
        )

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.folder / name.replace("__", ".")).write_text(text)

    def pytest(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        path = os.pathsep.join(str(folder) for folder in (self.installed, ROOT / "src", self.folder))
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "SHIGOTO"))
        }
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(arguments or ALONE)],
            cwd=self.folder,
            env={**clean, "PYTHONPATH": path, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize(
    ("mark", "settings", "arguments"),
    [
        ("@pytest.mark.asyncio", ASYNCIO, ["-p", "no:anyio"]),
        ("@pytest.mark.asyncio", ASYNCIO, ["-n", "2"]),
        ('@pytest.mark.anyio\n    @pytest.mark.usefixtures("anyio_backend")', "", ALONE),
    ],
    ids=["asyncio", "xdist", "anyio"],
)
def test_a_project_tests_its_jobs(project: Project, mark: str, settings: str, arguments: list[str]) -> None:
    """S0-74, S0-75: handlers, retries and second runs in the tests of a user, through the entry point."""
    backend = "import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    project.write(
        shop__py=SHOP,
        conftest__py=backend,
        test_shop__py=TESTS.replace("ASYNC", mark),
        pytest__ini=f"{SETTINGS}shigoto_app = shop:app\n{settings}",
    )

    ended = project.pytest(*arguments)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "7 passed" in ended.stdout


def test_what_fails_shows_the_line_of_the_test_and_what_was_enqueued(project: Project) -> None:
    project.write(
        shop__py=SHOP,
        pytest__ini=SETTINGS + "shigoto_app = shop:app\n",
        test_shop__py="""
from shop import send_welcome, sign_up

def test_it(jobs):
    sign_up("ada@example.org")
    jobs.assert_enqueued(send_welcome.call("bob@example.org"))
""",
    )

    ended = project.pytest()

    assert ended.returncode == 1
    assert "test_shop.py:6: AssertionError" in ended.stdout
    assert "address is 'ada@example.org', not 'bob@example.org'" in ended.stdout
    assert "testing/jobs.py" not in ended.stdout


def test_an_app_may_come_from_a_fixture(project: Project) -> None:
    project.write(
        pytest__ini=SETTINGS,
        conftest__py="""
import pytest
from shigoto import Shigoto

@pytest.fixture
def shigoto_app():
    app = Shigoto("sqlite:///nowhere/at/all.db")
    app.task(twice)
    return app

def twice(number: int) -> int:
    return number * 2
""",
        test_it__py="""
def test_it(jobs, shigoto_app):
    handle = shigoto_app.enqueue_by_name("twice", {"number": 21})
    jobs.run_all()
    assert handle.result() == 42
""",
    )

    ended = project.pytest()

    assert ended.returncode == 0, ended.stdout


def test_the_marker_brings_the_fixture(project: Project) -> None:
    project.write(
        shop__py=SHOP,
        pytest__ini=SETTINGS + "shigoto_app = shop:app\n",
        test_it__py="""
import pathlib
import unittest
import pytest
from shop import app, send_welcome

pytestmark = pytest.mark.shigoto(run="inline")

@pytest.fixture
def welcomed():
    return send_welcome.enqueue("ada@example.org")

@pytest.mark.parametrize("number", [1, 2])
def test_it(welcomed, number):
    assert welcomed.result() == "welcome, ada@example.org"

def test_the_fixture_itself(jobs):
    assert jobs.enqueued() == []

class TestOld(unittest.TestCase):
    def test_it(self):
        assert app.url == "memory:"

def test_last():
    assert not pathlib.Path("shop.db").exists()
""",
    )

    ended = project.pytest()

    assert ended.returncode == 0, ended.stdout
    assert "5 passed" in ended.stdout


def test_a_fixture_of_ones_own_may_have_a_file(project: Project) -> None:
    project.write(
        shop__py=SHOP,
        pytest__ini=SETTINGS,
        conftest__py="""
import pytest
from shop import app

@pytest.fixture
def jobs(tmp_path):
    with app.test(store=tmp_path / "jobs.db") as jobs:
        yield jobs
""",
        test_it__py="""
import pytest
from shop import app, send_welcome

@pytest.mark.parametrize("number", [1, 2])
def test_it(jobs, number):
    connection = app.connect()
    connection.execute("BEGIN")
    send_welcome.using(connection=connection).enqueue("ada@example.org")
    connection.rollback() if number == 1 else connection.commit()
    connection.close()
    assert len(jobs.run_all().completed) == number - 1
""",
    )

    ended = project.pytest()

    assert ended.returncode == 0, ended.stdout


def test_whoever_uses_no_jobs_pays_nothing(project: Project) -> None:
    project.write(
        pytest__ini=SETTINGS,
        test_it__py="""
import sys

def test_it(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("shigoto")
    assert [name for name in sys.modules if name.split(".")[0] == "shigoto"] == []
""",
    )

    ended = project.pytest()

    assert ended.returncode == 0, ended.stdout


def test_what_is_missing_or_wrong_is_said(project: Project) -> None:
    project.write(
        shop__py=SHOP,
        pytest__ini=SETTINGS,
        test_it__py="""
import pytest

def test_no_app(jobs): ...

@pytest.mark.shigoto("inline")
def test_by_position(jobs): ...

@pytest.mark.shigoto(mode="inline")
def test_misspelt(jobs): ...
""",
    )

    without = project.pytest(*ALONE, "-k", "no_app")
    (project.folder / "pytest.ini").write_text(SETTINGS + "shigoto_app = shop:app\n")
    wrong = project.pytest()

    assert 'shigoto_app = "shop:app"' in without.stdout
    assert "@pytest.mark.shigoto(run='inline')" in wrong.stdout
    assert "app.test() has no option mode" in wrong.stdout
    assert "1 passed, 2 errors" in wrong.stdout


def test_the_marker_and_the_option_are_documented(project: Project) -> None:
    project.write(pytest__ini=SETTINGS)

    assert "@pytest.mark.shigoto(run='inline'" in project.pytest(*ALONE, "--markers").stdout
    assert "shigoto_app (string):" in project.pytest(*ALONE, "--help").stdout
