"""Where signals and secrets meet: what an encrypted job or a secret argument says of itself in notices, spans, events
and logs."""

import asyncio
import logging
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from faults.tools.sinks import sink
from shigoto import (
    Cancel,
    Context,
    DeclarationError,
    Encryption,
    JobHandle,
    Retry,
    Secret,
    Shigoto,
    State,
    Traces,
)
from shigoto.model.job import Attempt
from shigoto.model.secrets import is_encrypted
from shigoto.model.worker import Rescued
from shigoto.notify import Notification, on_failure
from shigoto.notify.mail import settings_of
from shigoto.observe.log import configure_logging
from shigoto.observe.sentry import failure_of_job
from shigoto.worker import Worker
from shigoto.worker.reporting import hidden, job_fields

CANARY = "canary-4711-yellow"
KEYS = Encryption({"a": bytes(range(32))})
PEM = (
    "-----BEGIN KEY-----\n"
    + "\n".join(f"canary{line:04}abcdefgh\"'\\" for line in range(400))
    + "\n-----END-----"
)


def drain(app: Shigoto) -> None:
    asyncio.run(Worker(app, drain=True, children=0).run())


def attempt_of(app: Shigoto, job: JobHandle[Any]) -> Attempt:
    [attempt] = app.engine.run(app.engine.attempts(job.id))
    return attempt


@pytest.fixture(params=["json", "text"])
def log(request: pytest.FixtureRequest) -> StringIO:
    stream = StringIO()
    configure_logging(
        format=request.param, stream=stream, level=logging.DEBUG, fields=job_fields, hide=hidden
    )
    return stream


told: list[Notification] = []


def hear(event: Notification) -> None:
    told.append(event)


def test_a_message_tells_the_type_of_an_encrypted_error_and_not_its_envelope() -> None:
    app = Shigoto("memory:", encryption=KEYS, notify=[on_failure(to=[hear])])

    @app.task(retries=0)
    def bad(word: str) -> None:
        raise ValueError(word)

    bad.enqueue(CANARY)
    told.clear()
    drain(app)

    assert [event.error for event in told] == ["ValueError (encrypted)"]
    assert "$shigoto" not in told[0].text


def test_the_span_of_an_encrypted_job_has_the_type_of_its_error_and_no_traceback(tmp_path: Path) -> None:
    with sink() as heard:
        app = Shigoto(tmp_path / "jobs.db", encryption=KEYS, traces=Traces(endpoint=heard.url))

        @app.task(retries=0)
        def bad(word: str) -> None:
            raise ValueError(word)

        bad.enqueue(CANARY)
        drain(app)
        app.flush(5)
        app.close()
        run = heard.span("run bad")

    [(_, said)] = run.events
    assert said == {"exception.type": "ValueError", "exception.message": "encrypted"}
    assert "$shigoto" not in f"{run}"


def test_sentry_is_told_the_type_of_an_encrypted_error_that_it_looks_up() -> None:
    app = Shigoto("memory:", encryption=KEYS)

    @app.task(retries=0)
    def bad(word: str) -> None:
        raise ValueError(word)

    job = bad.enqueue(CANARY)
    drain(app)
    now = job.job()

    assert is_encrypted(now.error)
    failure = failure_of_job(Rescued(now.id, now.number, now.task, State.FAILED), now)
    assert failure.error == "ValueError (encrypted)"


@pytest.mark.parametrize("before", [0, 4_070, 16_300])
@pytest.mark.parametrize("secret", [CANARY, PEM])
def test_a_secret_is_hidden_before_its_error_is_cut(secret: str, before: int) -> None:
    """Half of it, or one that is longer than an error may be, would not be known any more."""
    app = Shigoto("memory:")

    @app.task(retries=0)
    def bad(key: Secret[str]) -> None:
        raise ValueError("x" * before + key)

    @app.task
    def stop(key: Secret[str]) -> None:
        raise Cancel("x" * before + key)

    @app.task
    def go(ctx: Context, key: Secret[str]) -> None:
        ctx.progress(0.5, "x" * (before and 490) + key)

    failed, stopped, gone = bad.enqueue(secret), stop.enqueue(secret), go.enqueue(secret)
    drain(app)

    attempt = attempt_of(app, failed)
    said = f"{failed.job().error}{attempt.traceback}{stopped.job().error}{gone.job().progress_text}"
    assert "cana" not in said
    assert "BEGIN" not in said


