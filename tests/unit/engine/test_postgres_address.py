"""What may stand in the address of a PostgreSQL store."""

import subprocess
import sys

import pytest

from shigoto.engine.postgres.address import read_address
from shigoto.model.errors import StoreRefused

PLAIN = "postgresql://app@db.example/jobs"


def test_an_address_without_parameters_has_deadlines_for_the_connection_and_our_schema() -> None:
    settings = read_address(PLAIN)

    assert settings.schema == "shigoto"
    assert settings.prepare is None
    assert settings.parameters["host"] == "db.example"
    assert settings.parameters["dbname"] == "jobs"
    assert int(settings.parameters["connect_timeout"]) == 10
    assert int(settings.parameters["tcp_user_timeout"]) > 0
    assert settings.parameters["keepalives"] == "1"
    assert settings.listen_parameters == settings.parameters


def test_both_spellings_of_the_scheme_are_fine() -> None:
    assert read_address("postgres://app@db.example/jobs").parameters["user"] == "app"


def test_what_libpq_knows_goes_to_libpq_and_wins_over_our_defaults() -> None:
    settings = read_address(f"{PLAIN}?sslmode=require&connect_timeout=3&target_session_attrs=read-write")

    assert settings.parameters["sslmode"] == "require"
    assert settings.parameters["connect_timeout"] == "3"
    assert settings.parameters["target_session_attrs"] == "read-write"


def test_several_hosts_and_a_password_with_odd_letters_reach_libpq() -> None:
    settings = read_address("postgresql://app:a%40b%2Fc%3F@one:5432,two:5433/jobs?schema=mine")

    assert settings.parameters["host"] == "one,two"
    assert settings.parameters["port"] == "5432,5433"
    assert settings.parameters["password"] == "a@b/c?"


def test_our_parameters_are_taken_out() -> None:
    settings = read_address(f"{PLAIN}?schema=mine&prepare=on&sslmode=require&pool=5&listen=off")

    assert settings.schema == "mine"
    assert settings.prepare is True
    assert settings.listen_parameters is None
    assert (settings.in_threads, settings.on_a_loop) == (5, 5)
    assert not {"schema", "prepare", "pool", "listen"} & set(settings.parameters)


def test_the_second_address_is_for_listening_alone() -> None:
    settings = read_address(f"{PLAIN}?listen=postgresql%3A%2F%2Fapp%3Ahush%40direct%3A5433%2Fjobs")

    assert settings.listen_parameters is not None
    assert settings.listen_parameters["host"] == "direct"
    assert settings.listen_parameters["password"] == "hush"
    assert settings.parameters["host"] == "db.example"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"{PLAIN}?shema=mine", "Did you mean 'schema'"),
        (f"{PLAIN}?preapre=on", "Did you mean 'prepare'"),
        (f"{PLAIN}?sslmod=require", "Did you mean 'sslmode'"),
        (f"{PLAIN}?prepare=yes", "must be 'on' or 'off'"),
        (f"{PLAIN}?pool=0", "from 1 to 1000"),
        (f"{PLAIN}?pool=many", "from 1 to 1000"),
        (f"{PLAIN}?pool=²", "from 1 to 1000"),
        (f"{PLAIN}?schema=a&schema=b", "twice"),
        (f"{PLAIN}?listen=mysql%3A%2F%2Fx", "not the address of a PostgreSQL database"),
        (f"{PLAIN}?listen=postgresql%3A%2F%2Fx%2Fy%3Fschema%3Dz", "must say"),
        ("mysql://app@db.example/jobs", "not the address of a PostgreSQL database"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_hint(url: str, words: str) -> None:
    with pytest.raises(StoreRefused, match=words):
        read_address(url)


@pytest.mark.parametrize(
    "schema", ["", "Mine", "1st", "a-b", "a.b", 'a"b', "a;b", "pg_mine", "x" * 64, "ä", "a%0a", "mine "]
)
def test_a_schema_is_a_plain_name(schema: str) -> None:
    with pytest.raises(StoreRefused, match="cannot be the schema"):
        read_address(f"{PLAIN}?schema={schema}")


def test_a_schema_may_have_63_letters() -> None:
    assert read_address(f"{PLAIN}?schema={'x' * 63}").schema == "x" * 63


def test_secrets_are_never_shown() -> None:
    url = (
        "postgresql://app:hush@db.example/jobs?sslpassword=hush&schema=mine"
        "&listen=postgresql%3A%2F%2Fapp%3Ahush%40direct%2Fjobs"
    )
    settings = read_address(url)

    assert "hush" not in settings.shown
    assert "hush" not in repr(settings)
    assert "hush" not in str(settings)
    assert "schema=mine" in settings.shown
    assert "db.example" in settings.shown


def test_secrets_are_not_in_the_error_about_an_address() -> None:
    with pytest.raises(StoreRefused) as caught:
        read_address("postgresql://app:hu%sh@db.example/jobs")

    assert "hu%sh" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_psycopg_is_explained() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from shigoto.engine.open import open_engine\n"
        "from shigoto.model.errors import StoreRefused\n"
        "try: open_engine('postgresql://app@db.example/jobs')\n"
        "except StoreRefused as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert 'pip install "shigoto[postgres]"' in done.stdout
