"""The http engine keeps every promise of the suite, with a memory store behind its server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from shigoto import Shigoto
from shigoto.engine.http import RemoteEngine
from shigoto.engine.memory import MemoryEngine
from shigoto.server import records
from shigoto.testing.clock import VirtualClock
from shigoto.testing.conformance.fixture import EngineUnderTest
from shigoto.testing.conformance.suite import (
    TestAlone,
    TestBeat,
    TestBlame,
    TestBury,
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
    TestEnqueue,
    TestErrored,
    TestExpiry,
    TestFailed,
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
    TestOrder,
    TestPromote,
    TestRefusals,
    TestReplace,
    TestReport,
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
    TestUnknown,
    TestUnknownAndDue,
    TestWants,
    TestWhen,
    TestWorkers,
)
from tests.service.ground import served

__all__ = [
    "TestAlone",
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
    "TestOrder",
    "TestPromote",
    "TestRefusals",
    "TestReplace",
    "TestReport",
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
    "TestUnknown",
    "TestUnknownAndDue",
    "TestWants",
    "TestWhen",
    "TestWorkers",
]

pytestmark = pytest.mark.engine("memory")


@pytest.fixture
def open_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], EngineUnderTest]]:
    """A fresh, empty store behind a server of its own for each call.

    The suite stores records that no code above an engine would make, such as arguments that are no JSON. The server
    refuses those (`tests/service/test_records.py`), but not here.
    """
    monkeypatch.setattr(records, "checked", lambda spec: spec)
    monkeypatch.setattr(records, "expect_storable", lambda _: None)
    with ExitStack() as stack:

        def open_one() -> EngineUnderTest:
            clock = VirtualClock()
            app = Shigoto(engine=MemoryEngine(clock=clock))
            server = stack.enter_context(served(app, housekeeping=False))

            def opened() -> RemoteEngine:
                engine = RemoteEngine(server.url, whole=True)
                stack.callback(engine.close)
                return engine

            return EngineUnderTest(opened(), clock, open_again=opened)

        yield open_one
