"""The signature of one task function, resolved once and used for every job."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from inspect import Parameter
from types import NoneType
from typing import Any, Never, NoReturn, get_args, get_origin

from shigoto.codec.arguments import Arguments
from shigoto.codec.declaration import check_shape, raw_signature, resolve_annotation
from shigoto.codec.result import Result
from shigoto.codec.slot import make_slot
from shigoto.codec.text import Limits


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """What one task function accepts and returns."""

    takes_context: bool
    arguments: Arguments
    result: Result

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """The JSON text of a call: an object of the arguments that were passed, by name.

        Defaults are not stored. Raises PayloadInvalid, PayloadTooLarge.
        """
        return self.arguments.encode(args, kwargs)

    def encode_from_outside(self, arguments: Mapping[str, object]) -> str:
        """The same for arguments that may stand there in their JSON form already: a datetime as its text.

        Raises PayloadInvalid, PayloadTooLarge.
        """
        return self.arguments.encode((), arguments, from_outside=True)

    def decode(self, payload: str | bytes) -> dict[str, Any]:
        """The keyword arguments in a payload, converted to the annotated types. Raises PayloadInvalid."""
        return self.arguments.decode(payload)

    def encode_result(self, value: object) -> str:
        """The JSON text of a return value.

        Only what cannot be stored is refused, because the effect has happened: a value that contradicts the
        return annotation is an error for whoever reads it. Raises ResultInvalid.
        """
        return self.result.encode(value)

    def decode_result(self, text: str) -> Any:
        """The return value in a stored text, converted to the annotated type. Raises ResultInvalid."""
        return self.result.decode(text)

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments object."""
        return self.arguments.json_schema()

    def json_schema_of_result(self) -> dict[str, Any]:
        """The JSON Schema of the stored result."""
        return self.result.json_schema()


def resolve(
    fn: Callable[..., Any], *, task: str, context_type: type, max_bytes: int = 1_048_576, max_depth: int = 64
) -> Signature:
    """Resolve the annotations of a task function and build its decoders.

    Raises DeclarationError, which names the task, the parameter and the remedy.
    """
    takes_context = check_shape(fn, task=task, context_type=context_type)
    raw = raw_signature(fn)
    parameters: list[Parameter] = []
    for parameter in list(raw.parameters.values())[takes_context:]:
        where = f"task {task!r}: parameter {parameter.name!r}"
        annotation = resolve_annotation(parameter.annotation, fn=fn, where=where)
        parameters.append(parameter.replace(annotation=annotation))
    where = f"task {task!r}: the result"
    returned = _awaited(resolve_annotation(raw.return_annotation, fn=fn, where=where))
    limits = Limits(max_bytes, max_depth)
    return Signature(
        takes_context,
        Arguments.of(task, parameters, limits),
        Result.of(task, make_slot(returned, where=where), limits),
    )


def _awaited(annotation: Any) -> Any:
    """What there is to store: a plain function may return an awaitable, or always raise."""
    if annotation in (Never, NoReturn):
        return NoneType
    if get_origin(annotation) in (Awaitable, Coroutine):
        return get_args(annotation)[-1]
    return annotation
