"""The memory engine keeps every promise of the suite, and a few of its own."""

from collections.abc import Callable

import pytest

from conformance.engine_under_test import EngineUnderTest, ended
from conformance.suite import (
    TestAlone,
    TestAudit,
    TestBeat,
    TestBlame,
    TestByArgs,
    TestByError,
    TestByWorker,
    TestCancel,
    TestClaim,
    TestClockSteps,
    TestClosing,
    TestCompleted,
    TestConfigure,
    TestCount,
    TestCrashed,
    TestDelete,
    TestDoorbell,
    TestDue,
    TestEncryptedTexts,
    TestEnqueue,
    TestErrored,
    TestExpiry,
    TestFailed,
    TestFeed,
    TestFence,
    TestFind,
    TestForce,
    TestGet,
    TestGuard,
    TestHistory,
    TestKeyAndRetry,
    TestKeyScope,
    TestKeysInBulk,
    TestKeyTable,
    TestLogs,
    TestMachine,
    TestNoJoin,
    TestNotices,
    TestOldest,
    TestOrder,
    TestOwners,
    TestPromote,
    TestRefusals,
    TestReplace,
    TestReport,
    TestReportDead,
    TestRescue,
    TestRetention,
    TestRetry,
    TestSchedules,
    TestSecondEngine,
    TestSettings,
    TestSince,
    TestSnoozedAndReleased,
    TestStats,
    TestStrays,
    TestSuperseded,
    TestTasks,
    TestTexts,
    TestTheSameId,
    TestThreads,
    TestTick,
    TestTokens,
    TestUnknown,
    TestUnknownAndDue,
    TestWants,
    TestWhen,
    TestWorkers,
)
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.memory.store import WaitingLine
from shigoto.engine.op import Op, Steps
from shigoto.model.job import Job
from shigoto.model.worker import Ending
from shigoto.testing.store import VirtualClock

__all__ = [
    "TestAlone",
    "TestAudit",
    "TestBeat",
    "TestBlame",
    "TestByArgs",
    "TestByError",
    "TestByWorker",
    "TestCancel",
    "TestClaim",
    "TestClockSteps",
    "TestClosing",
    "TestCompleted",
    "TestConfigure",
    "TestCount",
    "TestCrashed",
    "TestDelete",
    "TestDoorbell",
    "TestDue",
    "TestEncryptedTexts",
    "TestEnqueue",
    "TestErrored",
    "TestExpiry",
    "TestFailed",
    "TestFeed",
    "TestFence",
    "TestFind",
    "TestForce",
    "TestGet",
    "TestGuard",
    "TestHistory",
    "TestKeyAndRetry",
    "TestKeyScope",
    "TestKeyTable",
    "TestKeysInBulk",
    "TestLogs",
    "TestMachine",
    "TestNoJoin",
    "TestNotices",
    "TestOldest",
    "TestOrder",
    "TestOwners",
    "TestPromote",
    "TestRefusals",
    "TestReplace",
    "TestReport",
    "TestReportDead",
    "TestRescue",
    "TestRetention",
    "TestRetry",
    "TestSchedules",
    "TestSecondEngine",
    "TestSettings",
    "TestSince",
    "TestSnoozedAndReleased",
    "TestStats",
    "TestStrays",
    "TestSuperseded",
    "TestTasks",
    "TestTexts",
    "TestTheSameId",
    "TestThreads",
    "TestTick",
    "TestTokens",
    "TestUnknown",
    "TestUnknownAndDue",
    "TestWants",
    "TestWhen",
    "TestWorkers",
]

pytestmark = pytest.mark.engine("memory")


@pytest.fixture
def open_store() -> Callable[[], EngineUnderTest]:
    """A fresh, empty engine for each call."""

    def open_one() -> EngineUnderTest:
        clock = VirtualClock()
        return EngineUnderTest(MemoryEngine(clock=clock), clock)

    return open_one


def test_a_long_line_is_drained_in_order(store: EngineUnderTest) -> None:
    """Were a claim to look at every job in line, this would take minutes."""
    worker = store.announce()
    specs = [store.spec(priority=index % 5, queue=f"queue-{index % 7}") for index in range(20_000)]
    store.engine.run(store.engine.enqueue_many(specs))

    drained: list[tuple[int, int]] = []
    while leases := store.claim(worker, limit=10):
        drained += [(-lease.priority, lease.number) for lease in leases]
        store.engine.run(store.engine.settle(worker, [ended(lease, Ending.COMPLETED) for lease in leases]))

    assert len(drained) == 20_000
    assert drained == sorted(drained)


def test_a_job_replaced_over_and_over_leaves_nothing_behind() -> None:
    """I18: what leaves a line from the middle is forgotten before long."""
    line = WaitingLine()
    for turn in range(10_000):
        line.add(1, (turn % 3,))
        line.discard(1)
        line.add(1, (5,))

    assert line.head() == ((5,), 1)
    assert line.size() < 100


def test_an_op_of_another_engine_is_refused(store: EngineUnderTest) -> None:
    def foreign() -> Steps[None]:
        yield "SELECT 1"

    with pytest.raises(AssertionError, match="SELECT 1"):
        store.engine.run(Op(start=foreign))


def test_what_follows_a_commit_may_run_the_next_op(store: EngineUnderTest) -> None:
    """It is called outside the lock, or this would wait for ever."""
    op = store.engine.enqueue_many([store.spec()])
    found: list[Job] = []

    store.engine.run(Op(start=op.start, committed=lambda _: found.extend(store.find())))

    assert len(found) == 1
