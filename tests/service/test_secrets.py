"""What the service shows of secrets and of encrypted jobs, and what it does with them."""

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from msgspec import json

from shigoto import Context, Encryption, OptionInvalid, Secret, Shigoto, StoreRefused
from shigoto.encryption import opened
from shigoto.model.errors import Forbidden
from shigoto.model.secrets import is_encrypted
from shigoto.model.worker import Ending
from shigoto.options import MAX_PAYLOAD
from shigoto.worker import Worker
from tests.service.ground import STORES, Served, keep, key, served, shop_on, work_off

CANARY = "canary-4711-yellow"
SUBMIT, READ = key("submit", "read", name="one"), key("read", name="reader")
ADMIN, WORK = key("submit", "read", "admin", name="boss"), key("work", "read", name="hand")
ADMIN_AND_WORKER = key("submit", "read", "admin", "work", name="all")
ACME = key("submit", "read", "work", name="acme", tenant="acme")


@pytest.fixture(params=STORES)
def app(request: pytest.FixtureRequest) -> Iterator[Shigoto]:
    with shop_on(request.param, request) as app:

        @app.task(encrypt=False)
        async def login(user: str, pin: Secret[str], password: str = "") -> None: ...

        yield app


@pytest.fixture
def server(app: Shigoto) -> Iterator[Served]:
    with served(app, tokens=(SUBMIT, READ, ADMIN, WORK, ACME), housekeeping=False) as server:
        yield server


@pytest.fixture
def keys(app: Shigoto) -> Encryption:
    app.encryption = Encryption({"a": bytes(range(32))})
    return app.encryption


def submit(server: Served, payload: dict[str, Any], task: str = "greet", by: str | None = None) -> Any:
    headers = {} if by is None else {"Idempotency-Key": by}
    return server.ask("POST", "/jobs", {"task": task, "payload": payload}, token=SUBMIT, headers=headers)


def test_s22_secret_arguments_are_in_no_answer(server: Served, app: Shigoto) -> None:
    made = submit(server, {"user": "ada", "pin": CANARY, "password": CANARY}, "login").json

    answers = [
        server.ask("GET", f"/jobs/{made['id']}", token=READ),
        server.ask("GET", "/jobs?full=true", token=READ),
        server.ask("GET", f"/jobs/{made['id']}/events", token=READ),
        server.ask("GET", "/tasks", token=READ),
    ]

    assert answers[0].json["payload"] == {"user": "ada", "pin": "***", "password": "***"}
    assert answers[0].json["meta"] is None
    assert all(CANARY.encode() not in answer.raw for answer in answers)
    assert json.decode(app.job(made["id"]).job().payload)["pin"] == CANARY


def test_the_server_encrypts_what_is_submitted_and_checks_it_before(
    server: Served, app: Shigoto, keys: Encryption
) -> None:
    made = submit(server, {"name": CANARY})
    wrong = submit(server, {"name": 7})

    assert made.status == 201
    assert wrong.json["code"] == "JOB.PAYLOAD_INVALID"
    job = app.job(made.json["id"]).job()
    assert is_encrypted(job.payload)
    assert keys.open(job.payload, job, "payload") == json.encode({"name": CANARY}).decode()
    told = server.ask("GET", f"/jobs/{job.id}", token=READ)
    assert told.json["payload"] == "encrypted"
    assert CANARY.encode() not in told.raw


def test_the_same_request_is_the_same_job_although_no_two_envelopes_are(
    server: Served, app: Shigoto, keys: Encryption
) -> None:
    first, second = submit(server, {"name": "Ada"}, by="k"), submit(server, {"name": "Ada"}, by="k")
    other = submit(server, {"name": "Bob"}, by="k")

    assert (first.status, second.status, other.status) == (201, 200, 409)
    assert first.json["id"] == second.json["id"]
    assert "other arguments" in other.json["detail"]
    app.encryption = None
    keyless = submit(server, {"name": "Ada"}, by="k")
    assert keyless.status == 409
    assert "no key" in keyless.json["detail"]


