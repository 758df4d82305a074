"""The promise behind the promises: in any order of operations, the engine does what the model does.

Hypothesis makes up stories of some dozens of steps and plays each on the engine and on a fresh memory engine,
which is the model, under one clock. After every step, what each answers and what each holds must be the same.
What comes out of a failure is the shortest such story.

Steps choose among what the story has so far by small numbers, newest first. (Bundles inside other strategies
would throw away every story in which one of them is still empty, which is nearly all.)
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import structs

from conformance.engine_under_test import EngineUnderTest
from conformance.side_by_side import Pair, Sides
from shigoto.model.job import KEY_MODES, FailureKind, JobFilter, LogLine, QueueSettings, State
from shigoto.model.time import MAX_HOLD, Millis
from shigoto.model.worker import CLAIM_DEADLINE, LEASE, Announcement, Ending, LogTail, Want

T = TypeVar("T")

TASKS = ("work", "mail")
QUEUES = ("a", "b")
DAY: Millis = 86_400_000

pick = st.integers(0, 5)
picks = st.lists(pick, min_size=1, max_size=3, unique=True)
queues = st.sampled_from(QUEUES)
delays = st.sampled_from([0, 0, 0, 500, 20_000])
alones = st.sampled_from([None, None, None, False, True])
texts = st.sampled_from([None, "x", "y"])
# Around every border there is: promotion, the claim deadline, the lease, retention.
leaps = st.sampled_from([1, 499, 500, CLAIM_DEADLINE + 1, LEASE, LEASE + 1, 60_000, DAY, 8 * DAY, 31 * DAY])
asked = st.fixed_dictionaries(
    {
        "task": st.sampled_from(TASKS),
        "queue": queues,
        "payload": st.sampled_from(["{}", '{"n":1}', '{"n":"1"}']),
        "priority": st.sampled_from([0, 0, 1, -1]),
        "delay": delays,
        "expires_in": st.sampled_from([None, None, None, 400, 30_000]),
        "max_failures": st.integers(1, 3),
        "max_crashes": st.sampled_from([None, 1, 2]),
        "alone": st.sampled_from([False, False, True]),
    }
)
keyed = st.fixed_dictionaries(
    {
        "task": st.sampled_from(TASKS),
        "queue": queues,
        "tenant": st.sampled_from(["", "", "t"]),
        "priority": st.sampled_from([0, 1]),
        "delay": delays,
        "key": st.just("k"),
        "key_mode": st.sampled_from(KEY_MODES),
        "alone": st.booleans(),
    }
)
lines = st.builds(LogLine, st.integers(1, 4), st.just(5), st.just("INFO"), st.sampled_from("xy"))
tails = st.builds(LogTail, st.integers(1, 3), st.lists(lines, max_size=3).map(tuple))
logs = st.one_of(st.none(), tails)
news = st.fixed_dictionaries(
    {"progress": st.sampled_from([None, 0.25]), "progress_text": texts, "checkpoint": texts, "log": logs}
)
ends = st.fixed_dictionaries(
    {
        "ending": st.sampled_from(Ending),
        "delay": st.sampled_from([None, 0, 500, 20_000]),
        "error": texts,
        "failure_kind": st.sampled_from([FailureKind.ERROR, FailureKind.TIMEOUT]),
        "alone": st.booleans(),
        "ran": st.booleans(),
        "progress": st.sampled_from([None, 0.0, 0.5]),
        "log": logs,
    }
)

filters = st.builds(
    JobFilter,
    state=st.sampled_from([None, None, *State, "scheduled", "retrying"]),
    queue=st.one_of(st.none(), queues),
    error=st.sampled_from([None, None, "X"]),
    worker=st.sampled_from([None, None, None, "w"]),
    failure_kind=st.sampled_from([None, None, None, FailureKind.ERROR]),
    args=st.sampled_from([(), (), (("n", "1"),)]),
    limit=st.integers(1, 2),
)


class EngineMachine(RuleBasedStateMachine):
    """The steps a story is made of."""

    def __init__(self, store: EngineUnderTest) -> None:
        super().__init__()
        self.store = store
        self.sides = Sides(store)
        self.jobs: list[UUID] = []
        self.workers: list[UUID] = []
        self.fenced: list[UUID] = []
        self.leases: list[Pair] = []

    @initialize()
    def begin(self) -> None:
        for _ in range(2):
            self.announce()
        self._know(self.sides.enqueue([self.store.spec(queue=queue) for queue in QUEUES]))

    @rule(asked=st.lists(asked, min_size=1, max_size=3))
    def enqueue(self, asked: list[dict[str, Any]]) -> None:
        self._know(self.sides.enqueue([self.store.spec(**options) for options in asked]))

    @rule(asked=st.lists(keyed, min_size=1, max_size=3))
    def enqueue_with_a_key(self, asked: list[dict[str, Any]]) -> None:
        self._know(self.sides.enqueue([self.store.spec(**options) for options in asked]))

    @rule(pick=pick, queue=queues)
    def enqueue_again(self, pick: int, queue: str) -> None:
        self.sides.enqueue([self.store.spec("mail", id=_newest(self.jobs, pick), queue=queue)])

    @precondition(lambda self: self.store.engine.capabilities.joins)
    @rule(asked=st.lists(keyed, min_size=1, max_size=2), commits=st.booleans())
    def enqueue_in_a_transaction(self, asked: list[dict[str, Any]], commits: bool) -> None:
        specs = [self.store.spec(**options) for options in asked]
        self._know(self.sides.join(specs, commits=commits))

    @rule(isolates=st.booleans(), tasks=st.sampled_from([TASKS, ("work",)]))
    def announce(self, isolates: bool = True, tasks: tuple[str, ...] = ("work",)) -> None:
        announcement = Announcement(
            id=self.store.new_id(),
            name="w",
            tasks=tasks,
            queues=None,
            slots=2,
            version="1",
            isolates=isolates,
        )
        self.sides.same(lambda engine: engine.announce(announcement))
        self.workers.append(announcement.id)

    @rule(
        pick=pick,
        tasks=st.sampled_from([TASKS, TASKS, ("work",)]),
        queues=st.sampled_from([None, None, ("a",)]),
        limit=st.integers(1, 4),
        alone=alones,
    )
    def claim(
        self,
        pick: int,
        tasks: tuple[str, ...],
        queues: tuple[str, ...] | None,
        limit: int,
        alone: bool | None,
    ) -> None:
        want = Want(tasks=tasks, queues=queues, limit=limit, alone=alone)
        self.leases += self.sides.claim(self._worker(pick), want)

    @rule(pick=pick, ends=st.lists(ends, min_size=1, max_size=4), alone=alones)
    def claim_and_settle(self, pick: int, ends: list[dict[str, Any]], alone: bool | None) -> None:
        worker = self._worker(pick)
        pairs = self.sides.claim(worker, Want(tasks=TASKS, queues=None, limit=len(ends), alone=alone))
        self.leases += pairs
        self.sides.settle(worker, list(zip(pairs, ends, strict=False)))

    # Two more names for what stories are mostly about: each name is as likely as any other step.
    claim_once_more = claim
    claim_and_settle_once_more = claim_and_settle

    @precondition(lambda self: self.leases)
    @rule(picks=picks, end=ends)
    def settle(self, picks: list[int], end: dict[str, Any]) -> None:
        pairs = [_newest(self.leases, pick) for pick in picks]
        self.sides.settle(pairs[0].worker, [(pair, end) for pair in pairs])

    @precondition(lambda self: self.leases)
    @rule(pick=st.integers(0, 30), by=pick, end=ends)
    def settle_an_old_lease_or_anothers(self, pick: int, by: int, end: dict[str, Any]) -> None:
        pair = _newest(self.leases, pick)
        self.sides.settle(self._worker(by), [(pair, end), (pair, end)])

    @precondition(lambda self: self.leases)
    @rule(pick=pick, news=news)
    def report(self, pick: int, news: dict[str, Any]) -> None:
        self.sides.report(_newest(self.leases, pick), news)

    @precondition(lambda self: self.leases)
    @rule(pick=pick, cancels=st.booleans(), late=st.booleans(), knows=st.sampled_from([None, 0, 1, 100]))
    def beat(self, pick: int, cancels: bool, late: bool, knows: int | None) -> None:
        pair = _newest(self.leases, pick)
        if cancels:
            self.sides.same(lambda engine: engine.cancel([pair.real.id]))
        self.store.clock.advance(CLAIM_DEADLINE + 1 if late else 0)
        held = [held for held in reversed(self.leases) if held.worker == pair.worker]
        self.sides.beat(pair.worker, None if knows is None else held[:knows])

    @precondition(lambda self: len(self.workers) > 1)
    @rule(pick=pick)
    def leave(self, pick: int) -> None:
        worker = _newest(self.workers, pick)
        self.workers.remove(worker)
        self.sides.same(lambda engine: engine.leave(worker))

    @precondition(lambda self: self.leases)
    @rule(
        pick=pick,
        knows=st.integers(0, 3),
        delay=st.sampled_from([None, 0, 20_000]),
        error=texts,
        alone=st.booleans(),
    )
    def report_dead(
        self, pick: int, knows: int, delay: Millis | None, error: str | None, alone: bool
    ) -> None:
        worker = _newest(self.leases, pick).worker
        dead = [held for held in reversed(self.leases) if held.worker == worker][:knows]
        self.sides.report_dead(worker, dead, {"delay": delay, "error": error, "alone": alone})
        if worker in self.workers:
            self.workers.remove(worker)
            self.fenced.append(worker)
        if not self.workers:
            self.announce()

    @rule(on=st.sampled_from([True, True, False]))
    def switch_notices(self, on: bool) -> None:
        self.sides.same(lambda engine: engine.switch_notices(on))

    @rule(by=leaps, limit=st.integers(0, 5))
    def advance_and_promote(self, by: Millis, limit: int) -> None:
        self.store.clock.advance(by)
        self.sides.same(lambda engine: engine.promote(limit))

    @rule(by=leaps)
    def advance(self, by: Millis) -> None:
        self.store.clock.advance(by)

    @rule(by=st.integers(1, MAX_HOLD))
    def set_the_clock_back(self, by: Millis) -> None:
        self._see_this_instant()
        self.store.clock.advance(-by)

    @rule(by=st.sampled_from([MAX_HOLD + 1, 3_600_000]))
    def set_the_clock_far_back(self, by: Millis) -> None:
        self._see_this_instant()
        self.store.clock.advance(-by)
        self.sides.sweep(())

    @rule(
        pick=pick,
        later=st.sampled_from([0, LEASE + 1]),
        unknown_after=st.sampled_from([None, 0, 500, LEASE]),
        longest_gap=st.sampled_from([500, LEASE, 10 * LEASE]),
    )
    def sweep(self, pick: int, later: Millis, unknown_after: Millis | None, longest_gap: Millis) -> None:
        self.store.clock.advance(later)
        fence = [_newest(self.workers, pick)]
        for worker in self.sides.sweep(fence, unknown_after=unknown_after, longest_gap=longest_gap):
            self.workers.remove(worker)
            self.fenced.append(worker)
        if not self.workers:
            self.announce()

    @rule(picks=picks, force=st.sampled_from([False, False, True]))
    def cancel(self, picks: list[int], force: bool) -> None:
        jobs = [_newest(self.jobs, pick) for pick in picks]
        self.sides.same(lambda engine: engine.cancel(jobs, force=force))

    @rule(picks=picks, anything=st.booleans())
    def retry(self, picks: list[int], anything: bool) -> None:
        over = [job.id for job in self.sides.jobs() if job.state in (State.FAILED, State.CANCELLED)]
        self.sides.retry([_newest(self.jobs if anything or not over else over, pick) for pick in picks])

    @rule(wanted=filters, back=leaps)
    def look(self, wanted: JobFilter, back: Millis) -> None:
        self.sides.look(wanted)
        self.sides.look(structs.replace(wanted, since=self.store.clock.now - back))

    @rule(wanted=filters, picks=picks, states=st.sets(st.sampled_from(State)))
    def delete(self, wanted: JobFilter, picks: list[int], states: set[State]) -> None:
        self.sides.delete(wanted, [_newest(self.jobs, pick) for pick in picks], states)

    @rule(
        queue=queues,
        paused=st.sampled_from([False, False, False, True]),
        keep_failed_for=st.sampled_from([None, 1]),
    )
    def configure(self, queue: str, paused: bool, keep_failed_for: Millis | None) -> None:
        settings = QueueSettings(name=queue, paused=paused, keep_failed_for=keep_failed_for)
        self.sides.same(lambda engine: engine.configure(settings))
        self.sides.same(lambda engine: engine.settings())

    @invariant()
    def both_hold_the_same(self) -> None:
        self.sides.compare()

    @invariant()
    def every_job_makes_sense(self) -> None:
        for job in self.sides.jobs():
            assert job.failures <= job.max_failures
            assert (job.state is State.PROCESSING) == (job.worker is not None)
            assert job.state.terminal == (job.finished_at is not None)

    def teardown(self) -> None:
        real, model = self.sides.both(lambda engine: engine.workers())
        assert {record.id: record for record in real} == {record.id: record for record in model}
        for job in self.jobs:
            self._compare_history(job)
        self.store.engine.close()

    def _know(self, jobs: Sequence[UUID]) -> None:
        self.jobs += [job for job in jobs if job not in self.jobs]

    def _worker(self, pick: int) -> UUID:
        """One of those in service, and now and then one of the fenced."""
        return _newest(self.fenced if pick == 5 and self.fenced else self.workers, pick)

    def _see_this_instant(self) -> None:
        """A sweep, a while after the last: an engine need not remember every instant that it has seen."""
        self.store.clock.advance(MAX_HOLD + 5_000)  # also if it was set back before
        self.sides.sweep(())

    def _compare_history(self, job: UUID) -> None:
        self.sides.same(lambda engine: engine.attempts(job))
        self.sides.same(lambda engine: engine.logs(job))


class TestMachine:
    """E56."""

    one_of = 1  # so many stories, where a store takes its time for each

    def test_in_any_order_of_operations_the_engine_does_what_the_model_does(
        self, open_store: Callable[[], EngineUnderTest]
    ) -> None:
        """I1, I3, I4, I5, I7, I10, I17."""

        class Story(EngineMachine):
            def __init__(self) -> None:
                super().__init__(open_store())

        usual = settings.default
        assert usual is not None
        run_state_machine_as_test(
            Story, settings=settings(usual, max_examples=usual.max_examples // self.one_of)
        )


def _newest(things: Sequence[T], pick: int) -> T:
    return things[-1 - pick % len(things)]
