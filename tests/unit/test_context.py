"""The context: what a handler learns of its job, what it says, and how it may end."""

import logging
import pickle
from contextvars import copy_context
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from shigoto import (
    Cancel,
    Context,
    Fail,
    JobError,
    LeaseLost,
    OptionInvalid,
    PayloadInvalid,
    PayloadTooLarge,
    RetryLater,
    Shigoto,
    Snooze,
    SoftTimeout,
    Unsupported,
    current,
)
from shigoto.context import JobServices, Signals, current_context, detached
from shigoto.engine.memory import MemoryEngine
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease
from shigoto.model.worker import Announcement, Ending, Settlement, Want

ID = uuid7()
WORKER = uuid7()
LEASE = Lease(
    number=42,
    token=7,
    id=ID,
    task="send",
    queue="mail",
    payload="{}",
    attempt=3,
    failures=2,
    snoozes=0,
    max_failures=6,
    priority=0,
    run_at=0,
    claimed_at=0,
    tenant="shop",
    key="k",
    tags='["a","b"]',
    meta='{"trace":"t"}',
)


def test_a_context_tells_all_about_its_job() -> None:
    context = Context(LEASE, Signals())

    assert (context.job_id, context.number, context.task, context.queue) == (ID, 42, "send", "mail")
    assert (context.attempt, context.failures, context.tenant, context.key) == (3, 2, "shop", "k")
    assert (context.tags, context.meta) == (("a", "b"), {"trace": "t"})
    assert (context.idempotency_key, context.fence) == (str(ID), 7)
    assert detached("send").tags == ()
    assert detached("send").meta == {}


def test_a_context_shows_what_its_worker_signals() -> None:
    signals = Signals()
    context = Context(LEASE, signals)
    assert (context.cancelled, context.stopping) == (False, False)

    signals.cancelled = True
    assert (context.cancelled, context.stopping) == (True, False)

    signals.stopping = True
    assert (context.cancelled, context.stopping, context.overdue) == (True, True, False)

    signals.overdue = True
    assert context.overdue


def test_a_run_whose_lease_is_lost_is_to_end_like_a_cancelled_one() -> None:
    signals = Signals()
    signals.lost = True

    assert Context(LEASE, signals).cancelled


def test_a_soft_limit_is_a_timeout_among_others() -> None:
    with pytest.raises(TimeoutError):
        raise SoftTimeout


def test_progress_keeps_the_newest_value_and_cuts_its_text() -> None:
    signals = Signals()
    context = Context(LEASE, signals)

    context.progress(0.25)
    context.progress(1, "x" * 501)

    assert (signals.progress, signals.progress_text, signals.progress_changed) == (1.0, "x" * 500, True)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, 50, float("nan")])
def test_progress_outside_of_nought_to_one_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"from 0 to 1.*for percent, divide by 100"):
        Context(LEASE, Signals()).progress(fraction)


def test_the_current_context_is_that_of_the_running_job() -> None:
    context = Context(LEASE, Signals())

    def job() -> Context:
        current_context.set(context)
        return current()

    assert copy_context().run(job) is context
    with pytest.raises(LookupError, match="No job is running here"):
        current()


def test_outcomes_carry_what_the_worker_needs_and_survive_a_pickle() -> None:
    later = pickle.loads(pickle.dumps(RetryLater(timedelta(minutes=1), "rate limited")))
    snooze = pickle.loads(pickle.dumps(Snooze(1.5)))

    assert (later.delay, later.reason, str(later)) == (60_000, "rate limited", "rate limited")
    assert (snooze.delay, str(snooze)) == (1_500, "the handler snoozed for 1.5 s")
    assert str(RetryLater(2)) == "the handler asked for a retry in 2 s"
    assert (str(Cancel()), str(Fail())) == ("the handler cancelled its job", "the handler failed its job")
    assert (Cancel("moot").reason, str(Fail("no such user"))) == ("moot", "no such user")


def test_an_outcome_with_a_delay_without_sense_is_refused_where_it_is_raised() -> None:
    with pytest.raises(OptionInvalid, match="The delay of Snooze must not be negative"):
        raise Snooze(-1)
    with pytest.raises(OptionInvalid, match="The delay of RetryLater must be a finite time"):
        raise RetryLater(float("inf"))


