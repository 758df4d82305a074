"""What the service shows to Prometheus, and to whom."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from shigoto import Shigoto
from shigoto.engine.remote import RemoteEngine
from shigoto.observe import metrics
from tests.journeys.yard import eventually
from tests.service.ground import Answer, Served, key, served, shop


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = shop(tmp_path)
    yield app
    app.close()


def values(answer: Answer) -> dict[tuple[str, ...], float]:
    assert answer.status == 200, answer.raw
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.raw.decode())
        for sample in family.samples
    }


def test_it_shows_its_queues_its_store_and_its_housekeeping(app: Shigoto) -> None:
    """S3-67, S0-66, S4-18: also how its scheduler is."""
    app.enqueue_by_name("send", {"to": "ada"})
    with served(app) as server:

        def told() -> dict[tuple[str, ...], float]:
            return values(server.ask_at("GET", "/metrics"))

        eventually(lambda: told().get(("shigoto_scheduler_status", "OK")) == 1)
        eventually(lambda: told()["shigoto_ready",] == 1)
        now = told()
        assert now["shigoto_queue_jobs", "mail", "ready"] == 1
        assert now["shigoto_queue_oldest_ready_seconds", "mail"] >= 0
        assert now["shigoto_store_up",] == 1
        eventually(lambda: ("shigoto_store_operation_seconds_count", "sweep") in told())


def test_it_speaks_both_formats(app: Shigoto) -> None:
    with served(app) as server:
        plain = server.ask_at("GET", "/metrics")
        modern = server.ask_at(
            "GET", "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}
        )

    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.raw.endswith(b"# EOF\n")


def status(server: Served, **options: Any) -> int:
    return server.ask_at("GET", "/metrics", **options).status


def test_it_asks_for_a_token_as_everything_else_does(app: Shigoto) -> None:
    """S35: names of queues and schedules are not for everybody, and those of all queues not for a token of one."""
    keys = {"read": key("read"), "admin": key("admin"), "submit": key("submit"), "work": key("work")}
    confined = key("read", queues=("mail",))
    of_one = key("read", tenant="acme")
    with served(app, tokens=[*keys.values(), confined, of_one]) as server:
        assert status(server) == 401
        assert status(server, headers={"Authorization": "Bearer wrong"}) == 401
        assert {name: status(server, token=each) for name, each in keys.items()} == {
            "read": 200,
            "admin": 200,
            "submit": 403,
            "work": 403,
        }
        assert status(server, token=confined) == 403
        assert status(server, token=of_one) == 403


def test_a_forwarded_request_is_not_let_in_without_a_token(app: Shigoto) -> None:
    """S35: without any token it is open on this machine only."""
    with served(app) as server:
        assert status(server) == 200
        assert status(server, headers={"X-Forwarded-For": "10.0.0.1"}) == 401


def test_without_prometheus_client_it_says_what_to_install(
    app: Shigoto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "can_show", lambda: False)
    with served(app) as server:
        answer = server.ask_at("GET", "/metrics")

    assert answer.status == 501
    assert b"pip install 'shigoto[prometheus]'" in answer.raw
    assert not app.bus.active or server.service.metrics is None


def shown_of(remote: RemoteEngine) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(metrics.Metrics(None, lambda: remote))
    return registry


def test_a_worker_at_a_server_sees_the_queues_by_its_own_token(app: Shigoto) -> None:
    """And nothing if it is confined to a tenant: then the store is not said to be down."""
    work, of_one = key("work"), key("work", tenant="acme")
    app.enqueue_by_name("send", {"to": "ada"})
    with served(app, tokens=[work, of_one]) as server:
        for each, told in ((work, 1.0), (of_one, None)):
            remote = RemoteEngine(server.url.replace("://", f"://:{each.text}@"))
            shown = shown_of(remote)

            assert shown.get_sample_value("shigoto_store_up") == told
            waiting = {"queue": "mail", "state": "ready"}
            assert shown.get_sample_value("shigoto_queue_jobs", waiting) == told
            remote.close()
