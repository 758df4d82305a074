"""Which app a command works with, and which store.

    --url  >  the positional STORE  >  $SHIGOTO_URL  >  the app's own  >  workers.db

A positional store may stand before other words, so it is known by its looks (`looks_like_store`).
"""

import os
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import click

from shigoto.model.errors import StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from shigoto.app import Shigoto
    from shigoto.engine.protocol import Engine

SUFFIXES = (".db", ".db3", ".sqlite", ".sqlite3")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")


@runtime_checkable
class InFile(Protocol):
    """An engine whose store is a file on this machine."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    def expect_schema(self) -> None:
        """Raise SchemaMissing if the file is not a current store; creates and changes nothing."""
        ...


class Target(NamedTuple):
    """What `--app` and `--url` said; the rest is found when a command asks."""

    app: str | None = None
    url: str | None = None

    def load(self) -> "Shigoto":
        """The app of --app, or one with the built-in tasks; its store is still to be chosen, by `aim`."""
        if self.app is None:
            from shigoto import demo

            return demo.app()
        from shigoto.load import load_app, told_in_one_line

        app = load_app(self.app)
        with told_in_one_line(self.app):
            app.load()
        return app

    def aim(self, app: "Shigoto", positional: str | None) -> None:
        """Give the app the store that was asked for, if any was."""
        address = self.address(positional)
        if address is not None and address != app.url:
            app.url = address

    def existing_store(self, positional: str | None = None) -> "Engine":
        """The engine of a store that is there already. Looking creates nothing."""
        engine = self.store(positional)
        expect_there(engine)
        if isinstance(engine, InFile):
            engine.expect_schema()
        return engine

    def store(self, positional: str | None = None) -> "Engine":
        """The engine of the store, which its first use creates."""
        return shared(self._engine(positional))

    def _engine(self, positional: str | None) -> "Engine":
        if self.app is not None:
            from shigoto.load import load_app

            app = load_app(self.app)
            self.aim(app, positional)
            return app.engine
        from shigoto.app import DEFAULT_URL, open_store

        return open_store(self.address(positional) or DEFAULT_URL)

    def address(self, positional: str | None) -> str | None:
        """The store that was asked for; None leaves it to the app."""
        return self.url or positional or os.environ.get("SHIGOTO_URL") or None


def takes_target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let `--app` and `--url` stand after the command's name too, where many people write them."""
    for name in ("url", "app"):
        command = click.option(f"--{name}", hidden=True, expose_value=False, callback=_said_later)(command)
    return click.pass_context(command)


def _said_later(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.obj = target_of(ctx)._replace(**{str(parameter.name): value})


def target_of(ctx: click.Context) -> Target:
    """The target of a command's context."""
    return ctx.obj if isinstance(ctx.obj, Target) else Target()


def expect_there(engine: "Engine") -> None:
    """Raise StoreUnavailable if the store does not exist yet."""
    if isinstance(engine, InFile) and not is_there(engine):
        raise StoreUnavailable(
            f"There is no such file: {engine.path}. Run a worker or `shigoto migrate` to create it."
        )


def is_there(engine: "Engine") -> bool:
    """Whether the store exists, as far as that can be known without opening it."""
    if not isinstance(engine, InFile):
        return True
    try:
        return engine.path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be searched
        raise StoreUnavailable(f"{engine.path} cannot be looked at: {error.strerror}.") from error


def shared(engine: "Engine") -> "Engine":
    """The engine, unless its jobs would be gone when this command ends."""
    if not engine.capabilities.shared:
        raise StoreRefused(
            f"A {engine.capabilities.name} store lives in one process only:"
            " no command can look into another's. Use a file."
        )
    return engine


def split_store(words: Sequence[str], known: Collection[str] = ()) -> tuple[str | None, list[str]]:
    """The store and the words after it; none if the first word is known or does not look like one."""
    first, rest = (words[0], list(words[1:])) if words else ("", [])
    if first and first not in known and looks_like_store(first):
        return first, rest
    return None, list(words)


def looks_like_store(word: str) -> bool:
    """Whether a word is an address, a path, has an SQLite file's suffix, or names a file that is there."""
    return (
        SCHEME.match(word) is not None
        or "/" in word
        or os.sep in word
        or word.lower().endswith(SUFFIXES)
        or os.path.isfile(word)
    )
