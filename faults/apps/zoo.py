"""Handlers that end in every way there is but a good one, each in the event loop, in a thread and in a child process.

What a case must come to stands beside it. Tasks have no retries, so one run decides.
"""

import asyncio
import atexit
import itertools
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator
from inspect import iscoroutinefunction
from typing import Any, NoReturn, TypeVar

from msgspec import Struct

from faults.apps.jobs import recorded
from shigoto import (
    Cancel,
    Context,
    JobCancelled,
    LeaseLost,
    PayloadInvalid,
    Shigoto,
    Snooze,
    StoreUnavailable,
)

app = Shigoto()

LOOP, THREAD, PROCESS, OWN_LOOP = "in_loop", "in_thread", "in_process", "in_own_loop"
SYNC = (LOOP, THREAD, PROCESS)
ASYNC = (LOOP, OWN_LOOP)
FRAMES = 100_000
MEGABYTE = 1_000_000

F = TypeVar("F", bound=Callable[..., Any])


class Case(Struct, frozen=True, kw_only=True):
    """A handler, where it runs, and what it must come to; `words` must stand in the error."""

    run: Callable[..., Any]
    where: tuple[str, ...]
    state: str
    kind: str
    words: str
    timeout: float | None


CASES: dict[str, Case] = {}


def case(
    words: str = "",
    *,
    state: str = "failed",
    kind: str = "error",
    where: tuple[str, ...] | None = None,
    timeout: float | None = None,
) -> Callable[[F], F]:
    """Put a function into the zoo."""

    def add(run: F) -> F:
        places = where or (ASYNC if iscoroutinefunction(run) else SYNC)
        wanted = "" if state != "failed" else kind
        CASES[run.__name__] = Case(
            run=run, where=places, state=state, kind=wanted, words=words, timeout=timeout
        )
        return run

    return add


@app.task(retries=0)
async def in_loop(ctx: Context, case: str) -> object:
    with recorded(ctx):
        run = CASES[case].run
        return await run() if iscoroutinefunction(run) else run()


@app.task(retries=0)
def in_thread(ctx: Context, case: str) -> object:
    with recorded(ctx):
        return CASES[case].run()


@app.task(retries=0, executor="process")
def in_process(ctx: Context, case: str) -> object:
    with recorded(ctx):
        return CASES[case].run()


@app.task(retries=0, executor="process")
async def in_own_loop(ctx: Context, case: str) -> object:
    with recorded(ctx):
        run = CASES[case].run
        return await run() if iscoroutinefunction(run) else run()


@app.task(retries=0)
async def healthy_loop(ctx: Context) -> str:
    with recorded(ctx):
        return "well"


@app.task(retries=0)
def healthy_thread(ctx: Context) -> str:
    with recorded(ctx):
        return "well"


@app.task(retries=0, executor="process")
def healthy_process(ctx: Context) -> str:
    with recorded(ctx):
        return "well"


HEALTHY = ("healthy_loop", "healthy_thread", "healthy_process")


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


# Objects that are not what they seem


class Touchy(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"do not touch {name}")


@case()
def raises_on_access() -> NoReturn:
    raise Touchy("x")


