"""Our binary arrays mean to the server what they mean to us."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from shigoto.engine.op import Op
from shigoto.engine.postgres.address import read_address
from shigoto.engine.postgres.driver import Driver
from shigoto.engine.postgres.wire import Array, bigint_array, int_array, text_array, uuid_array
from shigoto.engine.sql.commands import SqlText
from shigoto.model.errors import OptionInvalid

pytestmark = [pytest.mark.engine("postgres"), pytest.mark.newest_postgres]

NASTY = [
    "",
    "plain",
    "NULL",
    "{}",
    '{"a",b}',
    "back\\slash",
    "quote ' and \" and ,",
    "".join(chr(code) for code in range(1, 256)),
    "日本語 😀 \u200b\ufeff\U0010ffff",
    "x" * 100_000,
]


@pytest.fixture
def driver(postgres_database: str) -> Iterator[Driver]:
    driver = Driver(read_address(postgres_database), {})
    yield driver
    driver.close()


def given_back(driver: Driver, kind: str, array: Array) -> Any:
    """What the server makes of an array: told back by the elements, and as a whole."""

    def start() -> Any:
        text = f"SELECT (SELECT array_agg(e ORDER BY n) FROM unnest($1::{kind}[]) WITH ORDINALITY u(e, n)),"
        text += f" cardinality($1::{kind}[]), $1::{kind}[]"
        return (yield SqlText(text, (array,))).fetchone()

    elements, count, whole = driver.run(Op(start=start, mode="read"))
    assert count == len(whole)
    assert (elements or []) == whole
    return whole


@pytest.mark.parametrize("numbers", [[], [7], [0, -1, 2**63 - 1, -(2**63)], list(range(2000))])
def test_bigints_arrive(driver: Driver, numbers: Sequence[int]) -> None:
    assert given_back(driver, "bigint", bigint_array(numbers)) == numbers


@pytest.mark.parametrize("numbers", [[], [7], [0, -1, 2**31 - 1, -(2**31)], list(range(2000))])
def test_ints_arrive(driver: Driver, numbers: Sequence[int]) -> None:
    assert given_back(driver, "int", int_array(numbers)) == numbers


@pytest.mark.parametrize(
    "ids", [[], [uuid4()], [UUID(int=0), UUID(int=2**128 - 1)], [uuid4() for _ in range(2000)]]
)
def test_uuids_arrive(driver: Driver, ids: Sequence[UUID]) -> None:
    assert given_back(driver, "uuid", uuid_array(ids)) == ids


@pytest.mark.parametrize(
    "texts",
    [[], ["one"], NASTY, [None], [None, "", None, "x"], ["many"] * 2000],
    ids=lambda texts: str(len(texts)),
)
def test_texts_arrive_with_every_letter_but_nul(driver: Driver, texts: Sequence[str | None]) -> None:
    assert given_back(driver, "text", text_array(texts)) == texts


def test_a_nul_in_a_text_is_explained(driver: Driver) -> None:
    with pytest.raises(OptionInvalid, match=r"U\+0000"):
        given_back(driver, "text", text_array(["a\0b"]))


def test_a_nul_in_a_single_text_is_explained_and_never_cut_off(driver: Driver) -> None:
    def start() -> Any:
        return (yield SqlText("SELECT $1::text", ("a\0b",))).fetchone()

    with pytest.raises(OptionInvalid, match=r"U\+0000"):
        driver.run(Op(start=start))


def test_all_kinds_of_single_values_arrive(driver: Driver) -> None:
    id = uuid4()
    values = (5, -(2**63), "text", None, b"\0\xff", True, False, 1.5, id, id.bytes, 1)

    def start() -> Any:
        text = (
            "SELECT $1::int, $2::bigint, $3::text, $4::text, $5::bytea, $6::int::boolean, $7::boolean,"
            " $8::float8, $9::uuid, encode($10::bytea, 'hex')::uuid, $11::smallint"
        )
        return (yield SqlText(text, values)).fetchone()

    assert driver.run(Op(start=start)) == (
        5,
        -(2**63),
        "text",
        None,
        b"\0\xff",
        True,
        False,
        1.5,
        id,
        id,
        1,
    )


def test_a_value_of_no_known_type_is_a_mistake(driver: Driver) -> None:
    def start() -> Any:
        yield SqlText("SELECT $1::text", (object(),))

    with pytest.raises(TypeError, match="object"):
        driver.run(Op(start=start))