class TestInAWorkersHands:
    """What a handler writes itself goes to the store, on its worker's lease."""

    @pytest.fixture
    def app(self) -> Shigoto:
        app = Shigoto(engine=MemoryEngine())

        @app.task
        def work() -> None: ...

        return app

    def start(self, app: Shigoto, state: Any = None) -> tuple[Context, Signals, Lease]:
        """A job in the hands of a worker, as its handler sees it."""
        engine = app.engine
        worker = Announcement(id=WORKER, name="w", tasks=("work",), queues=None, slots=1, version="1")
        engine.run(engine.announce(worker))
        if not app.find(state="pending"):
            app.tasks["work"].enqueue()
        [lease] = engine.run(engine.claim(WORKER, [Want(tasks=("work",), queues=None, limit=1)]))
        signals = Signals()
        return Context(lease, signals, JobServices(engine, WORKER, state)), signals, lease

    def release(self, app: Shigoto, lease: Lease) -> None:
        end = Settlement(number=lease.number, token=lease.token, queue="default", ending=Ending.RELEASED)
        app.engine.run(app.engine.settle(WORKER, [end]))

    def test_the_state_of_the_lifespan_is_there(self, app: Shigoto) -> None:
        pool = object()

        assert self.start(app, pool)[0].state is pool
        assert detached("work").state is None

    def test_a_checkpoint_is_where_the_next_run_resumes(self, app: Shigoto) -> None:
        context, _, lease = self.start(app)
        before: list[object] = [context.resume_from]
        context.checkpoint({"page": 3})
        context.checkpoint({"page": 4})

        assert [*before, context.resume_from] == [None, {"page": 4}]
        self.release(app, lease)
        assert self.start(app)[0].resume_from == {"page": 4}

    async def test_so_is_one_that_was_awaited(self, app: Shigoto) -> None:
        context, _, lease = self.start(app)

        await context.acheckpoint([1, "two", None])

        assert context.resume_from == [1, "two", None]
        self.release(app, lease)
        assert self.start(app)[0].resume_from == [1, "two", None]

    async def test_a_checkpoint_of_a_run_that_lost_its_job_is_refused_and_ends_it(self, app: Shigoto) -> None:
        context, signals, lease = self.start(app)
        self.release(app, lease)

        with pytest.raises(LeaseLost, match=r"task 'work': job 1 is no longer this worker's"):
            context.checkpoint(1)
        with pytest.raises(LeaseLost):
            await context.acheckpoint(1)

        assert (signals.lost, context.cancelled) == (True, True)
        assert context.resume_from is None

    @pytest.mark.parametrize(
        ("value", "error", "text"),
        [
            ("x" * 65_536, PayloadTooLarge, "task 'work': the checkpoint: 65,538 bytes .* limit of 65,536"),
            ({"at": timedelta(1)}, PayloadInvalid, "task 'work': the checkpoint"),
            (float("nan"), PayloadInvalid, "the checkpoint"),
        ],
    )
    def test_a_checkpoint_that_is_no_json_or_too_large_is_refused(
        self, app: Shigoto, value: object, error: type[Exception], text: str
    ) -> None:
        context, _, _ = self.start(app)

        with pytest.raises(error, match=text):
            context.checkpoint(value)
        with pytest.raises(error, match=text):
            detached("work").checkpoint(value)

    def test_log_lines_are_kept_for_the_worker_to_carry(self, app: Shigoto) -> None:
        context, signals, _ = self.start(app)

        context.log("starting")
        context.log("trouble", level="warning")

        assert signals.lines is not None
        tail = signals.lines.tail()
        assert tail is not None
        assert [(line.line, line.level, line.text) for line in tail.lines] == [
            (1, "info", "starting"),
            (2, "warning", "trouble"),
        ]

    def test_a_level_that_is_none_is_refused(self, app: Shigoto) -> None:
        loud: Any = "loud"
        with pytest.raises(OptionInvalid, match="level must be one of debug, info"):
            self.start(app)[0].log("x", level=loud)

    def test_a_store_without_transactions_has_none_to_give(self, app: Shigoto) -> None:
        context, _, _ = self.start(app)

        with pytest.raises(Unsupported, match="memory"):
            context.transaction()


class TestDetached:
    """A plain call of the function: there is no job, and nothing is stored."""

    def test_a_checkpoint_is_remembered_by_the_context(self) -> None:
        context = detached("work")
        context.checkpoint({"page": 1})

        assert context.resume_from == {"page": 1}

    def test_a_log_line_goes_to_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "shigoto"):
            detached("work").log("50 % done")
            detached("work").log("trouble", level="error")

        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            ("INFO", "50 % done"),
            ("ERROR", "trouble"),
        ]

    async def test_there_is_no_job_that_a_transaction_could_complete(self) -> None:
        context = detached("work")

        for attempt in (
            context.transaction,
            lambda: context.transaction(object()),
            lambda: context.transact(len),
        ):
            with pytest.raises(JobError, match="task 'work' was called as a plain function"):
                attempt()

    def test_a_context_without_services_keeps_the_checkpoint_of_its_lease(self) -> None:
        assert Context(structs.replace(LEASE, checkpoint="[1]"), Signals()).resume_from == [1]
