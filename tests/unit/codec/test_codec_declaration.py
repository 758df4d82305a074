"""A function that cannot be a task is refused with a remedy, at the latest when its hints are resolved."""

import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from uuid import UUID

import msgspec
import pytest

from shigoto.codec import check_shape, resolve
from shigoto.model.errors import DeclarationError, PayloadInvalid

if TYPE_CHECKING:
    from fractions import Fraction

T = TypeVar("T")


class Context: ...


class Other:
    class Context: ...


def declare(source: str, **names: object) -> Callable[..., Any]:
    """The function that a piece of source defines, in a module that has only these names."""
    module: dict[str, Any] = {"Any": Any, "T": T, **names}
    exec(source, module)
    fn: Callable[..., Any] = module["task"]
    return fn


def shape(fn: Callable[..., Any]) -> bool:
    return check_shape(fn, task="app.task", context_type=Context)


def shape_of(source: str, **names: object) -> bool:
    return shape(declare(source, **names))


def refusal_of(action: Callable[..., object], *args: Any, **options: Any) -> str:
    with pytest.raises(DeclarationError) as refusal:
        action(*args, **options)
    assert str(refusal.value).startswith("task 'app.task': ")
    return str(refusal.value)


def resolving(fn: Callable[..., Any]) -> str:
    return refusal_of(resolve, fn, task="app.task", context_type=Context)


def test_functions_with_and_without_context_are_told_apart() -> None:
    assert shape_of("def task(ctx: Context, x: int): ...", Context=Context)
    assert shape_of("async def task(c: Context): ...", Context=Context)
    assert shape_of("def task(ctx: Context, /, x: int): ...", Context=Context)
    assert not shape_of("def task(x: int): ...")
    assert not shape_of("def task(): ...")


@pytest.mark.parametrize("written", ["Context", "shigoto.Context", "a.b.Context", "'Context'"])
def test_a_context_that_is_imported_only_for_type_checkers_is_known_by_its_name(written: str) -> None:
    fn = declare(f'def task(ctx: "{written}", x: int): ...')

    assert shape(fn)
    assert resolve(fn, task="app.task", context_type=Context).decode('{"x":1}') == {"x": 1}


def test_another_class_named_context_is_not_the_context() -> None:
    @dataclass
    class Mine:
        x: int

    fn = declare('def task(ctx: "Context"): ...', Context=Mine)

    assert not shape(fn)
    assert not shape_of('def task(ctx: "Other.Context"): ...', Other=Other)
    assert resolve(fn, task="app.task", context_type=Context).decode('{"ctx":{"x":1}}') == {"ctx": Mine(1)}


@pytest.mark.parametrize(
    "source",
    [
        "def task(x: int, ctx: Context): ...",
        "def task(*, ctx: Context): ...",
        "def task(ctx: Context, again: Context): ...",
        "def task(x: int, ctx: 'Context'): ...",
    ],
)
def test_the_context_comes_first(source: str) -> None:
    assert "is the Context, which must come first" in refusal_of(shape_of, source, Context=Context)


@pytest.mark.parametrize(
    "source",
    [
        "def task(x): ...",
        "def task(x: Any): ...",
        "def task(x: object): ...",
        "def task(x: T): ...",
        "def task(x: 'Any'): ...",
        "def task(x: 'typing.Any'): ...",
        "def task(x: 'T'): ...",
        "def task(x: 'object' = 1): ...",
    ],
)
def test_a_first_parameter_that_could_be_anything_must_be_annotated(source: str) -> None:
    text = refusal_of(shape_of, source)

    assert "the first parameter 'x' could be anything" in text
    assert "shigoto.JSON" in text


def test_a_keyword_cannot_be_taken_for_the_context() -> None:
    assert not shape_of("def task(*, x): ...")


def test_type_parameters_are_known() -> None:
    fn: Any = declare("def task(x: 'list[Q]') -> 'Q': ...")
    fn.__type_params__ = (TypeVar("Q"),)

    assert resolve(fn, task="app.task", context_type=Context).decode('{"x":[1]}') == {"x": [1]}


def test_a_method_is_recognised() -> None:
    assert "A method cannot be a task" in refusal_of(shape_of, "def task(self, x: int): ...")


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ("def task(*args: int): ...", "take one parameter `args: list[...]`"),
        ("def task(x: int, **options: int): ...", "take one parameter `options: dict[...]`"),
        (
            "def task(x: int, /): ...",
            "parameter 'x' is positional-only, but workers pass by name; remove the `/`",
        ),
    ],
)
def test_parameters_that_cannot_be_passed_by_name_are_refused(source: str, remedy: str) -> None:
    assert remedy in refusal_of(shape_of, source)


def test_generators_are_refused() -> None:
    assert "a generator cannot be a task" in refusal_of(shape_of, "def task(x: int): yield x")
    assert "a generator cannot be a task" in refusal_of(shape_of, "async def task(x: int): yield x")


class Callables:
    def method(self, x: int) -> None: ...

    def __call__(self, x: int) -> None: ...


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (functools.partial(print, 1), "a partial cannot"),
        (Callables, "a type cannot"),
        (Callables(), "a Callables cannot"),
        (Callables().method, "a method cannot"),
        (print, "a builtin_function_or_method cannot"),
        (functools.cache(shape), "a _lru_cache_wrapper cannot"),
        (lambda: None, "a lambda cannot"),
    ],
)
def test_only_plain_functions_are_tasks(thing: Callable[..., Any], name: str) -> None:
    text = refusal_of(shape, thing)

    assert name in text
    assert "decorate a function made with `def` or `async def`" in text


