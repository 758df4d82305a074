"""The reader and writer of one annotated place: msgspec's, or pydantic's.

A place is a parameter or the result. msgspec reads nearly everything, and fast. pydantic reads what is its own (models,
and annotations that carry its constraints) and, when it is installed, what msgspec refuses because the JSON forms look
alike: `str | UUID`, `date | datetime`, two dataclasses. It is imported only when an annotation asks for it.
"""

import sys
from collections import abc
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import PurePath
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, cast, get_args, get_origin

import msgspec
from msgspec import inspect

from shigoto.codec.annotations import Kinds, annotation_text, kinds_for, mentioned, metadata
from shigoto.codec.text import ADDRESSES, ENCODER
from shigoto.codec.values import Arms, Misfit, Rules, check, check_arms, nodes
from shigoto.model.errors import DeclarationError
from shigoto.model.secrets import is_list

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails


class Adapter:
    """pydantic's reading and writing of one annotation, both through JSON text."""

    __slots__ = ("_unions", "types")

    def __init__(self, annotation: Any, types: "TypeAdapter[Any]") -> None:
        self.types = types
        self._unions = tuple(_unions(annotation))

    def write(self, value: object) -> msgspec.Raw:
        """The JSON text of a value, in the form that `read` takes: by alias, without computed fields."""
        return msgspec.Raw(self.types.dump_json(value, by_alias=True, round_trip=True, warnings=False))

    def read(self, written: msgspec.Raw) -> Any:
        """The value in a JSON text. Raises Misfit."""
        try:
            return self.types.validate_json(bytes(written))
        except ValueError as error:
            raise misfit_of(error, msgspec.json.decode(written)) from error

    def check_kind(self, value: object) -> None:
        """Refuse a value of another type than the annotated ones. Raises Misfit.

        Read from JSON, much is taken for what it can be turned into; a strict look at the value itself tells.
        """
        from pydantic import ValidationError

        try:
            self.types.validate_python(value, strict=True)
        except ValidationError as error:
            if not all(_is_fine(each) for each in error.errors(include_url=False)):
                raise misfit_of(error, value) from error
        except Exception:
            return  # from a validator of the user's, which fails again when the value is read

    def check_arrival(self, value: object, arrived: object) -> None:
        """Refuse a value that arrives as a model, or as another member of a union. Raises Misfit."""
        check_arms(value, arrived, self._unions)


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
        name: _free_name(name, {*taken, *(other for other in definitions if other != name)})
        for name in definitions
    }
    moved = {f"#/$defs/{name}": f"#/$defs/{free}" for name, free in names.items()}
    return (
        {str(key): _moved(schema, moved) for (key, _), schema in schemas.items()},
        {names[name]: _moved(definition, moved) for name, definition in definitions.items()},
    )


def _free_name(name: str, taken: Collection[str]) -> str:
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
    return [_moved(each, moved) for each in schema] if is_list(schema) else schema


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


def misfit_of(error: ValueError, plain: Any) -> Misfit:
    """The first of pydantic's complaints, and what else it says about the same place in the decoded JSON."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return Misfit(str(error))
    complaints = error.errors(include_url=False, include_context=False, include_input=False)
    places = [_location(each["loc"], plain, missing=each["type"] == "missing") for each in complaints]
    reasons = [each["msg"] for each, place in zip(complaints, places, strict=True) if place == places[0]]
    reason = "; or ".join(dict.fromkeys(reasons))
    return Misfit(reason[:1].lower() + reason[1:], places[0])


def _location(location: tuple[int | str, ...], plain: Any, *, missing: bool) -> list[int | str]:
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


_UNSTORABLE = (
    abc.AsyncGenerator, abc.AsyncIterable, abc.AsyncIterator, abc.Awaitable, Callable, abc.Coroutine,
    abc.Generator, abc.Iterable, abc.Iterator, type,
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """How values of one annotation are stored: by msgspec, which knows it as `node`, or by an `adapter`.

    `kinds` are the Python types that it takes. `opaque` says that a value equal to what was read back may
    still be unfit, mostly because a class of the user's decides what is equal.
    """

    annotation: Any
    node: inspect.Type | None = None
    adapter: Adapter | None = None
    kinds: Kinds | None = None
    opaque: bool = True

    @property
    def stored_as(self) -> Any:
        """The type in which msgspec reads the place: pydantic's part is kept as text."""
        return self.annotation if self.adapter is None else msgspec.Raw

    def check(self, value: object, *, depth: int) -> None:
        """Refuse what JSON would change without a word, and what is not of the annotated type. Raises Misfit."""
        rules = Rules(None if self.adapter else ENCODER, self.kinds)
        check(value, node=self.node, depth=depth, rules=rules)
        if self.adapter is not None:
            self.adapter.check_kind(value)

    def check_storable(self, value: object, *, depth: int) -> None:
        """Refuse what JSON would change without a word, whatever its type. Raises Misfit."""
        check(value, node=None, depth=depth, rules=Rules(None if self.adapter else ENCODER))


