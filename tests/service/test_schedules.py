"""Schedules over HTTP."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shigoto import QueueFull, Shigoto
from shigoto.model.job import QueueSettings
from tests.service.ground import Served, key, served

ADMIN, READ, SUBMIT = (key(scope) for scope in ("admin", "read", "submit"))
MAIL = key("read", "admin", name="mail", queues=("mail",))
NIGHTLY = {
    "name": "nightly",
    "task": "report",
    "payload": {"city": "Tokyo"},
    "cron": "0 3 * * *",
    "tz": "Asia/Tokyo",
    "overlap": "skip",
    "catch_up_within": 90,
}


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = Shigoto(tmp_path / "jobs.db")

    @app.task(queue="reports")
    def report(city: str) -> None: ...

    yield app
    app.close()


@pytest.fixture
def server(app: Shigoto) -> Iterator[Served]:
    with served(app, tokens=(ADMIN, READ, SUBMIT, MAIL)) as server:
        yield server


def test_one_is_added_shown_and_removed(server: Served) -> None:
    """S1-25: a schedule, from any language."""
    added = server.ask("POST", "/schedules", NIGHTLY, token=ADMIN)

    assert added.status == 201
    assert added.headers["location"] == "/api/v1/schedules/nightly"
    shown = server.ask("GET", "/schedules/nightly", token=READ).json
    assert shown == added.json
    assert (shown["when"], shown["tz"], shown["status"]) == ("0 3 * * *", "Asia/Tokyo", "active")
    assert (shown["payload"], shown["queue"], shown["catch_up_within"]) == ({"city": "Tokyo"}, "reports", 90)
    assert shown["next_at"].endswith("T18:00:00Z")
    assert server.ask("GET", "/schedules", token=READ).json == {"schedules": [shown]}

    assert server.ask("DELETE", "/schedules/nightly", token=ADMIN).status == 204
    gone = server.ask("GET", "/schedules/nightly", token=READ)
    assert (gone.status, gone.code) == (404, "SCHEDULE.NOT_FOUND")


def test_a_name_that_is_taken(server: Served) -> None:
    server.ask("POST", "/schedules", NIGHTLY, token=ADMIN)
    told = server.ask("POST", "/schedules", NIGHTLY, token=ADMIN)

    assert (told.status, told.code) == (409, "SCHEDULE.TAKEN")


def test_pause_resume_and_run(server: Served, app: Shigoto) -> None:
    server.ask("POST", "/schedules", NIGHTLY, token=ADMIN)

    assert server.ask("POST", "/schedules/nightly/pause", token=ADMIN).json["status"] == "paused"
    assert server.ask("POST", "/schedules/nightly/resume", token=ADMIN).json["status"] == "active"
    ran = server.ask("POST", "/schedules/nightly/run", token=ADMIN)

    assert ran.status == 201
    assert [str(job.id) for job in app.find()] == [ran.json["id"]]
    ticks = server.ask("GET", "/schedules/nightly/history", token=READ).json
    assert [(each["outcome"], each["job"]) for each in ticks["ticks"]] == [("run_now", ran.json["id"])]
    assert ticks["next"] is None


def test_it_can_begin_paused(server: Served) -> None:
    often = {"name": "often", "task": "report", "payload": {"city": "Oslo"}, "every": 5, "paused": True}
    told = server.ask("POST", "/schedules", often, token=ADMIN)

    assert (told.status, told.json["status"], told.json["when"]) == (201, "paused", "every 5s")


def test_every_change_is_noted_and_no_argument_is(server: Served) -> None:
    """S0-66."""
    server.ask("POST", "/schedules", NIGHTLY | {"paused": True}, token=ADMIN)
    server.ask("POST", "/schedules/nightly/resume", token=ADMIN)
    server.ask("POST", "/schedules/nightly/run", token=ADMIN)
    server.ask("DELETE", "/schedules/nightly", token=ADMIN)
    server.ask("DELETE", "/schedules/nightly", token=ADMIN)

    told = server.ask("GET", "/audit?target=nightly", token=ADMIN)
    assert [each["action"] for each in told.json["entries"]] == [
        "schedule.remove",
        "schedule.run",
        "schedule.resume",
        "schedule.pause",
        "schedule.add",
    ]
    assert b"Tokyo" not in told.raw.replace(b"Asia/Tokyo", b"")


def test_history_comes_in_pages(server: Served) -> None:
    server.ask("POST", "/schedules", NIGHTLY, token=ADMIN)
    jobs = [server.ask("POST", "/schedules/nightly/run", token=ADMIN).json["id"] for _ in range(5)]

    found: list[str] = []
    page = server.ask("GET", "/schedules/nightly/history?limit=2", token=READ).json
    while True:
        found += [each["job"] for each in page["ticks"]]
        if page["next"] is None:
            break
        page = server.ask("GET", f"/schedules/nightly/history?limit=2&before={page['next']}", token=READ).json

    assert found == jobs[::-1]


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"cron": "0 3 * *"}, "SCHEDULE.INVALID", "cron"),
        ({"tz": "Asia/Kyoto"}, "SCHEDULE.INVALID", "tz"),
        ({"every": 5}, "SCHEDULE.INVALID", None),
        ({"every": 0.5}, "REQUEST.INVALID", "every"),
        ({"until": "2030-01-01T00:00:00"}, "REQUEST.INVALID", "until"),
        ({"overlap": "both"}, "REQUEST.INVALID", "overlap"),
        ({"name": "No Way"}, "JOB.OPTION_INVALID", None),
        ({"payload": {"town": "Tokyo"}}, "JOB.PAYLOAD_INVALID", None),
        ({"payload": []}, "REQUEST.INVALID", "payload"),
        ({"task": "reprot"}, "JOB.UNKNOWN_TASK", None),
        ({"colour": "red"}, "REQUEST.INVALID", "body"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    server: Served, change: dict[str, Any], code: str, field: str | None
) -> None:
    """S3-12, S0-67: arguments are checked by the task's own signature."""
    told = server.ask("POST", "/schedules", NIGHTLY | change, token=ADMIN)

    assert (told.status, told.code) == (422, code)
    assert field is None or told.json["field"] == field


