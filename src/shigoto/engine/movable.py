"""The contract between moves and the engines whose jobs can be moved, exported and imported as a whole.

Policy lives above this line: in which order jobs are copied, and when the old store is given up. Below it: what one
transaction does. A store that takes part in a move has a *move lock*, which keeps others out. Nobody looks for one: it
makes the statements of whoever does not know of it fail by themselves, so that a store without one pays nothing.

    draining   an old store: no job is claimed any more; what runs goes on and ends
    closed     an old store: nothing changes any more, and nothing runs
    moved      an old store, for ever
    filling    a new store, until it has everything
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeVar, runtime_checkable
from uuid import UUID

from msgspec import Struct

from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError, StoreMoved, StoreMoving, Unsupported
from shigoto.model.job import QueueSettings
from shigoto.model.record import JobRecord, StoredSchedule, Weight, weight_of

T = TypeVar("T")

BLOCK = 1_000  # numbers

Kind = Literal["draining", "closed", "moved", "filling"]
REFUSALS: dict[str, type[StoreError]] = {error.code: error for error in (StoreMoved, StoreMoving)}


class MoveLock(Struct, frozen=True, kw_only=True):
    """What keeps others out of a store: `move` says for which move, `other` where the jobs go or come from.

    Both are for people to see: `other` has no secrets in it. `holder` is the mover that has put it up: a move that was
    interrupted has another one when it goes on.
    """

    kind: Kind
    move: str
    other: str
    holder: str = ""

    @property
    def code(self) -> str:
        """The code of the error that it makes."""
        return (StoreMoved if self.kind == "moved" else StoreMoving).code

    def refusal(self, store: str) -> str:
        """What they are told who want to change this store."""
        match self.kind:
            case "moved":
                return f"{store} was moved to {self.other}, where its jobs are now. Use that address."
            case "filling":
                return (
                    f"{store} is being filled with the jobs of {self.other}. Nobody can use it before that is done."
                    " If it was interrupted, run the same command again."
                )
            case _:
                return (
                    f"{store} is being moved to {self.other}. Try again in a moment; when it says that it was moved,"
                    " use that address."
                )


class StoreMark(Struct, frozen=True, array_like=True):
    """What tells whether the finished jobs of a block of numbers, or one of them, are the same in two stores.

    Whoever has ended again, or later, has a larger `finished_at`; what came and went at the same time thus never adds
    up to the same, nor do lines of a log, which have rising numbers. A job that has ended can only lose its key, to one
    that takes it.
    """

    jobs: int = 0
    tokens: int = 0
    finished_at: int = 0
    log_lines: int = 0
    line_numbers: int = 0
    keys: int = 0


class ScheduleMark(Struct, frozen=True, array_like=True):
    """What tells whether a schedule and its history are the same in two stores: whoever changes either raises the
    revision, but for those who only say that they declare it."""

    id: UUID
    revision: int
    declared_at: int
    entries: int
    newest: int | None

    @property
    def weight(self) -> int:
        """About how many characters they are."""
        return weight_of(self.entries)


class Mover(Protocol):
    """One store, for one who moves it. What it changes, it changes behind a move lock that it has set itself: should a
    second one come for the same store, then that one takes over, and StoreRefused ends the first.
    """

    @property
    def shown(self) -> str:
        """What people call the store."""
        ...

    def run(self, op: Op[T]) -> T:
        """Run an op in the calling thread and commit it, however long it takes."""
        ...

    def move_lock(self) -> Op[MoveLock | None]:
        """The move lock, if there is one."""
        ...

    def shut(self, move_lock: MoveLock) -> Op[int]:
        """Set a move lock, in place of one of the same move. It waits for the transactions of others, not for long.

        Raises StoreMoved or StoreMoving if it takes part in another move, or was moved. `moved` is only for a store
        that was closed by the same mover, and has been closed since.
        By `closed` everything that still runs is released (T8) and its workers are forgotten, in the same transaction:
        counts the jobs. Nothing that is committed later can have begun before.
        """
        ...

    def open(self, *, whoever_holds: bool = False) -> Op[None]:
        """Take the move lock away that this mover has set, or any. Raises StoreMoved for a store that was moved."""
        ...

    def open_filled(self, highest: int) -> Op[None]:
        """Take the move lock of a new store away: its counters tell what it holds, and numbers go on after
        `highest`."""
        ...

    def is_empty(self) -> Op[bool]:
        """Whether it holds no job and no schedule at all."""
        ...

    def highest(self) -> Op[int]:
        """The highest number that was ever given to a job."""
        ...

    def running(self) -> Op[int]:
        """How many jobs are processing."""
        ...

    def marks(self) -> Op[dict[int, StoreMark]]:
        """The mark of each block that has finished jobs; block n has the numbers from n * BLOCK on."""
        ...

    def marks_within(self, block: int) -> Op[dict[int, StoreMark]]:
        """The mark of each finished job of the block, by number."""
        ...

    def weigh(self, *, after: int, to: int, finished: bool | None, limit: int) -> Op[list[Weight]]:
        """The first jobs with a number above `after`, up to `to`: finished ones, others, or None for any."""
        ...

    def records(self, numbers: Sequence[int]) -> Op[list[JobRecord]]:
        """Those of the jobs that are there, whole, by number."""
        ...

    def export(
        self,
        begin: Callable[[int, list[QueueSettings]], None],
        tell_schedules: Callable[[list[StoredSchedule]], None],
        tell: Callable[[list[JobRecord]], None],
    ) -> Op[int]:
        """Tell of everything as it is at one instant: first the highest number and the queues, then all schedules by
        name, then all jobs by number, in portions; and how many jobs they were.

        An op that was started again after it has told of some raises StoreUnavailable.
        """
        ...

    def put(self, records: Sequence[JobRecord], *, taking_keys: bool = False) -> Op[None]:
        """Store these jobs, none of which is there or processing. They are not counted before `open_filled`.

        A key that another job has is theirs then, if they are `taking_keys`; else it is an error.
        """
        ...

    def put_settings(self, queues: Sequence[QueueSettings]) -> Op[None]:
        """Replace the settings of these queues."""
        ...

    def remove(self, numbers: Sequence[int]) -> Op[None]:
        """Forget jobs that were put."""
        ...

    def schedule_marks(self) -> Op[dict[str, ScheduleMark]]:
        """The mark of each schedule, by name, in their order."""
        ...

    def schedules(self, names: Sequence[str]) -> Op[list[StoredSchedule]]:
        """Those of the schedules that are there, whole, by name."""
        ...

    def put_schedules(self, schedules: Sequence[StoredSchedule]) -> Op[None]:
        """Store these schedules and their histories, in place of those of the same names."""
        ...

    def remove_schedules(self, names: Sequence[str]) -> Op[None]:
        """Forget schedules that were put."""
        ...

    def wipe(self) -> Op[None]:
        """Forget all jobs, queues and schedules."""
        ...


@runtime_checkable
class Movable(Protocol):
    """An engine whose store can be moved."""

    def mover(self) -> Mover:
        """The store, for whoever moves it."""
        ...


def mover_of(engine: Engine) -> Mover:
    """The store of the engine. Raises Unsupported if it cannot be moved."""
    if not engine.capabilities.moves or not isinstance(engine, Movable):
        raise Unsupported(
            f"A {engine.capabilities.name} store cannot be moved, exported or imported: its jobs end with its process."
            " Use a file, or postgresql://USER@HOST/DATABASE."
        )
    return engine.mover()


def refused(code: str, text: str) -> StoreError | None:
    """The error of a move lock, told by its code; None if it is another's."""
    kind = REFUSALS.get(code)
    return None if kind is None else kind(text)
