"""What an engine knows of the health of its store; what it means is decided elsewhere."""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from shigoto.model.time import Millis

ENCODING = "UTF8"  # of a database in PostgreSQL
OLDEST, NEWEST = 14, 18  # major versions of PostgreSQL that are tested, or near to those


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


class HolderFacts(Struct, frozen=True, kw_only=True):
    """Somebody on a server who keeps dead rows from being removed, and perhaps others from going on.

    `name` is how people find it. `seconds` is None if nobody knows since when; `idle` is who does nothing meanwhile.
    """

    kind: Literal["session", "prepared", "slot"]
    name: str
    seconds: float | None = None
    idle: bool = False


class TableFacts(Struct, frozen=True, kw_only=True):
    """A table of the store, as the server's statistics have it; `busy` are those through which all jobs pass."""

    name: str
    live: int
    dead: int
    vacuumed_at: datetime | None
    autovacuum: bool
    busy: bool


class ServerFacts(Struct, frozen=True, kw_only=True):
    """A store's server, as whoever is connected may see it.

    `now` is the server's clock, ahead of ours by `skew` seconds, give or take `doubt`. `role` is who is connected, and
    `rights` what that role lacks. `unseen` sessions belong to others, and do not show what they hold; `hidden` is what
    could not be asked at all. `places` are the connections that ordinary roles may have together, `limit` those of this
    role, and `most` those that one process of ours may open. `heard` is None if nobody wants to listen.
    """

    number: int
    now: datetime
    skew: float
    doubt: float
    role: str
    superuser: bool
    owner: bool
    bypasses: bool
    standby: bool
    settings: dict[str, str]
    places: int
    used: int
    most: int
    limit: int | None = None
    rights: tuple[str, ...] = ()
    holders: tuple[HolderFacts, ...] = ()
    unseen: int = 0
    hidden: tuple[str, ...] = ()
    tables: tuple[TableFacts, ...] = ()
    missing: tuple[str, ...] = ()  # indexes
    invalid: tuple[str, ...] = ()  # indexes
    pooled: bool = False
    prepares: bool = False
    heard: bool | None = None
    queue: float = 0.0  # how much of the room for notifications is taken
    size: int = 0


class MoveFacts(Struct, frozen=True, kw_only=True):
    """What part a store takes, or has taken, in a move, and where its jobs go or come from."""

    kind: Literal["draining", "closed", "moved", "filling"]
    other: str


class StoreFacts(Struct, frozen=True, kw_only=True):
    """A store as it looks from inside.

    `clock` is the highest time that it has seen; `orphans` are running jobs whose worker is gone; `damage` is None if
    nobody has looked for it. The first two are for files.
    """

    journal_mode: str = ""
    synchronous: str = ""
    clock: Millis
    lanes: tuple[LaneFacts, ...] = ()
    orphans: int = 0
    damage: tuple[str, ...] | None = None
    move: MoveFacts | None = None


class Checkup(Struct, frozen=True, kw_only=True):
    """What was found, of a file or of a server; without `store`, `refusal` says why it could not be opened."""

    name: str = ""  # of the store, for people
    version: str
    file: FileFacts | None = None
    server: ServerFacts | None = None
    store: StoreFacts | None = None
    refusal: str | None = None
