"""The command `server`, which runs the HTTP service in this very process."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shigoto.cli.daemon import ProcessOptions, begin_quietly, check_process_options, run_here
from shigoto.cli.target import suggest, takes_target, target_of
from shigoto.cli.worker import Configured, made_here, worker
from shigoto.model.errors import StoreRefused

if TYPE_CHECKING:
    from shigoto.app import Shigoto
    from shigoto.server.listen import Serving

HOST, PORT = "127.0.0.1", 8710
UNNAMED = (
    "No app is named: jobs of tasks that live workers have are taken, but for the built-in ones their arguments are"
    " not checked. Name yours with --app module:attr, $SHIGOTO_APP or app in shigoto.toml."
)


class ServerOptions(ProcessOptions, frozen=True, kw_only=True):
    host: str
    port: int
    certificate: Path | None
    key: Path | None


@click.command(cls=Configured)
@click.argument("store", required=False, shell_complete=suggest("files"))
@click.option(
    "--host", default=HOST, show_default=True, envvar="SHIGOTO_HOST", show_envvar=True,
    help="The address to listen on; 0.0.0.0 for all of this machine.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, envvar="SHIGOTO_PORT", show_envvar=True,
    help="The port; 0 for any that is free.",
)  # fmt: skip
@click.option(
    "--certificate", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="For https: the certificate, and those that vouch for it.",
)  # fmt: skip
@click.option(
    "--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="For https: the private key.",
)  # fmt: skip
@takes_target
def server(ctx: click.Context, store: str | None, **flags: Any) -> int:
    """Serve the store over HTTP until told to stop.

    Any language can submit jobs, ask about them, wait for results and be a worker; `shigoto worker --url
    http://HOST:8710` is one. It also fires schedules, makes due jobs ready and frees those of workers that are gone.
    /api/v1/openapi.json describes what it does, /healthz and /readyz say how it is.

    On this machine it asks for no token until one is made by `shigoto token create`. It refuses to listen on any other
    address before that. SIGINT or SIGTERM ends it: all who wait are answered at once, other requests may finish within
    ten seconds, a second signal cuts them off. The exit code is 0, or 1 if it had to.

    \b
    Examples:
      shigoto server jobs.db
      shigoto --app shop.tasks:app server --host 0.0.0.0 --certificate cert.pem --key key.pem
    """
    expect_extra()
    begin_quietly()
    target = target_of(ctx)
    options = ServerOptions(**flags)
    check_process_options(target.url_flag or store, options)
    if (options.certificate is None) != (options.key is None):
        raise click.UsageError("https needs both: --certificate and --key.", ctx)
    from shigoto.worker.supervisor.host import ReadyFile, ServiceManager

    manager = ServiceManager(os.environ)
    with ReadyFile(options.ready_file) as ready_file:

        def ends() -> None:
            ready_file.hide()
            manager.stopping()

        app, serving = made_here(target, store, lambda app: _made(app, options, ends))

        async def beside() -> None:
            await serving.began.wait()
            ready_file.show()
            manager.ready(f"Serves {serving.address}")
            await manager.run()

        return run_here(app, serving, options, beside, notice=None if target.app else UNNAMED)


server.params += [option for option in worker.params if option.name in ProcessOptions.__struct_fields__]


def expect_extra() -> None:
    missing = [name for name in ("fastapi", "uvicorn", "httptools") if find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"The server needs {', '.join(missing)}, which is not installed: pip install 'shigoto[server]'."
        )


def _made(app: "Shigoto", options: ServerOptions, ends: Callable[[], None]) -> "Serving":
    from shigoto.server.listen import Serving

    class Told(Serving):
        """One that says so when it is asked to stop."""

        def stop(self) -> None:
            ends()
            super().stop()

    if app.engine.capabilities.served:
        raise StoreRefused(
            "This store is a server itself. Name the file or the database whose jobs are to be served."
        )
    return Told(
        app,
        host=options.host,
        port=options.port,
        certificate=options.certificate,
        key=options.key,
        name=options.shown_name,
    )
