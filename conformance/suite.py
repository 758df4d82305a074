"""Every test class of the suite, to be imported by the test module of an engine."""

from conformance.cancelling import TestCancel, TestForce
from conformance.claiming import TestClaim, TestOrder, TestRefusals, TestWants
from conformance.concurrency import (
    TestClosing,
    TestDoorbell,
    TestSecondEngine,
    TestTasks,
    TestThreads,
)
from conformance.crashes import TestBlame, TestCrashed, TestReportDead
from conformance.deleting import TestDelete
from conformance.due_times import TestExpiry, TestPromote, TestRetention
from conformance.encryption import TestEncryptedTexts
from conformance.enqueue import TestEnqueue, TestTheSameId, TestWhen
from conformance.filters import TestByError, TestByWorker, TestCount, TestSince
from conformance.filters_by_arguments import TestByArgs
from conformance.history import TestHistory, TestReport
from conformance.isolation import TestAlone
from conformance.keys import (
    TestKeyAndRetry,
    TestKeyScope,
    TestKeysInBulk,
    TestKeyTable,
    TestReplace,
    TestSuperseded,
)
from conformance.leases import (
    TestBeat,
    TestClockSteps,
    TestFence,
    TestRescue,
    TestStrays,
)
from conformance.logs import TestLogs
from conformance.notices import TestNotices
from conformance.operators import TestConfigure, TestRetry
from conformance.reading import (
    TestFind,
    TestGet,
    TestOldest,
    TestOwners,
    TestSettings,
    TestStats,
    TestWorkers,
)
from conformance.schedules import TestDue, TestSchedules
from conformance.settling import (
    TestCompleted,
    TestErrored,
    TestFailed,
    TestGuard,
    TestSnoozedAndReleased,
)
from conformance.state_machine import TestMachine
from conformance.texts import TestTexts
from conformance.ticks import TestTick
from conformance.tokens_audit_feed import TestAudit, TestFeed, TestTokens
from conformance.transactions import TestJoin, TestNoJoin
from conformance.unknown_tasks import TestUnknown, TestUnknownAndDue

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
    "TestJoin",
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
