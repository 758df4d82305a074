"""Types, values and tasks that the tests of the codec share."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import msgspec

from shigoto.codec import Signature, resolve

T = TypeVar("T")


class Context: ...


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


@dataclass
class Item:
    price: int
    note: str | None = None
    extra: Any = None


@dataclass
class Node:
    value: float | None
    below: list["Node"] = field(default_factory=list)


@dataclass
class Blind:
    """Equal to every other, whatever it holds."""

    seen: float | None = field(default=None, compare=False)


@dataclass
class Sale(Item):
    """A more special item."""


@dataclass
class Shelf:
    books: Sequence[str]


@dataclass
class Box(Generic[T]):
    content: T


class Row(TypedDict, total=False):
    name: str
    size: int


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Cat(msgspec.Struct, tag=True, rename="camel"):
    lives_left: int
    toys: Any = None


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]


class Moody(msgspec.Struct):
    def __post_init__(self) -> None:
        raise KeyError("moody")


class SafeText(str):
    __slots__ = ()


class Count(int): ...


class Ratio(float): ...


UserId = NewType("UserId", int)
Numbers = NewType("Numbers", Sequence[int])
AN_ID = UUID("0d9c1f6e-6d6f-4a8e-9d1e-2c8f5b0f6a11")
WRONG: Any = "x"
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


def signature(fn: Callable[..., Any], **limits: int) -> Signature:
    return resolve(fn, task=fn.__name__, context_type=Context, **limits)


def taking(annotation: Any) -> Signature:
    def take(value: Any) -> None: ...

    take.__annotations__ = {"value": annotation, "return": None}
    return signature(take) if annotation not in (Any, object) else _taking_second(annotation)


def _taking_second(annotation: Any) -> Signature:
    def take(ctx: Context, value: Any) -> None: ...

    take.__annotations__["value"] = annotation
    return signature(take)


def returning(annotation: Any) -> Signature:
    def give() -> Any: ...

    give.__annotations__ = {} if annotation is None else {"return": annotation}
    return signature(give)


def send(
    ctx: Context, to: str, items: list[Item], ratio: float = 1.0, *, name: Any = None, urgent: bool = False
) -> None: ...


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value
