"""E53: canaries in addresses, in the environment, in arguments, in headers and in exceptions. None of them comes out.

A server, a scheduler, workers and the command line work with jobs that let slip whatever they are told, and then
everything is read that anybody gets to see: logs, answers, the stream of events, what commands print, errors of
databases, metrics, mail, webhooks, what Sentry and a collector of OpenTelemetry are sent, and every byte of the store.

in the store   only what is stored in clear text by its owner's word (`encrypt=False`); that is stored, and never shown
to Sentry      the key of its own address
elsewhere      nothing

What is sent elsewhere has to be read here, too: `OUTLETS` has a reader for each, and a new outlet needs one. An outlet
that says nothing shows nothing: each has to speak, and of every failure there has to be a mail, a webhook, an event of
Sentry and a span.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import json

from devtools.postgres.server import free_port
from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage, app_of
from faults.stores.served import HOST, Served, ask
from faults.tools.canaries import Canaries, canaries
from faults.tools.outlets import (
    APP,
    PATIENCE,
    Said,
    Scene,
    addresses,
    answers,
    commands,
    events,
    is_ours,
    lines_of_jobs,
    logs,
    mailed,
    mails,
    metrics,
    notices_in_logs,
    sentry,
    settings_without_use,
    stored,
    submit,
    telemetry,
    webhooks,
)
from faults.tools.outside import Postbox, Receiver
from faults.tools.sinks import ERROR, Sink, sink
from shigoto import Job, State
from shigoto.encryption import KEYS

# What may be said where: stored, and shown nowhere; and a key that is the receiver's own.
IN_CLEAR = {
    "store: ": ("by name: password", "by name: header", "Secret of a plain job", "Secret: elsewhere"),
    "sentry: ": ("environment: Sentry key",),
}
QUIETLY = "quiet"  # the queue of the worker that logs at INFO
ELSEWHERE = "elsewhere"  # that of a worker in another language
UNSPOKEN = ("crash", "visit", "travel")  # whose process dies, and its spans with it; and which have none

OUTLETS: tuple[Callable[[Scene], Iterator[Said]], ...] = (
    answers, events, commands, addresses, settings_without_use, metrics, mails, webhooks, sentry, telemetry, stored,
    logs, lines_of_jobs, notices_in_logs,
)  # fmt: skip


def run(setting: Setting) -> Outcome:
    """Put canaries everywhere, let the system work, and read all that it has said."""
    known, since = canaries(setting.random("canaries")), int(time.time() * 1000)
    with (
        sink() as collector,
        Receiver() as receiver,
        Postbox(password=known["environment: SMTP password"]) as postbox,
        environment(variables(known) | signals(known, collector, postbox, receiver)),
        Stage(setting, "secretive", audited=False) as stage,
    ):
        stage.app = app_of("secretive", stage.url)  # with the keys of the environment
        server = stage.between(Served(stage, "--log-level", "debug"))
        token = server.token("read", "submit", "admin", "work")
        make_jobs(stage, server, token, known)
        health = {name: free_port() for name in ("worker", "scheduler")}
        begin(stage, health)
        work_elsewhere(server, token, known)
        until_ended(stage)
        stage.app.flush(PATIENCE)  # the spans of those who have enqueued
        scene = Scene(
            stage=stage,
            server=server,
            token=token,
            canaries=known,
            jobs=list(stage.jobs()),
            since=since,
            health=health,
            sink=collector,
            postbox=postbox,
            receiver=receiver,
        )
        stage.wait_until(
            lambda: not untold(scene), seconds=PATIENCE, what="not everybody was told of every failure"
        )
        outcome = judged(scene)
        outcome.wrong += untold(scene)
        outcome.wrong += [f"{job.task} ended as {job.state}" for job in scene.jobs if not as_meant(job)]
    return outcome


def variables(known: Canaries) -> dict[str, str]:
    """The environment of everybody."""
    return {
        KEYS: f"new:{known['environment: key']} old:{known['environment: old key']}",
        "SOMETHING_SECRET": known["environment: something"],
        "PGPASSWORD": known["environment: PGPASSWORD"],
        "CANARY_LOCAL": known["exception: local"],
        "CANARY_ADDRESS": f"cannot connect to postgresql://shop:{known['exception: address']}@db/shop, sorry",
        "CANARY_BEARER": f"refused: {{'Authorization': 'Bearer {known['exception: bearer']}'}}",
        "CANARY_PASSWORD": f"no route: host=db user=shop password={known['exception: password']} port=1",
    }


def signals(known: Canaries, collector: Sink, postbox: Postbox, receiver: Receiver) -> dict[str, str]:
    """What everybody is told of those who want to hear."""
    return {
        "SHIGOTO_MAIL_TO": "admin@example.org",
        "SHIGOTO_MAIL_FROM": "jobs@example.org",
        "SHIGOTO_SMTP_URL": postbox.url.replace("//", "//ops@"),
        "SHIGOTO_SMTP_PASSWORD": known["environment: SMTP password"],
        "SHIGOTO_WEBHOOK_SECRET": known["environment: webhook secret"],
        "CANARY_HOOK": f"http://{receiver.address}/hook/{known['environment: webhook address']}",
        "SHIGOTO_SENTRY": "on",
        "SENTRY_DSN": collector.dsn_with(known["environment: Sentry key"]),
        "SHIGOTO_TRACES": "on",
        "SHIGOTO_OTLP_METRICS": "on",
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{known['environment: OTLP headers']}",
    }


@contextmanager
def environment(given: Mapping[str, str]) -> Iterator[None]:
    """These variables, for as long as the block lasts, here and in all processes that are started in it."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def make_jobs(stage: Stage, server: Served, token: str, known: Canaries) -> None:
    """Jobs of every kind, some of them by HTTP."""
    tasks = stage.app.tasks
    tasks["login"].enqueue(
        "ada", known["Secret: text"], {"pin": known["Secret: inside"]}, int(known["Secret: number"])
    )
    for queue in ("default", QUIETLY):
        tasks["charge"].using(queue=queue).enqueue(
            known["encrypted: text"], {"name": known["encrypted: inside"]}
        )
        tasks["charge"].using(queue=queue, retries=0).enqueue(known["encrypted: failing"], {"fails": True})
        tasks["plain_login"].using(queue=queue).enqueue("ada", known["Secret of a plain job"])
    headers = {"Authorization": f"Bearer {known['by name: header']}"}
    payload = {"password": known["by name: password"], "headers": headers}
    answer = submit(server, token, "remember", payload)
    if answer[0] != 201:
        raise RuntimeError(f"A job was not submitted: {answer}.")
    for variable in ("CANARY_ADDRESS", "CANARY_BEARER", "CANARY_PASSWORD"):
        tasks["connect"].enqueue(variable)
    tasks["visit"].using(queue=ELSEWHERE).enqueue("ada", known["Secret: elsewhere"])
    tasks["travel"].using(queue=ELSEWHERE).enqueue("ada")
    tasks["give_up"].enqueue(known["Secret: cancelled"])
    tasks["crash"].enqueue(known["Secret: crashed"])
    later = tasks["charge"].call(known["encrypted: schedule"], {})
    stage.app.schedules.add("yearly", later, every="360d")


