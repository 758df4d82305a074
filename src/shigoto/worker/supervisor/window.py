"""Where a supervisor shows to others how its runners are, and what they and itself have counted."""

from collections.abc import Callable, Sequence

from shigoto.engine.protocol import Engine
from shigoto.observe.bus import Bus
from shigoto.observe.meters import Sample
from shigoto.observe.metrics import Metrics, metrics_if_shown
from shigoto.worker.health import HealthPort, Readiness, ready_of


class Window:
    """The health port, if there is one. `engine` gives the store, `ready` says whether all is well."""

    def __init__(
        self,
        place: tuple[str, int] | None,
        bus: Bus,
        engine: Callable[[], Engine],
        ready: Callable[[], Readiness],
    ) -> None:
        self.port: HealthPort | None = None
        self._metrics: Metrics | None = None
        if place is not None:
            self._metrics = metrics_if_shown(bus, engine, more=lambda: ready_of(ready()))
            self.port = HealthPort(*place, ready, self._metrics)

    @property
    def counts(self) -> bool:
        """Whether anybody could see what runners count."""
        return self._metrics is not None

    def count(self, samples: Sequence[Sample]) -> None:
        """A runner has counted this. When it dies, it stays counted."""
        if self._metrics is not None:
            self._metrics.add(samples)
