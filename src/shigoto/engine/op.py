"""Operations written once: a restartable generator of commands, which a driver runs.

An engine method returns an `Op`; nothing has happened yet. A driver starts it, executes each command it yields in the
engine's own currency (a SQL statement, a script call), sends the answer back in, and returns its value. One copy of the
logic thus serves sync callers, async callers, and callers who hand in their own open connection.

An op may be started again from the beginning as long as nothing was committed. That is what makes a group of waiting
ops cheap: they run in one transaction without savepoints, and if any of them fails, the driver rolls back and runs each
by itself. So an op keeps no state outside its generator; `committed` is the place for what must happen only once.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct, structs

T = TypeVar("T")

Steps = Generator[Any, Any, T]


class Write(Struct, frozen=True):
    """The command by which a probe says that it has found something to change."""


WRITE = Write()


class OpBatch(Struct, Generic[T], frozen=True):
    """The way to run several ops as one, for less than one after the other.

    A driver may merge ops that have the same `key`: `merge` makes one op from their `subject`s, and its values are
    theirs, in their order.
    """

    key: str
    subject: Any
    merge: "Callable[[list[Any]], Op[list[T]]]"


class Op(Struct, Generic[T], frozen=True, kw_only=True):
    """One operation of an engine.

    `start` gives its steps, which may be part of any transaction.
    `mode` is read (sees one snapshot), write (all or nothing), or probe: a write that may find nothing to do. A driver
    may start a probe without the right to write; when the op then yields `WRITE`, which it does before its first
    change, it is started again with it.
    `rings` tells from the value whether the commit made work ready or wants a worker's attention: then doorbells ring.
    `committed` is called once, after the commit of a transaction that the driver itself began.
    `deadline` is for how many seconds it is worth waiting, where that is less than a driver would wait by itself.
    `urgent`: a worker's lease, or what it has done, depends on it: no driver lets it wait behind all others.
    `batch` is None if it is never merged with others.
    `hints` are faster ways to run it, of a class of its engine. Only the driver of that engine reads them, and it may
    ignore them.
    """

    start: Callable[[], Steps[T]]
    mode: Literal["read", "write", "probe"] = "write"
    rings: Callable[[T], bool] | None = None
    committed: Callable[[T], None] | None = None
    deadline: float | None = None
    urgent: bool = False
    batch: OpBatch[T] | None = None
    hints: object = None


def extended(op: Op[T], steps: Callable[[], Steps[T]]) -> Op[T]:
    """Return an op that runs `steps`, which include those of the given op, in one transaction.

    It rings, is followed up and is waited for like the given op. Its steps write, even if those of the given op read.
    It has no batch and no hints, because a driver that used them would leave out the added steps.
    """
    return Op(start=steps, rings=op.rings, committed=op.committed, deadline=op.deadline, urgent=op.urgent)


def merged(ops: Sequence[Op[T]]) -> Op[list[T]]:
    """Return one op that does what these ops do, which have the same batch key, and is followed up like all of them."""
    batch = ops[0].batch
    assert batch is not None

    def rings(values: list[T]) -> bool:
        return any(op.rings is not None and op.rings(value) for op, value in zip(ops, values, strict=True))

    def committed(values: list[T]) -> None:
        for op, value in zip(ops, values, strict=True):
            if op.committed is not None:
                op.committed(value)

    op = batch.merge([op.batch.subject for op in ops if op.batch is not None])
    return structs.replace(op, rings=rings, committed=committed)


def drive(steps: Steps[T], execute: Callable[[Any], Any], catch: type[Exception] = Exception) -> T:
    """Run steps to their value. An error of a command is thrown into them; they handle it or let it pass."""
    try:
        command = next(steps)
        while True:
            try:
                answer = execute(command)
            except catch as error:
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        steps.close()


async def adrive(
    steps: Steps[T],
    execute: Callable[[Any], Awaitable[Any]],
    catch: type[Exception] = Exception,
) -> T:
    """Run steps to their value, awaiting each command."""
    try:
        command = next(steps)
        while True:
            try:
                answer = await execute(command)
            except catch as error:
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        steps.close()


def translate(
    steps: Steps[T],
    execute: Callable[[Any], Steps[Any]],
    catch: type[Exception] = Exception,
) -> Steps[T]:
    """Run steps to their value inside other steps, which execute each command by commands of their own."""
    try:
        command = next(steps)
        while True:
            try:
                answer = yield from execute(command)
            except catch as error:
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        steps.close()
