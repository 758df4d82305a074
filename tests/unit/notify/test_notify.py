"""Rules, targets and messages of notifications, as values: what may be said, what is told, and what is kept out."""

import email
import email.policy
from collections.abc import Callable, Mapping
from datetime import timedelta
from email.message import EmailMessage
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from msgspec import json

from shigoto import DeclarationError, FailureKind, Shigoto
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec
from shigoto.model.notice import DELIVER, NOTICE, QUEUE, Notice, of_fences
from shigoto.model.time import to_datetime
from shigoto.notify import (
    Log,
    Mail,
    Notification,
    Webhook,
    on_dead_worker,
    on_failure,
    on_missed_schedule,
    on_queue_age,
)
from shigoto.notify import mail as mailing
from shigoto.notify import webhook as hooking
from shigoto.notify.notifier import PATIENTLY
from shigoto.notify.notifier import messages as messages_of
from shigoto.notify.rules import Rule

ID = UUID("018f0000-0000-7000-8000-000000000001")
AT = 1_700_000_000_000
MAIL = {
    "SHIGOTO_MAIL_TO": "admin@example.org, second@example.org",
    "SHIGOTO_MAIL_FROM": "jobs@example.org",
    "SHIGOTO_SMTP_URL": "smtp://robot@mail.example.org",
    "SHIGOTO_SMTP_PASSWORD": "hunter2",
}
SECRET = {"SHIGOTO_WEBHOOK_SECRET": "0123456789abcdef"}
SECRET_HOOK = Webhook("https://hooks.example.org:443/T0/s3cr3t?key=s3cr3t")
# E54: names and errors of people who would like to write headers of their own.
HEADERS = (
    "x\r\nBcc: thief@example.net",
    "x\nTo: thief@example.net",
    "x\rSubject: paid",
    "x\r\n\r\n<script>alert(1)</script>",
    "x\0y",
    "x\x0bBcc: thief@example.net\x0c",
    "x\x85Bcc: thief@example.net",
    "x\u2028Bcc: thief@example.net\u2029",
    "=?utf-8?q?x=0D=0ABcc:_thief@example.net?=",
    "=?utf-8?b?eA0KQmNjOiB0aGllZkBleGFtcGxlLm5ldA==?=",
    "x%0d%0aBcc:thief@example.net",
    "\x1b]0;owned\x07",
    "日本語の仕事\r\nBcc: thief@example.net",
    "x" * 10_000,
    ".\r\n.\r\nMAIL FROM:<thief@example.net>",
    "\ud800",
    "<b>bold</b>",
    " \t\r\n leading",
)


def anything(value: object) -> Any:
    """A value as somebody without a type checker gives it."""
    return value


def hook(event: Notification) -> None:
    """A function of a user."""


def told(**said: Any) -> Notification:
    usual: dict[str, Any] = {
        "id": ID,
        "kind": "failed",
        "rule": "failure",
        "subject": "resize",
        "at": to_datetime(AT),
    }
    return Notification(**usual | said)


def messages(rule: Rule, notice: Notice, id: UUID = ID) -> list[JobSpec]:
    """The jobs of the messages of a notice, which has this id."""
    return list(messages_of(rule, id, notice, "0123456789ab"))


def failed(task: str = "resize", at: int = AT, **said: Any) -> Notice:
    usual: dict[str, Any] = {"job": ID, "queue": "images", "failure": FailureKind.ERROR}
    return Notice(kind="failed", subject=task, at=at, **usual | said)


