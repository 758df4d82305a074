"""The OpenAPI document: valid, whole, and true, so that a generated client can use it."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import validate

import dev
from shigoto import Shigoto
from shigoto.engine.memory import MemoryEngine
from shigoto.model import errors
from shigoto.server.problems import STATUS
from shigoto.server.routing import LINKS, document
from shigoto.server.service import Service, make_api
from tests.service.ground import key, served

METHODS = {"get", "post", "put", "patch", "delete"}
WITHOUT_TOKEN = {"healthz", "readyz"}
# The issue's own list: nobody may take one away without saying so here.
ROUTES = {
    "GET /healthz", "GET /readyz",
    "POST /api/v1/jobs", "POST /api/v1/jobs/batch", "POST /api/v1/jobs/actions",
    "GET /api/v1/jobs", "GET /api/v1/jobs/count", "GET /api/v1/jobs/{id}",
    "GET /api/v1/jobs/{id}/attempts", "GET /api/v1/jobs/{id}/logs", "GET /api/v1/jobs/{id}/events",
    "POST /api/v1/jobs/{id}/cancel", "POST /api/v1/jobs/{id}/retry", "POST /api/v1/jobs/{id}/rerun",
    "POST /api/v1/workers", "POST /api/v1/workers/{worker}/claim", "POST /api/v1/workers/{worker}/beat",
    "POST /api/v1/workers/{worker}/settle", "POST /api/v1/workers/{worker}/jobs/{id}/progress",
    "POST /api/v1/workers/{worker}/jobs/{id}/checkpoint", "POST /api/v1/workers/{worker}/jobs/{id}/settle",
    "DELETE /api/v1/workers/{worker}", "GET /api/v1/doorbell", "GET /api/v1/workers",
    "GET /api/v1/queues", "GET /api/v1/queues/{name}", "PATCH /api/v1/queues/{name}",
    "POST /api/v1/queues/{name}/pause", "POST /api/v1/queues/{name}/resume",
    "GET /api/v1/stats", "GET /api/v1/tasks", "GET /api/v1/tasks/{name}", "GET /api/v1/audit",
    "GET /api/v1/schedules", "POST /api/v1/schedules", "GET /api/v1/schedules/{name}",
    "DELETE /api/v1/schedules/{name}", "GET /api/v1/schedules/{name}/history",
    "POST /api/v1/schedules/{name}/pause", "POST /api/v1/schedules/{name}/resume",
    "POST /api/v1/schedules/{name}/run", "GET /api/v1/events",
}  # fmt: skip


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    return document(make_api(Service(Shigoto(engine=MemoryEngine()))))


def operations(written: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in written["paths"].items():
        for method, operation in methods.items():
            if method in METHODS:
                yield f"{method.upper()} {path}", operation


def test_it_is_valid(written: dict[str, Any]) -> None:
    validate(written)


def test_every_route_is_documented(written: dict[str, Any]) -> None:
    """S1-15, S1-21: all that the service does is described."""
    assert {name for name, _ in operations(written)} >= ROUTES


def test_every_operation_is_called_as_its_function(written: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(written)]

    assert len(names) == len(set(names))
    assert [name for name in names if not re.fullmatch("[a-z][a-z_]+", name)] == []
    assert {"submit_job", "get_job", "claim_jobs", "change_queue", "add_schedule", "stream_events"} <= set(
        names
    )


def test_every_operation_says_what_it_does(written: dict[str, Any]) -> None:
    assert [name for name, operation in operations(written) if not operation.get("description")] == []


def test_every_reference_leads_somewhere(written: dict[str, Any]) -> None:
    known = written["components"]["schemas"]

    for reference in references(written):
        assert reference.removeprefix("#/components/schemas/") in known


def test_every_time_is_said_to_be_one(written: dict[str, Any]) -> None:
    """A generated client makes a time of it, and not a text."""
    texts = {
        f"{kind}.{name}": str(field)
        for kind, schema in written["components"]["schemas"].items()
        for name, field in schema.get("properties", {}).items()
        if re.search(r"(^|_)(at|until)$", name) and "'string'" in str(field)
    }

    assert len(texts) > 15
    assert [place for place, field in texts.items() if "'date-time'" not in field] == []


def test_no_two_kinds_share_a_name(written: dict[str, Any]) -> None:
    """A name with dots in it is msgspec's way out when two structs are called the same."""
    assert [name for name in written["components"]["schemas"] if not re.fullmatch(r"\w+", name)] == []


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "$ref":
                yield each
            else:
                yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_error_is_a_problem(written: dict[str, Any]) -> None:
    for name, operation in operations(written):
        for status, response in operation["responses"].items():
            if int(status) >= 400 and name != "GET /readyz":
                assert list(response["content"]) == ["application/problem+json"], (name, status)


def test_who_is_not_ready_says_so_in_the_same_words(written: dict[str, Any]) -> None:
    responses = written["paths"]["/readyz"]["get"]["responses"]

    assert responses["503"]["content"] == responses["200"]["content"]


def test_bodies_that_somebody_sends_refuse_what_they_do_not_know(written: dict[str, Any]) -> None:
    schemas = written["components"]["schemas"]
    for name, operation in operations(written):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            if "$ref" in content["schema"]:
                kind = content["schema"]["$ref"].rpartition("/")[2]
                assert schemas[kind]["additionalProperties"] is False, name


def test_who_needs_which_scope_is_said(written: dict[str, Any]) -> None:
    for name, operation in operations(written):
        if operation["operationId"] in WITHOUT_TOKEN:
            assert operation["security"] == []
        else:
            assert operation["security"] == [{"token": []}], name
            assert set(operation["x-scopes"]) <= {"submit", "work", "read", "admin"}
            assert operation["x-scopes"], name


def test_links_lead_to_what_is_there(written: dict[str, Any]) -> None:
    names = {operation["operationId"]: operation for _, operation in operations(written)}
    for name, (field, others) in LINKS.items():
        for other in others:
            assert {name, other} <= set(names)
            known = {each["name"] for each in names[other]["parameters"]}
            assert field in known, (name, other)


def test_every_code_has_a_status() -> None:
    """Each error that a request can meet is told with a status that somebody has chosen."""
    told = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.RequestError)
    }

    assert {kind.__name__ for kind in told - set(STATUS)} == {"RequestError"}


def test_it_is_served_without_a_token_and_describes_the_service_that_serves_it() -> None:
    app = Shigoto(engine=MemoryEngine())
    with served(app, tokens=[key("read")]) as server:
        told = server.ask("GET", "/openapi.json")
        assert told.status == 200
        assert told.headers["content-type"] == "application/json"
        for name, operation in operations(told.json):
            method, path = name.split(" ")
            if operation["security"]:
                asked = server.ask(method, re.sub(r"{\w+}", "0190b0b0-0000-7000-8000-000000000000", path))
                assert (name, asked.status) == (name, 401), "nobody gets in who should not"


@pytest.mark.parametrize("sentence", ["gRPC", "WebSocket", "at least once"])
def test_what_is_not_built_is_said(written: dict[str, Any], sentence: str) -> None:
    """S1-15, S1-21: the documentation says that gRPC and WebSocket are not built, and that jobs run at least once."""
    guide = (dev.ROOT / "docs" / "guides" / "http.md").read_text(encoding="utf-8")

    assert sentence in guide
    assert sentence in written["info"]["description"]
