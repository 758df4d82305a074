"""Schedules of an app: what its code declares, and the door to all that the store has."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from shigoto.engine.protocol import Engine
from shigoto.model.errors import DeclarationError
from shigoto.model.time import Duration
from shigoto.options import ScheduledOptions, ScheduleOptions
from shigoto.task import Decorate, Tasks

if TYPE_CHECKING:
    from datetime import datetime

    from shigoto.enqueue import Call
    from shigoto.schedule.declaring import Declared
    from shigoto.schedule.schedules import Schedules
    from shigoto.schedule.tick import Tick


class Planning(ABC):
    """The part of an app that declares schedules. What they need is imported when there is one."""

    def __init__(self, collection: Tasks) -> None:
        self._collection = collection
        self._planned: dict[str, Declared] = {}

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine of the store."""

    @abstractmethod
    def load(self) -> None:
        """Import all that is part of the app."""

    def cron(self, expression: str, /, **options: Unpack[ScheduledOptions]) -> Decorate:
        """Declare a function as a task that runs whenever the local time matches a cron expression.

            @app.cron("0 3 * * *", tz="Asia/Tokyo", catch_up="latest", overlap="skip")
            def aggregate(tick: Tick) -> None: ...

        Five fields, six with seconds first, or a word such as `@daily`. Each occurrence is one job, however many
        workers there are. A parameter `tick: Tick` tells which one it is. The options are those of `task`, and: `tz`;
        `catch_up` of what was due while nobody was there ("none", "latest" or "all", at most `catch_up_most` of them
        and not older than `catch_up_within`); `overlap` with a job before that has not ended ("allow", "skip", "queue",
        "cancel"); `jitter`; `until`; and, for times on the wall that the clocks skip or show twice, `gap` ("after",
        "skip") and `fold` ("first", "both").
        """
        return self._collection.cron(expression, **options)

    def every(self, interval: Duration | str, /, **options: Unpack[ScheduledOptions]) -> Decorate:
        """Declare a function as a task that runs at an interval: `@app.every(timedelta(minutes=5))`, or `"5m"`.

        It is counted from midnight UTC of 1 January 1970, so that restarts and several workers do not move it. The
        options are those of `cron`.
        """
        return self._collection.every(interval, **options)

    def schedule(
        self,
        name: str,
        cron: str | None = None,
        /,
        *,
        call: "Call[Any] | Callable[[Tick], Call[Any]]",
        every: Duration | str | None = None,
        at: "datetime | None" = None,
        **options: Unpack[ScheduleOptions],
    ) -> None:
        """Declare a schedule for any task: `app.schedule("eu", "0 3 * * *", call=lambda tick: report.call("eu"))`.

        `call` is evaluated once for each occurrence, by whoever fires it, on the event loop of that worker: it should
        take no longer than a moment, and leave it to the task to ask others. Raises ScheduleInvalid, DeclarationError.
        """
        from shigoto.schedule.declaring import planned

        planned(self._collection, name, call, cron=cron, every=every, at=at, **options)

    @property
    def schedules(self) -> "Schedules":
        """The schedules of the store: what they are, what became of their ticks, and what can be done to them."""
        from shigoto.schedule.schedules import Schedules

        return Schedules(self)

    @property
    def declared(self) -> "Mapping[str, Declared]":
        """The schedules that are declared in code, by name."""
        return MappingProxyType(self._planned)

    def plan(self, *declared: "Declared") -> None:
        """Take schedules that are declared in code; their names must be free: all or none. Raises DeclarationError."""
        for at, each in enumerate(declared):
            if each.name in self._planned or each.name in {other.name for other in declared[:at]}:
                raise DeclarationError(
                    f"Two schedules are called {each.name!r}. Give one of the tasks a name=, or choose another name."
                )
        self._planned.update({each.name: each for each in declared})
