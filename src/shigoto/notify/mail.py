"""Mail deliveries: one message by SMTP, as plain text.

Subject and headers are made from a fixed template, and the library refuses a header with a line break in it. A server
that says "not now" (4xx), or says nothing, is asked again; one that says no (5xx) is believed. What it says of the
message is all that counts: one that has taken it and does not know how to part has it nevertheless.
"""

import smtplib
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP as POLICY
from email.utils import format_datetime
from ipaddress import ip_address
from time import monotonic
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from shigoto.model.errors import DeclarationError
from shigoto.model.text import shown
from shigoto.notify.egress import by, connect, cut_at
from shigoto.notify.notification import Notification
from shigoto.notify.targets import MAIL_TO, Undeliverable, Undelivered, is_list

MAIL_FROM, SMTP_URL, SMTP_PASSWORD = "SHIGOTO_MAIL_FROM", "SHIGOTO_SMTP_URL", "SHIGOTO_SMTP_PASSWORD"
PATIENCE = 10.0  # seconds, for each answer of the server
LONGEST = 30.0  # seconds, for all of it
NAMED_WITHIN = 2.0  # seconds, for the resolver to say what we are called
MAX_ADDRESS = 254
PORTS = {"smtp": 587, "smtps": 465}

Protection = Literal["starttls", "tls", "none"]


class MailSettings(Struct, frozen=True, kw_only=True):
    """Who gets it, from whom, and by which server."""

    to: tuple[str, ...]
    sender: str
    host: str
    port: int
    protection: Protection
    user: str | None
    password: str | None

    def __repr__(self) -> str:
        return f"MailSettings({self.host}:{self.port})"


def send(notification: Notification, settings: MailSettings) -> None:
    """Send the message of a notification. Raises Undelivered, Undeliverable."""
    message = compose(notification, settings)
    try:
        refused = _sent(message, settings, monotonic() + LONGEST)
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        raise _failure(max(codes, key=lambda code: code < 500), "refuses all recipients") from None
    except smtplib.SMTPResponseException as error:
        raise _failure(error.smtp_code, type(error).__name__) from None
    except smtplib.SMTPNotSupportedError:
        raise Undeliverable(
            "The mail server does not offer what is needed: STARTTLS, or to log in."
        ) from None
    except UnicodeError:  # which quotes what it could not write, and that may be a part of the password
        raise Undeliverable("What the mail server has to be told has letters that cannot be sent.") from None
    except (OSError, smtplib.SMTPException) as error:
        # Some of them hold what was said, and may hold secrets.
        raise Undelivered(f"The mail server could not be used: {type(error).__name__}.") from None
    if refused:
        # The others have it: to send it once more would be worse than to leave these out.
        raise Undeliverable(f"The mail server refused {len(refused)} of {len(settings.to)} recipients.")


def compose(notification: Notification, settings: MailSettings) -> EmailMessage:
    """The message. Its id is that of the notification, so that one who gets it twice can tell."""
    message = EmailMessage(policy=POLICY)
    # What looks like an encoded word would be decoded on its way out, with whatever line breaks are in it.
    message["Subject"] = notification.title.replace("=?", "= ?")
    message["From"] = Address(addr_spec=settings.sender)
    message["To"] = tuple(Address(addr_spec=address) for address in settings.to)
    message["Date"] = format_datetime(notification.at)
    message["Message-ID"] = f"<{notification.id}@{settings.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(notification.text)
    return message


def settings_of(to: str | Sequence[str], environment: Mapping[str, str]) -> MailSettings:
    """What the target and the environment say together. Raises DeclarationError that names what is missing."""
    addresses = _several(to) or _several(environment.get(MAIL_TO, ""))
    if not addresses:
        raise DeclarationError(
            f"There is nobody to mail to: set ${MAIL_TO}, or write Mail('ops@example.org')."
        )
    sender, url = environment.get(MAIL_FROM, ""), environment.get(SMTP_URL, "")
    missing = [name for name, value in ((MAIL_FROM, sender), (SMTP_URL, url)) if not value]
    if missing:
        raise DeclarationError(f"Mail cannot be sent: set {' and '.join(f'${name}' for name in missing)}.")
    expect_addresses(f"${MAIL_TO}", addresses)
    expect_addresses(f"${MAIL_FROM}", sender)
    return _settings(addresses, sender, url, environment.get(SMTP_PASSWORD))


def expect_addresses(where: str, given: object) -> None:
    """Raise DeclarationError for what is no e-mail address, or no list of them."""
    if not isinstance(given, str) and not is_list(given):
        raise DeclarationError(f"{where} takes e-mail addresses, not {shown(given)}.")
    for address in _several(given):
        if not _is_address(address):
            raise DeclarationError(
                f"{where}: {shown(address)} is no e-mail address, such as ops@example.org."
            )


