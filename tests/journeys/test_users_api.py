"""The example `users_api` as its users run it: a web server, a worker and a manager, on one SQLite file."""

import ast
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.journeys.yard import SHIGOTO, eventually

pytestmark = pytest.mark.engine("sqlite")

EXAMPLES = Path(__file__).parents[2] / "examples"
ADA = {"name": "Ada", "email": "ada@example.com", "hobby": "chess", "score": 9}


class Service:
    """A folder with a database in it, and the programs that share it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SHIGOTO_", "USERS_API_"))
        } | {
            "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path]),
            "SHIGOTO_URL": f"sqlite:///{folder / 'users.db'}",
        }

    def serve(self) -> "subprocess.Popen[bytes]":
        """The server, once it can be reached, on a port that was free."""
        (self.folder / "server.log").write_bytes(b"")
        server = self._start(
            [sys.executable, "-m", "uvicorn", "users_api.server:api", "--port", "0"], "server.log"
        )
        eventually(lambda: self._address() is not None, lambda: self.log("server.log"))
        self.address = self._address() or ""
        return server

    def work(self) -> "subprocess.Popen[bytes]":
        """A worker, started."""
        return self._start([*SHIGOTO, "--app", "users_api.jobs", "worker"], "worker.log")

    def manage(self, *words: str) -> str:
        """What a command of the manager prints."""
        done = subprocess.run(
            [*SHIGOTO, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout

    def post(self, body: object) -> tuple[int, Any]:
        return self._ask("/users", json.dumps(body).encode())

    def get(self, path: str) -> tuple[int, Any]:
        return self._ask(path)

    def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What a statement on the database finds or does."""
        with closing(sqlite3.connect(self.folder / "users.db", timeout=30)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    def log(self, name: str) -> str:
        return (self.folder / name).read_text()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, words: list[str], log: str) -> "subprocess.Popen[bytes]":
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                words,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        self._processes.append(process)
        return process

    def _address(self) -> str | None:
        found = re.search(r"running on (http://127\.0\.0\.1:\d+)", self.log("server.log"))
        return None if found is None else found[1]

    def _ask(self, path: str, body: bytes | None = None) -> tuple[int, Any]:
        request = Request(self.address + path, body, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.end()


def test_a_user_and_their_job_appear_together_and_a_worker_welcomes_them(service: Service) -> None:
    """S0-1, S0-2, S0-49, S1-1: server, worker and manager are three programs on one file; `POST /users` stores the user
    and a job of priority 1 with the user's id, data and additional properties."""
    service.serve()

    status, created = service.post(ADA)

    assert status == 201
    assert created["user"]["additional_properties"] == {"hobby": "chess", "score": 9}
    [(job_type, payload, job_status, priority, retries)] = service.rows(
        "SELECT job_type, payload, status, priority, max_retries FROM job_queue"
    )
    assert (job_type, job_status, priority, retries) == ("user_created", "pending", 1, 3)
    assert json.loads(payload) == {
        "user_id": created["user"]["id"],
        "user_data": {"name": "Ada", "email": "ada@example.com"},
        "additional_properties": {"hobby": "chess", "score": 9},
    }
    assert service.rows("SELECT id, name, email FROM users") == [(1, "Ada", "ada@example.com")]
    [waiting] = service.get("/users/1/jobs")[1]
    assert (waiting["id"], waiting["state"], waiting["result"]) == (created["job_id"], "pending", None)

    worker = service.work()
    eventually(
        lambda: service.get("/users/1")[1]["welcomed_at"] is not None, lambda: service.log("worker.log")
    )

    [done] = service.get("/users/1/jobs")[1]
    assert (done["state"], done["attempt"], done["error"]) == ("completed", 1, None)
    assert done["result"] == "Welcome, Ada! We hear that you like chess."
    assert "Mail to ada@example.com" in service.manage("show", "users.db", "1")
    assert json.loads(service.manage("stats", "users.db", "--json"))["total"]["completed"] == 1
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


def test_the_jobs_of_a_user_are_that_users_only(service: Service) -> None:
    service.serve()
    for name in ("ada", "bea", "cleo"):
        assert service.post({"name": name, "email": f"{name}@example.com"})[0] == 201

    _, jobs = service.get("/users/2/jobs")

    [row] = service.rows("SELECT id FROM job_queue WHERE payload ->> '$.user_id' = 2")
    assert [job["number"] for job in jobs] == [row[0]]


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"name": "Bea"}, 422, "body.email"),
        ({"name": "", "email": "bea@example.com"}, 422, "body.name"),
        ({"name": "Bea", "email": "nowhere"}, 422, "body.email"),
        ({"name": "B\0", "email": "bea@example.com"}, 422, "body.name"),
        ({"name": "\ud800", "email": "bea@example.com"}, 422, "body.name"),
        (
            {"name": "Bea", "email": "bea@example.com", "score": float("nan")},
            422,
            "additional_properties.score",
        ),
        ({"name": "Bea", "email": "bea@example.com", "text": "x" * 2**20}, 422, "over the limit"),
        ({"name": "Bea", "email": "ADA@example.com"}, 409, "ADA@example.com"),
        ([], 422, "body"),
    ],
)
def test_what_cannot_be_a_user_is_refused_in_words_and_leaves_no_job(
    service: Service, body: object, status: int, told: str
) -> None:
    """S0-67: what comes from outside is checked before it is stored; an insert that fails takes its job with it."""
    service.serve()
    service.post(ADA)

    answer, error = service.post(body)

    assert (answer, set(error)) == (status, {"detail"})
    assert told in json.dumps(error)
    assert "Traceback" not in service.log("server.log")
    assert (
        service.rows("SELECT count(*) FROM users") == service.rows("SELECT count(*) FROM job_queue") == [(1,)]
    )


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/users/7", 404, "There is no user 7."),
        ("/users/7/jobs", 404, "There is no user 7."),
        ("/users/ada", 422, "path.user_id"),
        ("/users/99999999999999999999", 422, "path.user_id"),
    ],
)
def test_who_is_not_there_is_not_found(service: Service, path: str, status: int, told: str) -> None:
    service.serve()

    answer, error = service.get(path)

    assert answer == status
    assert told in json.dumps(error)


