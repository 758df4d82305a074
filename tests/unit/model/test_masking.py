"""What is left out wherever arguments, results and errors are shown."""

import asyncio
import logging
from io import StringIO
from typing import Literal, NewType

import pytest
from msgspec import Struct, json
from typing_extensions import TypeAliasType

from shigoto import PayloadInvalid, Secret, Shigoto
from shigoto.model import secrets
from shigoto.model.secrets import (
    hider,
    is_masked,
    marked,
    masked,
    masked_payload,
    scrubbed,
    secrets_in,
    without_mark,
)
from shigoto.observe.log import configure_logging
from shigoto.server.task_catalog import parameters_of
from shigoto.worker import Worker


@pytest.mark.parametrize(
    "name",
    ["password", "PASSWORD", "dbPassword", "api-key", "apiKey", "access_token", "Authorization", "client_secret",
     "private_key", "set-cookie", "credentials", "database_dsn"],
)  # fmt: skip
def test_s22_what_is_called_like_a_secret_is_left_out_at_any_depth(name: str) -> None:
    written = json.encode({"user": {"list": [{name: "canary", "n": 1}]}}).decode()

    assert json.decode(masked(written)) == {"user": {"list": [{name: "***", "n": 1}]}}


@pytest.mark.parametrize("name", ["token_id", "max_tokens", "token_count", "name", "monkey", "author"])
def test_what_only_looks_so_is_shown(name: str) -> None:
    written = json.encode({name: "shown"}).decode()

    assert masked(written) is written


def test_what_is_not_there_is_not_hidden() -> None:
    assert masked('{"token":null}') == '{"token":null}'


def test_texts_that_are_no_json_or_no_object_are_shown_as_they_are() -> None:
    for written in ("", "{", "[1,2]", '"password"', "7", "null", "[" * 5_000):
        assert masked(written) == written


def test_numbers_keep_their_digits_if_nothing_is_hidden() -> None:
    written = '{"n":1.10,"big":123456789012345678901234567890}'

    assert masked(written) == written


def test_secret_parameters_are_known_without_the_code_that_declares_them() -> None:
    """They are named in the job's meta, which its owner does not see."""
    meta = marked('{"trace":"x"}', ["pin"])

    assert secrets_in(meta) == {"pin"}
    assert without_mark(meta) == '{"trace":"x"}'
    assert without_mark(marked(None, ["pin"])) is None
    assert masked_payload('{"pin":1234,"n":1}', meta) == '{"pin":"***","n":1}'
    assert secrets_in('{"$secret":7}') == secrets_in("no json $secret") == frozenset()


def test_rules_can_be_added_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secrets.REDACT_VARIABLE, "*iban*, !session_token")
    secrets.rules.cache_clear()
    secrets.hides.cache_clear()
    try:
        shown = masked('{"iban":"DE","session_token":"s","password":"p"}')
    finally:
        monkeypatch.undo()
        secrets.rules.cache_clear()
        secrets.hides.cache_clear()

    assert shown == '{"iban":"***","session_token":"s","password":"***"}'


@pytest.mark.parametrize(
    "text",
    [
        "cannot connect to postgresql://shop:canary@db:5432/shop now",
        "cannot connect to postgresql://shop:can@ary/canary@db:5432/shop now",
        "redis://:canary@host/0",
        "https://example.org/?access_token=canary&page=2",
        "Authorization: Bearer canary-12345",
        "{'Authorization': 'Basic Y2FuYXJ5OmNhbmFyeQ==canary'}",
        "host=db password=canary user=shop",
        "{'password': 'canary', 'n': 1}",
        '{"api_key": "canary"}',
        "Cookie: session=canary; other=canary",
        "client_secret: canary",
        "PGPASSWORD=canary psql",
        "Authorization: Token canary12345",
        "Authorization: canary",
        "{'Authorization': 'Token canary12345'}",
        "{'password': 'it\\'s canary', 'n': 1}",
        'password = "a \\" canary"',
    ],
)
def test_s22_what_looks_like_a_secret_is_left_out_of_texts(text: str) -> None:
    assert "canary" not in scrubbed(text)
    assert "***" in scrubbed(text)


@pytest.mark.parametrize(
    "text",
    ["KeyError: 'token'", "the key is missing: foo", "http://example.org/path: 5 @ home", "basic auth failed",
     "passed: 5 tests", "a password is needed", "compass: north", "max_tokens: 5", "https://example.org/a?page=2"],
)  # fmt: skip
def test_ordinary_texts_stay_as_they_are(text: str) -> None:
    assert scrubbed(text) == text


def test_what_is_masked_is_known_to_be() -> None:
    payload, meta = '{"user":"ada","pin":"4711","deep":[{"password":"x"}]}', marked(None, ["pin"])

    assert not is_masked(payload, meta)
    assert is_masked(masked_payload(payload, meta), meta)
    assert is_masked('{"deep":[{"password":"***"}]}', None)
    assert not is_masked('{"stars":"***"}', meta)
    assert not is_masked("*** no json", meta)


def test_values_are_found_in_all_their_forms() -> None:
    value = 'p@ss "wörd" \\ \n&=?'
    payload = json.encode({"secret": {"deep": [value, 123456]}, "other": "shown"}).decode()
    hide = hider(payload, ["secret"])

    assert hide is not None
    from urllib.parse import quote, quote_plus

    for form in (value, repr(value), json.encode(value).decode(), quote(value), quote_plus(value), "123456"):
        assert hide(f"<{form}> shown").replace("'", "").replace('"', "") == "<***> shown"


