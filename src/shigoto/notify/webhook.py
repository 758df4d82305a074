"""Webhook deliveries: a notification as signed JSON, in one POST to an address that is allowed.

At most five seconds for all of it, from the look-up of the name to the answer, of which 64 KiB are read and only the
status counts: a body that breaks off after it changes nothing. A redirect is not followed: it would lead past
everything that was checked. What a server cannot do now (408, 425, 429, 5xx) is tried again, not before it says with
Retry-After; what it refuses is not.
"""

import re
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct, json

from shigoto.model.errors import DeclarationError
from shigoto.model.text import shown
from shigoto.model.version import VERSION
from shigoto.notify.egress import Resolve, connect, cut_at, resolve
from shigoto.notify.notification import Notification
from shigoto.notify.signature import key_of, sign_webhook
from shigoto.notify.targets import USUAL_PORTS, AskedToWait, Undeliverable, Undelivered, is_list

if TYPE_CHECKING:
    from shigoto.notify.targets import Webhook

EGRESS = "SHIGOTO_EGRESS"
PATIENCE = 5.0  # seconds, for all of it
MAX_ANSWER = 64 * 1024
SHORTEST_KEY = 16  # bytes
LONGEST_PAUSE = 3_600.0  # seconds that a server may ask for
LATER = frozenset({408, 425, 429})
PORTS = {"https": 443, "http": 80}
_NAME = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNFIT = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\]")


class WebhookSettings(Struct, frozen=True, kw_only=True):
    """Where it goes, and what it is signed with."""

    split: SplitResult
    host: str
    port: int
    secrets: tuple[str, ...]
    internal: bool

    def __repr__(self) -> str:
        return f"WebhookSettings({self.host}:{self.port})"

    @property
    def path(self) -> str:
        return (self.split.path or "/") + (f"?{self.split.query}" if self.split.query else "")


def expect_address(webhook: "Webhook") -> None:
    """Raise DeclarationError for what cannot be the address of a webhook."""
    secret, ports, url = _plain(webhook)
    if not isinstance(secret, str) or not _VARIABLE.fullmatch(secret):
        raise DeclarationError(
            "The secret of a Webhook is the name of the environment variable that has it, such as"
            " SHIGOTO_WEBHOOK_SECRET, and not the secret itself."
        )
    if ports is not None and (not is_list(ports) or not ports or not all(map(_is_port, ports))):
        raise DeclarationError(
            f"The ports of a Webhook are a list of numbers up to 65535, not {shown(ports)}."
        )
    if not (isinstance(url, str) and _NAME.fullmatch(url)):
        _place(webhook, url)


def _plain(webhook: "Webhook") -> tuple[object, object, object]:
    """What was said, as something that nobody has checked."""
    return webhook.secret, webhook.ports, webhook.url


def _is_port(port: object) -> bool:
    return isinstance(port, int) and 0 < port < 65536


def settings_of(webhook: "Webhook", environment: Mapping[str, str]) -> WebhookSettings:
    """What the target and the environment say together. Raises DeclarationError."""
    url, named = webhook.url, _NAME.fullmatch(webhook.url)
    if named:
        url = environment.get(named[1], "")
        if not url:
            raise DeclarationError(f"The address of a Webhook is in ${named[1]}, which is not set.")
    split, host, port = _place(webhook, url)
    _expect_allowed(host, environment.get(EGRESS, ""))
    return WebhookSettings(
        split=split,
        host=host,
        port=port,
        secrets=_secrets(webhook.secret, environment.get(webhook.secret, "")),
        internal=webhook.internal,
    )


def post(notification: Notification, settings: WebhookSettings, *, resolving: Resolve = resolve) -> None:
    """Send the notification. Raises Undelivered, of which AskedToWait is one, and Undeliverable."""
    body = json.encode(notification)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"shigoto/{VERSION}",
        "Connection": "close",
        **sign_webhook(str(notification.id), body, settings.secrets),
    }
    deadline = time.monotonic() + PATIENCE
    line = connect(
        settings.host, settings.port, deadline=deadline, internal=settings.internal, resolving=resolving
    )
    with closing(line), cut_at(deadline, line):
        try:
            status, wait = _asked(line, settings, body, headers, deadline)
        except (OSError, HTTPException, ssl.SSLError) as error:
            raise Undelivered(f"The webhook was not answered: {type(error).__name__}.") from None
    _judge(status, wait)


