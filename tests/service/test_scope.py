"""Tenants and queues: nobody sees or touches what is not theirs."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from shigoto import Forbidden, JobNotFound, Shigoto
from shigoto.model.notice import DELIVER, NOTICE, RULES
from shigoto.model.worker import Ending
from shigoto.server import permissions
from shigoto.server.auth import ANYBODY, Caller
from shigoto.server.permissions import claimable, narrowed, submittable, unrestricted, visible
from tests.service.ground import STORES, Key, Served, claim_all, key, served, shop_on, work_off

ALL = key("submit", "read", "admin", name="all")
ACME = key("submit", "read", "admin", name="acme", tenant="acme")
BOLT = key("submit", "read", "admin", name="bolt", tenant="bolt")
NOBODY = key("submit", "read", "admin", name="nobody", tenant="")
MAIL = key("submit", "read", "admin", name="mail", queues=("mail",))
TWO = key("submit", "read", "admin", name="two", queues=("mail", "default"))
SUBMIT = key("submit", "read", name="submit")
WORK = key("submit", "work", name="work")


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest) -> Iterator[Shigoto]:
    with shop_on(request.param, request) as app:
        yield app


@pytest.fixture
def server(app: Shigoto) -> Iterator[Served]:
    with served(app, tokens=(ALL, ACME, BOLT, NOBODY, MAIL, TWO, SUBMIT, WORK), housekeeping=False) as server:
        yield server


def submit(server: Served, as_: Key, **said: Any) -> str:
    answer = server.ask("POST", "/jobs", {"task": "greet", "payload": {"name": "x"}} | said, token=as_)
    assert answer.status == 201, answer.raw
    id: str = answer.json["id"]
    return id


ROUTES = [
    ("GET", "/jobs/{}", None),
    ("GET", "/jobs/{}?wait=0.1", None),
    ("GET", "/jobs/{}/attempts", None),
    ("GET", "/jobs/{}/logs", None),
    ("GET", "/jobs/{}/events", None),
    ("POST", "/jobs/{}/cancel", {}),
    ("POST", "/jobs/{}/cancel", {"force": True}),
    ("POST", "/jobs/{}/retry", {}),
    ("POST", "/jobs/{}/rerun", {}),
]


class TestOneJob:
    @pytest.mark.parametrize(("method", "path", "body"), ROUTES)
    @pytest.mark.parametrize("stranger", [BOLT, NOBODY, MAIL], ids=lambda each: each.token.name)
    def test_that_of_another_is_not_there(
        self, server: Served, app: Shigoto, method: str, path: str, body: Any, stranger: Key
    ) -> None:
        """S21: object-level authorisation; the answer is that to an id that nobody has."""
        id, none = submit(server, ACME), str(uuid4())
        work_off(app, ending=Ending.FAILED, error="secret")

        theirs = server.ask(method, path.format(id), body, token=stranger)
        nobodys = server.ask(method, path.format(none), body, token=stranger)

        assert (theirs.status, theirs.code) == (404, "JOB.NOT_FOUND")
        assert theirs.raw.replace(id.encode(), b"") == nobodys.raw.replace(none.encode(), b"")
        [job] = app.find()
        assert (job.state, app.engine.run(app.engine.registry.noted())) == ("failed", [])

    @pytest.mark.parametrize("owner", [ALL, ACME, TWO], ids=lambda each: each.token.name)
    def test_one_of_ones_own_is(self, server: Served, owner: Key) -> None:
        id = submit(server, ACME)

        assert server.ask("GET", f"/jobs/{id}", token=owner).status == 200


class TestSubmit:
    @pytest.mark.parametrize("task", [DELIVER, NOTICE, f"{RULES}0123456789ab"])
    def test_messages_to_people_are_written_by_workers(self, server: Served, task: str) -> None:
        """Else whoever may submit could mail the administrator whatever he likes."""
        asked = {"task": task, "payload": {}, "allow_unknown": True}

        assert server.ask("POST", "/jobs", asked, token=SUBMIT).code == "AUTH.FORBIDDEN"
        assert server.ask("POST", "/jobs", asked, token=WORK).status == 201

    def test_the_tenant_is_the_tokens(self, server: Served) -> None:
        """S10, S21: not what the request says."""
        for said in ({}, {"tenant": "acme"}):
            assert (
                server.ask("GET", f"/jobs/{submit(server, ACME, **said)}", token=ALL).json["tenant"] == "acme"
            )
        assert server.ask("GET", f"/jobs/{submit(server, NOBODY)}", token=ALL).json["tenant"] == ""

    @pytest.mark.parametrize(
        ("token", "said"),
        [
            (ACME, {"tenant": "bolt"}),
            (ACME, {"tenant": ""}),
            (NOBODY, {"tenant": "acme"}),
            (MAIL, {}),
            (MAIL, {"queue": "default"}),
            (TWO, {"queue": "third"}),
        ],
    )
    def test_what_is_anothers_is_refused(
        self, server: Served, app: Shigoto, token: Key, said: dict[str, Any]
    ) -> None:
        job = {"task": "greet", "payload": {"name": "x"}} | said

        one = server.ask("POST", "/jobs", job, token=token)
        many = server.ask(
            "POST", "/jobs/batch", {"jobs": [{"task": "send", "payload": {"to": "x"}}, job]}, token=token
        )

        assert (one.code, many.code) == ("AUTH.FORBIDDEN", "AUTH.FORBIDDEN")
        assert app.count() == 0

    def test_nobody_is_told_of_tasks_of_other_queues(self, server: Served) -> None:
        """S19: not even by a hint."""
        said = {"task": "gret", "payload": {"name": "x"}}
        hints = [server.ask("POST", "/jobs", said, token=who).json["detail"] for who in (ALL, TWO, MAIL)]

        assert ["greet" in hint for hint in hints] == [True, True, False]
        assert "'send'" in server.ask("POST", "/jobs", said | {"task": "sen"}, token=MAIL).json["detail"]

    def test_the_queue_of_the_task_counts(self, server: Served) -> None:
        submit(server, MAIL, task="send", payload={"to": "x"})
        submit(server, MAIL, queue="mail")


class TestUniqueKey:
    """A key holds across the queues of a tenant: nobody reaches into another queue by it."""

    @pytest.mark.parametrize("mode", ["keep", "replace", "preserve_run_at", "unsafe_dedupe"])
    @pytest.mark.parametrize("runs", [False, True])
    def test_that_of_a_job_elsewhere_is_taken(
        self, server: Served, app: Shigoto, mode: str, runs: bool
    ) -> None:
        """S21, S34."""
        id = submit(server, ALL, key="k", queue="billing")
        if runs:
            claim_all(app)
        [before] = app.find()

        refused = server.ask(
            "POST",
            "/jobs",
            {"task": "send", "payload": {"to": "x"}, "key": "k", "key_mode": mode},
            token=MAIL,
        )

        assert (refused.status, refused.code) == (409, "JOB.KEY_TAKEN")
        assert id.encode() not in refused.raw
        assert app.find() == [before]

    def test_that_of_a_job_of_another_tenant_is_free(self, server: Served) -> None:
        submit(server, ACME, key="k")
        submit(server, BOLT, key="k")

    def test_that_of_ones_own_works_as_ever(self, server: Served) -> None:
        said = {"task": "send", "payload": {"to": "x"}, "key": "k"}
        id = submit(server, MAIL, **said)

        assert server.ask("POST", "/jobs", said, token=MAIL).json["id"] == id
        replaced = server.ask("POST", "/jobs", said | {"key_mode": "replace"}, token=MAIL)
        assert (replaced.status, replaced.json["status"]) == (200, "replaced")

    def test_one_that_has_ended_is_free(self, server: Served, app: Shigoto) -> None:
        submit(server, ALL, key="k", queue="billing")
        work_off(app)

        submit(server, MAIL, task="send", payload={"to": "x"}, key="k")
        dedupe = {"task": "send", "payload": {"to": "x"}, "key": "j", "key_mode": "unsafe_dedupe"}
        submit(server, ALL, key="j", queue="billing")
        work_off(app)
        assert server.ask("POST", "/jobs", dedupe, token=MAIL).code == "JOB.KEY_TAKEN"

    def test_it_is_found_behind_any_number_of_others(
        self, server: Served, app: Shigoto, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(permissions, "LOOK", 2)
        first = submit(server, ALL, key="k", queue="billing")
        work_off(app, ending=Ending.FAILED, error="no")
        for _ in range(3):
            submit(server, ALL, key="k", queue="billing")
            work_off(app)
        app.job(first).retry()

        refused = server.ask(
            "POST", "/jobs", {"task": "send", "payload": {"to": "x"}, "key": "k"}, token=MAIL
        )

        assert refused.code == "JOB.KEY_TAKEN"

    def test_a_retry_does_not_name_who_has_it(self, server: Served, app: Shigoto) -> None:
        id = submit(server, MAIL, task="send", payload={"to": "x"}, key="k")
        work_off(app, ending=Ending.FAILED, error="no")
        holder = submit(server, ALL, key="k", queue="billing")

        ours = server.ask("POST", f"/jobs/{id}/retry", token=MAIL)
        alls = server.ask("POST", f"/jobs/{id}/retry", token=ALL)

        assert (ours.code, alls.code) == ("JOB.KEY_TAKEN", "JOB.KEY_TAKEN")
        assert holder.encode() in alls.raw
        assert holder.encode() not in ours.raw


class TestMany:
    def test_lists_and_counts_have_ones_own_only(self, server: Served) -> None:
        """S21."""
        theirs, ours = submit(server, ACME), submit(server, BOLT)
        mail = submit(server, ALL, queue="mail")

        def ids(token: Key, filter: str = "") -> list[str]:
            found = server.ask("GET", f"/jobs?filter={filter}", token=token)
            assert found.status == 200
            count = server.ask("GET", f"/jobs/count?filter={filter}", token=token).json["count"]
            assert count == len(found.json["jobs"])
            return [job["id"] for job in found.json["jobs"]]

        assert ids(ALL) == [mail, ours, theirs]
        assert ids(ACME) == ids(ACME, "tenant:acme") == [theirs]
        assert ids(BOLT) == [ours]
        assert ids(NOBODY) == ids(MAIL) == ids(MAIL, "queue:mail") == ids(TWO, "queue:mail") == [mail]
        assert ids(TWO, "queue:default") == [ours, theirs]

    @pytest.mark.parametrize(
        ("token", "filter"),
        [
            (ACME, "tenant:bolt"),
            (MAIL, "queue:default"),
            (TWO, ""),
            (TWO, "queue:third"),
            (NOBODY, "tenant:acme"),
        ],
    )
    def test_what_is_anothers_cannot_be_asked_for(self, server: Served, token: Key, filter: str) -> None:
        for path in ("/jobs", "/jobs/count"):
            assert server.ask("GET", f"{path}?filter={filter}", token=token).code == "AUTH.FORBIDDEN"
        action = {"action": "cancel", "filter": filter or "all"}
        assert server.ask("POST", "/jobs/actions", action, token=token).code == "AUTH.FORBIDDEN"

    def test_an_action_reaches_ones_own_only(self, server: Served, app: Shigoto) -> None:
        submit(server, ACME)
        theirs = submit(server, BOLT)

        done = server.ask(
            "POST",
            "/jobs/actions",
            {"action": "cancel", "filter": "all", "dry_run": False, "confirm": 99},
            token=ACME,
        ).json

        assert done["done"] == 1
        assert app.job(theirs).status() == "pending"

    @pytest.mark.parametrize("token", [ACME, MAIL], ids=lambda each: each.token.name)
    def test_only_a_token_for_everything_deletes(self, server: Served, token: Key) -> None:
        action = {"action": "delete", "filter": "completed"}

        assert server.ask("POST", "/jobs/actions", action, token=token).code == "AUTH.FORBIDDEN"
        assert server.ask("POST", "/jobs/actions", action, token=ALL).status == 200


def caller(which: Key) -> Caller:
    return Caller(which.token, "test")


class TestRules:
    def test_somebody_on_this_machine_may_everything(self) -> None:
        assert submittable(ANYBODY, "t", "any", None) == ""
        assert submittable(ANYBODY, "t", "any", "acme") == "acme"
        assert narrowed(ANYBODY, {"tenant": "acme"}) == {"tenant": "acme"}
        assert claimable(ANYBODY, None) is None
        unrestricted(ANYBODY)

    def test_work_is_taken_from_ones_own_queues(self) -> None:
        assert claimable(caller(ALL), ("any",)) == ("any",)
        assert claimable(caller(TWO), None) == ("mail", "default")
        assert claimable(caller(TWO), ("mail",)) == ("mail",)
        with pytest.raises(Forbidden):
            claimable(caller(TWO), ("mail", "third"))

    def test_no_tenant_works(self) -> None:
        with pytest.raises(Forbidden):
            claimable(caller(ACME), None)

    @pytest.mark.parametrize("which", [ACME, NOBODY, MAIL])
    def test_what_is_known_of_all_is_for_tokens_of_all(self, which: Key) -> None:
        with pytest.raises(Forbidden):
            unrestricted(caller(which))

    def test_nothing_is_seen_where_nothing_is(self) -> None:
        with pytest.raises(JobNotFound):
            visible(ANYBODY, None, uuid4())