MORE = {"canary-key": 7}
Pin = NewType("Pin", Secret[str])
Alias = TypeAliasType("Alias", list[Secret[str]])
Harmless = NewType("Harmless", str)


class Card(Struct):
    number: Secret[str]
    owner: "Owner | None" = None


class Owner(Struct):
    name: str
    cards: list[Card] = []


class Plain(Struct):
    name: str
    again: "Plain | None" = None


def test_what_is_too_short_to_be_told_apart_is_not_looked_for() -> None:
    assert hider('{"pin":"abc"}', ["pin"]) is None
    assert hider('{"pin":null}', ["pin"]) is None
    assert hider("no json", ["pin"]) is None
    assert hider("[1]", ["pin"]) is None


class TestSecretParameters:
    """`Secret[T]`: callers pass plain values, and nobody else sees them."""

    def app(self) -> Shigoto:
        app = Shigoto("memory:")

        @app.task
        def login(user: str, pin: Secret[str], code: Secret[int] = 4711) -> None: ...

        return app

    def test_the_schema_says_so_and_has_no_default_of_it(self) -> None:
        schema = self.app().tasks["login"].schema()["arguments"]

        assert schema["properties"]["pin"] == {"type": "string", "format": "password", "writeOnly": True}
        assert schema["properties"]["code"] == {"type": "integer", "writeOnly": True}
        assert schema["required"] == ["user", "pin"]

    def test_a_field_makes_the_whole_parameter_secret(self) -> None:
        app = Shigoto("memory:")

        @app.task
        def pay(
            card: Card, cards: dict[str, list[Owner]] | None = None, plain: Plain | None = None
        ) -> None: ...

        assert pay.signature.arguments.secrets == {"card", "cards"}

    def test_a_name_for_a_secret_is_one(self) -> None:
        app = Shigoto("memory:")

        @app.task
        def pay(a: Pin, b: list[Pin], c: Alias, d: Harmless) -> None: ...

        assert pay.signature.arguments.secrets == {"a", "b", "c"}

    def test_a_default_is_taken_out_of_what_a_run_says(self) -> None:
        app = Shigoto("memory:")

        @app.task(retries=0)
        def log_in(
            user: str, password: Secret[str] = "canary-default", more: Secret[dict[str, int]] = MORE
        ) -> None:
            raise PermissionError(f"{user} is not known with {password} and {more}")

        handle = log_in.enqueue("ada")
        asyncio.run(Worker(app, drain=True).run())

        assert handle.job().error == "PermissionError: ada is not known with *** and {'***': 7}"

    def test_the_catalogue_has_no_default_of_it(self) -> None:
        told = {each.name: each.default for each in parameters_of(self.app().tasks["login"])}

        assert told["code"] == "***"

    def test_errors_do_not_quote_it(self) -> None:
        task = self.app().tasks["login"]

        for arguments in (("ada", ["canary"]), ("ada", "x", "canary"), ("ada", "x\ud800canary")):
            with pytest.raises(PayloadInvalid) as caught:
                task.enqueue(*arguments)
            import traceback

            told = "".join(traceback.format_exception(caught.value, limit=0))
            assert "canary" not in told
        with pytest.raises(PayloadInvalid) as caught:
            task.call_with({"user": "ada", "pin": {"deep": "canary"}})
        assert "canary" not in str(caught.value)

    def test_other_errors_still_say_what_is_wrong(self) -> None:
        with pytest.raises(PayloadInvalid, match=r"argument 'user'"):
            self.app().tasks["login"].enqueue(7, "x")
        with pytest.raises(PayloadInvalid, match=r"argument 'pin' is missing"):
            self.app().tasks["login"].enqueue("ada")

    def test_the_owner_of_meta_does_not_see_the_mark(self) -> None:
        app = Shigoto("memory:")
        seen = list[object]()

        @app.task
        def login(pin: Secret[str]) -> None:
            from shigoto import current

            seen.append(current().meta)

        with app.test() as jobs:
            login.using(meta={"trace": "x"}).enqueue("1234")
            jobs.run_all()

        assert seen == [{"trace": "x"}]


@pytest.mark.parametrize("format", ["text", "json"])
def test_s22_warnings_of_libraries_are_scrubbed_in_our_log(format: Literal["text", "json"]) -> None:
    """Also where quotes stand around a secret, which are quoted once more; and every line stays what it is."""
    stream = StringIO()
    configure_logging(format=format, stream=stream)
    library = logging.getLogger("some.library")

    library.warning("no route to %s", "postgresql://shop:canary@db/shop")
    library.warning('refused: {"password": "canary"}, and "token=canary"')
    library.warning("refused", extra={"shigoto": {"error": 'Refused: "Cookie: canary"'}})
    try:
        raise ValueError('"password=canary"')
    except ValueError:
        library.exception("failed")

    assert "canary" not in stream.getvalue()
    assert "postgresql://shop:***@db/shop" in stream.getvalue()
    if format == "json":
        lines = [json.decode(line) for line in stream.getvalue().splitlines()]
        assert [line["message"] for line in lines][-2:] == ["refused", "failed"]
        assert lines[1]["message"] == 'refused: {"password": ***}, and "token=***"'
        assert lines[2]["error"] == 'Refused: "Cookie: ***"'
