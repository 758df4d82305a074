"""E55: whoever has no right to something is refused, at every address, and cannot tell from how why.

no good    wrong, unknown, expired, revoked, cut short, or no token at all: one answer, to the letter
not this   a good token without the scope: 403 everywhere, and nothing is done
no worker  a good token, which has not registered the worker that it speaks for: 403
again      ten refusals, and an address is told to wait; who has a good token is not
in time    what is revoked, or has expired, opens nothing after two seconds
"""

import http.client
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any
from uuid import uuid4

from msgspec import Struct, json

from faults.experiment import Experiment, Outcome, Setting
from faults.stage import Stage
from faults.stores.served import HOST, Answer, Served
from shigoto.engine.remote import protocol
from shigoto.model.service import SCOPES, Scope

QUOTA = 10  # refusals of one address, within a minute
IN_TIME = 3.0  # seconds: two are promised
METHODS = ("get", "post", "put", "patch", "delete")
INVALID, LIMITED, FORBIDDEN = "AUTH.INVALID", "AUTH.LIMITED", "AUTH.FORBIDDEN"
WORKER = {"name": "w", "tasks": ["echo"]}
ENDED = {"id": str(uuid4()), "token": 1, "outcome": "completed"}


class Operation(Struct, frozen=True):
    """One of those that the document has, and the scopes of which one is needed."""

    method: str
    path: str
    scopes: tuple[str, ...]


class Asker:
    """Asks from another address of loopback whenever it is told to, so that refusals are counted apart."""

    def __init__(self, server: Served) -> None:
        self._port = server.port
        self._addresses = (
            f"127.{a}.{b}.{c}" for a in range(1, 255) for b in range(255) for c in range(1, 255)
        )
        self._from = HOST
        self.asked = 0

    def move(self) -> None:
        """From now on from an address that has not failed yet."""
        self._from = next(self._addresses)

    def ask(
        self, token: str | None, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> Answer:
        """One request."""
        self.asked += 1
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            said["Authorization"] = f"Bearer {token}"
        if body is not None:
            said.setdefault("Content-Type", "application/json")
        line = http.client.HTTPConnection(HOST, self._port, timeout=60, source_address=(self._from, 0))
        try:
            line.request(method, path, body, said)
            response = line.getresponse()
            told = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, told, response.read())
        finally:
            line.close()


def run(setting: Setting) -> Outcome:
    """Every address, and every way to have no right to it."""
    outcome = Outcome()
    with Stage(setting, "hostile", audited=False) as stage:
        server = stage.between(Served(stage))
        good = {scope: server.token(scope) for scope in SCOPES}
        bad = bad_tokens(stage, server, good["read"])
        asker = Asker(server)
        operations = list(offered(server))
        refused_alike(asker, operations, bad, outcome)
        scopes_hold(asker, operations, good, outcome)
        doors_hold(asker, good, outcome)
        workers_hold(asker, server, good["work"], outcome)
        many_are_limited(asker, good["read"], bad["wrong"], outcome)
        ends_in_time(stage, server, asker, outcome)
        timing(asker, bad, setting.of(20, 300), outcome)
        before = len(list(stage.jobs()))
        outcome.figures |= {"operations": len(operations), "jobs that were stored": before}
    outcome.n = asker.asked
    return outcome


def bad_tokens(stage: Stage, server: Served, known: str) -> dict[str, str]:
    """One of each kind that opens nothing."""
    engine = stage.app.engine
    revoked = server.token("read", "submit", "work", "admin")
    engine.run(engine.registry.revoke_token(revoked.split("_")[1]))
    return {
        "wrong": known[:-1] + ("A" if known[-1] != "A" else "B"),
        "unknown": f"shg_{'a' * 12}_{'A' * 43}",
        "expired": server.token("read", "submit", "work", "admin", expires_at=1),
        "revoked": revoked,
        "cut short": known[:-5],
        "too long": known + "AAAA",
        "no token": "x",
        "the id alone": known.rpartition("_")[0],
        "very long": "shg_" + "a" * 5_000,
    }


def offered(server: Served) -> Iterator[Operation]:
    """What the document offers to those who have a token."""
    document: Mapping[str, Any] = server.ask("GET", "/api/v1/openapi.json").json
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item and (scopes := item[method].get("x-scopes")):
                filled = path.replace("{id}", str(uuid4())).replace("{worker}", str(uuid4()))
                yield Operation(method.upper(), filled.replace("{name}", "some"), tuple(scopes))


def refused_alike(
    asker: Asker, operations: Sequence[Operation], bad: Mapping[str, str], outcome: Outcome
) -> None:
    """What a stranger sees is the same at every address and for every kind, but for the time of day."""
    seen: dict[tuple[int, str], str] = {}
    for operation in operations:
        asker.move()
        for kind, token in bad.items():
            answer = asker.ask(token, operation.method, operation.path, body_of(operation))
            shape = answer.status, f"{sorted({**answer.headers, 'date': ''}.items())} {answer.body!r}"
            seen.setdefault(shape, f"{kind}: {operation.method} {operation.path}")
    for status, _ in seen:
        if status != 401:
            outcome.wrong.append(f"A token that is no good was answered with {status}.")
    if len(seen) > 1:
        outcome.wrong.append(f"Refusals can be told apart: {list(seen.values())}.")
    outcome.figures["kinds of refusal"] = len(seen)


def body_of(operation: Operation) -> bytes | None:
    """Something to send, where something is sent."""
    return None if operation.method in ("GET", "DELETE") else b"{}"


