"""Queues as operators see them: what they hold, what is set for them, and whether they are paused."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from msgspec import Struct, structs

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.errors import OptionInvalid
from shigoto.model.job import Counts, QueueSettings
from shigoto.model.text import shown
from shigoto.model.time import LONGEST, Millis
from shigoto.options import check_name

MOST_PENDING = 10**9
SETTINGS = frozenset(QueueSettings.__struct_fields__) - {"name"}


class Queue(Struct, frozen=True, kw_only=True):
    """One queue: how many jobs it holds by state, and what an operator has set; None is the default."""

    name: str
    paused: bool
    counts: Counts
    keep_completed_for: timedelta | None = None
    keep_failed_for: timedelta | None = None
    keep_cancelled_for: timedelta | None = None
    max_pending: int | None = None  # None: any number


def listing(engine: Engine) -> Op[list[Queue]]:
    """Every queue that has had a job or a setting, by name, as of one moment."""

    def steps() -> Steps[list[Queue]]:
        stored = yield from engine.settings().start()
        counts = yield from engine.stats().start()
        settings = {name: QueueSettings(name=name) for name in counts} | {each.name: each for each in stored}
        return [_queue(settings[name], counts.get(name, Counts())) for name in sorted(settings)]

    return Op(start=steps, mode="read")


def changing(engine: Engine, queue: str, **fields: Any) -> Op[QueueSettings]:
    """Change some settings of a queue, by the names they have in QueueSettings, and leave the others as they are, in
    one transaction. Raises OptionInvalid."""
    queue = check_name(queue, "The queue")
    _expect_settings(fields)

    def steps() -> Steps[QueueSettings]:
        stored = yield from engine.settings().start()
        settings = next((each for each in stored if each.name == queue), QueueSettings(name=queue))
        settings = structs.replace(settings, **fields)
        yield from engine.configure(settings).start()
        return settings

    return Op(start=steps, rings=lambda settings: not settings.paused)


def pausing(engine: Engine, queue: str, *, paused: bool) -> Op[QueueSettings]:
    """Pause or resume a queue, and leave its other settings as they are, in one transaction."""
    return changing(engine, queue, paused=paused)


def expect_settings(settings: QueueSettings) -> QueueSettings:
    """The settings, if a queue can have them. Raises OptionInvalid."""
    fields = structs.asdict(settings)
    check_name(fields.pop("name"), "The queue")
    _expect_settings(fields)
    return settings


def _expect_settings(fields: Mapping[str, object]) -> None:
    for name, value in fields.items():
        _expect_setting(name, value)


def _expect_setting(name: str, value: object) -> None:
    if name == "paused":
        valid = isinstance(value, bool)
    elif name == "max_pending":
        valid = value is None or (isinstance(value, int) and 1 <= value <= MOST_PENDING)
    else:
        valid = value is None or (isinstance(value, int) and 0 <= value <= LONGEST)
    if name not in SETTINGS or not valid or (isinstance(value, bool) and name != "paused"):
        raise OptionInvalid(f"{name} of a queue cannot be {shown(value)}.")


def _queue(settings: QueueSettings, counts: Counts) -> Queue:
    return Queue(
        name=settings.name,
        paused=settings.paused,
        counts=counts,
        keep_completed_for=_length(settings.keep_completed_for),
        keep_failed_for=_length(settings.keep_failed_for),
        keep_cancelled_for=_length(settings.keep_cancelled_for),
        max_pending=settings.max_pending,
    )


def _length(kept: Millis | None) -> timedelta | None:
    return None if kept is None else timedelta(milliseconds=kept)
