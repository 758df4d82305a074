"""Arguments arrive at the worker as the annotations say."""

import json
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address, ip_network
from pathlib import Path, PurePosixPath
from types import MappingProxyType
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
    Box,
    Cat,
    Colour,
    Count,
    Dog,
    Item,
    Level,
    Node,
    Numbers,
    Point,
    Ratio,
    Row,
    SafeText,
    Sale,
    Shelf,
    UserId,
    Word,
    send,
    signature,
    taking,
)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (None, None),
        (bool, True),
        (int, -3),
        (int, 2**64),
        (int, -(2**200)),
        (float, 1.5),
        (float, -0.0),
        (str, "naïve 😀 \u2028 \x00 \x7f"),
        (bytes, b"\x00\xff"),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (set[str], {"a", "b"}),
        (frozenset[int], frozenset({1})),
        (dict[str, int], {"a": 1}),
        (dict[int, str], {1: "a"}),
        (dict[UUID, int], {AN_ID: 1}),
        (dict[Colour, int], {Colour.RED: 1}),
        (Sequence[int], [1]),
        (Mapping[str, int], {"a": 1}),
        (Item, Item(1, "x", [1, {"a": None}])),
        (Node, Node(1.0, [Node(None), Node(2.0, [Node(3.0)])])),
        (Row, {"name": "a"}),
        (Point, Point(1, 2.0)),
        (Colour, Colour.BLUE),
        (Level, Level.LOW),
        (Word, Word.YES),
        (Literal["a", 1], "a"),
        (int | None, None),
        (int | str | list[int] | None, [1]),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
        (datetime, datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))),
        (datetime, datetime.fromisoformat("2026-01-02T03:04:05")),
        (date, date(2026, 1, 2)),
        (time, time(1, 2, 3)),
        (timedelta, timedelta(days=-1, microseconds=3)),
        (UUID, AN_ID),
        (Decimal, Decimal("1.10")),
        (Cat | Dog, Cat(9, toys=["ball"])),
        (Cat | Dog, Dog(["sit"])),
        (Path, Path("/tmp/ä")),
        (PurePosixPath | None, PurePosixPath("a/b")),
        (list[Path], [Path("a")]),
        (IPv4Address, ip_address("10.0.0.1")),
        (IPv6Address, ip_address("::1")),
        (IPv4Network, ip_network("10.0.0.0/8")),
        (UserId, UserId(3)),
        (Annotated[int, "a remark"], 3),
        (Annotated[int, msgspec.Meta(ge=0, extra={"a": 1})] | None, 3),
        (Any, {"a": [1, 2.5, None, True, "x", 2**70]}),
        (dict[str, object], {"a": [1]}),
        (JSON, {"a": [1]}),
    ],
)
def test_values_of_supported_types_arrive_as_they_were_sent(annotation: Any, value: Any) -> None:
    """S0-74: payload (de)serialisation."""
    task = taking(annotation)

    arrived = task.decode(task.encode((value,), {}))["value"]

    assert arrived == value
    assert type(arrived) is type(value)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda parts: st.lists(parts, max_size=4) | st.dictionaries(st.text(), parts, max_size=4),
        max_leaves=20,
    )
)
def test_any_json_value_arrives_as_it_was_sent(value: Any) -> None:
    """S0-74: payload (de)serialisation, under Any."""
    task = taking(Any)

    payload = task.encode((value,), {})

    assert json.loads(payload) == {"value": value}
    assert task.decode(payload) == {"value": value}


def test_the_payload_is_a_json_object_of_what_was_passed() -> None:
    """S0-5: the payload is text that holds JSON; defaults are not stored in it."""
    task = signature(send)

    payload = task.encode(("ada",), {"items": [Item(3)], "urgent": True})

    assert json.loads(payload) == {
        "to": "ada",
        "items": [{"price": 3, "note": None, "extra": None}],
        "urgent": True,
    }
    assert task.decode(payload) == {"to": "ada", "items": [Item(3)], "urgent": True}
    assert task.decode(payload.encode()) == task.decode(payload)


def test_the_context_is_not_part_of_the_payload() -> None:
    task = signature(send)

    assert task.takes_context
    assert "ctx" not in task.json_schema()["properties"]
    assert not taking(int).takes_context


def test_a_call_without_arguments_is_an_empty_object() -> None:
    def beat() -> None: ...

    task = signature(beat)

    assert task.encode((), {}) == "{}"
    assert task.decode("{}") == {}


def test_keyword_arguments_may_come_in_any_mapping() -> None:
    assert taking(int).encode((), MappingProxyType({"value": 3})) == '{"value":3}'


@pytest.mark.parametrize(
    ("annotation", "value", "arrives"),
    [
        (float, 3, 3.0),
        (Sequence[int], (1, 2), [1, 2]),
        (Collection[int], frozenset({1}), [1]),
        (list[Shelf], [Shelf(("a", "b"))], [Shelf(["a", "b"])]),
        (Numbers, (1, 2), [1, 2]),
        (Decimal, 3, Decimal(3)),
        (set[int], frozenset({1}), {1}),
        (Word, "yes", Word.YES),
        (bytes, bytearray(b"x"), b"x"),
        (Point, (1, 2.0), Point(1, 2.0)),
        (Item, Sale(1), Item(1)),
        (Box[int], Box(3), Box(3)),
        (str, SafeText("x"), "x"),
        (int, Count(3), 3),
        (float | None, Ratio(0.5), 0.5),
        (int, Level.LOW, 1),
        (Any, OrderedDict(a=Word.YES), {"a": "yes"}),
    ],
)
def test_the_annotation_decides_what_arrives(annotation: Any, value: object, arrives: object) -> None:
    task = taking(annotation)

    arrived = task.decode(task.encode((value,), {}))["value"]

    assert arrived == arrives
    assert type(arrived) is type(arrives)


