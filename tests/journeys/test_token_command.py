"""`shigoto token`: made, shown once, listed without the secret, revoked; and the audit knows who has done it."""

import re
import sqlite3
from pathlib import Path

import pytest

from shigoto import Shigoto
from tests.unit.commands import Command, Outcome, command

TEXT = re.compile(r"shg_([a-z2-7]{12})_[A-Za-z0-9_-]{43}")


@pytest.fixture
def shigoto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in an empty current directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("SHIGOTO_URL", "SHIGOTO_APP", "SHIGOTO_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    run = command(capsys)

    def expecting(*words: str, code: int = 0) -> Outcome:
        done = run(*words)
        assert done.code == code, done.err
        return done

    return expecting


def test_one_is_made_shown_and_revoked(shigoto: Command, tmp_path: Path) -> None:
    """S1: scoped tokens, per queue and tenant, with an expiry; shown once, stored hashed."""
    made = shigoto(
        "token", "create", "jobs.db", "web", "--scope", "read", "--scope", "submit", "--queue", "mail",
        "--tenant", "acme", "--expires", "90d",
    )  # fmt: skip
    match = TEXT.fullmatch(made.out.strip())
    assert match, "the text stands alone on standard output"
    assert "not shown again" in made.err
    text, id = match[0], match[1]

    listed = shigoto("token", "list", "jobs.db")
    assert "shg_" not in listed.out
    [record] = shigoto("token", "list", "jobs.db", "--json").json
    assert (record["id"], record["name"], record["status"]) == (id, "web", "alive")
    assert (record["scopes"], record["queues"], record["tenant"]) == (["submit", "read"], ["mail"], "acme")
    assert record["expires_at"] > record["created_at"]
    assert "token" not in record
    secret = text.removeprefix(f"shg_{id}_").encode()
    for file in tmp_path.iterdir():
        assert secret not in file.read_bytes(), f"the secret is in {file.name}"

    assert f"{id} (web) is revoked" in shigoto("token", "revoke", "jobs.db", "web").out
    assert shigoto("token", "list", "jobs.db", "--json").json[0]["status"] == "revoked"
    again = shigoto("token", "revoke", "jobs.db", id, code=2)
    assert "revoked before" in again.err


def test_what_is_done_is_noted(shigoto: Command, tmp_path: Path) -> None:
    """S0-66."""
    id = shigoto("token", "create", "jobs.db", "worker", "--scope", "work", "--json").json["id"]
    shigoto("token", "revoke", "jobs.db", id)

    app = Shigoto(tmp_path / "jobs.db")
    noted = app.engine.run(app.engine.registry.noted())
    app.close()
    assert [(each.action, each.target) for each in noted] == [("token.revoke", id), ("token.create", id)]
    assert all(re.fullmatch(r"cli:.+@.+", each.actor) for each in noted)
    assert all("hash" not in f"{each.before}{each.after}" for each in noted)


def test_for_programs_the_text_is_part_of_the_record(shigoto: Command) -> None:
    made = shigoto("token", "create", "jobs.db", "web", "--scope", "admin", "--json").json

    assert TEXT.fullmatch(made["token"])
    assert made["queues"] is made["tenant"] is made["expires_at"] is None


def test_a_name_is_for_one_that_is_alive(shigoto: Command) -> None:
    shigoto("token", "create", "jobs.db", "web", "--scope", "read")
    assert "already" in shigoto("token", "create", "jobs.db", "web", "--scope", "read", code=2).err
    shigoto("token", "revoke", "jobs.db", "web")
    shigoto("token", "create", "jobs.db", "web", "--scope", "read")

    assert [each["status"] for each in shigoto("token", "list", "jobs.db", "--json").json] == [
        "revoked",
        "alive",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["create", "jobs.db", "web"], "--scope"),
        (["create", "jobs.db", "web", "--scope", "all"], "all"),
        (["create", "jobs.db", "--scope", "read"], "Which name"),
        (["create", "jobs.db", "a", "b", "--scope", "read"], "one word too many"),
        (["create", "jobs.db", "web", "--scope", "work", "--tenant", "acme"], "tenant"),
        (["create", "jobs.db", "web", "--scope", "read", "--queue", "No Way"], "queue"),
        (["create", "jobs.db", "web", "--scope", "read", "--expires", "soon"], "no duration"),
        (["revoke", "jobs.db"], "Which token"),
    ],
)
def test_what_cannot_be_meant(shigoto: Command, words: list[str], said: str) -> None:
    assert said in shigoto("token", *words, code=2).err


def test_none_is_made_over_http(shigoto: Command) -> None:
    """A stolen token cannot make more of its kind."""
    for words in (["create", "web", "--scope", "read"], ["list"], ["revoke", "web"]):
        told = shigoto("--url", "http://127.0.0.1:8710", "token", *words, code=1)
        assert "never over HTTP" in told.err


def test_looking_creates_nothing(shigoto: Command, tmp_path: Path) -> None:
    shigoto("token", "list", "jobs.db", code=1)

    assert list(tmp_path.iterdir()) == []


def test_there_are_none(shigoto: Command) -> None:
    shigoto("migrate", "jobs.db")

    assert "There are no tokens" in shigoto("token", "list", "jobs.db").out


def test_the_store_has_a_hash_of_it(shigoto: Command, tmp_path: Path) -> None:
    shigoto("token", "create", "jobs.db", "web", "--scope", "read")

    connection = sqlite3.connect(tmp_path / "jobs.db")
    [(hash,)] = connection.execute("SELECT hash FROM shigoto_token").fetchall()
    connection.close()
    assert len(hash) == 32
