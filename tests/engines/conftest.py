"""One store for each test; what a store is, the test module of each engine says by its `open_store`."""

from collections.abc import Callable, Iterator

import pytest

from shigoto.testing.conformance.fixture import EngineUnderTest


@pytest.fixture
def store(open_store: Callable[[], EngineUnderTest]) -> Iterator[EngineUnderTest]:
    """A fresh, empty store."""
    opened = open_store()
    yield opened
    opened.engine.close()