def _settings(to: tuple[str, ...], sender: str, url: str, password: str | None) -> MailSettings:
    try:
        split = urlsplit(url)
        port = split.port
    except ValueError:
        raise _bad_url("it is no address") from None
    if split.scheme not in PORTS or not split.hostname or split.path.strip("/") or split.fragment:
        raise _bad_url("write smtp://user@host:587 or smtps://user@host")
    said = dict(parse_qsl(split.query, keep_blank_values=True))
    if said not in ({}, {"tls": "off"}) or (said and split.scheme == "smtps"):
        raise _bad_url("after the question mark it knows ?tls=off only, with smtp://")
    protection: Protection = "tls" if split.scheme == "smtps" else "none" if said else "starttls"
    user = unquote(split.username) if split.username else None
    own = unquote(split.password) if split.password else None
    password = None if user is None else own or password or None
    if not (user or "").isascii() or not (password or "").isascii():
        raise DeclarationError(
            f"The user in ${SMTP_URL} and the password, there or in ${SMTP_PASSWORD}, have to be ASCII to log in."
        )
    if user is not None and password is None:
        raise DeclarationError(f"${SMTP_URL} names a user: set ${SMTP_PASSWORD}.")
    if user is not None and protection == "none" and not _is_loopback(split.hostname):
        raise _bad_url("a password must not be sent over a line that is not encrypted; leave ?tls=off out")
    return MailSettings(
        to=to,
        sender=sender,
        host=split.hostname,
        port=port or PORTS[split.scheme],
        protection=protection,
        user=user,
        password=password,
    )


class _Conversation(smtplib.SMTP):
    """SMTP on a line that somebody else has opened, and will cut when it is time."""

    def __init__(self, line: socket.socket, settings: MailSettings, name: str) -> None:
        self._line = line
        super().__init__(settings.host, settings.port, local_hostname=name, timeout=PATIENCE)

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        return self._line


def _sent(message: EmailMessage, settings: MailSettings, deadline: float) -> Mapping[str, object]:
    line = connect(settings.host, settings.port, deadline=deadline, internal=True)
    with closing(line), cut_at(deadline, line):
        server = _greeted(line, settings, _own_name(line, deadline))
        try:
            if settings.user is not None and settings.password is not None:
                server.login(settings.user, settings.password)
            return _given(server, message, settings)
        finally:
            with suppress(OSError):  # of which every error of SMTP is one
                server.quit()
            server.close()


def _given(server: smtplib.SMTP, message: EmailMessage, settings: MailSettings) -> Mapping[str, object]:
    try:
        return server.send_message(message, settings.sender, list(settings.to))
    except smtplib.SMTPNotSupportedError:
        raise Undeliverable(
            "The mail server does not take addresses beyond ASCII (SMTPUTF8): write their domains as xn--…"
        ) from None


def _greeted(line: socket.socket, settings: MailSettings, name: str) -> smtplib.SMTP:
    """The server, when it has greeted and nobody else can read on the line, unless that was not wanted."""
    line.settimeout(PATIENCE)
    context = ssl.create_default_context()
    if settings.protection == "tls":
        line = context.wrap_socket(line, server_hostname=settings.host)
    server = _Conversation(line, settings, name)
    try:
        if settings.protection == "starttls":
            server.starttls(context=context)
    except BaseException:
        server.close()
        raise
    return server


def _own_name(line: socket.socket, deadline: float) -> str:
    """By which name to introduce ourselves: in full, or else by our address, as SMTP writes it."""
    with suppress(OSError):
        name = by(min(deadline, monotonic() + NAMED_WITHIN), socket.getfqdn)
        if "." in name:
            return name
    address = ip_address(line.getsockname()[0].partition("%")[0])
    return f"[{address}]" if address.version == 4 else f"[IPv6:{address}]"


def _failure(code: int, what: str) -> Exception:
    kind = Undeliverable if code >= 500 else Undelivered
    return kind(f"The mail server answered {code}: {what}.")


def _several(given: object) -> tuple[str, ...]:
    words = given.split(",") if isinstance(given, str) else given if is_list(given) else ()
    return tuple(str(word).strip() for word in words if word != "")


def _is_address(given: object) -> bool:
    if not isinstance(given, str) or len(given) > MAX_ADDRESS or not given.isprintable():
        return False
    try:
        parsed = Address(addr_spec=given)
    except Exception:  # the parser has more than one way to say no
        return False
    return (
        parsed.addr_spec == given
        and bool(parsed.username)
        and "." not in (parsed.domain[:1], parsed.domain[-1:])
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bad_url(why: str) -> DeclarationError:
    """What it says is not repeated: it may have a password in it, and where is hard to tell of what is no address."""
    return DeclarationError(f"${SMTP_URL} cannot be used: {why}.")