class TestDeclaring:
    """What makes no sense is refused where it is said."""

    @pytest.mark.parametrize(
        ("make", "match"),
        [
            (lambda: on_failure(to=[]), "to takes a list of targets"),
            (lambda: on_failure(to=anything(Mail())), "to takes a list of targets"),
            (lambda: on_failure(to=[anything(Mail)]), "Mail\\(…\\), not the class"),
            (
                lambda: on_failure(to=[anything("ops@example.org")]),
                "a target is Mail, Webhook, Log or a function",
            ),
            (lambda: on_failure(to=[Log(), Log()]), "two of its targets are the same"),
            (lambda: on_failure(to=[Log()], tasks="resize"), "tasks takes a list of names"),
            (lambda: on_failure(to=[Log()], queues=[]), "queues takes a list of names"),
            (lambda: on_failure(to=[Log()], kinds=["sad"]), "no job fails as 'sad'"),
            (lambda: on_failure(to=[Log()], window=0.1), "window must be at least 1 s"),
            (lambda: on_failure(to=[Log()], window=timedelta(-1)), "must not be negative"),
            (lambda: on_failure(to=[Log()], window=60, digest=60), "exclude each other"),
            (lambda: on_failure(to=[Log()], name="Not a name"), "must be kebab-case or snake_case"),
            (lambda: on_queue_age(to=[Log()], limit=anything("soon")), "limit must be a timedelta"),
            (lambda: on_failure(to=[Log()], window=timedelta(days=7, seconds=1)), "window .* at most 7 days"),
            (lambda: on_failure(to=[Log()], digest=timedelta(days=8)), "digest .* at most 7 days"),
            (lambda: on_queue_age(to=[Log()], limit=60, window=timedelta(days=30)), "is kept no longer"),
            (lambda: on_missed_schedule(to=[Log()], window=timedelta(weeks=2)), "Take a shorter one"),
            (lambda: Mail("not an address"), "is no e-mail address"),
            (lambda: Mail(["a@example.org", "b@example.org\r\nBcc: c@example.org"]), "is no e-mail address"),
            (lambda: Mail(anything(7)), "takes e-mail addresses"),
            (lambda: Webhook("http://example.org/"), "has to begin with https://"),
            (lambda: Webhook("https://user:hunter2@example.org/"), "neither a user nor a fragment"),
            (lambda: Webhook("https://example.org:22/"), "may not go to port 22"),
            (lambda: Webhook("https://example.org/ü"), "a URL in ASCII"),
            (lambda: Webhook("https://[::1/"), "is no URL"),
            (lambda: Webhook("ftp://example.org/"), "has to begin with https://"),
            (
                lambda: Webhook("https://example.org/", secret="my very own secret!"),
                "name of the environment",
            ),
            (lambda: Webhook("https://example.org/", ports=(0,)), "ports of a Webhook"),
            (
                lambda: Webhook("http://10.0.0.1:9000/", internal=True, ports=(8080,)),
                "may not go to port 9000",
            ),
            (lambda: Shigoto(notify=anything(on_dead_worker(to=[Log()]))), "takes a list of rules"),
            (lambda: Shigoto(notify=[anything("mail me")]), "notify takes rules"),
            (lambda: Shigoto(notify=[on_dead_worker(to=[Log()])] * 2), "Two rules are called 'dead-worker'"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, make: Any, match: str) -> None:
        with pytest.raises(DeclarationError, match=match) as refusal:
            make()
        assert "hunter2" not in str(refusal.value)

    def test_as_long_as_the_store_remembers_what_was_told_is_no_longer_than_that(self) -> None:
        week = timedelta(days=7)
        assert on_failure(to=[Log()], window=week).window == on_failure(to=[Log()], digest=week).digest
        assert on_queue_age(to=[Log()], limit=timedelta(days=30)).limit == 30 * 86_400_000

    @pytest.mark.parametrize(
        "make",
        [
            lambda: on_failure(to=anything(SECRET_HOOK)),
            lambda: on_failure(to=[anything(SECRET_HOOK.url)]),
            lambda: on_failure(to=anything(SECRET_HOOK.url)),
            lambda: on_failure(to=[anything({"url": SECRET_HOOK.url})]),
            lambda: on_failure(to=[anything(partial(print, SECRET_HOOK.url))]),
            lambda: on_failure(to=[SECRET_HOOK, SECRET_HOOK]),
            lambda: on_failure(to=[SECRET_HOOK], tasks=anything(7)),
            lambda: Shigoto("memory:", notify=anything(SECRET_HOOK)),
            lambda: Shigoto("memory:", notify=[anything(SECRET_HOOK)]),
            lambda: Shigoto("memory:", notify=[anything(SECRET_HOOK.url)]),
            lambda: Shigoto("memory:", notify=anything(SECRET_HOOK.url)),
            lambda: Shigoto("memory:", notify=anything(on_failure(to=[SECRET_HOOK]))),
            lambda: Shigoto("memory:", notify=[on_failure(to=[SECRET_HOOK])] * 2),
        ],
        ids=range(13),
    )
    def test_no_error_shows_the_address_of_a_webhook(self, make: Callable[[], object]) -> None:
        """Whoever knows it can write there: it may have a secret in its path."""
        with pytest.raises(DeclarationError) as refusal:
            make()
        assert "s3cr3t" not in str(refusal.value)

    def test_a_webhook_is_shown_by_its_host(self) -> None:
        assert repr(SECRET_HOOK) == "Webhook(hooks.example.org)"
        assert repr(Webhook("$OPS_HOOK")) == "Webhook($OPS_HOOK)"
        assert "s3cr3t" not in repr(on_failure(to=[SECRET_HOOK])) + str([SECRET_HOOK]) + str(SECRET_HOOK)

    def test_an_app_with_rules_has_their_three_tasks_and_one_without_has_none(self) -> None:
        """S0-66: hooks after a failure, by webhook, by mail or by a function of one's own."""
        app = Shigoto("memory:", notify=[on_failure(to=[Log(), hook])])
        assert app.notifier is not None
        assert set(app.tasks) == {NOTICE, DELIVER, app.notifier.task}
        app.check()
        assert Shigoto("memory:").notifier is None
        assert not Shigoto("memory:").tasks

    def test_what_the_environment_lacks_is_told_together_and_without_secrets(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in (*MAIL, "SHIGOTO_WEBHOOK_SECRET"):
            monkeypatch.delenv(name, raising=False)
        rules = [on_failure(to=[Mail("a@example.org"), Webhook("https://hooks.example.org/T0/s3cr3t")])]
        app = Shigoto("memory:", notify=rules)
        assert app.notifier is not None

        with pytest.raises(DeclarationError) as refusal:
            app.notifier.check()

        assert "$SHIGOTO_MAIL_FROM and $SHIGOTO_SMTP_URL" in str(refusal.value)
        assert "$SHIGOTO_WEBHOOK_SECRET" in str(refusal.value)
        assert "s3cr3t" not in str(refusal.value) + repr(app.notifier.rules[0].targets[1].key)


class TestMatching:
    """Which notices a rule is about."""

    def test_tasks_queues_and_kinds_must_all_match(self) -> None:
        rule = on_failure(to=[Log()], tasks=["resize"], queues=["images"], kinds=["error", "timeout"])
        assert rule.matches(failed())
        assert not rule.matches(failed("mail"))
        assert not rule.matches(failed(queue="other"))
        assert not rule.matches(failed(failure=FailureKind.EXPIRED))
        assert not on_dead_worker(to=[Log()]).matches(failed())

    def test_a_queue_is_old_when_its_oldest_job_has_waited_for_the_limit(self) -> None:
        rule = on_queue_age(to=[Log()], limit=60, queues=["mail"])
        assert rule.matches(Notice(kind="old", subject="mail", at=AT, since=AT - 60_000))
        assert not rule.matches(Notice(kind="old", subject="mail", at=AT, since=AT - 59_999))
        assert not rule.matches(Notice(kind="old", subject="other", at=AT, since=AT - 90_000))

    def test_missed_ticks_are_told_whatever_their_age(self) -> None:
        rule = on_missed_schedule(to=[Log()], schedules=["nightly"])
        assert rule.matches(Notice(kind="missed", subject="nightly", at=AT, since=AT - 1, count=3))


class TestMessages:
    """Once per rule, target, subject and window: by the ids of the jobs that carry them."""

    def ids(self, rule: Rule, *notices: Notice) -> list[set[UUID]]:
        return [{spec.id for spec in messages(rule, notice)} for notice in notices]

    def test_without_a_window_each_failure_is_a_message_and_the_same_is_the_same(self) -> None:
        rule = on_failure(to=[Log(), hook])
        one, again, later, other = self.ids(
            rule, failed(), failed(), failed(at=AT + 1), failed(job=UUID(int=7))
        )
        assert len(one) == 2
        assert one == again
        assert not one & (later | other)

    def test_with_a_window_all_of_a_task_are_two_jobs_one_now_and_one_when_it_is_over(self) -> None:
        rule = on_failure(to=[Log()], window=60)
        start = AT - AT % 60_000
        one, two, other, next_window = self.ids(
            rule,
            failed(at=start),
            failed(at=start + 59_999, job=UUID(int=7)),
            failed("mail", at=start),
            failed(at=start + 60_000),
        )
        assert one == two
        assert len(one) == 2
        assert not one & (other | next_window)
        now, later = messages(rule, failed(at=start))
        assert (now.run_at, later.run_at) == (None, start + 62_000)

    def test_with_a_digest_all_tasks_are_one_job(self) -> None:
        rule = on_failure(to=[Log()], digest=3_600)
        one, two = self.ids(rule, failed(), failed("mail", at=AT + 1))
        assert one == two
        assert len(one) == 1

    def test_workers_of_one_name_that_die_in_one_instant_are_told_of_one_by_one(self) -> None:
        """As those of a machine that has lost its power: one sweep fences them all."""
        rule = on_dead_worker(to=[Log()])
        notices = of_fences(AT, [(uuid7(), "worker") for _ in range(3)])

        told = [messages(rule, json.decode(spec.payload, type=Notice), spec.id) for spec in notices * 2]

        assert len({spec.id for specs in told for spec in specs}) == 3

    def test_a_notice_has_the_patience_of_a_delivery(self) -> None:
        """A store or a registry that is away for a few minutes must cost nobody a message."""
        [notice] = of_fences(AT, [(ID, "worker")])
        [message] = messages(on_dead_worker(to=[Log()]), Notice(kind="fenced", subject="worker", at=AT))

        assert notice.max_failures == message.max_failures == PATIENTLY.max_failures == 16

    def test_a_message_carries_names_and_no_address(self) -> None:
        rule = on_failure(to=[Webhook("https://hooks.example.org/T0/s3cr3t"), Mail("boss@example.org")])
        for spec in messages(rule, failed()):
            assert spec.queue == QUEUE
            assert "s3cr3t" not in spec.payload
            assert "boss" not in spec.payload
            assert json.decode(spec.payload)["notice"]["subject"] == "resize"


class TestMail:
    """E54's mail part, S28: whatever a name or an error is made of, it is text and never a header."""

    def composed(self, event: Notification, environment: Mapping[str, str] = MAIL) -> EmailMessage:
        written = mailing.compose(event, mailing.settings_of((), environment)).as_bytes()
        read = email.message_from_bytes(written, policy=email.policy.SMTP)
        assert isinstance(read, EmailMessage)
        return read

    def test_the_message_says_what_failed_and_is_plain_text(self) -> None:
        """S1-20."""
        message = self.composed(told(job=ID, queue="images", attempt=6, error="ValueError: boom"))

        assert message["Subject"] == "[shigoto] A job of resize failed for good"
        assert message["To"] == "admin@example.org, second@example.org"
        assert message["From"] == "jobs@example.org"
        assert message["Message-ID"] == f"<{ID}@example.org>"
        assert message["Auto-Submitted"] == "auto-generated"
        assert message.get_content_type() == "text/plain"
        text = message.get_content()
        for part in ("resize", str(ID), "images", "ValueError: boom", "attempt  6"):
            assert part in text

    @pytest.mark.parametrize("text", HEADERS, ids=range(len(HEADERS)))
    def test_nobody_writes_a_header(self, text: str) -> None:
        """E54: every name and every error of the corpus, in every place that they can be in."""
        plain = self.composed(told())
        for said in (
            {"subject": text},
            {"kind": "fenced", "subject": text},
            {"error": text},
            {"rule": text},
            {"queue": text, "tenant": text},
            {"tasks": {text: 2}, "count": 2},
        ):
            event = told(**said)
            message = self.composed(event)

            assert message.keys() == plain.keys()
            assert message["To"] == plain["To"]
            assert len(event.title) <= 200
            assert event.title.isprintable()
            assert message["Subject"].strip().startswith("[shigoto] ")
            assert message.get_content_type() == "text/plain"
            assert len(message.get_content()) < 3_000

    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("smtp://mail.example.org", ("mail.example.org", 587, "starttls")),
            ("smtps://mail.example.org", ("mail.example.org", 465, "tls")),
            ("smtp://127.0.0.1:2525?tls=off", ("127.0.0.1", 2525, "none")),
        ],
    )
    def test_lines_are_encrypted_unless_it_is_said(self, url: str, expected: tuple[str, int, str]) -> None:
        settings = mailing.settings_of("a@example.org", MAIL | {"SHIGOTO_SMTP_URL": url})
        assert (settings.host, settings.port, settings.protection) == expected

    @pytest.mark.parametrize(
        "url",
        [
            "mail.example.org",
            "http://mail.example.org",
            "smtp://",
            "smtp://robot@mail.example.org?tls=off",
            "smtps://mail.example.org?tls=off",
            "smtp://mail.example.org?starttls=no",
            "smtp://mail.example.org:99999",
            "smtp://mail.example.org/path",
        ],
    )
    def test_an_address_of_a_server_that_cannot_be_used_is_refused(self, url: str) -> None:
        with pytest.raises(DeclarationError, match="SHIGOTO_SMTP_URL"):
            mailing.settings_of("a@example.org", MAIL | {"SHIGOTO_SMTP_URL": url})

    @pytest.mark.parametrize(
        "url",
        [
            "smtp://robot:hunter3@mail.example.org?tls=off",
            "robot:hunter3@mail.example.org",
            "smtp:robot:hunter3@mail.example.org",
            "smtp://mail.example.org/hunter3",
        ],
    )
    def test_secrets_are_in_no_message_and_no_representation(self, url: str) -> None:
        with pytest.raises(DeclarationError) as refusal:
            mailing.settings_of("a@example.org", MAIL | {"SHIGOTO_SMTP_URL": url})
        assert "hunter3" not in str(refusal.value)
        assert "hunter2" not in repr(mailing.settings_of("a@example.org", MAIL))

    def test_a_user_without_a_password_is_refused(self) -> None:
        with pytest.raises(DeclarationError, match="set \\$SHIGOTO_SMTP_PASSWORD"):
            mailing.settings_of("a@example.org", MAIL | {"SHIGOTO_SMTP_PASSWORD": ""})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("SHIGOTO_SMTP_PASSWORD", "hunter2ß"),
            ("SHIGOTO_SMTP_PASSWORD", "hunter2\udcff"),
            ("SHIGOTO_SMTP_URL", "smtp://hunter2%C3%9F@mail.example.org"),
            ("SHIGOTO_SMTP_URL", "smtp://robot:hunter2%C3%9F@mail.example.org"),
        ],
    )
    def test_an_account_that_is_not_ascii_is_refused_and_not_quoted(self, name: str, value: str) -> None:
        """There is no way to log in with it, and the error of who tries names a letter of it."""
        with pytest.raises(DeclarationError, match="ASCII") as refusal:
            mailing.settings_of("a@example.org", MAIL | {name: value})
        for part in ("hunter2", "ß", "xdf", "udcff", "position"):
            assert part not in str(refusal.value)

    def test_the_password_of_nobody_may_be_anything(self) -> None:
        environment = MAIL | {"SHIGOTO_SMTP_URL": "smtp://mail.example.org", "SHIGOTO_SMTP_PASSWORD": "ß"}
        assert mailing.settings_of("a@example.org", environment).password is None


