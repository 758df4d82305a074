"""Workers that speak HTTP: who they are, and whether they are who they say.

A worker's id is no secret: people see it. So the store keeps which token a worker was registered by, and no other token
speaks for it, nor any token for a worker that is at the store itself. Workers with one and the same token trust each
other.
"""

import asyncio
from collections.abc import Callable
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from shigoto.engine.protocol import Engine
from shigoto.model.errors import Forbidden, WorkerFenced
from shigoto.model.worker import Announcement, WorkerRecord
from shigoto.server.auth import Caller, heard

READ_EVERY = 10.0  # seconds
# Seconds without a worker that isolates, until jobs that should run alone run beside others.
ALONE_FOR = 600.0
MOST_REMEMBERED = 10_000


class RemoteWorker(Struct, frozen=True, kw_only=True):
    """What a worker has said of itself. The lease is in seconds, and None if another server was told."""

    tasks: tuple[str, ...]
    queues: tuple[str, ...] | None
    isolates: bool
    owner: str | None
    lease: float | None = None

    @classmethod
    def of(cls, said: Announcement | WorkerRecord, lease: float | None) -> "RemoteWorker":
        return cls(
            tasks=said.tasks, queues=said.queues, isolates=said.isolates, owner=said.owner, lease=lease
        )


class RemoteWorkers:
    """The workers of the store. For one event loop."""

    def __init__(self, opening: Callable[[], Engine], time: Callable[[], float]) -> None:
        self._opening = opening
        self._time = time
        self._entries: dict[UUID, RemoteWorker] = {}
        self._leases: dict[UUID, float] = {}
        self._isolated_at: dict[str, float] = {}
        self._added_at: dict[UUID, float] = {}  # of those that the last reading may have missed
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    def add(self, worker: UUID, remote: RemoteWorker) -> None:
        self._entries[worker] = remote
        self._added_at[worker] = self._time()
        if remote.lease is not None:
            if len(self._leases) >= MOST_REMEMBERED:
                del self._leases[next(iter(self._leases))]
            self._leases[worker] = remote.lease
        self._note_isolated(remote)

    def drop(self, worker: UUID) -> None:
        self._entries.pop(worker, None)
        self._leases.pop(worker, None)

    async def remote(self, worker: UUID) -> RemoteWorker:
        """What the worker has said of itself. Raises WorkerFenced if the store knows no such worker."""
        remote = await self._found(worker)
        if remote is None:
            raise fenced(worker)
        return remote

    async def alone(self, remote: RemoteWorker) -> bool | None:
        """Whether a worker takes jobs that must run alone: None, both kinds, if it isolates, or nobody does for long.

        A suspect that waits for ever would be lost work.
        """
        await self._recall(READ_EVERY)
        if remote.isolates:
            return None
        now = self._time()
        since = [self._isolated_at.setdefault(task, now) for task in remote.tasks]
        return None if now - max(since, default=now) >= ALONE_FOR else False

    async def expect(self, caller: Caller, worker: UUID) -> None:
        """Raise Forbidden if the worker is not the caller's, or WorkerFenced if the store knows no such worker."""
        if not await self.owns(caller, worker):
            raise fenced(worker)

    async def owns(self, caller: Caller, worker: UUID) -> bool:
        """Whether the store knows the worker, as one of the caller's; who needs no token may take any for his own.
        Raises Forbidden if it is somebody else's."""
        if caller.token is None:
            return True
        remote = await self._found(worker)
        if remote is not None and remote.owner != caller.token.id:
            raise Forbidden("The worker was registered by another token, or at the store itself.")
        return remote is not None

    async def owned(self, caller: Caller, announcement: Announcement) -> Announcement:
        """The announcement, as of a worker of the caller's. Raises Forbidden if the id is that of somebody else's."""
        await self.owns(caller, announcement.id)
        return replace(announcement, owner=owner_of(caller))

    async def register(self, caller: Caller, announcement: Announcement, *, new: bool) -> None:
        """Make a worker known to the store, or, if its id is not `new`, change what it has said of itself.
        Raises Forbidden or WorkerFenced."""
        engine, worker = self._opening(), announcement.id
        if new:
            own = replace(announcement, owner=owner_of(caller))
        else:
            own = await self.owned(caller, announcement)
        await engine.arun(engine.announce(own))
        if not new and (await engine.arun(engine.beat(worker, None))).fenced:
            self.drop(worker)
            raise fenced(worker)
        self.add(worker, RemoteWorker.of(own, own.lease / 1000))

    async def _found(self, worker: UUID) -> RemoteWorker | None:
        await self._recall(READ_EVERY)
        if worker not in self._entries:
            await self._recall(0.0)
        return self._entries.get(worker)

    def _note_isolated(self, remote: RemoteWorker) -> None:
        if remote.isolates:
            self._isolated_at.update(dict.fromkeys(remote.tasks, self._time()))

    async def _recall(self, age: float) -> None:
        """See to it that what is known is no older than that. Raises StoreError."""
        since = self._time() - age
        for _ in range(2):  # the reading that is under way may have begun too early
            if self._read_at > since:
                return
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read(), name="shigoto-roster")
                self._reading.add_done_callback(heard)
            await asyncio.shield(self._reading)

    async def _read(self) -> None:
        engine, asked_at = self._opening(), self._time()
        records = await engine.arun(engine.workers())
        self._added_at = {worker: at for worker, at in self._added_at.items() if at >= asked_at}
        missed = {worker: self._entries[worker] for worker in self._added_at if worker in self._entries}
        self._entries = missed | {
            record.id: RemoteWorker.of(record, self._leases.get(record.id)) for record in records
        }
        for remote in self._entries.values():
            self._note_isolated(remote)
        self._read_at = asked_at
        if len(self._isolated_at) > MOST_REMEMBERED:
            tasks = {task for remote in self._entries.values() for task in remote.tasks}
            self._isolated_at = {task: at for task, at in self._isolated_at.items() if task in tasks}


def owner_of(caller: Caller) -> str | None:
    return None if caller.token is None else caller.token.id


def fenced(worker: UUID) -> WorkerFenced:
    return WorkerFenced(
        f"The worker {worker} is not known, or was given up because it was silent for too long. Its jobs are others'"
        " now. Register anew."
    )
