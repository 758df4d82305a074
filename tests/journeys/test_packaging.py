"""The package as people get it: what is in it, and that it works where nothing else of ours is."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev import ROOT
from shigoto.model.version import VERSION
from tests.journeys.parcels import (
    Installed,
    Parcels,
    build,
    contents,
    instructions,
    settings,
    text_in,
    unpack,
)
from tests.journeys.yard import eventually, runners_of

pytestmark = [
    pytest.mark.engine("sqlite"),
    pytest.mark.skipif(os.name != "posix", reason="the environments of others look different"),
]

UNIT = ROOT / "deploy" / "shigoto.service"
OURS = (
    "src", "tests", "conformance", "docs", "examples", "bench", "faults", "devtools", "requirements", "deploy", ".ci",
)  # fmt: skip
BESIDE = (
    "Containerfile", ".dockerignore", "conftest.py", "dev.py", "pyproject.toml", "mkdocs.yml", "LICENSE",
    "README.md", "README.ja.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
)  # fmt: skip
STAY_HERE = re.compile(r"__pycache__|\.pyc$|\.db(-\w+)?$")


@pytest.fixture(scope="module")
def parcels(tmp_path_factory: pytest.TempPathFactory) -> Parcels:
    return build(ROOT, tmp_path_factory.mktemp("parcels"))


@pytest.fixture(scope="module")
def installed(parcels: Parcels, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(parcels.wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture
def worker() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes that must not outlive the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not STAY_HERE.search(path.as_posix())
    }


class TestWheel:
    def test_it_holds_every_file_of_the_package_and_nothing_else(self, parcels: Parcels) -> None:
        names = {name for name in contents(parcels.wheel) if ".dist-info/" not in name}

        assert names == {name.removeprefix("src/") for name in files_below(ROOT / "src")}
        assert {"shigoto/py.typed", "shigoto/engine/sqlite/statements/path.sql"} <= names

    def test_what_only_contributors_need_is_not_in_it(self, parcels: Parcels) -> None:
        sources = {
            name: text_in(parcels.wheel, name) for name in contents(parcels.wheel) if name.endswith(".py")
        }
        words = {word for name in sources for word in re.split(r"[/.]", name)}
        importing = re.compile(
            r"^\s*(?:import|from) (?:_?pytest|hypothesis|conformance|bench|faults|devtools)\b", re.MULTILINE
        )

        assert words & {"conformance", "bench", "devtools", "faults", "tests"} == set()
        assert {name for name, text in sources.items() if importing.search(text)} == {"shigoto_pytest.py"}

    def test_it_says_what_it_is(self, parcels: Parcels) -> None:
        """S0-80: few dependencies."""
        metadata = text_in(parcels.wheel, "/METADATA")

        assert f"\nVersion: {VERSION}\n" in metadata
        assert "\nLicense-Expression: Apache-2.0\n" in metadata
        assert "shigoto = shigoto.cli:main" in text_in(parcels.wheel, "/entry_points.txt")
        assert text_in(parcels.wheel, "/LICENSE") == (ROOT / "LICENSE").read_text()
        required = re.findall(r"^Requires-Dist: (\w+)(?!.*extra ==)", metadata, flags=re.MULTILINE)
        assert sorted(required) == ["click", "cronsim", "msgspec", "tzdata"]


class TestSourceArchive:
    def test_it_holds_all_that_a_contributor_needs(self, parcels: Parcels, tmp_path: Path) -> None:
        folder = unpack(parcels.sdist, tmp_path)
        wanted = {name for part in OURS for name in files_below(ROOT / part)} | set(BESIDE)

        assert sorted(name for name in wanted if not (folder / name).is_file()) == []

    def test_it_makes_the_same_wheel(self, parcels: Parcels, tmp_path: Path) -> None:
        again = build(unpack(parcels.sdist, tmp_path / "source"), tmp_path / "again")

        assert contents(again.wheel) == contents(parcels.wheel)


class TestInstalled:
    def test_it_is_the_wheel_that_runs(self, installed: Installed, tmp_path: Path) -> None:
        where = installed.run("python -c 'import shigoto; print(shigoto.__file__)'", tmp_path)

        assert Path(where).is_relative_to(installed.bin.parent)
        assert installed.run("shigoto --version", tmp_path) == f"shigoto {VERSION}\n"

    def test_the_five_commands_work_in_an_empty_folder(
        self, installed: Installed, tmp_path: Path, worker: list["subprocess.Popen[bytes]"]
    ) -> None:
        """S0-77: the worker runs in one terminal, and jobs are enqueued in another."""
        process = installed.start(["shigoto", "worker"], tmp_path)
        worker.append(process)
        eventually(lambda: (tmp_path / "log").read_text().count("started") == 3, (tmp_path / "log").read_text)

        installed.run('shigoto enqueue workers.db user_created "Test job" 5', tmp_path)
        eventually(lambda: completed(installed, tmp_path) == 1, (tmp_path / "log").read_text)
        assert "completed" in installed.run("shigoto stats workers.db", tmp_path).lower()
        installed.run("shigoto list workers.db failed", tmp_path)
        installed.run("shigoto clear workers.db completed", tmp_path)

        assert completed(installed, tmp_path) == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def completed(installed: Installed, folder: Path) -> int:
    stats = json.loads(installed.run("shigoto stats workers.db --json", folder))
    return sum(queue["completed"] for queue in stats["queues"].values())


class TestContainer:
    """S0-79. No engine is at hand in a test; so what one would run is run without it."""

    def test_its_file_passes_the_linter(self) -> None:
        linter = shutil.which(
            "hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        )
        if linter is None:
            pytest.skip("hadolint is installed on x86_64 Linux only")

        done = subprocess.run([linter, ROOT / "Containerfile"], capture_output=True, text=True, check=False)

        assert (done.stdout, done.returncode) == ("", 0)

    def test_it_starts_the_worker_on_a_store_in_the_data_volume(self) -> None:
        """S0-79: small, with certificates and time zones, the worker as its entry point, `workers.db` on a `data`
        volume."""
        said = dict(instructions())

        assert re.fullmatch(r"python:3\.\d+-slim", said["FROM"])
        assert "test -s /etc/ssl/certs/ca-certificates.crt" in said["RUN"]
        assert "test -s /usr/share/zoneinfo/" in said["RUN"]
        assert json.loads(said["ENTRYPOINT"])[:2] == ["shigoto", "worker"]
        assert json.loads(said["CMD"]) == ["/data/workers.db"]
        assert said["VOLUME"] == "/data"
        assert said["STOPSIGNAL"] == "SIGTERM"
        user, _, group = said["USER"].partition(":")
        assert int(user) > 0 < int(group)
        ready = said["HEALTHCHECK"].partition(" CMD ")[2]
        assert json.loads(ready)[-1] in json.loads(said["ENTRYPOINT"])

    def test_all_from_outside_is_checked_against_hashes(self) -> None:
        lines = [rest for name, rest in instructions() if name == "RUN" and "pip" in rest]
        calls = [call.strip() for line in lines for call in line.split("&&") if "pip" in call.split()]

        assert calls
        assert [call for call in calls if "--require-hashes" not in call and "--no-index" not in call] == []

    def test_the_build_sees_what_it_needs_and_no_store_or_secret(self) -> None:
        lines = (ROOT / ".dockerignore").read_text().splitlines()

        assert "*" in lines
        assert {line for line in lines if line.startswith("!")} == {
            "!LICENSE", "!README.md", "!pyproject.toml", "!requirements/image.txt", "!src",
        }  # fmt: skip

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the processes in /proc")
    def test_its_command_takes_a_job_and_stops_cleanly(
        self, installed: Installed, tmp_path: Path, worker: list["subprocess.Popen[bytes]"]
    ) -> None:
        """S0-79: as process 1, if this system lets us be that."""
        said = dict(instructions())
        words = [
            re.sub("^/(data|tmp)/", f"{tmp_path}/", word)
            for word in json.loads(said["ENTRYPOINT"]) + json.loads(said["CMD"])
        ]
        unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        alone = shutil.which("unshare") is not None
        alone = alone and not subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode
        process = installed.start([*(unshare if alone else []), *words], tmp_path)
        worker.append(process)
        eventually((tmp_path / "shigoto-ready").exists, (tmp_path / "log").read_text)

        installed.run('shigoto enqueue workers.db user_created "Test job" 5', tmp_path)
        eventually(lambda: completed(installed, tmp_path) == 1, (tmp_path / "log").read_text)
        os.kill(runners_of(process)[0] if alone else process.pid, signal.SIGTERM)

        assert process.wait(30) == 0
        assert not (tmp_path / "shigoto-ready").exists()


class TestService:
    """S0-78."""

    def test_the_unit_names_the_store_and_stops_in_time(self) -> None:
        """S0-78: an explicit path of the database, and logs in the journal, where standard error goes by itself."""
        said = settings(UNIT)

        program, command, store = said["Service", "ExecStart"].split()
        assert (Path(program).name, command) == ("shigoto", "worker")
        assert Path(store).parent == Path("/var/lib") / said["Service", "StateDirectory"]
        assert said["Service", "User"] not in ("", "root")
        assert said["Service", "KillMode"] == "mixed"
        assert int(said["Service", "TimeoutStopSec"]) > 28
        assert said["Service", "Restart"] == "on-failure"
        assert ("Service", "StandardError") not in said

    def test_systemd_understands_the_unit_and_finds_it_well_protected(
        self, installed: Installed, tmp_path: Path
    ) -> None:
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            pytest.skip("systemd-analyze is not installed")
        unit = tmp_path / "shigoto.service"
        unit.write_text(UNIT.read_text().replace("/opt/shigoto/bin", str(installed.bin)))

        for words in (["verify"], ["security", "--offline=true", "--threshold=20", "--no-pager"]):
            done = subprocess.run([analyze, *words, unit], capture_output=True, text=True, check=False)
            if "unrecognized option" in done.stderr:
                pytest.skip("this systemd-analyze is too old to judge a file")
            assert done.returncode == 0, done.stdout + done.stderr
            assert "Unknown" not in done.stderr

    def test_its_command_says_when_it_is_ready_and_when_it_stops(
        self, installed: Installed, tmp_path: Path, worker: list["subprocess.Popen[bytes]"]
    ) -> None:
        """S0-78: as systemd starts it and ends it."""
        command = settings(UNIT)["Service", "ExecStart"]
        words = command.replace("/opt/shigoto/bin", str(installed.bin)).replace(
            "/var/lib/shigoto", str(tmp_path)
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(tmp_path / "manager"))
            manager.settimeout(60)
            process = installed.start(
                words.split(),
                tmp_path,
                NOTIFY_SOCKET=str(tmp_path / "manager"),
                WATCHDOG_USEC="600000000",
                WORKER_COUNT="2",
            )
            worker.append(process)

            told = [manager.recv(4096).decode() for _ in range(2)]
            process.send_signal(signal.SIGTERM)
            last = manager.recv(4096).decode()

        assert told == ["WATCHDOG=1", "READY=1\nSTATUS=2 runner processes at work"]
        assert last.startswith("STOPPING=1\n")
        assert process.wait(30) == 0
        assert "Traceback" not in (tmp_path / "log").read_text()
