"""The PostgreSQL engine keeps every promise of the suite, on every version that is found."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
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
from conformance.suite import TestMachine as Machine
from devtools.postgres import Server
from shigoto.engine.postgres import PostgresEngine
from tests.postgres import ServerClock, Yard, make_store_on_test_time

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

pytestmark = [pytest.mark.engine("postgres")]


class TestMachine(Machine):
    """E56."""

    one_of = 12


@pytest.fixture
def open_store(
    postgres: Server, postgres_yard: Yard, postgres_major: int
) -> Iterator[Callable[[], EngineUnderTest]]:
    """A fresh database for each call, on a server that takes its time from a clock of the test."""
    assert postgres.running
    opened: list[ExitStack] = []

    def open_one() -> EngineUnderTest:
        # The machine opens one after the other: those that it has left must not add up.
        while len(opened) > 1:
            opened.pop(0).close()
        closing = ExitStack()
        opened.append(closing)
        address = closing.enter_context(postgres_yard.emptied(postgres_major, make_store_on_test_time))
        clock = closing.enter_context(ServerClock(address))

        def open_engine() -> PostgresEngine:
            engine = PostgresEngine(address)
            closing.callback(engine.close)
            return engine

        def connect() -> Connection:
            return psycopg.connect(address, autocommit=True)

        return EngineUnderTest(open_engine(), clock, open_again=open_engine, connect=connect)

    yield open_one
    for closing in reversed(opened):
        closing.close()
