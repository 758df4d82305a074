"""The suite that every engine must pass: one module for each kind of promise, one test for each promise.

To run it against an engine, write a test module that imports the test classes from `conformance.suite` and gives them
one fixture:

    @pytest.fixture
    def open_store(tmp_path: Path) -> Iterator[Callable[[], EngineUnderTest]]:
        ...     # each call opens a fresh, empty store with its own VirtualClock

    @pytest.fixture
    def store(open_store: Callable[[], EngineUnderTest]) -> EngineUnderTest:
        return open_store()

The test classes of `transactions` come in two kinds: take the one that fits the engine's capabilities.
"""

from pkgutil import iter_modules

import pytest

# Before any module of the suite is imported, so that a broken promise shows the values that broke it.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
