"""E48: a stranger reads the OpenAPI document and asks for everything it offers, rightly and wrongly, one thing after
the other as the document links them (schemathesis). As two tenants, with each scope.

    the document holds   no answer of 5xx, none that the document does not tell of, nothing accepted that it forbids
    tenants are apart    no job of the other is found, changed or named, whatever is asked; and what is asked for it is
                         refused in the words that are used for what is not there at all
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID, uuid4

from msgspec import Struct, json

from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage
from faults.stores.served import Answer, Served
from shigoto import Job
from shigoto.model.service import Scope

DOCUMENT = "/api/v1/openapi.json"
TENANTS = ("anna", "bert")
# `positive_data_acceptance`: a valid request may be refused, for an unknown task, say. `ignored_auth`: who tries wrong
# tokens is told to wait after ten of them, which is no answer that it knows (E55 looks at that).
LEFT_OUT = ("positive_data_acceptance", "ignored_auth")
# What was made may not be found, where now and then somebody else's is asked for instead.
WITH_STRANGERS = ("ensure_resource_availability", "use_after_free")
ENDLESS = ("stream_events",)  # a stream has no end that a check could wait for
# How what the document forbids may be refused. A server error is found by another check.
REFUSALS = ("400", "401", "403", "404", "405", "409", "410", "413", "415", "422", "429")
CONFIG = f"""[checks]
negative_data_rejection.expected-statuses = [{", ".join(f'"{status}"' for status in REFUSALS)}]
"""
SLACK = 60.0  # seconds beyond its time, after which somebody hangs


class Part(Struct, frozen=True, kw_only=True):
    """One run: as whom, and for how many seconds."""

    name: str
    token: str
    seconds: float
    stranger: str = ""  # whose jobs are asked for now and then


def run(setting: Setting) -> Outcome:
    """All parts, one after the other; and what only we know to ask."""
    if shutil.which("st", path=str(Path(sys.executable).parent)) is None:
        return Outcome(skipped="schemathesis is not installed")
    outcome = Outcome()
    with Stage(setting, "hostile", audited=False) as stage:
        server = stage.between(Served(stage))
        stored(stage, "anna")
        tokens = {tenant: server.token("submit", "read", "admin", tenant=tenant) for tenant in TENANTS}
        for part in parts(server, setting):
            # New ones each time: who may do everything may have done it to the others.
            strangers = [stored(stage, part.stranger) for _ in range(10) if part.stranger]
            before = snapshot(stage, strangers)
            contract(stage, server, part, strangers, outcome)
            if snapshot(stage, strangers) != before:
                outcome.wrong.append(f"{part.name}: jobs of the other tenant were changed.")
        crossing(server, {tenant: stored(stage, tenant) for tenant in TENANTS}, tokens, outcome)
    return outcome


def stored(stage: Stage, tenant: str) -> str:
    """A job of this tenant, due in a year, by its id."""
    task = stage.app.tasks["echo"].using(tenant=tenant, queue=tenant, delay=31_536_000.0, tags=[tenant])
    return str(task.enqueue(value=f"of {tenant}").id)


def snapshot(stage: Stage, ids: Sequence[str]) -> list[Job | None]:
    """These jobs, as they are."""
    engine = stage.app.engine
    return engine.run(engine.get([UUID(id) for id in ids]))


def parts(server: Served, setting: Setting) -> list[Part]:
    """Everybody: one who may do everything, and each tenant with each scope. Of a tenant's worker the queue is his own,
    because who claims sees no tenants."""
    budget = setting.of(20.0, 600.0)
    everything = server.token("submit", "work", "read", "admin")
    if not setting.full:
        anna = server.token("submit", "read", "admin", tenant="anna")
        return [
            Part(name="everything", token=everything, seconds=0.5 * budget),
            Part(name="anna: all", token=anna, seconds=0.5 * budget, stranger="bert"),
        ]
    found = [Part(name="everything", token=everything, seconds=0.2 * budget)]
    scopes: tuple[Scope, ...] = ("submit", "read", "admin")
    for tenant, other in (TENANTS, TENANTS[::-1]):
        for scope in scopes:
            token = server.token(scope, tenant=tenant)
            found.append(Part(name=f"{tenant}: {scope}", token=token, seconds=0.1 * budget, stranger=other))
        token = server.token("work", queues=(tenant,))
        found.append(Part(name=f"{tenant}: work", token=token, seconds=0.1 * budget))
    return found


def contract(stage: Stage, server: Served, part: Part, strangers: Sequence[str], outcome: Outcome) -> None:
    """Let schemathesis ask for so many seconds, and count what it found."""
    where = stage.folder / part.name.replace(": ", "-")
    config = stage.folder / "schemathesis.toml"
    config.write_text(CONFIG)
    st = [str(Path(sys.executable).parent / "st"), "--config-file", str(config)]
    words = [*st, "run", f"http://127.0.0.1:{server.port}{DOCUMENT}"]
    words += [
        "--header",
        f"Authorization: Bearer {part.token}",
        "--max-time",
        f"{max(1.0, part.seconds):.0f}",
    ]
    left_out = (*LEFT_OUT, *(WITH_STRANGERS if strangers else ()))
    words += ["--exclude-checks", ",".join(left_out), "--generation-with-security-parameters", "false"]
    words += [word for name in ENDLESS for word in ("--exclude-operation-id", name)]
    words += [
        "--request-timeout",
        "90",
        "--continue-on-failure",
        "--generation-database",
        "none",
        "--no-color",
    ]
    words += ["--seed", str(stage.setting.seed), "--report", "json", "--report-json-path", f"{where}.json"]
    environment = {
        "SCHEMATHESIS_HOOKS": "faults.tools.contract_hooks",
        "STRANGERS": ",".join(strangers),
        "SEED": str(stage.setting.seed),
    }
    process = stage.start(words, environment=environment, output=where.with_suffix(".txt"))
    stage.wait_until(
        lambda: process.poll() is not None,
        seconds=part.seconds + SLACK,
        what=f"{part.name}: schemathesis did not end",
    )
    try:
        report = json.decode(where.with_suffix(".json").read_bytes(), type=Report)
    except (OSError, ValueError) as error:
        outcome.wrong.append(f"{part.name}: there is no report, exit code {process.poll()}: {error}.")
        return
    outcome.n += report.test_cases.generated
    outcome.figures.setdefault("requests", {})[part.name] = report.test_cases.generated
    outcome.figures.setdefault("operations", {})[part.name] = report.operations.tested
    outcome.wrong += [
        f"{part.name}: {found.title} ({found.count}): {', '.join(found.operations[:5])}."
        for found in report.failures
    ]
    if report.errors:
        outcome.wrong.append(f"{part.name}: {len(report.errors)} errors of schemathesis.")


class Cases(Struct, frozen=True):
    """How many requests."""

    generated: int


class Operations(Struct, frozen=True):
    """How many of those in the document."""

    tested: int


class Failure(Struct, frozen=True):
    """One kind of failure, how often, and of which operations."""

    title: str
    count: int
    operations: list[str]


class Report(Struct, frozen=True):
    """What schemathesis has seen."""

    operations: Operations
    test_cases: Cases
    failures: list[Failure]
    errors: list[object]


# What only we know to ask: the jobs of the other tenant, by everything that takes a job.


def crossing(server: Served, jobs: Mapping[str, str], tokens: Mapping[str, str], outcome: Outcome) -> None:
    """Ask as one tenant for the other's, and compare with what is said of a job that was never there."""
    asked = 0
    for tenant, other in (TENANTS, TENANTS[::-1]):
        token = tokens[tenant]
        own, foreign, nobody = jobs[tenant], jobs[other], str(uuid4())
        for method, path, body in forms():
            answers = [tell(server, token, method, path.format(id=id), body) for id in (foreign, nobody)]
            shapes = [shape(answer, id) for answer, id in zip(answers, (foreign, nobody), strict=True)]
            asked += 2
            if answers[0].status != 404 or shapes[0] != shapes[1]:
                outcome.wrong.append(
                    f"{method} {path} of the other's job: {answers[0].status} and {answers[1].status} of nobody's."
                )
        if tell(server, token, "GET", f"/api/v1/jobs/{own}").status != 200:
            outcome.wrong.append("A tenant does not find a job of its own.")
        asked += 1 + lists(server, token, foreign, outcome) + foreign_words(server, token, other, outcome)
    outcome.n += asked
    outcome.figures["asked across tenants"] = asked


