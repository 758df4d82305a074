"""Options and settings of the whole test run.

`--engine memory` leaves out the tests of the other engines; tests without the mark `engine` always run.
`--postgres 15,18` runs those of PostgreSQL on these versions, which must be there; tests/postgres.py has its fixtures.
`--hypothesis-profile nightly` looks a good deal longer for an order of operations that breaks a promise.
"""

import logging
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.postgres"]

# A step is several commits on a real store: how long it takes is the disk's affair.
settings.register_profile(
    "ci",
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "nightly", parent=settings.get_profile("ci"), max_examples=2_000, stateful_step_count=50
)
settings.load_profile("ci")

ENGINES = ("memory", "postgres", "sqlite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", choices=ENGINES, default=None, help="run the tests of this engine only")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engine(name): a test of one engine; see --engine")
    config.addinivalue_line("markers", "tier(name): the tier of a test, if it is not that of its folder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "TestMachine" in item.nodeid:
            # Finding the shortest story that fails takes minutes, and is worth them.
            item.add_marker(pytest.mark.timeout(3_600))
    wanted: str | None = config.getoption("--engine")
    if wanted is None:
        return
    others = [
        item for item in items if (mark := item.get_closest_marker("engine")) and mark.args != (wanted,)
    ]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """What a test sets up for the log ends with it."""
    loggers = [logging.getLogger(), *(logging.getLogger(name) for name in ("shigoto", "shigoto.worker"))]
    before = [(logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """`shigoto worker` holds signals back while it starts, and ignores them when it ends. Run inside of a test it would
    leave them so, for all processes that later tests start."""
    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, held_back)
