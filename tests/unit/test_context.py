"""The context: what a handler learns of its job, what it says, and how it may end."""

import pickle
from contextvars import copy_context
from datetime import timedelta

import pytest

from shigoto import Cancel, Context, Fail, OptionInvalid, RetryLater, Snooze, current
from shigoto.context import Signals, current_context, detached
from shigoto.model.ids import uuid7
from shigoto.model.job import Lease

ID = uuid7()
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
    assert (context.cancelled, context.stopping) == (True, True)


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
