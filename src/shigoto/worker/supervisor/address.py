"""Where a runner's jobs are: for other processes, and for people."""

from pathlib import Path
from typing import Protocol, runtime_checkable

from shigoto.app import Shigoto
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreRefused


@runtime_checkable
class InFile(Protocol):
    """An engine whose store is a file on this machine."""

    @property
    def path(self) -> Path:
        """The file, by its absolute path."""
        ...


@runtime_checkable
class OnServer(Protocol):
    """An engine whose store is a database on a server."""

    @property
    def shown(self) -> str:
        """The address of the store, without its secrets."""
        ...


def expect_shared(engine: Engine) -> None:
    """Raise StoreRefused if nobody but this process could enqueue anything."""
    if not engine.capabilities.shared:
        raise StoreRefused(
            f"A {engine.capabilities.name} store lives in one process only: no other could give this worker a job."
            " Use a file."
        )


def name_of_store(app: Shigoto) -> str:
    """What people call the store."""
    engine = app.engine
    if isinstance(engine, InFile):
        return str(engine.path)
    return engine.shown if isinstance(engine, OnServer) else engine.capabilities.name
