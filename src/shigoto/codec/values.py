"""Walks over values, beside the types msgspec read from their annotations.

msgspec writes nan as null, a datetime under `Any` as a string, and refuses a bool where an int is wanted.
These walks find such places and name them. They run only where a round trip through JSON could not prove that
nothing was lost, so they are written to explain, not to be fast.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain
from math import isfinite
from typing import Any, Self, TypeGuard

import msgspec
from msgspec import Struct, inspect

from shigoto.codec.annotations import Kinds, fits, is_any, misfit_reason
from shigoto.model.text import MAX_SHOWN, shown

Step = str | int
Arms = frozenset[type]

OBJECTS = (inspect.DictType, inspect.TypedDictType, inspect.DataclassType, inspect.StructType)
RECORDS = (inspect.TypedDictType, inspect.DataclassType, inspect.StructType)
SEQUENCES = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)


class Misfit(ValueError):
    """A part of a value cannot be stored; `path` leads to it, `reason` says why."""

    def __init__(self, reason: str, steps: Iterable[Step] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[Step] = list(steps)

    @property
    def path(self) -> str:
        """The steps as one reads them in Python: `.items[2].price`, `['a key']`."""
        steps = [_show(step) for step in self.steps[:8]]
        return "".join(steps) + ("…" if len(self.steps) > 8 else "")

    def under(self, step: object) -> Self:
        """The same, seen from one level higher."""
        self.steps.insert(0, step if isinstance(step, int) else str(step))
        return self


class Rules(Struct, frozen=True):
    """What a walk looks at besides the values.

    A leaf of a type not known here is written with `probe` to see whether it can be. Where the annotation
    decides, `kinds` are the types it takes; without them only what is under `Any` is restricted.
    """

    probe: msgspec.json.Encoder | None = None
    kinds: Kinds | None = None


def check(value: object, *, node: inspect.Type | None, depth: int, rules: Rules) -> None:
    """Refuse what JSON would change: non-finite floats, broken text, masked secrets, values of other types.

    `node` None means that the types are checked by others. Raises Misfit.
    """
    if node is not None and rules.kinds is not None and not fits(value, node, rules.kinds):
        raise Misfit(misfit_reason(value, node))
    node = _bare(node, value)
    if is_any(node):
        _check_free(value)
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, float):
        if not isfinite(value):
            raise Misfit(f"{value!r} has no form in JSON; pass None or a finite number")
    elif (parts := children(value)) is not None:
        if depth == 0:
            raise Misfit("nested too deeply, or a value that contains itself; flatten it or pass a reference")
        _check_parts(value, parts, node=node, depth=depth - 1, rules=rules)
    elif value is not None and not isinstance(value, int):
        _check_leaf(value, rules.probe)


def children(value: object) -> Iterable[tuple[Any, object]] | None:
    """The parts of a container or of an instance with fields, each after the step to it; None for a leaf."""
    if is_object(value):
        return value.items()
    if is_array(value):
        return enumerate(value)
    if isinstance(value, msgspec.Struct):
        return ((name, getattr(value, name)) for name in value.__struct_fields__)
    if is_dataclass(value) and not isinstance(value, type):
        return ((each.name, getattr(value, each.name, None)) for each in fields(value))
    if attributes := getattr(type(value), "__attrs_attrs__", None):
        return ((each.name, getattr(value, each.name, None)) for each in attributes)
    if hasattr(type(value), "__pydantic_validator__"):
        extra: dict[str, object] | None = getattr(value, "__pydantic_extra__", None)
        return chain(vars(value).items(), (extra or {}).items())
    return None


def numbers_for_bools(plain: Any, node: inspect.Type | None) -> Any:
    """A copy of decoded JSON in which True and False are 1 and 0 wherever the annotation wants a number.

    Python's types allow a bool for an int or a float, msgspec's do not.
    """
    if isinstance(plain, bool):
        return int(plain) if _wants_number(node) else plain
    if is_object(plain):
        return {key: numbers_for_bools(part, _part(node, key, plain)) for key, part in plain.items()}
    if is_array(plain):
        return [numbers_for_bools(part, _part(node, index, plain)) for index, part in enumerate(plain)]
    return plain


def check_arms(given: object, arrived: object, unions: Collection[Arms]) -> None:
    """Refuse a value that went in as one member of a union and came out as another. Raises Misfit.

    Or that came out as a model of pydantic's but did not go in as one.
    """
    went, came = type(given), type(arrived)
    if went is not came and any(went in union and came in union for union in unions):
        raise Misfit(
            f"a {went.__name__} would arrive as {came.__name__}, since JSON cannot tell them apart here; "
            "narrow the annotation to one of them"
        )
    if hasattr(came, "__pydantic_validator__") and not isinstance(given, _model(came)):
        raise Misfit(f"expected {came.__qualname__}, got {went.__qualname__}")
    if isinstance(given, set | frozenset):
        if unions and given != arrived:
            raise Misfit("a member would arrive as another type of the union; narrow the annotation")
        return
    inside = dict(children(arrived) or ())
    for step, part in children(given) or ():
        if step in inside:
            try:
                check_arms(part, inside[step], unions)
            except Misfit as misfit:
                raise misfit.under(step) from None


def _model(kind: type) -> type:
    """The class itself, or the one it is a parametrised form of: `Box(item=1)` goes for a `Box[int]`."""
    generic: dict[str, Any] = getattr(kind, "__pydantic_generic_metadata__", {})
    return generic.get("origin") or kind


def is_object(value: object) -> TypeGuard[dict[Any, object]]:
    """Whether JSON has the value as an object by itself."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeGuard[Collection[object]]:
    """Whether JSON has the value as an array by itself."""
    return isinstance(value, list | tuple | set | frozenset)


