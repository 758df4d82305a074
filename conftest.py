"""Options, tiers and settings of the whole test run; tests/postgres.py has those of PostgreSQL.

`--engine memory` leaves out the tests of the other engines; tests without the mark `engine` always run.
`--tier quick` runs the tests of a tier (devtools/tiers.py); without it, everything that is named runs.
`--since REV` adds the tests for what has changed since a revision.
`--record` writes how long the tests of this run took to tests/durations.json.
`--renew` writes the pages in tests/unit/cli/snapshots/ as the commands show them now.
`--hypothesis-profile nightly` searches longer for an order of operations that breaks a promise.
"""

import logging
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from devtools.tiers import WANTED, Durations, Tier, changed_since, named_by_changes, tier_of, tier_of_path

pytest_plugins = ["tests.postgres"]

# A step is several commits on a real store, and its time depends on the disk, so there is no deadline.
settings.register_profile(
    "ci",
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", parent=settings.get_profile("ci"), max_examples=15, stateful_step_count=25)
settings.register_profile(
    "nightly", parent=settings.get_profile("ci"), max_examples=2_000, stateful_step_count=50
)
settings.load_profile("ci")

ROOT = Path(__file__).parent
ENGINES = ("memory", "postgres", "sqlite")
ALSO = pytest.StashKey[Sequence[str]]()
TIER = pytest.StashKey[Tier]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", choices=ENGINES, default=None, help="run the tests of this engine only")
    parser.addoption("--tier", choices=tuple(WANTED), default=None, help="run the tests of this tier only")
    parser.addoption("--since", metavar="REV", default=None, help="run the tests for these changes too")
    parser.addoption("--record", action="store_true", help="write tests/durations.json")
    parser.addoption("--renew", action="store_true", help="write the pages in tests/unit/cli/snapshots/")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engine(name): a test of one engine; see --engine")
    config.addinivalue_line("markers", "tier(name): the tier of a test, if it is not that of its folder")
    if config.getoption("--tier") == "nightly":
        settings.load_profile("nightly")
    revision = config.getoption("--since")
    try:
        config.stash[ALSO] = also(changed_since(revision)) if revision else ()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if config.getoption("--record") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def also(changed: Sequence[str]) -> list[str]:
    """Return the tests for changed files, and the mutants that patch them."""
    from faults.mutants import MUTANTS

    test = "faults/tests/test_e58_mutants.py::test_a_broken_build_is_noticed"
    broken = [
        f"{test}[{mutant.name.replace(' ', '_')}"
        for mutant in MUTANTS
        if any(f"src/shigoto/{patch.file}" in changed for patch in mutant.patches)
    ]
    return [*named_by_changes(changed), *broken]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test of the quick tier: neither they nor their imports are needed."""
    if config.getoption("--tier") != "quick" or not collection_path.name.startswith("test_"):
        return None
    path = collection_path.relative_to(ROOT).as_posix()
    return None if tier_of_path(path) is Tier.QUICK or is_also(path, config) else True


def is_also(test: str, config: pytest.Config) -> bool:
    """Return True if `--since` asks for this test, or for a test of this file."""
    return any(test.startswith(each) or each.startswith(f"{test}::") for each in config.stash[ALSO])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    durations = Durations.load()
    for item in items:
        if is_machine(item):
            # Finding the shortest failing story takes minutes, and the report is worth them.
            item.add_marker(pytest.mark.timeout(3_600))
        item.stash[TIER] = tier_of_item(item, durations)
        if config.getoption("--record"):
            item.user_properties.append(("tier", item.stash[TIER].name))
    kept = [item for item in items if is_of_engine(item, config) and is_of_tier(item, config)]
    config.hook.pytest_deselected(items=sorted({*items} - {*kept}, key=items.index))
    items[:] = kept


def is_machine(item: pytest.Item) -> bool:
    return "TestMachine" in item.nodeid


def tier_of_item(item: pytest.Item, durations: Durations) -> Tier:
    """Return the tier of a test. The state machine is as long as its profile says, so its time says nothing."""
    marks = [Tier[mark.args[0].upper()] for mark in item.iter_markers("tier")]
    seconds = 0.0 if is_machine(item) else durations.slow.get(item.nodeid, 0.0)
    return tier_of(item.nodeid.partition("::")[0], marks, seconds)


def is_of_engine(item: pytest.Item, config: pytest.Config) -> bool:
    wanted: str | None = config.getoption("--engine")
    mark = item.get_closest_marker("engine")
    return wanted is None or mark is None or mark.args == (wanted,)


def is_of_tier(item: pytest.Item, config: pytest.Config) -> bool:
    wanted: str | None = config.getoption("--tier")
    if wanted is None or item.stash[TIER] in WANTED[wanted]:
        return True
    return is_also(item.nodeid, config)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Give the state machine short stories in the quick and the full tier."""
    if not (is_machine(item) and item.config.getoption("--tier") in ("quick", "rest", "all")):
        return (yield)
    settings.load_profile("quick")
    try:
        return (yield)
    finally:
        settings.load_profile("ci")


class Recorder:
    """The times of all tests of the run, gathered in the process that has their reports."""

    def __init__(self) -> None:
        self.reports: dict[str, list[pytest.TestReport]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.setdefault(report.nodeid, []).append(report)

    def pytest_sessionfinish(self) -> None:
        durations = Durations.load()
        durations.record(
            (
                test,
                Tier[str(dict(reports[0].user_properties)["tier"])],
                sum(each.duration for each in reports if each.when == "call"),
                sum(each.duration for each in reports),
            )
            for test, reports in self.reports.items()
        )
        durations.save()


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