def test_encrypted_errors_and_lines_are_told_to_be_so(server: Served, app: Shigoto, keys: Encryption) -> None:
    made = submit(server, {"name": "Ada"}).json
    job = app.job(made["id"]).job()
    error = keys.encrypt(f"ValueError: {CANARY}", job, "error", about="ValueError")
    trace = keys.encrypt(f"Traceback {CANARY}", job, "traceback")
    work_off(app, ending=Ending.FAILED, error=error, traceback=trace)

    told = server.ask("GET", f"/jobs/{job.id}", token=READ).json
    [attempt] = server.ask("GET", f"/jobs/{job.id}/attempts", token=READ).json["attempts"]

    assert told["error"] == "ValueError (encrypted)"
    assert (attempt["error"], attempt["traceback"]) == ("ValueError (encrypted)", None)


def test_a_shell_worker_gets_the_envelope_and_its_result_is_encrypted(
    server: Served, app: Shigoto, keys: Encryption
) -> None:
    made = submit(server, {"name": "Ada"}).json
    worker = server.ask("POST", "/workers", {"name": "w", "tasks": ["greet"]}, token=WORK).json["worker"]

    [lease] = server.ask("POST", f"/workers/{worker}/claim", {}, token=WORK).json["jobs"]
    end = {"id": lease["id"], "token": lease["token"], "outcome": "completed", "result": CANARY}
    server.ask("POST", f"/workers/{worker}/settle", {"settlements": [end]}, token=WORK)

    assert lease["payload"]["$shigoto"] == "enc"
    job = app.job(made["id"]).job()
    assert is_encrypted(job.result)
    assert app.job(made["id"]).result() == CANARY
    assert server.ask("GET", f"/jobs/{job.id}", token=READ).json["result"] == "encrypted"


def test_a_shell_worker_gets_secrets_and_no_mark(server: Served) -> None:
    submit(server, {"user": "ada", "pin": CANARY}, "login")
    worker = server.ask("POST", "/workers", {"name": "w", "tasks": ["login"]}, token=WORK).json["worker"]

    [lease] = server.ask("POST", f"/workers/{worker}/claim", {}, token=WORK).json["jobs"]

    assert lease["payload"] == {"user": "ada", "pin": CANARY}
    assert lease["meta"] is None


def test_jobs_cannot_be_found_by_encrypted_arguments(server: Served, keys: Encryption) -> None:
    """X15."""
    for path in ("/jobs?filter=args.name:Ada", "/jobs/count?filter=args.name:Ada"):
        answer = server.ask("GET", path, token=READ)
        assert answer.status == 422
        assert "are encrypted" in answer.json["detail"]
    action = {"action": "cancel", "filter": "pending args.name:Ada"}
    assert server.ask("POST", "/jobs/actions", action, token=ADMIN).status == 422


