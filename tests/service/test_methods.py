"""Which methods an address has, told to whoever asks by another."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.ground import Served, served, shop


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    app = shop(Path(tmp_path_factory.mktemp("methods")))
    with served(app, housekeeping=False) as server:
        yield server
    app.close()


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/jobs", "GET, HEAD, POST"),
        ("PUT", "/queues/mail", "GET, HEAD, PATCH"),
        ("POST", "/schedules/nightly", "DELETE, GET, HEAD"),
        ("HEAD", "/jobs/actions", "POST"),
        ("HEAD", "/events", "GET"),
        ("GET", "/jobs/batch", "POST"),
        ("GET", "/jobs/actions", "POST"),
        ("OPTIONS", "/jobs/actions", "POST"),
        ("POST", "/healthz", "GET, HEAD"),
    ],
)
def test_all_of_them_are_named(server: Served, method: str, path: str, allowed: str) -> None:
    """E48: also where several routes share an address, and a word is never taken for the id of a job."""
    answer = server.ask(method, path)
    assert answer.status == 405
    assert method == "HEAD" or answer.code == "REQUEST.METHOD"
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path", ["/jobs", "/jobs/count", "/stats", "/tasks/greet", "/openapi.json", "/readyz"]
)
def test_what_can_be_got_can_be_asked_for_without_its_body(server: Served, path: str) -> None:
    """RFC 9110: every answer to GET has a head."""
    whole, head = server.ask("GET", path), server.ask("HEAD", path)

    assert (head.status, head.raw) == (200, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.headers["content-length"] == whole.headers["content-length"]
    gone = server.ask("HEAD", "/tasks/none")
    assert (gone.status, gone.raw) == (404, b"")


def test_what_is_no_request_is_refused_like_everything_else(server: Served) -> None:
    """E48: also below the routes, where an address has no end."""
    answer = server.ask("GET", f"/jobs/count?filter={'x' * 70_000}")
    assert (answer.status, answer.code) == (400, "REQUEST.MALFORMED")
