"""Results are stored as JSON and read as the return annotation says."""

import math
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from shigoto.model.errors import ResultInvalid
from tests.unit.codec.codec_samples import CYCLE, Blind, Cat, Dog, Item, returning, signature


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 3),
        (list[Item], [Item(1)]),
        (Cat | Dog, Dog([])),
        (datetime | None, None),
        (Any, [1, {"a": 2}]),
        (Decimal, Decimal("0.1")),
        (Path, Path("a")),
        (tuple[int, str], (1, "a")),
    ],
)
def test_a_result_is_read_as_its_return_annotation(annotation: Any, value: object) -> None:
    """S0-74: the same holds for results."""
    task = returning(annotation)

    assert task.decode_result(task.encode_result(value)) == value


def test_an_async_function_returns_what_it_is_annotated_with() -> None:
    async def give() -> set[int]:
        return {1}

    task = signature(give)

    assert task.decode_result(task.encode_result({1})) == {1}


def test_without_return_annotation_the_result_is_plain_json() -> None:
    task = returning(None)

    assert task.decode_result(task.encode_result((1, date(2026, 1, 2)))) == [1, "2026-01-02"]


@pytest.mark.parametrize(("annotation", "value"), [(int, True), (list[float], [False]), (Item, Item(True))])
def test_a_bool_may_be_returned_as_a_number(annotation: Any, value: object) -> None:
    task = returning(annotation)

    assert task.decode_result(task.encode_result(value)) == value


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (None, object(), "the result cannot be stored: object cannot be written as JSON"),
        (None, [1, math.nan], "the result[1] cannot be stored: nan has no form in JSON"),
        (float | None, math.inf, "the result cannot be stored: inf has no form"),
        (Blind, Blind(math.nan), "the result.seen cannot be stored: nan"),
        (None, CYCLE, "cannot be stored: nested too deeply, or a value that contains itself"),
        (str, "\ud800", "the result cannot be stored: the text has a lone surrogate"),
        (str, "x" * 2_000_000, "the result cannot be stored: 2,000,002 bytes of JSON are over the limit"),
    ],
)
def test_a_result_that_cannot_be_stored_is_refused(annotation: Any, value: object, complaint: str) -> None:
    with pytest.raises(ResultInvalid) as refusal:
        returning(annotation).encode_result(value)

    assert complaint in str(refusal.value)
    assert str(refusal.value).startswith("task 'give': the result")
    assert refusal.value.code == "JOB.RESULT_INVALID"


def test_a_result_that_contradicts_its_annotation_is_stored_and_fails_when_read() -> None:
    task = returning(int)

    text = task.encode_result({"a": "b"})

    assert text == '{"a":"b"}'
    with pytest.raises(ResultInvalid, match="does not fit the return annotation: expected int, got object"):
        task.decode_result(text)
