"""Secrets in child processes: what leaves one, for its worker or for the log, is covered already."""

import logging
import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from shigoto import State
from shigoto.encryption import KEYS, new_key
from shigoto.model.secrets import is_encrypted
from shigoto.observe.log import configure_logging
from tests.fundamentals.nursery import Nursery, make

CANARY = "canary-4711-yellow"

CODE = """
@app.task(executor="process")
def talk(ctx: Context, word: str) -> list[object]:
    ctx.progress(0.5, word)
    ctx.log(word)
    ctx.checkpoint({"at": word})
    return [os.getpid(), word, ctx.resume_from]


@app.task(executor="process", retries=0)
def fail(word: str) -> None:
    raise LookupError(word)


@app.task(executor="process", max_crashes=1)
def crash(ctx: Context, word: str) -> None:
    ctx.log(f"about to crash with {word}")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(executor="process", retries=0, encrypt=False)
def login(ctx: Context, token: Secret[str]) -> None:
    ctx.log(f"has {token}")
    raise LookupError(token)
"""


@pytest.fixture
def nursery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nursery]:
    monkeypatch.setenv(KEYS, new_key("a"))
    nursery = make(tmp_path, monkeypatch, CODE)
    yield nursery
    nursery.close()


def test_a_child_has_the_keys_and_its_words_are_encrypted(nursery: Nursery) -> None:
    job = nursery.talk.enqueue(CANARY)

    nursery.drain()

    pid, word, resumed = job.result()
    assert pid != os.getpid()
    assert (word, resumed) == (CANARY, {"at": CANARY})
    now = job.job()
    assert all(is_encrypted(text) for text in (now.payload, now.result, now.progress_text))
    assert [is_encrypted(line) for line in nursery.lines(job)] == [True]


def test_what_is_told_of_a_failure_and_of_a_crash_has_nothing_of_it(nursery: Nursery) -> None:
    stream = StringIO()
    configure_logging(stream=stream, level=logging.DEBUG)
    failed, crashed = nursery.fail.enqueue(CANARY), nursery.crash.enqueue(CANARY)

    nursery.drain()
    crashed.cancel()

    assert failed.status() is State.FAILED
    [attempt] = nursery.attempts(failed)
    assert is_encrypted(attempt.error)
    death = nursery.attempts(crashed)[0]
    assert "signal 9" in (death.error or "") or "SIGKILL" in (death.error or "")
    assert CANARY not in f"{death.error}{death.traceback}{stream.getvalue()}{nursery.told}"


def test_secrets_of_a_plain_job_do_not_leave_its_child(nursery: Nursery) -> None:
    job = nursery.login.enqueue(CANARY)

    nursery.drain()

    [attempt] = nursery.attempts(job)
    assert attempt.error == "LookupError: ***"
    assert CANARY not in (attempt.traceback or "")
    assert nursery.lines(job) == ["has ***"]