class TestWebhook:
    """What the environment says of webhooks."""

    def test_an_address_may_be_in_a_variable_and_is_checked_there_too(self) -> None:
        webhook = Webhook("$OPS_HOOK")
        assert hooking.settings_of(webhook, SECRET | {"OPS_HOOK": "https://a.example/x?y=1"}).path == "/x?y=1"
        for wrong in ("", "http://a.example/", "https://a.example:8443/"):
            with pytest.raises(DeclarationError):
                hooking.settings_of(webhook, SECRET | {"OPS_HOOK": wrong})

    def test_one_in_a_network_of_ones_own_goes_to_any_port_unless_some_are_named(self) -> None:
        for webhook in (
            Webhook("http://10.0.0.1:9000/", internal=True),
            Webhook("http://10.0.0.1:9000/", internal=True, ports=(9000,)),
        ):
            assert hooking.settings_of(webhook, SECRET).port == 9000
        with pytest.raises(DeclarationError, match="may not go to port 9001"):
            hooking.settings_of(
                Webhook("$OPS_HOOK", internal=True, ports=(9000,)),
                SECRET | {"OPS_HOOK": "http://10.0.0.1:9001/"},
            )

    def test_an_allow_list_names_hosts_or_all_below_a_domain(self) -> None:
        webhook = Webhook("https://hooks.example.org/")
        for allowed in ("", "hooks.example.org", "a.test, .example.org"):
            hooking.settings_of(webhook, SECRET | {"SHIGOTO_EGRESS": allowed})
        for allowed in ("example.org", "ooks.example.org", "hooks.example.org.evil.test"):
            with pytest.raises(DeclarationError, match="SHIGOTO_EGRESS"):
                hooking.settings_of(webhook, SECRET | {"SHIGOTO_EGRESS": allowed})

    @pytest.mark.parametrize("secret", ["", "hunter2", "whsec_!!!", "whsec_c2hvcnQ="])
    def test_a_secret_that_anybody_could_guess_is_refused(self, secret: str) -> None:
        with pytest.raises(DeclarationError, match="SHIGOTO_WEBHOOK_SECRET") as refusal:
            hooking.settings_of(Webhook("https://a.example/"), {"SHIGOTO_WEBHOOK_SECRET": secret})
        assert not secret or secret not in str(refusal.value)
