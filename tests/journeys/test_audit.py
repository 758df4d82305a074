"""S0-66: whoever looks after a store can see later who has done what, from which shell; and a full queue is full.

Every command is a process of its own, as people run them.
"""

import getpass
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from shigoto import Shigoto, State
from shigoto.engine.open import open_engine
from shigoto.model.errors import Unsupported
from shigoto.model.ids import uuid7
from shigoto.model.job import JobFilter
from shigoto.model.service import AuditEntry, FeedPosition
from shigoto.model.worker import Announcement, Ending, Settlement, Want
from shigoto.server.tokens import create_op
from tests.journeys.yard import SHIGOTO
from tests.service.ground import key, served
from tests.unit.commands import on_terminal

CANCELLED = '{"state":"cancelled","force":false}'
ME = f"cli:{getpass.getuser()}@{socket.gethostname()}"


class Store:
    """A file, and somebody who types commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = Shigoto(f"sqlite:///{folder / 'jobs.db'}")
        self.engine = self.app.engine
        self.worker = uuid7()
        self.engine.run(
            self.engine.announce(
                Announcement(id=self.worker, name="w", tasks=("sell",), queues=None, slots=9, version="1")
            )
        )

    def sell(self, **options: Any) -> int:
        return self.app.enqueue_by_name("sell", {"card": "secret"}, **options).number

    def fail(self) -> None:
        want = Want(tasks=("sell",), queues=None, limit=1)
        [lease] = self.engine.run(self.engine.claim(self.worker, [want]))
        ended = Settlement(
            number=lease.number, token=lease.token, queue=lease.queue, ending=Ending.FAILED, error="secret"
        )
        self.engine.run(self.engine.settle(self.worker, [ended]))

    def run(self, *words: str, code: int = 0, token: str | None = None) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHIGOTO_", "PG"))}
        kept |= {} if token is None else {"SHIGOTO_TOKEN": token}
        done = subprocess.run(
            [*SHIGOTO, *words],
            cwd=self.folder,
            env=kept,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def audit(self) -> list[AuditEntry]:
        """The oldest first."""
        return self.engine.run(self.engine.registry.noted(limit=1_000))[::-1]


def entry(target: str) -> AuditEntry:
    return AuditEntry(actor="me", action="queue.pause", target=target)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.app.close()


@pytest.mark.engine("sqlite")
def test_what_is_done_by_commands_is_in_the_audit_with_who_did_it(store: Store) -> None:
    first, second, third = (store.sell() for _ in range(3))
    store.fail()
    store.run("retry", "jobs.db", str(first))
    store.run("cancel", "jobs.db", str(second))
    store.run("rerun", "jobs.db", str(second))
    store.run("cancel", "jobs.db", "pending", "task:sell", "--yes")
    store.run("redrive", "jobs.db", "--state", "cancelled", "--yes")
    store.run("clear", "jobs.db", "pending", "--yes")
    store.run("pause", "jobs.db", "default")
    store.run("resume", "jobs.db", "default")
    store.run("queues", "jobs.db", "--set", "mail", "--max-pending", "5")
    store.run("schedules", "add", "jobs.db", "often", "sell", "--every", "1h", "--allow-unknown")
    store.run("schedules", "pause", "jobs.db", "often")
    store.run("schedules", "remove", "jobs.db", "often")
    store.run("cancel", "jobs.db", str(third), code=1)  # it is deleted

    entries = store.audit()
    assert {entry.actor for entry in entries} == {ME}
    assert [entry.action for entry in entries] == [
        "job.retry",
        "job.cancel",
        "job.rerun",
        "jobs.cancel",
        "jobs.retry",
        "jobs.delete",
        "queue.pause",
        "queue.resume",
        "queue.configure",
        "schedule.add",
        "schedule.pause",
        "schedule.remove",
    ]
    assert [entry.target for entry in entries[3:]] == [
        "state:pending task:sell",
        "state:cancelled",
        "state:pending",
        "default",
        "default",
        "mail",
        "often",
        "often",
        "often",
    ]
    assert "secret" not in str(entries)
    assert all(entry.at > 0 for entry in entries)


@pytest.mark.engine("sqlite")
def test_the_audit_is_shown_at_the_store(store: Store) -> None:
    """S0-66: actor, action, target, before, after and time."""
    assert store.run("audit", "jobs.db") == "Nothing was done, or it was more than a year ago.\n"
    job = store.app.enqueue_by_name("sell", {"card": "secret"})
    store.run("cancel", "jobs.db", str(job.number))
    store.run("pause", "jobs.db", "mail")

    lines = store.run("audit", "jobs.db").splitlines()

    assert lines[0].split() == ["entry", "at", "actor", "action", "target", "before", "after"]
    number, at, *rest = lines[1].split()
    assert number == "2"
    assert datetime.fromisoformat(at).tzinfo is not None
    assert rest == [ME, "queue.pause", "mail", '{"paused":false}', '{"paused":true}']
    assert lines[2].split()[2:] == [ME, "job.cancel", str(job.id), '{"state":"pending"}', CANCELLED]
    newest, oldest = json.loads(store.run("audit", "jobs.db", "--json"))
    assert (newest["number"], newest["actor"], newest["before"], newest["after"]) == (
        2,
        ME,
        {"paused": False},
        {"paused": True},
    )
    assert datetime.fromisoformat(newest["at"]) >= datetime.fromisoformat(oldest["at"])
    assert oldest["target"] == str(job.id)


@pytest.mark.engine("sqlite")
def test_the_audit_comes_in_pages_and_of_one_target(store: Store) -> None:
    """S0-66."""
    store.engine.run(store.engine.registry.note([entry(f"q{number % 2}") for number in range(1, 8)]))

    def numbers(*words: str) -> list[int]:
        return [each["number"] for each in json.loads(store.run("audit", "jobs.db", "--json", *words))]

    assert numbers("--limit", "3") == [7, 6, 5]
    assert numbers("--limit", "3", "--before", "5") == [4, 3, 2]
    assert numbers("--limit", "3", "--before", "2") == [1]
    assert numbers("--target", "q1", "--limit", "2") == [7, 5]
    assert numbers("--target", "q1", "--limit", "9", "--before", "5") == [3, 1]
    assert numbers("--target", "mail") == []
    none = store.run("audit", "jobs.db", "--target", "mail", "--before", "9")
    assert none == "Nothing was done to that target before entry 9, or it was more than a year ago.\n"
    for wrong in (["--limit", "0"], ["--limit", "1001"], ["--before", "-1"], ["--before", "x"]):
        assert wrong[0] in store.run("audit", "jobs.db", *wrong, code=2)


@pytest.mark.engine("sqlite")
def test_on_a_terminal_it_says_where_the_next_page_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.engine.run(store.engine.registry.note([entry("\x1b[31mmail") for _ in range(3)]))
    monkeypatch.chdir(store.folder)

    code, shown = on_terminal("", "audit", "jobs.db", "--limit", "2", COLUMNS="60")

    assert code == 0
    assert "These are 2 entries; see older ones with --before 2." in shown
    assert "\x1b[31m" not in shown
    assert all(len(line) <= 60 for line in shown.splitlines())


@pytest.mark.engine("sqlite")
def test_the_audit_is_shown_from_a_server_to_its_admins(store: Store) -> None:
    """S0-66: the same entries, by the API."""
    admin, reads = key("admin"), key("read")
    with served(store.app, tokens=(admin, reads)) as server:
        server.ask("PATCH", "/queues/mail", {"max_pending": 5}, token=admin)
        server.ask("POST", "/queues/mail/pause", token=admin)
        server.ask("POST", "/queues/other/pause", token=admin)
        there = ("--url", server.url, "audit", "--json")

        here = store.run("audit", "jobs.db", "--json")
        assert [each["action"] for each in json.loads(here)] == [
            "queue.pause",
            "queue.pause",
            "queue.configure",
        ]
        assert store.run(*there, token=admin.text) == here
        asked = store.run(*there, "--target", "mail", "--limit", "1", "--before", "3", token=admin.text)
        assert [each["number"] for each in json.loads(asked)] == [2]
        assert f"token:{admin.token.id} (test)" in store.run(*there[:3], token=admin.text)
        for text in (reads.text, None):
            told = store.run(*there[:3], token=text, code=1)
            assert told.startswith("Error [STORE.REFUSED]"), told


@pytest.mark.engine("sqlite")
def test_nothing_else_of_the_registry_is_to_be_had_from_a_server(store: Store) -> None:
    with served(store.app) as server:
        engine = open_engine(server.url)
        registry = engine.registry
        asked: list[Callable[[], object]] = [
            registry.tokens,
            registry.watch,
            lambda: registry.add_token(key("admin").token),
            lambda: registry.revoke_token("x"),
            lambda: registry.note([]),
            lambda: registry.happened(FeedPosition(0), 1, 1),
        ]
        for ask in asked:
            with pytest.raises(Unsupported, match="Name the store itself"):
                ask()
        engine.close()


@pytest.mark.engine("sqlite")
def test_a_full_queue_refuses_the_command_line_and_says_so(store: Store) -> None:
    """S4-13."""
    store.run("queues", "jobs.db", "--set", "mail", "--max-pending", "1")
    store.run("enqueue", "jobs.db", "sell", "--queue", "mail")

    refused = store.run("enqueue", "jobs.db", "sell", "--queue", "mail", code=1)

    assert refused == (
        "Error [JOB.QUEUE_FULL]: Queue mail is full: 1 pending, at most 1 (max_pending). Try again later.\n"
    )
    shown = store.run("queues", "jobs.db").splitlines()
    assert shown[0].split()[:4] == ["queue", "state", "pending", "limit"]
    assert shown[-1].split()[:4] == ["mail", "open", "1", "1"]
    [queue] = json.loads(store.run("queues", "jobs.db", "--json"))
    assert queue["max_pending"] == 1
    store.run("queues", "jobs.db", "--set", "mail", "--max-pending", "0")
    store.run("enqueue", "jobs.db", "sell", "--queue", "mail")
    assert "limit" not in store.run("queues", "jobs.db")
    assert "go together" in store.run("queues", "jobs.db", "--set", "mail", code=2)


@pytest.mark.engine("sqlite")
def test_a_move_takes_the_limits_and_tells_that_tokens_stay_behind(store: Store) -> None:
    """S0-70."""
    for name in ("web", "old"):
        store.engine.run(
            create_op(store.engine, name, ["submit"], actor=ME, expires=0.001 if name == "old" else None)
        )
    store.run("queues", "jobs.db", "--set", "mail", "--max-pending", "7")
    store.sell()
    store.engine.run(store.engine.leave(store.worker))
    store.app.close()

    told = store.run("move", "--from", "jobs.db", "--to", "new.db")

    assert "1 token of the service stays behind: make new ones there with shigoto token create." in told
    again = json.loads(store.run("move", "--from", "jobs.db", "--to", "new.db", "--json"))
    assert again["tokens_left_behind"] == 1
    new = open_engine(f"sqlite:///{store.folder / 'new.db'}")
    assert {each.name: each.max_pending for each in new.run(new.settings())} == {"default": None, "mail": 7}
    assert (new.run(new.registry.tokens()), new.run(new.registry.noted())) == ([], [])
    [job] = new.run(new.find(JobFilter()))
    assert job.state is State.PENDING
    new.close()
