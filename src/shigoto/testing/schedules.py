"""The schedules of a test: declared and fired as by a worker, whenever the clock is where they are due.

What is decided and what is stored is the real worker's affair: `schedule/fire.py`. Here is only who asks, and that
nobody else does: so a change is always heard.
"""

from asyncio import CancelledError
from collections.abc import Mapping

from shigoto.app import Shigoto
from shigoto.model.ids import uuid7
from shigoto.model.schedule import Change, Due, DueSchedule
from shigoto.model.time import Millis
from shigoto.schedule.decide import after_failure
from shigoto.schedule.declare import Declared, declare_op
from shigoto.schedule.fire import AT_ONCE, due_op, looked_at
from shigoto.schedule.recurrence import ZoneMissing
from shigoto.testing.store import OwnStore


class Ticks:
    """Fires the schedules of the app, and those that were added in the test. `errors` has what their code has raised,
    since it was last asked for."""

    def __init__(self, app: Shigoto, store: OwnStore, *, on: bool) -> None:
        self._app = app
        self._store = store
        self._on = on
        self._declared: dict[str, Declared] = {}
        self._errors: list[BaseException] = []
        self._left_alone: set[str] = set()  # schedules that are due, but whose time zone is not known here

    def begin(self) -> None:
        """Declare what the code declares so far, as a worker does that starts."""
        if self._on:
            self._declare(self._app.declared)

    def fire(self) -> int:
        """Fire what is due now, in as many looks as it takes, and tell how many these were; the clock does not move."""
        if not self._on:
            return 0
        self._app.load()
        self._declare(self._app.declared)
        left_alone, fired = set[str](), 0
        while True:
            due = self._due(AT_ONCE + len(left_alone))
            some = [each for each in due.schedules if each.schedule.name not in left_alone]
            if not some:
                self._left_alone = left_alone
                return fired
            left_alone |= {each.schedule.name for each in some if not self._change(each, due.now)}
            fired += len(some)

    def _due(self, limit: int) -> Due:
        return self._store.quietly(due_op(self._store.engine, list(self._declared), limit))

    def next_in(self) -> Millis | None:
        """In how many milliseconds something is due; None if never."""
        if not self._on:
            return None
        due = self._due(len(self._left_alone))
        return due.next_in if {each.schedule.name for each in due.schedules} <= self._left_alone else 0

    def taken_errors(self) -> list[BaseException]:
        """What the code of schedules has raised; the next one who asks hears of later ones only."""
        errors, self._errors = self._errors, []
        return errors

    def _declare(self, declared: Mapping[str, Declared]) -> None:
        engine = self._store.engine
        if self._declared != declared:
            self._store.quietly(declare_op(engine, declared, uuid7))
            self._declared = dict(declared)
        elif declared:
            self._store.quietly(engine.declare(list(declared)))

    def _change(self, due: DueSchedule, now: Millis) -> bool:
        """As in a worker; but what ends a test (an interrupt, `pytest.fail`) does so. False if it is left alone."""
        try:
            self._commit(looked_at(due, self._declared, now))
        except ZoneMissing as error:
            if due.schedule.name not in self._left_alone:
                self._errors.append(error)
            return False
        except (Exception, SystemExit, CancelledError) as error:
            self._errors.append(error)
            self._commit(after_failure(due.schedule, error, now))
        return True

    def _commit(self, change: Change) -> None:
        self._store.quietly(self._store.tick([change]))
