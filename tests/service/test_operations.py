"""Queues, workers, counts, tasks and the audit over HTTP."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shigoto import Shigoto
from shigoto.worker import Worker
from tests.service.ground import Served, key, served
from tests.unit.schemas import accepts

ADMIN, READ, SUBMIT, WORK = (key(scope) for scope in ("admin", "read", "submit", "work"))
MAIL = key("read", "admin", name="mail", queues=("mail",))
ACME = key("read", "admin", "submit", name="acme", tenant="acme")
KEYS = (ADMIN, READ, SUBMIT, WORK, MAIL, ACME)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = Shigoto(tmp_path / "jobs.db")

    @app.task(queue="mail", retries=0)
    async def send(to: str, copies: int = 1) -> int:
        """Send a letter."""
        if not copies:
            raise ValueError("no copies")
        return copies

    @app.task
    def count() -> None: ...

    send.enqueue("ada")
    send.enqueue("bob", copies=0)
    count.enqueue()
    yield app
    app.close()


@pytest.fixture
def server(app: Shigoto) -> Iterator[Served]:
    with served(app, tokens=KEYS) as server:
        yield server


class TestQueues:
    def test_they_tell_what_they_hold(self, server: Served) -> None:
        """S1-3, S1-25: ask."""
        told = server.ask("GET", "/queues", token=READ)

        assert told.status == 200
        assert [(each["name"], each["counts"]["pending"]) for each in told.json["queues"]] == [
            ("default", 1),
            ("mail", 2),
        ]
        assert server.ask("GET", "/queues/mail", token=READ).json == told.json["queues"][1]

    def test_one_that_never_was_is_not_there(self, server: Served) -> None:
        told = server.ask("GET", "/queues/nowhere", token=READ)

        assert (told.status, told.code) == (404, "REQUEST.NOT_FOUND")

    def test_pause_and_resume_are_noted(self, server: Served) -> None:
        """S0-66, S1-25: an operator's action writes a row: actor, action, target, before, after."""
        assert server.ask("POST", "/queues/mail/pause", token=ADMIN).json["paused"] is True
        assert server.ask("POST", "/queues/mail/resume", token=ADMIN).json["paused"] is False

        told = server.ask("GET", "/audit?target=mail", token=ADMIN).json
        assert [(each["action"], each["before"], each["after"]) for each in told["entries"]] == [
            ("queue.resume", {"paused": True}, {"paused": False}),
            ("queue.pause", {"paused": False}, {"paused": True}),
        ]
        assert {each["actor"] for each in told["entries"]} == {f"token:{ADMIN.token.id} (test)"}
        assert told["next"] is None

    def test_what_is_not_named_stays(self, server: Served) -> None:
        """S4-13: a queue is given a limit."""
        first = {"max_pending": 3, "keep_failed_for": 86_400, "keep_completed_for": 0.5}
        server.ask("PATCH", "/queues/mail", first, token=ADMIN)
        told = server.ask(
            "PATCH", "/queues/mail", {"paused": True, "keep_completed_for": None}, token=ADMIN
        ).json

        assert (told["paused"], told["max_pending"], told["keep_failed_for"]) == (True, 3, 86_400)
        assert told["keep_completed_for"] is None

    def test_nothing_to_change_is_fine(self, server: Served) -> None:
        assert server.ask("PATCH", "/queues/mail", {}, token=ADMIN).status == 200

    def test_a_queue_can_be_paused_before_its_first_job(self, server: Served) -> None:
        assert server.ask("POST", "/queues/later/pause", token=ADMIN).json["paused"] is True

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"max_pending": 0}, "max_pending"),
            ({"max_pending": "many"}, "max_pending"),
            ({"paused": None}, "paused"),
            ({"keep_failed_for": -1}, "keep_failed_for"),
            ({"colour": "red"}, "body"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(
        self, server: Served, change: dict[str, Any], field: str
    ) -> None:
        told = server.ask("PATCH", "/queues/mail", change, token=ADMIN)

        assert (told.status, told.code, told.json["field"]) == (422, "REQUEST.INVALID", field)

    def test_a_name_that_no_queue_can_have_is_refused(self, server: Served) -> None:
        assert server.ask("POST", "/queues/No%20Way/pause", token=ADMIN).status == 422

    def test_only_operators_change_them(self, server: Served) -> None:
        for other in (READ, SUBMIT, WORK):
            told = server.ask("POST", "/queues/mail/pause", token=other)
            assert (told.status, told.code) == (403, "AUTH.FORBIDDEN")

    def test_a_token_for_some_sees_and_changes_only_these(self, server: Served) -> None:
        assert [each["name"] for each in server.ask("GET", "/queues", token=MAIL).json["queues"]] == ["mail"]
        assert server.ask("GET", "/queues/default", token=MAIL).status == 404
        assert server.ask("POST", "/queues/default/pause", token=MAIL).status == 403
        assert server.ask("POST", "/queues/mail/pause", token=MAIL).status == 200

    @pytest.mark.parametrize(
        "path", ["/queues", "/queues/mail", "/workers", "/stats", "/schedules", "/audit"]
    )
    def test_a_token_for_a_tenant_sees_nothing_that_all_share(self, server: Served, path: str) -> None:
        told = server.ask("GET", path, token=ACME)

        assert (told.status, told.code) == (403, "AUTH.FORBIDDEN")


def test_counts(server: Served) -> None:
    told = server.ask("GET", "/stats", token=READ).json

    assert told["queues"]["mail"]["pending"] == 2
    assert told["total"]["pending"] == 3
    mine = server.ask("GET", "/stats", token=MAIL).json
    assert (list(mine["queues"]), mine["total"]["pending"]) == (["mail"], 2)


def test_workers(server: Served, app: Shigoto) -> None:
    async def work() -> list[Any]:
        told = []
        for queues in (("default",), ("mail",), None):
            async with Worker(app, queues=queues, name=str(queues), beats="loop"):
                told.append(server.ask("GET", "/workers", token=MAIL).json["workers"])
        told.append(server.ask("GET", "/workers", token=READ).json["workers"])
        return told

    default, mail, everything, _ = asyncio.run(work())

    assert default == []
    assert [each["queues"] for each in mail] == [["mail"]]
    assert (everything[0]["queues"], everything[0]["tasks"]) == (None, ["send"])


def test_a_token_for_some_queues_sees_that_part_of_a_worker(server: Served, app: Shigoto) -> None:
    """S19: the names of other queues and tasks are none of its business."""

    async def work() -> list[Any]:
        async with Worker(app, queues=("mail", "default"), beats="loop"):
            return [server.ask("GET", "/workers", token=who).json["workers"] for who in (READ, MAIL)]

    [[everything], [mine]] = asyncio.run(work())

    assert (set(everything["queues"]), set(everything["tasks"])) == ({"mail", "default"}, {"send", "count"})
    assert (mine["queues"], mine["tasks"]) == (["mail"], ["send"])
    assert {**everything, "queues": 0, "tasks": 0} == {**mine, "queues": 0, "tasks": 0}


class TestTasks:
    @pytest.mark.parametrize("who", [READ, SUBMIT], ids=["read", "submit"])
    def test_each_is_there_with_its_schemas(self, server: Served, who: Any) -> None:
        """S0-67, S3-13: a JSON Schema of what it takes and of what it returns."""
        told = server.ask("GET", "/tasks", token=who).json

        assert [each["name"] for each in told["tasks"]] == ["send", "count"]
        send = server.ask("GET", "/tasks/send", token=who).json
        assert send == told["tasks"][0]
        assert (send["summary"], send["queue"], send["attempts"]) == ("Send a letter.", "mail", 1)
        assert accepts(send["arguments"], {"to": "ada", "copies": 2})
        assert not accepts(send["arguments"], {"copies": 2})
        assert accepts(send["result"], 3)

    def test_one_that_is_not_there(self, server: Served) -> None:
        told = server.ask("GET", "/tasks/sned", token=READ)

        assert (told.status, told.code) == (404, "REQUEST.NOT_FOUND")
        assert "send" in told.json["detail"]

    def test_a_token_for_some_queues_sees_those_of_its_own(self, tmp_path: Path) -> None:
        """S19."""
        app = Shigoto(tmp_path / "jobs.db")

        @app.cron("0 3 * * *", queue="mail")
        def send() -> None: ...

        @app.task(queue="ops")
        def sender() -> None: ...

        @app.task(queue="ops")
        def broken(what: "Nowhere" = 1) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        with served(app, tokens=[MAIL, READ], housekeeping=False) as server:
            everything = server.ask("GET", "/tasks", token=READ).json
            mine = server.ask("GET", "/tasks", token=MAIL).json
            one = server.ask("GET", "/tasks/send", token=MAIL).json
            others = [server.ask("GET", f"/tasks/{name}", token=MAIL) for name in ("sender", "sendr", "x")]
        app.close()

        assert [each["name"] for each in everything["tasks"]] == ["send", "sender"]
        assert [each["name"] for each in everything["tasks"][0]["schedules"]] == ["send"]
        assert ([each["name"] for each in mine["tasks"]], mine["broken"]) == (["send"], [])
        assert mine["tasks"] == [one]
        assert (one["kind"], one["schedules"]) == ("scheduled", [])  # which are for tokens of everything
        assert [each.status for each in others] == [404, 404, 404]
        assert [each.json["detail"] for each in others] == [
            "The app has no task 'sender'. Did you mean 'send'?",
            "The app has no task 'sendr'. Did you mean 'send'?",
            "The app has no task 'x'. It has: send.",
        ]

    def test_one_that_makes_no_sense_does_not_hide_the_others(self, tmp_path: Path) -> None:
        app = Shigoto(tmp_path / "jobs.db")

        @app.task
        def fine() -> None: ...

        @app.task
        def broken(what: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

        with served(app) as server:
            told = server.ask("GET", "/tasks").json
        app.close()

        assert [each["name"] for each in told["tasks"]] == ["fine"]
        assert [each["name"] for each in told["broken"]] == ["broken"]


class TestAudit:
    def test_it_comes_in_pages_the_newest_first(self, server: Served) -> None:
        """S0-66."""
        for number in range(5):
            server.ask("PATCH", "/queues/mail", {"max_pending": number + 1}, token=ADMIN)
        numbers: list[int] = []
        page = server.ask("GET", "/audit?limit=2", token=ADMIN).json
        while True:
            numbers += [each["after"]["max_pending"] for each in page["entries"]]
            if page["next"] is None:
                break
            page = server.ask("GET", f"/audit?limit=2&before={page['next']}", token=ADMIN).json

        assert numbers == [5, 4, 3, 2, 1]

    def test_it_is_for_operators_of_everything(self, server: Served) -> None:
        assert server.ask("GET", "/audit", token=READ).status == 403
        assert server.ask("GET", "/audit", token=MAIL).status == 403

    @pytest.mark.parametrize("query", ["limit=0", "limit=1001", "before=x", "before=-1", f"before={2**70}"])
    def test_what_cannot_be_meant_is_refused(self, server: Served, query: str) -> None:
        told = server.ask("GET", f"/audit?{query}", token=ADMIN)

        assert (told.status, told.json["field"]) == (422, query.partition("=")[0])
