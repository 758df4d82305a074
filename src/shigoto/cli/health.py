"""The option `--health [HOST:]PORT` of commands that run for long: where they say whether they are ready."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shigoto.app import Shigoto
    from shigoto.observe.store_gauges import Reading
    from shigoto.scheduler import Scheduler
    from shigoto.worker import Worker
    from shigoto.worker.health import Probe, Readiness


def place_of(health: str | None) -> tuple[str, int] | None:
    """The host and the port, as sockets take them."""
    if health is None:
        return None
    host, _, port = health.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


Beside = Callable[[], Coroutine[Any, Any, None]]  # what is run as long as that of which it tells


def port_of_worker(place: tuple[str, int] | None, app: "Shigoto", worker: "Worker", poll: float) -> Beside:
    """Tells of a worker in this very process. Raises OptionInvalid if the port cannot be had."""
    if place is None:
        return _nothing
    from shigoto.worker.health import Readiness, Signs, judge
    from shigoto.worker.state import lease_clock

    clock = lease_clock()

    def ready(probe: "Probe") -> Readiness:
        at = worker.cycled_at()
        cycle = None if at is None else clock() - at
        return judge(Signs(stopping=worker.stopping, stores=[probe.signs()], cycles=[cycle], poll=poll))

    return _telling(place, app, ready, list)


def port_of_scheduler(place: tuple[str, int] | None, app: "Shigoto", scheduler: "Scheduler") -> Beside:
    """Tells of a scheduler: it fires what is due, and nothing is seriously wrong. Raises OptionInvalid likewise."""
    if place is None:
        return _nothing
    from shigoto.scheduler import readings
    from shigoto.worker.health import Readiness, Signs, judge

    def ready(probe: "Probe") -> Readiness:
        health = scheduler.health()
        details: tuple[str, ...] = ()
        if health.state == "new":
            details = ("It has not begun yet.",)
        elif health.status == "Error" and not scheduler.stopping:
            # What the store's trouble is has an address in it, and the port is for anybody.
            details = health.details if health.connected else ("The store does not answer.",)
        return judge(Signs(stopping=scheduler.stopping, stores=[probe.signs()], details=details))

    return _telling(place, app, ready, lambda: readings(scheduler.health()))


async def _nothing() -> None: ...


def _telling(
    place: tuple[str, int],
    app: "Shigoto",
    ready: "Callable[[Probe], Readiness]",
    more: "Callable[[], list[Reading]]",
) -> Beside:
    from asyncio import gather

    from shigoto.observe.metrics import metrics_if_shown
    from shigoto.worker.health import HealthPort, Probe, ready_of
    from shigoto.worker.state import lease_clock

    probe = Probe(lambda: app.engine, lease_clock())
    metrics = metrics_if_shown(
        app.bus,
        lambda: app.engine,
        more=lambda: [*ready_of(ready(probe)), *more()],
    )
    port = HealthPort(*place, lambda: ready(probe), metrics)

    async def tell() -> None:
        await gather(port.run(), probe.run())

    return tell