def nodes(node: inspect.Type) -> Iterator[inspect.Type]:
    """The node and all nodes below it, each once: the types of recursive classes contain themselves."""
    seen: dict[int, inspect.Type] = {}
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen[id(each)] = each
            waiting.extend(_below(each))
            yield each


def _check_free(value: object) -> None:
    if is_object(value):
        for key in value:
            if not isinstance(key, str):
                raise Misfit(
                    f"the key {shown(key)} would arrive as a str; annotate the dict, or use str keys"
                )
    elif not (value is None or isinstance(value, str | int | float | list)):
        raise Misfit(
            f"{type(value).__qualname__} would arrive as something else, since the annotation here is Any; "
            "annotate it, or pass None, bool, int, float, str, list or dict"
        )


def _check_text(value: str) -> None:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Misfit(
                f"the text has a lone surrogate at position {error.start}, which UTF-8 cannot carry; "
                "pass bytes, or clean the text with errors='replace'"
            ) from None


def _check_parts(
    value: object, parts: Iterable[tuple[Any, object]], *, node: inspect.Type | None, depth: int, rules: Rules
) -> None:
    keys = node.key_type if isinstance(node, inspect.DictType) else None
    keyed, alike = is_object(value), _alike(node)
    for step, part in parts:
        if keyed and not (type(step) is str and step.isascii() and keys is None):
            _check_key(step, keys, rules)
        below = alike or _part(node, step, value)
        if _is_harmless(part) and (below is None or rules.kinds is None or fits(part, below, rules.kinds)):
            continue
        try:
            check(part, node=below, depth=depth, rules=rules)
        except Misfit as misfit:
            raise misfit.under(step) from None


def _is_harmless(value: object) -> bool:
    """Whether JSON surely carries the value; most parts of most values need no more than this glance."""
    if type(value) is str:
        return value.isascii()
    if type(value) is float:
        return isfinite(value)
    return value is None or type(value) is int or type(value) is bool


def _check_key(key: object, node: inspect.Type | None, rules: Rules) -> None:
    if node is not None and rules.kinds is not None:
        if is_any(node):
            _check_free({key: None})
        elif not fits(key, node, rules.kinds):
            raise Misfit(f"the key {shown(key)}: {misfit_reason(key, node)}")
    try:
        if isinstance(key, float) and not isfinite(key):
            raise Misfit("it has no form in JSON")
        if isinstance(key, str):
            _check_text(key)
        else:
            _check_leaf({key: None}, rules.probe)
    except Misfit as misfit:
        raise Misfit(f"the key {shown(key)} cannot be one in JSON ({misfit.reason})") from None


