"""Schedules and their histories, from one store to another."""

from shigoto.engine.movable import Mover
from shigoto.model.record import portions


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
    """Whether nothing is left to copy."""
    return old.run(old.schedule_marks()) == new.run(new.schedule_marks())
