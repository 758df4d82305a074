"""Everything that goes wrong is told in one form, and tells strangers nothing of our insides."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from shigoto import (
    JobNotFound,
    QueueFull,
    RequestInvalid,
    SchemaMissing,
    Shigoto,
    ShigotoError,
    StoreBusy,
    StoreMoved,
    StoreUnavailable,
    Unsupported,
)
from shigoto.model import errors
from shigoto.server.problems import STATUS, UNTOLD, Problem, problem_of, response_to
from tests.service.ground import Served, served, shop

SECRET = "postgresql://jobs:hunter2@db.internal:5432/shop"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = shop(tmp_path)
    yield app
    app.close()


@pytest.fixture
def server(app: Shigoto) -> Iterator[Served]:
    with served(app, housekeeping=False) as server:
        yield server


def all_errors() -> list[type[ShigotoError]]:
    return [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, ShigotoError) and each is not ShigotoError
    ]


def one_of(kind: type[ShigotoError]) -> ShigotoError:
    try:
        return kind(SECRET)
    except TypeError:
        extra: Any = 7 if kind is errors.ConfirmNeeded else "name"
        return kind(SECRET, extra)


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_status_and_says_its_code(kind: type[ShigotoError]) -> None:
    answer = response_to(one_of(kind))
    problem = json.decode(bytes(answer.body), type=Problem)

    assert answer.media_type == "application/problem+json"
    assert (problem.status, problem.type) == (answer.status_code, "about:blank")
    assert problem.code in (kind.code, "SERVER.ERROR")
    assert 400 <= problem.status < 600
    assert problem.title
    assert problem.detail


@pytest.mark.parametrize(
    "kind",
    [kind for kind in all_errors() if issubclass(kind, errors.StoreError | errors.DeclarationError)],
    ids=lambda kind: kind.__name__,
)
def test_what_the_store_said_stays_inside(kind: type[ShigotoError], caplog: pytest.LogCaptureFixture) -> None:
    """S22: no addresses, no words of a database; the log has them."""
    caplog.set_level(logging.INFO)

    answer = bytes(response_to(one_of(kind)).body)

    assert b"hunter2" not in answer
    assert b"db.internal" not in answer
    assert "db.internal" in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (JobNotFound("x"), 404, "JOB.NOT_FOUND"),
        (QueueFull("x"), 429, "JOB.QUEUE_FULL"),
        (RequestInvalid("x", "tags[1]"), 422, "REQUEST.INVALID"),
        (StoreUnavailable("x"), 503, "STORE.UNAVAILABLE"),
        (StoreBusy("x"), 503, "STORE.BUSY"),
        (StoreMoved("x"), 503, "STORE.MOVED"),
        (SchemaMissing("x"), 503, "WORKER.SCHEMA_MISSING"),
        (Unsupported("x"), 501, "STORE.UNSUPPORTED"),
        (errors.LeaseLost("x"), 409, "JOB.LEASE_LOST"),
        (errors.WorkerFenced("x"), 410, "WORKER.FENCED"),
        (errors.PayloadTooLarge("x"), 413, "JOB.PAYLOAD_TOO_LARGE"),
    ],
)
def test_the_status_is_that_of_the_nearest_class(error: ShigotoError, status: int, code: str) -> None:
    problem = problem_of(error)

    assert (problem.status, problem.code) == (status, code)


def test_when_to_try_again_is_told() -> None:
    assert response_to(QueueFull("x")).headers["retry-after"] == "5"
    assert response_to(StoreUnavailable("x")).headers["retry-after"] == "1"
    assert response_to(errors.AuthLimited("x")).headers["retry-after"] == "60"


def test_the_tables_name_errors_of_ours_only() -> None:
    assert set(STATUS) | set(UNTOLD) <= set(all_errors())


class TestRoutes:
    def test_an_address_that_is_none(self, server: Served) -> None:
        for path in ("/nothing", "/api/v2/jobs", "/api/v1", "/api/v1/jobs/", "/healthz/"):
            answer = server.ask("GET", path)
            assert (answer.status, answer.code) == (404, "REQUEST.NOT_FOUND")

    def test_a_method_that_is_none(self, server: Served) -> None:
        answer = server.ask("DELETE", "/jobs")

        assert (answer.status, answer.code) == (405, "REQUEST.METHOD")
        assert answer.headers["allow"]

    def test_a_path_that_is_no_id(self, server: Served) -> None:
        answer = server.ask("GET", "/jobs/7")

        assert (answer.status, answer.code, answer.json["field"]) == (422, "REQUEST.INVALID", "id")

    def test_a_query_that_is_none(self, server: Served) -> None:
        answer = server.ask("GET", "/jobs?limit=many")

        assert (answer.status, answer.code, answer.json["field"]) == (422, "REQUEST.INVALID", "limit")

    def test_a_field_is_told_by_its_place(self, server: Served) -> None:
        jobs = [{"task": "greet", "payload": {"name": "x"}}, {"task": "greet", "tags": ["a", 7]}]

        answer = server.ask("POST", "/jobs/batch", {"jobs": jobs})

        assert (answer.status, answer.json["field"]) == (422, "jobs[1].tags[1]")

    def test_a_fault_of_our_own_has_a_name_in_the_log_and_no_more(
        self, server: Served, app: Shigoto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """S22: no tracebacks to strangers."""

        def broken(*_: object) -> Any:
            raise RuntimeError(f"cannot read /etc/secret: {SECRET}")

        monkeypatch.setattr("shigoto.server.jobs.parse_filter", broken)

        answer = server.ask("GET", "/jobs")

        assert (answer.status, answer.code) == (500, "SERVER.ERROR")
        assert answer.json["detail"].endswith(f"Its log calls it {answer.json['incident']}.")
        for secret in (b"RuntimeError", b"Traceback", b"/etc/secret", b"hunter2", b"jobs.py"):
            assert secret not in answer.raw
        assert answer.json["incident"] in caplog.text
        assert "/etc/secret" in caplog.text
        assert "Exception in ASGI application" not in caplog.text
        assert server.ask("GET", "/healthz").status == 200

    def test_a_store_that_is_away_is_503(
        self, server: Served, app: Shigoto, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(*_: object) -> Any:
            raise StoreUnavailable(f"{SECRET}: connection refused")

        monkeypatch.setattr(type(app.engine), "arun", away)

        answer = server.ask("GET", "/jobs")

        assert (answer.status, answer.code) == (503, "STORE.UNAVAILABLE")
        assert answer.headers["retry-after"] == "1"
        assert b"hunter2" not in answer.raw


def test_an_answer_is_short_however_much_was_asked_for() -> None:
    """E49: whoever sends a megabyte is not sent it back."""
    problem = problem_of(RequestInvalid("There is no " + "ö" * 500_000, "x" * 500_000))

    assert len(problem.detail.encode()) <= 800
    assert len(problem.field or "") <= 200
    assert problem.detail.startswith("There is no ööö")
