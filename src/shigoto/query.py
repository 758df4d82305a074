"""What can be asked about jobs that are stored, and done to them: the read-and-manage face of an app."""

from abc import ABC, abstractmethod
from typing import Any, Protocol, Unpack, runtime_checkable
from uuid import UUID

from shigoto.bulk import (
    Cancelled,
    Plan,
    acarry_out,
    cancelling,
    carry_out,
    choosing_live,
    clearing,
    counting,
)
from shigoto.encryption import Encryption
from shigoto.engine.protocol import Engine
from shigoto.filters import Filters, parse_id, wanted
from shigoto.handle import Decode, JobHandle, found
from shigoto.language import together
from shigoto.model.errors import OptionInvalid
from shigoto.model.job import Counts, Job, JobFilter
from shigoto.model.time import Millis, host_clock
from shigoto.model.worker import WorkerRecord
from shigoto.queues import Queue, listing, pausing
from shigoto.redrive import Redriven, redriving


@runtime_checkable
class KeepsTime(Protocol):
    """An engine that knows store time without asking the store."""

    def now(self) -> Millis:
        """Store time."""
        ...


class Query(ABC):
    """The part of an app that looks at jobs and manages them; the app itself brings the store.

    Whatever takes filters takes them one by one, as a text in the filter language, or both:

        app.find(state="failed", since=timedelta(hours=2), args={"store": 7})
        app.find("failed since:2h args.store:7", limit=50)

    Only `find` takes `before`, which is for its pages; everywhere else all jobs are meant that match.
    """

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine of the store."""

    encryption: Encryption | None

    @abstractmethod
    def encrypts(self, task: str) -> bool:
        """Whether jobs of this task are encrypted, or nobody here knows."""

    @abstractmethod
    def decoder(self, job: Job | None) -> Decode | None:
        """What reads the result of the job, if its task is known."""

    def now(self) -> Millis:
        """The time from which `since=timedelta(…)` counts back: the store's, where it is known without asking."""
        engine = self.engine
        return engine.now() if isinstance(engine, KeepsTime) else host_clock()

    def job(self, job_id: UUID | str) -> JobHandle[Any]:
        """The handle of a stored job. Raises JobNotFound."""
        job_id = parse_id(job_id)
        [job] = self.engine.run(self.engine.get([job_id]))
        return found(self.engine, job, job_id=job_id, decode=self.decoder(job), keys=self.encryption)

    async def ajob(self, job_id: UUID | str) -> JobHandle[Any]:
        """The handle of a stored job. Raises JobNotFound."""
        job_id = parse_id(job_id)
        [job] = await self.engine.arun(self.engine.get([job_id]))
        return found(self.engine, job, job_id=job_id, decode=self.decoder(job), keys=self.encryption)

    def find(self, text: str = "", /, **filters: Unpack[Filters]) -> list[Job]:
        """A page of jobs, those first that were stored last: `app.find(state="failed", queue="mail", limit=50)`.

        The next page is the one `before=` the last number of this one. States may also be called waiting,
        running and succeeded; scheduled and retrying are parts of pending. Raises OptionInvalid.
        """
        return self.engine.run(self.engine.find(self._wanted(text, filters)))

    async def afind(self, text: str = "", /, **filters: Unpack[Filters]) -> list[Job]:
        """A page of jobs, newest first; see `find`."""
        return await self.engine.arun(self.engine.find(self._wanted(text, filters)))

    def count(self, text: str = "", /, **filters: Unpack[Filters]) -> int:
        """How many jobs match the filters of `find`; with a `limit` no more than that.

        It may have to look at all jobs; for counts by state and queue `stats` is cheap.
        """
        plan = counting(self.engine, self._meant(text, filters), clock=self.now)
        return carry_out(self.engine, plan)

    async def acount(self, text: str = "", /, **filters: Unpack[Filters]) -> int:
        """How many jobs match; see `count`."""
        plan = counting(self.engine, self._meant(text, filters), clock=self.now)
        return await acarry_out(self.engine, plan)

    def stats(self) -> dict[str, Counts]:
        """How many jobs each queue holds, by state."""
        return self.engine.run(self.engine.stats())

    async def astats(self) -> dict[str, Counts]:
        """How many jobs each queue holds, by state."""
        return await self.engine.arun(self.engine.stats())

    def workers(self) -> list[WorkerRecord]:
        """The workers that the store knows of, oldest first; one past its `lease_until` may be gone."""
        return self.engine.run(self.engine.workers())

    async def aworkers(self) -> list[WorkerRecord]:
        """The workers that the store knows of, oldest first; one past its `lease_until` may be gone."""
        return await self.engine.arun(self.engine.workers())

    def queues(self) -> list[Queue]:
        """Every queue that has had a job or a setting, by name: what it holds, and whether it is paused."""
        return self.engine.run(listing(self.engine))

    async def aqueues(self) -> list[Queue]:
        """Every queue that has had a job or a setting, by name."""
        return await self.engine.arun(listing(self.engine))

    def redrive(self, text: str = "", /, *, dry_run: bool = False, **filters: Unpack[Filters]) -> Redriven:
        """Retry all failed jobs that match: `app.redrive(task="send", failure_kind="timeout")`.

        The filters are those of `find`; `state` may be failed or cancelled, and a `limit` takes the newest. Quarantined
        jobs are left alone unless `failure_kind="crash_loop"` asks for them. A dry run changes nothing and tells which
        jobs would be retried; that a key is taken shows only when it is tried.
        """
        return carry_out(self.engine, self._redriving(text, filters, dry_run=dry_run))

    async def aredrive(
        self, text: str = "", /, *, dry_run: bool = False, **filters: Unpack[Filters]
    ) -> Redriven:
        """Retry all failed jobs that match; see `redrive`."""
        return await acarry_out(self.engine, self._redriving(text, filters, dry_run=dry_run))

    def cancel(
        self, text: str = "", /, *, force: bool = False, dry_run: bool = False, **filters: Unpack[Filters]
    ) -> Cancelled:
        """Cancel all jobs that match and have not ended: `app.cancel(queue="mail", since=timedelta(hours=1))`.

        The filters are those of `find`; at least one must be given, and `state="all"` is enough. Running jobs are asked
        to stop, or taken from their workers by `force`. A `limit` takes the newest. A dry run changes nothing and tells
        what would be done.
        """
        return carry_out(self.engine, self._cancelling(text, filters, force=force, dry_run=dry_run))

    async def acancel(
        self, text: str = "", /, *, force: bool = False, dry_run: bool = False, **filters: Unpack[Filters]
    ) -> Cancelled:
        """Cancel all jobs that match and have not ended; see `cancel`."""
        return await acarry_out(self.engine, self._cancelling(text, filters, force=force, dry_run=dry_run))

    def clear(self, text: str = "", /, *, dry_run: bool = False, **filters: Unpack[Filters]) -> int:
        """Delete all jobs that match, with everything that is known of them: `app.clear(state="completed")`.

        The filters are those of `find`, and a `limit` takes the oldest. The state must be named: completed, failed,
        cancelled, pending, or all of these. Pending jobs will then never run; processing ones are never touched.
        Returns how many were deleted, or would be in a dry run.
        """
        plan = clearing(self.engine, self._meant(text, filters), dry_run=dry_run, clock=self.now)
        return carry_out(self.engine, plan)

    async def aclear(self, text: str = "", /, *, dry_run: bool = False, **filters: Unpack[Filters]) -> int:
        """Delete all jobs that match; see `clear`."""
        plan = clearing(self.engine, self._meant(text, filters), dry_run=dry_run, clock=self.now)
        return await acarry_out(self.engine, plan)

    def pause(self, queue: str) -> None:
        """Let no worker start jobs of this queue; those that run go on."""
        self.engine.run(pausing(self.engine, queue, paused=True))

    async def apause(self, queue: str) -> None:
        """Let no worker start jobs of this queue; those that run go on."""
        await self.engine.arun(pausing(self.engine, queue, paused=True))

    def resume(self, queue: str) -> None:
        """Let workers start jobs of this queue again."""
        self.engine.run(pausing(self.engine, queue, paused=False))

    async def aresume(self, queue: str) -> None:
        """Let workers start jobs of this queue again."""
        await self.engine.arun(pausing(self.engine, queue, paused=False))

    def _meant(self, text: str, filters: Filters) -> Filters:
        meant = together(text, filters)
        expect_searchable(self, meant)
        return meant

    def _wanted(self, text: str, filters: Filters) -> JobFilter:
        return wanted(self._meant(text, filters), self.now)

    def _redriving(self, text: str, filters: Filters, *, dry_run: bool) -> Plan[Redriven]:
        return redriving(
            self.engine, self._meant(text, filters), dry_run=dry_run, decoder=self.decoder, clock=self.now
        )

    def _cancelling(self, text: str, filters: Filters, *, force: bool, dry_run: bool) -> Plan[Cancelled]:
        engine = self.engine
        chosen = yield from choosing_live(
            engine, self._meant(text, filters), decoder=self.decoder, clock=self.now
        )
        return chosen if dry_run else (yield from cancelling(engine, chosen, force=force))


def expect_searchable(app: Query, filters: Filters) -> None:
    """Raise OptionInvalid if the filter looks into arguments that are encrypted: it would leave them out in silence."""
    task = filters.get("task")
    if filters.get("args") and app.encryption is not None and (task is None or app.encrypts(task)):
        which = "of this app" if task is None else f"of the task {task!r}"
        raise OptionInvalid(
            f"The arguments {which} are encrypted, so jobs cannot be found by them. Give the jobs a tag or a key"
            " to find them by, or name a task that is declared with encrypt=False."
        )