def test_the_record_door_has_secrets_for_operators_alone(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handle of a program with a token: it needs the result, and a rerun needs the arguments."""
    made = submit(server, {"user": "ada", "pin": CANARY}, "login").json

    for token, seen in ((READ, '"***"'), (ADMIN, f'"{CANARY}"')):
        monkeypatch.setenv("SHIGOTO_TOKEN", token.text)
        far = Shigoto(server.url)
        payload = far.job(made["id"]).job().payload
        assert seen in payload
        far.close()


def test_a_rerun_is_refused_to_a_token_that_may_not_see_the_secrets(
    server: Served, app: Shigoto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the new job would be given what stands in their place."""
    made = submit(server, {"user": "ada", "pin": CANARY}, "login").json
    app.job(made["id"]).cancel()
    monkeypatch.setenv("SHIGOTO_TOKEN", SUBMIT.text)
    far = Shigoto(server.url)
    with pytest.raises(Forbidden, match="scope admin"):
        far.job(made["id"]).rerun()
    far.close()
    assert app.count() == 1

    monkeypatch.setenv("SHIGOTO_TOKEN", ADMIN.text)
    far = Shigoto(server.url)
    again = far.job(made["id"]).rerun()
    far.close()

    assert json.decode(app.job(again.id).job().payload) == {"user": "ada", "pin": CANARY}


def test_a_worker_over_http_opens_what_the_server_cannot_read(
    server: Served, app: Shigoto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has no key; producer and worker have, and everything that the run says goes through it."""
    monkeypatch.setenv("SHIGOTO_TOKEN", ADMIN_AND_WORKER.text)
    keep(app, [ADMIN_AND_WORKER])
    far = Shigoto(server.url, encryption=Encryption({"a": bytes(range(32))}))

    @far.task
    def greet(ctx: Context, name: str, times: int = 1) -> str:
        ctx.log("long " * 1_000 + name)
        ctx.progress(0.5, "ö" * 500)
        ctx.checkpoint({"name": name})
        return name * times

    handle = greet.enqueue(CANARY)
    asyncio.run(Worker(far, drain=True).run())

    job = app.job(handle.id).job()
    assert all(is_encrypted(text) for text in (job.payload, job.result, job.progress_text))
    assert handle.result() == CANARY
    far.close()


def test_a_token_for_a_tenant_does_not_change_whose_an_envelope_is(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIGOTO_TOKEN", ACME.text)
    far = Shigoto(server.url, encryption=Encryption({"a": bytes(range(32))}))

    @far.task
    def greet(name: str) -> None: ...

    with pytest.raises(OptionInvalid, match="say using"):
        greet.enqueue("Ada")
    assert greet.using(tenant="acme").enqueue("Ada").enqueued == "inserted"
    far.close()


def test_secrets_of_a_schedule_are_shown_to_nobody_but_operators(
    server: Served, app: Shigoto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that only the declaration of their task knows to be secret."""
    app.schedules.add("nightly", app.tasks["login"].call("ada", CANARY), every="1h")

    answers = [server.ask("GET", path, token=READ) for path in ("/schedules", "/schedules/nightly")]

    assert all(CANARY.encode() not in answer.raw for answer in answers)
    assert answers[1].json["payload"]["pin"] == "***"
    assert CANARY not in repr(app.schedules.get("nightly"))
    for token, seen in ((READ, False), (ADMIN, True)):
        monkeypatch.setenv("SHIGOTO_TOKEN", token.text)
        far = Shigoto(server.url)
        [schedule] = far.engine.run(far.engine.schedules())
        assert (CANARY in schedule.definition) is seen
        far.close()


def shell_worker(server: Served, task: str) -> tuple[str, Any]:
    worker = server.ask("POST", "/workers", {"name": "w", "tasks": [task]}, token=WORK).json["worker"]
    [lease] = server.ask("POST", f"/workers/{worker}/claim", {}, token=WORK).json["jobs"]
    return worker, lease


def test_what_a_shell_worker_says_has_no_secrets_of_its_job(server: Served, app: Shigoto) -> None:
    made = submit(server, {"user": "ada", "pin": CANARY}, "login").json
    worker, lease = shell_worker(server, "login")
    place, token = f"/workers/{worker}/jobs/{lease['id']}", {"token": lease["token"]}

    news = {**token, "progress": 0.5, "text": f"has {CANARY}", "log": [{"text": f"has {CANARY}"}]}
    assert server.ask("POST", f"{place}/progress", news, token=WORK).status == 204
    end = {**token, "outcome": "failed", "error": "ö" * 2_043 + CANARY, "traceback": f"at {CANARY}"}
    assert server.ask("POST", f"{place}/settle", end, token=WORK).status == 200

    job, engine = app.job(made["id"]).job(), app.engine
    said = [job.error, job.progress_text, *(each.traceback for each in engine.run(engine.attempts(job.id)))]
    said += [line.text for line in engine.run(engine.logs(job.id))]
    assert "cana" not in f"{said}"
    assert "has ***" in said


def test_the_error_of_a_shell_worker_tells_nothing_of_an_encrypted_job(
    server: Served, app: Shigoto, keys: Encryption
) -> None:
    """It need not begin with a type."""
    made = submit(server, {"name": "Ada"}).json
    worker, lease = shell_worker(server, "greet")
    end = {"token": lease["token"], "outcome": "failed", "error": f"{CANARY[:6]}: no such customer"}

    server.ask("POST", f"/workers/{worker}/jobs/{lease['id']}/settle", end, token=WORK)

    job = app.job(made["id"]).job()
    assert is_encrypted(job.error)
    assert CANARY[:6] not in (job.error or "")


def test_what_a_shell_worker_says_of_an_encrypted_job_is_encrypted(
    server: Served, app: Shigoto, keys: Encryption
) -> None:
    submit(server, {"name": "Ada"})
    worker, lease = shell_worker(server, "greet")
    place, token = f"/workers/{worker}/jobs/{lease['id']}", {"token": lease["token"]}

    news = {**token, "progress": 0.5, "text": CANARY, "log": [{"text": CANARY}, {"text": "ö" * 2_000}]}
    assert server.ask("POST", f"{place}/progress", news, token=WORK).status == 204
    kept = {**token, "checkpoint": {"at": CANARY}}
    assert server.ask("POST", f"{place}/checkpoint", kept, token=WORK).status == 204

    handle, engine = app.job(lease["id"]), app.engine
    job, lines = handle.job(), engine.run(engine.logs(handle.id))
    assert is_encrypted(job.progress_text)
    assert [is_encrypted(line.text) for line in lines] == [True, True]
    assert opened(keys, lines[0].text, job, "log") == CANARY
    server.ask("POST", f"{place}/settle", {**token, "outcome": "released"}, token=WORK)
    [again] = server.ask("POST", f"/workers/{worker}/claim", {}, token=WORK).json["jobs"]
    assert again["checkpoint"]["$shigoto"] == "enc"


def test_a_result_that_is_too_long_when_encrypted_fails_its_own_job_alone(
    server: Served, app: Shigoto, keys: Encryption
) -> None:
    first, second = submit(server, {"name": "Ada"}).json, submit(server, {"name": "Bob"}).json
    worker = server.ask("POST", "/workers", {"name": "w", "tasks": ["greet"]}, token=WORK).json["worker"]
    leases = server.ask("POST", f"/workers/{worker}/claim", {"limit": 2}, token=WORK).json["jobs"]
    results = {first["id"]: "x" * (MAX_PAYLOAD - 100), second["id"]: "fine"}
    ends = [
        {"id": each["id"], "token": each["token"], "outcome": "completed", "result": results[each["id"]]}
        for each in leases
    ]

    answer = server.ask("POST", f"/workers/{worker}/settle", {"settlements": ends}, token=WORK)

    assert answer.status == 200
    assert app.job(first["id"]).job().failure_kind == "result_invalid"
    assert app.job(second["id"]).result() == "fine"


def test_nobody_finds_out_a_secret_by_guessing_it_in_a_filter(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(server, {"user": "ada", "pin": "4711", "password": CANARY}, "login")

    for path in ("/jobs?filter=", "/jobs/count?filter="):
        for term in ("args.pin:4711", f"args.password:{CANARY}"):
            for of in ("", "task:login ", "task:greet ", "task:elsewhere "):
                secret = "pin" not in term or of != "task:greet "
                asked = quote(of + term)
                assert (server.ask("GET", f"{path}{asked}", token=READ).status == 403) is secret
                assert server.ask("GET", f"{path}{asked}", token=ADMIN).status == 200
        assert server.ask("GET", f"{path}task:login%20args.user:ada", token=READ).status == 200
        for of in ("", "task:elsewhere%20"):
            answer = server.ask("GET", f"{path}{of}args.user:ada", token=READ)
            assert answer.status == 403
            assert "task:NAME" in answer.json["detail"]
    monkeypatch.setenv("SHIGOTO_TOKEN", READ.text)
    far = Shigoto(server.url)
    with pytest.raises(StoreRefused, match="is secret"):
        far.count(task="login", args={"pin": "4711"})
    with pytest.raises(StoreRefused, match="task:NAME"):
        far.count(args={"user": "ada"})
    assert far.count(task="login", args={"user": "ada"}) == 1
    far.close()
