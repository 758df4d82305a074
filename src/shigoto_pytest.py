"""The pytest plugin: the fixture `jobs`, and the app that it belongs to.

    # pyproject.toml                              # test_shop.py
    [tool.pytest.ini_options]                     def test_sign_up(jobs: Jobs) -> None:
    shigoto_app = "shop:app"                          sign_up("ada@example.org")
                                                      jobs.assert_enqueued(send_welcome.call("ada@example.org"))

It stands beside the package because pytest imports it at every start, and a test run without jobs must not pay for
importing them: until a test asks for a fixture, nothing of shigoto is imported.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from shigoto import Shigoto
    from shigoto.testing import Jobs

NO_APP = (
    "The fixture `jobs` needs to know your app. Say where it is in pytest's configuration, such as"
    ' shigoto_app = "shop:app", or define a fixture `shigoto_app` that returns it.'
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of the configuration file."""
    parser.addini(
        "shigoto_app", "the app of the fixture `jobs`, as module:attr, such as shop:app", default=""
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker."""
    config.addinivalue_line(
        "markers",
        "shigoto(run='inline', now=…, state=…, store=…, ticks=False): run the test with the fixture `jobs`, and with"
        " these options of app.test()",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give the fixture to every test with the marker: without it, jobs would go to the app's own store."""
    if isinstance(item, pytest.Function) and item.get_closest_marker("shigoto") is not None:
        names = item.fixturenames
        if "jobs" not in names:
            names.insert(0, "jobs")  # before fixtures that enqueue


@pytest.fixture(scope="session")
def shigoto_app(pytestconfig: pytest.Config) -> "Shigoto":
    """The app that is named by the option `shigoto_app`; override it in a conftest.py to make one."""
    reference: str = pytestconfig.getini("shigoto_app")
    if not reference:
        raise pytest.UsageError(NO_APP)
    from shigoto.app import load_app

    return load_app(reference)


@pytest.fixture
def jobs(request: pytest.FixtureRequest, shigoto_app: "Shigoto") -> Iterator["Jobs"]:
    """The jobs of this test, in memory: `app.test()` around it, with the options of `@pytest.mark.shigoto(…)`."""
    with shigoto_app.test(**_options(request.node)) as jobs:
        yield jobs


def _options(node: pytest.Item) -> dict[str, Any]:
    """What all markers on the test, its class and its module say; the nearest wins."""
    options: dict[str, Any] = {}
    for mark in reversed(list(node.iter_markers("shigoto"))):
        if mark.args:
            raise pytest.UsageError(
                f"{node.nodeid}: the marker shigoto takes options by name: @pytest.mark.shigoto(run='inline')."
            )
        options.update(mark.kwargs)
    return options
