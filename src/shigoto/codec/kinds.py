"""Which Python values an annotation takes.

Those that a type checker lets through, and a few that it does not but that arrive equal to what was sent: an
int for a Decimal, a frozenset for a set, the text of a StrEnum. Nothing else, though JSON has the same form for
many: bytes go as base64 text, so without this look a str would arrive at a `bytes` parameter as other bytes.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, get_origin, get_type_hints
from uuid import UUID

from msgspec import inspect

from shigoto.codec.annotations import mentioned

Kinds = Mapping[type[inspect.Type], tuple[type, ...]]

_BINARY = (bytes, bytearray, memoryview)
_SETS = (set, frozenset)

KINDS: Kinds = {
    inspect.NoneType: (NoneType,),
    inspect.BoolType: (bool,),
    inspect.IntType: (int,),
    inspect.FloatType: (float, int),
    inspect.StrType: (str,),
    inspect.BytesType: _BINARY,
    inspect.ByteArrayType: _BINARY,
    inspect.MemoryViewType: _BINARY,
    inspect.DateTimeType: (datetime,),
    inspect.DateType: (date,),
    inspect.TimeType: (time,),
    inspect.TimeDeltaType: (timedelta,),
    inspect.UUIDType: (UUID,),
    inspect.DecimalType: (Decimal, int),
    inspect.ListType: (list,),
    inspect.SetType: _SETS,
    inspect.FrozenSetType: _SETS,
    inspect.VarTupleType: (tuple,),
    inspect.TupleType: (tuple,),
    inspect.NamedTupleType: (tuple,),
    inspect.DictType: (dict,),
    inspect.TypedDictType: (dict,),
}

_WITH_FIELDS = (
    inspect.DataclassType,
    inspect.StructType,
    inspect.TypedDictType,
    inspect.NamedTupleType,
)


def is_any(node: inspect.Type | None) -> bool:
    """Whether the annotation leaves open what this is: `Any`, `object`, or none."""
    return isinstance(node, inspect.AnyType) or (isinstance(node, inspect.CustomType) and node.cls is object)


def fits(value: object, node: inspect.Type, kinds: Kinds = KINDS) -> bool:
    """Whether the annotation takes a value of this type; what is inside of it is not looked at."""
    accepted = kinds.get(type(node))
    if accepted is not None:
        return isinstance(value, accepted)
    match node:
        case inspect.UnionType():
            return any(fits(value, arm, kinds) for arm in node.types)
        case inspect.Metadata():
            return fits(value, node.type, kinds)
        case inspect.LiteralType():
            return value is None or isinstance(value, str | int)
        case inspect.EnumType():
            return isinstance(value, (node.cls, *_equal_to_members(node.cls)))
        case inspect.DataclassType() | inspect.StructType() | inspect.CustomType():
            return isinstance(value, get_origin(node.cls) or node.cls)
        case _:
            return True


def misfit(value: object, node: inspect.Type) -> str:
    """What is wrong with a value that does not fit: `expected bytes, got str`."""
    return f"expected {_named(node)}, got {'None' if value is None else type(value).__qualname__}"


def kinds_for(annotation: Any, nodes: Sequence[inspect.Type]) -> Kinds:
    """What the annotation takes; msgspec does not tell `Sequence` and `Collection` from `list`, so this does."""
    origins = [
        get_origin(part) or part for each in _annotations(annotation, nodes) for part in mentioned(each)
    ]
    if any(each is Collection for each in origins):
        return {**KINDS, inspect.ListType: (list, tuple, *_SETS)}
    if any(each is Sequence for each in origins):
        return {**KINDS, inspect.ListType: (list, tuple)}
    return KINDS


def _annotations(annotation: Any, nodes: Sequence[inspect.Type]) -> Iterator[Any]:
    """The annotation, those that it is a name for, and those of the fields of the classes in it."""
    yield annotation
    for part in mentioned(annotation):
        for attribute in ("__value__", "__supertype__"):
            if hasattr(part, attribute):
                yield from _annotations(getattr(part, attribute), ())
    for node in nodes:
        if isinstance(node, _WITH_FIELDS):
            yield from get_type_hints(get_origin(node.cls) or node.cls, include_extras=True).values()


def _equal_to_members(kind: type) -> tuple[type, ...]:
    return tuple(base for base in (str, int) if issubclass(kind, base))


def _named(node: inspect.Type) -> str:
    match node:
        case inspect.UnionType():
            return " | ".join(dict.fromkeys(_named(arm) for arm in node.types))
        case inspect.Metadata():
            return _named(node.type)
        case inspect.LiteralType():
            return f"one of {', '.join(repr(value) for value in node.values)}"
        case inspect.NoneType():
            return "None"
        case inspect.ByteArrayType():
            return "bytearray"
        case inspect.MemoryViewType():
            return "memoryview"
        case inspect.FrozenSetType():
            return "frozenset"
        case _:
            kind: Any = getattr(node, "cls", None) or KINDS.get(type(node), (node,))[0]
            return str(getattr(kind, "__qualname__", kind))