def _check_leaf(value: object, probe: msgspec.json.Encoder | None) -> None:
    if hasattr(value, "get_secret_value"):
        raise Misfit("a secret is masked when it is written; store it elsewhere and pass its name")
    if probe is None:
        return
    try:
        msgspec.json.decode(probe.encode(value))
    except Exception as error:
        raise Misfit(f"{error}; pass a dataclass, a dict, or another type that JSON can carry") from None


def _show(step: Step) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() and len(step) <= MAX_SHOWN else f"[{shown(step)}]"


def _bare(node: inspect.Type | None, value: object) -> inspect.Type | None:
    while isinstance(node, inspect.Metadata | inspect.UnionType):
        node = _arm(node, value) if isinstance(node, inspect.UnionType) else node.type
    return node


def _arm(node: inspect.UnionType, value: object) -> inspect.Type | None:
    """The member of a union that reads this value: msgspec allows one per JSON kind, or structs with tags."""
    for arm in node.types:
        if is_any(arm) or (isinstance(arm, RECORDS) and type(value) is arm.cls):
            return arm
    for arm in node.types:
        if fits(value, arm):
            return arm
    parts = (*SEQUENCES, inspect.TupleType, inspect.NamedTupleType) if is_array(value) else OBJECTS
    arms = [arm for arm in node.types if isinstance(arm, parts)]
    if is_object(value) and len(arms) > 1:
        arms = [
            arm for arm in arms if isinstance(arm, inspect.StructType) and value.get(arm.tag_field) == arm.tag
        ]
    return arms[0] if arms else None


def _part(node: inspect.Type | None, step: Step, value: object) -> inspect.Type | None:
    """The type that the annotation gives to the part of `value` at `step`."""
    node = _bare(node, value)
    if node is None or is_any(node):
        return node
    if isinstance(step, int) and is_array(value):
        return _item(node, step)
    if isinstance(node, inspect.DictType):
        return node.value_type
    if isinstance(node, RECORDS):
        for each in node.fields:
            if step == (each.encode_name if is_object(value) else each.name):
                return each.type
    return None


def _alike(node: inspect.Type | None) -> inspect.Type | None:
    """The type that the annotation gives to all parts, if it is one."""
    if isinstance(node, SEQUENCES):
        return node.item_type
    return node.value_type if isinstance(node, inspect.DictType) else None


def _item(node: inspect.Type, index: int) -> inspect.Type | None:
    if isinstance(node, SEQUENCES):
        return node.item_type
    types: Sequence[inspect.Type] = ()
    if isinstance(node, inspect.TupleType):
        types = node.item_types
    elif isinstance(node, inspect.NamedTupleType):
        types = [each.type for each in node.fields]
    return types[index] if index < len(types) else None


def _below(node: inspect.Type) -> Iterable[inspect.Type]:
    if isinstance(node, inspect.UnionType):
        return node.types
    if isinstance(node, inspect.Metadata):
        return (node.type,)
    if isinstance(node, SEQUENCES):
        return (node.item_type,)
    if isinstance(node, inspect.TupleType):
        return node.item_types
    if isinstance(node, inspect.DictType):
        return (node.key_type, node.value_type)
    if isinstance(node, (*RECORDS, inspect.NamedTupleType)):
        return (each.type for each in node.fields)
    return ()


def _wants_number(node: inspect.Type | None) -> bool:
    arms = [] if node is None else list(_arms(node))
    return any(isinstance(arm, inspect.IntType | inspect.FloatType) for arm in arms) and not any(
        isinstance(arm, inspect.BoolType) for arm in arms
    )


def _arms(node: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(node, inspect.Metadata | inspect.UnionType):
        for each in _below(node):
            yield from _arms(each)
    else:
        yield node
