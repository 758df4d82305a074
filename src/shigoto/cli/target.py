"""The app and the store that a command works with.

    --app  >  $SHIGOTO_APP  >  app in the settings file  >  the built-in tasks
    --url  >  the positional STORE  >  $SHIGOTO_URL  >  url in the settings file  >  the app's own  >  workers.db

One command that names two stores is refused: it may be about to delete from the wrong one.
A positional store may stand before other words, so it is known by its looks (`looks_like_store`).

What the app's own code prints while it is loaded must not stand in an answer, so standard output leads elsewhere
meanwhile. For a word on the command line, `suggest` asks the same app and the same store, once a shell wants to know.
"""

import os
import re
import sys
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import click

from shigoto.cli.settings import FileSettings, Found, Origin, SettingsFolder, from_environment
from shigoto.model.errors import StoreRefused, StoreUnavailable
from shigoto.model.text import without_secrets

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from shigoto.app import Shigoto
    from shigoto.engine.protocol import Engine

F = TypeVar("F", bound=Callable[..., Any])

SUFFIXES = (".db", ".db3", ".sqlite", ".sqlite3")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")

Suggestion = Literal["files", "tasks", "queues", "store_then_task", "store_then_filters", "store_then_queues"]


@runtime_checkable
class FileEngine(Protocol):
    """An engine whose store is a file on this machine."""

    @property
    def path(self) -> Path: ...


@runtime_checkable
class ServerEngine(Protocol):
    """An engine whose store is a database on a server."""

    @property
    def shown(self) -> str: ...


@runtime_checkable
class SchemaEngine(Protocol):
    """An engine whose store must be made before anybody can look into it."""

    def expect_schema(self) -> None:
        """Raise SchemaMissing if there is no current store; creates and changes nothing."""
        ...


@runtime_checkable
class WaitingEngine(Protocol):
    """An engine that waits for a server that may be about to come back."""

    def hurry(self) -> None:
        """Tell at once that it is not there."""
        ...


class CommandHint(NamedTuple):
    """How a command line names the app and the store, for hints that do the same."""

    app: str | None = None
    url: str | None = None
    store: str | None = None

    def command(self, name: str, *words: str) -> str:
        """Another command on the same store, as one writes it in a shell."""
        from shlex import join

        app = () if self.app is None else ("--app", self.app)
        url = () if self.url is None else ("--url", without_secrets(self.url))
        store = () if self.store is None else (without_secrets(self.store),)
        return join(["shigoto", *app, *url, name, *store, *words])


NO_HINT = CommandHint()


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """What the flags `--app` and `--url` said; the rest is found when a command asks."""

    app_flag: str | None = None
    url_flag: str | None = None
    folder: SettingsFolder = field(default_factory=SettingsFolder)

    @property
    def settings(self) -> FileSettings:
        """What the files of the current folder say. Raises SettingsError."""
        return self.folder.settings

    @property
    def app(self) -> str | None:
        """The app, as module:attr; None stands for the built-in tasks."""
        app: str | None = self.find_app().value
        return app

    def find_app(self) -> Found:
        if self.app_flag is not None:
            return Found(self.app_flag, Origin("flag", "--app"))
        if app := from_environment("SHIGOTO_APP"):
            return Found(app, Origin("variable", "SHIGOTO_APP"))
        if self.settings.app is not None:
            return Found(self.settings.app, self.settings.origin("app"))
        return Found(None, Origin("default"))

    def find_url(self, positional: str | None = None) -> Found:
        """The store that was asked for, and who says so; none is the app's own, or else workers.db.

        Raises a usage error for two of them in one command, and for one that is empty.
        """
        for text, what in ((self.url_flag, "--url"), (positional, "STORE")):
            if text is not None:
                _expect_name(text, what)
        if self.url_flag is not None:
            if positional is not None:
                _expect_same("stores", self.url_flag, positional)
            return Found(self.url_flag, Origin("flag", "--url"))
        if positional is not None:
            return Found(positional, Origin("word", "STORE"))
        if url := from_environment("SHIGOTO_URL"):
            return Found(url, Origin("variable", "SHIGOTO_URL"))
        if self.settings.url is not None:
            return Found(self.settings.url, self.settings.origin("url"))
        return Found(None, Origin("default"))

    def names_nothing(self, positional: str | None = None) -> bool:
        """Whether neither an app nor a store was asked for, so that a forgotten --app looks like a missing store."""
        return self.app is None and self.address(positional) is None

    def hint(self, positional: str | None = None) -> CommandHint:
        """How this very command names its app and its store."""
        return CommandHint(self.app_flag, self.url_flag, positional)

    def load(self, *, printing: bool = False) -> "Shigoto":
        """The app of --app, or one with the built-in tasks; its store is still to be chosen, by `aim`.

        What it prints goes to standard error, unless `printing`, for a command that has no answer to give.
        """
        reference = self.app
        if reference is None:
            return demo_app()
        from shigoto.app import load_app, told_in_one_line

        with nullcontext() if printing else only_answers():
            app = load_app(reference)
            with told_in_one_line(reference):
                app.load()
        return app

    def aim(self, app: "Shigoto", positional: str | None) -> None:
        """Give the app the store that was asked for, if any was."""
        address = self.address(positional)
        if address is not None and address != app.url:
            app.url = address

    def existing_store(self, positional: str | None = None) -> "Engine":
        """The engine of a store that is there already. Looking creates nothing."""
        return existing(self.store(positional), unnamed=self.names_nothing(positional))

    def store(self, positional: str | None = None) -> "Engine":
        """The engine of the store, which its first use creates."""
        return shared(self._engine(positional))

    def app_of_store(self, positional: str | None, *, loaded: bool = False) -> "Shigoto":
        """The app, aimed at a store that is there already, with all its `imports` if it is to be `loaded`."""
        app = self.load() if loaded else self._app() or demo_app()
        self.aim(app, positional)
        existing(shared(app.engine), unnamed=self.names_nothing(positional))
        return app

    def _engine(self, positional: str | None) -> "Engine":
        app = self._app()
        if app is not None:
            self.aim(app, positional)
            return app.engine
        from shigoto.app import DEFAULT_URL, open_store

        return open_store(self.address(positional) or DEFAULT_URL)

    def _app(self) -> "Shigoto | None":
        """The app of --app, without its `imports`."""
        reference = self.app
        if reference is None:
            return None
        from shigoto.app import load_app

        with only_answers():
            return load_app(reference)

    def address(self, positional: str | None) -> str | None:
        """The store that was asked for; None leaves it to the app."""
        url: str | None = self.find_url(positional).value
        return url


