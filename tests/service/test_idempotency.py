"""A request that is sent twice is one job: by the client's own id, or by an Idempotency-Key."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from shigoto import Shigoto
from shigoto.model.worker import Ending
from shigoto.server.jobs import derived
from tests.service.ground import STORES, Answer, Key, Served, key, served, shop_on, work_off

ONE, OTHER = key("submit", "read", name="one"), key("submit", "read", name="other")
SHUT = key("submit", "read", name="shut", queues=("mail",))
ACME = key("submit", "read", name="acme", tenant="acme")


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest) -> Iterator[Shigoto]:
    with shop_on(request.param, request) as app:
        yield app


@pytest.fixture
def server(app: Shigoto) -> Iterator[Served]:
    with served(app, tokens=(ONE, OTHER, SHUT, ACME), housekeeping=False) as server:
        yield server


def submit(
    server: Served, name: str = "Ada", *, as_: Key = ONE, by: str | None = None, **said: Any
) -> Answer:
    headers: Mapping[str, str] = {} if by is None else {"Idempotency-Key": by}
    job = {"task": "greet", "payload": {"name": name}} | said
    return server.ask("POST", "/jobs", job, token=as_, headers=headers)


def test_the_same_key_is_the_same_job(server: Served, app: Shigoto) -> None:
    first, second = submit(server, by="order-7"), submit(server, by="order-7")

    assert (first.status, second.status) == (201, 200)
    assert (first.json["status"], second.json["status"]) == ("inserted", "existing")
    assert first.json["id"] == second.json["id"]
    assert app.count() == 1


def test_it_holds_when_the_job_has_ended(server: Served, app: Shigoto) -> None:
    submit(server, by="order-7")
    work_off(app)

    assert submit(server, by="order-7").status == 200
    assert app.count() == 1


def test_it_holds_for_all_who_ask_at_once(server: Served, app: Shigoto) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: submit(server, by="order-7"), range(24)))

    assert sorted(answer.status for answer in answers) == [200] * 23 + [201]
    assert len({answer.json["id"] for answer in answers}) == 1
    assert app.count() == 1


def test_the_order_of_arguments_does_not_matter(server: Served) -> None:
    submit(server, by="k", payload={"name": "Ada", "times": 2})

    assert submit(server, by="k", payload={"times": 2, "name": "Ada"}).status == 200


@pytest.mark.parametrize("said", [{"payload": {"name": "Grace"}}, {"task": "send", "payload": {"to": "Ada"}}])
def test_a_key_for_another_job_is_refused(server: Served, app: Shigoto, said: dict[str, Any]) -> None:
    submit(server, by="order-7")

    answer = submit(server, by="order-7", **said)

    assert (answer.status, answer.code) == (409, "REQUEST.REUSED_KEY")
    assert app.count() == 1


def test_the_keys_of_two_tokens_are_not_the_same(server: Served, app: Shigoto) -> None:
    ids = {submit(server, as_=each, by="order-7").json["id"] for each in (ONE, OTHER, ACME)}

    assert len(ids) == 3


def test_the_keys_of_two_tenants_are_not_the_same(server: Served) -> None:
    ids = {submit(server, by="order-7", tenant=tenant).json["id"] for tenant in ("acme", "bolt")}

    assert len(ids) == 2


@pytest.mark.parametrize("text", ["", "x" * 256])
def test_a_key_has_bounds(server: Served, text: str) -> None:
    assert submit(server, by=text).status == 422


def test_one_key_serves_a_whole_batch(server: Served, app: Shigoto) -> None:
    jobs = [{"task": "greet", "payload": {"name": name}} for name in ("Ada", "Ada", "Grace")]
    headers = {"Idempotency-Key": "batch-1"}

    first = server.ask("POST", "/jobs/batch", {"jobs": jobs}, token=ONE, headers=headers)
    second = server.ask("POST", "/jobs/batch", {"jobs": jobs}, token=ONE, headers=headers)

    assert [each["status"] for each in second.json["jobs"]] == ["existing"] * 3
    assert [each["id"] for each in first.json["jobs"]] == [each["id"] for each in second.json["jobs"]]
    assert app.count() == 3


def test_a_batch_with_a_job_that_differs_stores_nothing(server: Served, app: Shigoto) -> None:
    jobs = [{"task": "greet", "payload": {"name": name}} for name in ("Ada", "Grace")]
    headers = {"Idempotency-Key": "batch-1"}
    server.ask("POST", "/jobs/batch", {"jobs": jobs[:1]}, token=ONE, headers=headers)
    jobs[0] = {"task": "greet", "payload": {"name": "Mary"}}

    answer = server.ask("POST", "/jobs/batch", {"jobs": jobs}, token=ONE, headers=headers)

    assert answer.code == "REQUEST.REUSED_KEY"
    assert app.count() == 1


def test_a_client_may_choose_the_id(server: Served, app: Shigoto) -> None:
    id = str(uuid4())

    assert submit(server, id=id).json["id"] == id
    assert submit(server, id=id).status == 200
    assert submit(server, "Grace", id=id).code == "JOB.ID_TAKEN"
    assert app.count() == 1


def test_an_id_and_a_key_are_one_too_many(server: Served) -> None:
    answer = submit(server, id=str(uuid4()), by="order-7")

    assert (answer.status, answer.json["field"]) == (422, "id")


def test_two_of_one_id_in_a_batch_are_refused(server: Served, app: Shigoto) -> None:
    job = {"task": "greet", "payload": {"name": "Ada"}, "id": str(uuid4())}

    answer = server.ask("POST", "/jobs/batch", {"jobs": [job, job]}, token=ONE)

    assert (answer.status, answer.json["field"]) == (422, "jobs[1].id")
    assert app.count() == 0


@pytest.mark.parametrize("stranger", [SHUT, ACME])
def test_the_id_of_a_job_that_one_may_not_see_is_taken_and_no_more(server: Served, stranger: Key) -> None:
    """S21: whether it is the same job is not told either."""
    id = str(uuid4())
    submit(server, id=id, tenant="bolt")

    answers = [submit(server, name, as_=stranger, id=id, queue="mail") for name in ("Ada", "Grace")]

    assert [answer.code for answer in answers] == ["JOB.ID_TAKEN"] * 2
    assert answers[0].raw == answers[1].raw


def test_the_id_is_a_uuid_of_version_eight() -> None:
    id = derived("token", "tenant", "key", 0)

    assert (id.version, id.variant) == (8, UUID(int=2 << 62).variant)
    assert id == derived("token", "tenant", "key", 0)
    assert (
        len(
            {
                derived("a", "bc", "d", 0),
                derived("ab", "c", "d", 0),
                derived("a", "b", "cd", 0),
                derived("a", "bc", "d", 1),
            }
        )
        == 4
    )


@pytest.mark.parametrize("by", ["key", "id"])
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"queue": "mail"}),
        ({"queue": "mail"}, {"queue": "default"}),
        ({}, {"priority": 3}),
        ({"delay": 60}, {"delay": 61}),
        ({}, {"delay": 60}),
        ({"run_at": "2100-01-01T00:00:00Z"}, {"run_at": "2100-01-01T00:00:01Z"}),
    ],
)
def test_another_request_is_not_the_same_one(
    server: Served, by: str, first: dict[str, Any], then: dict[str, Any]
) -> None:
    name: dict[str, Any] = {"by": "order-7"} if by == "key" else {"id": str(uuid4())}
    assert submit(server, **first, **name).status == 201

    answer = submit(server, **then, **name)

    assert (answer.status, answer.code) == (409, "REQUEST.REUSED_KEY" if by == "key" else "JOB.ID_TAKEN")
    assert next(iter(then)) in answer.json["detail"]
    assert submit(server, **first, **name).status == 200


def test_its_time_is_not_compared_once_it_has_run(server: Served, app: Shigoto) -> None:
    """A retry has another one."""
    submit(server, by="order-7", run_at="2020-01-01T00:00:00Z")
    work_off(app, ending=Ending.ERRORED, error="no", delay=60_000)

    assert submit(server, by="order-7", run_at="2020-01-01T00:00:00Z").status == 200


def test_its_time_is_not_compared_once_an_operator_has_set_another(server: Served, app: Shigoto) -> None:
    """To retry a job that was cancelled is to let it run at once."""
    made = submit(server, by="order-7", delay=3_600)
    handle = app.job(UUID(made.json["id"]))
    handle.cancel()
    while datetime.now(UTC) - handle.job().created_at < timedelta(milliseconds=1):
        pass  # a job that is due in the millisecond in which it was stored looks like one without a time
    handle.retry()

    assert submit(server, by="order-7", delay=3_600).status == 200


def test_an_id_of_another_tenant_s_job_is_taken(server: Served) -> None:
    id = str(uuid4())
    submit(server, id=id, tenant="acme")

    answer = submit(server, id=id, tenant="bolt")

    assert (answer.status, answer.code) == (409, "JOB.ID_TAKEN")
    assert "another tenant" in answer.json["detail"]
    assert submit(server, id=id, tenant="acme").status == 200


def test_a_batch_for_several_tenants_is_one_request(server: Served, app: Shigoto) -> None:
    """Its key is that of the first of them."""

    def sent(*tenants: str) -> Answer:
        jobs = [{"task": "greet", "payload": {"name": "Ada"}, "tenant": tenant} for tenant in tenants]
        return server.ask("POST", "/jobs/batch", {"jobs": jobs}, token=ONE, headers={"Idempotency-Key": "k"})

    assert sent("acme", "bolt").status == 200

    for other in (("acme",), ("acme", "bolt", "acme"), ("acme", "acme")):
        assert sent(*other).code == "REQUEST.REUSED_KEY", other
    assert [each["status"] for each in sent("acme", "bolt").json["jobs"]] == ["existing"] * 2
    assert app.count() == 2


def batch(server: Served, *names: str, by: str = "order-7", **said: Any) -> Answer:
    jobs = [{"task": "greet", "payload": {"name": name}} | said for name in names]
    return server.ask("POST", "/jobs/batch", {"jobs": jobs}, token=ONE, headers={"Idempotency-Key": by})


def test_a_batch_of_another_length_is_another_request(server: Served, app: Shigoto) -> None:
    assert batch(server, "a", "b", "c").status == 200

    for names in (("a", "b"), ("a", "b", "c", "d"), ("a",)):
        answer = batch(server, *names)
        assert (answer.status, answer.code) == (409, "REQUEST.REUSED_KEY"), names
        assert "more or fewer jobs" in answer.json["detail"]
    assert submit(server, "a", by="order-7").status == 409
    assert [each["status"] for each in batch(server, "a", "b", "c").json["jobs"]] == ["existing"] * 3
    assert app.count() == 3


def test_a_batch_of_which_a_unique_key_kept_one_out_may_be_sent_again(server: Served, app: Shigoto) -> None:
    submit(server, "held", key="k")
    first = server.ask("POST", "/jobs/batch", keyed(), token=ONE, headers={"Idempotency-Key": "order-7"})
    again = server.ask("POST", "/jobs/batch", keyed(), token=ONE, headers={"Idempotency-Key": "order-7"})

    assert (first.status, again.status) == (200, 200)
    assert [each["status"] for each in first.json["jobs"]] == ["inserted", "existing", "inserted"]
    assert [each["id"] for each in again.json["jobs"]] == [each["id"] for each in first.json["jobs"]]
    assert app.count() == 3


def keyed() -> dict[str, Any]:
    """A batch whose second job has a unique key."""
    jobs: list[dict[str, Any]] = [{"task": "greet", "payload": {"name": name}} for name in "abc"]
    jobs[1]["key"] = "k"
    return {"jobs": jobs}
