"""One annotated place, a parameter or the result: who reads it, and what has to be watched there.

msgspec reads nearly everything, and fast. pydantic reads what is its own (models, and annotations that carry
its constraints) and, when it is installed, what msgspec refuses because the JSON forms look alike:
`str | UUID`, `date | datetime`, two dataclasses.
"""

import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from dataclasses import dataclass, fields, is_dataclass
from pathlib import PurePath
from typing import Any, get_origin

import msgspec
from msgspec import inspect

from shigoto.codec.adapter import Adapter, make_adapter, unfit
from shigoto.codec.annotations import mentioned, metadata, shown
from shigoto.codec.kinds import Kinds, kinds_for
from shigoto.codec.text import ADDRESSES, ENCODER
from shigoto.codec.values import Rules, check, nodes
from shigoto.model.errors import DeclarationError

_UNSTORABLE = (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    type,
)


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
        """Refuse what JSON would change without a word, and what is not of the annotated type. Raises Unfit."""
        rules = Rules(None if self.adapter else ENCODER, self.kinds)
        check(value, node=self.node, depth=depth, rules=rules)
        if self.adapter is not None:
            self.adapter.check_kind(value)

    def check_storable(self, value: object, *, depth: int) -> None:
        """Refuse what JSON would change without a word, whatever its type. Raises Unfit."""
        check(value, node=None, depth=depth, rules=Rules(None if self.adapter else ENCODER))


def make_slot(annotation: Any, *, where: str) -> Slot:
    """Find out who can read this annotation; `where` names the place. Raises DeclarationError."""
    for part in mentioned(annotation):
        if any(part is each or get_origin(part) is each for each in _UNSTORABLE):
            raise DeclarationError(
                f"{where}: {shown(part)} cannot be stored as JSON. "
                "Annotate it with what the values are, for example list[...]."
            )
    try:
        node, refusal = _known_to_msgspec(annotation)
    except NameError as error:
        raise DeclarationError(
            f"{where}: a class in {shown(annotation)} has an annotation that cannot be resolved: {error}. "
            "Import the name at run time, not under `if TYPE_CHECKING:`, and define it at module level."
        ) from error
    if node is not None and not _is_pydantic(annotation, node):
        return _plain_slot(annotation, node)
    adapter = make_adapter(annotation)
    if isinstance(adapter, Adapter):
        return Slot(annotation, adapter=adapter)
    if node is not None and any(isinstance(each, inspect.StructType) for each in nodes(node)):
        return _plain_slot(annotation, node)
    raise DeclarationError(f"{where}: {shown(annotation)} cannot be read from JSON{refusal}. {adapter}")


def read_foreign(kind: Any, value: Any) -> Any:
    """Make a value of a type that msgspec does not know from its JSON form. Raises ValueError."""
    if kind is object:
        return value
    if hasattr(kind, "model_validate_json"):
        try:
            return kind.model_validate_json(ENCODER.encode(value))
        except ValueError as error:
            misfit = unfit(error, value)
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