class Fatal(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(f"do not touch {name}")


@case()
def exits_on_access() -> NoReturn:
    raise Fatal("x")


class Liar(Exception):
    @property
    def __class__(self) -> Any:
        return Snooze

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


@case("Liar")
def lies_about_its_class() -> NoReturn:
    raise Liar("x")


class Hidden(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


@case()
def hides_its_class() -> NoReturn:
    raise Hidden("x")


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Anonymous(Exception, metaclass=Nameless):
    pass


@case()
def class_without_a_name() -> NoReturn:
    raise Anonymous("x")


class Leaving(type):
    def __getattribute__(cls, name: str) -> Any:
        raise SystemExit(f"no {name}")


class Left(Exception, metaclass=Leaving):
    pass


@case()
def class_that_exits() -> NoReturn:
    raise Left("x")


class Unequal(Exception):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("incomparable")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")


@case("Unequal: x")
def cannot_be_compared() -> NoReturn:
    raise Unequal("x")


class Locked(Exception):
    def __init__(self) -> None:
        super().__init__(threading.Lock(), socket.socketpair, lambda: None)


@case("Locked")
def cannot_be_pickled() -> NoReturn:
    raise Locked


class Picky(Exception):
    def __init__(self, first: str, second: str, *, third: str) -> None:
        super().__init__(f"{first} {second} {third}")


@case("Picky: a b c")
def cannot_be_unpickled() -> NoReturn:
    raise Picky("a", "b", third="c")


class OddDelay(Snooze):
    def __init__(self) -> None:
        super().__init__(1)
        self.delay = "soon"  # type: ignore[assignment]


@case("OddDelay: its delay is no whole number")
def odd_snooze() -> NoReturn:
    raise OddDelay


class Reasonless(Cancel):
    def __str__(self) -> str:
        raise RuntimeError("no reason")


@case(state="cancelled")
def cancel_without_words() -> NoReturn:
    raise Reasonless("x")


# Errors that mean something to others


@case("TimeoutError: slow")
def timeout_error() -> NoReturn:
    raise TimeoutError("slow")


@case("MemoryError")
def memory_error() -> NoReturn:
    raise MemoryError


@case("MemoryError")
def out_of_memory() -> object:
    return "x" * (1 << 60)


@case("UserWarning: careful")
def warning_as_error() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("careful", stacklevel=1)


@case("StoreUnavailable: says who")
def our_own_trouble() -> NoReturn:
    raise StoreUnavailable("says who")


@case("PayloadInvalid: of another")
def our_own_refusal() -> NoReturn:
    raise PayloadInvalid("of another")


@case("LeaseLost: not ours")
def our_own_loss() -> NoReturn:
    raise LeaseLost("not ours")


@case("JobCancelled: not ours")
def our_own_cancel() -> NoReturn:
    raise JobCancelled("not ours")


# Time limits that are not taken seriously


@case("took longer than its limit", kind="timeout", timeout=0.2)
async def swallows_a_cancel() -> None:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        await asyncio.sleep(30)


@case("ValueError: in the way", kind="timeout", timeout=0.2)
async def raises_when_cancelled() -> None:
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        raise ValueError("in the way") from None


@case("SystemExit", kind="timeout", timeout=0.2)
async def leaves_when_cancelled() -> None:
    try:
        await asyncio.sleep(30)
    finally:
        sys.exit("enough")


@case("took longer than its limit", kind="timeout", where=(PROCESS,), timeout=0.5)
def swallows_everything() -> None:
    for _ in itertools.count():
        try:
            time.sleep(30)
        except BaseException:
            continue


# Results


@case("", kind="result_invalid")
def an_object() -> object:
    return object()


@case("", kind="result_invalid")
def a_function() -> object:
    return lambda: None


@case("", kind="result_invalid")
def too_large() -> object:
    return "x" * 2 * MEGABYTE


@case("", kind="result_invalid")
def cyclic() -> object:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@case("", kind="result_invalid")
def too_deep() -> object:
    nest: list[Any] = []
    for _ in range(100_000):
        nest = [nest]
    return nest


@case("", kind="result_invalid")
def not_a_number() -> object:
    return [float("nan"), float("inf")]


@case("", kind="result_invalid")
def half_a_letter() -> object:
    return "\ud800"


@case("", kind="result_invalid")
def long_number() -> object:
    return 10**10_000


@case("", kind="result_invalid")
def a_generator() -> Generator[int]:
    yield 1


@case("", kind="result_invalid")
def a_coroutine() -> object:
    coroutine = asyncio.sleep(0)
    atexit.register(coroutine.close)  # so that nobody warns that it was never awaited
    return coroutine


class Trap(dict[str, Any]):
    def items(self) -> Any:
        sys.exit("from items")

    def __iter__(self) -> Any:
        sys.exit("from __iter__")


@case("", kind="result_invalid")
def result_that_exits() -> object:
    return [Trap(a=1), object()]


@case("", kind="result_invalid")
def result_without_a_class() -> object:
    return [Touchy("x")]


# Side effects


@case(state="completed")
def exits_in_a_thread() -> str:
    thread = threading.Thread(target=sys.exit, args=(3,))
    thread.start()
    thread.join()
    return "well"


@case(state="completed", where=(PROCESS,))
def exits_at_exit() -> str:
    atexit.register(os._exit, 7)
    return "well"