def test_a_task_that_nobody_has_yet(server: Served) -> None:
    told = server.ask("POST", "/schedules", NIGHTLY | {"task": "later", "allow_unknown": True}, token=ADMIN)

    assert (told.status, told.json["task"]) == (201, "later")


@pytest.mark.parametrize("before", ["yesterday", "2030-01-31", "2030-01-31T09:00:00", "12"])
def test_a_time_that_is_none(server: Served, before: str) -> None:
    server.ask("POST", "/schedules", NIGHTLY, token=ADMIN)
    told = server.ask("GET", f"/schedules/nightly/history?before={before}", token=READ)

    assert (told.status, told.json["field"]) == (422, "before")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/schedules/none"),
        ("GET", "/schedules/none/history"),
        ("DELETE", "/schedules/none"),
        ("POST", "/schedules/none/pause"),
        ("POST", "/schedules/none/resume"),
        ("POST", "/schedules/none/run"),
        ("GET", "/schedules/No%20Way"),
    ],
)
def test_one_that_is_not_there(server: Served, method: str, path: str) -> None:
    told = server.ask(method, path, token=ADMIN)

    assert (told.status, told.code) == (404, "SCHEDULE.NOT_FOUND")


def test_who_may(server: Served) -> None:
    """Whoever may change schedules decides which jobs are made, in any queue and for any tenant."""
    server.ask("POST", "/schedules", NIGHTLY, token=ADMIN)

    for path in ("pause", "resume", "run"):
        for other in (READ, SUBMIT, MAIL):
            assert server.ask("POST", f"/schedules/nightly/{path}", token=other).status == 403
    assert server.ask("POST", "/schedules", NIGHTLY, token=MAIL).status == 403
    assert server.ask("DELETE", "/schedules/nightly", token=MAIL).status == 403
    assert server.ask("GET", "/schedules", token=MAIL).status == 403
    assert server.ask("GET", "/schedules", token=SUBMIT).status == 403


def test_a_full_queue_takes_no_more_of_a_schedule(server: Served, app: Shigoto) -> None:
    """S4-13: by its route, and by the door of our own command line."""
    server.ask("POST", "/schedules", NIGHTLY, token=ADMIN)
    app.engine.run(app.engine.configure(QueueSettings(name="reports", max_pending=1)))
    assert server.ask("POST", "/schedules/nightly/run", token=ADMIN).status == 201

    answer = server.ask("POST", "/schedules/nightly/run", token=ADMIN)

    assert (answer.status, answer.code, "retry-after" in answer.headers) == (429, "JOB.QUEUE_FULL", True)
    remote = Shigoto(server.url.replace("://", f"://:{ADMIN.text}@"))
    with pytest.raises(QueueFull, match="max_pending"):
        remote.schedules.run_now("nightly")
    with pytest.raises(QueueFull, match="max_pending"):
        remote.schedules.backfill("nightly", datetime.now(UTC) - timedelta(days=3), datetime.now(UTC))
    remote.close()
    assert app.count(queue="reports") == 1
    assert [tick.outcome for tick in app.schedules.history("nightly")] == ["run_now"]
