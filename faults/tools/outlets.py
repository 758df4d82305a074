"""Where a system of ours says anything: a reader for each, that tells where something was said, and what.

To be silent is no answer: a reader that heard nothing where something has to be heard gives an empty text.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import SMTP
from http.client import HTTPConnection
from subprocess import run as run_process

from msgspec import Struct, json

from faults.stage import Stage
from faults.stores.served import HOST, Served, ask
from faults.tools.canaries import Canaries
from faults.tools.outside import Postbox, Receiver
from faults.tools.sinks import ENVELOPES, METRICS, TRACES, Sink
from shigoto import Job
from shigoto.encryption import KEYS

APP = ["--app", "faults.apps.secretive:app"]
NOWHERE = "127.0.0.1:1"  # where nobody listens
PATIENCE = 90.0  # seconds

Said = tuple[str, str]  # where it was said, and what


class Scene(Struct, frozen=True, kw_only=True):
    """What the readers of outlets are given. `health` are ports by whose they are, `since` is the instant (in
    milliseconds) before which nothing was done."""

    stage: Stage
    server: Served
    token: str
    canaries: Canaries
    jobs: Sequence[Job]
    since: int
    health: Mapping[str, int]
    sink: Sink
    postbox: Postbox
    receiver: Receiver


def is_ours(job: Job) -> bool:
    """Whether nobody has asked for the job: it tells of others."""
    return job.task.startswith("shigoto.")


def logs(scene: Scene) -> Iterator[Said]:
    """What the server, the scheduler and the workers have written."""
    for file in sorted(scene.stage.folder.glob("*.log")):
        yield file.name, file.read_text(errors="replace")


def lines_of_jobs(scene: Scene) -> Iterator[Said]:
    """The lines at INFO of a worker that writes JSON: those of jobs that went well take the short way."""
    lines = (scene.stage.folder / "info.log").read_text().splitlines()
    for said in ("Processing job", "completed successfully"):
        told = [line for line in lines if said in line and '"job_id"' in line]
        yield f"info.log: {said}", "\n".join(told)


def notices_in_logs(scene: Scene) -> Iterator[Said]:
    """The messages of the target `Log`."""
    said = [line for _, text in logs(scene) for line in text.splitlines() if "shigoto.notify" in line]
    yield "notices in logs", "\n".join(said)


def metrics(scene: Scene) -> Iterator[Said]:
    """What Prometheus is shown."""
    token = {"Authorization": f"Bearer {scene.token}"}
    told = {name: ask(HOST, port, "GET", "/metrics") for name, port in scene.health.items()}
    told["server"] = scene.server.ask("GET", "/metrics", headers=token)
    for name, answer in told.items():
        yield f"/metrics of {name}", answer.body.decode() if answer.status == 200 else ""


def mails(scene: Scene) -> Iterator[Said]:
    """Mail, as it came and as it reads. Whether the password was right is what the mail server knows."""
    yield "a mail after a login", "mail" if scene.postbox.logins else ""
    for message in mailed(scene):
        yield f"mail: {message['Subject']}", f"{message.as_string()}\n{message.get_content()}"


def mailed(scene: Scene) -> Iterator[EmailMessage]:
    """The mails, read."""
    for sent in list(scene.postbox.messages):
        message = message_from_bytes(sent, policy=SMTP)
        assert isinstance(message, EmailMessage)
        yield message


def webhooks(scene: Scene) -> Iterator[Said]:
    """What the receiver of webhooks was sent."""
    for request in scene.receiver.requests:
        yield "webhook", f"{request.headers}\n{request.body.decode()}"


def sentry(scene: Scene) -> Iterator[Said]:
    """What Sentry was sent; that it knows its own key is the caller's to say."""
    for text in scene.sink.texts(ENVELOPES):
        yield "sentry: envelope", text


def telemetry(scene: Scene) -> Iterator[Said]:
    """Spans and metrics, as they came and as they read; the headers with which they came are the collector's to know,
    and show that what was meant for them is used."""
    for path in (TRACES, METRICS):
        authorized = [value for sent in scene.sink.headers(path) for value in sent.values()]
        known = f"Bearer {scene.canaries['environment: OTLP headers']}"
        yield f"OTLP {path}: with its headers", "yes" if known in authorized else ""
        for text in scene.sink.texts(path):
            yield f"OTLP {path}", text


