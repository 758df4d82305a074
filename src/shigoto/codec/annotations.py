"""Annotations: their text, their metadata, and the Python types that they accept.

An annotation accepts the types that a type checker lets through, and a few that it does not but that arrive equal to
what was sent: an int for a Decimal, a frozenset for a set, the text of a StrEnum. Nothing else, though JSON has the
same form for many: bytes are stored as base64 text, so without this check a str would arrive at a `bytes` parameter as
other bytes.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from inspect import formatannotation
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

from msgspec import inspect

JSON: TypeAlias = dict[str, Any] | list[Any] | str | int | float | bool | None
"""Any JSON value: for a first parameter that is free, which `Any` must not be."""

T = TypeVar("T")


class Hidden:
    """The mark of a value that is shown to nobody."""

    def __repr__(self) -> str:
        return "secret"


HIDDEN = Hidden()

Secret: TypeAlias = Annotated[T, HIDDEN]
"""A parameter whose value is masked wherever arguments are shown, and encrypted where there are keys: `Secret[str]`."""

_MODULE = re.compile(r"(?:\w+\.)+(?=\w)")


def mentioned(annotation: Any) -> Iterator[Any]:
    """The annotation and all that is written inside it, metadata included, but not the fields of classes."""
    yield annotation
    if get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from mentioned(part)


def metadata(annotation: Any) -> Iterator[Any]:
    """What stands beside the type in each `Annotated` of the annotation."""
    for part in mentioned(annotation):
        if get_origin(part) is Annotated:
            yield from get_args(part)[1:]


def annotation_text(annotation: Any) -> str:
    """The annotation as one would write it, without module names and metadata."""
    if get_origin(annotation) is Annotated:
        return annotation_text(get_args(annotation)[0])
    return _MODULE.sub("", formatannotation(annotation))


def is_secret(annotation: Any) -> bool:
    """Whether any part of what is annotated so is secret, be it a field of a class in it: arguments are masked by their
    names, so then all of it is."""
    return any(isinstance(part, Hidden) for part in _within(annotation, set()))


def _within(annotation: Any, seen: set[Any]) -> Iterator[Any]:
    """All that is mentioned, and what is mentioned in the fields of its classes; each class once, since they may hold
    each other."""
    for part in mentioned(annotation):
        yield part
        kind = get_origin(part) or part
        has_inside = isinstance(kind, type) or hasattr(kind, "__supertype__") or hasattr(kind, "__value__")
        if has_inside and kind not in seen:
            seen.add(kind)
            for inner in _fields(kind) if isinstance(kind, type) else _aliased(kind):
                yield from _within(inner, seen)


def _aliased(name: Any) -> list[Any]:
    """What a name for a type stands for: a `NewType`, or `type A = …`."""
    return [name.__supertype__ if hasattr(name, "__supertype__") else name.__value__]


def _fields(kind: type[Any]) -> list[Any]:
    """The annotations of a class's fields, with all that stands beside the types. Of what cannot be resolved, none: a
    codec that needs them says so."""
    with suppress(NameError, TypeError, AttributeError):
        hints = get_type_hints(kind, include_extras=True).values()
        return [hint for hint in hints if get_origin(hint) is not ClassVar]
    return []


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

_WITH_FIELDS = (inspect.DataclassType, inspect.StructType, inspect.TypedDictType, inspect.NamedTupleType)


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


def misfit_reason(value: object, node: inspect.Type) -> str:
    """What is wrong with a value that does not fit: `expected bytes, got str`."""
    return f"expected {_type_name(node)}, got {'None' if value is None else type(value).__qualname__}"


def kinds_for(annotation: Any, nodes: Sequence[inspect.Type]) -> Kinds:
    """What the annotation takes; msgspec does not tell `Sequence` and `Collection` from `list`, so this does."""
    origins = [
        get_origin(part) or part for each in _all_annotations(annotation, nodes) for part in mentioned(each)
    ]
    if any(each is Collection for each in origins):
        return {**KINDS, inspect.ListType: (list, tuple, *_SETS)}
    if any(each is Sequence for each in origins):
        return {**KINDS, inspect.ListType: (list, tuple)}
    return KINDS


def _all_annotations(annotation: Any, nodes: Sequence[inspect.Type]) -> Iterator[Any]:
    """The annotation, those that it is a name for, and those of the fields of the classes in it."""
    yield annotation
    for part in mentioned(annotation):
        for attribute in ("__value__", "__supertype__"):
            if hasattr(part, attribute):
                yield from _all_annotations(getattr(part, attribute), ())
    for node in nodes:
        if isinstance(node, _WITH_FIELDS):
            yield from get_type_hints(get_origin(node.cls) or node.cls, include_extras=True).values()


def _equal_to_members(kind: type) -> tuple[type, ...]:
    return tuple(base for base in (str, int) if issubclass(kind, base))


def _type_name(node: inspect.Type) -> str:
    match node:
        case inspect.UnionType():
            return " | ".join(dict.fromkeys(_type_name(arm) for arm in node.types))
        case inspect.Metadata():
            return _type_name(node.type)
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
