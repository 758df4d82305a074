"""Jobs over HTTP: submit, ask, wait, list, count, and what operators do to them."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from shigoto import Shigoto, State, bulk
from shigoto.model.job import LogLine
from shigoto.model.worker import Announcement, Ending, LogTail
from shigoto.server import jobs
from tests.service.ground import Served, served, shop, work_off


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Shigoto]:
    app = shop(tmp_path)
    yield app
    app.close()


@pytest.fixture
def server(app: Shigoto) -> Iterator[Served]:
    with served(app, housekeeping=False) as server:
        yield server


def submit(server: Served, **fields: Any) -> str:
    answer = server.ask("POST", "/jobs", {"task": "greet", "payload": {"name": "Ada"}} | fields)
    assert answer.status == 201, answer.raw
    id: str = answer.json["id"]
    return id


class TestSubmit:
    def test_a_job_is_stored_and_its_place_is_told(self, server: Served, app: Shigoto) -> None:
        """S1-3."""
        answer = server.ask("POST", "/jobs", {"task": "greet", "payload": {"name": "Ada"}})

        assert answer.status == 201
        assert answer.json == {"id": answer.json["id"], "number": 1, "status": "inserted"}
        assert answer.headers["location"] == f"/api/v1/jobs/{answer.json['id']}"
        [job] = app.find()
        assert (str(job.id), job.task, job.payload) == (answer.json["id"], "greet", '{"name":"Ada"}')

    def test_everything_that_can_be_said_of_a_job_is_kept(self, server: Served) -> None:
        said = {
            "queue": "slow",
            "priority": 7,
            "delay": 60.5,
            "expires": 3600,
            "key": "one",
            "retries": 2,
            "timeout": 1.5,
            "max_crashes": None,
            "tenant": "acme",
            "tags": ["vip"],
            "meta": {"trace": "7"},
        }

        job = server.ask("GET", f"/jobs/{submit(server, **said)}").json

        assert job["state"] == "pending"
        assert [
            job[name] for name in ("queue", "priority", "key", "max_failures", "timeout", "max_crashes")
        ] == [
            "slow",
            7,
            "one",
            3,
            1.5,
            None,
        ]
        assert (job["tenant"], job["tags"], job["meta"]) == ("acme", ["vip"], {"trace": "7"})
        assert job["run_at"] > job["created_at"]
        assert job["expires_at"] > job["run_at"]

    @pytest.mark.parametrize(
        ("said", "field"),
        [
            ({"payload": {"name": 7}}, "payload"),
            ({"payload": {}}, "payload"),
            ({"payload": {"name": "Ada", "age": 7}}, "payload"),
            ({"payload": []}, "payload"),
            ({"task": "nobody_has_this"}, "task"),
            ({"task": "Not A Name"}, "task"),
            ({"priority": 40_000}, "priority"),
            ({"priority": "7"}, "priority"),
            ({"delay": -1}, "delay"),
            ({"run_at": "2026-01-01T00:00:00"}, "run_at"),
            ({"expires": 1, "expires_at": "2036-01-01T00:00:00Z"}, "expires_at"),
            ({"tags": [""]}, "tags[0]"),
            ({"id": "7"}, "id"),
            ({"colour": "red"}, "body"),
        ],
    )
    def test_what_cannot_be_meant_is_refused_with_its_place(
        self, server: Served, app: Shigoto, said: dict[str, Any], field: str
    ) -> None:
        """S3-12, S3-13, S0-67: the schema of the task holds for whoever comes by HTTP."""
        answer = server.ask("POST", "/jobs", {"task": "greet", "payload": {"name": "Ada"}} | said)

        assert (answer.status, answer.json["field"]) == (422, field)
        assert app.find() == []

    @pytest.mark.parametrize(
        "said",
        [
            {"delay": 1, "run_at": "2036-01-01T00:00:00Z"},
            {"key_mode": "replace"},
            {"delay": 60, "expires": 30},
            {"timeout": 0},
            {"tenant": "a\u0000b"},
        ],
    )
    def test_options_that_contradict_each_other_are_refused(
        self, server: Served, said: dict[str, Any]
    ) -> None:
        answer = server.ask("POST", "/jobs", {"task": "greet", "payload": {"name": "Ada"}} | said)

        assert (answer.status, answer.code) == (422, "JOB.OPTION_INVALID")

    def test_a_task_that_nobody_has_may_wait_if_it_is_told_to(self, server: Served, app: Shigoto) -> None:
        """S3-13."""
        said = {"task": "elsewhere", "payload": {"anything": [1, {"deep": None}]}}

        assert server.ask("POST", "/jobs", said).code == "JOB.UNKNOWN_TASK"
        assert server.ask("POST", "/jobs", said | {"allow_unknown": True}).status == 201
        assert app.count() == 1

    def test_a_task_that_a_live_worker_has_is_known(self, server: Served, app: Shigoto) -> None:
        app.engine.run(
            app.engine.announce(
                Announcement(id=uuid4(), name="w", tasks=("elsewhere",), queues=None, slots=1, version="1")
            )
        )

        assert server.ask("POST", "/jobs", {"task": "elsewhere"}).status == 201

    def test_a_payload_that_is_too_large_is_refused(self, server: Served) -> None:
        answer = server.ask("POST", "/jobs", {"task": "greet", "payload": {"name": "x" * 1_100_000}})

        assert (answer.status, answer.code) == (413, "JOB.PAYLOAD_TOO_LARGE")

    def test_many_are_stored_together(self, server: Served, app: Shigoto) -> None:
        jobs = [{"task": "greet", "payload": {"name": str(n)}} for n in range(250)]

        answer = server.ask("POST", "/jobs/batch", {"jobs": jobs})

        assert answer.status == 200
        assert [each["status"] for each in answer.json["jobs"]] == ["inserted"] * 250
        assert [each["number"] for each in answer.json["jobs"]] == list(range(1, 251))
        assert app.count() == 250

    def test_of_many_all_or_none(self, server: Served, app: Shigoto) -> None:
        jobs = [{"task": "greet", "payload": {"name": "Ada"}}, {"task": "greet", "payload": {"name": 7}}]

        answer = server.ask("POST", "/jobs/batch", {"jobs": jobs})

        assert (answer.status, answer.code, answer.json["field"]) == (
            422,
            "JOB.PAYLOAD_INVALID",
            "jobs[1].payload",
        )
        assert app.count() == 0

    @pytest.mark.parametrize("count", [0, 1_001])
    def test_a_batch_has_bounds(self, server: Served, count: int) -> None:
        jobs = [{"task": "greet", "payload": {"name": "Ada"}}] * count

        assert server.ask("POST", "/jobs/batch", {"jobs": jobs}).status == 422


class TestAsk:
    def test_a_job_is_told_as_it_is(self, server: Served, app: Shigoto) -> None:
        """S1-3: ask a job's state."""
        id = submit(server)
        work_off(app, result='"Hello, Ada"')

        answer = server.ask("GET", f"/jobs/{id}")

        assert answer.status == 200
        assert answer.json["state"] == "completed"
        assert answer.json["payload"] == {"name": "Ada"}
        assert answer.json["result"] == "Hello, Ada"
        assert answer.json["status_url"] == f"/api/v1/jobs/{id}"

    def test_a_failure_has_its_reason(self, server: Served, app: Shigoto) -> None:
        """S1-10: the failed state carries a reason."""
        id = submit(server)
        work_off(app, ending=Ending.FAILED, error="ValueError: no such person", traceback="Traceback …")

        job = server.ask("GET", f"/jobs/{id}").json

        assert (job["state"], job["error"]) == ("failed", "ValueError: no such person")
        assert "traceback" not in job

    def test_one_that_is_not_there(self, server: Served) -> None:
        answer = server.ask("GET", f"/jobs/{uuid4()}")

        assert (answer.status, answer.code) == (404, "JOB.NOT_FOUND")

    def test_what_somebody_wrote_into_the_store_by_hand_breaks_no_answer(
        self, server: Served, app: Shigoto
    ) -> None:
        id = submit(server)
        with app.connect() as connection:
            connection.execute("UPDATE shigoto_job SET payload = ?", ("{broken",))
        connection.close()

        assert server.ask("GET", f"/jobs/{id}").json["payload"] == "{broken"

    def test_who_waits_is_answered_when_the_job_ends(self, server: Served, app: Shigoto) -> None:
        """S1-24: clients learn results by asking with the id, and may wait for it."""
        id = submit(server)
        timer = threading.Timer(0.3, work_off, (app,), {"result": "7"})
        timer.start()
        began = time.monotonic()

        job = server.ask("GET", f"/jobs/{id}?wait=20").json

        timer.join()
        assert (job["state"], job["result"]) == ("completed", 7)
        assert time.monotonic() - began < 10

    def test_who_waits_in_vain_is_told_how_it_stands(self, server: Served) -> None:
        """S1-24."""
        answer = server.ask("GET", f"/jobs/{submit(server)}?wait=0.2")

        assert (answer.status, answer.json["state"]) == (200, "pending")

    @pytest.mark.parametrize("wait", ["61", "-1", "nan", "x"])
    def test_a_wait_has_bounds(self, server: Served, wait: str) -> None:
        assert server.ask("GET", f"/jobs/{submit(server)}?wait={wait}").status == 422