def test_a_server_killed_at_any_moment_leaves_no_user_without_a_job(service: Service) -> None:
    """S1-7: what was acknowledged is there, and user and job are one commit, whenever the server dies."""
    acknowledged: list[int] = []
    for round_ in range(3):
        server = service.serve()
        clients = [
            threading.Thread(target=_sign_up, args=(service, f"{round_}-{client}", acknowledged))
            for client in range(4)
        ]
        enough = len(acknowledged) + 5
        for client in clients:
            client.start()
        eventually(partial(_has_grown_to, enough, acknowledged))
        server.kill()
        for client in clients:
            client.join(30)
        server.wait(30)

    users = [row[0] for row in service.rows("SELECT id FROM users ORDER BY id")]
    jobs = [row[0] for row in service.rows("SELECT payload ->> '$.user_id' FROM job_queue ORDER BY 1")]
    assert users == jobs
    assert set(acknowledged) <= set(users)


def _has_grown_to(length: int, acknowledged: list[int]) -> bool:
    return len(acknowledged) >= length


def _sign_up(service: Service, name: str, acknowledged: list[int]) -> None:
    """Create users until the server is gone."""
    for number in range(10_000):
        try:
            status, created = service.post({"name": name, "email": f"{name}-{number}@example.com"})
        except (OSError, ValueError, HTTPException):  # killed before, during or after its answer
            return
        if (
            status == 503
        ):  # a disk that stands still for longer than the lock is waited for; nothing is acknowledged
            continue
        assert status == 201, created
        acknowledged.append(created["user"]["id"])


def test_a_queue_that_fails_takes_the_user_with_it_unless_told_to_forget(service: Service) -> None:
    """S0-50: by default neither is stored; with the option the failure is logged and the user is created."""
    service.serve()
    service.rows("ALTER TABLE shigoto_job RENAME TO shigoto_broken")

    status, error = service.post(ADA)

    assert status == 503
    assert "shigoto_job" in error["detail"]
    assert service.rows("SELECT * FROM users") == []

    service.environment["USERS_API_FIRE_AND_FORGET"] = "1"
    service.serve()
    status, created = service.post(ADA)

    assert (status, created["job_id"]) == (201, None)
    assert service.get(f"/users/{created['user']['id']}")[1]["name"] == "Ada"
    assert re.search(r"Job \S+ \(user_created\) was not enqueued and is given up", service.log("server.log"))

    service.rows("ALTER TABLE shigoto_broken RENAME TO shigoto_job")
    status, created = service.post({"name": "Bea", "email": "bea@example.com"})
    assert (status, created["job_id"] is not None) == (201, True)
    [(priority, user)] = service.rows("SELECT priority, payload ->> '$.user_id' FROM job_queue")
    assert (priority, user) == (1, created["user"]["id"])


def test_a_request_that_waits_for_the_database_holds_up_no_other(service: Service) -> None:
    service.serve()
    service.post(ADA)
    with closing(sqlite3.connect(service.folder / "users.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        answers: list[int] = []
        waiting = threading.Thread(
            target=lambda: answers.append(service.post({"name": "Bea", "email": "bea@example.com"})[0])
        )
        waiting.start()

        assert service.get("/users/1")[0] == 200
        assert answers == []
        writer.execute("COMMIT")

    waiting.join(30)
    assert answers == [201]


def test_the_service_has_its_tables_as_soon_as_it_answers(service: Service) -> None:
    """S0-2, S0-48: at the start it connects, asks the database, and creates what is missing; a second start changes
    nothing."""
    for _ in range(2):
        service.serve().terminate()

        tables = {name for (name,) in service.rows("SELECT name FROM sqlite_schema")}
        assert {"users", "job_queue"} <= tables


def test_the_layers_know_only_those_below_them() -> None:
    """S0-1: application, service, data access, each in a module that imports none above it."""
    imports = {path.stem: _own_imports(path) for path in (EXAMPLES / "users_api").glob("*.py")}

    assert imports == {
        "__init__": set(),
        "server": {"service", "database"},
        "service": {"database", "jobs"},
        "jobs": {"database"},
        "database": set(),
    }


def _own_imports(path: Path) -> set[str]:
    """The modules of the example that one of them imports."""
    froms = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("users_api.")}