def begin(stage: Stage, health: Mapping[str, int]) -> None:
    """A worker that says all that it can, one that logs as workers usually do, and a scheduler."""
    in_json = ("--log-format", "json")
    stage.worker(
        *("--queues", "default", "--health", str(health["worker"]), "--log-level", "debug", *in_json),
        output=stage.folder / "worker.log",
    )
    stage.worker("--queues", QUIETLY, "--log-level", "info", *in_json, output=stage.folder / "info.log")
    stage.start(
        [
            *(sys.executable, "-m", "shigoto", *APP, "scheduler", stage.url),
            *("--health", str(health["scheduler"]), "--log-level", "debug", *in_json),
        ],
        output=stage.folder / "scheduler.log",
    )


def work_elsewhere(server: Served, token: str, known: Canaries) -> None:
    """Be a worker in another language, which lets slip what it was told and what it has."""

    def say(path: str, **said: object) -> Any:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        answer = server.ask("POST", f"/api/v1/workers{path}", json.encode(said), headers=headers)
        if answer.status >= 300:
            raise RuntimeError(f"The service refused {path}: {answer.status} {answer.body!r}.")
        return json.decode(answer.body) if answer.body else None

    worker = say("", name="far", tasks=["visit", "travel"], queues=[ELSEWHERE])["worker"]
    words = f"{known['Secret: elsewhere']} at postgresql://shop:{known['elsewhere: address']}@db/shop"
    for job in say(f"/{worker}/claim", limit=2)["jobs"]:
        place, lease = f"/{worker}/jobs/{job['id']}", {"token": job["token"]}
        if job["task"] == "travel":
            say(f"{place}/checkpoint", **lease, checkpoint={"at": known["elsewhere: checkpoint"]})
            line = known["elsewhere: line"]
        else:
            line = known["Secret: elsewhere"]
        say(f"{place}/progress", **lease, progress=0.5, text=line, log=[{"text": line}])
        say(f"{place}/settle", **lease, outcome="failed", error=words, traceback=f"in main: {words}")


