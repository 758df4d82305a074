"""Arguments that would not arrive are refused where they are given, with the place and a remedy."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shigoto.codec import JSON
from shigoto.model.errors import PayloadInvalid
from tests.unit.codec.codec_samples import (
    AN_ID,
    CYCLE,
    WRONG,
    Blind,
    Cat,
    Colour,
    Dog,
    Item,
    Level,
    Moody,
    Node,
    Point,
    Row,
    send,
    signature,
    taking,
)

BYTES: Any = b"x"

ANNOTATIONS: list[Any] = [
    int,
    float | None,
    str,
    Any,
    dict[str, Any],
    list[Item],
    Node,
    Cat | Dog,
    JSON,
    Colour,
]


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ((), {"items": []}, "argument 'to' is missing"),
        (("a", [], 1.0, True), {}, "4 arguments were given by position, at most 3 are taken"),
        (("a", []), {"to": "b"}, "argument 'to' was given twice, by position and by name"),
        (("a", []), {"urgnet": True}, "there is no parameter 'urgnet'. Did you mean 'urgent'?"),
        (("a", []), {"ctx": None}, "there is no parameter 'ctx'."),
    ],
)
def test_a_call_that_does_not_bind_is_refused_and_shows_the_signature(
    args: tuple[object, ...], kwargs: dict[str, object], complaint: str
) -> None:
    """S3-12: the run-time validator rejects what a type checker would."""
    with pytest.raises(PayloadInvalid) as refusal:
        signature(send).encode(args, kwargs)

    assert str(refusal.value).startswith(f"task 'send': {complaint}")
    assert str(refusal.value).endswith(
        "The signature is "
        "send(to: str, items: list[Item], ratio: float = ..., *, name: Any = ..., urgent: bool = ...)."
    )
    assert refusal.value.code == "JOB.PAYLOAD_INVALID"


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (int, "1", "argument 'value': expected int, got str"),
        (int, 1.0, "argument 'value': expected int, got float"),
        (str, None, "argument 'value': expected str, got None"),
        (list[Item], [Item(1), Item(WRONG)], "argument 'value[1].price': expected int, got str"),
        (list[Item], [{"price": 1}], "argument 'value[0]': expected Item, got dict"),
        (dict[int, int], {"a": 1}, "argument 'value': the key 'a': expected int, got str"),
        (Colour, "red", "argument 'value': expected Colour, got str"),
        (Literal["a"], "b", "argument 'value': invalid enum value 'b'"),
        (tuple[int, Any], {-3: WRONG}, "argument 'value': expected tuple, got dict"),
        (tuple[int, int], (1,), "argument 'value': expected array of length 2"),
        (UUID, str(AN_ID), "argument 'value': expected UUID, got str"),
        (datetime, "2026-01-02T00:00:00Z", "argument 'value': expected datetime, got str"),
        (IPv4Address, 5, "argument 'value': expected IPv4Address, got int"),
        (IPv4Address, "10.0.0.1", "argument 'value': expected IPv4Address, got str"),
        (Annotated[int, msgspec.Meta(ge=0)], -1, "argument 'value': expected int >= 0"),
        (Row, {"name": 3}, "argument 'value.name': expected str, got int"),
        (bool, 1, "argument 'value': expected bool, got int"),
        (Literal[1], True, "argument 'value': expected int, got bool"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_the_path_to_it(
    annotation: Any, value: object, complaint: str
) -> None:
    """S3-12: payload types are checked against the annotations at enqueue."""
    with pytest.raises(PayloadInvalid) as refusal:
        taking(annotation).encode((value,), {})

    assert str(refusal.value) == f"task 'take': {complaint}."


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (str, b"ab", "'value': expected str, got bytes"),
        (str, AN_ID, "'value': expected str, got UUID"),
        (str, Decimal("1.5"), "'value': expected str, got Decimal"),
        (str, datetime.now(UTC), "'value': expected str, got datetime"),
        (str, Colour.RED, "'value': expected str, got Colour"),
        (str, Path("a"), "'value': expected str, got PosixPath"),
        (str | None, AN_ID, "'value': expected str | None, got UUID"),
        (str | int, [1], "'value': expected str | int, got list"),
        (bytes, "QUJD", "'value': expected bytes, got str"),
        (int, Decimal(1), "'value': expected int, got Decimal"),
        (float, Decimal("1.5"), "'value': expected float, got Decimal"),
        (float, "1.5", "'value': expected float, got str"),
        (datetime, 1, "'value': expected datetime, got int"),
        (datetime, date(2026, 1, 2), "'value': expected datetime, got date"),
        (timedelta, "P1D", "'value': expected timedelta, got str"),
        (Decimal, 1.5, "'value': expected Decimal, got float"),
        (Decimal, 1.1, "'value': expected Decimal, got float"),
        (Decimal, "1.5", "'value': expected Decimal, got str"),
        (list[Decimal], [Decimal(1), 1.5], "'value[1]': expected Decimal, got float"),
        (list[int], (1, 2), "'value': expected list, got tuple"),
        (list[int], {1, 2}, "'value': expected list, got set"),
        (list[int], (each for each in [1]), "'value': expected list, got generator"),
        (Sequence[int], {1}, "'value': expected list, got set"),
        (set[int], [1, 2], "'value': expected set, got list"),
        (tuple[int, int], [1, 2], "'value': expected tuple, got list"),
        (Point, [1, 2.0], "'value': expected Point, got list"),
        (dict[str, int], {1: 1}, "'value': the key 1: expected str, got int"),
        (dict[int, int], {"1": 1}, "'value': the key '1': expected int, got str"),
        (dict, {1: 1}, "'value': the key 1 would arrive as a str"),
        (dict[str, Any], {1: 1}, "'value': the key 1: expected str, got int"),
        (Literal["YQ=="], b"a", "'value': expected one of 'YQ==', got bytes"),
        (Item, {"price": 1}, "'value': expected Item, got dict"),
        (list[Item], [Item(1, note=BYTES)], "'value[0].note': expected str | None, got bytes"),
        (Row, {"name": AN_ID}, "'value.name': expected str, got UUID"),
        (Blind, Item(1), "'value': expected Blind, got Item"),
        (Cat | Dog, {"type": "Dog", "tricks": []}, "'value': expected Cat | Dog, got dict"),
        (Path, "a", "'value': expected Path, got str"),
        (JSON, datetime.now(UTC), "got datetime"),
        (JSON, {1, 2}, "got set"),
        (JSON, AN_ID, "got UUID"),
        (JSON, b"x", "got bytes"),
        (JSON, Item(1), "got Item"),
    ],
)
def test_what_would_arrive_as_something_else_is_refused(
    annotation: Any, value: object, complaint: str
) -> None:
    """S3-12: JSON has one form for many types; what a type checker refuses is refused here too."""
    with pytest.raises(PayloadInvalid) as refusal:
        taking(annotation).encode((value,), {})

    assert complaint in str(refusal.value)


def test_a_field_that_does_not_count_for_equality_is_looked_at_too() -> None:
    seen: Any = AN_ID

    with pytest.raises(PayloadInvalid, match=r"'value\.seen': expected float \| None, got UUID"):
        taking(Blind).encode((Blind(seen),), {})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("annotation", "wrap", "path"),
    [
        (float, lambda number: number, "value"),
        (float | None, lambda number: number, "value"),
        (Any, lambda number: {"a": [1, number]}, "value.a[1]"),
        (dict[str, float | None], lambda number: {"a b": number}, "value['a b']"),
        (Item, lambda number: Item(1, extra=number), "value.extra"),
        (Node, lambda number: Node(1.0, [Node(number)]), "value.below[0].value"),
        (Blind, Blind, "value.seen"),
        (Cat | Dog, lambda number: Cat(1, [number]), "value.toys[0]"),
        (Point | None, lambda number: Point(1, number), "value[1]"),
    ],
)
def test_a_non_finite_float_is_refused_anywhere(
    number: float, annotation: Any, wrap: Callable[[float], object], path: str
) -> None:
    """What JSON cannot carry is refused, not turned into null."""
    with pytest.raises(PayloadInvalid) as refusal:
        taking(annotation).encode((wrap(number),), {})

    complaint = f"{number!r} has no form in JSON; pass None or a finite number"
    assert str(refusal.value) == f"task 'take': argument {path!r}: {complaint}."


@pytest.mark.parametrize("key", [math.nan, math.inf])
def test_a_non_finite_key_is_refused(key: float) -> None:
    with pytest.raises(PayloadInvalid, match=f"the key {key!r} cannot be one in JSON"):
        taking(dict[float, int]).encode(({key: 1},), {})


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (Any, datetime.now(UTC), "argument 'value': datetime would arrive as something else"),
        (Any, (1, 2), "argument 'value': tuple would"),
        (Any, b"x", "argument 'value': bytes would"),
        (Any, {1}, "argument 'value': set would"),
        (Any, Decimal(1), "argument 'value': Decimal would"),
        (Any, AN_ID, "argument 'value': UUID would"),
        (Any, Colour.RED, "argument 'value': Colour would"),
        (Any, Item(1), "argument 'value': Item would"),
        (Any, Point(1), "argument 'value': Point would"),
        (Any, Path("a"), "argument 'value': PosixPath would"),
        (Any, object(), "argument 'value': object would"),
        (Any, {1: 2}, "argument 'value': the key 1 would arrive as a str"),
        (object, (1, 2), "argument 'value': tuple would"),
        (list, [(1, 2)], "argument 'value[0]': tuple would"),
        (dict[str, Any], {"a": [b"x"]}, "argument 'value.a[0]': bytes would"),
        (Any | None, (1,), "argument 'value': tuple would"),
        (Item, Item(1, extra=(1,)), "argument 'value.extra': tuple would"),
        (Cat | Dog, Cat(1, (1,)), "argument 'value.toys': tuple would"),
        (tuple[int, Any], (1, (2,)), "argument 'value[1]': tuple would"),
        (JSON, {"a": (1,)}, "argument 'value.a': tuple would"),
    ],
)
def test_under_any_only_json_types_are_accepted(annotation: Any, value: object, complaint: str) -> None:
    """Nothing is silently turned into something else."""
    with pytest.raises(PayloadInvalid) as refusal:
        taking(annotation).encode((value,), {})

    assert str(refusal.value).startswith(f"task 'take': {complaint}")
    assert "annotate" in str(refusal.value)


def test_a_parameter_without_annotation_counts_as_any() -> None:
    names: dict[str, Any] = {}
    exec("def take(first: int, value=None): ...", names)
    task = signature(names["take"])

    assert task.decode(task.encode((1, {"a": [1]}), {})) == {"first": 1, "value": {"a": [1]}}
    with pytest.raises(PayloadInvalid, match="'value': tuple would"):
        task.encode((1, (1,)), {})


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (str, "a\ud800", "argument 'value': the text has a lone surrogate at position 1"),
        (
            dict[str, int],
            {"\ud800": 1},
            "argument 'value': the key '\\ud800' cannot be one in JSON (the text has",
        ),
        (Path, Path("a\udcff"), "argument 'value'"),
        (set[Any], [object()], "argument 'value': expected set, got list"),
        (dict[str, int], {None: 1}, "argument 'value': the key None: expected str, got None"),
        (list[int], [10**5000], "Exceeds the limit"),
    ],
)
def test_what_cannot_be_written_is_refused(annotation: Any, value: object, complaint: str) -> None:
    """Whatever the value, the error is ours."""
    with pytest.raises(PayloadInvalid) as refusal:
        taking(annotation).encode((value,), {})

    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ("{", "the payload: not valid JSON: Input data was truncated"),
        ("", "the payload: not valid JSON: Input data was truncated"),
        ("nope", "the payload: not valid JSON"),
        ('{"to":"a","items":[]} x', "the payload: not valid JSON"),
        (b'{"to":"\xff","items":[]}', "the payload"),
        ("\ud800", "the payload: text that UTF-8 cannot carry"),
        ("[1]", "the payload: expected object, got array"),
        ("null", "the payload: expected object, got null"),
        ('{"to":"a"}', "argument 'items' is missing. The signature is send(to: str"),
        ('{"to":"a","items":[],"item":1}', "there is no parameter 'item'. Did you mean 'items'?"),
        ('{"to":"a","items":[{"price":"x"}]}', "argument 'items[0].price': expected int, got str"),
        ('{"to":"a","items":' + "[" * 100_000, "argument 'items[0]': expected object, got array"),
        ('{"to":"a","items":[],"name":' + "[" * 100_000, "the payload: "),
    ],
)
def test_a_stored_payload_that_does_not_fit_is_refused(payload: str | bytes, complaint: str) -> None:
    """S3-12: a worker checks the payload before it runs the function."""
    with pytest.raises(PayloadInvalid) as refusal:
        signature(send).decode(payload)

    assert str(refusal.value).startswith(f"task 'send': {complaint}")


def test_an_error_of_a_users_own_check_becomes_ours() -> None:
    with pytest.raises(PayloadInvalid, match="the payload: KeyError: 'moody'"):
        taking(Moody).decode('{"value":{}}')


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.datetimes()
    | st.sampled_from([Colour.RED, Level.LOW, Item, object(), CYCLE, msgspec.UNSET, msgspec.Raw(b"[")]),
    lambda parts: (
        st.lists(parts, max_size=3)
        | st.tuples(parts, parts)
        | st.dictionaries(st.none() | st.integers() | st.floats() | st.text(max_size=3), parts, max_size=3)
        | st.builds(Item, parts, parts, parts)
        | st.builds(Node, parts, st.lists(parts, max_size=2))
        | st.builds(Cat, parts, parts)
    ),
    max_leaves=6,
)


@given(st.sampled_from(ANNOTATIONS), ANYTHING)
def test_whatever_is_passed_either_arrives_or_is_refused_by_us(annotation: Any, value: object) -> None:
    """No value brings down the caller with an error that is not ours."""
    task = taking(annotation)

    with suppress(PayloadInvalid):
        assert "value" in task.decode(task.encode((value,), {}))
