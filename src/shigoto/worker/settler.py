"""STAGE 4 of a job's path: from settlements to the store's verdicts.

Whatever ends while one batch is on its way forms the next batch. No timer: an idle worker settles at once, a
busy one in batches that grow by themselves. A batch that the store did not answer is sent again until it is
answered, and later ones wait behind it; that is safe, because the store recognises a settlement that it has
already accepted.

    runner ──► waiting ──► on its way ──► ACCEPTED, REPEATED   told as an event; the lease is no longer held
                               │                 LOST          told as LeaseLostEvent; somebody else has the job
                               │                 BUSY          waits alone, and holds up nobody; see `_outwait`
                               ├── StoreError: back off, then the same batch again
                               └── any other error: one of them cannot be written. Each by itself, and that
                                   one without what it has said on the way, or else as failed, so that one
                                   job's nonsense costs nobody else anything

Sometimes only the store knows what has become of a job: after a crash, when a run that was cut short may have been
cancelled meanwhile, and when this lease was settled before, by a transaction block of the handler perhaps. Then it is
asked before anything is told.

A transaction whose client is gone may keep a job locked until the store finds out. Whoever waits for that one waits
apart from all others, and so does a batch of which it is the only one (StoreBusy).

Until the verdict a lease stays in `state.held`, so that beats go on saying that its job is in good hands.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextvars import copy_context

from shigoto.model.errors import StoreBusy, StoreError
from shigoto.model.job import FailureKind, Job, Lease, State
from shigoto.model.secrets import unless_encrypted, without_key
from shigoto.model.states import Counters, Held, after
from shigoto.model.time import Millis
from shigoto.model.worker import Ending, Settlement, Verdict
from shigoto.observe import events
from shigoto.worker import endings
from shigoto.worker.pool import named
from shigoto.worker.reporting import about
from shigoto.worker.state import Trouble, WorkerState
from shigoto.worker.stopping import Wakeup

MOST_AT_ONCE = 4_000
MANY_RELEASES = 100
FIRST_OUTWAIT, LONGEST_OUTWAIT = 0.1, 2.0  # seconds between tries to settle what is locked
MOST_TOLD = 1_000  # of what a fenced worker drops
SHORT_RUN = 1.0  # seconds
MOST_BYTES = 16 * 1024 * 1024  # of results; a batch travels as one text, and a store has a limit for that

logger = logging.getLogger("shigoto.worker")

EndedRun = tuple[Lease, Settlement, float]  # and the seconds that it took
Fates = Mapping[int, Job]


class Settler:
    """Collects settlements and reports them. `flushed` is called after each batch, with the delays in it."""

    def __init__(self, state: WorkerState, flushed: Callable[[list[Millis]], None]) -> None:
        self._state = state
        self._variables = copy_context()
        self._flushed = flushed
        self._waiting: list[EndedRun] = []
        self._sending: list[EndedRun] = []
        self._busy: list[EndedRun] = []
        self._apart = 0  # so many of those that wait are sent one by one
        self._outwaiting: asyncio.Task[None] | None = None
        self._wakeup = Wakeup()
        self._trouble = Trouble(state, "settler")
        self._idle = False
        self._closed = False
        self._dropping = self._lost = False
        self._careful: Callable[[], bool] | None = None
        self._special = False
        self._held_back = 0
        self.ended = 0

    @property
    def backlog(self) -> int:
        return len(self._waiting) + len(self._sending) + len(self._busy)

    @property
    def held_back(self) -> int:
        """The number of leases that wait for the very last commit."""
        return self._held_back

    def add(self, lease: Lease, settlement: Settlement, seconds: float) -> None:
        """Report that a run has ended; never blocks."""
        if self._special and self._must_not_tell(lease, settlement, seconds):
            return
        self._waiting.append((lease, settlement, seconds))
        if self._idle:
            self._idle = False
            self._wakeup.ring()

    def release(self, leases: Iterable[Lease], delay: Millis | None = None) -> None:
        """Give back leases that were not run."""
        for lease in leases:
            self.put(lease, endings.released(lease, delay, ran=False), 0.0)

    def put(self, lease: Lease, settlement: Settlement, seconds: float) -> None:
        """Report a run that has surely left nothing behind; otherwise as `add`."""
        if not self._closed:
            self._waiting.append((lease, settlement, seconds))
            if self._idle:
                self._idle = False
                self._wakeup.ring()
        elif self._lost:
            self._tell_lost([(lease, settlement, seconds)])

    def be_careful(self, left_behind: Callable[[], bool]) -> None:
        """From now on, hold back the release of a run that may have left something behind, until `release_last`."""
        self._careful = left_behind
        self._special = True

    def release_last(self, leases: Iterable[Lease], delay: Millis) -> None:
        """Give back leases whose runs could not be stopped; what these runs still report is dropped."""
        self._closed = self._special = True
        if not self._dropping:
            self._waiting += [(lease, endings.released(lease, delay), 0.0) for lease in leases]

    def drop(self, *, lost: bool = False) -> None:
        """Forget what waits and whatever will be added; `lost` if this worker has lost the right to settle."""
        self._closed = self._special = True
        self._lost = self._lost or lost
        if lost:
            self._tell_lost([*self._busy, *self._waiting][:MOST_TOLD])
        self._waiting.clear()
        self._busy.clear()
        self._dropping = True

    async def run(self) -> None:
        try:
            while True:
                if not (self._waiting or self._sending):
                    self._idle = True
                    await self._wakeup.wait(None)
                    self._idle = False
                try:
                    await self._send()
                except StoreError as error:
                    await asyncio.sleep(self._trouble.met(error))
                else:
                    self._trouble.over()
                if self._busy and self._outwaiting is None:
                    self._outwaiting = asyncio.create_task(self._outwait(), name="shigoto-outwait")
        finally:
            if self._outwaiting is not None:
                self._outwaiting.cancel()

    async def flush(self) -> None:
        """Report all that is left, when `run` has ended. A StoreError leaves the rest unreported."""
        while self._waiting or self._sending:
            await self._send()
        if self._busy:
            self._waiting, self._busy = self._busy, []
            while self._waiting or self._sending:
                await self._send()
            if self._busy:
                raise StoreBusy(f"{len(self._busy)} jobs are locked by somebody else")

    async def _outwait(self) -> None:
        """Try again to settle what was locked, until nothing is left of it."""
        pause = FIRST_OUTWAIT
        try:
            while self._busy:
                await asyncio.sleep(pause)
                pause = min(LONGEST_OUTWAIT, 2 * pause)
                batch = list(self._busy)
                try:
                    verdicts = await self._settle(batch)
                    fates = await self._fates(batch, verdicts)
                except StoreError:
                    continue  # still locked, or the others tell of it
                except Exception:
                    # One of them cannot be written.
                    self._waiting += [ended for ended in batch if ended in self._busy]
                    self._busy.clear()
                    self._wakeup.ring()
                    continue
                if self._busy:  # not dropped meanwhile
                    self._busy = self._busy[len(batch) :]
                    self._conclude(batch, verdicts, fates)
        finally:
            self._outwaiting = None

    def _tell_lost(self, dropped: list[EndedRun]) -> None:
        """Publish that handlers have run to their end for nothing."""
        name = self._state.name
        for lease, settlement, seconds in dropped:
            if settlement.ending is not Ending.RELEASED:
                lost = events.LeaseLostEvent(*named(name, lease), seconds)
                self._variables.copy().run(self._state.bus.publish, lost)  # not with those of the run

    def _must_not_tell(self, lease: Lease, settlement: Settlement, seconds: float) -> bool:
        if self._closed:
            if self._lost:
                self._tell_lost([(lease, settlement, seconds)])
            return True
        if settlement.ending is Ending.RELEASED and self._careful is not None and self._careful():
            self._held_back += 1
            self._flushed([])
            return True
        return False

    async def _send(self) -> None:
        """Report one batch. If this is cut short, the batch stays, and is sent again next time."""
        if self._drops(self._sending):
            self._sending = []
            return
        if not self._sending:
            count = 1 if self._apart else _portion(self._waiting)
            self._sending, self._waiting = self._waiting[:count], self._waiting[count:]
        batch = self._sending
        try:
            if self._apart:
                ended, verdicts = await self._settle_somehow(batch[0])
                batch = [ended]
            else:
                verdicts = await self._settle(batch)
            fates = await self._fates(batch, verdicts)
        except StoreBusy:
            if len(batch) > 1:
                raise
            self._sending = []
            self._set_aside(batch)
        except StoreError:
            raise
        except Exception as error:
            self._sending = []
            if self._drops(batch):
                return
            if not self._apart:
                logger.warning(
                    "%d settlements cannot be stored together: %r; now one by one", len(batch), error
                )
                self._apart, self._waiting = len(batch), [*batch, *self._waiting]
                return
            lease = batch[0][0]
            logger.exception(
                "The end of job %d cannot be stored in any form; the store gives the job back",
                lease.number,
                extra=about(lease),
            )
            # Not held any more, the next beats disown it, and the store releases it.
            self._state.held.pop(lease.number, None)
        else:
            self._sending = []
            self._conclude(batch, verdicts, fates)
        self._apart = max(0, self._apart - 1)

    def _drops(self, batch: list[EndedRun]) -> bool:
        """Return True if nothing is reported any more. Publish what is lost by that."""
        if self._dropping and self._lost:
            self._tell_lost(batch[:MOST_TOLD])
        return self._dropping

    async def _settle_somehow(self, ended: EndedRun) -> tuple[EndedRun, list[Verdict]]:
        """Settle one by itself; if the store cannot write it, without progress and log, or else as failed."""
        lease, settlement, seconds = ended
        try:
            return ended, await self._settle([ended])
        except StoreError:
            raise
        except Exception as error:
            if settlement.progress is not None or settlement.log is not None:
                return await self._settle_somehow((lease, endings.silent(settlement), seconds))
            instead = lease, endings.unstorable(lease, settlement, error), seconds
            return instead, await self._settle([instead])

    async def _settle(self, batch: list[EndedRun]) -> list[Verdict]:
        engine = self._state.engine
        settlements = [settlement for _, settlement, _ in batch]
        return await self._state.ask("settle", engine.settle(self._state.id, settlements))

    async def _fates(self, batch: list[EndedRun], verdicts: list[Verdict]) -> Fates:
        """Return the jobs of which only the store knows what became of them; mostly none."""
        unsure = [
            (ended[0], ended[1].ending is Ending.RELEASED and verdict is Verdict.ACCEPTED)
            for ended, verdict in zip(batch, verdicts, strict=True)
            if ended[1].ending is not Ending.COMPLETED and _only_the_store_knows(ended[1], verdict)
        ]
        if not unsure or not self._state.bus.active:
            return {}
        engine = self._state.engine
        try:
            jobs = await engine.arun(engine.get([lease.id for lease, _ in unsure]))
        except Exception as error:
            # They are settled, and that counts; what is told of them may then be what their worker believes.
            logger.warning("What became of %d jobs could not be asked of the store: %r", len(unsure), error)
            return {}
        # What was given back may have been taken by another worker since; that is not for us to tell.
        return {
            lease.number: job
            for (lease, released), job in zip(unsure, jobs, strict=True)
            if job is not None and (not released or job.state is State.CANCELLED)
        }

    def _set_aside(self, locked: list[EndedRun]) -> None:
        """Keep settlements of locked jobs for `_outwait`, unless nothing is reported any more."""
        if not self._drops(locked):
            self._busy += locked

    def _conclude(self, batch: list[EndedRun], verdicts: list[Verdict], fates: Fates) -> None:
        """Let go of the leases, and tell what happened, at last of what was completed, and when jobs are due again."""
        held, bus, name = self._state.held, self._state.bus, self._state.name
        tell_completed = bus.wants(events.JobCompleted)
        delays: list[Millis] = []
        completed: list[EndedRun] = []
        locked: list[EndedRun] = []
        for ended, verdict in zip(batch, verdicts, strict=True):
            lease, settlement, seconds = ended
            if verdict is Verdict.BUSY:
                locked.append(ended)
                continue
            self.ended += 1
            if held.get(lease.number) is lease:
                del held[lease.number]
            if verdict is Verdict.LOST:
                bus.publish(events.LeaseLostEvent(*named(name, lease), seconds))
            elif settlement.ending is not Ending.COMPLETED:
                if settlement.ending is Ending.RELEASED:
                    self.ended -= 1
                    _warn_of_releases(lease, seconds)
                if settlement.delay is not None:
                    delays.append(settlement.delay)
                if bus.active:
                    bus.publish(event_of(name, lease, settlement, seconds, fates.get(lease.number)))
            elif tell_completed:
                completed.append(ended)
        self._set_aside(locked)
        bus.publish_all(completions(name, completed))
        self._flushed(delays)


def _only_the_store_knows(settlement: Settlement, verdict: Verdict) -> bool:
    """Return True if this accepted end does not say what became of the job."""
    cut_short = settlement.ending is Ending.RELEASED and settlement.ran
    return verdict is Verdict.REPEATED or (
        verdict is Verdict.ACCEPTED and (cut_short or settlement.ending is Ending.CRASHED)
    )


def _warn_of_releases(lease: Lease, seconds: float) -> None:
    """Warn of a job that is given back again and again, and never gets to run (A7)."""
    releases = lease.token - lease.attempt - lease.snoozes + 1
    if releases % MANY_RELEASES == 0 and seconds <= SHORT_RUN:
        logger.warning(
            "Job %d (%s) was given back %d times, and this run took %.3g s; is something always cutting it short?",
            lease.number,
            lease.task,
            releases,
            seconds,
            extra=about(lease),
        )


def _portion(waiting: list[EndedRun]) -> int:
    """Return how many of them to send at once: at least one."""
    count = size = 0
    for _, settlement, _ in waiting[:MOST_AT_ONCE]:
        size += len(settlement.result or "")
        if count and size > MOST_BYTES:
            break
        count += 1
    return count


def completions(worker: str, ended: Iterable[EndedRun]) -> list[events.JobCompleted]:
    """Return the events of completed runs. Without `named`: each call more is one for every job."""
    return [
        events.JobCompleted(
            worker, lease.id, lease.number, lease.task, lease.queue, lease.tenant, lease.attempt, seconds
        )
        for lease, _, seconds in ended
    ]


def event_of(
    worker: str, lease: Lease, settlement: Settlement, seconds: float, fate: Job | None
) -> events.Event:
    """What an accepted settlement that says something else than completed means, by the rules the store went by, or by
    its word."""
    job = named(worker, lease)
    if fate is not None and fate.state is State.COMPLETED:
        return events.JobCompleted(*job, seconds)
    if fate is not None and fate.failure_kind is FailureKind.CRASH_LOOP:
        return events.JobFailedEvent(
            *job, seconds, FailureKind.CRASH_LOOP, _said(settlement), unless_encrypted(settlement.traceback)
        )
    counters = Counters(failures=lease.failures, snoozes=lease.snoozes)
    move = after(Held(counters, lease.max_failures, max_crashes=None), settlement)
    if move.state is State.FAILED:
        kind = move.failure_kind or settlement.failure_kind
        return events.JobFailedEvent(
            *job, seconds, kind, _said(settlement) or str(kind), unless_encrypted(settlement.traceback)
        )
    if move.state is State.CANCELLED or (fate is not None and fate.state is State.CANCELLED):
        return events.JobCancelledEvent(*job, seconds)
    if settlement.ending is Ending.RELEASED:
        return events.JobReleased(*job, seconds)
    if settlement.ending is Ending.CRASHED:
        return events.JobCrashed(*job, seconds, move.delay or 0, _said(settlement))
    if settlement.ending is Ending.SNOOZED:
        return events.JobSnoozed(*job, seconds, move.delay or 0)
    return events.JobRetried(*job, seconds, move.delay or 0, settlement.failure_kind, _said(settlement))


def _said(settlement: Settlement) -> str:
    """Return what is told of an error: of one that is encrypted, its type."""
    return "" if settlement.error is None else without_key(settlement.error)
