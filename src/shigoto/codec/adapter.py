"""pydantic's part: models, constraints, and unions whose members look alike in JSON.

pydantic is not needed to run; it is imported only when it is installed and an annotation asks for it.
"""

from collections.abc import Collection, Iterator, Mapping
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeGuard, Union, cast, get_args, get_origin

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

    @property
    def types(self) -> "TypeAdapter[Any]":
        """pydantic's own view of the annotation."""
        return self._types


def describe(
    adapters: Mapping[str, Adapter], models: Mapping[str, Any], *, taken: Collection[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The JSON Schemas of adapters and of models, by their keys; and the definitions that they refer to.

    The definitions are meant for the top of a document, where the `taken` names belong to others.
    """
    if not adapters and not models:
        return {}, {}
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema

    class Generate(GenerateJsonSchema):
        """Leaves open what has no schema, and leaves out defaults that have no JSON form."""

        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
            return {}

        def emit_warning(self, kind: Any, detail: str) -> None:
            pass

    types = {key: each.types for key, each in adapters.items()}
    types |= {key: TypeAdapter(kind) for key, kind in models.items()}
    schemas, together = TypeAdapter.json_schemas(
        [(key, "validation", each) for key, each in types.items()], schema_generator=Generate
    )
    definitions: dict[str, Any] = together.get("$defs", {})
    names = {
        name: _free(name, {*taken, *(other for other in definitions if other != name)})
        for name in definitions
    }
    moved = {f"#/$defs/{name}": f"#/$defs/{free}" for name, free in names.items()}
    return (
        {str(key): _moved(schema, moved) for (key, _), schema in schemas.items()},
        {names[name]: _moved(definition, moved) for name, definition in definitions.items()},
    )


def _free(name: str, taken: Collection[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free


def _moved(schema: Any, moved: Mapping[str, str]) -> Any:
    """The schema with references to where the definitions are now; a discriminator has them as plain values."""
    if isinstance(schema, str):
        return moved.get(schema, schema)
    if isinstance(schema, dict):
        members = cast("dict[str, Any]", schema)
        return {key: _moved(value, moved) for key, value in members.items()}
    return [_moved(each, moved) for each in schema] if _is_list(schema) else schema


def _is_list(schema: object) -> TypeGuard[list[Any]]:
    return isinstance(schema, list)


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