def forms() -> list[tuple[str, str, bytes | None]]:
    """Everything that takes the id of a job, but what workers say of those they hold."""
    reads = [
        ("GET", f"/api/v1/jobs/{{id}}{more}", None)
        for more in ("", "?wait=0.1", "/attempts", "/logs", "/events")
    ]
    return [
        *reads,
        *(("POST", f"/api/v1/jobs/{{id}}/{deed}", b"{}") for deed in ("cancel", "retry", "rerun")),
    ]


def lists(server: Served, token: str, stranger: str, outcome: Outcome) -> int:
    """No list names them."""
    paths = (
        "/jobs",
        "/jobs?limit=1000",
        "/jobs?full=true",
        "/jobs?filter=state:all",
        "/jobs?filter=tenant:bert",
    )
    for path in paths:
        answer = tell(server, token, "GET", f"/api/v1{path}")
        if stranger.encode() in answer.body:
            outcome.wrong.append(f"GET {path} names jobs of the other tenant.")
    for path in ("/stats", "/queues", "/workers", "/audit", "/schedules"):
        answer = tell(server, token, "GET", f"/api/v1{path}")
        if answer.status != 403:
            outcome.wrong.append(f"GET {path} is answered to a tenant, with {answer.status}.")
    return len(paths) + 5


def foreign_words(server: Served, token: str, other: str, outcome: Outcome) -> int:
    """Nothing is stored, or done to many, in the other's name."""
    for body in (
        {"task": "echo", "payload": {"value": 1}, "tenant": other},
        {"jobs": [{"task": "echo", "tenant": other}]},
    ):
        path = "/api/v1/jobs/batch" if "jobs" in body else "/api/v1/jobs"
        answer = tell(server, token, "POST", path, json.encode(body))
        if answer.status != 403:
            outcome.wrong.append(f"POST {path} in the name of another tenant: {answer.status}.")
    for action in ("cancel", "retry"):
        asked: dict[str, object] = {
            "action": action,
            "filter": f"tenant:{other}",
            "dry_run": False,
            "confirm": 1000,
        }
        answer = tell(server, token, "POST", "/api/v1/jobs/actions", json.encode(asked))
        if answer.status != 403 and (answer.json or {}).get("done", 0):
            outcome.wrong.append(f"{action} of another tenant's jobs: {answer.status} {answer.body[:200]!r}.")
    return 4


def shape(answer: Answer, id: str) -> tuple[int, bytes]:
    """All that can be told from an answer, but the id that was asked for."""
    return answer.status, answer.body.replace(id.encode(), b"")


def tell(server: Served, token: str, method: str, path: str, body: bytes | None = None) -> Answer:
    """One request with a token."""
    headers = {"Authorization": f"Bearer {token}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    return server.ask(method, path, body, headers=headers)


EXPERIMENT = Experiment(id="E48", title="the API keeps to its document, and tenants apart", act=run)
