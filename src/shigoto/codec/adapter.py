"""pydantic's part: models, constraints, and unions whose members look alike in JSON.

pydantic is not needed to run; it is imported only when it is installed and an annotation asks for it.
"""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin
from urllib.parse import quote

import msgspec

from shigoto.codec.annotations import mentioned
from shigoto.codec.values import Arms, Unfit, check_arms

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails


class Adapter:
    """pydantic's reading and writing of one annotation, both through JSON text."""

    __slots__ = ("_types", "_unions")

    def __init__(self, annotation: Any, types: "TypeAdapter[Any]") -> None:
        self._types = types
        self._unions = tuple(_unions(annotation))

    def write(self, value: object) -> msgspec.Raw:
        """The JSON text of a value, in the form that `read` takes: by alias, without computed fields."""
        return msgspec.Raw(self._types.dump_json(value, by_alias=True, round_trip=True, warnings=False))

    def read(self, written: msgspec.Raw) -> Any:
        """The value in a JSON text. Raises Unfit."""
        try:
            return self._types.validate_json(bytes(written))
        except ValueError as error:
            raise unfit(error, msgspec.json.decode(written)) from error

    def check_kind(self, value: object) -> None:
        """Refuse a value of another type than the annotated ones. Raises Unfit.

        Read from JSON, much is taken for what it can be turned into; a strict look at the value itself tells.
        """
        from pydantic import ValidationError

        try:
            self._types.validate_python(value, strict=True)
        except ValidationError as error:
            if not all(_is_fine(each) for each in error.errors(include_url=False)):
                raise unfit(error, value) from error
        except Exception:
            return  # from a validator of the user's, which fails again when the value is read

    def check_arrival(self, value: object, arrived: object) -> None:
        """Refuse a value that arrives as a model, or as another member of a union. Raises Unfit."""
        check_arms(value, arrived, self._unions)

    def schema(self, name: str) -> dict[str, Any]:
        """The JSON Schema, for use as the property `name` of an object."""
        return self._types.json_schema(ref_template=f"#/properties/{quote(name)}/$defs/{{model}}")


def make_adapter(annotation: Any) -> Adapter | str:
    """The adapter for an annotation, or what the user can do when there is none."""
    try:
        from pydantic import TypeAdapter
    except ImportError:
        return "Narrow the annotation, or install pydantic, which reads more types."
    try:
        types: TypeAdapter[Any] = TypeAdapter(annotation)
        if not getattr(types, "pydantic_complete", True):
            types.rebuild(raise_errors=True)
        return Adapter(annotation, types)
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        return f"Narrow the annotation, or use a dataclass, a TypedDict or a pydantic model ({reason})."


def unfit(error: ValueError, plain: Any) -> Unfit:
    """The first of pydantic's complaints, and what else it says about the same place in the decoded JSON."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return Unfit(str(error))
    complaints = error.errors(include_url=False, include_context=False, include_input=False)
    places = [_place(each["loc"], plain, missing=each["type"] == "missing") for each in complaints]
    reasons = [each["msg"] for each, place in zip(complaints, places, strict=True) if place == places[0]]
    reason = "; or ".join(dict.fromkeys(reasons))
    return Unfit(reason[:1].lower() + reason[1:], places[0])


def _place(location: tuple[int | str, ...], plain: Any, *, missing: bool) -> list[int | str]:
    """The steps that lead somewhere: pydantic also names the members of unions that it tried."""
    steps: list[int | str] = []
    for number, step in enumerate(location, 1):
        try:
            plain = plain[step]
            steps.append(step)
        except (LookupError, TypeError):
            if missing and number == len(location):
                steps.append(step)
    return steps


def _is_fine(complaint: "ErrorDetails") -> bool:
    """Python's types allow a bool for an int or a float, and an int arrives equal for a Decimal."""
    if complaint["type"] in ("int_type", "float_type"):
        return isinstance(complaint["input"], bool)
    wanted = complaint.get("ctx", {}).get("class")
    return wanted == "Decimal" and isinstance(complaint["input"], int)


def _unions(annotation: Any) -> Iterator[Arms]:
    for part in mentioned(annotation):
        if get_origin(part) in (Union, UnionType):
            yield frozenset(arm for arm in get_args(part) if isinstance(arm, type) and arm is not NoneType)
