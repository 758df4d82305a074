"""What experiments on PostgreSQL are given in tests."""

import shutil
from collections.abc import Iterator

import pytest

from devtools.postgres import Server
from faults.experiment import Setting
from tests.postgres import Yard


@pytest.fixture
def on_postgres(postgres: Server, postgres_yard: Yard) -> Iterator[Setting]:
    """The setting of a short form, in a folder that the account of a server can reach.

    The data of its server is there already, which saves the experiment the seconds that this takes.
    """
    assert postgres.major is not None
    folder = postgres_yard.folder()
    folder.mkdir()
    folder.chmod(0o711)
    postgres_yard.prepared(postgres.major).folder.rename(folder / "postgres")
    yield Setting(engine="postgres", folder=folder, seed=6, full=False)
    shutil.rmtree(folder, ignore_errors=True)