def scopes_hold(
    asker: Asker, operations: Sequence[Operation], good: Mapping[Scope, str], outcome: Outcome
) -> None:
    """Each operation with each scope alone: 403 without it, and whatever it may be with it, but not that."""
    for operation in operations:
        for scope, token in good.items():
            if operation.path.endswith("/events") and scope in ("read", "admin"):
                continue  # a stream without an end
            answer = asker.ask(token, operation.method, operation.path, body_of(operation))
            may = scope in operation.scopes or (scope == "admin" and "read" in operation.scopes)
            denied = answer.status == 403 and (answer.json or {}).get("code") == FORBIDDEN
            if not may and not denied:
                outcome.wrong.append(
                    f"{operation.method} {operation.path} with {scope} alone: {answer.status}, and it needs"
                    f" {' or '.join(operation.scopes)}."
                )
            if may and answer.status in (401, 429):
                outcome.wrong.append(f"{operation.method} {operation.path} with {scope}: {answer.status}.")


def doors_hold(asker: Asker, good: Mapping[Scope, str], outcome: Outcome) -> None:
    """The door by which workers of ours send whole records, by the table of what may come in there."""
    for name, verb in protocol.VERBS.items():
        for scope, token in good.items():
            answer = asker.ask(
                token, "POST", f"{protocol.RECORDS_PATH}/{name}", b"\x90", Content_Type=protocol.MEDIA_TYPE
            )
            may = scope in verb.scopes or (scope == "admin" and "read" in verb.scopes)
            if not may and answer.status != 403:
                outcome.wrong.append(f"{protocol.RECORDS_PATH}/{name} with {scope} alone: {answer.status}.")
            if answer.status >= 500:
                outcome.wrong.append(f"{protocol.RECORDS_PATH}/{name} with {scope}: {answer.status}.")


def workers_hold(asker: Asker, server: Served, token: str, outcome: Outcome) -> None:
    """A worker is of the token that has registered it; whoever has another one cannot speak for it."""
    other = server.token("work")
    time.sleep(IN_TIME)  # until it is known
    mine = register(asker, token)
    deeds: dict[str, Any] = {"beat": {}, "claim": {}, "settle": {"settlements": [ENDED]}}
    for by, kind in {other: "another token", None: "no token"}.items():
        for deed, body in deeds.items():
            answer = asker.ask(by, "POST", f"/api/v1/workers/{mine}/{deed}", json.encode(body))
            if answer.status not in (401, 403):
                outcome.wrong.append(f"{deed} by {kind}: {answer.status} {answer.body[:100]!r}.")
    anew = asker.ask(other, "POST", "/api/v1/workers", json.encode({**WORKER, "id": mine}))
    if anew.status != 403:
        outcome.wrong.append(f"Registered by another token: {anew.status} {anew.body[:100]!r}.")
    right = asker.ask(token, "POST", f"/api/v1/workers/{mine}/beat", b"{}")
    if right.status != 200:
        outcome.wrong.append(f"A beat by its own token: {right.status} {right.body[:100]!r}.")


def register(asker: Asker, token: str) -> str:
    """The id of a new worker of this token."""
    answer = asker.ask(token, "POST", "/api/v1/workers", json.encode(WORKER))
    if answer.status != 201:
        raise RuntimeError(f"A worker was not registered: {answer.status} {answer.body!r}.")
    found: str = answer.json["worker"]
    return found


def many_are_limited(asker: Asker, good: str, wrong: str, outcome: Outcome) -> None:
    """After so many refusals there is another answer; but never to who has a good token, at the same address."""
    asker.move()
    codes = [(asker.ask(wrong, "GET", "/api/v1/jobs").json or {}).get("code") for _ in range(2 * QUOTA)]
    if codes != [INVALID] * QUOTA + [LIMITED] * QUOTA:
        outcome.wrong.append(f"Of {2 * QUOTA} tries {codes.count(LIMITED)} were told to wait.")
    if asker.ask(good, "GET", "/api/v1/jobs").status != 200:
        outcome.wrong.append("Somebody else's tries keep out who has a good token.")


def ends_in_time(stage: Stage, server: Served, asker: Asker, outcome: Outcome) -> None:
    """What opened a moment ago does not open any more."""
    engine = stage.app.engine
    expiring = server.token("read", expires_at=stage.app.now() + 4_000)
    revoked = server.token("read")
    time.sleep(1)
    asker.move()
    for what, token in {"expiring": expiring, "revoked": revoked}.items():
        if asker.ask(token, "GET", "/api/v1/jobs").status != 200:
            outcome.wrong.append(f"A token does not open that is to be {what}.")
    engine.run(engine.registry.revoke_token(revoked.split("_")[1]))
    time.sleep(IN_TIME)
    for what, token in {"expired": expiring, "revoked": revoked}.items():
        if asker.ask(token, "GET", "/api/v1/jobs").status != 401:
            outcome.wrong.append(f"A token opens that was {what} {IN_TIME:g} s ago.")


def timing(asker: Asker, bad: Mapping[str, str], rounds: int, outcome: Outcome) -> None:
    """How long each kind of refusal takes, in turn; told, not judged: a busy machine says nothing by it."""
    kinds = ("wrong", "unknown", "expired", "revoked")
    took: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        asker.move()
        for kind in kinds:
            began = time.perf_counter()
            asker.ask(bad[kind], "GET", "/api/v1/jobs")
            took[kind].append(time.perf_counter() - began)
    outcome.figures["median ms of a refusal"] = {
        kind: round(1000 * median(each), 3) for kind, each in took.items()
    }


EXPERIMENT = Experiment(id="E55", title="tokens that are no good, or not for this", act=run)
