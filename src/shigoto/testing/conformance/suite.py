"""Every test class of the suite, to be imported by the test module of an engine."""

from shigoto.testing.conformance.alone import TestAlone
from shigoto.testing.conformance.arguments import TestByArgs
from shigoto.testing.conformance.cancelling import TestCancel, TestForce
from shigoto.testing.conformance.claiming import TestClaim, TestOrder, TestRefusals, TestWants
from shigoto.testing.conformance.concurrency import (
    TestClosing,
    TestDoorbell,
    TestSecondEngine,
    TestTasks,
    TestThreads,
)
from shigoto.testing.conformance.crashes import TestBlame, TestBury, TestCrashed
from shigoto.testing.conformance.deleting import TestDelete
from shigoto.testing.conformance.enqueue import TestEnqueue, TestTheSameId, TestWhen
from shigoto.testing.conformance.filtering import TestByError, TestByWorker, TestCount, TestSince
from shigoto.testing.conformance.keys import (
    TestKeyAndRetry,
    TestKeyScope,
    TestKeyTable,
    TestReplace,
    TestSuperseded,
)
from shigoto.testing.conformance.keys_in_bulk import TestKeysInBulk
from shigoto.testing.conformance.leases import (
    TestBeat,
    TestClockSteps,
    TestFence,
    TestRescue,
    TestStrays,
)
from shigoto.testing.conformance.logs import TestLogs
from shigoto.testing.conformance.looking import (
    TestFind,
    TestGet,
    TestOldest,
    TestOwners,
    TestSettings,
    TestStats,
    TestWorkers,
)
from shigoto.testing.conformance.machine import TestMachine
from shigoto.testing.conformance.managing import TestConfigure, TestRetry
from shigoto.testing.conformance.notices import TestNotices
from shigoto.testing.conformance.registry import TestAudit, TestFeed, TestTokens
from shigoto.testing.conformance.reporting import TestHistory, TestReport
from shigoto.testing.conformance.schedules import TestDue, TestSchedules
from shigoto.testing.conformance.scheduling import TestExpiry, TestPromote, TestRetention
from shigoto.testing.conformance.sealing import TestSealed
from shigoto.testing.conformance.settling import (
    TestCompleted,
    TestErrored,
    TestFailed,
    TestGuard,
    TestSnoozedAndReleased,
)
from shigoto.testing.conformance.texts import TestTexts
from shigoto.testing.conformance.ticking import TestTick
from shigoto.testing.conformance.transactions import TestJoin, TestNoJoin
from shigoto.testing.conformance.unknown import TestUnknown, TestUnknownAndDue

__all__ = [
    "TestAlone",
    "TestAudit",
    "TestBeat",
    "TestBlame",
    "TestBury",
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
    "TestRescue",
    "TestRetention",
    "TestRetry",
    "TestSchedules",
    "TestSealed",
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
