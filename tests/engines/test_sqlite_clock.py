"""A20: what every process of a file knows of the time by itself, without a sweep."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.engine_under_test import EngineUnderTest
from shigoto.engine.sqlite import SqliteEngine
from shigoto.model.time import MAX_HOLD, to_datetime
from shigoto.testing.store import VirtualClock

pytestmark = pytest.mark.engine("sqlite")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EngineUnderTest]:
    clock = VirtualClock()
    engine = SqliteEngine(tmp_path / "jobs.db", synchronous="off", clock=clock)
    yield EngineUnderTest(engine, clock)
    engine.close()


@pytest.mark.parametrize("back", [1, MAX_HOLD])
def test_after_an_enqueue_a_small_step_back_stands_still(store: EngineUnderTest, back: int) -> None:
    first = store.enqueue()
    store.clock.advance(-back)

    second = store.enqueue()

    assert store.job(first).created_at == store.job(second).created_at
    assert store.sweep().clock_step == 0


def test_after_an_enqueue_a_large_step_back_is_believed_and_reported_once(store: EngineUnderTest) -> None:
    store.enqueue()
    store.clock.advance(-3_600_000)

    assert store.job(store.enqueue()).created_at == to_datetime(store.clock.now)
    assert store.sweep().clock_step == 3_600_000
    assert store.sweep().clock_step == 0
