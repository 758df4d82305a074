"""A reader of JSON Schema, as much of draft 2020-12 as the schemas of tasks use; what it does not know is an error."""

import re
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
NOTES = {"$schema", "$defs", "title", "description", "default", "format", "contentEncoding", "examples"}


def accepts(document: dict[str, Any], value: object) -> bool:
    """Whether the value fits the schema of the whole document."""
    return _fits(document, document, value)


def references(schema: Any) -> set[str]:
    """All that the schema refers to."""
    if isinstance(schema, dict):
        found = {schema["$ref"]} if isinstance(schema.get("$ref"), str) else set[str]()
        return found.union(*(references(each) for each in schema.values()))
    return set[str]().union(*(references(each) for each in schema)) if isinstance(schema, list) else set()


def resolved(document: dict[str, Any], reference: str) -> Any:
    """What a reference leads to. Raises KeyError."""
    assert reference.startswith("#/")
    found: Any = document
    for step in reference[2:].split("/"):
        found = found[step]
    return found


def _fits(document: dict[str, Any], schema: Any, value: Any) -> bool:
    if isinstance(schema, bool):
        return schema
    return all(_obeys(document, schema, word, value) for word in schema if word not in NOTES)


def _obeys(document: dict[str, Any], schema: dict[str, Any], word: str, value: Any) -> bool:
    said = schema[word]
    match word:
        case "$ref":
            return _fits(document, resolved(document, said), value)
        case "type":
            return any(_is(each, value) for each in ([said] if isinstance(said, str) else said))
        case "enum":
            return any(each == value and type(each) is type(value) for each in said)
        case "const":
            return bool(said == value)
        case "anyOf":
            return any(_fits(document, each, value) for each in said)
        case "oneOf":
            return sum(_fits(document, each, value) for each in said) == 1
        case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum":
            return not isinstance(value, int | float) or _in_range(word, said, value)
        case "minLength" | "maxLength":
            return not isinstance(value, str) or (len(value) >= said) == (word == "minLength")
        case "pattern":
            return not isinstance(value, str) or re.search(said, value) is not None
        case _ if isinstance(value, list):
            return _fits_array(document, schema, word, value)
        case _ if isinstance(value, dict):
            return _fits_object(document, schema, word, value)
        case _:
            return True


def _is(kind: str, value: object) -> bool:
    return isinstance(value, TYPES[kind]) and not (isinstance(value, bool) and kind != "boolean")


def _in_range(word: str, bound: float, value: float) -> bool:
    match word:
        case "minimum":
            return value >= bound
        case "exclusiveMinimum":
            return value > bound
        case "maximum":
            return value <= bound
        case _:
            return value < bound


def _fits_array(document: dict[str, Any], schema: dict[str, Any], word: str, value: list[Any]) -> bool:
    said, first = schema[word], schema.get("prefixItems", [])
    match word:
        case "prefixItems":
            return all(_fits(document, each, item) for each, item in zip(first, value, strict=False))
        case "items":
            return all(_fits(document, said, item) for item in value[len(first) :])
        case "minItems":
            return bool(len(value) >= said)
        case "maxItems":
            return bool(len(value) <= said)
        case "uniqueItems":
            return len({repr(item) for item in value}) == len(value)
        case "properties" | "required" | "additionalProperties" | "propertyNames":
            return True
        case _:
            raise AssertionError(f"{word} is not known here")


def _fits_object(document: dict[str, Any], schema: dict[str, Any], word: str, value: dict[str, Any]) -> bool:
    said, known = schema[word], schema.get("properties", {})
    match word:
        case "properties":
            return all(_fits(document, each, value[name]) for name, each in said.items() if name in value)
        case "required":
            return set(said) <= set(value)
        case "additionalProperties":
            return all(_fits(document, said, each) for name, each in value.items() if name not in known)
        case "propertyNames":
            return all(_fits(document, said, name) for name in value)
        case "items" | "prefixItems" | "minItems" | "maxItems" | "uniqueItems" | "discriminator":
            return True
        case _:
            raise AssertionError(f"{word} is not known here")
