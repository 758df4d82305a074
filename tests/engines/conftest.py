"""One store for each test; what a store is, the test module of each engine says by its `open_store`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.engine_under_test import EngineUnderTest
from tests.engines.moved_stores import Stores


@pytest.fixture
def store(open_store: Callable[[], EngineUnderTest]) -> Iterator[EngineUnderTest]:
    """A fresh, empty store."""
    opened = open_store()
    yield opened
    opened.engine.close()


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stores]:
    """Opens stores to be moved."""
    stores = Stores(tmp_path, request)
    yield stores
    stores.close()
