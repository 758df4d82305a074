"""The http engine keeps every promise of the suite, with a memory store behind its server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

import pytest
from starlette.types import Receive, Scope, Send

from conformance.engine_under_test import EngineUnderTest
from conformance.suite import (
    TestAlone,
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
    TestNotices,
    TestOldest,
    TestOrder,
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
    TestUnknown,
    TestUnknownAndDue,
    TestWants,
    TestWhen,
    TestWorkers,
)
from shigoto import Shigoto
from shigoto.engine.memory import MemoryEngine
from shigoto.engine.remote import RemoteEngine
from shigoto.server import Service, records
from shigoto.server.listen import Serving
from shigoto.testing.store import VirtualClock
from tests.service.ground import running

__all__ = [
    "TestAlone",
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
    "TestNotices",
    "TestOldest",
    "TestOrder",
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
    "TestUnknown",
    "TestUnknownAndDue",
    "TestWants",
    "TestWhen",
    "TestWorkers",
]

pytestmark = pytest.mark.engine("memory")


class Street(Service):
    """Hands what is asked under /1, /2 … to services of their own, as the host of mounted ones does: to stop a server
    takes a fifth of a second, and there are hundreds of tests."""

    def __init__(self) -> None:
        super().__init__(Shigoto(engine=MemoryEngine()), housekeeping=False)
        self._houses: dict[str, Service] = {}
        self._numbers = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number = scope["path"].split("/")[1] if scope["type"] == "http" else ""
        if number in self._houses:
            await self._houses[number]({**scope, "root_path": f"/{number}"}, receive, send)
        else:
            await super().__call__(scope, receive, send)

    @contextmanager
    def house(self, app: Shigoto) -> Iterator[str]:
        """A service of the app, and its path."""
        number = str(next(self._numbers))
        house = self._houses[number] = Service(app, anonymous=True, housekeeping=False)
        try:
            yield f"/{number}"
        finally:
            house.stopping()
            del self._houses[number]


@pytest.fixture(scope="module")
def street() -> Iterator[tuple[Street, str]]:
    """One server for all tests, and its address."""
    serving = Serving(Shigoto(engine=MemoryEngine()), port=0)
    serving.service = street = Street()
    with running(serving):
        yield street, serving.address


@pytest.fixture
def open_store(
    monkeypatch: pytest.MonkeyPatch, street: tuple[Street, str]
) -> Iterator[Callable[[], EngineUnderTest]]:
    """A fresh, empty store behind a service of its own for each call.

    The suite stores records that no code above an engine would make, such as arguments that are no JSON. The server
    refuses those (`tests/service/test_records.py`), but not here.
    """
    monkeypatch.setattr(records, "checked", lambda spec: spec)
    monkeypatch.setattr(records, "expect_storable", lambda _: None)
    services, address = street
    with ExitStack() as stack:

        def open_one() -> EngineUnderTest:
            clock = VirtualClock()
            path = stack.enter_context(services.house(Shigoto(engine=MemoryEngine(clock=clock))))

            def opened() -> RemoteEngine:
                engine = RemoteEngine(address + path, whole=True)
                stack.callback(engine.close)
                return engine

            return EngineUnderTest(opened(), clock, open_again=opened)

        yield open_one
