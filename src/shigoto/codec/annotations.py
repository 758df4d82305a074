"""Annotations as they are written."""

import re
from collections.abc import Iterator
from inspect import formatannotation
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin

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
    """Whether any part of what is annotated so is secret."""
    return any(isinstance(each, Hidden) for each in metadata(annotation))
