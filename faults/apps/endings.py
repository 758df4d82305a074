"""Cases of the zoo: what ends programs, what is deep or endless, and errors whose text is no good."""

import asyncio
import sys
from typing import Any, NoReturn

from faults.apps.cases import case

FRAMES = 100_000
MEGABYTE = 1_000_000


# What ends programs, or is not even meant to be caught


@case("SystemExit: 3")
def leaves() -> NoReturn:
    sys.exit(3)


@case("SystemExit: bye")
def leaves_with_a_word() -> NoReturn:
    sys.exit("bye")


@case("SystemExit")
def leaves_content() -> NoReturn:
    sys.exit()


@case("KeyboardInterrupt")
def interrupts() -> NoReturn:
    raise KeyboardInterrupt


@case("GeneratorExit")
def generator_exit() -> NoReturn:
    raise GeneratorExit("by hand")


class OutOfTheTree(BaseException):
    pass


@case("OutOfTheTree: hello")
def base_exception() -> NoReturn:
    raise OutOfTheTree("hello")


@case("CancelledError")
def cancels_itself() -> NoReturn:
    raise asyncio.CancelledError("by hand")


@case("CancelledError")
async def cancels_itself_for_real() -> None:
    """Nobody can tell who it was, so the job is given back once, and has failed next time."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)


@case("StopIteration")
def stop_iteration() -> object:
    if asyncio._get_running_loop() is None:
        raise StopIteration("empty")
    return next(iter(()))


@case("StopAsyncIteration")
async def stop_async_iteration() -> None:
    raise StopAsyncIteration("empty")


# Groups, causes, depth


@case("ExceptionGroup: many (3 sub-exceptions)")
def group() -> NoReturn:
    raise ExceptionGroup("many", [ValueError("one"), KeyError("two"), ExceptionGroup("in", [OSError("3")])])


@case("BaseExceptionGroup")
def group_with_an_exit() -> NoReturn:
    raise BaseExceptionGroup("many", [SystemExit(1), KeyboardInterrupt()])


@case("ExceptionGroup")
def groups_in_groups() -> NoReturn:
    error: Exception = ValueError("innermost")
    for _ in range(5_000):
        error = ExceptionGroup("outer", [error])
    raise error


@case("ExceptionGroup")
def wide_group() -> NoReturn:
    raise ExceptionGroup("wide", [ValueError(number) for number in range(20_000)])


@case("ValueError: 9999")
def long_chain() -> NoReturn:
    error: BaseException | None = None
    for number in range(10_000):
        later = ValueError(number)
        later.__cause__, error = error, later
    assert error is not None
    raise error


@case("ValueError: one")
def cyclic_chain() -> NoReturn:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    one.__context__, other.__context__ = other, one
    raise one


@case("ValueError: deep")
def many_frames() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(FRAMES + before)
    try:
        _fall(FRAMES)
    finally:
        sys.setrecursionlimit(before)


def _fall(depth: int) -> None:
    if not depth:
        raise ValueError("deep")
    _fall(depth - 1)


@case("RecursionError")
def recursion() -> object:
    return _for_ever(0)


def _for_ever(number: int) -> int:
    return _for_ever(number + 1) + 1


@case("KeyError: 'second'")
def raises_in_finally() -> None:
    try:
        raise ValueError("first")
    finally:
        raise KeyError("second")


# Text that is no good


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@case("Mute: <its message cannot be shown")
def broken_str() -> NoReturn:
    raise Mute("x")


class Shapeless(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no shape")


@case("Shapeless")
def broken_repr() -> NoReturn:
    raise Shapeless(Shapeless())


class Exits(Exception):
    def __str__(self) -> str:
        if self.args:
            return "never"
        raise SystemExit("from __str__")


@case("Exits")
def str_that_exits() -> NoReturn:
    raise Exits


class Numeric(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value] # noqa: PLE0307


@case("Numeric")
def str_that_is_no_str() -> NoReturn:
    raise Numeric


@case("ValueError: xxx")
def fifty_megabytes() -> NoReturn:
    raise ValueError("x" * 50 * MEGABYTE)


@case("ValueError: 語語語")
def fifty_wide_megabytes() -> NoReturn:
    raise ValueError("語" * (50 * MEGABYTE // 4))


@case("ValueError: a\\x00b")
def nul() -> NoReturn:
    raise ValueError("a\0b")


@case("ValueError: \\ud800")
def lone_surrogates() -> NoReturn:
    raise ValueError("\ud800 \udfff")


@case("ValueError: ")
def escapes() -> NoReturn:
    raise ValueError("\x1b[31mred\x1b]0;title\x07 \x9b2J \u202e \u2066 \r\n\x1e")


class Evil(str):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("hands off")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __bool__(self) -> bool:
        raise RuntimeError("neither")

    def __format__(self, spec: str) -> str:
        raise RuntimeError("no format")

    def __getitem__(self, at: Any) -> str:
        raise RuntimeError("no letter")


class Possessed(Exception):
    def __str__(self) -> str:
        return Evil("boo")


@case("Possessed")
def hostile_string() -> NoReturn:
    raise Possessed


@case("ValueError: noted")
def hostile_notes() -> NoReturn:
    error = ValueError("noted")
    error.__notes__ = 7  # type: ignore[assignment]
    raise error
