"""From a store's address to its engine, and from an engine to the name of its store.

This is the only place that names concrete engines; each is imported when it is asked for.
"""

import re
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import parse_qsl, unquote

from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreRefused, nearest
from shigoto.model.text import without_secrets

SCHEMES = ("sqlite", "memory", "postgresql", "http", "https")
# One letter is a Windows drive. What looks like the address of a server is one, whatever its scheme is made of.
_ADDRESS = re.compile(r"(?i)([a-z][a-z0-9+.-]+):|([^/:]*[^/:.]):(?=//)")


def open_engine(url: str) -> Engine:
    """The engine of a store address: `sqlite:///jobs.db`, `sqlite:////var/lib/app/jobs.db`, `memory:`, a file path,
    `postgresql://user@host/database`, or `http://host:8710`, a server that has one of these.

    Opening is lazy: the store itself is touched by the first operation.
    """
    match = _ADDRESS.match(url)
    if match is None:
        return _sqlite(url, {})
    match scheme := match[1] or match[2]:
        case "memory":
            from shigoto.engine.memory import MemoryEngine

            return MemoryEngine()
        case "sqlite":
            path, options = _parts(url)
            return _sqlite(path, options)
        case "postgresql" | "postgres":
            return _postgres(url)
        case "http" | "https":
            from shigoto.engine.remote import RemoteEngine

            return RemoteEngine(url)
        case _:
            raise StoreRefused(
                f"No engine for {scheme!r} in the store address.{nearest(scheme, SCHEMES)}"
                " Use sqlite:///FILE, memory:, the path of a file, postgresql://USER@HOST/DATABASE, or http://HOST:8710."
            )


def _parts(url: str) -> tuple[str, dict[str, str]]:
    """The path and the options. Taken apart by hand, since file names may hold what means something in other URLs."""
    rest = url.removeprefix("sqlite:")
    if not rest.startswith("///"):
        raise StoreRefused(
            f"{without_secrets(url)!r} is not the address of a file. Write sqlite:///FILE with three slashes, or four"
            " for an absolute path: SQLite knows no hosts."
        )
    path, _, query = rest.removeprefix("///").partition("?")
    if path in ("", ":memory:"):
        raise StoreRefused(
            "The store address names no file. Use sqlite:///jobs.db, or memory: for no file at all."
        )
    return unquote(path), dict(parse_qsl(query, keep_blank_values=True))


def _sqlite(path: str, options: dict[str, str]) -> Engine:
    from shigoto.engine.sqlite import SqliteEngine

    synchronous = options.pop("synchronous", "full").lower()
    if options:
        name = next(iter(options))
        raise StoreRefused(f"Unknown option {name!r} in the store address.{nearest(name, ('synchronous',))}")
    if synchronous not in ("full", "normal"):
        raise StoreRefused(f"synchronous must be 'full' or 'normal', not {synchronous!r}.")
    try:
        return SqliteEngine(path, synchronous=synchronous)
    except (OSError, ValueError) as error:
        raise StoreRefused(f"{path!r} cannot be the path of a store: {error}.") from error


def _postgres(url: str) -> Engine:
    try:
        from shigoto.engine.postgres import PostgresEngine
    except ImportError as error:
        lacking = isinstance(error, ModuleNotFoundError) and error.name == "psycopg"
        raise StoreRefused(
            f"PostgreSQL needs psycopg, which {'is not installed' if lacking else f'cannot be used here ({error})'}."
            ' Run: pip install "shigoto[postgres]".'
        ) from error
    return PostgresEngine(url)


@runtime_checkable
class HasPath(Protocol):
    """An engine whose store is a file on this machine."""

    @property
    def path(self) -> Path:
        """The file, by its absolute path."""
        ...


@runtime_checkable
class HasShownAddress(Protocol):
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


def name_of_store(engine: Engine) -> str:
    """What people call the store."""
    if isinstance(engine, HasPath):
        return str(engine.path)
    return engine.shown if isinstance(engine, HasShownAddress) else engine.capabilities.name
