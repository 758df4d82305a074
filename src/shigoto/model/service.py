"""Records of the service: audit entries, tokens, and the feed of ends.

AuditEntry   one action of an operator: who, what, to which, and how it was before and after
Token        who may ask the service for what; the store has the hash of its secret, never the secret
Happening    one run or job that ended, at its `FeedPosition` in the feed: the order in which all of them did
"""

from base64 import b32encode, urlsafe_b64encode
from hashlib import sha256
from hmac import compare_digest
from re import compile as pattern
from typing import Literal
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from shigoto.model.text import fit
from shigoto.model.time import Millis

AUDIT_NAME = 1_000  # bytes of an actor, an action or a target: an index has room for no more
AUDIT_TEXT = 16 * 1024  # bytes of what was before, and of what was after
AUDIT_KEPT_FOR: Millis = 365 * 86_400_000
AUDIT_BATCH = 1_000  # entries that one sweep forgets, at most


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One action. `before` and `after` are JSON texts: states, settings and counts, never payloads."""

    number: int = 0  # by the store
    at: Millis = 0  # by the store
    actor: str  # `token:ID (name)`, `cli:user@host`, `anonymous`, `app`
    action: str  # `job.cancel`, `queue.pause`, `token.create`, …
    target: str  # an id, a queue, a schedule, or the text of the filter
    before: str | None = None
    after: str | None = None


def bounded_entry(entry: AuditEntry) -> AuditEntry:
    """The entry as every store can hold it: a long text is cut, and the cut is marked."""
    return replace(
        entry,
        actor=fit(entry.actor, AUDIT_NAME),
        action=fit(entry.action, AUDIT_NAME),
        target=fit(entry.target, AUDIT_NAME),
        before=None if entry.before is None else fit(entry.before, AUDIT_TEXT),
        after=None if entry.after is None else fit(entry.after, AUDIT_TEXT),
    )


Scope = Literal["submit", "work", "read", "admin"]  # admin implies read; nothing else implies anything
SCOPES: tuple[Scope, ...] = ("submit", "work", "read", "admin")

ID_BYTES, SECRET_BYTES = 8, 32  # of randomness that `mint_token` wants
NO_HASH = bytes(32)  # what a hash is compared with if there is no such token

_TOKEN_TEXT = pattern("shg_([a-z2-7]{12})_([A-Za-z0-9_-]{43})")


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


def mint_token(id_bytes: bytes, secret: bytes) -> tuple[str, str, bytes]:
    """A new token of random bytes, `ID_BYTES` and `SECRET_BYTES` of them: its text, its id and its hash."""
    id = b32encode(id_bytes).decode().lower()[:12]
    written = urlsafe_b64encode(secret).rstrip(b"=").decode()
    return f"shg_{id}_{written}", id, sha256(written.encode()).digest()


def read_token(text: str) -> tuple[str, bytes] | None:
    """The id of the token that this text claims to be, and the hash of its secret; None if it is no token at all."""
    found = _TOKEN_TEXT.fullmatch(text)
    return None if found is None else (found[1], sha256(found[2].encode()).digest())


def token_matches(token: Token | None, hash: bytes) -> bool:
    """Whether the hash is that of the token. It takes as long whether there is such a token or not."""
    same = compare_digest(NO_HASH if token is None else token.hash, hash)
    return same and token is not None


class FeedPosition(Struct, frozen=True, order=True, array_like=True):
    """A position in the feed: no two happenings have the same, and a later one has a greater. Its text is
    `at-number-step`.

    `number` is that of the job. `step` is twice the token of the run, and one more if it was the end of the job.
    """

    at: Millis
    number: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"{self.at}-{self.number}-{self.step}"

    @classmethod
    def read(cls, text: str) -> "FeedPosition | None":
        """The position that a text names, None if it names none."""
        parts = text.split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
            return None
        return cls(*map(int, parts))


class Happening(Struct, frozen=True, kw_only=True):
    """One end. If it is `final`, that of a job, and `outcome` is its state; else that of a run which did not complete,
    after which the job goes on, and `outcome` is that of the attempt."""

    place: FeedPosition
    final: bool
    outcome: str
    id: UUID
    task: str
    queue: str
    tenant: str
    failure_kind: str | None = None
