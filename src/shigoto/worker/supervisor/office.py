"""What a supervisor does at the store: it sweeps, buries runner processes that have died, and counts.

Where the store is, only the app knows; so the supervisor learns it from its runners. After a reload that may be
another one.
"""

import asyncio
import atexit
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import Random
from uuid import UUID

from msgspec.structs import replace

from shigoto.engine.open import open_engine
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreError, StoreUnavailable
from shigoto.model.ids import uuid7
from shigoto.model.job import Job
from shigoto.model.time import Millis
from shigoto.model.worker import Death
from shigoto.observe.bus import Bus
from shigoto.observe.events import JobsRescued
from shigoto.observe.reporter import Reporter
from shigoto.worker.health import Probe, StoreSigns
from shigoto.worker.maintenance import Sweeper
from shigoto.worker.state import Station, Trouble, lease_clock
from shigoto.worker.supervisor.burial import end_groups
from shigoto.worker.supervisor.messages import Hello
from shigoto.worker.supervisor.persist import persist
from shigoto.worker.supervisor.stats import tell_counts

PART = "supervisor"
# Of a lease, before the first sweep. Whoever has just begun is to have the machine to himself: only to load the driver
# of a store takes 0.2 s of a processor, in the very moment in which the first jobs run.
LATER = 1 / 10
FLUSHED_WITHIN = 0.8  # seconds for the last failures to reach Sentry
LATEST_PROBE = (
    3.0  # seconds before a store is first asked whether it is there; the runner has just spoken with it
)


class Office:
    """The supervisor's stations, one for each store that its runners have named. Its tasks are the group's.

    If it `probes`, it asks each store again and again whether it is there.
    """

    def __init__(
        self, group: asyncio.TaskGroup, name: str, bus: Bus, *, stats_every: float, probes: bool = False
    ) -> None:
        self._group = group
        self._name = name
        self._bus = bus
        self._stats_every = stats_every
        self._probes: dict[str, Probe] | None = {} if probes else None
        self._stations: dict[str, Station] = {}
        self._newest: Station | None = None
        self._sweepers: dict[str, Sweeper] = {}
        self._unknown_after: dict[str, Millis | None] = {}
        self._beside: list[asyncio.Task[None]] = []
        self._burials: set[asyncio.Task[None]] = set()
        self._reporter: Reporter | None = None

    def station(self, hello: Hello) -> Station:
        """The station at this runner's store, which is swept from now on."""
        station = self._stations.get(hello.url)
        if station is None:
            station = self._stations[hello.url] = self._open(hello)
        return station

    def serve(self, hello: Hello) -> Station:
        """The same for a runner that is at work: from now on the store is swept as this one's app wants it."""
        self._unknown_after[hello.url] = hello.unknown_after
        if hello.sentry is not None and self._reporter is None:
            self._reporter = Reporter(hello.sentry, self._jobs)
            self._reporter.watch(self._bus)
        self._newest = self.station(hello)
        return self._newest

    @property
    def engine(self) -> Engine:
        """The store of the runner that came to work last. Raises StoreUnavailable if none has."""
        if self._newest is None:
            raise StoreUnavailable("No runner process has said yet where its jobs are.")
        return self._newest.engine

    def signs(self, stores: Collection[str]) -> list[StoreSigns]:
        """What is known of those of these stores that are asked."""
        return [
            replace(probe.signs(), overdue=self._sweepers[url].overdue if url in self._sweepers else 0.0)
            for url, probe in (self._probes or {}).items()
            if url in stores
        ]

    def bury(self, hello: Hello, deaths: Sequence[Death], groups: Collection[int]) -> None:
        """Tell the store that this runner's process has ended, however long the store takes to listen; but first end
        these process groups, which it has left behind."""
        burial = self._begin("burial", lambda: self._bury(hello, deaths, groups))
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)

    async def close(self, patience: float) -> bool:
        """End everything, and tell whether all who died are buried; burials get so many seconds."""
        left = set(self._burials)
        if left:
            _, left = await asyncio.wait(left, timeout=patience)
        for task in (*self._beside, *left):
            task.cancel()
        return not left

    def leave(self) -> None:
        """Close every store that was opened. This waits for what is under way there."""
        if self._reporter is not None:
            self._reporter.flush(FLUSHED_WITHIN)
            atexit.unregister(self._reporter.flush)
        for station in self._stations.values():
            station.close()

    def _jobs(self, ids: Sequence[UUID]) -> list[Job | None]:
        """Jobs that an event has told of, in whichever of the stores they are."""
        found: dict[UUID, Job] = {}
        for station in list(self._stations.values()):
            engine = station.engine
            found |= {job.id: job for job in engine.run(engine.get(list(ids))) if job is not None}
        return [found.get(id) for id in ids]

    def _open(self, hello: Hello) -> Station:
        clock = lease_clock()
        station = Station(
            id=uuid7(),
            name=self._name,
            opening=lambda: open_engine(hello.url),
            bus=self._bus,
            random=Random(),
            lease=hello.lease,
            poll=hello.lease,
            clock=clock,
            announced_at=clock(),
        )
        self._beside += [
            self._begin("sweeper", lambda: self._sweep(hello.url, station)),
            self._begin("statistics", lambda: tell_counts(lambda: station.engine, self._stats_every)),
        ]
        if self._probes is not None:
            probe = self._probes[hello.url] = Probe(lambda: station.engine, clock)
            self._beside.append(self._begin("probe", lambda: self._ask(probe, station)))
        return station

    async def _ask(self, probe: Probe, station: Station) -> None:
        await asyncio.sleep(min(LATER * station.lease, LATEST_PROBE))
        await probe.run()

    async def _sweep(self, url: str, station: Station) -> None:
        await asyncio.sleep(LATER * station.lease)
        sweeper = self._sweepers[url] = Sweeper(station, lambda: self._unknown_after.get(url))
        await sweeper.run()

    def _begin(self, part: str, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        return self._group.create_task(persist(part, work), name=f"shigoto-{part}")

    async def _bury(self, hello: Hello, deaths: Sequence[Death], groups: Collection[int]) -> None:
        await end_groups(groups)
        station = self.station(hello)
        engine, trouble = station.engine, Trouble(station, PART)
        while True:
            try:
                rescued = await engine.arun(engine.bury(hello.worker, deaths))
            except StoreError as error:
                await asyncio.sleep(trouble.met(error))
                continue
            trouble.over()
            if rescued:
                self._bus.publish(JobsRescued(self._name, tuple(rescued)))
            return
