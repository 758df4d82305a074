"""The arguments and the result of one task function ⇄ JSON text, and their JSON Schema.

The quick way through `encode` writes the text, reads it back as the worker will, and compares: what comes out
equal has lost nothing. Only what differs or fails is walked through, to find the place and the reason.

The JSON Schema (draft 2020-12) is for people, and for programs in other languages. msgspec describes what it reads,
pydantic what is its own, and all classes stand together in the `$defs` of one document. What the schema refuses the
codec may still take, where JSON leaves a choice: a Decimal is asked for as text, which keeps every digit, though a
number would be read too. Formats are for information.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Flag
from inspect import Parameter
from typing import Any, NoReturn, Self

import msgspec
from msgspec import UNSET, inspect
from msgspec.structs import astuple

from shigoto.codec.annotations import annotation_text, is_secret
from shigoto.codec.slot import Adapter, Slot, describe, make_slot, read_foreign, schema_of_foreign
from shigoto.codec.text import ENCODER, JsonLimits, TooLarge, check_limits, explain, is_json, with_numbers
from shigoto.codec.values import Misfit, nodes
from shigoto.model.errors import PayloadInvalid, PayloadTooLarge, ResultInvalid, nearest
from shigoto.model.text import shown

SECRET = "its value does not fit, and is secret"

_FIELD = re.compile(r"Object (missing required|contains unknown) field `([^`]*)`")

DIALECT = "https://json-schema.org/draft/2020-12/schema"
DEFINED = "#/$defs/"

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Arguments:
    """The parameters of one task function, without its Context.

    `text` shows them in errors, `positional` may be passed by position, pydantic reads those with `adapters`.
    The values of `secrets` are told to nobody.
    `struct` is the payload as msgspec sees it: a field for each parameter, in order; `node` describes it. Up to `quick`
    arguments by position can be encoded the quick way. A text of up to `harmless` bytes can break neither limit.
    """

    task: str
    text: str
    slots: Mapping[str, Slot]
    numbered: tuple[tuple[int, str], ...]
    positional: tuple[str, ...]
    required: tuple[str, ...]
    defaults: Mapping[str, object]
    adapters: Mapping[str, Adapter]
    secrets: frozenset[str]
    opaque: bool
    quick: int
    limits: JsonLimits
    harmless: int
    struct: type[msgspec.Struct]
    node: inspect.Type
    decoder: msgspec.json.Decoder[msgspec.Struct]

    @classmethod
    def of(cls, task: str, parameters: Sequence[Parameter], limits: JsonLimits) -> Self:
        """Build the decoder for parameters whose annotations are resolved. Raises DeclarationError."""
        slots = {
            each.name: make_slot(each.annotation, where=f"task {task!r}: parameter {each.name!r}")
            for each in parameters
        }
        required = tuple(each.name for each in parameters if each.default is Parameter.empty)
        # Parameters that are passed by name only may be required after one that has a default.
        mixed = tuple(slots)[: len(required)] != required
        struct = _payload_struct(slots, required, kw_only=mixed)
        positional = tuple(each.name for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD)
        needs_care = any(slot.adapter or slot.opaque for slot in slots.values())
        return cls(
            task=task,
            text=_signature_text(task, parameters),
            slots=slots,
            numbered=tuple(enumerate(slots)),
            positional=positional,
            required=required,
            defaults={each.name: each.default for each in parameters if each.name not in required},
            adapters={name: slot.adapter for name, slot in slots.items() if slot.adapter},
            secrets=frozenset(each.name for each in parameters if is_secret(each.annotation)),
            opaque=any(slot.opaque for slot in slots.values()),
            quick=0 if needs_care or mixed else len(positional),
            limits=limits,
            harmless=min(limits.depth, limits.size),
            struct=struct,
            node=inspect.type_info(struct),
            decoder=msgspec.json.Decoder(struct, dec_hook=read_foreign),
        )

    @property
    def secret_defaults(self) -> dict[str, Any]:
        """What a run has for secret parameters that nobody has given it, as JSON would have it."""
        defaults = {name: self.defaults[name] for name in self.secrets & self.defaults.keys()}
        return {name: msgspec.to_builtins(value, enc_hook=str) for name, value in defaults.items()}

    def encode(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], *, from_outside: bool = False
    ) -> str:
        """Bind, write, and read back; see `Signature.encode`. Raises PayloadInvalid, PayloadTooLarge."""
        if args and not kwargs and len(args) <= self.quick and (quickly := self._encode_quickly(args)):
            return quickly
        arguments = kwargs if not args and kwargs.__class__ is dict else self._bind(args, kwargs)
        try:
            written = self._write(arguments)
            arrived = self._read(written)
            unchanged = arrived == arguments
            text = written.decode()
        except TooLarge as error:
            raise PayloadTooLarge(f"task {self.task!r}: the arguments: {error.reason}.") from error
        except Exception:
            return self._encode_with_care(arguments, from_outside=from_outside)
        if self.opaque or not unchanged:
            watched = self._watched(arguments, from_outside=from_outside)
            self._check(watched)
            self._check_arrival(watched, arrived)
        return text

    def _encode_quickly(self, args: tuple[object, ...]) -> str | None:
        """The text of arguments that are all passed by position, if it says the same; None if care is needed.

        Half of what `encode` takes: the struct binds the arguments and compares them, too.
        """
        try:
            if UNSET in args:
                return None
            sent = self.struct(*args)
            written = ENCODER.encode(sent)
            if len(written) > self.harmless:
                check_limits(written, self.limits)
            return written.decode() if self.decoder.decode(written) == sent else None
        except Exception:
            return None

    def decode(self, payload: str | bytes) -> dict[str, Any]:
        """The keyword arguments in a payload. Raises PayloadInvalid."""
        try:
            return self._read(payload)
        except Exception as error:
            self._refuse_payload(error)

    def json_schema(self) -> Schema:
        """The schema of a payload: an object with a property for each parameter, in their order, and no other."""
        (reference,), definitions, adapted = _described([self.struct], self.adapters)
        payload = definitions.pop(reference["$ref"].removeprefix(DEFINED))
        properties: Schema = {name: adapted.get(name, plain) for name, plain in payload["properties"].items()}
        for name in self.secrets:
            properties[name] = _write_only(properties[name])
        for name, default in self.defaults.items():
            written = None if name in self.secrets else _default_text(default, self.slots[name].adapter)
            if written is not None:
                properties[name] = {**properties[name], "default": msgspec.json.decode(written)}
        return _document(self.task, {**payload, "properties": properties}, definitions)

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Mapping[str, object]:
        if len(args) > len(self.positional):
            most = len(self.positional)
            self._refuse_call(f"{len(args)} arguments were given by position, at most {most} are taken")
        arguments = {self.positional[number]: value for number, value in enumerate(args)}
        for name, value in kwargs.items():
            if name in arguments:
                self._refuse_call(f"argument {name!r} was given twice, by position and by name")
            arguments[name] = value
        return arguments

    def _write(self, arguments: Mapping[str, object]) -> bytes:
        if self.adapters:
            adapted = {
                name: each.write(arguments[name]) for name, each in self.adapters.items() if name in arguments
            }
            arguments = {**arguments, **adapted}
        written = ENCODER.encode(arguments)
        check_limits(written, self.limits)
        return written

    def _read(self, payload: str | bytes) -> dict[str, Any]:
        # Pairs by number, not zip(..., strict=True), which would make decoding 1.5 times as slow.
        values = astuple(self.decoder.decode(payload))
        arguments = {name: values[number] for number, name in self.numbered if values[number] is not UNSET}
        for name, adapter in self.adapters.items():
            if name in arguments:
                try:
                    arguments[name] = adapter.read(arguments[name])
                except Misfit as misfit:
                    raise misfit.under(name) from misfit
        return arguments

    def _encode_with_care(self, arguments: Mapping[str, object], *, from_outside: bool) -> str:
        """Find out why the quick way failed, and mend it if bools for numbers are all there is."""
        self._check_names(arguments)
        watched = self._watched(arguments, from_outside=from_outside)
        self._check(watched)
        try:
            text = with_numbers(self._write(arguments), self.node).decode()
        except Exception as error:
            if self.secrets:
                self._refuse("the arguments cannot be stored, and some of them are secret")
            self._refuse(f"the arguments cannot be stored: {explain(error)[0]}", error)
        self._check_arrival(watched, self.decode(text))
        return text

    def _check_names(self, arguments: Mapping[str, object]) -> None:
        for name in arguments:
            if name not in self.slots:
                self._refuse_unknown(name)
        for name in self.required:
            if name not in arguments:
                self._refuse_call(f"argument {name!r} is missing")

    def _watched(self, arguments: Mapping[str, object], *, from_outside: bool) -> Mapping[str, object]:
        """The arguments whose Python types count; in what is JSON already only reading it back does."""
        if not from_outside:
            return arguments
        depth = self.limits.depth - 1
        return {name: value for name, value in arguments.items() if not is_json(value, depth=depth)}

    def _check(self, arguments: Mapping[str, object]) -> None:
        for name, value in arguments.items():
            try:
                self.slots[name].check(value, depth=self.limits.depth - 1)
            except Misfit as misfit:
                self._refuse_value(name, misfit)

    def _check_arrival(self, arguments: Mapping[str, object], arrived: Mapping[str, object]) -> None:
        for name, adapter in self.adapters.items():
            if name in arguments:
                try:
                    adapter.check_arrival(arguments[name], arrived[name])
                except Misfit as misfit:
                    self._refuse_value(name, misfit)

    def _refuse_value(self, name: str, misfit: Misfit) -> NoReturn:
        if name in self.secrets:
            self._refuse(f"argument {name!r}: {SECRET}")
        self._refuse(f"argument {name + misfit.path!r}: {misfit.reason}", misfit)

    def _refuse_payload(self, error: Exception) -> NoReturn:
        if match := _FIELD.fullmatch(str(error)):
            if match[1] == "contains unknown":
                self._refuse_unknown(match[2], error)
            self._refuse_call(f"argument {match[2]!r} is missing", error)
        reason, path = explain(error)
        name = re.split(r"[.\[]", path.removeprefix("."), maxsplit=1)[0]
        if name in self.secrets:
            self._refuse(f"argument {name!r}: {SECRET}")
        place = f"argument {path.removeprefix('.')!r}" if path else "the payload"
        self._refuse(f"{place}: {reason}", error)

    def _refuse_unknown(self, name: str, cause: Exception | None = None) -> NoReturn:
        self._refuse_call(
            f"there is no parameter {shown(name)}", cause, hint=nearest(str(name), tuple(self.slots))
        )

    def _refuse_call(self, why: str, cause: Exception | None = None, *, hint: str = "") -> NoReturn:
        self._refuse(f"{why}.{hint} The signature is {self.text}", cause)

    def _refuse(self, why: str, cause: Exception | None = None) -> NoReturn:
        # What a value is hidden in would be told with the cause: by its own words, or by those of its author.
        raise PayloadInvalid(f"task {self.task!r}: {why}.") from (None if self.secrets else cause)


def _payload_struct(
    slots: Mapping[str, Slot], required: Sequence[str], *, kw_only: bool
) -> type[msgspec.Struct]:
    """One numbered field for each parameter: a Struct cannot have every name that a parameter can."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (f"p{number}", slot.stored_as) if name in required else (f"p{number}", slot.stored_as, UNSET)
        for number, (name, slot) in enumerate(slots.items())
    ]
    names = {f"p{number}": name for number, name in enumerate(slots)}
    return msgspec.defstruct("Payload", fields, rename=names, kw_only=kw_only, forbid_unknown_fields=True)


