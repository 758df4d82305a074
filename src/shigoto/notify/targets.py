"""Targets of messages: mail, a webhook, the log, or a function. Values, checked where they are declared.

What is secret, and what differs from one installation to the next, is not declared but read from the environment when
it is needed:

    SHIGOTO_MAIL_TO          who gets mail that is for nobody in particular, with commas between
    SHIGOTO_MAIL_FROM        from whom it is
    SHIGOTO_SMTP_URL         by which server it is sent: smtp://user@host:587, smtps://…
    SHIGOTO_SMTP_PASSWORD
    SHIGOTO_WEBHOOK_SECRET   what webhooks are signed with, unless they name another variable
    SHIGOTO_EGRESS           if it is set, the only hosts that webhooks may go to, with commas between
"""

import logging
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Protocol, TypeGuard, runtime_checkable
from urllib.parse import urlsplit
from uuid import UUID

from msgspec import Struct

from shigoto.model.errors import DeclarationError
from shigoto.notify.notification import Notification

MAIL_TO, WEBHOOK_SECRET = "SHIGOTO_MAIL_TO", "SHIGOTO_WEBHOOK_SECRET"
USUAL_PORTS = (443,)

logger = logging.getLogger("shigoto.notify")


class Undelivered(Exception):
    """A message could not be delivered, and may be another time. Says nothing that is secret."""


class AskedToWait(Undelivered):
    """It could not be delivered, and who did not take it says for how many seconds to leave it alone."""

    def __init__(self, wait: float, text: str) -> None:
        super().__init__(text)
        self.wait = wait


class Undeliverable(Exception):
    """A message cannot be delivered, however often one tries."""


@runtime_checkable
class DeliveryTarget(Protocol):
    """Somewhere to send notifications to."""

    @property
    def key(self) -> str:
        """What it is called where it is stored: the same in every process of the app, and nothing of what is secret."""
        ...

    def check(self) -> None:
        """Raise DeclarationError if what it needs of the environment is missing or wrong. Reaches nobody."""
        ...

    def deliver(self, notification: Notification) -> None:
        """Tell of it. Raises Undelivered or Undeliverable."""
        ...


class Mail(Struct, frozen=True):
    """E-mail, as plain text, to these addresses; to those of $SHIGOTO_MAIL_TO if none are named."""

    to: str | Sequence[str] = ()

    def __post_init__(self) -> None:
        from shigoto.notify.mail import expect_addresses

        expect_addresses("Mail", self.to)

    @property
    def key(self) -> str:
        return _key("mail", self.to if isinstance(self.to, str) else ",".join(self.to))

    def check(self) -> None:
        from shigoto.notify.mail import settings_of

        settings_of(self.to, os.environ)

    def deliver(self, notification: Notification) -> None:
        from shigoto.notify.mail import send, settings_of

        send(notification, settings_of(self.to, os.environ))


class Webhook(Struct, frozen=True):
    """A signed POST of the notification as JSON. Where `url` is `$NAME`, it is in the variable of that name.

    `secret` is the name of the variable that has the key. Only to `https`, to port 443, and to public addresses, unless
    it is `internal`: then also to `http`, to any port, and to networks of one's own. Where `ports` are given, only to
    those.
    """

    url: str
    secret: str = WEBHOOK_SECRET
    ports: tuple[int, ...] | None = None
    internal: bool = False

    def __post_init__(self) -> None:
        from shigoto.notify.webhook import expect_address

        expect_address(self)

    def __repr__(self) -> str:
        # The rest of an address may be all that it takes to write there.
        return f"Webhook({self.url if self.url.startswith('$') else urlsplit(self.url).hostname})"

    @property
    def key(self) -> str:
        return _key("webhook", self.url)

    def check(self) -> None:
        from shigoto.notify.webhook import settings_of

        settings_of(self, os.environ)

    def deliver(self, notification: Notification) -> None:
        from shigoto.notify.webhook import post, settings_of

        post(notification, settings_of(self, os.environ))


class Log(Struct, frozen=True):
    """A line in the log of the worker that delivers it, as an error, by the logger `shigoto.notify`."""

    @property
    def key(self) -> str:
        return "log"

    def check(self) -> None:
        pass

    def deliver(self, notification: Notification) -> None:
        # A line that names a job is not given the one that runs here, which is the delivery; one that names none is, so
        # that nothing of another is mixed into it.
        about = {} if notification.job is None else _about(notification, notification.job)
        fields = about | {
            "event_id": str(notification.id),
            "event_kind": notification.kind,
            "rule": notification.rule,
            "count": notification.count,
        }
        logger.error("%s", notification.title.removeprefix("[shigoto] "), extra={"shigoto": fields})


class Hook(Struct, frozen=True):
    """A function of the user's own, called with the notification; a coroutine that it returns is awaited."""

    fn: Callable[[Notification], Any]

    @property
    def key(self) -> str:
        return _key("hook", f"{self.fn.__module__}.{self.fn.__qualname__}")

    def check(self) -> None:
        pass

    def deliver(self, notification: Notification) -> None:
        from asyncio import iscoroutine, run

        ended = self.fn(notification)
        if iscoroutine(ended):
            run(ended)


To = Sequence[DeliveryTarget | Callable[[Notification], Any]]


def targets_of(where: str, given: object) -> tuple[DeliveryTarget, ...]:
    """The targets of a rule. Raises DeclarationError."""
    if not is_list(given) or not given:
        raise DeclarationError(
            f"{where}: to takes a list of targets, such as [Mail()], not {sort_of(given)}."
        )
    targets = tuple(_target(where, each) for each in given)
    if len({target.key for target in targets}) < len(targets):
        raise DeclarationError(f"{where}: two of its targets are the same.")
    return targets


def is_list(given: object) -> TypeGuard[Sequence[object]]:
    """Whether it is a list or the like, and not a single word."""
    return isinstance(given, Sequence) and not isinstance(given, str)


def sort_of(given: object) -> str:
    """What something is that is no target and no rule. Not what it says: it may be an address with a secret in it."""
    sort = type(given).__name__
    return f"an empty {sort}" if is_list(given) and not given else f"a value of type {sort}"


def _about(notification: Notification, job: UUID) -> dict[str, object]:
    """The job that a notification is about, by the keys of every line about it; without what is not known of one that
    is gone."""
    known = {
        "job_id": str(job),
        "task": notification.subject,
        "queue": notification.queue,
        "tenant": notification.tenant or "",
        "attempt": notification.attempt,
    }
    return {key: value for key, value in known.items() if value is not None}


def _target(where: str, given: object) -> DeliveryTarget:
    if isinstance(given, type):
        raise DeclarationError(f"{where}: to takes {given.__name__}(…), not the class itself.")
    if isinstance(given, DeliveryTarget):
        return given
    if _is_hook(given):
        return Hook(given)
    raise DeclarationError(
        f"{where}: a target is Mail, Webhook, Log or a function with a name, not {sort_of(given)}."
    )


def _is_hook(given: object) -> TypeGuard[Callable[[Notification], Any]]:
    return callable(given) and hasattr(given, "__qualname__") and hasattr(given, "__module__")


def _key(kind: str, address: str) -> str:
    """An address may have a secret in it, and what is stored must not."""
    return f"{kind}-{sha256(address.encode()).hexdigest()[:12]}"
