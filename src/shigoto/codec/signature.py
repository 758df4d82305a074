"""The signature of one task function: the rules for it, and its annotations, resolved once.

Annotations are resolved late, at the first enqueue or when a worker starts: at the decorator, names that the
module defines further down do not exist yet. `check_shape` is the part that can be told before.
"""

import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from inspect import Parameter, isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, unwrap
from inspect import Signature as RawSignature
from inspect import signature as read_signature
from types import FunctionType, NoneType
from typing import Any, ForwardRef, Never, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from shigoto.codec.arguments import Arguments, Result
from shigoto.codec.slot import make_slot
from shigoto.codec.text import JsonLimits
from shigoto.model.errors import DeclarationError


def check_shape(fn: Callable[..., Any], *, task: str, context_type: type) -> bool:
    """Refuse what cannot be a task, without resolving annotations; say whether it takes a Context.

    Raises DeclarationError.
    """
    _refuse_other_callables(fn, task=task)
    parameters = list(raw_signature(fn).parameters.values())
    if not parameters:
        return False
    first, *others = parameters
    takes_context = _is_context(first.annotation, fn=fn, context_type=context_type)
    if takes_context and first.kind is not Parameter.KEYWORD_ONLY:
        parameters = others
    for parameter in parameters:
        if _is_context(parameter.annotation, fn=fn, context_type=context_type):
            _refuse(
                task, f"parameter {parameter.name!r} is the Context, which must come first, before any `*`."
            )
        _refuse_nameless(parameter, task=task)
    if not takes_context and first.kind is not Parameter.KEYWORD_ONLY:
        _refuse_bare(first, fn=fn, task=task)
    return takes_context


def raw_signature(fn: Callable[..., Any]) -> RawSignature:
    """The signature with annotations as they stand, resolved or not."""
    options: dict[str, Any] = {}
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        options["annotation_format"] = Format.FORWARDREF
    return read_signature(fn, **options)


def resolve_annotation(annotation: Any, *, fn: Callable[..., Any], where: str) -> Any:
    """The type that a raw annotation stands for; `Any` where there is none.

    Raises DeclarationError, which begins with `where`.
    """
    if annotation is Parameter.empty:
        return Any
    holder = FunctionType((lambda: None).__code__, {})
    holder.__annotations__ = {"it": annotation}
    type_parameters = {each.__name__: each for each in getattr(fn, "__type_params__", ())}
    try:
        return get_type_hints(holder, _names_of(fn), type_parameters, include_extras=True)["it"]
    except NameError as error:
        raise DeclarationError(
            f"{where}: the annotation {_written(annotation)!r} cannot be resolved: {error}. "
            "Import it at run time, not under `if TYPE_CHECKING:`, and define it at module level, "
            "not inside a function."
        ) from error
    except Exception as error:
        raise DeclarationError(
            f"{where}: the annotation {_written(annotation)!r} is not a type: {error}."
        ) from error


def _refuse_other_callables(fn: object, *, task: str) -> None:
    remedy = "decorate a function made with `def` or `async def`"
    if not isinstance(fn, FunctionType):
        _refuse(task, f"a {type(fn).__name__} cannot be a task; {remedy} and call it from there.")
    if fn.__name__ == "<lambda>":
        _refuse(task, f"a lambda cannot be a task; {remedy}.")
    if isgeneratorfunction(fn) or isasyncgenfunction(fn):
        _refuse(
            task,
            "a generator cannot be a task, nobody would iterate over it; return a list instead of `yield`.",
        )
    if iscoroutinefunction(unwrap(fn)) and not iscoroutinefunction(fn):
        _refuse(
            task,
            "the function is async but what wraps it is not, so nobody would await it; make the wrapper"
            " `async def` and await the function in it, or leave out functools.wraps if it runs it to its end.",
        )


def _refuse_nameless(parameter: Parameter, *, task: str) -> None:
    if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        stars, instead = ("*", "list") if parameter.kind is Parameter.VAR_POSITIONAL else ("**", "dict")
        _refuse(
            task,
            f"`{stars}{parameter.name}` cannot be stored: arguments are stored by name and checked by type; "
            f"take one parameter `{parameter.name}: {instead}[...]`.",
        )
    if parameter.kind is Parameter.POSITIONAL_ONLY:
        _refuse(
            task,
            f"parameter {parameter.name!r} is positional-only, but workers pass by name; remove the `/`.",
        )


def _refuse_bare(first: Parameter, *, fn: Callable[..., Any], task: str) -> None:
    """Type checkers take a first parameter of unknown type for the Context and drop it from calls."""
    annotation = first.annotation
    if isinstance(annotation, str | ForwardRef):
        annotation = _look_up(_written(annotation), _names_of(fn)) or _written(annotation).rpartition(".")[2]
    if isinstance(annotation, TypeVar) or annotation in (Parameter.empty, Any, object, "Any", "object"):
        method = "A method cannot be a task; use a function. " if first.name in ("self", "cls") else ""
        _refuse(
            task,
            f"the first parameter {first.name!r} could be anything, even a Context. {method}"
            "Annotate it: with its type, with Context, or with shigoto.JSON if any JSON value will do.",
        )


def _is_context(annotation: Any, *, fn: Callable[..., Any], context_type: type) -> bool:
    """Whether the raw annotation is the Context.

    A name that cannot be looked up is taken at its word: `Context` is often imported for type checkers only.
    """
    if isinstance(annotation, str | ForwardRef):
        written = _written(annotation)
        annotation = _look_up(written, _names_of(fn))
        if annotation is None:
            return written.rpartition(".")[2] == context_type.__name__
    return annotation is context_type or get_origin(annotation) is context_type


def _look_up(dotted: str, names: Mapping[str, Any]) -> Any:
    first, *others = dotted.split(".")
    found = names.get(first)
    for name in others:
        found = getattr(found, name, None)
    return found


def _names_of(fn: Callable[..., Any]) -> dict[str, Any]:
    names: dict[str, Any] = getattr(unwrap(fn), "__globals__", {})
    return names


def _written(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    return annotation.strip("'\" ") if isinstance(annotation, str) else ""


def _refuse(task: str, why: str) -> NoReturn:
    raise DeclarationError(f"task {task!r}: {why}")


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
    limits = JsonLimits(max_bytes, max_depth)
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
