"""SQL for whoever looks after the database: `shigoto sql bootstrap`, `fan-out`. It is printed, and run by others."""

import os
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

import click

from shigoto.cli.bootstrap import Bootstrap, Grantee, identifier, script, verifier
from shigoto.cli.fan_out import FanOut
from shigoto.cli.fan_out import script as fan_out_script
from shigoto.cli.settings import Seconds

STATEMENT_FOR, IDLE_FOR, LOCK_FOR = 60.0, 60.0, 10.0  # seconds
DAY = 86_400.0
SALT = 16  # bytes

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def sql() -> None:
    """Print SQL for whoever looks after the database. Nothing is run, and no database is asked."""


class Name(click.types.StringParamType):
    """The name of something in a database: whatever PostgreSQL can be told in quotes."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name. Raises BadParameter."""
        try:
            identifier(str(value))
        except ValueError as error:
            self.fail(f"{value!r} cannot be a name: {error}.", param, ctx)
        return str(value)


class Schema(Name):
    """A name that the address of a store can say, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name. Raises BadParameter, or StoreRefused."""
        from shigoto.engine.open import open_engine

        name = super().convert(value, param, ctx)
        open_engine(f"postgresql:///?schema={quote(name, safe='')}").close()
        return name


def _password(role: str) -> Callable[[F], F]:
    """The two places where a password may be. Neither the shell's history nor a list of processes shows it."""

    def add(command: F) -> F:
        command = click.option(
            f"--{role}-password-file",
            type=click.Path(exists=True, dir_okay=False),
            metavar="FILE",
            help=f"The password of the {role}: the first line of this file.",
        )(command)
        return click.option(
            f"--{role}-password-env",
            metavar="VARIABLE",
            help=f"The password of the {role}: the value of this variable.",
        )(command)

    return add


def _timeout(flag: str, default: float, help: str) -> Callable[[F], F]:
    return click.option(
        flag, type=Seconds(0, DAY), default=default, show_default=True, metavar="SECONDS", help=help
    )


@sql.command()
@click.option("--database", type=Name(), required=True, help="The database, which is there already.")
@click.option("--schema", type=Schema(), required=True, help="The schema of the store, such as shigoto.")
@click.option(
    "--migrator", type=Name(), required=True, metavar="ROLE", help="Owns the schema, and migrates it."
)
@click.option(
    "--runtime", type=Name(), required=True, metavar="ROLE", help="Enqueues and works, and owns nothing."
)
@_password("migrator")
@_password("runtime")
@click.option(
    "--tables",
    type=Name(),
    multiple=True,
    metavar="SCHEMA",
    help="Let the runtime role read and write all tables of this schema, too. May be said again.",
)
@click.option(
    "--tables-of",
    "makers",
    type=Name(),
    multiple=True,
    metavar="ROLE",
    help="Who makes such tables, so that it can use later ones, too. May be said again.",
)
@_timeout("--statement-timeout", STATEMENT_FOR, "The longest statement of the runtime role; 0 for any.")
@_timeout("--idle-timeout", IDLE_FOR, "How long it may do nothing inside of a transaction.")
@_timeout("--lock-timeout", LOCK_FOR, "How long it may wait for somebody else's lock.")
@click.pass_context
def bootstrap(ctx: click.Context, /, **options: Any) -> None:
    """Print the SQL that makes the roles of a PostgreSQL store, and the schema.

    The migrator owns the schema; `shigoto migrate` is run as this role, and nothing else is. The runtime role is
    for workers and for all that enqueue: it can use what is in the schema, now and after later migrations, and owns
    nothing. Running the SQL again changes nothing.

    Of a password the SQL has only what the server keeps, from which a good one cannot be guessed (SCRAM-SHA-256). A
    role without one logs in as pg_hba.conf says, or gets one by \\password in psql.

    \b
    Examples:
      shigoto sql bootstrap --database shop --schema shigoto \\
        --migrator shop_migrator --migrator-password-env MIGRATOR_PASSWORD \\
        --runtime shop_worker --runtime-password-file /run/secrets/worker > bootstrap.sql
      psql --set ON_ERROR_STOP=1 --dbname shop --file bootstrap.sql
    """
    if options["migrator"] == options["runtime"]:
        raise click.UsageError(
            "--migrator and --runtime are the same role. The point is that they are two.", ctx
        )
    if bool(options["tables"]) != bool(options["makers"]):
        raise click.UsageError("--tables and --tables-of go together: which tables, and who makes them.", ctx)
    wanted = Bootstrap(
        database=options["database"],
        schema=options["schema"],
        migrator=_grantee(ctx, "migrator"),
        runtime=_grantee(ctx, "runtime"),
        statement_timeout=options["statement_timeout"],
        transaction_timeout=options["idle_timeout"],
        lock_timeout=options["lock_timeout"],
        tables=options["tables"],
        makers=options["makers"],
    )
    click.echo(script(wanted), nl=False)


@sql.command(name="fan-out")
@click.option("--schema", type=Name(), required=True, help="The schema of the table, such as public.")
@click.option("--table", type=Name(), required=True, help="The table with one row for each tenant.")
@click.option("--column", type=Name(), required=True, help="The column that tells them apart, such as id.")
@click.option("--function", type=Name(), required=True, help="The function, which is made beside the table.")
@click.option(
    "--owner", type=Name(), required=True, metavar="ROLE", help="Owns the function. Nobody else can be it."
)
@click.option(
    "--runtime", type=Name(), required=True, metavar="ROLE", help="May call it: your workers' role."
)
@click.pass_context
def fan_out(ctx: click.Context, /, **options: str) -> None:
    """Print the SQL of a function that lists all tenants, for workers that row security shows only one.

    A task that enqueues one job for each tenant must know them all, and no more. The function gives one column of
    one table, in order, and is all that the runtime role may do beyond its own rows. It runs as the owner, a role
    that cannot log in and that nobody may belong to. Running the SQL again changes nothing.

    \b
    Examples:
      shigoto sql fan-out --schema public --table store --column id --function store_ids \\
        --owner shop_fan_out --runtime shop_worker > fan-out.sql
      psql --set ON_ERROR_STOP=1 --dbname shop --file fan-out.sql
    """
    if options["owner"] == options["runtime"]:
        raise click.UsageError(
            "--owner and --runtime are the same role. The point is that they are two.", ctx
        )
    try:
        click.echo(fan_out_script(FanOut(**options)), nl=False)
    except ValueError as error:
        raise click.UsageError(f"One of the names cannot be used: {error}.", ctx) from None


def _grantee(ctx: click.Context, role: str) -> Grantee:
    name: str = ctx.params[role]
    variable: str | None = ctx.params[f"{role}_password_env"]
    file: str | None = ctx.params[f"{role}_password_file"]
    if variable is not None and file is not None:
        raise click.UsageError(f"The password of the {role} is in two places. Name one of them.", ctx)
    if variable is not None:
        place, password = f"${variable}", os.environ.get(variable)
        if password is None:
            raise click.UsageError(f"There is no variable {variable} with the password of the {role}.", ctx)
    elif file is not None:
        place, password = file, _first_line(file)
    else:
        return Grantee(name=name)
    try:
        return Grantee(name=name, verifier=verifier(password, os.urandom(SALT)))
    except ValueError as error:
        raise click.UsageError(f"The password in {place} cannot be used: {error}.", ctx) from None


def _first_line(file: str) -> str:
    with open(file, encoding="utf-8", errors="replace") as stream:
        return stream.readline().rstrip("\r\n")
