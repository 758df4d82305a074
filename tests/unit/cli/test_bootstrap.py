"""The SQL of `shigoto sql bootstrap`: what is asked for is in it, names stay names, and no password is."""

import base64
import hmac
import json
from pathlib import Path

import pytest

from shigoto.cli.sql import ITERATIONS, identifier, literal, verifier
from tests.unit.commands import Command

NAMES = ("--database", "shop", "--schema", "shigoto", "--migrator", "keeper", "--runtime", "hand")


def test_names_and_texts_are_quoted() -> None:
    """S3-71: nothing in a parameter is obeyed."""
    assert identifier('we"ird; --') == '"we""ird; --"'
    assert literal("it's") == "'it''s'"
    assert literal("back\\slash'") == " E'back\\\\slash'''"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("a\nb", "nobody can see"),
        ("a\0b", "nobody can see"),
        ("x" * 64, "63 bytes"),
        ("$do$", "meaning"),
    ],
)
def test_what_cannot_be_a_name_is_refused(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        identifier(name)


def test_a_verifier_is_the_one_of_the_standard() -> None:
    """The example of RFC 7677: with the key of this password the server signs this conversation so."""
    made = verifier("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="))

    assert made.startswith(f"SCRAM-SHA-256${ITERATIONS}:W22ZaJ0SNY7soEsUEjb6gQ==$")
    server_key = base64.b64decode(made.rpartition(":")[2])
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    said = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}"
    signature = base64.b64encode(hmac.digest(server_key, said.encode(), "sha256"))
    assert signature == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert "pencil" not in made


@pytest.mark.parametrize("password", ["", "naïve", "a\tb"])
def test_a_password_that_programs_could_understand_differently_is_refused(password: str) -> None:
    with pytest.raises(ValueError, match=r"empty|ASCII"):
        verifier(password, b"salt")


def test_nothing_has_a_default_that_names_something(shigoto: Command) -> None:
    """S3-71: neither roles nor database nor schema nor passwords are assumed."""
    for place in range(0, len(NAMES), 2):
        left = NAMES[:place] + NAMES[place + 2 :]
        outcome = shigoto("sql", "bootstrap", *left)
        assert outcome.code == 2
        assert f"Missing option '{NAMES[place]}'" in outcome.err

    outcome = shigoto("sql", "bootstrap", *NAMES)
    assert outcome.code == 0
    assert " PASSWORD " not in outcome.out
    assert 'CREATE ROLE "keeper" LOGIN' in outcome.out


def test_a_password_comes_from_a_variable_or_a_file(
    shigoto: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KEEPER", "open sesame")
    (tmp_path / "hand").write_text("hunter2\nmore\n")

    outcome = shigoto(
        "sql", "bootstrap", *NAMES, "--migrator-password-env", "KEEPER", "--runtime-password-file", "hand"
    )
    assert outcome.code == 0
    assert outcome.out.count("SCRAM-SHA-256$") == 2
    assert "open sesame" not in outcome.out
    assert "hunter2" not in outcome.out

    twice = shigoto(
        "sql", "bootstrap", *NAMES, "--runtime-password-env", "KEEPER", "--runtime-password-file", "hand"
    )
    assert (twice.code, "in two places" in twice.err) == (2, True)
    absent = shigoto("sql", "bootstrap", *NAMES, "--runtime-password-env", "ABSENT")
    assert (absent.code, "no variable ABSENT" in absent.err) == (2, True)
    (tmp_path / "hand").write_text("näive\n")
    odd = shigoto("sql", "bootstrap", *NAMES, "--runtime-password-file", "hand")
    assert (odd.code, "ASCII" in odd.err, "näive" in odd.err) == (2, True, False)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--runtime", "keeper"), "the same role"),
        (("--tables", "public"), "go together"),
        (("--tables-of", "public"), "go together"),
        (("--schema", "My Schema"), "cannot be the schema of a store"),
        (("--schema", "pg_x"), "cannot be the schema of a store"),
        (("--database", "a\nb"), "cannot be a name"),
        (("--lock-timeout", "-1"), "not in the range"),
        (("--lock-timeout", "nan"), "no number"),
    ],
)
def test_what_cannot_be_meant_is_refused(shigoto: Command, words: tuple[str, ...], text: str) -> None:
    outcome = shigoto("sql", "bootstrap", *NAMES, *words)

    assert outcome.code != 0
    assert text in outcome.err
    assert outcome.out == ""


def test_timeouts_and_tables_can_be_chosen(shigoto: Command) -> None:
    outcome = shigoto(
        "sql", "bootstrap", *NAMES, "--statement-timeout", "0", "--lock-timeout", "2.5",
        "--tables", "public", "--tables", "sales", "--tables-of", "owner",
    )  # fmt: skip

    assert "SET statement_timeout = '0ms'" in outcome.out
    assert "SET lock_timeout = '2500ms'" in outcome.out
    for schema in ("public", "sales"):
        assert f'ALTER DEFAULT PRIVILEGES FOR ROLE "owner" IN SCHEMA "{schema}"' in outcome.out


def test_an_error_can_be_read_by_programs(shigoto: Command) -> None:
    outcome = shigoto("sql", "nonsense", "--json")

    assert outcome.code == 2
    assert json.loads(outcome.err)["error"]["code"] == "CLI.USAGE"
