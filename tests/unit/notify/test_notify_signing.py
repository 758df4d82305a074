"""Signatures of webhooks: what was signed is known again, and nothing else is (S19)."""

import base64
import hashlib
import hmac

import pytest

from shigoto.notify import SignatureInvalid, sign_webhook, verify_webhook

SECRET, OTHER = "a secret of the first rank", "another one, just as long"
BODY = b'{"id":"1"}'
NOW = 1_700_000_000.0


def signed(**said: str) -> dict[str, str]:
    return sign_webhook("event-1", BODY, SECRET, now=NOW) | said


def test_what_was_signed_is_known_again_and_gives_its_id() -> None:
    headers = {name.title(): value for name, value in signed().items()}

    assert verify_webhook(headers, BODY, SECRET, now=NOW) == "event-1"


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """So that a receiver in any language can use a library it has."""
    key = base64.b64encode(b"sixteen bytes or more").decode()
    headers = sign_webhook("msg", BODY, f"whsec_{key}", now=NOW)

    expected = hmac.new(b"sixteen bytes or more", b"msg.1700000000." + BODY, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(expected).decode()}"


@pytest.mark.parametrize(
    ("headers", "body", "secret", "now"),
    [
        (signed(), BODY + b" ", SECRET, NOW),
        (signed(), BODY, OTHER, NOW),
        (signed() | {"webhook-id": "event-2"}, BODY, SECRET, NOW),
        (signed() | {"webhook-timestamp": "1700000001"}, BODY, SECRET, NOW),
        (signed() | {"webhook-timestamp": "yesterday"}, BODY, SECRET, NOW),
        (signed() | {"webhook-timestamp": "１７０００００００"}, BODY, SECRET, NOW),
        (signed() | {"webhook-signature": ""}, BODY, SECRET, NOW),
        (signed() | {"webhook-signature": "v1,"}, BODY, SECRET, NOW),
        (signed() | {"webhook-signature": "v1,é"}, BODY, SECRET, NOW),
        (signed() | {"webhook-signature": "v1,\udcff"}, BODY, SECRET, NOW),
        (signed() | {"webhook-id": "\udcff"}, BODY, SECRET, NOW),
        (signed() | {"webhook-timestamp": "\udcff"}, BODY, SECRET, NOW),
        ({"webhook-id": "event-1"}, BODY, SECRET, NOW),
        (signed(), BODY, SECRET, NOW + 301),
        (signed(), BODY, SECRET, NOW - 301),
    ],
)
def test_a_forgery_a_change_and_a_replay_are_refused(
    headers: dict[str, str], body: bytes, secret: str, now: float
) -> None:
    """S19: five minutes, and not one more."""
    with pytest.raises(SignatureInvalid):
        verify_webhook(headers, body, secret, now=now)


@pytest.mark.parametrize(("tolerance", "now"), [(float("nan"), NOW), (300.0, float("nan")), (-1.0, NOW)])
def test_what_no_age_can_be_compared_with_accepts_none(tolerance: float, now: float) -> None:
    """Else a setting that was read wrong would accept whatever was ever signed."""
    with pytest.raises(SignatureInvalid):
        verify_webhook(signed(), BODY, SECRET, tolerance=tolerance, now=now)


def test_a_secret_that_is_no_text_is_refused_and_not_quoted() -> None:
    with pytest.raises(ValueError, match="no text") as refusal:
        verify_webhook(signed(), BODY, f"{SECRET}\udcff", now=NOW)

    assert "udcff" not in str(refusal.value)
    assert not isinstance(refusal.value, UnicodeError)


def test_while_keys_are_changed_both_are_good() -> None:
    headers = sign_webhook("event-1", BODY, [SECRET, OTHER], now=NOW)

    for secrets in (SECRET, OTHER, [OTHER, "a third that nobody has used"]):
        assert verify_webhook(headers, BODY, secrets, now=NOW) == "event-1"


def test_no_secret_signs_and_verifies_nothing() -> None:
    for nothing in ("", " ", [], [""]):
        with pytest.raises(ValueError, match="no secret"):
            verify_webhook(signed(), BODY, nothing, now=NOW)
