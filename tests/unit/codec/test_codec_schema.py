"""JSON Schema of tasks: it takes what the codec takes, and refuses what that refuses."""

import enum
import json
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, Field

from shigoto import JSON, Context, PayloadInvalid, ResultInvalid, Shigoto, Task
from tests.unit.schemas import accepts, references, resolved

app = Shigoto("memory:")

KEY, ODD = UUID(int=1), object()


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Right(enum.IntFlag):
    """What one may do."""

    READ = 1
    WRITE = 2


class Mode(enum.Flag):
    FAST = 1
    SAFE = 2


class Weight(TypedDict, total=False):
    grams: int


class Spot(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Parcel:
    size: Size
    weight: Weight | None = None


class Route(msgspec.Struct):
    stops: list[str]
    next: "Route | None" = None


class Item(BaseModel):
    name: str = Field(min_length=1)
    parts: list["Item"] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Crate(msgspec.Struct):
    item: Item
    count: int = 1


class Elsewhere:
    class Item(msgspec.Struct):
        number: int


HERE, NUT = Spot(1), Item(name="nut")


@app.task
def send(ctx: Context, to: str, copies: int = 1, *, urgent: bool = False) -> str:
    return to


@app.task
def ship(
    parcel: Parcel,
    route: Route,
    spot: Spot = HERE,
    after: date | None = None,
    labels: dict[str, float] | None = None,
    pair: tuple[int, str] = (1, "a"),
    level: Annotated[int, msgspec.Meta(ge=1, le=3)] = 1,
    free: JSON = None,
    way: Literal["air", "sea", 3] = "air",
) -> Route:
    return route


@app.task
async def stock(
    item: Item, pet: Annotated[Cat | Dog, Field(discriminator="kind")], crate: Crate
) -> list[Item]:
    return [item]


@app.task
def mix(mine: Item, theirs: Elsewhere.Item, both: list[Item] | None = None) -> Elsewhere.Item:
    return theirs


@app.task
def nothing() -> None: ...


@app.task
def anything(value: JSON) -> Any: ...


@app.task
def permit(right: Right, modes: dict[str, list[Mode]] | None = None, size: Size = Size.SMALL) -> Right:
    return right


TASKS: list[Task[..., Any]] = [send, ship, stock, mix, nothing, anything]
PARCEL, ROUTE = {"size": "s"}, {"stops": ["a"]}
ITEM, CAT = {"name": "nut"}, {"kind": "cat"}
CRATE = {"item": ITEM}


@pytest.mark.parametrize(
    ("task", "payload", "fits"),
    [
        (send, {"to": "Ada"}, True),
        (send, {"to": "Ada", "copies": 2, "urgent": True}, True),
        (send, {}, False),
        (send, {"to": 3}, False),
        (send, {"to": None}, False),
        (send, {"to": "Ada", "copies": "2"}, False),
        (send, {"to": "Ada", "copies": True}, False),
        (send, {"to": "Ada", "copies": 2.5}, False),
        (send, {"to": "Ada", "urgent": 1}, False),
        (send, {"to": "Ada", "ctx": {}}, False),
        (send, {"to": "Ada", "cc": "Bob"}, False),
        (ship, {"parcel": PARCEL, "route": ROUTE}, True),
        (ship, {"parcel": {"size": "m"}, "route": ROUTE}, False),
        (ship, {"parcel": {"size": "s", "weight": {"grams": 3}}, "route": ROUTE}, True),
        (ship, {"parcel": {"size": "s", "weight": {}}, "route": ROUTE}, True),
        (ship, {"parcel": {"size": "s", "weight": {"grams": "3"}}, "route": ROUTE}, False),
        (ship, {"parcel": {}, "route": ROUTE}, False),
        (ship, {"parcel": PARCEL, "route": {"stops": ["a"], "next": {"stops": []}}}, True),
        (ship, {"parcel": PARCEL, "route": {"stops": ["a"], "next": {"stops": [1]}}}, False),
        (ship, {"parcel": PARCEL, "route": ROUTE, "spot": [1]}, True),
        (ship, {"parcel": PARCEL, "route": ROUTE, "spot": [1, 2]}, True),
        (ship, {"parcel": PARCEL, "route": ROUTE, "spot": []}, False),
        (ship, {"parcel": PARCEL, "route": ROUTE, "spot": [1, 2, 3]}, False),
        (ship, {"parcel": PARCEL, "route": ROUTE, "after": None}, True),
        (ship, {"parcel": PARCEL, "route": ROUTE, "after": "2030-01-31"}, True),
        (ship, {"parcel": PARCEL, "route": ROUTE, "after": 3}, False),
        (ship, {"parcel": PARCEL, "route": ROUTE, "labels": {"a": 1, "b": 2.5}}, True),
        (ship, {"parcel": PARCEL, "route": ROUTE, "labels": {"a": "1"}}, False),
        (ship, {"parcel": PARCEL, "route": ROUTE, "pair": [1, "a"]}, True),
        (ship, {"parcel": PARCEL, "route": ROUTE, "pair": [1]}, False),
        (ship, {"parcel": PARCEL, "route": ROUTE, "pair": ["a", 1]}, False),
        (ship, {"parcel": PARCEL, "route": ROUTE, "pair": [1, "a", 2]}, False),
        (ship, {"parcel": PARCEL, "route": ROUTE, "level": 3}, True),
        (ship, {"parcel": PARCEL, "route": ROUTE, "level": 4}, False),
        (ship, {"parcel": PARCEL, "route": ROUTE, "free": [1, {"a": None}]}, True),
        (ship, {"parcel": PARCEL, "route": ROUTE, "way": "sea"}, True),
        (ship, {"parcel": PARCEL, "route": ROUTE, "way": 3}, True),
        (ship, {"parcel": PARCEL, "route": ROUTE, "way": "rail"}, False),
        (stock, {"item": ITEM, "pet": CAT, "crate": CRATE}, True),
        (stock, {"item": {"name": ""}, "pet": CAT, "crate": CRATE}, False),
        (stock, {"item": {"name": "nut", "parts": [ITEM]}, "pet": CAT, "crate": CRATE}, True),
        (stock, {"item": {"name": "nut", "parts": [{}]}, "pet": CAT, "crate": CRATE}, False),
        (stock, {"item": ITEM, "pet": {"kind": "dog", "good": True}, "crate": CRATE}, True),
        (stock, {"item": ITEM, "pet": {"kind": "dog"}, "crate": CRATE}, False),
        (stock, {"item": ITEM, "pet": {"kind": "owl"}, "crate": CRATE}, False),
        (stock, {"item": ITEM, "pet": CAT, "crate": {"item": {}}}, False),
        (mix, {"mine": ITEM, "theirs": {"number": 1}}, True),
        (mix, {"mine": {"number": 1}, "theirs": {"number": 1}}, False),
        (mix, {"mine": ITEM, "theirs": ITEM}, False),
        (mix, {"mine": ITEM, "theirs": {"number": 1}, "both": [ITEM]}, True),
        (nothing, {}, True),
        (nothing, {"a": 1}, False),
        (anything, {"value": [None, 1.5, {"a": "b"}]}, True),
        (anything, {}, False),
    ],
)
def test_a_payload_fits_the_schema_if_the_codec_takes_it(
    task: Task[..., Any], payload: dict[str, Any], fits: bool
) -> None:
    """S0-67: payloads are checked against a schema, which programs in other languages can have."""
    try:
        task.signature.decode(json.dumps(payload))
        taken = True
    except PayloadInvalid:
        taken = False

    assert taken is fits
    assert accepts(task.schema()["arguments"], payload) is fits


@pytest.mark.parametrize(
    ("task", "result", "fits"),
    [
        (send, "sent", True),
        (send, 3, False),
        (ship, {"stops": []}, True),
        (ship, {}, False),
        (stock, [ITEM], True),
        (stock, [{}], False),
        (mix, {"number": 1}, True),
        (mix, ITEM, False),
        (nothing, None, True),
        (nothing, 0, False),
        (anything, {"a": [1]}, True),
    ],
)
def test_a_result_fits_the_schema_if_the_codec_reads_it(
    task: Task[..., Any], result: object, fits: bool
) -> None:
    """S0-67."""
    try:
        task.signature.decode_result(json.dumps(result))
        taken = True
    except ResultInvalid:
        taken = False

    assert taken is fits
    assert accepts(task.schema()["result"], result) is fits


def test_real_arguments_and_results_fit_their_schema() -> None:
    """S0-67."""
    sent = ship.call(
        Parcel(Size.LARGE, Weight(grams=3)),
        Route(["a"], Route(["b"])),
        spot=Spot(1, 2),
        after=date(2030, 1, 31),
        labels={"a": 1},
        way="sea",
    )
    stocked = stock.call(Item(name="nut"), Dog(kind="dog", good=True), Crate(Item(name="bolt")))

    assert accepts(ship.schema()["arguments"], json.loads(sent.payload))
    assert accepts(stock.schema()["arguments"], json.loads(stocked.payload))
    assert accepts(stock.schema()["result"], json.loads(stock.signature.encode_result([Item(name="nut")])))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_schema_says_its_draft_and_refers_only_to_what_it_defines(task: Task[..., Any]) -> None:
    for schema in task.schema().values():
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert json.loads(json.dumps(schema)) == schema
        used = references(schema)
        assert all(reference.startswith("#/$defs/") for reference in used)
        assert {reference.rpartition("/")[2] for reference in used} == set(schema.get("$defs", {}))
        assert all(resolved(schema, reference) for reference in used)
        assert "$defs" not in {name for each in schema.get("$defs", {}).values() for name in each}


def test_properties_stand_in_the_order_of_the_parameters_without_the_context() -> None:
    schema = send.schema()["arguments"]

    assert list(schema["properties"]) == ["to", "copies", "urgent"]
    assert schema["required"] == ["to"]
    assert schema["additionalProperties"] is False
    assert schema["title"] == "send"


def test_defaults_stand_in_the_schema_if_they_have_a_json_form() -> None:
    @app.task
    def defaulted(
        count: int = 3,
        after: datetime | None = None,
        path: Path = Path("a"),
        key: UUID = KEY,
        item: Item = NUT,
        odd: Any = ODD,
    ) -> None: ...

    properties = defaulted.schema()["arguments"]["properties"]

    assert {name: each.get("default", "none") for name, each in properties.items()} == {
        "count": 3,
        "after": None,
        "path": "a",
        "key": "00000000-0000-0000-0000-000000000001",
        "item": {"name": "nut", "parts": []},
        "odd": "none",
    }


def test_flags_may_be_added_up() -> None:
    both = permit.call(Right.READ | Right.WRITE, {"a": [Mode.FAST | Mode.SAFE]})
    schema = permit.schema()

    for payload in (json.loads(both.payload), {"right": 0}, {"right": 1}, {"right": 3}):
        assert permit.signature.decode(json.dumps(payload))
        assert accepts(schema["arguments"], payload)
    assert not accepts(schema["arguments"], {"right": "READ"})
    assert not accepts(schema["arguments"], {"right": 1, "size": "m"})
    assert accepts(schema["result"], 3)
    assert schema["result"]["$defs"]["Right"] == {
        "title": "Right",
        "description": "What one may do.",
        "type": "integer",
    }


def test_two_classes_of_one_name_are_told_apart() -> None:
    schema = mix.schema()["arguments"]

    assert schema["properties"]["theirs"] != schema["properties"]["mine"]
    mine = resolved(schema, schema["properties"]["mine"]["$ref"])
    theirs = resolved(schema, schema["properties"]["theirs"]["$ref"])
    assert (mine["required"], theirs["required"]) == (["name"], ["number"])
    assert mine["properties"]["parts"]["items"] == schema["properties"]["mine"]


def test_a_type_that_pydantic_cannot_describe_is_left_open() -> None:
    from pydantic import PlainValidator

    @app.task
    def odd(value: Annotated[list[str], PlainValidator(lambda value: value)], *, count: int) -> None: ...

    schema = odd.schema()["arguments"]

    assert schema["properties"]["value"] == {}
    assert schema["properties"]["count"] == {"type": "integer"}
