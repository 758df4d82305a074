"""Where a runner's jobs are, said so that its supervisor finds them."""

from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import quote

from shigoto.app import Shigoto
from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreRefused, storable


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


def lasting_address(app: Shigoto) -> str:
    """The address of the app's store, which means the same in every folder. Raises OptionInvalid."""
    engine = app.engine
    if not isinstance(engine, InFile):
        return app.url
    path = quote(storable("The path of the store", str(engine.path)))
    _, question, options = app.url.partition("?") if app.url.startswith("sqlite:") else ("", "", "")
    return f"sqlite:///{path}{question}{options}"


def name_of_store(app: Shigoto) -> str:
    """What people call the store."""
    engine = app.engine
    return str(engine.path) if isinstance(engine, InFile) else engine.capabilities.name
