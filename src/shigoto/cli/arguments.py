"""The arguments of a job on a command line: one JSON object, or NAME=VALUE for each."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import click
import msgspec

from shigoto.cli import output
from shigoto.codec.signature import Signature
from shigoto.model.errors import JobError, PayloadInvalid

NO_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)  # the last one for [[[[[[…
FORMS = """Write '{"name": "value"}' or --arg name=value; only the built-in tasks take a message."""
SHOWN = 60  # cells of what was written


def read_object(text: str) -> dict[str, Any]:
    """The arguments in a JSON object. Raises PayloadInvalid."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except NO_JSON:
        raise PayloadInvalid(
            f"The arguments are no JSON object: {output.clip(text, SHOWN)}. {FORMS}"
        ) from None


def is_object(text: str) -> bool:
    """Whether a text is a JSON object, and not a message that merely begins like one."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except NO_JSON:
        return False


def read_arguments(
    given: Sequence[str], *, beside: Mapping[str, Any], signature: Signature | None
) -> dict[str, Any]:
    """The arguments of all --arg, none of which may stand in the object `beside` them. Raises a usage error."""
    found: dict[str, Any] = {}
    for argument in given:
        name, sign, text = argument.partition("=")
        if not sign or not name.isidentifier():
            raise click.UsageError(f"--arg takes NAME=VALUE, not {argument!r}.")
        if name in found or name in beside:
            ways = "both times as --arg" if name in found else "as a word and as --arg"
            raise click.UsageError(f"The argument {name!r} is given twice, {ways}.")
        found[name] = _read(name, text, signature)
    return found


@contextmanager
def hinting_at_texts(
    given: Sequence[str], arguments: Mapping[str, Any], signature: Signature | None
) -> Generator[None]:
    """If the task refuses what looked like JSON, and would take it as a text, say how to write that."""
    try:
        yield
    except PayloadInvalid as error:
        for name, _, text in (argument.partition("=") for argument in given):
            is_refused = f"argument {name!r}: " in str(error) and signature is not None
            if is_refused and arguments[name] != text and _takes(signature, {**arguments, name: text}):
                raise PayloadInvalid(f"{error} For a text {_quoted(name, text)}.") from error
        raise


def _takes(signature: Signature | None, arguments: Mapping[str, Any]) -> bool:
    try:
        return signature is not None and bool(signature.encode_from_outside(arguments))
    except JobError:
        return False


def _read(name: str, text: str, signature: Signature | None) -> Any:
    """A value. Where the task wants a str it is the text as it is, whatever that looks like."""
    slot = None if signature is None else signature.arguments.slots.get(name)
    kinds = set[Any]() if slot is None else _members(slot.annotation)
    if kinds - {NoneType} == {str}:
        return None if text == "null" and NoneType in kinds else text
    try:
        return msgspec.json.decode(text)
    except NO_JSON:
        if text.startswith(("{", "[")):
            raise click.UsageError(
                f"--arg {name} begins like JSON and is none: {output.clip(output.one_line(text), SHOWN)}."
                f" For a text {_quoted(name, text)}."
            ) from None
        return text


def _members(annotation: Any) -> set[Any]:
    """The types that an annotation leaves to choose from, by their plainest names."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return set[Any]().union(*(_members(each) for each in get_args(annotation)))
    supertype: Any = getattr(annotation, "__supertype__", None)
    return {annotation} if supertype is None else _members(supertype)


def _quoted(name: str, text: str) -> str:
    """How to write an argument that is a text and looks like something else."""
    from shlex import quote

    written = msgspec.json.encode(text.encode("utf-8", "replace").decode()).decode()
    return f"write --arg {quote(f'{name}={output.clip(written, SHOWN)}')}"