def events(scene: Scene) -> Iterator[Said]:
    """The stream of events, from before the first job on until every one of them has ended in it."""
    line = HTTPConnection(HOST, scene.server.port, timeout=PATIENCE)
    awaited, heard = {str(job.id) for job in scene.jobs}, b""
    try:
        token = {"Authorization": f"Bearer {scene.token}"}
        line.request("GET", f"/api/v1/events?after={scene.since}-0-0", headers=token)
        answer, name = line.getresponse(), b""
        while awaited and (said := answer.readline()):
            heard += said
            if said.startswith(b"event: "):
                name = said.split()[1]
            elif said.startswith(b"data: ") and name == b"ended":
                awaited.discard(json.decode(said.removeprefix(b"data: "))["id"])
    except TimeoutError:
        pass
    finally:
        line.close()
    yield "GET /events", heard.decode()
    yield "the ends of all jobs in the stream of events", "" if awaited else "all"


def submit(server: Served, token: str, task: str, payload: object) -> tuple[int, str]:
    body = json.encode({"task": task, "payload": payload})
    said = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    answer = server.ask("POST", "/api/v1/jobs", body, headers=said)
    return answer.status, answer.body.decode()


def answers(scene: Scene) -> Iterator[Said]:
    """All that the service tells of jobs, tasks and schedules, and how it refuses strangers."""
    known, server = scene.canaries, scene.server
    token = {"Authorization": f"Bearer {scene.token}"}
    paths = [
        "/jobs?full=true&limit=100",
        "/tasks",
        "/schedules",
        "/schedules/yearly",
        "/audit",
        "/queues",
        "/workers",
    ]
    paths += [f"/jobs/{job.id}{more}" for job in scene.jobs for more in ("", "/attempts", "/logs", "/events")]
    for path in (*paths, "/openapi.json"):
        yield f"GET {path}", server.ask("GET", f"/api/v1{path}", headers=token).body.decode()
    strange: dict[str, Mapping[str, str]] = {
        "bearer": {"Authorization": f"Bearer shg_aaaaaaaaaaaa_{known['header: bearer']}"},
        "basic": {"Authorization": f"Basic {known['header: basic']}"},
        "cookie": {"Cookie": f"session={known['header: cookie']}"},
        "api key": {"X-Api-Key": known["header: api key"]},
    }
    for name, headers in strange.items():
        yield f"refused: {name}", server.ask("GET", "/api/v1/jobs", headers=headers).body.decode()
    asked = server.ask("GET", f"/api/v1/jobs?token={known['header: query']}", headers=token)
    yield "a token in the query", asked.body.decode()
    wrong = {"user": "ada", "token": [known["Secret: refused"]], "profile": {}, "code": 1}
    yield "refused arguments", submit(server, scene.token, "login", wrong)[1]
    broken = submit(
        server, scene.token, "login", {"user": "ada", "token": known["Secret: refused"], "code": "x"}
    )
    yield "missing arguments", broken[1]


def commands(scene: Scene) -> Iterator[Said]:
    """What the command line prints about the store."""
    store = scene.stage.url
    lines = [
        ["list", "all", "--json"], ["list", "all", "--limit", "100"], ["stats"], ["queues"], ["workers"], ["tasks"],
        ["tasks", "--json"], ["schedules"], ["schedules", "show", "yearly"], ["schedules", "show", "yearly", "--json"],
        ["audit"], ["config", "--origin"], ["doctor"], ["list", "all", "args.user:ada"],
    ]  # fmt: skip
    views = [["--traceback"], ["--json"], []]
    chosen = scene.stage.setting.of(views[:2], views)
    # Those of our own are all alike.
    first = {job.task: job for job in scene.jobs}
    told = [job for job in scene.jobs if not is_ours(job) or first[job.task] is job]
    lines += [["show", str(job.number), *view] for job in told for view in chosen]
    for number, words in enumerate(lines):
        for before in scene.stage.setting.of([[APP, []][number % 2]], [[], APP]):
            said = spoken(scene, ["--url", store, *before, *words], well=words != ["doctor"])
            yield " ".join(["shigoto", *before, *words]), said
    for words in (
        ["notify", "list"],
        ["notify", "list", "--json"],
        ["notify", "test"],
        ["notify", "test", "--json"],
    ):
        yield " ".join(["shigoto", *words]), spoken(scene, [*APP, *words], well=True)


