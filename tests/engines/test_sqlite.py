"""The SQLite engine keeps every promise of the suite."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from conformance.engine_under_test import Connection, EngineUnderTest
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
    TestJoin,
    TestKeyAndRetry,
    TestKeyScope,
    TestKeysInBulk,
    TestKeyTable,
    TestLogs,
    TestMachine,
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
from shigoto.engine.sqlite import SqliteEngine
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
    "TestJoin",
    "TestKeyAndRetry",
    "TestKeyScope",
    "TestKeyTable",
    "TestKeysInBulk",
    "TestLogs",
    "TestMachine",
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

pytestmark = pytest.mark.engine("sqlite")


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[[], EngineUnderTest]]:
    """A fresh, empty file for each call."""
    numbers = count(1)

    with ExitStack() as closing:

        def open_one() -> EngineUnderTest:
            path, clock = tmp_path / f"jobs-{next(numbers)}.db", VirtualClock()

            def open_engine() -> SqliteEngine:
                engine = SqliteEngine(path, clock=clock)
                closing.callback(engine.close)
                engine.migrate()
                return engine

            def connect() -> Connection:
                return sqlite3.connect(path, isolation_level=None)

            return EngineUnderTest(open_engine(), clock, open_again=open_engine, connect=connect)

        yield open_one