class TestList:
    def test_pages_newest_first(self, server: Served) -> None:
        ids = [submit(server) for _ in range(5)]

        first = server.ask("GET", "/jobs?limit=3").json
        second = server.ask("GET", f"/jobs?limit=3&before={first['next']}").json

        assert [job["id"] for job in first["jobs"] + second["jobs"]] == ids[::-1]
        assert second["next"] is None

    def test_a_long_page_is_read_in_parts(self, server: Served, app: Shigoto) -> None:
        app.enqueue_many(app.tasks["greet"].call("Ada") for _ in range(350))

        page = server.ask("GET", "/jobs?limit=320").json

        assert [job["number"] for job in page["jobs"]] == list(range(350, 30, -1))
        assert page["next"] == 31

    def test_arguments_and_results_only_if_asked_for(self, server: Served) -> None:
        submit(server)

        [short] = server.ask("GET", "/jobs").json["jobs"]
        [long] = server.ask("GET", "/jobs?full=true").json["jobs"]

        assert not {"payload", "result", "meta"} & set(short)
        assert long["payload"] == {"name": "Ada"}

    def test_a_page_with_huge_jobs_ends_early(self, server: Served, app: Shigoto) -> None:
        app.enqueue_many(app.tasks["greet"].call("x" * 1_000_000) for _ in range(20))

        page = server.ask("GET", "/jobs?limit=20&full=true").json

        assert 16 <= len(page["jobs"]) < 20
        assert page["next"] == page["jobs"][-1]["number"]

    @pytest.mark.parametrize(
        ("words", "count"),
        [
            ("waiting", 1),
            ("pending", 1),
            ("running", 0),
            ("succeeded", 1),
            ("completed", 1),
            ("failed", 0),
            ("all", 2),
        ],
    )
    def test_the_states_have_the_names_that_people_know(
        self, server: Served, app: Shigoto, words: str, count: int
    ) -> None:
        """S1-9: waiting, running, succeeded, failed."""
        submit(server)
        work_off(app)
        submit(server)

        assert len(server.ask("GET", f"/jobs?filter=state:{words}").json["jobs"]) == count
        assert server.ask("GET", f"/jobs/count?filter={words}").json == {"count": count}

    def test_the_filter_language_is_that_of_the_command_line(self, server: Served) -> None:
        submit(server, tags=["vip"], payload={"name": "Grace"})
        submit(server)

        found = server.ask("GET", "/jobs?filter=tag:vip%20args.name:Grace%20since:1h").json["jobs"]

        assert len(found) == 1

    @pytest.mark.parametrize(
        "query",
        ["filter=colour:red", "filter=state:purple", "limit=0", "limit=1001", "before=-1", "full=perhaps"],
    )
    def test_what_cannot_be_meant_is_refused(self, server: Served, query: str) -> None:
        assert server.ask("GET", f"/jobs?{query}").status == 422


