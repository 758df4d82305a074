"""JSON Schema, draft 2020-12, of what a task takes and returns: for people, and for programs in other languages.

msgspec describes what it reads, pydantic what is its own, and all classes stand together in the `$defs` of one
document. What the schema refuses the codec may still take, where JSON leaves a choice: a Decimal is asked for as text,
which keeps every digit, though a number would be read too. Formats are for information.
"""

from collections.abc import Collection, Mapping
from enum import Flag
from typing import Any

import msgspec

from shigoto.codec.adapter import Adapter, describe
from shigoto.codec.slot import Slot, schema_of_foreign
from shigoto.codec.text import ENCODER
from shigoto.codec.values import nodes

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DEFINED = "#/$defs/"

Schema = dict[str, Any]


def schema_of_arguments(
    task: str,
    struct: type[msgspec.Struct],
    slots: Mapping[str, Slot],
    defaults: Mapping[str, object],
    secrets: Collection[str] = (),
) -> Schema:
    """The schema of a payload: an object with a property for each parameter, in their order, and no other."""
    adapters = {name: slot.adapter for name, slot in slots.items() if slot.adapter is not None}
    (reference,), definitions, adapted = _described([struct], adapters)
    payload = definitions.pop(reference["$ref"].removeprefix(DEFINED))
    properties: Schema = {name: adapted.get(name, plain) for name, plain in payload["properties"].items()}
    for name in secrets:
        properties[name] = _secret(properties[name])
    for name, default in defaults.items():
        if name not in secrets and (written := _written(default, slots[name].adapter)) is not None:
            properties[name] = {**properties[name], "default": msgspec.json.decode(written)}
    return _document(task, {**payload, "properties": properties}, definitions)


def _secret(schema: Schema) -> Schema:
    """What is asked for and never told again."""
    text = {"format": "password"} if schema.get("type") == "string" and "format" not in schema else {}
    return {**schema, **text, "writeOnly": True}


def schema_of_result(task: str, slot: Slot) -> Schema:
    """The schema of a stored result."""
    if slot.adapter is None:
        (schema,), definitions, _ = _described([slot.annotation], {})
    else:
        _, definitions, adapted = _described([], {"result": slot.adapter})
        schema = adapted["result"]
    return _document(f"{task}: result", schema, definitions)


def _described(
    annotations: list[Any], adapters: Mapping[str, Adapter]
) -> tuple[tuple[Schema, ...], Schema, dict[str, Schema]]:
    """The schemas of annotations for msgspec, of `adapters` by their keys, and the definitions they share."""
    models: dict[Any, str] = {}

    def notice(kind: Any) -> Schema:
        if hasattr(kind, "model_validate_json"):
            models.setdefault(kind, f"model {len(models)}")
        return schema_of_foreign(kind)

    # Twice: the first time tells which models of pydantic there are, and which names are taken.
    _, taken = msgspec.json.schema_components(annotations, schema_hook=notice)
    adapted, foreign = describe(adapters, {key: kind for kind, key in models.items()}, taken=set(taken))

    def look_up(kind: Any) -> Schema:
        return (kind in models and adapted[models[kind]]) or schema_of_foreign(kind)

    schemas, definitions = msgspec.json.schema_components(annotations, schema_hook=look_up)
    return schemas, {**_with_flags(annotations, definitions), **foreign}, adapted


def _with_flags(annotations: list[Any], definitions: Schema) -> Schema:
    """The definitions, in which flags are numbers: msgspec lists the single ones and leaves out what they add up to."""
    kinds = {
        node.cls
        for annotation in annotations
        for node in nodes(msgspec.inspect.type_info(annotation))
        if isinstance(node, msgspec.inspect.EnumType) and issubclass(node.cls, Flag)
    }
    single = [each for kind in kinds for each in msgspec.json.schema_components([kind])[1].values()]
    return {
        name: {**{word: said for word, said in each.items() if word != "enum"}, "type": "integer"}
        if each in single
        else each
        for name, each in definitions.items()
    }


def _document(title: str, schema: Schema, definitions: Schema) -> Schema:
    document = {"$schema": DIALECT, **schema, "title": title}
    return {**document, "$defs": definitions} if definitions else document


def _written(default: object, adapter: Adapter | None) -> bytes | None:
    """A default in its JSON form; one that has none is left out, for it never stands in a payload."""
    try:
        return ENCODER.encode(default if adapter is None else adapter.write(default))
    except Exception:
        return None