def demo_app() -> "Shigoto":
    from shigoto import demo

    return demo.app()


def takes_target(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let `--app` and `--url` stand after the command's name too, where many people write them."""
    for name in ("url", "app"):
        command = click.option(f"--{name}", hidden=True, expose_value=False, callback=_said_later)(command)
    return click.pass_context(command)


def answers(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a command whose answer programs can read, with `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="For programs.")(takes_target(command))


def takes_words(metavar: str, what: Suggestion = "files") -> Callable[[F], F]:
    """The words of a command, the first of which may be a store (`split_store`)."""
    return click.argument("words", nargs=-1, metavar=metavar, shell_complete=suggest(what))


def takes(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options that go together, in this order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _said_later(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    target = target_of(ctx)
    is_app = parameter.name == "app"
    before = target.app_flag if is_app else target.url_flag
    if before is not None:
        _expect_same("apps" if is_app else "stores", before, value)
    ctx.obj = replace(target, app_flag=value) if is_app else replace(target, url_flag=value)


def _expect_same(what: str, first: str, second: str) -> None:
    if first != second:
        raise click.UsageError(
            f"Two {what} are named: {without_secrets(first)} and {without_secrets(second)}. Leave one out."
        )


def _expect_name(text: str, what: str) -> None:
    if not text.strip():
        raise click.UsageError(
            f"{what} is empty: name a store, or leave it out. Is there a variable of the shell that is not set?"
        )


def target_of(ctx: click.Context) -> CommandTarget:
    """The target of a command's context; where words are only completed, nobody has made one yet."""
    if isinstance(ctx.obj, CommandTarget):
        return ctx.obj
    flags = ctx.find_root().params
    return CommandTarget(flags.get("app"), flags.get("url"))


def existing(engine: "Engine", *, unnamed: bool = False) -> "Engine":
    """The engine, if its store is there and has a current schema. Raises StoreError.

    Whoever looks sits before the screen, so a server that cannot be reached is told at once.
    """
    expect_there(engine, unnamed=unnamed)
    if isinstance(engine, WaitingEngine):
        engine.hurry()
    expect_schema(engine)
    return engine


def expect_schema(engine: "Engine") -> None:
    """Raise SchemaMissing if the store does not have the schema of this release; creates nothing."""
    if isinstance(engine, SchemaEngine):
        engine.expect_schema()


def expect_there(engine: "Engine", *, unnamed: bool = False) -> None:
    """Raise StoreUnavailable if the store does not exist yet; `unnamed` if nobody has named an app or a store."""
    if isinstance(engine, FileEngine) and not is_there(engine):
        migrate = CommandHint(store=str(engine.path)).command("migrate")
        raise StoreUnavailable(
            f"There is no such file: {engine.path}. Run a worker or `{migrate}` to create it"
            f"{', or name your app with --app' if unnamed else ''}."
        )


def is_there(engine: "Engine") -> bool:
    """Whether the store exists, as far as that can be known without opening it."""
    if not isinstance(engine, FileEngine):
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
    """The store and the words after it; none if the first word is known or does not look like one.

    Raises a usage error for an empty first word.
    """
    if not words:
        return None, []
    first, *rest = words
    _expect_name(first, "The first word")
    if first not in known and looks_like_store(first):
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


@contextmanager
def only_answers() -> Generator[None]:
    """What is printed in the block goes to standard error, be it by this process or by one that it starts."""
    with redirect_stdout(sys.stderr), _joined(1, 2):
        yield


@contextmanager
def silence() -> Generator[None]:
    """What is printed in the block goes nowhere."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
        _joined(1, nowhere.fileno()),
        _joined(2, nowhere.fileno()),
    ):
        yield


@contextmanager
def _joined(fd: int, other: int) -> Generator[None]:
    """The file of this number is that of the other for a while; as it was, if there is no such file."""
    _flush()
    try:
        kept = os.dup(fd)
        os.dup2(other, fd)
    except OSError:  # somebody has closed it
        yield
        return
    try:
        yield
    finally:
        _flush()
        os.dup2(kept, fd)
        os.close(kept)


def _flush() -> None:
    """What is still to be written belongs where the stream leads now."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()


def suggest(what: Suggestion) -> "Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]":
    """For `shell_complete=`: imports `completion.py`, and asks the function of this name, when a shell asks."""

    def ask(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem[str]]":
        from shigoto.cli import completion

        items: list[CompletionItem[str]] = getattr(completion, what)(ctx, incomplete)
        return items

    return ask