class TestBeside:
    def test_runs_lines_and_events(self, server: Served, app: Shigoto) -> None:
        id = submit(server)
        work_off(
            app,
            ending=Ending.ERRORED,
            error="OSError: away",
            traceback="Traceback …",
            delay=0,
            log=LogTail(1, (LogLine(1, 1_700_000_000_000, "info", "knocking"),)),
        )
        work_off(app)

        [attempt] = server.ask("GET", f"/jobs/{id}/attempts").json["attempts"]
        [line] = server.ask("GET", f"/jobs/{id}/logs").json["lines"]
        events = server.ask("GET", f"/jobs/{id}/events").json["events"]

        assert (attempt["run"], attempt["outcome"], attempt["error"]) == (1, "errored", "OSError: away")
        assert (line["run"], line["line"], line["level"], line["text"]) == (1, 1, "info", "knocking")
        assert [each["event"] for each in events] == ["created", "started", "attempt", "started", "ended"]
        assert events[-1]["outcome"] == "completed"

    @pytest.mark.parametrize("what", ["attempts", "logs", "events"])
    def test_of_a_job_that_is_not_there(self, server: Served, what: str) -> None:
        assert server.ask("GET", f"/jobs/{uuid4()}/{what}").code == "JOB.NOT_FOUND"