def addresses(scene: Scene) -> Iterator[Said]:
    """What is said of databases that cannot be reached."""
    known = scene.canaries

    def at(name: str) -> str:
        return f"postgresql://shop:{known[name]}@{NOWHERE}/shop?connect_timeout=2"

    yield "--url", spoken(scene, ["--url", at("DSN: --url"), "stats"])
    yield "STORE", spoken(scene, ["list", at("DSN: word"), "all"])
    yield "$SHIGOTO_URL", spoken(scene, ["doctor"], {"SHIGOTO_URL": at("DSN: variable")})
    yield "config", spoken(scene, ["config", "--origin"], {"SHIGOTO_URL": at("DSN: variable")})
    yield (
        "query",
        spoken(scene, ["--url", f"postgresql://shop@{NOWHERE}/shop?password={known['DSN: query']}", "stats"]),
    )
    yield (
        "move",
        spoken(scene, ["move"], {"SHIGOTO_MOVE_FROM": scene.stage.url, "SHIGOTO_MOVE_TO": at("DSN: move")}),
    )
    (scene.stage.folder / "own.toml").write_text(f'url = "{at("DSN: settings file")}"\n')
    for words in (["stats"], ["config"]):
        yield f"settings: {words[0]}", spoken(scene, words, {"SHIGOTO_CONFIG": "own.toml"})
    yield "worker", spoken(scene, ["--url", at("DSN: worker"), "worker", "--drain", "--log-level", "debug"])
    far = f"http://{NOWHERE}"
    yield "http store", spoken(scene, ["--url", far, "stats"], {"SHIGOTO_TOKEN": known["environment: token"]})


def settings_without_use(scene: Scene) -> Iterator[Said]:
    """What is said of settings that are wrong, or lead nowhere."""
    known = scene.canaries
    tests: dict[str, dict[str, str]] = {
        "SMTP address": {"SHIGOTO_SMTP_URL": f"smtp://ops:{known['unusable: SMTP address']}@{HOST}/path"},
        "SMTP scheme": {"SHIGOTO_SMTP_URL": f"ops:{known['unusable: SMTP scheme']}@{NOWHERE}"},
        "SMTP server": {"SHIGOTO_SMTP_URL": f"smtp://ops:{known['unusable: SMTP server']}@{NOWHERE}?tls=off"},
        "SMTP password": {"SHIGOTO_SMTP_PASSWORD": known["unusable: SMTP password"]},
        "webhook secret": {"SHIGOTO_WEBHOOK_SECRET": f"whsec_{known['unusable: webhook secret']}!"},
        "webhook address": {"CANARY_HOOK": f"ftp://ops.test/{known['unusable: webhook address']}"},
        "webhook receiver": {"CANARY_HOOK": f"http://{NOWHERE}/{known['unusable: webhook receiver']}"},
    }
    for name, variables in tests.items():
        said = spoken(scene, [*APP, "notify", "test"], variables)
        yield f"notify test: {name}", said if "NOT delivered" in said else ""
    works = [*APP, "worker", scene.stage.url, "--drain", "--log-level", "debug"]
    headers, endpoint = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_ENDPOINT"
    wrong: dict[str, dict[str, str]] = {
        "key": {KEYS: f"new:{known['unusable: key']}"},
        "key without a name": {KEYS: known["unusable: key without a name"]},
        "key before its name": {KEYS: f"{known['unusable: key before its name']}:new"},
        "Sentry key": {"SENTRY_DSN": f"ftp://{known['unusable: Sentry key']}@{NOWHERE}/7"},
        "Sentry switch": {"SHIGOTO_SENTRY": f"http://{known['unusable: Sentry switch']}@{NOWHERE}/7"},
        "OTLP headers": {headers: f"api-key: {known['unusable: OTLP headers']}"},
        "OTLP header": {headers: f"x-team: {known['unusable: OTLP header']}"},
        "OTLP address": {endpoint: f"http://ops:{known['unusable: OTLP address']}@{NOWHERE}"},
        "OTLP scheme": {endpoint: f"ops:{known['unusable: OTLP scheme']}@{NOWHERE}"},
    }
    for name, variables in wrong.items():
        yield f"worker: {name}", spoken(scene, works, variables)


def stored(scene: Scene) -> Iterator[Said]:
    """Every byte of the store."""
    if scene.stage.setting.engine == "sqlite":
        for file in sorted(scene.stage.store.parent.glob(f"{scene.stage.store.name}*")):
            yield f"store: {file.name}", file.read_bytes().decode("latin-1")
        return
    with scene.stage.server.connect(scene.stage.database.name) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'shigoto'"
        ).fetchall()
        for [table] in tables:
            with connection.cursor().copy(f"COPY {table} TO STDOUT") as copy:
                yield f"store: {table}", "".join(bytes(part).decode() for part in copy)


def spoken(scene: Scene, words: Sequence[str], more: Mapping[str, str] = {}, *, well: bool = False) -> str:
    """What a command has printed; nothing if it should have ended `well`, and has not."""
    ended = run_process(
        [sys.executable, "-m", "shigoto", *words],
        env=scene.stage.environment() | dict(more),
        cwd=scene.stage.folder,
        capture_output=True,
        check=False,
        timeout=120,
    )
    said = (ended.stdout + ended.stderr).decode(errors="replace")
    if well and ended.returncode:
        scene.stage.setting.say(f"{' '.join(words)}: {said}")
        return ""
    return said
