"""On which stores the tests of transactions run: those that take a `shop` on all of them, once on each.

A module that is marked with an engine is about that one's stores alone.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.fundamentals.postgres_shop import PostgresShop
from tests.fundamentals.shop import Shop, SqliteShop
from tests.postgres import ServerClock, Yard, make_store_on_test_time, shared_server, versions, wanted_majors

OpenShop = Callable[..., Shop]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("engine")
    stores = []
    if mark is None or mark.args == ("sqlite",):
        stores.append(pytest.param(None, id="sqlite", marks=pytest.mark.engine("sqlite")))
    if mark is None or mark.args == ("postgres",):
        stores += versions(wanted_majors(metafunc.config), pytest.mark.engine("postgres"))
    metafunc.parametrize("store", stores, scope="session")


@pytest.fixture
def open_shop(
    store: int | None, postgres_yard: Yard, tmp_path: Path, pytestconfig: pytest.Config
) -> Iterator[OpenShop]:
    """What opens a shop; `options` are for a server, such as how many connections there are."""
    if store is None:
        with sqlite_shops(tmp_path) as open_one:
            yield open_one
    else:
        shared_server(postgres_yard, store, pytestconfig)
        with postgres_shops(postgres_yard, store) as open_one:
            yield open_one


@pytest.fixture
def shop(open_shop: OpenShop) -> Shop:
    return open_shop()


@pytest.fixture
def short_blocks(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks may last a fifth of a second."""
    shop.shorten_blocks(monkeypatch)


@contextmanager
def sqlite_shops(folder: Path) -> Iterator[OpenShop]:
    with ExitStack() as closing:

        def open_one(options: str = "") -> Shop:
            shop = SqliteShop(folder)
            closing.callback(shop.close)
            return shop

        yield open_one


@contextmanager
def postgres_shops(yard: Yard, major: int) -> Iterator[OpenShop]:
    with (
        yard.emptied(major, make_store_on_test_time) as address,
        ServerClock(address) as clock,
        ExitStack() as closing,
    ):

        def open_one(options: str = "") -> Shop:
            shop = PostgresShop(address, clock, options)
            closing.callback(shop.close)
            return shop

        yield open_one
