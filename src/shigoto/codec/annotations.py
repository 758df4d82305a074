"""Annotations as they are written."""

import re
from collections.abc import Iterator
from contextlib import suppress
from inspect import formatannotation
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

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


def shown(annotation: Any) -> str:
    """The annotation as one would write it, without module names and metadata."""
    if get_origin(annotation) is Annotated:
        return shown(get_args(annotation)[0])
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
            for inner in _fields(kind) if isinstance(kind, type) else _named(kind):
                yield from _within(inner, seen)


def _named(name: Any) -> list[Any]:
    """What a name for a type stands for: a `NewType`, or `type A = …`."""
    return [name.__supertype__ if hasattr(name, "__supertype__") else name.__value__]


def _fields(kind: type[Any]) -> list[Any]:
    """The annotations of a class's fields, with all that stands beside the types. Of what cannot be resolved, none: a
    codec that needs them says so."""
    with suppress(NameError, TypeError, AttributeError):
        hints = get_type_hints(kind, include_extras=True).values()
        return [hint for hint in hints if get_origin(hint) is not ClassVar]
    return []