def _asked(
    line: socket.socket, settings: WebhookSettings, body: bytes, headers: Mapping[str, str], deadline: float
) -> tuple[int, float | None]:
    line.settimeout(max(0.01, deadline - time.monotonic()))
    secure = settings.split.scheme == "https"
    connection = HTTPConnection(settings.host, settings.port)
    connection.default_port = PORTS[settings.split.scheme]
    with closing(connection):
        connection.sock = (
            ssl.create_default_context().wrap_socket(line, server_hostname=settings.host) if secure else line
        )
        connection.request("POST", settings.path, body, dict(headers))
        answer = connection.getresponse()
        with suppress(OSError, HTTPException):  # whoever has said a status has taken it, or has not
            answer.read(MAX_ANSWER)
        return answer.status, _wait(answer)


def _judge(status: int, wait: float | None) -> None:
    if 200 <= status < 300:
        return
    text = f"The webhook answered {status}"
    if 300 <= status < 400:
        raise Undeliverable(f"{text}: a redirect, which is not followed. Name the place itself.")
    if status in LATER or status >= 500:
        if wait is not None:
            raise AskedToWait(wait, f"{text}, and asks to wait for {wait:g} s.")
        raise Undelivered(f"{text}.")
    raise Undeliverable(f"{text}.")


def _wait(answer: HTTPResponse) -> float | None:
    """For how many seconds a server asks to be left alone, in either way that HTTP has; None for what is neither."""
    said = (answer.getheader("Retry-After") or "").strip()
    seconds = float(said) if said.isascii() and said.isdigit() else _until(said)
    return None if seconds is None else min(max(0.0, seconds), LONGEST_PAUSE)


def _until(date: str) -> float | None:
    try:
        at = parsedate_to_datetime(date)
        return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    except Exception:  # the parser has more than one way to say no
        return None


def _place(webhook: "Webhook", url: object) -> tuple[SplitResult, str, int]:
    """The parts of an address. What it says is not repeated: it may have a secret in it."""
    if not isinstance(url, str) or not url or _UNFIT.search(url):
        raise DeclarationError(
            "The address of a Webhook has to be a URL in ASCII, such as https://host/path."
        )
    try:
        split = urlsplit(url)
        port = split.port
        host = split.hostname
    except ValueError:
        raise DeclarationError("The address of a Webhook is no URL, such as https://host/path.") from None
    if split.scheme != "https" and not (split.scheme == "http" and webhook.internal):
        raise DeclarationError(
            "The address of a Webhook has to begin with https://, unless it is internal=True."
        )
    if not host or "@" in split.netloc or split.fragment:
        raise DeclarationError("The address of a Webhook has a host, and neither a user nor a fragment.")
    port = PORTS[split.scheme] if port is None else port
    allowed = webhook.ports or (None if webhook.internal else USUAL_PORTS)
    if allowed is not None and port not in allowed:
        raise DeclarationError(f"A Webhook may not go to port {port}: its ports are {shown(allowed)}.")
    return split, host, port


def _expect_allowed(host: str, allowed: str) -> None:
    names = [name.strip().lower() for name in allowed.split(",") if name.strip()]
    if names and not any(host == name or (name[:1] == "." and host.endswith(name)) for name in names):
        raise DeclarationError(f"${EGRESS} does not name the host of a Webhook, {shown(host)}.")


def _secrets(name: str, value: str) -> tuple[str, ...]:
    secrets = tuple(value.split())
    if not secrets:
        raise DeclarationError(
            f"Webhooks are signed: set ${name}, to at least {SHORTEST_KEY} letters by chance."
        )
    for secret in secrets:
        try:
            key = key_of(secret)
        except ValueError as error:
            raise DeclarationError(f"${name} cannot be used: {error}.") from None
        if len(key) < SHORTEST_KEY:
            raise DeclarationError(
                f"${name} is too short: {len(key)} bytes, and {SHORTEST_KEY} are the least."
            )
    return secrets
