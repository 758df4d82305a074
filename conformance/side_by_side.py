"""Two engines side by side, one real and one the model, that must answer the same and hold the same."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from msgspec import structs

from conformance.engine_under_test import EngineUnderTest
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.op import Op
from shigoto.engine.protocol import Engine
from shigoto.model.errors import JobError
from shigoto.model.job import Counts, Enqueued, FailureKind, Job, JobFilter, JobSpec, Lease, State
from shigoto.model.time import Millis
from shigoto.model.worker import LEASE, Death, Report, Rescued, Settlement, SweepOrder, Swept, Verdict, Want

T = TypeVar("T")

EVERYTHING = JobFilter(limit=1_000)


class Pair(NamedTuple):
    """One lease as the engine gave it and as the model gave it; their numbers need not be the same."""

    worker: UUID
    real: Lease
    model: Lease


class Sides:
    """Every method does one thing on both sides and compares the answers, but for numbers and free orders."""

    def __init__(self, store: EngineUnderTest) -> None:
        self.store = store
        self.real = store.engine
        self.model: Engine = MemoryEngine(clock=store.clock)
        self._tokens: dict[UUID, int] = {}

    def both(self, make: Callable[[Engine], Op[T]]) -> tuple[T, T]:
        """Run the same op on both sides."""
        return self.real.run(make(self.real)), self.model.run(make(self.model))

    def same(self, make: Callable[[Engine], Op[T]]) -> T:
        """Run the same op on both sides, which must answer exactly the same."""
        real, model = self.both(make)
        assert real == model
        return real

    def enqueue(self, specs: Sequence[JobSpec]) -> list[UUID]:
        """The jobs that stand afterwards."""
        real, model = self.both(lambda engine: engine.enqueue_many(specs))
        assert _unnumbered(real) == _unnumbered(model)
        return [job.id for job in real]

    def join(self, specs: Sequence[JobSpec], *, commits: bool) -> list[UUID]:
        """Enqueue in a transaction of the caller; after a rollback, nothing has happened."""
        connection = self.store.connect()
        connection.execute("BEGIN")
        joined = self.real.join(connection, self.real.enqueue_many(specs))
        if not commits:
            connection.rollback()
            connection.close()
            return []
        connection.commit()
        connection.close()
        model = self.model.run(self.model.enqueue_many(specs))
        assert _unnumbered(joined) == _unnumbered(model)
        return [job.id for job in joined]

    def claim(self, worker: UUID, want: Want) -> list[Pair]:
        """The same jobs, in the same order, with tokens one higher than before."""
        real, model = self.both(lambda engine: engine.claim(worker, [want]))
        assert [structs.replace(lease, number=0) for lease in real] == [
            structs.replace(lease, number=0) for lease in model
        ]
        for lease in real:
            assert lease.token == self._tokens.get(lease.id, 0) + 1
            self._tokens[lease.id] = lease.token
        return [Pair(worker, *pair) for pair in zip(real, model, strict=True)]

    def beat(self, worker: UUID, held: Sequence[Pair] | None) -> None:
        """The same orders."""
        reals = None if held is None else [_mark(pair.real) for pair in held]
        models = None if held is None else [_mark(pair.model) for pair in held]
        real = self.real.run(self.real.beat(worker, reals))
        model = self.model.run(self.model.beat(worker, models))
        assert (real.fenced, real.released) == (model.fenced, model.released)
        assert _named(self.real, real.cancels) == _named(self.model, model.cancels)
        assert [reals and reals.index(mark) for mark in real.lost] == [
            models and models.index(mark) for mark in model.lost
        ]

    def report_dead(self, worker: UUID, dead: Sequence[Pair], told: dict[str, Any]) -> None:
        """The same jobs are freed, to the same states."""
        reals = [Death(number=pair.real.number, **told) for pair in dead]
        models = [Death(number=pair.model.number, **told) for pair in dead]
        real = self.real.run(self.real.report_dead(worker, reals))
        model = self.model.run(self.model.report_dead(worker, models))
        assert _unlisted(real) == _unlisted(model)

    def report(self, pair: Pair, news: dict[str, Any]) -> None:
        """Both know, or both do not know, the lease."""
        [real] = self.real.run(self.real.report(pair.worker, [_report(pair.real, news)]))
        [model] = self.model.run(self.model.report(pair.worker, [_report(pair.model, news)]))
        assert real is model

    def settle(self, worker: UUID, settled: Sequence[tuple[Pair, dict[str, Any]]]) -> None:
        """The same verdicts."""
        reals = [_settlement(pair.real, end) for pair, end in settled]
        models = [_settlement(pair.model, end) for pair, end in settled]
        verdicts = self.real.run(self.real.settle(worker, reals))
        assert verdicts == self.model.run(self.model.settle(worker, models))
        assert verdicts.count(Verdict.ACCEPTED) <= len({_mark(pair.real) for pair, _ in settled})

    def sweep(
        self, fence: Sequence[UUID], *, unknown_after: Millis | None = None, longest_gap: Millis = LEASE
    ) -> tuple[UUID, ...]:
        """The same workers fenced, the same jobs rescued, as many expired and pruned; who was fenced."""
        order = SweepOrder(fence=tuple(fence), unknown_after=unknown_after, longest_gap=longest_gap)
        real, model = self.both(lambda engine: engine.sweep(order))
        assert _comparable(real) == _comparable(model)
        self._forget_what_is_gone()
        return real.fenced

    def delete(self, wanted: JobFilter, others: Sequence[UUID], states: Collection[State]) -> None:
        """The same jobs may go; and as many go of these and of others that are in one of the states."""
        real, model = self.both(lambda engine: engine.deletable(wanted))
        assert _ids(self.real, real) == _ids(self.model, model)
        real += _numbers(self.real, others)
        model += _numbers(self.model, others)
        assert self.real.run(self.real.delete(real, states)) == self.model.run(
            self.model.delete(model, states)
        )
        self._forget_what_is_gone()

    def retry(self, ids: Sequence[UUID]) -> None:
        """The same jobs, or the same refusal."""
        assert _retried(self.real, ids) == _retried(self.model, ids)

    def compare(self) -> None:
        """Everything that can be seen of all jobs at once."""
        real, model = self.both(lambda engine: engine.find(EVERYTHING))
        assert _without_numbers(real) == _without_numbers(model)
        self._compare_view(JobFilter(state="scheduled", limit=1_000))
        self._compare_view(JobFilter(state="retrying", limit=1_000))
        self._compare_view(JobFilter(failure_kind=FailureKind.CRASH_LOOP, limit=1_000))
        self.same(lambda engine: engine.oldest())
        stats = self.both(lambda engine: engine.stats())
        assert _without_empty(stats[0]) == _without_empty(stats[1])

    def jobs(self) -> list[Job]:
        """All jobs, oldest first."""
        return self.model.run(self.model.find(EVERYTHING))[::-1]

    def look(self, wanted: JobFilter) -> None:
        """The same page, and as many in all."""
        self._compare_view(wanted)
        self.same(lambda engine: engine.count(wanted))

    def _compare_view(self, wanted: JobFilter) -> None:
        real, model = self.both(lambda engine: engine.find(wanted))
        assert [job.id for job in real] == [job.id for job in model]

    def _forget_what_is_gone(self) -> None:
        """A pruned id is new again, and its tokens start again."""
        stored = {job.id for job in self.jobs()}
        self._tokens = {job: token for job, token in self._tokens.items() if job in stored}


def _mark(lease: Lease) -> tuple[int, int]:
    return lease.number, lease.token


def _report(lease: Lease, news: dict[str, Any]) -> Report:
    return Report(number=lease.number, token=lease.token, **news)


def _settlement(lease: Lease, end: dict[str, Any]) -> Settlement:
    return Settlement(number=lease.number, token=lease.token, queue=lease.queue, result='"done"', **end)


def _retried(engine: Engine, ids: Sequence[UUID]) -> object:
    try:
        retried = engine.run(engine.retry(ids))
    except JobError as refusal:
        return type(refusal)
    return _unnumbered(retried)


def _named(engine: Engine, marks: Sequence[tuple[int, int]]) -> set[tuple[UUID, int]]:
    ids = {job.number: job.id for job in engine.run(engine.find(EVERYTHING))}
    return {(ids[number], token) for number, token in marks}


def _ids(engine: Engine, numbers: Sequence[int]) -> list[UUID]:
    ids = {job.number: job.id for job in engine.run(engine.find(EVERYTHING))}
    return [ids[number] for number in numbers]


def _numbers(engine: Engine, ids: Sequence[UUID]) -> list[int]:
    return [job.number for job in engine.run(engine.get(ids)) if job is not None]


def _unnumbered(enqueued: Sequence[Enqueued]) -> list[tuple[UUID, str]]:
    return [(job.id, job.status) for job in enqueued]


def _unlisted(rescued: Sequence[Rescued]) -> set[tuple[UUID, str, State]]:
    return {(job.id, job.task, job.state) for job in rescued}


def _without_numbers(jobs: Sequence[Job]) -> list[Job]:
    return [structs.replace(job, number=0) for job in jobs]


def _without_empty(stats: dict[str, Counts]) -> dict[str, Counts]:
    return {queue: counts for queue, counts in stats.items() if counts != Counts()}


def _comparable(swept: Swept) -> object:
    return (
        set(swept.expired_workers),
        set(swept.fenced),
        _unlisted(swept.rescued),
        (swept.expired, swept.unknown, swept.pruned, swept.clock_step),
    )
