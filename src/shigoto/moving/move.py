"""A move of all jobs and schedules from one store to another: `shigoto move`.

    copying    the old store works on; finished jobs are copied, block by block of numbers, and schedules
    draining   in the old store no job is claimed any more; what runs has some time to end
    closing    nothing changes in the old store: who enqueues or ticks is refused; what is left is copied and compared
    moved      the old store says for ever where its jobs are; then the new one opens

The new store has a move lock from the beginning to the end, so nobody works on half of it. The one step that counts is
the commit in the old store that says `moved`: before it the old store can be opened again, after it only the new one.

Nothing is remembered of how far a move came. Whoever runs it again compares the two stores, block by block, and copies
what differs: so it may be killed anywhere, and what changed meanwhile is noticed in the same way.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from shigoto.engine.movable import BLOCK, Kind, MoveLock, Mover, mover_of
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError, StoreRefused
from shigoto.model.record import LARGEST, Weight, portions
from shigoto.moving.files import A_FILE, lock_empty

Phase = Literal["copying", "draining", "closing", "moved"]

PASSES = 3  # over what has finished, while the old store works on
FEW = 20  # blocks that differ: then it is time
PAGE = 5_000  # jobs
LOOK_EVERY = 0.1  # seconds


class MoveProgress(Struct, frozen=True):
    """How far a move is: so many jobs of so many; of what runs, while it drains."""

    phase: Phase
    done: int
    whole: int


class Moved(Struct, frozen=True, kw_only=True):
    """What a move has done: `jobs` were copied by this run of it, `released` were running at the end of their time.
    `schedules` are all there are."""

    jobs: int
    schedules: int = 0
    released: int
    closed_for: float  # seconds
    already: bool = False


class StoreMove:
    """One move; `tell` hears how far it is. `wait` is how many seconds running jobs have to end."""

    def __init__(
        self,
        old: Engine,
        new: Engine,
        *,
        wait: float,
        tell: Callable[[MoveProgress], None],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engines = old, new
        self._old, self._new = mover_of(old), mover_of(new)
        self._wait = wait
        self._tell = tell
        self._pause = pause
        self._copied = 0
        self._schedules = 0

    @property
    def names(self) -> tuple[str, str]:
        return self._old.shown, self._new.shown

    def run(self) -> Moved:
        """Move everything. Raises StoreError; the old store works on then, unless its jobs are all in the new one."""
        move_lock = self._begin()
        if move_lock is None:
            return Moved(jobs=0, released=0, closed_for=0.0, already=True)
        self._copy_while_it_works()
        if self._is_locked(self._old, "moved"):
            # Whoever was interrupted has compared them; but somebody else may have come since.
            self._copy_the_rest()
            self._finish()
            return Moved(jobs=self._copied, schedules=self._schedules, released=0, closed_for=0.0)
        closed_at, released, done = 0.0, 0, False
        try:
            if not self._is_locked(self._old, "closed"):
                self._drain(move_lock.move)
            closed_at = time.monotonic()
            released = self._shut_old("closed", move_lock.move)
            self._copy_the_rest()
            self._shut_old("moved", move_lock.move)
            done = True
        finally:
            if not done:
                with suppress(StoreError):  # it was moved after all, by another process; or cannot be reached
                    self._old.run(self._old.open())
        self._finish()
        closed_for = time.monotonic() - closed_at
        return Moved(jobs=self._copied, schedules=self._schedules, released=released, closed_for=closed_for)

    def give_up(self) -> None:
        """Let the old store work on, and empty the new one. Raises StoreMoved if it is too late."""
        move_lock = self._new.run(self._new.move_lock())
        if move_lock is not None:
            self._expect_from_old(move_lock)
        self._old.run(self._old.open(whoever_holds=True))
        if move_lock is not None:
            self._new.run(self._new.shut(move_lock))
            self._new.run(self._new.wipe())
            self._new.run(self._new.open())

    # Who takes part, and how far they are.

    def _begin(self) -> MoveLock | None:
        """The move lock of the new store, as it was left or set now; None if everything is done already."""
        left = self._old.run(self._old.move_lock())
        if self._old.shown == self._new.shown:
            raise StoreRefused(f"{self._old.shown} cannot be moved to itself.")
        if not (left is not None and left.kind == "moved"):
            self._engines[1].migrate()
        move_lock = self._new.run(self._new.move_lock())
        if move_lock is None:
            return self._begin_anew(left)
        self._expect_from_old(move_lock)
        if left is not None and left.move != move_lock.move:
            raise self._elsewhere(left)
        self._new.run(self._new.shut(move_lock))
        return move_lock

    def _begin_anew(self, left: MoveLock | None) -> MoveLock | None:
        if left is not None:
            if left.kind == "moved" and left.other == self._new.shown:
                return None
            raise self._elsewhere(left)
        return lock_empty(self._new, self._old.shown, "Nothing was moved")

    def _expect_from_old(self, move_lock: MoveLock) -> None:
        if (move_lock.kind, move_lock.other) != ("filling", self._old.shown):
            again = (
                "Import again"
                if move_lock.other == A_FILE
                else "Finish that move, or give it up by --give-up"
            )
            raise StoreRefused(
                f"{self._new.shown} takes part in something else: {move_lock.refusal(self._new.shown)} {again}."
            )

    def _elsewhere(self, left: MoveLock) -> StoreRefused:
        hint = "" if left.kind == "moved" else " Finish that move, or give it up by --give-up."
        return StoreRefused(f"{left.refusal(self._old.shown)}{hint}")

    def _is_locked(self, store: Mover, kind: Kind) -> bool:
        move_lock = store.run(store.move_lock())
        return move_lock is not None and move_lock.kind == kind

    def _shut_old(self, kind: Kind, move: str) -> int:
        return self._old.run(self._old.shut(MoveLock(kind=kind, move=move, other=self._new.shown)))

    # The phases.

    def _copy_while_it_works(self) -> None:
        for page in _pages(self._new, finished=False):  # of a move that was interrupted at its end
            self._new.run(self._new.remove([number for number, _ in page]))
        copy_schedules(self._old, self._new)
        for _ in range(PASSES):
            if self._copy_finished("copying") <= FEW:
                return

    def _drain(self, move: str) -> None:
        self._shut_old("draining", move)
        until = time.monotonic() + self._wait
        most = 0
        while (running := self._old.run(self._old.running())) and time.monotonic() < until:
            most = max(most, running)
            self._tell(MoveProgress("draining", most - running, most))
            self._pause(LOOK_EVERY)

    def _copy_the_rest(self) -> None:
        self._copy_finished("closing")
        for page in _pages(self._old, finished=False):
            self._copy(page, "closing", self._copied + len(page), finished=False)
        old = self._engines[0]
        queues = old.run(old.settings())
        self._new.run(self._new.put_settings(queues))
        self._schedules = copy_schedules(self._old, self._new)
        self._expect_same()

    def _finish(self) -> None:
        self._new.run(self._new.open_filled(self._old.run(self._old.highest())))
        self._tell(MoveProgress("moved", self._copied, self._copied))

    # Copying.

    def _copy_finished(self, phase: Phase) -> int:
        """Copy the finished jobs that differ, of blocks that differ, and tell how many blocks these were."""
        theirs, ours = self._old.run(self._old.marks()), self._new.run(self._new.marks())
        blocks = sorted(block for block in theirs | ours if theirs.get(block) != ours.get(block))
        # First what is there already, in all of them: an id may have come back under another number.
        wanted = {block: self._remove_changed(block) for block in blocks if block in ours}
        whole = self._copied + sum(
            len(wanted[block]) if block in wanted else theirs[block].jobs for block in blocks
        )
        for block in blocks:
            if block in theirs and wanted.get(block, True):
                for page in _pages(self._old, finished=True, block=block):
                    some = [job for job in page if block not in wanted or job[0] in wanted[block]]
                    self._copy(some, phase, whole, finished=True)
        return len(blocks)

    def _remove_changed(self, block: int) -> frozenset[int]:
        """Remove the jobs of this block that are not the same any more, and tell which are to be copied."""
        theirs = self._old.run(self._old.marks_within(block))
        ours = self._new.run(self._new.marks_within(block))
        gone = [number for number, mark in ours.items() if theirs.get(number) != mark]
        if gone:
            self._new.run(self._new.remove(gone))
        return frozenset(number for number, mark in theirs.items() if ours.get(number) != mark)

    def _copy(self, page: list[Weight], phase: Phase, whole: int, *, finished: bool) -> None:
        for numbers in portions(page):
            records = self._old.run(self._old.records(numbers))
            # One that was retried since it was weighed comes with those that have not finished.
            wanted = [job for job in records if job.state.terminal == finished]
            # Whoever had one of their keys when it was copied has lost it since.
            self._new.run(self._new.put(wanted, taking_keys=True))
            self._copied += len(records)
            self._tell(MoveProgress(phase, self._copied, max(whole, self._copied)))

    def _expect_same(self) -> None:
        """Raise if the two stores differ, now that nothing changes in either."""
        waiting = zip(_pages(self._old, finished=False), _pages(self._new, finished=False), strict=True)
        try:
            same = all([number for number, _ in a] == [number for number, _ in b] for a, b in waiting)
        except ValueError:  # one of them has more pages
            same = False
        same = same and self._old.run(self._old.marks()) == self._new.run(self._new.marks())
        if not (same and have_same_schedules(self._old, self._new)):
            raise StoreRefused(
                f"{self._new.shown} does not have what {self._old.shown} has, although nothing changes there: has"
                " somebody written to it by hand? Nothing was lost, and the old store works on. Run it again."
            )


def _pages(store: Mover, *, finished: bool, block: int | None = None) -> Iterator[list[Weight]]:
    """The jobs of a store, or of one block of it, a page at a time; what was seen may be gone when the next is read."""
    after, to = (0, LARGEST) if block is None else (block * BLOCK - 1, block * BLOCK + BLOCK - 1)
    while page := store.run(store.weigh(after=after, to=to, finished=finished, limit=PAGE)):
        yield page
        after = page[-1][0]


def copy_schedules(old: Mover, new: Mover) -> int:
    """Copy those that differ, whole, forget those that are gone, and tell how many there are."""
    theirs, ours = old.run(old.schedule_marks()), new.run(new.schedule_marks())
    gone = [name for name in ours if name not in theirs]
    if gone:
        new.run(new.remove_schedules(gone))
    for names in portions((name, mark.weight) for name, mark in theirs.items() if ours.get(name) != mark):
        some = old.run(old.schedules(names))
        new.run(new.put_schedules(some))
    return len(theirs)


def have_same_schedules(old: Mover, new: Mover) -> bool:
    return old.run(old.schedule_marks()) == new.run(new.schedule_marks())