class TestAct:
    def test_cancel(self, server: Served, app: Shigoto) -> None:
        """S1-3: change a job's state."""
        id = submit(server)

        assert server.ask("POST", f"/jobs/{id}/cancel").json == {"id": id, "state": "cancelled"}
        assert server.ask("POST", f"/jobs/{id}/cancel", {"force": True}).json["state"] == "cancelled"
        [entry] = app.engine.run(app.engine.registry.noted())
        assert (entry.actor, entry.action, entry.target) == ("anonymous", "job.cancel", id)

    def test_retry(self, server: Served, app: Shigoto) -> None:
        id = submit(server)
        work_off(app, ending=Ending.FAILED, error="no")

        assert server.ask("POST", f"/jobs/{id}/retry", {}).json == {"id": id, "state": "pending"}
        assert server.ask("POST", f"/jobs/{id}/retry", {}).code == "JOB.NOT_RETRYABLE"
        [entry] = app.engine.run(app.engine.registry.noted())
        assert (entry.action, entry.before, entry.after) == (
            "job.retry",
            '{"state":"failed"}',
            '{"state":"pending"}',
        )

    def test_retry_of_one_whose_key_is_taken(self, server: Served, app: Shigoto) -> None:
        id = submit(server, key="one")
        work_off(app, ending=Ending.FAILED, error="no")
        submit(server, key="one")

        answer = server.ask("POST", f"/jobs/{id}/retry")

        assert (answer.status, answer.code) == (409, "JOB.KEY_TAKEN")

    def test_rerun(self, server: Served, app: Shigoto) -> None:
        id = submit(server)
        work_off(app)

        answer = server.ask("POST", f"/jobs/{id}/rerun")

        assert (answer.status, answer.json["status"]) == (201, "inserted")
        assert answer.json["id"] != id
        assert app.job(UUID(answer.json["id"])).status() is State.PENDING

    def test_a_rerun_that_is_asked_for_twice_is_one(self, server: Served, app: Shigoto) -> None:
        """The answer to the first was lost."""
        id, other = submit(server), submit(server)
        work_off(app)
        key = {"Idempotency-Key": "again"}

        first = server.ask("POST", f"/jobs/{id}/rerun", headers=key)
        app.job(UUID(first.json["id"])).cancel()
        second = server.ask("POST", f"/jobs/{id}/rerun", headers=key)
        another = server.ask("POST", f"/jobs/{other}/rerun", headers=key)

        assert (first.status, second.status, another.status) == (201, 200, 201)
        assert (first.json["id"], second.json["status"]) == (second.json["id"], "existing")
        assert another.json["id"] != first.json["id"]
        assert server.ask("POST", f"/jobs/{id}/rerun").status == 201  # without a key it is a new one
        noted = app.engine.run(app.engine.registry.noted())
        assert [entry.action for entry in noted].count("job.rerun") == 3

    def test_a_rerun_needs_room(self, server: Served, app: Shigoto) -> None:
        """As every other job that comes in by HTTP."""
        id = submit(server)
        work_off(app)
        assert server.ask("PATCH", "/queues/default", {"max_pending": 1}).status == 200
        key = {"Idempotency-Key": "again"}

        assert server.ask("POST", f"/jobs/{id}/rerun", headers=key).status == 201
        full = server.ask("POST", f"/jobs/{id}/rerun")

        assert (full.status, full.code) == (429, "JOB.QUEUE_FULL")
        assert server.ask("POST", f"/jobs/{id}/rerun", headers=key).status == 200  # it is there already

    @pytest.mark.parametrize("action", ["cancel", "retry", "rerun"])
    def test_of_a_job_that_is_not_there(self, server: Served, action: str) -> None:
        assert server.ask("POST", f"/jobs/{uuid4()}/{action}", {}).code == "JOB.NOT_FOUND"

    def test_an_action_on_many_is_a_dry_run_at_first(self, server: Served, app: Shigoto) -> None:
        """S38."""
        ids = {submit(server) for _ in range(3)}

        done = server.ask("POST", "/jobs/actions", {"action": "cancel", "filter": "queue:default"}).json

        assert (done["matched"], done["done"], done["dry_run"], set(done["ids"])) == (3, 0, True, ids)
        assert app.count(state="pending") == 3

    def test_an_action_on_many_must_be_confirmed(self, server: Served, app: Shigoto) -> None:
        """S38: bulk actions need a count confirmation."""
        for _ in range(3):
            submit(server)
        order = {"action": "cancel", "filter": "queue:default", "dry_run": False}

        for confirm in ({}, {"confirm": 2}):
            refused = server.ask("POST", "/jobs/actions", order | confirm)
            assert (refused.status, refused.code, refused.json["matched"]) == (409, "REQUEST.CONFIRM", 3)
        assert app.count(state="pending") == 3

        assert server.ask("POST", "/jobs/actions", order | {"confirm": 3}).json["done"] == 3
        assert app.count(state="cancelled") == 3
        [entry] = app.engine.run(app.engine.registry.noted())
        assert (entry.action, entry.target) == ("jobs.cancel", "queue:default")

    @pytest.mark.parametrize(
        ("action", "filter", "ending"),
        [
            ("cancel", "queue:default", None),
            ("retry", "state:failed", Ending.FAILED),
            ("delete", "state:completed", Ending.COMPLETED),
        ],
    )
    def test_an_action_on_many_ends_before_its_time_is_over(
        self,
        server: Served,
        app: Shigoto,
        monkeypatch: pytest.MonkeyPatch,
        action: str,
        filter: str,
        ending: Ending | None,
    ) -> None:
        """What is done is told, and that there are more; the same again does the rest."""
        app.enqueue_many([app.tasks["greet"].call(name="Ada") for _ in range(250)])
        while ending is not None and work_off(app, ending=ending):
            pass
        monkeypatch.setattr(jobs, "ACT_WITHIN", 0.0)
        monkeypatch.setattr(jobs, "BATCH", 100)
        monkeypatch.setattr(bulk, "BATCH", 100)
        order = {"action": action, "filter": filter, "dry_run": False, "confirm": 250}

        told = [server.ask("POST", "/jobs/actions", order).json for _ in range(3)]

        assert [(each["matched"], each["done"], each["more"]) for each in told] == [
            (250, 100, True),
            (150, 100, True),
            (50, 50, False),
        ]
        assert [each["skipped"] for each in told] == [0, 0, 0]

    def test_retry_many(self, server: Served, app: Shigoto) -> None:
        for _ in range(3):
            submit(server)
        work_off(app, ending=Ending.FAILED, error="no")

        done = server.ask(
            "POST", "/jobs/actions", {"action": "retry", "filter": "failed", "dry_run": False, "confirm": 3}
        ).json

        assert (done["matched"], done["done"], done["skipped"], done["more"]) == (3, 3, 0, False)
        assert app.count(state="pending") == 3

    def test_delete_many(self, server: Served, app: Shigoto) -> None:
        submit(server)
        work_off(app)
        submit(server)
        order = {"action": "delete", "filter": "completed", "dry_run": False, "confirm": 1}

        assert server.ask("POST", "/jobs/actions", order).json["done"] == 1
        assert [job.state for job in app.find()] == [State.PENDING]

    @pytest.mark.parametrize(
        ("action", "filter"),
        [
            ("cancel", ""),
            ("delete", ""),
            ("delete", "queue:mail"),
            ("delete", "processing"),
            ("retry", "pending"),
            ("cancel", "colour:red"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, server: Served, action: str, filter: str) -> None:
        answer = server.ask("POST", "/jobs/actions", {"action": action, "filter": filter})

        assert (answer.status, answer.json["field"]) == (422, "filter")
