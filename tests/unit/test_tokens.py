"""Tokens: how they are written and recognized, what they may be, and how they come and go."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import json, structs

from shigoto import OptionInvalid
from shigoto.model.service import AuditEntry, FeedPosition, Token, mint_token, read_token, token_matches
from shigoto.server.tokens import create_op, revoke_op
from tests.unit.shop import Shop, opened_shop


@pytest.fixture(params=["memory", "sqlite"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    with opened_shop(str(request.param), tmp_path) as shop:
        yield shop


def create(
    shop: Shop, name: str = "web", scopes: tuple[str, ...] = ("submit",), **more: Any
) -> tuple[str, Token]:
    return shop.engine.run(create_op(shop.engine, name, scopes, actor="cli:ann@host", **more))


def audit(shop: Shop) -> list[AuditEntry]:
    return shop.engine.run(shop.engine.registry.noted())


def test_a_token_is_read_as_it_was_written() -> None:
    text, id, hash = mint_token(bytes(range(8)), bytes(range(32)))

    assert text == f"shg_{id}_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    assert (len(id), len(hash)) == (12, 32)
    assert read_token(text) == (id, hash)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shg",
        "shg_",
        "Bearer shg_aaaabbbbcccc_" + "x" * 43,
        "shg_aaaabbbbccc_" + "x" * 43,
        "shg_AAAABBBBCCCC_" + "x" * 43,
        "shg_aaaabbbbcccc_" + "x" * 42,
        "shg_aaaabbbbcccc_" + "x" * 44,
        "shg_aaaabbbbcccc_" + "x" * 42 + "=",
        "shg_aaaabbbbcccc_" + "x" * 43 + "\n",
        "shg_aaaabbbbcccc_" + "é" * 43,
    ],
)
def test_what_is_no_token_is_none(text: str) -> None:
    assert read_token(text) is None


def test_only_the_hash_of_its_own_secret_matches_and_nothing_does_where_there_is_no_token() -> None:
    _, id, hash = mint_token(bytes(8), bytes(32))
    token = Token(id=id, name="web", hash=hash, scopes=("read",))

    assert token_matches(token, hash)
    assert not token_matches(token, bytes(32))
    assert not token_matches(None, hash)
    assert not token_matches(None, bytes(32))


def test_admin_may_read_and_nothing_else_implies_anything() -> None:
    def may(*scopes: Any) -> list[str]:
        token = Token(id="", name="", hash=b"", scopes=scopes)
        return [scope for scope in ("submit", "work", "read", "admin") if token.may(scope)]

    assert may("admin") == ["read", "admin"]
    assert may("submit") == ["submit"]
    assert may("work", "read") == ["work", "read"]
    assert Token(id="", name="", hash=b"", scopes=("work",)).may("read", "work")


def test_a_place_in_the_feed_is_read_as_it_was_written_and_nothing_else_is_one() -> None:
    place = FeedPosition(1_777_982_400_000, 42, 7)

    assert str(place) == "1777982400000-42-7"
    assert FeedPosition.read(str(place)) == place
    for text in ("", "1", "1-2", "1-2-3-4", "-1-2-3", "a-b-c", "1-2-", " 1-2-3", "1-2-٣", f"1-2-{10**30}"):
        assert FeedPosition.read(text) is None


def test_a_token_is_created_with_what_was_said_and_noted_without_its_secret(shop: Shop) -> None:
    text, token = create(
        shop,
        "web",
        ("read", "submit"),
        queues=["mail", "sms", "mail"],
        tenant="acme",
        expires=timedelta(days=90),
    )

    [kept] = shop.engine.run(shop.engine.registry.tokens())
    found = read_token(text)
    assert found is not None
    assert found[0] == kept.id
    assert token_matches(kept, found[1])
    assert kept == token
    assert (kept.scopes, kept.queues, kept.tenant) == (("submit", "read"), ("mail", "sms"), "acme")
    assert (kept.created_at, kept.expires_at) == (shop.clock.now, shop.clock.now + 90 * 86_400_000)
    [entry] = audit(shop)
    assert (entry.actor, entry.action, entry.target) == ("cli:ann@host", "token.create", token.id)
    assert text.split("_", 2)[2] not in str(entry)
    assert json.decode(entry.after or "")["scopes"] == ["submit", "read"]


@pytest.mark.parametrize(
    ("name", "scopes", "more", "message"),
    [
        ("", ("read",), {}, "name"),
        (" web", ("read",), {}, "name"),
        ("a\nb", ("read",), {}, "name"),
        ("x" * 101, ("read",), {}, "name"),
        ("web\0", ("read",), {}, "name"),
        ("web", (), {}, "Name a scope"),
        ("web", ("reed",), {}, "Did you mean 'read'"),
        ("web", ("work",), {"tenant": "acme"}, "cannot be confined to a tenant"),
        ("web", ("read",), {"queues": []}, "queues"),
        ("web", ("read",), {"queues": ["Not A Name"]}, "queue"),
        ("web", ("read",), {"tenant": "x" * 101}, "tenant"),
        ("web", ("read",), {"expires": 0}, "at once"),
        ("web", ("read",), {"expires": -1}, "negative"),
    ],
)
def test_what_a_token_cannot_be(
    name: str, scopes: tuple[str, ...], more: dict[str, Any], message: str
) -> None:
    with opened_shop("memory", Path()) as shop:
        with pytest.raises(OptionInvalid, match=message):
            create(shop, name, scopes, **more)
        assert shop.engine.run(shop.engine.registry.tokens()) == []


def test_a_name_is_taken_while_its_token_is_alive(shop: Shop) -> None:
    create(shop, "web", expires=60)
    with pytest.raises(OptionInvalid, match="called 'web' already"):
        create(shop, "web")

    shop.clock.now += 60_000
    create(shop, "web")
    shop.engine.run(revoke_op(shop.engine, "web", actor="me"))
    create(shop, "web")

    assert len(shop.engine.run(shop.engine.registry.tokens())) == 3


@pytest.mark.parametrize("by", ["id", "name"])
def test_a_token_is_revoked_by_its_id_or_its_name_and_that_is_noted(shop: Shop, by: str) -> None:
    _, token = create(shop)
    create(shop, "other")

    shop.engine.run(revoke_op(shop.engine, getattr(token, by), actor="cli:bob@host"))

    alive = [
        each.name for each in shop.engine.run(shop.engine.registry.tokens()) if each.alive(shop.clock.now)
    ]
    assert alive == ["other"]
    newest = audit(shop)[0]
    assert (newest.actor, newest.action, newest.target) == ("cli:bob@host", "token.revoke", token.id)


def test_what_is_unknown_or_was_revoked_before_is_said_and_not_noted(shop: Shop) -> None:
    _, token = create(shop)
    with pytest.raises(OptionInvalid, match=r"There is no token 'wep'\. Did you mean 'web'"):
        shop.engine.run(revoke_op(shop.engine, "wep", actor="me"))
    shop.engine.run(revoke_op(shop.engine, token.id, actor="me"))
    with pytest.raises(OptionInvalid, match="was revoked before"):
        shop.engine.run(revoke_op(shop.engine, token.id, actor="me"))
    with pytest.raises(OptionInvalid, match="There is no token"):
        shop.engine.run(revoke_op(shop.engine, "web", actor="me"))

    assert [entry.action for entry in audit(shop)] == ["token.revoke", "token.create"]


def test_a_taken_id_is_drawn_again(shop: Shop) -> None:
    _, first = create(shop, "first", random=bytes)
    drawn = iter([bytes(8), bytes(32), bytes([1] * 8), bytes(32)])

    _, second = create(shop, "second", random=lambda _: next(drawn))

    assert second.id != first.id
    assert structs.replace(second, id=first.id, name="first") == first
