"""Signatures of webhooks: they say who sent a request, and when, so that it can neither be forged nor sent again.

As Standard Webhooks has it, for which there are libraries in most languages:

    webhook-id          the event, the same whenever it is sent again: whoever has seen it ignores the second
    webhook-timestamp   when it was sent, in seconds since 1970
    webhook-signature   v1,BASE64 of HMAC-SHA256 over `id.timestamp.body`; several, with a space between, while keys
                        are changed
"""

import hmac
import time
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
PREFIX = "whsec_"
TOLERANCE = 300.0  # seconds
VERSION = "v1"


class SignatureInvalid(ValueError):
    """A request is not what it says: it was signed by somebody else, changed on the way, or sent too long ago."""


def sign_webhook(
    id: str, body: bytes, secrets: str | Sequence[str], *, now: float | None = None
) -> dict[str, str]:
    """The headers by which a receiver knows a body: its id, when it is sent, and a signature for each secret."""
    timestamp = str(int(time.time() if now is None else now))
    signatures = [_signature(id, timestamp, body, secret) for secret in _several(secrets)]
    return {ID: id, TIMESTAMP: timestamp, SIGNATURE: " ".join(signatures)}


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    secrets: str | Sequence[str],
    *,
    tolerance: float = TOLERANCE,
    now: float | None = None,
) -> str:
    """The id of a webhook that was signed with one of the secrets, not longer than `tolerance` seconds ago.

    `body` is what came, to the byte, before anybody has read it as JSON. Remember the ids of that time, and ignore one
    that comes again. Raises SignatureInvalid.
    """
    said = {name.lower(): value for name, value in headers.items()}
    try:
        id, timestamp, signatures = said[ID], said[TIMESTAMP], said[SIGNATURE]
    except KeyError as missing:
        raise SignatureInvalid(f"The header {missing.args[0]} is missing.") from None
    if not (_is_text(id) and _is_text(signatures)):
        raise SignatureInvalid("The id or the signature is no text.")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise SignatureInvalid("The timestamp is no number of seconds.")
    # In this order, since nothing is within a tolerance that is no number.
    if not abs((time.time() if now is None else now) - int(timestamp)) <= tolerance:
        raise SignatureInvalid(
            "The timestamp is too far from now: it was sent again, or one of the clocks is wrong."
        )
    expected = [_signature(id, timestamp, body, secret) for secret in _several(secrets)]
    given = signatures.split(" ")
    # Each is compared with each, in constant time, so that nothing is told by how long it takes.
    matches = [hmac.compare_digest(one.encode(), other.encode()) for one in expected for other in given]
    if not any(matches):
        raise SignatureInvalid(
            "No signature is ours: another secret was used, or something was changed on the way."
        )
    return id


def key_of(secret: str) -> bytes:
    """The key that a secret means: base64 after `whsec_`, else its own letters. Raises ValueError."""
    if not _is_text(secret):
        raise ValueError("it is no text in UTF-8")
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return b64decode(secret.removeprefix(PREFIX), validate=True)
    except NotBase64:
        raise ValueError(f"what follows {PREFIX} is not base64") from None


def _signature(id: str, timestamp: str, body: bytes, secret: str) -> str:
    signed = b".".join((id.encode(), timestamp.encode(), body))
    return f"{VERSION},{b64encode(hmac.digest(key_of(secret), signed, 'sha256')).decode()}"


def _is_text(said: str) -> bool:
    """Whether it can be written in UTF-8: what came as other bytes is handed on as surrogates, by servers and by the
    environment. The error that says so would quote it."""
    return not any("\ud800" <= letter <= "\udfff" for letter in said)


def _several(secrets: str | Sequence[str]) -> Iterable[str]:
    found = [secrets] if isinstance(secrets, str) else list(secrets)
    if not found or not all(secret.strip() for secret in found):
        raise ValueError("There is no secret to sign with.")
    return found
