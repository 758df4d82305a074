"""Queues as operators see them: what they hold, what is set for them, and whether they are paused."""

from datetime import timedelta

from msgspec import Struct, structs

from shigoto.engine.op import Op, Steps
from shigoto.engine.protocol import Engine
from shigoto.model.clock import Millis
from shigoto.model.job import Counts, QueueSettings
from shigoto.options import check_name


class Queue(Struct, frozen=True, kw_only=True):
    """One queue: how many jobs it holds by state, and what an operator has set; None is the default."""

    name: str
    paused: bool
    counts: Counts
    keep_completed_for: timedelta | None = None
    keep_failed_for: timedelta | None = None
    keep_cancelled_for: timedelta | None = None


def listing(engine: Engine) -> Op[list[Queue]]:
    """Every queue that has had a job or a setting, by name, as of one moment."""

    def steps() -> Steps[list[Queue]]:
        stored = yield from engine.settings().start()
        counts = yield from engine.stats().start()
        settings = {name: QueueSettings(name=name) for name in counts} | {each.name: each for each in stored}
        return [_queue(settings[name], counts.get(name, Counts())) for name in sorted(settings)]

    return Op(start=steps, mode="read")


def pausing(engine: Engine, queue: str, *, paused: bool) -> Op[None]:
    """Pause or resume a queue, and leave its other settings as they are, in one transaction."""
    queue = check_name(queue, "The queue")

    def steps() -> Steps[None]:
        stored = yield from engine.settings().start()
        settings = next((each for each in stored if each.name == queue), QueueSettings(name=queue))
        yield from engine.configure(structs.replace(settings, paused=paused)).start()

    return Op(start=steps, rings=None if paused else _always)


def _queue(settings: QueueSettings, counts: Counts) -> Queue:
    return Queue(
        name=settings.name,
        paused=settings.paused,
        counts=counts,
        keep_completed_for=_length(settings.keep_completed_for),
        keep_failed_for=_length(settings.keep_failed_for),
        keep_cancelled_for=_length(settings.keep_cancelled_for),
    )


def _length(kept: Millis | None) -> timedelta | None:
    return None if kept is None else timedelta(milliseconds=kept)


def _always(_: None) -> bool:
    return True
