"""Cases of the zoo: objects that are not what they seem, errors that mean something to others, limits and results."""

import asyncio
import atexit
import itertools
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Generator
from typing import Any, NoReturn

from faults.apps.cases import PROCESS, case
from shigoto import (
    Cancel,
    JobCancelled,
    LeaseLost,
    PayloadInvalid,
    Snooze,
    StoreUnavailable,
)

MEGABYTE = 1_000_000


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