def test_a_wrapped_function_shows_its_own_parameters() -> None:
    def inner(ctx: Context, x: int) -> str:
        return str(x)

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> str:
        return inner(*args, **kwargs)

    task = resolve(outer, task="app.task", context_type=Context)

    assert task.takes_context
    assert task.decode('{"x":1}') == {"x": 1}


def test_names_defined_after_the_function_are_found_when_hints_are_resolved() -> None:
    fn = declare("def task(x: 'Later', y: list['Later']) -> 'Later': ...")
    assert not shape(fn)

    fn.__globals__["Later"] = int

    assert resolve(fn, task="app.task", context_type=Context).decode('{"x":1,"y":[2]}') == {"x": 1, "y": [2]}


def test_a_name_that_exists_only_for_type_checkers_is_refused_with_the_remedy() -> None:
    def task(share: "Fraction") -> None: ...

    text = resolving(task)

    assert (
        "parameter 'share': the annotation 'Fraction' cannot be resolved: name 'Fraction' is not defined"
        in text
    )
    assert "not under `if TYPE_CHECKING:`" in text


def test_a_return_annotation_that_cannot_be_resolved_is_refused() -> None:
    assert "the result: the annotation 'Nowhere' cannot be resolved" in resolving(
        declare("def task() -> 'Nowhere': ...")
    )


def test_an_annotation_that_is_not_a_type_is_refused() -> None:
    assert "parameter 'x': the annotation '1 +' is not a type" in resolving(
        declare("def task(x: '1 +'): ...")
    )


def test_a_field_of_a_dataclass_that_cannot_be_resolved_is_refused() -> None:
    @dataclass
    class Order:
        share: "Fraction"

    text = resolving(declare("def task(order: Order): ...", Order=Order))

    assert "parameter 'order': a class in " in text
    assert "has an annotation that cannot be resolved: name 'Fraction' is not defined" in text


class Ratio(Enum):
    HALF = 0.5


class Plain: ...


@pytest.mark.parametrize(
    ("annotation", "shown"),
    [
        (str | UUID, "str | UUID"),
        (str | datetime, "str | datetime"),
        (date | datetime, "date | datetime"),
        (list[str | bytes], "list[str | bytes]"),
        (Ratio, "Ratio"),
        (Plain, "Plain has no known JSON form"),
        (dict[str, Plain], "dict[str, Plain]"),
        (complex, "complex"),
    ],
)
def test_without_pydantic_what_msgspec_refuses_is_refused_with_a_remedy(
    annotation: Any, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)

    text = resolving(declare("def task(x: annotation): ...", annotation=annotation))

    assert "parameter 'x'" in text
    assert shown in text
    assert "Narrow the annotation, or install pydantic" in text


@pytest.mark.parametrize(
    "annotation",
    [
        Iterator[int],
        Callable[[int], int],
        AsyncIterator[int],
        list[Iterator[int]],
        Awaitable[int] | None,
        type[int],
    ],
)
def test_what_has_no_value_to_store_is_refused(annotation: Any) -> None:
    text = resolving(declare("def task(x: annotation): ...", annotation=annotation))

    assert "cannot be stored as JSON. Annotate it with what the values are" in text


def test_attrs_classes_are_supported() -> None:
    attrs: Any = pytest.importorskip("attrs")
    shelf = attrs.make_class("Shelf", {"size": attrs.field(type=int)})
    task = resolve(declare("def task(x: shelf): ...", shelf=shelf), task="app.task", context_type=Context)

    assert task.decode(task.encode((shelf(3),), {})) == {"x": shelf(3)}
    with pytest.raises(PayloadInvalid, match=r"'x\.size': expected int, got None"):
        task.encode((shelf(None),), {})


def test_attrs_classes_with_private_fields_are_refused() -> None:
    attrs: Any = pytest.importorskip("attrs")
    drawer = attrs.make_class("Drawer", {"_key": attrs.field(type=int)})

    text = resolving(declare("def task(x: drawer): ...", drawer=drawer))

    assert "the private field _key of Drawer would not be written" in text


@pytest.mark.parametrize("returned", [Awaitable[int], Coroutine[Any, Any, int], int])
def test_a_plain_function_may_return_an_awaitable(returned: Any) -> None:
    task = resolve(declare("def task() -> R: ...", R=returned), task="app.task", context_type=Context)

    assert task.decode_result("3") == 3


def test_a_function_that_never_returns_has_no_result() -> None:
    task = resolve(declare("def task() -> N: ...", N=NoReturn), task="app.task", context_type=Context)

    assert task.decode_result(task.encode_result(None)) is None


def test_a_return_type_that_cannot_be_stored_is_refused() -> None:
    assert "the result: Iterator[int] cannot be stored" in resolving(
        declare("def task() -> R: ...", R=Iterator[int])
    )


def test_a_struct_that_refers_to_itself_is_supported() -> None:
    class Tree(msgspec.Struct):
        children: list["Tree"]

    Tree.__annotations__["children"] = list[Tree]
    task = resolve(declare("def task(x: Tree): ...", Tree=Tree), task="app.task", context_type=Context)

    assert task.decode(task.encode((Tree([Tree([])]),), {})) == {"x": Tree([Tree([])])}
