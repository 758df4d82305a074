"""Making and revoking the tokens of the service.

Each of these is noted in the audit, in the same transaction.
"""

import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta

from msgspec import json, structs

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.errors import OptionInvalid, nearest
from shigoto.model.service import (
    ID_BYTES,
    SCOPES,
    SECRET_BYTES,
    AuditEntry,
    FeedPosition,
    Scope,
    Token,
    mint_token,
)
from shigoto.model.text import shown
from shigoto.model.time import Millis, milliseconds
from shigoto.options import MAX_TENANT, check_name, text

MAX_NAME = 100  # bytes
MOST_QUEUES = 100

Random = Callable[[int], bytes]


def create_op(
    engine: Engine,
    name: str,
    scopes: Sequence[str],
    *,
    queues: Sequence[str] | None = None,
    tenant: str | None = None,
    expires: timedelta | float | None = None,
    actor: str,
    random: Random = secrets.token_bytes,
) -> Op[tuple[str, Token]]:
    """Make a token: its text, which nobody can read again, and what is kept of it.

    Raises OptionInvalid, also if a token of this name is alive.
    """
    wanted = Token(
        id="",
        name=_name(name),
        hash=b"",
        scopes=_scopes(scopes),
        queues=_queues(queues),
        tenant=None if tenant is None else text("tenant", tenant, MAX_TENANT),
    )
    if wanted.tenant is not None and "work" in wanted.scopes:
        raise OptionInvalid(
            "A token with the scope work cannot be confined to a tenant: workers take the jobs of all. Name queues."
        )
    lives = None if expires is None else _length(expires)

    def steps() -> Steps[tuple[str, Token]]:
        known = yield from engine.registry.tokens().start()
        now = yield from _now(engine)
        if any(each.name == wanted.name and each.alive(now) for each in known):
            raise OptionInvalid(
                f"There is a token called {wanted.name!r} already. Revoke it first, or choose another name."
            )
        expires_at = None if lives is None else now + lives
        while True:
            written, id, hash = mint_token(random(ID_BYTES), random(SECRET_BYTES))
            token = structs.replace(wanted, id=id, hash=hash, created_at=now, expires_at=expires_at)
            if (yield from engine.registry.add_token(token).start()):
                break
        yield from engine.registry.note([_entry(token, "token.create", actor, after=_said(token))]).start()
        return written, token

    return Op(start=steps)


def revoke_op(engine: Engine, word: str, *, actor: str) -> Op[Token]:
    """End a token, by its id or by the name of one that is alive. Raises OptionInvalid if there is none."""

    def steps() -> Steps[Token]:
        known = yield from engine.registry.tokens().start()
        now = yield from _now(engine)
        token = next((each for each in known if word == each.id), None) or next(
            (each for each in known if word == each.name and each.alive(now)), None
        )
        if token is None:
            names = {each.name for each in known if each.alive(now)}
            raise OptionInvalid(f"There is no token {shown(word)}.{nearest(word, names)}")
        if not (yield from engine.registry.revoke_token(token.id).start()):
            raise OptionInvalid(f"Token {token.id} ({token.name}) was revoked before.")
        entry = _entry(token, "token.revoke", actor, before=_said(token))
        yield from engine.registry.note([entry]).start()
        return token

    return Op(start=steps)


def _now(engine: Engine) -> Steps[Millis]:
    _, now = yield from engine.registry.happened(FeedPosition(0), 0, 0).start()
    return now


def _entry(
    token: Token, action: str, actor: str, *, before: str | None = None, after: str | None = None
) -> AuditEntry:
    return AuditEntry(actor=actor, action=action, target=token.id, before=before, after=after)


def _said(token: Token) -> str:
    """What a token may do, without what it is recognized by."""
    told = {name: getattr(token, name) for name in ("name", "scopes", "queues", "tenant", "expires_at")}
    return json.encode(told).decode()


def _name(name: object) -> str:
    plain = text("The name of a token", name, MAX_NAME)
    if not plain.strip() or plain != plain.strip() or not plain.isprintable():
        raise OptionInvalid(f"The name of a token must be a word or a few, not {shown(name)}.")
    return plain


def _scopes(scopes: Sequence[str]) -> tuple[Scope, ...]:
    for scope in scopes:
        if scope not in SCOPES:
            raise OptionInvalid(
                f"There is no scope {shown(scope)}.{nearest(str(scope), SCOPES)} Scopes are {', '.join(SCOPES)}."
            )
    if not scopes:
        raise OptionInvalid(f"What may the token do? Name a scope: {', '.join(SCOPES)}.")
    return tuple(scope for scope in SCOPES if scope in scopes)


def _queues(queues: Sequence[str] | None) -> tuple[str, ...] | None:
    if queues is None:
        return None
    if not 1 <= len(queues) <= MOST_QUEUES:
        raise OptionInvalid(f"A token is for 1 to {MOST_QUEUES} queues, or for all of them.")
    return tuple(dict.fromkeys(check_name(queue, "The queue") for queue in queues))


def _length(expires: timedelta | float) -> Millis:
    length = milliseconds(expires, "The time until a token expires")
    if not length:
        raise OptionInvalid("A token that expires at once is of no use.")
    return length
