"""The compose file: server, scheduler and workers apart (S3-45). Linted, and its commands are run without an engine."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import dev
from shigoto.cli import program
from tests.journeys.parcels import instructions

FILE = dev.ROOT / "deploy" / "compose.yaml"
OURS = ("server", "scheduler", "worker")
ADDRESSED = re.compile(r"http://127\.0\.0\.1:(\d+)/readyz")


@pytest.fixture(scope="module")
def file() -> dict[str, Any]:
    text = FILE.read_text(encoding="utf-8")
    expect_no_key_twice(yaml.compose(text))
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def expect_no_key_twice(node: Any) -> None:
    """YAML lets the last of two same keys win, silently."""
    if isinstance(node, yaml.MappingNode):
        names = [key.value for key, _ in node.value]
        assert len(names) == len(set(names)), f"twice in line {node.start_mark.line + 1}: {names}"
        for _, value in node.value:
            expect_no_key_twice(value)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            expect_no_key_twice(each)


@pytest.fixture
def services(file: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = file["services"]
    return found


def seconds(length: str) -> int:
    match = re.fullmatch(r"(\d+)s", length)
    assert match, length
    return int(match[1])


def test_server_worker_and_scheduler_are_apart(services: dict[str, dict[str, Any]]) -> None:
    """S3-45: each is a container of its own, from one image."""
    assert set(OURS) <= set(services)
    assert len({services[name]["image"] for name in OURS}) == 1
    for name in OURS:
        assert services[name]["entrypoint"] == ["shigoto"]
        assert services[name]["command"][0] == name


def test_what_is_optional_is_behind_a_profile(services: dict[str, dict[str, Any]]) -> None:
    assert {name for name, service in services.items() if "profiles" not in service} == set(OURS)


def test_the_worker_speaks_http_and_sees_no_store(services: dict[str, dict[str, Any]]) -> None:
    """S3-45, S1-6: it could be on another machine."""
    worker = services["worker"]

    assert worker["environment"]["SHIGOTO_URL"] == "http://server:8710"
    assert "volumes" not in worker
    assert worker["environment"]["SHIGOTO_TOKEN_FILE"] == f"/run/secrets/{worker['secrets'][0]}"
    assert worker["depends_on"]["server"]["condition"] == "service_healthy"


def test_server_and_scheduler_share_one_store(services: dict[str, dict[str, Any]]) -> None:
    server, scheduler = services["server"], services["scheduler"]

    assert server["environment"] == scheduler["environment"]
    assert server["volumes"] == scheduler["volumes"] == ["jobs:/data"]
    assert [rest for name, rest in instructions() if name == "VOLUME"] == ["/data"]


def test_every_command_exists_and_takes_its_words(services: dict[str, dict[str, Any]]) -> None:
    for name in OURS:
        word, *options = services[name]["command"]
        command = program.get_command(click.Context(program), word)
        assert command is not None
        known = {flag for option in command.params for flag in option.opts}
        assert [each for each in options if each.startswith("-") and each not in known] == []


def test_no_image_is_the_latest_and_every_one_has_a_version(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        image = re.sub(r"\$\{\w+:-(.*)\}", r"\1", service["image"])
        assert re.fullmatch(r"[a-z./-]+:\d+(\.\d+)+", image), image


def test_it_has_no_secret_in_it(file: dict[str, Any], services: dict[str, dict[str, Any]]) -> None:
    """Passwords and tokens come from files, which are mounted and never in the environment."""
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            if re.search("password|token|secret", name, re.IGNORECASE):
                assert name.endswith("_FILE")
                assert value.startswith("/run/secrets/")
    for name, secret in file["secrets"].items():
        assert set(secret) == {"file"}, name
    assert not re.search(r"shg_[a-z2-7]{12}_|://[^/\s]*:[^/\s]*@", FILE.read_text())


def test_files_with_secrets_are_not_for_the_repository(file: dict[str, Any]) -> None:
    for secret in file["secrets"].values():
        path = FILE.parent / secret["file"]
        ignored = subprocess.run(["git", "check-ignore", "-q", path], cwd=dev.ROOT, check=False)
        assert ignored.returncode in (0, 128), (
            f"{path.name} is not in .gitignore"
        )  # 128: this is no repository


@pytest.mark.parametrize("name", [*OURS, "postgres"])
def test_every_service_is_looked_after(services: dict[str, dict[str, Any]], name: str) -> None:
    """S3-45, S3-11: it is asked whether it is ready, started again, given time to stop, and can write to its volumes
    only."""
    service = services[name]

    assert service["restart"] == "unless-stopped"
    assert seconds(service["stop_grace_period"]) >= 40
    assert service["read_only"] is True
    assert "no-new-privileges:true" in service["security_opt"]
    health = service["healthcheck"]
    assert seconds(health["timeout"]) < seconds(health["interval"])
    assert health["test"][0] == "CMD"


@pytest.mark.parametrize("name", OURS)
def test_readiness_is_asked_where_it_is_told(services: dict[str, dict[str, Any]], name: str) -> None:
    service = services[name]
    *_, interpreter, option, code = service["healthcheck"]["test"]
    compile(code, name, "exec")
    port = ADDRESSED.search(code)

    assert (interpreter, option) == ("python", "-c")
    assert port is not None
    words = service["command"]
    assert port[1] == (words[words.index("--health") + 1] if "--health" in words else "8710")


def test_ports_are_for_this_machine_only(services: dict[str, dict[str, Any]]) -> None:
    """Whoever wants more puts a certificate before it, and says so."""
    for service in services.values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")


def test_everything_that_is_named_is_declared(
    file: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    for service in services.values():
        assert set(service.get("secrets", ())) <= set(file["secrets"])
        assert set(service.get("depends_on", ())) <= set(services)
        assert {each.partition(":")[0] for each in service.get("volumes", ())} <= set(file["volumes"])
    assert (FILE.parent / services["server"]["build"]["context"] / "Containerfile").exists()


def test_compose_reads_it(tmp_path: Path) -> None:
    """Where there is one."""
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("docker compose is not here")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    told = subprocess.run(
        [docker, "compose", "--file", FILE, "config", "--format", "json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert set(OURS) <= set(json.loads(told.stdout)["services"])
