"""From a store's address to its engine. The only place that names concrete engines, each imported when asked for."""

from urllib.parse import parse_qsl, unquote, urlsplit

from shigoto.engine.protocol import Engine
from shigoto.model.errors import StoreRefused, nearest

SCHEMES = ("sqlite", "memory")


def open_engine(url: str) -> Engine:
    """The engine of a store address: `sqlite:///jobs.db`, `sqlite:////var/lib/app/jobs.db`, `memory:`, or a file path.

    Opening is lazy: the store itself is touched by the first operation.
    """
    scheme, colon, _ = url.partition(":")
    if not colon or len(scheme) == 1:  # a bare path; one letter is a Windows drive
        return _sqlite(url, {})
    match scheme:
        case "memory":
            from shigoto.engine.memory import MemoryEngine

            return MemoryEngine()
        case "sqlite":
            parts = urlsplit(url)
            return _sqlite(_path(url), dict(parse_qsl(parts.query, keep_blank_values=True)))
        case _:
            raise StoreRefused(
                f"No engine for {scheme!r} in the store address.{nearest(scheme, SCHEMES)}"
                " Use sqlite:///FILE, memory: or the path of a file."
            )


def _path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc:
        raise StoreRefused(
            f"The store address has a host ({parts.netloc!r}), but SQLite is a file on this machine."
            " Write sqlite:///FILE with three slashes, or four for an absolute path."
        )
    path = unquote(parts.path).removeprefix("/")
    if path in ("", ":memory:"):
        raise StoreRefused(
            "The store address names no file. Use sqlite:///jobs.db, or memory: for no file at all."
        )
    return path


def _sqlite(path: str, options: dict[str, str]) -> Engine:
    from shigoto.engine.sqlite import SqliteEngine

    synchronous = options.pop("synchronous", "full").lower()
    if options:
        name = next(iter(options))
        raise StoreRefused(f"Unknown option {name!r} in the store address.{nearest(name, ('synchronous',))}")
    if synchronous not in ("full", "normal"):
        raise StoreRefused(f"synchronous must be 'full' or 'normal', not {synchronous!r}.")
    return SqliteEngine(path, synchronous=synchronous)