@pytest.mark.parametrize(
    ("annotation", "value", "arrives"),
    [
        (list[int], [1, 2], [1, 2]),
        (tuple[int, str], [1, "a"], (1, "a")),
        (set[int], [1, 1], {1}),
        (Item, {"price": 1}, Item(1)),
        (Item, {"price": True}, Item(1)),
        (Cat | Dog, {"type": "Dog", "tricks": []}, Dog([])),
        (Point, [1, 2], Point(1, 2.0)),
        (datetime, "2026-01-02T00:00:00Z", datetime(2026, 1, 2, tzinfo=UTC)),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        (UUID, str(AN_ID), AN_ID),
        (bytes, "QUJD", b"ABC"),
        (Decimal, "1.5", Decimal("1.5")),
        (Decimal, 1.5, Decimal("1.5")),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (Colour, "red", Colour.RED),
        (Path, "a", Path("a")),
    ],
)
def test_arguments_from_outside_may_have_their_json_form(
    annotation: Any, value: object, arrives: object
) -> None:
    """A command line and other programs know only JSON."""
    task = taking(annotation)

    arrived = task.decode(task.encode_from_outside({"value": value}))["value"]

    assert arrived == arrives
    assert type(arrived) is type(arrives)


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (str, b"ab", "'value': expected str, got bytes"),
        (UUID, "x", "'value': invalid UUID"),
        (datetime, "yesterday", "'value': invalid RFC3339 encoded datetime"),
        (Colour, "green", "'value': invalid enum value 'green'"),
        (list[Item], [{"note": "a"}], "'value[0]': object missing required field price"),
        (list[int], (1, 2), "'value': expected list, got tuple"),
        (float | None, float("nan"), "'value': nan has no form in JSON"),
        (str, 1, "'value': expected str, got int"),
    ],
)
def test_arguments_from_outside_are_checked_by_reading_them(
    annotation: Any, value: object, complaint: str
) -> None:
    """S3-12: the run-time validator rejects a payload mismatch."""
    with pytest.raises(PayloadInvalid) as refusal:
        taking(annotation).encode_from_outside({"value": value})

    assert complaint in str(refusal.value)


@pytest.mark.parametrize(
    ("annotation", "value", "arrives"),
    [
        (int, True, 1),
        (float, False, 0.0),
        (int | None, True, 1),
        (int | str, True, 1),
        (int | bool, True, True),
        (list[int], [True, 2], [1, 2]),
        (dict[str, float], {"a": True}, {"a": 1.0}),
        (tuple[bool, int], (True, True), (True, 1)),
        (Item, Item(price=True, extra=True), Item(1, extra=True)),
        (Point, Point(True), Point(1)),
        (Row, {"size": True}, {"size": 1}),
        (Cat | Dog | None, Cat(True), Cat(1)),
        (list[Node], [Node(True, [Node(False)])], [Node(1.0, [Node(0.0)])]),
        (Annotated[int, msgspec.Meta(ge=0, extra={"a": 1})], True, 1),
        (UserId, True, 1),
    ],
)
def test_a_bool_is_accepted_where_python_takes_it_for_a_number(
    annotation: Any, value: object, arrives: object
) -> None:
    task = taking(annotation)

    arrived = task.decode(task.encode((value,), {}))["value"]

    assert arrived == arrives
    assert repr(arrived) == repr(arrives)


def test_parameters_may_have_any_name_python_allows() -> None:
    names = ["name", "fields", "tag", "bases", "p1", "p0", "self", "_one", "__two", "größe"]
    module: dict[str, Any] = {}
    exec(f"def odd({', '.join(f'{name}: int' for name in names)}): ...", module)
    task = signature(module["odd"])

    arguments = {name: number for number, name in enumerate(names)}
    assert task.decode(task.encode((), arguments)) == arguments
    assert list(task.json_schema()["properties"]) == list(arguments)


def test_the_schema_describes_the_arguments() -> None:
    """Payloads have a JSON Schema."""
    schema = signature(send).json_schema()

    assert schema["title"] == "send"
    assert schema["type"] == "object"
    assert schema["required"] == ["to", "items"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["items"] == {"type": "array", "items": {"$ref": "#/$defs/Item"}}
    assert schema["$defs"]["Item"]["required"] == ["price"]


def test_the_schema_knows_paths_addresses_and_free_values() -> None:
    def take(path: Path, host: IPv4Address, rest: dict[str, object]) -> None: ...

    properties = signature(take).json_schema()["properties"]

    assert properties["path"] == {"type": "string", "format": "path"}
    assert properties["host"] == {"type": "string", "format": "ipv4"}
    assert properties["rest"]["type"] == "object"
