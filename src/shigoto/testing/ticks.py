"""The schedules of a test: declared and fired as by a worker, whenever the clock is where they are due.

What is decided and what is stored is the real worker's affair: `schedule/looking.py`. Here is only who asks, and that
nobody else does: so a change is always heard.
"""

from asyncio import CancelledError
from collections.abc import Mapping

from shigoto.app import Shigoto
from shigoto.model.clock import Millis
from shigoto.model.ids import uuid7
from shigoto.model.schedule import Change, DueSchedule
from shigoto.schedule.declaring import Declared, reconciling
from shigoto.schedule.failing import after_failure
from shigoto.schedule.looking import AT_ONCE, looked_at
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
        engine, fired = self._store.engine, 0
        while (due := self._store.quietly(engine.due(list(self._declared), AT_ONCE))).schedules:
            for each in due.schedules:
                self._change(each, due.now)
            fired += len(due.schedules)
        return fired

    def next_in(self) -> Millis | None:
        """In how many milliseconds something is due; None if never."""
        if not self._on:
            return None
        return self._store.quietly(self._store.engine.due(list(self._declared), 0)).next_in

    def taken_errors(self) -> list[BaseException]:
        """What the code of schedules has raised; the next one who asks hears of later ones only."""
        errors, self._errors = self._errors, []
        return errors

    def _declare(self, declared: Mapping[str, Declared]) -> None:
        engine = self._store.engine
        if self._declared != declared:
            self._store.quietly(reconciling(engine, declared, uuid7))
            self._declared = dict(declared)
        elif declared:
            self._store.quietly(engine.declare(list(declared)))

    def _change(self, due: DueSchedule, now: Millis) -> None:
        """As in a worker; but what ends a test (an interrupt, `pytest.fail`) does so."""
        try:
            self._commit(looked_at(due, self._declared, now))
        except (Exception, SystemExit, CancelledError) as error:
            self._errors.append(error)
            self._commit(after_failure(due.schedule, error, now))

    def _commit(self, change: Change) -> None:
        self._store.quietly(self._store.tick([change]))