def test_a_secret_of_several_lines_is_hidden_in_a_group_of_errors() -> None:
    app = Shigoto("memory:")

    @app.task(retries=0)
    def bad(key: Secret[str]) -> None:
        raise ExceptionGroup("both", [ValueError(key), ValueError("other")])

    job = bad.enqueue(PEM)
    drain(app)

    assert "canary" not in (attempt_of(app, job).traceback or "")


def test_secret_bytes_are_hidden_although_they_are_stored_as_base64() -> None:
    app = Shigoto("memory:")

    @app.task(retries=0)
    def bad(key: Secret[bytes]) -> None:
        raise ValueError(f"{key!r} {key.hex()}")

    job = bad.enqueue(b"canary\xff-4711")
    drain(app)

    assert job.job().error == "ValueError: b'***' ***"


@pytest.mark.parametrize("secret", ["päss\"w'\\ord-canary", "two\nlines\\of-canary\t!", "日本-canary"])
def test_a_secret_is_hidden_in_the_log_however_the_log_writes_it(log: StringIO, secret: str) -> None:
    app, mine = Shigoto("memory:"), logging.getLogger("mine")

    @app.task
    def say(key: Secret[str]) -> None:
        mine.info("%s", key)
        mine.info("%r", {"key": key})
        try:
            raise LookupError(key)
        except LookupError:
            mine.exception("it is")

    say.enqueue(secret)
    drain(app)

    assert "it is" in log.getvalue()
    assert "canary" not in log.getvalue()


def test_what_an_encrypted_job_raises_after_its_transaction_is_not_logged(
    log: StringIO, tmp_path: Path
) -> None:
    app = Shigoto(tmp_path / "jobs.db", encryption=KEYS)

    @app.task(retries=0)
    def late(ctx: Context, word: str) -> None:
        with ctx.transaction():
            pass
        raise ValueError(word)

    job = late.enqueue(CANARY)
    drain(app)
    app.close()

    assert job.status() is State.COMPLETED
    assert "ValueError (encrypted)" in log.getvalue()
    assert CANARY not in log.getvalue()


def test_a_retry_policy_that_fails_does_not_tell_of_the_error_that_it_was_asked_about(log: StringIO) -> None:
    app = Shigoto("memory:", encryption=KEYS)

    def never(failures: int, error: BaseException | None) -> float:
        raise LookupError(f"no delay for {error}")

    @app.task(retry=Retry.custom(never, retries=1))
    def bad(word: str) -> None:
        raise ValueError(word)

    bad.enqueue(CANARY)
    drain(app)

    assert "The retry policy of task bad failed" in log.getvalue()
    assert CANARY not in log.getvalue()


def test_addresses_that_are_in_the_wrong_place_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DSN in $SHIGOTO_SENTRY is an easy mistake."""
    for name, value in (
        ("SHIGOTO_SENTRY", f"https://{CANARY}@host/1"),
        ("SHIGOTO_TRACES", f"http://u:{CANARY}@h"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(DeclarationError) as raised:
                Shigoto("memory:")
        assert CANARY not in str(raised.value)
    assert CANARY not in repr(Traces(endpoint=f"https://u:{CANARY}@host"))
    for url in (f"u:{CANARY}@host:587", f"smtp:u:{CANARY}@host", f"smtp://u:{CANARY}#@host"):
        with pytest.raises(DeclarationError) as raised:
            settings_of("ops@example.org", {"SHIGOTO_MAIL_FROM": "a@example.org", "SHIGOTO_SMTP_URL": url})
        assert CANARY not in str(raised.value)
