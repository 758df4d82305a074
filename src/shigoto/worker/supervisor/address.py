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
    return str(engine.path) if isinstance(engine, InFile) else engine.capabilities.name
