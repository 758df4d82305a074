"""Models of pydantic, and what only pydantic can read."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from ipaddress import IPv4Address
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field, create_model

from shigoto.codec import Signature, resolve
from shigoto.model.errors import DeclarationError, PayloadInvalid, PayloadTooLarge, ResultInvalid

AN_ID = UUID("0d9c1f6e-6d6f-4a8e-9d1e-2c8f5b0f6a11")


T = TypeVar("T")
SHORT = Annotated[str, Field(max_length=3)]
PRICE = Annotated[Decimal, Field(ge=0)]


class Context: ...


class User(BaseModel):
    name: str
    score: float | None = None
    extra: Any = None


class Member(User):
    since: int


class Crate(BaseModel, Generic[T]):
    content: T


class Group(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    users: list[User] = Field(alias="members")
    since: datetime | None = None

    @computed_field
    def size(self) -> int:
        return len(self.users)


class Login(BaseModel):
    password: SecretStr


class Loop(BaseModel):
    inner: "Loop | None" = None


@pydantic.dataclasses.dataclass
class Checked:
    size: Annotated[int, Field(gt=0)]


@dataclass
class Order:
    user: User
    stamp: bytes = b""


class Envelope(msgspec.Struct):
    user: User


def signature(fn: Callable[..., Any], **limits: int) -> Signature:
    return resolve(fn, task=fn.__name__, context_type=Context, **limits)


def taking(annotation: Any) -> Signature:
    def take(value: int) -> None: ...

    take.__annotations__["value"] = annotation
    return signature(take)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (User, User(name="a", score=1.5, extra=[1])),
        (User | None, None),
        (User | None, User(name="a")),
        (list[User], [User(name="a"), User(name="b")]),
        (dict[str, User], {"x": User(name="a")}),
        (User | int, 3),
        (User | Group, Group(members=[])),
        (Group, Group(members=[User(name="a")], since=datetime.fromisoformat("2026-01-02T00:00:00+00:00"))),
        (Checked, Checked(3)),
        (Order, Order(User(name="a"), b"x")),
        (Envelope, Envelope(User(name="a"))),
        (Loop, Loop(inner=Loop())),
        (Annotated[int, Field(gt=0)], 3),
        (str | UUID, AN_ID),
        (str | UUID, "a word"),
        (date | datetime, date(2026, 1, 2)),
        (date | datetime, datetime.fromisoformat("2026-01-02T00:00:00")),
        (set[UUID | int], {AN_ID, 3}),
        (deque[int], deque([1, 2])),
    ],
)
def test_what_pydantic_reads_arrives_as_it_was_sent(annotation: Any, value: Any) -> None:
    """S0-74: payload (de)serialisation, with models."""
    task = taking(annotation)

    arrived = task.decode(task.encode((value,), {}))["value"]

    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (User, {"name": "a"}, "argument 'value': expected User, got dict"),
        (list[User], [{"name": 3}], "argument 'value[0].name': input should be a valid string"),
        (User | Group, {"name": 3}, "argument 'value.name': input should be a valid string"),
        (Group, {"members": [], "more": 1}, "argument 'value.more': extra inputs are not permitted"),
        (Checked, {"size": 3}, "argument 'value': input should be an instance of Checked"),
        (Annotated[int, Field(gt=0)], 0, "argument 'value': input should be greater than 0"),
        (Envelope, {"user": {"name": "a"}}, "argument 'value': expected Envelope, got dict"),
        (
            str | UUID,
            3,
            "argument 'value': input should be a valid string; or Input should be an instance of UUID",
        ),
        (User, object(), "argument 'value': input should be a valid dictionary or instance of User"),
        (dict[str, User], {"x": {"name": "a"}}, "argument 'value.x': expected User, got dict"),
        (SHORT, b"ab", "argument 'value': input should be a valid string"),
        (str | UUID, b"ab", "argument 'value': input should be a valid string; or Input should be"),
        (PRICE, 1.5, "argument 'value': input should be an instance of Decimal"),
        (date | datetime, "2026-01-02", "argument 'value': input should be a valid date"),
        (Annotated[IPv4Address, Field()], 5, "argument 'value': input should be an instance of IPv4Address"),
        (deque[int], [1], "argument 'value': input should be a valid deque"),
        (User, User.model_construct(name=3), "argument 'value.name': input should be a valid string"),
    ],
)
def test_a_value_that_does_not_validate_is_refused_with_the_path_to_it(
    annotation: Any, value: object, complaint: str
) -> None:
    """S3-12: the run-time validator rejects a payload mismatch."""
    with pytest.raises(PayloadInvalid) as refusal:
        taking(annotation).encode((value,), {})

    assert str(refusal.value).startswith(f"task 'take': {complaint}")


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (User, User(name="a", score=math.nan), "value.score"),
        (list[User], [User(name="a", extra={"x": [math.inf]})], "value[0].extra.x[0]"),
        (Order, Order(User(name="a", score=math.nan)), "value.user.score"),
        (Envelope, Envelope(User(name="a", score=math.nan)), "value.user.score"),
        (float | str | UUID, math.nan, "value"),
    ],
)
def test_a_non_finite_float_in_a_model_is_refused(annotation: Any, value: object, path: str) -> None:
    with pytest.raises(PayloadInvalid, match="has no form in JSON") as refusal:
        taking(annotation).encode((value,), {})

    assert f"argument {path!r}" in str(refusal.value)


def test_a_secret_is_refused_because_it_would_arrive_masked() -> None:
    with pytest.raises(PayloadInvalid, match=r"'value\.password': a secret is masked when it is written"):
        taking(Login).encode((Login(password=SecretStr("x")),), {})


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (str | UUID, str(AN_ID), "argument 'value': a str would arrive as UUID"),
        (
            list[str | datetime],
            [datetime.fromisoformat("2026-01-02")],
            "argument 'value[0]': a datetime would",
        ),
        (dict[str, str | bytes], {"a": b"x"}, "argument 'value.a': a bytes would arrive as str"),
        (set[str | UUID], {str(AN_ID)}, "argument 'value': a member would arrive as another type"),
    ],
)
def test_a_value_that_would_arrive_as_another_member_of_the_union_is_refused(
    annotation: Any, value: object, complaint: str
) -> None:
    with pytest.raises(PayloadInvalid, match="narrow the annotation") as refusal:
        taking(annotation).encode((value,), {})

    assert complaint in str(refusal.value)


def test_a_model_that_contains_itself_is_refused() -> None:
    loop = Loop()
    loop.inner = loop

    with pytest.raises(PayloadInvalid, match="contains itself"):
        taking(Loop).encode((loop,), {})


@pytest.mark.parametrize(
    ("annotation", "value", "arrives"),
    [
        (User, {"name": "a"}, User(name="a")),
        (Checked, {"size": 3}, Checked(3)),
        (Envelope, {"user": {"name": "a"}}, Envelope(User(name="a"))),
        (str | UUID, str(AN_ID), AN_ID),
        (PRICE, "1.5", Decimal("1.5")),
    ],
)
def test_from_outside_a_model_may_come_as_a_dict(annotation: Any, value: object, arrives: object) -> None:
    task = taking(annotation)

    assert task.decode(task.encode_from_outside({"value": value})) == {"value": arrives}


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (User, {"score": 1}, "argument 'value.name': field required"),
        (Checked, {"size": 0}, "argument 'value.size': input should be greater than 0"),
        (Envelope, {"user": {"name": 3}}, "argument 'value.user': name input should be a valid string"),
    ],
)
def test_from_outside_a_dict_for_a_model_is_checked_by_reading_it(
    annotation: Any, value: object, complaint: str
) -> None:
    with pytest.raises(PayloadInvalid) as refusal:
        taking(annotation).encode_from_outside({"value": value})

    assert str(refusal.value).startswith(f"task 'take': {complaint}")


@pytest.mark.parametrize(
    ("annotation", "value", "arrives"),
    [
        (User, Member(name="a", since=3), User(name="a")),
        (Crate[int], Crate(content=3), Crate[int](content=3)),
        (Annotated[int, Field(ge=0)], True, 1),
        (Annotated[float, Field(ge=0)], 3, 3.0),
        (PRICE, 3, Decimal(3)),
        (Annotated[Sequence[int], Field(min_length=1)], (1, 2), [1, 2]),
    ],
)
def test_what_python_takes_for_the_annotated_type_is_accepted(
    annotation: Any, value: object, arrives: object
) -> None:
    task = taking(annotation)

    assert task.decode(task.encode((value,), {})) == {"value": arrives}


def test_models_are_stored_by_alias_and_without_computed_fields() -> None:
    assert taking(Group).encode((Group(members=[]),), {}) == '{"value":{"members":[],"since":null}}'


def test_models_and_plain_parameters_go_together() -> None:
    def mixed(first: int, user: User, *, other: User | None = None, flag: bool = False) -> None: ...

    task = signature(mixed)

    payload = task.encode((True, User(name="a")), {"flag": True})

    assert task.decode(payload) == {"first": 1, "user": User(name="a"), "flag": True}


def test_a_large_model_is_refused() -> None:
    def take(user: User) -> None: ...

    with pytest.raises(PayloadTooLarge):
        signature(take, max_bytes=20).encode((User(name="x" * 20),), {})


def test_models_can_be_returned() -> None:
    def give() -> list[User]:
        return []

    task = signature(give)

    assert task.decode_result(task.encode_result([User(name="a")])) == [User(name="a")]
    with pytest.raises(ResultInvalid, match=r"the result\[0\]\.score cannot be stored: nan"):
        task.encode_result([User(name="a", score=math.nan)])
    with pytest.raises(ResultInvalid, match=r"the stored result\[0\]\.name does not fit .* field required"):
        task.decode_result("[{}]")


def test_the_schema_of_a_model_stands_in_the_schema_of_the_arguments() -> None:
    """Payloads have a JSON Schema, models included."""

    def take(group: Group, count: int = 0) -> None: ...

    schema = signature(take).json_schema()

    assert schema["properties"]["group"] == {"$ref": "#/$defs/Group"}
    assert schema["required"] == ["group"]
    assert schema["$defs"]["Group"]["properties"]["members"]["items"] == {"$ref": "#/$defs/User"}
    assert schema["$defs"]["User"]["type"] == "object"


def test_a_struct_with_a_model_has_a_schema() -> None:
    schema = taking(Envelope).json_schema()

    assert schema["$defs"]["Envelope"]["properties"]["user"] == {"$ref": "#/$defs/User"}
    assert schema["$defs"]["User"]["required"] == ["name"]


def test_a_model_that_is_not_complete_is_refused() -> None:
    later: Any = "Later"
    incomplete: Any = create_model("Incomplete", later=(later, ...))

    with pytest.raises(DeclarationError, match=r"parameter 'value'.*'Later'"):
        taking(list[incomplete])


def test_a_class_that_nobody_can_read_is_refused() -> None:
    class Plain: ...

    with pytest.raises(
        DeclarationError, match=r"Plain has no known JSON form.*use a dataclass, a TypedDict or"
    ):
        taking(Plain)