def _signature_text(task: str, parameters: Sequence[Parameter]) -> str:
    parts: list[str] = []
    for each in parameters:
        if each.kind is Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = "" if each.default is Parameter.empty else " = ..."
        parts.append(f"{each.name}: {annotation_text(each.annotation)}{default}")
    return f"{task}({', '.join(parts)})"


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What one task function returns.

    Looser than arguments are: by the time there is a result the effect has happened, so only what cannot be
    stored is refused, and under `Any` whatever has a JSON form is stored in that form.
    """

    task: str
    slot: Slot
    limits: JsonLimits
    decoder: msgspec.json.Decoder[Any]

    @classmethod
    def of(cls, task: str, slot: Slot, limits: JsonLimits) -> Self:
        """Build the decoder for a resolved annotation."""
        return cls(task, slot, limits, msgspec.json.Decoder(slot.stored_as, dec_hook=read_foreign))

    def encode(self, value: object) -> str:
        """Write, and see whether it reads back. Raises ResultInvalid."""
        try:
            return self._encode(value).decode()
        except Exception as error:
            reason, path = explain(error)
            raise ResultInvalid(
                f"task {self.task!r}: the result{path} cannot be stored: {reason}."
            ) from error

    def decode(self, text: str) -> Any:
        """The value in a stored text. Raises ResultInvalid."""
        try:
            return self._read(text)
        except Exception as error:
            reason, path = explain(error)
            raise ResultInvalid(
                f"task {self.task!r}: the stored result{path} does not fit the return annotation: {reason}."
            ) from error

    def json_schema(self) -> Schema:
        adapter = self.slot.adapter
        if adapter is None:
            (schema,), definitions, _ = _described([self.slot.annotation], {})
        else:
            _, definitions, adapted = _described([], {"result": adapter})
            schema = adapted["result"]
        return _document(f"{self.task}: result", schema, definitions)

    def _write(self, value: object) -> bytes:
        adapter = self.slot.adapter
        written = ENCODER.encode(value if adapter is None else adapter.write(value))
        check_limits(written, self.limits)
        return written

    def _read(self, text: str | bytes) -> Any:
        value = self.decoder.decode(text)
        return value if self.slot.adapter is None else self.slot.adapter.read(value)

    def _encode(self, value: object) -> bytes:
        try:
            written = self._write(value)
        except TooLarge:
            raise
        except Exception:
            self._check(value)
            raise
        try:
            unchanged = self._read(written) == value
        except Exception:
            unchanged = False
            written = with_numbers(written, self.slot.node)
        if self.slot.opaque or not unchanged:
            self._check(value)
        return written

    def _check(self, value: object) -> None:
        self.slot.check_storable(value, depth=self.limits.depth)


def _write_only(schema: Schema) -> Schema:
    text = {"format": "password"} if schema.get("type") == "string" and "format" not in schema else {}
    return {**schema, **text, "writeOnly": True}


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


def _default_text(default: object, adapter: Adapter | None) -> bytes | None:
    """A default in its JSON form; one that has none is left out, for it never stands in a payload."""
    try:
        return ENCODER.encode(default if adapter is None else adapter.write(default))
    except Exception:
        return None
