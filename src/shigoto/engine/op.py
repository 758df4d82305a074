"""Operations written once: a restartable generator of commands, which a driver runs.

An engine method returns an `Op`; nothing has happened yet. A driver starts it, executes each command it yields in the
engine's own currency (a SQL statement, a script call), sends the answer back in, and returns its value. One copy of the
logic thus serves sync callers, async callers, and callers who hand in their own open connection.

An op may be started again from the beginning as long as nothing was committed. That is what makes a group of waiting
ops cheap: they run in one transaction without savepoints, and if any of them fails, the driver rolls back and runs each
by itself. So an op keeps no state outside its generator; `committed` is the place for what must happen only once.
"""

from collections.abc import Callable, Generator
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

T = TypeVar("T")

Steps = Generator[Any, Any, T]


class Write(Struct, frozen=True):
    """The command by which a probe says that it has found something to change."""


WRITE = Write()


class Op(Struct, Generic[T], frozen=True, kw_only=True):
    """One operation of an engine.

    `mode` is read (sees one snapshot), write (all or nothing), or probe: a write that may find nothing to do. A driver
    may start a probe without the right to write; when the op then yields `WRITE`, which it does before its first
    change, it is started again with it.
    `rings` tells from the value whether the commit made work ready or wants a worker's attention: then doorbells ring.
    `committed` is called once, after the commit of a transaction that the driver itself began.
    `direct` is a short cut for the ordinary case: one command does it all. It is given what executes a command, and its
    answer is None if the case is not ordinary and nothing was changed; then the op is started.
    `several` is an op that does a number of such ops at once, for less than one after the other: it is made from their
    `subject`s, and its values are theirs. A driver may use it for ops of one group that have the same.
    `single`: in the ordinary case one command does it all, and a driver may run the first command by itself, outside of
    any transaction. If the op yields another, the first has changed nothing: it failed, or answered so.
    `urgent`: a worker's lease, or what it has done, depends on it: no driver lets it wait behind all others.
    `deadline` is for how many seconds it is worth waiting, where that is less than a driver would wait by itself.
    `inside` is how it is started inside a caller's transaction, where that is another way. `ahead` gives what is run
    and committed before that, apart from the caller's transaction, which would keep others waiting for it; None if
    there is nothing to do. It may fail: the op does it, too.
    """

    start: Callable[[], Steps[T]]
    mode: Literal["read", "write", "probe"] = "write"
    rings: Callable[[T], bool] | None = None
    committed: Callable[[T], None] | None = None
    direct: Callable[[Callable[..., Any]], T | None] | None = None
    several: "Callable[[list[Any]], Op[list[T]]] | None" = None
    subject: Any = None
    single: bool = False
    urgent: bool = False
    deadline: float | None = None
    inside: Callable[[], Steps[T]] | None = None
    ahead: "Callable[[], Op[None] | None] | None" = None


def extended(op: Op[T], steps: Callable[[], Steps[T]]) -> Op[T]:
    """One whose steps do more than another's, in the same transaction; else it is run, and followed up, like it."""
    return Op(
        start=steps,
        rings=op.rings,
        committed=op.committed,
        subject=op.subject,
        urgent=op.urgent,
        deadline=op.deadline,
    )


def drive(op: Op[T], execute: Callable[[Any], Any]) -> T:
    """Run an op to its value; an error of a command is thrown into the op, which may handle it or let it pass."""
    steps = op.start()
    try:
        command = next(steps)
        while True:
            try:
                answer = execute(command)
            except Exception as error:
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        steps.close()