def make_slot(annotation: Any, *, where: str) -> Slot:
    """Find out who can read this annotation; `where` names the place. Raises DeclarationError."""
    for part in mentioned(annotation):
        if any(part is each or get_origin(part) is each for each in _UNSTORABLE):
            raise DeclarationError(
                f"{where}: {annotation_text(part)} cannot be stored as JSON. "
                "Annotate it with what the values are, for example list[...]."
            )
    try:
        node, refusal = _known_to_msgspec(annotation)
    except NameError as error:
        raise DeclarationError(
            f"{where}: a class in {annotation_text(annotation)} has an annotation that cannot be resolved: {error}. "
            "Import the name at run time, not under `if TYPE_CHECKING:`, and define it at module level."
        ) from error
    if node is not None and not _is_pydantic(annotation, node):
        return _plain_slot(annotation, node)
    adapter = make_adapter(annotation)
    if isinstance(adapter, Adapter):
        return Slot(annotation, adapter=adapter)
    if node is not None and any(isinstance(each, inspect.StructType) for each in nodes(node)):
        return _plain_slot(annotation, node)
    raise DeclarationError(
        f"{where}: {annotation_text(annotation)} cannot be read from JSON{refusal}. {adapter}"
    )


def read_foreign(kind: Any, value: Any) -> Any:
    """Make a value of a type that msgspec does not know from its JSON form. Raises ValueError."""
    if kind is object:
        return value
    if hasattr(kind, "model_validate_json"):
        try:
            return kind.model_validate_json(ENCODER.encode(value))
        except ValueError as error:
            misfit = misfit_of(error, value)
            raise ValueError(f"{misfit.path} {misfit.reason}".strip(". ")) from None
    if not isinstance(value, str):
        raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
    return kind(value)


def schema_of_foreign(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type that msgspec does not know."""
    if kind is object:
        return {"description": "Any JSON value."}
    if kind in ADDRESSES:
        return {"type": "string", "format": ADDRESSES[kind]}
    if issubclass(kind, PurePath):
        return {"type": "string", "format": "path"}
    return {"type": "object", "title": kind.__name__}


def _known_to_msgspec(annotation: Any) -> tuple[inspect.Type | None, str]:
    """The annotation as msgspec knows it, or None and why not. Raises NameError."""
    try:
        node = inspect.type_info(annotation)
        msgspec.json.Decoder(annotation, dec_hook=read_foreign)
    except NameError:
        raise
    except Exception as error:
        return None, f" ({str(error).partition(' - type')[0]})"
    for each in nodes(node):
        if isinstance(each, inspect.CustomType | inspect.DataclassType) and (reason := _lost(each.cls)):
            return None, f" ({reason})"
    return node, ""


def _lost(kind: Any) -> str:
    """What msgspec and the hooks together do not carry of a class; empty if they carry all."""
    kind = get_origin(kind) or kind
    for attribute in getattr(kind, "__attrs_attrs__", ()):
        if attribute.name.startswith("_"):
            return f"the private field {attribute.name} of {kind.__qualname__} would not be written"
    known = ("__dataclass_fields__", "__attrs_attrs__", "model_validate_json")
    if any(hasattr(kind, each) for each in known):
        return ""
    if kind is object or kind in ADDRESSES or issubclass(kind, PurePath):
        return ""
    return f"{kind.__qualname__} has no known JSON form"


def _is_pydantic(annotation: Any, node: inspect.Type) -> bool:
    """Whether any part is a class of pydantic's, or carries its constraints."""
    if "pydantic" not in sys.modules:
        return False
    for each in nodes(node):
        if isinstance(each, inspect.CustomType | inspect.DataclassType):
            kind: Any = each.cls
            if hasattr(kind, "__pydantic_validator__"):
                return True
    owners = {type(each).__module__.partition(".")[0] for each in metadata(annotation)}
    return not owners.isdisjoint(("pydantic", "annotated_types"))


def _plain_slot(annotation: Any, node: inspect.Type) -> Slot:
    parts = list(nodes(node))
    odd = any(
        isinstance(each, inspect.DataclassType | inspect.StructType) and not _compares_all(each.cls)
        for each in parts
    )
    # An infinite key would come back equal, from the text "inf", which no other reader understands.
    keys = any(
        isinstance(each, inspect.DictType) and isinstance(each.key_type, inspect.FloatType) for each in parts
    )
    # Decimal("1.5") equals 1.5 but Decimal("1.1") does not equal 1.1: a float is refused before it depends.
    decimal = any(isinstance(each, inspect.DecimalType) for each in parts)
    return Slot(annotation, node, kinds=kinds_for(annotation, parts), opaque=odd or keys or decimal)


def _compares_all(kind: Any) -> bool:
    """Whether instances are equal only if all fields are: `__eq__` is generated and leaves nothing out."""
    kind = get_origin(kind) or kind
    if issubclass(kind, msgspec.Struct):
        return bool(kind.__eq__ is msgspec.Struct.__eq__)
    if not is_dataclass(kind):
        return False
    code = getattr(kind.__eq__, "__code__", None)
    return getattr(code, "co_filename", "") == "<string>" and all(each.compare for each in fields(kind))
