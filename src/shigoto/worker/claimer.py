"""STAGE 2 of a job's path: from the store to a pool.

One loop, so never two claims in flight. Each round asks, in one operation, for what the pools can start now
and what they have earned beyond (`slots.py`), hands the leases over, and waits until there is a reason for
the next round:

    room     a slot came free, or a buffer ran low
    look     work may be ready: the doorbell rang, the poll floor passed, or jobs were promoted

A pool asks for one or more *kinds of work*, which share its room. A kind of which it got less than it asked for, and
not because of their size, is *dry*: the store has no more of it, so room alone is no reason to ask again; a look is,
and makes it *hopeful*. The kinds of a busy pool are never dry, and then nobody needs to poll.

Leases are taken only to be started. A claim that was answered after the claim deadline may have been given to
somebody else by then, one that is answered during a stop has come too late, and one that lies in a buffer for
250 ms holds up a job that another worker could run: all of these are given back. The next claim after that is
thorough, so that it finds them wherever in the line they stand.

Next on the path: `worker/runner.py`.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from shigoto.model.errors import StoreError
from shigoto.model.job import Lease
from shigoto.model.worker import CLAIM_DEADLINE, Want, is_large
from shigoto.observe.events import JobsClaimed
from shigoto.worker.maintenance import PROMOTE_AT_ONCE
from shigoto.worker.pool import Pool, WorkKind, running
from shigoto.worker.process import WorkerFlag
from shigoto.worker.settler import Settler
from shigoto.worker.state import Trouble, WorkerState
from shigoto.worker.stopping import Wakeup

MOST_UNSETTLED = 10_000  # as many as a pool may hold ahead: with fewer, a quick one stands still behind them
# A doorbell may ring for every job, and even for the worker's own commits. The first ring is answered at once;
# those that follow within a breath are answered together, or vain looks would fill the day.
BREATH = 0.003


class Claimer:
    """Claims for the pools of one worker.

    `drained`, if given, is called once, when nothing is left that this worker could run: nothing held, nothing
    due, nothing ready. `cycled` says that the store has answered a claim.
    A *cycle* is a claim that the store has answered, or a round in which there was no room for one: the running jobs
    have the time of the newest, for whoever asks whether this worker is at work.
    """

    def __init__(
        self,
        state: WorkerState,
        settler: Settler,
        *,
        queues: tuple[str, ...] | None,
        drained: Callable[[], None] | None,
    ) -> None:
        self._state = state
        self._settler = settler
        self._queues = queues
        self._drained = drained
        self._time = asyncio.get_running_loop().time
        self._kinds: Mapping[Pool, Sequence[WorkKind]] = {}
        self._dry: set[WorkKind] = set()
        self._hopeful: set[WorkKind] = set()
        self._given_back: set[int] = set()  # and not looked for since
        self._turn = 0
        self._looks = 0
        self._wakeup = Wakeup()
        self._closing = Wakeup()
        self._trouble = Trouble(state, "claimer")
        self._closed = False
        self.cycled = False

    def room(self) -> None:
        """Claim again: a slot came free, a buffer ran low, or something was settled."""
        self._wakeup.ring()

    def look(self) -> None:
        self._looks += 1
        self._hopeful |= self._dry
        self._dry.clear()
        self._wakeup.ring()

    def close(self) -> None:
        """Claim no more; `run` ends when a claim in flight has been answered, and gives its leases back."""
        self._closed = True
        self._wakeup.ring()
        self._closing.ring()

    async def run(self, kinds: Sequence[WorkKind]) -> None:
        pools = dict.fromkeys(kind.pool for kind in kinds)
        self._kinds = {pool: [kind for kind in kinds if kind.pool is pool] for pool in pools}
        self.cycled = not kinds
        if not kinds and self._drained is not None:
            self.close()
            self._drained()
        while not self._closed:
            self._give_back_the_late()
            wants = self._wants()
            if not wants:
                if self._state.in_touch():
                    self._note_cycle()
                late = [at for pool in self._kinds if (at := pool.slots.next_deadline) is not None]
                await self._wakeup.wait(max(0.0, min(late) - self._time()) if late else None)
                continue
            try:
                await self._claim(wants)
            except StoreError as error:
                await self._closing.wait(self._trouble.met(error))
            else:
                self._trouble.over()
                self._note_cycle()

    def _note_cycle(self) -> None:
        self._state.running_jobs.raise_flag(WorkerFlag.CYCLED, max(1, round(self._state.clock() * 1000)))

    def _wants(self) -> dict[WorkKind, Want]:
        if not self._state.in_touch() or self._settler.backlog > MOST_UNSETTLED:
            return {}
        quiet = self._quiet()
        if quiet:
            self._dry.clear()
        thorough = quiet or bool(self._given_back)
        now, queues = self._time(), self._queues
        wants: dict[WorkKind, Want] = {}
        for pool, kinds in self._kinds.items():
            limit = pool.slots.want(now, buffered=pool.buffered, running=running(pool))
            asking = [kind for kind in kinds if kind not in self._dry]
            if limit and asking and not pool.resting:
                for kind, share in self._split(limit, asking, least=int(quiet)):
                    wants[kind] = Want(
                        tasks=kind.tasks, queues=queues, limit=share, alone=kind.alone, thorough=thorough
                    )
        return {} if self._can_wait(wants) else wants

    def _split(self, limit: int, kinds: list[WorkKind], *, least: int) -> list[tuple[WorkKind, int]]:
        """Each kind's part of a pool's room; what cannot be divided goes to one of them in turn.

        A worker that drains asks for at least one in each: it must know that there is nothing left in any.
        """
        if len(kinds) == 1:
            return [(kinds[0], limit)]
        self._turn += 1
        count = len(kinds)
        order = [kinds[(at + self._turn) % count] for at in range(count)]
        shares = [max(least, (limit + count - 1 - at) // count) for at in range(count)]
        return [(kind, share) for kind, share in zip(order, shares, strict=True) if share]

    def _can_wait(self, wants: dict[WorkKind, Want]) -> bool:
        """Whether only the hopeful would ask, while a busy pool is about to claim and can take them along.

        A doorbell that rings for every commit would otherwise put an idle pool's vain claims in a busy pool's
        way.
        """
        if not self._hopeful.issuperset(wants):
            return False
        asking = {kind.pool for kind in wants}
        return any(pool not in asking and pool.buffered > pool.slots.low_water >= 0 for pool in self._kinds)

    def _quiet(self) -> bool:
        """Return True if a worker that drains holds nothing, so that nothing of its own can come back."""
        return self._drained is not None and not self._state.held

    async def _claim(self, wants: dict[WorkKind, Want]) -> None:
        engine, looks, quiet = self._state.engine, self._looks, self._quiet()
        if quiet:
            # First promoted, then claimed: what is due by now is ready by then, whoever promoted it.
            await self._promote_all()
        sent_at, ready_again = self._time(), self._given_back - self._state.held.keys()
        leases = await self._state.ask("claim", engine.claim(self._state.id, tuple(wants.values())))
        self.cycled = True
        self._given_back -= ready_again
        self._state.held.update({lease.number: lease for lease in leases})
        if leases and self._state.bus.wants(JobsClaimed):
            self._state.bus.publish(JobsClaimed(self._state.name, leases))
        if self._closed or self._time() - sent_at > CLAIM_DEADLINE / 1000:
            self._give_back(leases)
            return
        # A look while the claim was in flight may have been for jobs that it was too early to see.
        self._deliver(wants, leases, still_true=looks == self._looks)
        if quiet and not leases and self._drained is not None:
            self._closed = True
            self._drained()

    async def _promote_all(self) -> None:
        """Make all due jobs ready: a thousand jobs for other workers may stand before the first of this one."""
        engine = self._state.engine
        while not self._closed:
            promoted = await self._state.ask("promote", engine.promote(PROMOTE_AT_ONCE))
            if not promoted.count or promoted.next_in != 0:
                return
            await asyncio.sleep(0)

    def _deliver(self, wants: dict[WorkKind, Want], leases: list[Lease], *, still_true: bool) -> None:
        now = self._time()
        for kind, share in _shares(wants, leases).items():
            self._hopeful.discard(kind)
            if len(share) < wants[kind].limit and not is_large(share):
                (self._dry if still_true else self._hopeful).add(kind)
            if share:
                pool = kind.pool
                pool.slots.gave(now, len(share), starved=not (pool.buffered or running(pool)))
                pool.give(share)

    def _give_back_the_late(self) -> None:
        now = self._time()
        for pool in self._kinds:
            if pool.slots.late(now, pool.buffered):
                leases = pool.take_back()
                pool.slots.took_back(len(leases))
                pool.slots.collapse()
                self._give_back(leases)

    def _give_back(self, leases: Sequence[Lease]) -> None:
        self._given_back.update(lease.number for lease in leases)
        self._settler.release(leases)


def _shares(wants: dict[WorkKind, Want], leases: list[Lease]) -> dict[WorkKind, list[Lease]]:
    """Return the part of each kind in what was claimed, in the order in which it came."""
    if len(wants) == 1:
        return dict.fromkeys(wants, leases)
    shares: dict[WorkKind, list[Lease]] = {kind: [] for kind in wants}
    # As asked: a kind may have changed its mind since.
    alone = {
        task: shares[kind] for kind, want in wants.items() if want.alone is not False for task in kind.tasks
    }
    crowd = {task: shares[kind] for kind, want in wants.items() if not want.alone for task in kind.tasks}
    for lease in leases:
        (alone if lease.alone else crowd)[lease.task].append(lease)
    return shares


class Listener:
    """Calls `look` for every ring and every poll, and `rung` for a ring only."""

    def __init__(self, state: WorkerState, look: Callable[[], None], rung: Callable[[], None]) -> None:
        self._state = state
        self._look = look
        self._rung = rung

    async def run(self) -> None:
        doorbell = self._state.engine.listen()
        try:
            while True:
                rang = await doorbell.wait(self._state.jittered_poll())
                self._look()
                if rang:
                    self._rung()
                    await asyncio.sleep(BREATH)
        finally:
            doorbell.close()
