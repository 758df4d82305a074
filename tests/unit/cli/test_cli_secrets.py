"""Keys and encrypted jobs on the command line."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import json

from shigoto import Encryption, Secret, Shigoto
from shigoto.encryption import KEY_FILE, KEYS, keys_from_environment
from shigoto.worker import Worker
from tests.unit.commands import Command, Outcome

CANARY = "canary-4711-yellow"


@pytest.fixture
def keys(tmp_path: Path, shigoto: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "keys"
    file.write_text(shigoto("secrets", "key", "2026").out)
    monkeypatch.setenv(KEY_FILE, str(file))
    return file


@pytest.fixture
def store(tmp_path: Path, keys: Path) -> Path:
    """Three jobs: one that is encrypted, one that has failed so, and a plain one with a secret."""
    app = Shigoto(tmp_path / "jobs.db")

    @app.task(retries=0)
    def charge(card: str, fail: bool = False) -> str:
        if fail:
            raise LookupError(card)
        return card

    @app.task(encrypt=False)
    def login(pin: Secret[str], password: str) -> None: ...

    charge.enqueue(CANARY)
    charge.enqueue(CANARY, fail=True)
    asyncio.run(Worker(app, drain=True).run())
    login.enqueue(CANARY, CANARY)
    app.close()
    return tmp_path / "jobs.db"


Told = Callable[..., Outcome]


@pytest.fixture
def told(shigoto: Command) -> Told:
    """A command that tells no secret."""

    def run(*words: object) -> Outcome:
        ended = shigoto(*map(str, words))
        assert CANARY not in ended.out + ended.err
        return ended

    return run


def test_a_key_is_printed_as_files_and_variables_take_it(shigoto: Command) -> None:
    first, second = shigoto("secrets", "key", "2026").out, shigoto("secrets", "key").out

    keys = keys_from_environment({KEYS: f"{first} {second}"})
    assert keys is not None
    assert keys.current == "2026"
    assert first.partition(":")[2] != second.partition(":")[2]
    assert shigoto("secrets", "key", "no good").code == 1


def test_jobs_are_shown_without_their_secrets(store: Path, told: Told) -> None:
    """S22."""
    listed = told("list", store, "all").out
    shown = told("show", store, 1).out
    failed = told("show", store, 2, "--traceback").out
    plain = told("show", store, 3).out

    assert "LookupError (encrypted)" in listed
    assert '"encrypted"' in shown
    assert "LookupError (encrypted)" in failed
    assert '{"pin":"***","password":"***"}' in plain
    assert "$secret" not in plain
    record = json.decode(told("show", store, 3, "--json").out)["job"]
    assert (record["payload"], record["meta"]) == ({"pin": "***", "password": "***"}, None)


def test_who_has_the_key_and_asks_sees_what_is_encrypted(
    store: Path, keys: Path, told: Told, shigoto: Command
) -> None:
    shown = shigoto("show", str(store), "1", "--decrypt").out
    failed = shigoto("show", str(store), "2", "--decrypt", "--json").out

    assert f'{{"card":"{CANARY}"}}' in shown
    assert json.decode(failed)["attempts"][0]["error"] == f"LookupError: {CANARY}"
    assert '"***"' in told("show", store, 3, "--decrypt").out


def test_who_has_none_is_told(store: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    monkeypatch.delenv(KEY_FILE)

    for words in (("show", store, 1, "--decrypt"), ("secrets", "rotate", store)):
        ended = told(*words)
        assert ended.code == 1
        assert "There is no key here" in ended.err


def test_filters_say_that_they_cannot_look_into_some_jobs(store: Path, told: Told) -> None:
    """X15."""
    found = told("list", store, "all", "args.pin:nothing")

    assert "There are no jobs that match" in found.out
    assert "Some jobs have encrypted arguments" in found.err
    assert "encrypted" not in told("list", store, "all", "task:login", "args.pin:nothing").err
    assert "Some jobs have encrypted" in told("cancel", store, "all", "args.card:x", "--yes").err


def test_a_rotation_tells_what_it_has_done(store: Path, keys: Path, told: Told, shigoto: Command) -> None:
    keys.write_text(shigoto("secrets", "key", "2027").out + keys.read_text())

    first = told("secrets", "rotate", store)
    again = told("secrets", "rotate", store, "--json")

    assert first.code == 0
    assert "6 values encrypted anew by the key 2027. No other key is needed" in first.out
    assert json.decode(again.out) == {
        "key": "2027", "changed": 0, "schedules": 0, "unreadable": {}, "restless": False,
    }  # fmt: skip
    keys.write_text(keys.read_text().splitlines()[0])
    assert CANARY in shigoto("show", str(store), "1", "--decrypt").out


def test_a_rotation_that_leaves_something_fails(
    store: Path, keys: Path, told: Told, shigoto: Command
) -> None:
    keys.write_text(shigoto("secrets", "key", "2027").out)

    ended = told("secrets", "rotate", store)

    assert ended.code == 1
    assert "was left: 6 by 2026" in ended.out


def test_s24_nothing_that_a_terminal_obeys_is_printed(tmp_path: Path, shigoto: Command) -> None:
    """S24: a corpus of what others put into arguments, errors and ids of keys."""
    app = Shigoto(tmp_path / "jobs.db", encryption=Encryption({"a": bytes(32)}))

    @app.task(retries=0)
    def charge(card: str) -> None:
        raise LookupError(card)

    for nasty in ("\x1b[2J", "\x9b31m", "a\r\nb", "\x07", "\u202e"):
        charge.using(encrypt=False).enqueue(nasty)
        charge.enqueue(nasty)
    asyncio.run(Worker(app, drain=True).run())
    app.close()

    printed = shigoto("list", str(tmp_path / "jobs.db"), "all").out
    printed += shigoto("show", str(tmp_path / "jobs.db"), "1").out

    assert not any(letter in printed for letter in "\x1b\x9b\x07\r")
