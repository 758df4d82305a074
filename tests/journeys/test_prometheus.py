"""What a real Prometheus sees of a server, a worker and a scheduler; and what its tool says of all that we give it.

Debian's package `prometheus` has both programs. Without them the strict parsers of prometheus-client judge alone.
"""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import dev
from devtools.postgres.server import free_port
from shigoto.observe.metrics import FAMILIES
from tests.journeys.yard import SHIGOTO, Yard, ended_within, eventually, runners_of

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs the signals of POSIX")

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
MISSING = "Prometheus is not installed: apt-get install --no-install-recommends prometheus"
ALERTS, DASHBOARD = dev.ROOT / "deploy" / "alerts.yml", dev.ROOT / "deploy" / "grafana.json"
PATIENCE = 30.0

SHOP = """
from shigoto import Shigoto

app = Shigoto("sqlite:///shop.db")

@app.task
async def send(to: str) -> None: ...

@app.task
def refuse() -> None:
    raise ValueError("no")

@app.task(executor="process")
def apart() -> None: ...

@app.every("1s")
async def tick() -> None: ...
"""


class Watched(Yard):
    """A server, a worker and a scheduler on one store, each with a port on which it is scraped."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SHOP)
        self.ports: dict[str, int] = {}

    def begin(self, kind: str, *options: str) -> "subprocess.Popen[bytes]":
        port = self.ports[kind] = free_port()
        where = ["--port", str(port)] if kind == "server" else ["--health", str(port)]
        return self.spawn(kind, [*SHIGOTO, "--app", "shop", kind, *where, *options])

    def spawn(self, name: str, words: list[str]) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("wb") as file:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def text(self, kind: str) -> str:
        status, body = got(self.ports[kind], "/metrics")
        assert status == 200, body
        return body

    def told(self, kind: str) -> dict[tuple[str, ...], float]:
        """What it shows, by name and labels; nothing as long as it does not answer."""
        try:
            text = self.text(kind)
        except OSError:
            return {}
        return {
            (sample.name.removeprefix("shigoto_"), *(value for _, value in sorted(sample.labels.items()))): (
                sample.value
            )
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def until(self, kind: str, *key: str, least: float) -> None:
        eventually(
            lambda: self.told(kind).get(key, -1.0) >= least,
            lambda: f"{key}: {self.told(kind).get(key)} {self.log(f'{kind}.log')[-2000:]}",
            PATIENCE,
        )


def got(port: int, path: str) -> tuple[int, str]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        line.request("GET", path)
        answer = line.getresponse()
        return answer.status, answer.read().decode()
    finally:
        line.close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.end()


def judged(*words: str, stdin: str = "") -> str:
    """What the tool has to say, which must not be an error."""
    if PROMTOOL is None:
        pytest.skip(MISSING)
    done = subprocess.run(
        [PROMTOOL, *words], input=stdin, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_runners_counts_come_together_and_never_go_back(watched: Watched) -> None:
    """S3-67, S0-66: in the supervisor, also those of a runner that has died, and of jobs in processes of their own."""
    worker = watched.begin("worker", "--processes", "2", "--no-ticks")
    for number in range(200):
        watched.enqueue("send", to=str(number))
    watched.enqueue("refuse")
    watched.enqueue("apart")
    watched.until("worker", "jobs_ended_total", "completed", "default", "send", least=200)
    watched.until("worker", "jobs_ended_total", "retried", "default", "refuse", least=1)
    watched.until("worker", "jobs_ended_total", "completed", "default", "apart", least=1)
    before = watched.told("worker")
    assert before["jobs_started_total", "default", "send"] == 200
    assert before["job_duration_seconds_count", "default", "send"] == 200
    assert before["job_lateness_seconds_count", "default", "send"] >= 200
    assert before["store_operation_seconds_count", "settle"] >= 1

    for runner in runners_of(worker):
        os.kill(runner, signal.SIGKILL)
    watched.until("worker", "runner_deaths_total", least=2)
    for number in range(50):
        watched.enqueue("send", to=str(number))
    watched.until("worker", "jobs_ended_total", "completed", "default", "send", least=250)

    assert watched.told("worker")["jobs_ended_total", "completed", "default", "send"] == 250
    worker.send_signal(signal.SIGTERM)
    assert ended_within(worker, 10) == 0


def test_a_worker_in_one_process_shows_the_same(watched: Watched) -> None:
    watched.begin("worker", "--processes", "0", "--no-ticks")
    watched.enqueue("send", to="ada")

    watched.until("worker", "jobs_ended_total", "completed", "default", "send", least=1)
    watched.until("worker", "ready", least=1)
    watched.until("worker", "workers", least=1)


def test_a_scheduler_shows_its_ticks_and_how_it_is(watched: Watched) -> None:
    """S4-18, S4-19: latency, successes, time at the store, and the rate at which jobs are submitted."""
    watched.begin("scheduler")

    watched.until("scheduler", "schedule_ticks_total", "fired", "tick", least=2)
    watched.until("scheduler", "scheduler_status", "OK", least=1)
    told = watched.told("scheduler")
    assert told["schedule_lateness_seconds_count",] >= 2
    assert told["store_operation_seconds_count", "tick"] >= 2
    assert told["scheduler_error_ratio",] == 0
    assert told["scheduler_last_tick_timestamp_seconds",] == pytest.approx(time.time(), abs=30)
    watched.until("scheduler", "queue_jobs", "default", "ready", least=1)  # nobody runs what it stores


@pytest.mark.parametrize("kind", ["server", "worker", "scheduler"])
def test_the_tool_accepts_what_each_shows(watched: Watched, kind: str) -> None:
    """S3-67: names, units, helps and types, as its linter wants them."""
    watched.begin(kind)
    watched.enqueue("send", to="ada")
    watched.until(kind, "queue_jobs", "default", "ready" if kind != "worker" else "completed", least=1)
    watched.until(kind, "schedule_ticks_total", "fired", "tick", least=1)

    assert judged("check", "metrics", stdin=watched.text(kind)) == ""


def test_the_tool_accepts_the_alert_rules() -> None:
    assert "SUCCESS" in judged("check", "rules", str(ALERTS))


def expressions() -> dict[str, str]:
    """Those of the alert rules and of the dashboard."""
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return {rule["alert"]: rule["expr"] for rule in rules} | {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in panels
        for target in panel["targets"]
    }


@pytest.mark.parametrize("name", expressions())
def test_rules_and_panels_ask_for_metrics_that_there_are(name: str) -> None:
    known = {family.name: family for family in FAMILIES.values()}
    ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    shown = {f"{name}{end}": family for name, family in known.items() for end in ends[family.kind]}

    for metric, labels in re.findall(r"(shigoto_\w+)(\{[^}]*\})?", expressions()[name]):
        assert metric in shown, metric
        assert set(re.findall(r"(\w+)=", labels)) <= set(shown[metric].labels)


@pytest.mark.skipif(PROMETHEUS is None, reason=MISSING)
@pytest.mark.timeout(240)
def test_a_real_prometheus_scrapes_all_three_and_evaluates_the_rules(watched: Watched) -> None:
    """S3-67, S0-66."""
    for kind in ("server", "worker", "scheduler"):
        watched.begin(kind)
    for number in range(20):
        watched.enqueue("send", to=str(number))
    watched.enqueue("refuse")
    watched.until("worker", "jobs_ended_total", "completed", "default", "send", least=20)
    port = prometheus(watched)

    for kind in ("server", "worker", "scheduler"):
        until_found(port, f'up{{job="{kind}"}} == 1')
        until_found(port, f'shigoto_store_up{{job="{kind}"}} == 1')
        until_found(port, f'shigoto_ready{{job="{kind}"}} == 1')
        until_found(port, f'shigoto_queue_jobs{{job="{kind}",queue="default",state="completed"}} >= 20')
    until_found(port, 'shigoto_jobs_ended_total{job="worker",task="send",outcome="completed"} == 20')
    until_found(port, 'shigoto_jobs_ended_total{job="worker",task="refuse",outcome="retried"} >= 1')
    until_found(port, 'sum(shigoto_schedule_ticks_total{schedule="tick",outcome="fired"}) >= 1')
    for rule in asked(port, "/api/v1/rules")["groups"][0]["rules"]:
        assert rule["health"] in ("ok", "unknown"), rule
        assert not rule.get("lastError"), rule
    targets = asked(port, "/api/v1/targets")["activeTargets"]
    assert {target["labels"]["job"]: target["lastError"] for target in targets} == {
        "server": "",
        "worker": "",
        "scheduler": "",
    }


def prometheus(watched: Watched) -> int:
    """One that scrapes all of them every second, and has our rules; its port."""
    assert PROMETHEUS is not None
    port, configuration = free_port(), watched.folder / "prometheus.yml"
    configuration.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(ALERTS)],
                "scrape_configs": [
                    {"job_name": kind, "static_configs": [{"targets": [f"127.0.0.1:{each}"]}]}
                    for kind, each in watched.ports.items()
                ],
            }
        )
    )
    judged("check", "config", str(configuration))
    watched.spawn(
        "prometheus",
        [
            PROMETHEUS,
            f"--config.file={configuration}",
            f"--storage.tsdb.path={watched.folder / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
    )
    return port


def asked(port: int, path: str) -> Any:
    status, body = got(port, path)
    assert status == 200, body
    return json.loads(body)["data"]


def until_found(port: int, expression: str) -> None:
    def found() -> bool:
        try:
            status, body = got(port, f"/api/v1/query?query={quote(expression)}")
        except OSError:
            return False
        return status == 200 and bool(json.loads(body)["data"]["result"])  # else it is not ready yet

    eventually(
        found, lambda: f"{expression}: {asked(port, '/api/v1/query?query=shigoto_store_up')}", PATIENCE
    )
