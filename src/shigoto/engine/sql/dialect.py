"""What the SQL engines do each in its own way; all else in this package is one copy for them all."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct

from shigoto.engine.sql.command import Statement, Steps
from shigoto.engine.sql.places import Places
from shigoto.model.job import Enqueued, JobSpec, State
from shigoto.model.time import Millis
from shigoto.model.worker import Settlement

Submit = Callable[[Millis, Sequence[JobSpec]], Steps[list[Enqueued]]]


class Dialect(Struct, frozen=True, kw_only=True):
    """The ways of one store.

    `now_and_step`: store time, remembered for others, and by how much the clock was set back since the last sweep, if
    that was more than can be waited for.
    `complete`: T4 for those of the runs that the worker holds, with their counts; tells which these are.
    `forget`: delete the bodies of jobs of which nothing else is left, with their counts.
    `fold`: bring the counters up to date, as far as that is not done with every change.
    `uncounted`: by queue, how many jobs the counters do not know of yet.
    `numbers`: of those of the jobs that are known, in the order of their ids.
    `lock_keys`: until we end, nobody else can change who holds these keys, which come in order.
    `locked`: which of these runs somebody else has locked; the others are locked by us.
    `is_damage`: whether it is what a row holds that could not be read.
    `submit`: store jobs in the transaction at hand, which no error of theirs may end.
    `places`, `statement`: where jobs are, and a statement from a text with `:name` for each value.
    """

    now_and_step: Callable[[], Steps[tuple[Millis, Millis]]]
    complete: Callable[[Millis, UUID, list[Settlement]], Steps[list[Settlement]]]
    forget: Callable[[Sequence[tuple[int, State, str]]], Steps[None]]
    fold: Callable[[], Steps[None]]
    uncounted: Callable[[], Steps[Mapping[str, int]]]
    numbers: Callable[[Collection[UUID]], Steps[dict[UUID, int]]]
    lock_keys: Callable[[Sequence[tuple[str, str]]], Steps[None]]
    locked: Callable[[Sequence[int]], Steps[Collection[int]]]
    is_damage: Callable[[Exception], bool]
    submit: Submit
    places: Places
    statement: Callable[[str, Mapping[str, Any]], Statement]
