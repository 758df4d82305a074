"""A token: who may ask the service for what. The store has the hash of its secret, never the secret."""

from base64 import b32encode, urlsafe_b64encode
from hashlib import sha256
from hmac import compare_digest
from re import compile as pattern
from typing import Literal

from msgspec import Struct

from shigoto.model.clock import Millis

Scope = Literal["submit", "work", "read", "admin"]  # admin implies read; nothing else implies anything
SCOPES: tuple[Scope, ...] = ("submit", "work", "read", "admin")

ID_BYTES, SECRET_BYTES = 8, 32  # of randomness that `mint` wants
NOTHING = bytes(32)  # what a hash is compared with if there is no such token

_TEXT = pattern("shg_([a-z2-7]{12})_([A-Za-z0-9_-]{43})")


class Token(Struct, frozen=True, kw_only=True):
    """What a token is and may do. One with `queues` or a `tenant` sees and touches nothing else."""

    id: str  # public: logs and the audit call it `token:ID`
    name: str  # for people
    hash: bytes  # of the secret: SHA-256
    scopes: tuple[Scope, ...]
    queues: tuple[str, ...] | None = None  # None: all
    tenant: str | None = None  # None: all; "" is the tenant of jobs that have none
    created_at: Millis = 0  # by the store
    expires_at: Millis | None = None
    revoked_at: Millis | None = None

    def alive(self, now: Millis) -> bool:
        """Whether it opens anything at this instant."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def may(self, *scopes: Scope) -> bool:
        """Whether it has one of the scopes, by name or because another implies it."""
        return any(scope in self.scopes or (scope == "read" and "admin" in self.scopes) for scope in scopes)


def mint(id_bytes: bytes, secret: bytes) -> tuple[str, str, bytes]:
    """A new token of random bytes, `ID_BYTES` and `SECRET_BYTES` of them: its text, its id and its hash."""
    id = b32encode(id_bytes).decode().lower()[:12]
    written = urlsafe_b64encode(secret).rstrip(b"=").decode()
    return f"shg_{id}_{written}", id, sha256(written.encode()).digest()


def read(text: str) -> tuple[str, bytes] | None:
    """The id of the token that this text claims to be, and the hash of its secret; None if it is no token at all."""
    found = _TEXT.fullmatch(text)
    return None if found is None else (found[1], sha256(found[2].encode()).digest())


def matches(token: Token | None, hash: bytes) -> bool:
    """Whether the hash is that of the token. It takes as long whether there is such a token or not."""
    same = compare_digest(NOTHING if token is None else token.hash, hash)
    return same and token is not None
