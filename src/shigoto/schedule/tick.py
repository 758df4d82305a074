"""The tick that a scheduled task receives: the occurrence that it runs for."""

from collections.abc import Callable
from datetime import UTC, date, datetime, tzinfo
from types import UnionType
from typing import Any, ForwardRef, Protocol, Union, get_args, get_origin, get_type_hints, overload

from msgspec import Struct, field

from shigoto.model.errors import OptionInvalid
from shigoto.model.text import plain_moment, shown


class _Make(Protocol):
    """What `Tick.at` is."""

    def __call__(self, at: datetime | str, tz: str = "UTC", schedule: str = "") -> "Tick": ...


class _At:
    """`tick.at` is the instant of a tick; `Tick.at(…)` makes one."""

    @overload
    def __get__(self, tick: None, owner: "type[Tick]") -> _Make: ...
    @overload
    def __get__(self, tick: "Tick", owner: "type[Tick]") -> datetime: ...
    def __get__(self, tick: "Tick | None", owner: "type[Tick]") -> _Make | datetime:
        return _made if tick is None else tick.instant


class Tick(Struct, frozen=True):
    """One nominal occurrence of a schedule, stored with the job: a retry or a late run sees the same.

        @app.cron("0 3 * * *", tz="Asia/Tokyo")
        def aggregate(tick: Tick) -> None:
            day = tick.local_date - timedelta(days=1)

    `aggregate.enqueue(Tick.at("2026-05-06T03:00", tz="Asia/Tokyo"))` runs it for a time of your choice.
    """

    instant: datetime = field(name="at")
    tz: str = "UTC"
    schedule: str = ""

    at = _At()

    @property
    def local(self) -> datetime:
        """The instant, in the time zone of the schedule."""
        return self.instant.astimezone(_zone(self.tz))

    @property
    def local_date(self) -> date:
        """The date of the instant, in the time zone of the schedule."""
        return self.local.date()


def _made(at: datetime | str, tz: str = "UTC", schedule: str = "") -> Tick:
    """The tick at an instant, or at a time on the wall of the zone. Raises OptionInvalid."""
    try:
        moment = datetime.fromisoformat(at) if isinstance(at, str) else plain_moment(at)
        if moment is None:
            raise ValueError("it is neither a datetime nor ISO 8601")
        local = moment if moment.tzinfo is not None else moment.replace(tzinfo=_zone(tz))
        return Tick(local.astimezone(UTC), tz, schedule)
    except (ValueError, KeyError, OSError, OverflowError) as error:
        raise OptionInvalid(f"There is no tick at {shown(at)} in {shown(tz)}: {error}.") from error


def annotations_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, as types if all are known by now, else as they are written."""
    try:
        return get_type_hints(fn)
    except Exception:  # of what is evaluated there: names that will exist later, or never
        return dict(getattr(fn, "__annotations__", {}))


def takes_tick(annotation: object) -> bool:
    """Whether an annotation, or its text, is `Tick` or `Tick | None`, wherever that was imported from."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        parts = annotation.rpartition("Optional[")[2].removesuffix("]").split("|")
        return any(part.strip(" '\"").rpartition(".")[2] == "Tick" for part in parts)
    if get_origin(annotation) in (Union, UnionType):
        return any(takes_tick(each) for each in get_args(annotation))
    return annotation is Tick


def _zone(name: str) -> tzinfo:
    from shigoto.schedule.recurrence import zone_called  # not everybody who imports us needs zones

    return zone_called(name)