def until_ended(stage: Stage) -> None:
    stage.wait_until(
        lambda: all(job.state.terminal for job in stage.jobs()), seconds=PATIENCE, what="the jobs did not end"
    )


MEANT = {
    "login": State.FAILED, "plain_login": State.FAILED, "connect": State.FAILED, "give_up": State.CANCELLED,
    "crash": State.FAILED, "remember": State.COMPLETED, "visit": State.FAILED, "travel": State.FAILED,
}  # fmt: skip


def as_meant(job: Job) -> bool:
    """Whether the job has ended as it should: what did not run has let nothing slip."""
    if is_ours(job):
        return job.state is State.COMPLETED
    return job.state is MEANT[job.task] if job.task in MEANT else job.state.terminal


def untold(scene: Scene) -> list[str]:
    """Of which failures nobody was told, by whom; of whom nothing was counted."""
    failed = [span for span in scene.sink.spans if span.name.startswith("run ") and span.status == ERROR]
    told: dict[str, Any] = {
        "mail": "".join(message.get_content() for message in mailed(scene)),
        "webhook": {json.decode(request.body).get("job") for request in scene.receiver.requests},
        "Sentry": {failure["tags"]["job_id"] for failure in scene.sink.failures},
        "traces": {span.attributes["messaging.message.id"] for span in failed},
    }
    missing = [
        f"{job.task} {job.number} failed, and {who} was not told"
        for job in scene.jobs
        for who, heard in told.items()
        if job.state is State.FAILED and str(job.id) not in heard
        if not (who == "traces" and job.task in UNSPOKEN)
    ]
    counted = ask(HOST, scene.health["worker"], "GET", "/metrics").body
    if b'shigoto_jobs_ended_total{outcome="failed"' not in counted:
        missing.append("the worker has counted no failure")
    return missing


def judged(scene: Scene) -> Outcome:
    """What came out, and where; and where nothing was heard at all."""
    outcome = Outcome(n=len(scene.canaries.values))
    outputs = size = 0
    for outlet in OUTLETS:
        heard = 0
        for where, text in outlet(scene):
            is_heard = bool(text.strip())
            heard += is_heard
            size += len(text)
            if not is_heard and outlet is not stored:
                outcome.wrong.append(f"Nothing was heard: {where}")
            allowed = [name for place, names in IN_CLEAR.items() if where.startswith(place) for name in names]
            outcome.wrong += [
                f"{canary!r} came out: {where}"
                for canary in scene.canaries.found_in(text)
                if canary not in allowed
            ]
        outputs += heard
        outcome.figures[outlet.__name__] = heard
        if not heard:
            outcome.wrong.append(f"Nothing was heard of {outlet.__name__}.")
    outcome.figures |= {"outputs": outputs, "letters": size, "canaries": len(scene.canaries.values)}
    return outcome


EXPERIMENT = Experiment(id="E53", title="secrets everywhere, and none comes out", act=run)
