"""What an engine knows of the health of its store; what it means is decided elsewhere."""

from datetime import datetime

from msgspec import Struct

from shigoto.model.clock import Millis


class FileFacts(Struct, frozen=True, kw_only=True):
    """A store's file as it looks from outside, without opening it.

    `forbidden` are those of its files and folders that this process may not read and write, `exposed` those that every
    user of the machine may write. `file_system` is empty and `free` None where the system does
    not tell.
    """

    path: str
    file_system: str
    size: int
    log_size: int
    free: int | None
    forbidden: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()


class LaneFacts(Struct, frozen=True, kw_only=True):
    """Jobs of one task in one queue that could run now; `alone` for those that need a process of their own.

    `oldest` is since when the one that has waited longest could: since it was due, was made, and was given back.
    """

    queue: str
    task: str
    alone: bool
    ready: int
    oldest: datetime


class StoreFacts(Struct, frozen=True, kw_only=True):
    """A store as it looks from inside.

    `clock` is the highest time that it has seen; `orphans` are running jobs whose worker is gone; `damage` is None if
    nobody has looked for it.
    """

    journal_mode: str
    synchronous: str
    clock: Millis
    lanes: tuple[LaneFacts, ...] = ()
    orphans: int = 0
    damage: tuple[str, ...] | None = None


class Checkup(Struct, frozen=True, kw_only=True):
    """What was found; without `store`, `refusal` says why it could not be opened."""

    version: str
    file: FileFacts
    store: StoreFacts | None = None
    refusal: str | None = None
