"""The group `sql`: SQL that is printed for those who look after the database, and never run here.

    bootstrap   the two roles of a PostgreSQL store
    fan-out     a function that lists the tenants of an application

The migrator owns the schema and changes it; the runtime role works in it, and owns nothing. The operator who runs this
SQL, once and again after each change of it, must be allowed to create roles and to grant rights on the database.

A fan-out must see all tenants, and a worker under row security does not. So the list, and no more than that, is what a
function gives that runs as a role of its own: one that nobody can be, and that can read one column.

The texts are made of the .sql files beside this one by pure functions of `Bootstrap` and `FanOutFunction`.
"""

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import click
from msgspec import Struct

from shigoto.cli.settings import Seconds

ITERATIONS = 4096  # what PostgreSQL takes itself
LONGEST = 63  # bytes of a name; PostgreSQL cuts off the rest without an error

STATEMENT_FOR, IDLE_FOR, LOCK_FOR = 60.0, 60.0, 10.0  # seconds
DAY = 86_400.0
SALT = 16  # bytes
HERE = Path(__file__).parent
PART = re.compile(r"^-- part: (\w+).*\n", re.MULTILINE)
F = TypeVar("F", bound=Callable[..., Any])


class Grantee(Struct, frozen=True, kw_only=True):
    """A role that can log in; `verifier` is its password as the server keeps it, None for one that is set elsewhere."""

    name: str
    verifier: str | None = None


class Bootstrap(Struct, frozen=True, kw_only=True):
    """What is to be made, and where. Timeouts are in seconds, and 0 is none.

    `tables` are schemas with tables of the application that handlers may read and write; `makers` are the roles that
    make such tables, so that this holds for later ones too.
    """

    database: str
    schema: str
    migrator: Grantee
    runtime: Grantee
    statement_timeout: float
    transaction_timeout: float
    lock_timeout: float
    tables: tuple[str, ...] = ()
    makers: tuple[str, ...] = ()


def bootstrap_script(wanted: Bootstrap) -> str:
    """The SQL of all of it, in one transaction."""
    parts = _parts()
    said = {"database": wanted.database, "schema": wanted.schema}
    said |= {"migrator": wanted.migrator.name, "runtime": wanted.runtime.name}
    values = {name: identifier(text) for name, text in said.items()}
    values |= {f"{name}_text": literal(text) for name, text in said.items()}
    values["statement"] = _seconds(wanted.statement_timeout)
    values["transaction"] = _seconds(wanted.transaction_timeout)
    values["lock"] = _seconds(wanted.lock_timeout)
    made = [parts["header"].format_map(values), _role(parts, wanted.migrator), _role(parts, wanted.runtime)]
    made += [parts[name].format_map(values) for name in ("ownership", "grants", "timeouts")]
    for schema in wanted.tables:
        values["schema"] = identifier(schema)
        made.append(parts["tables"].format_map(values))
        made += [
            parts["later_tables"].format_map({**values, "maker": identifier(maker)})
            for maker in wanted.makers
        ]
    return "\n".join([*made, "COMMIT;\n"])


def _parts() -> dict[str, str]:
    """The parts of `bootstrap.sql`, by their names."""
    _, *found = PART.split((HERE / "bootstrap.sql").read_text("utf-8"))
    return dict(zip(found[::2], found[1::2], strict=True))


def _role(parts: dict[str, str], role: Grantee) -> str:
    values = {
        "name": identifier(role.name),
        "text": literal(role.name),
        "verifier": literal(role.verifier or "-"),
    }
    password = "no_password" if role.verifier is None else "password"
    return parts["role"].format_map(values) + parts[password].format_map(values)


def identifier(name: str) -> str:
    """The name as SQL has it, whatever letters it is made of. Raises ValueError for one that cannot be a name."""
    _expect_text(name)
    if len(name.encode()) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} bytes, and PostgreSQL would cut it off")
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """The text as SQL has it, wherever it stands: the settings of a server may give backslashes a meaning."""
    _expect_text(text)
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    return f" E{quoted}" if "\\" in text else quoted


def _expect_text(text: str) -> None:
    if not text:
        raise ValueError("it is empty")
    if not text.isprintable():  # a line break would end a comment
        raise ValueError("it has a letter that nobody can see")
    if "$do$" in text:
        raise ValueError("$do$ has a meaning in what is printed")


def verifier(password: str, salt: bytes) -> str:
    """The password as a server keeps it (SCRAM-SHA-256): who finds it cannot log in with it, only try out guesses.

    Raises ValueError for a password that different programs could understand in different ways.
    """
    if not password:
        raise ValueError("it is empty")
    if not (password.isascii() and password.isprintable()):
        raise ValueError("only printable ASCII means the same to all programs")
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, ITERATIONS)
    client = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    return f"SCRAM-SHA-256${ITERATIONS}:{_base64(salt)}${_base64(client)}:{_base64(server)}"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _seconds(value: float) -> str:
    return f"'{round(value * 1000)}ms'"


class FanOutFunction(Struct, frozen=True, kw_only=True):
    """Which column of which table is listed, by a function of which name; who owns it, and who may call it."""

    schema: str
    table: str
    column: str
    function: str
    owner: str
    runtime: str


def fan_out_script(wanted: FanOutFunction) -> str:
    """The SQL of all of it, in one transaction. Raises ValueError for what cannot be a name."""
    names = (wanted.schema, wanted.table, wanted.column, wanted.function)
    if any("$list$" in name for name in names):
        raise ValueError("$list$ has a meaning in what is printed")
    schema = identifier(wanted.schema)
    return (
        (HERE / "fan_out.sql")
        .read_text("utf-8")
        .format(
            schema=schema,
            table=f"{schema}.{identifier(wanted.table)}",
            column=identifier(wanted.column),
            function=f"{schema}.{identifier(wanted.function)}",
            owner=identifier(wanted.owner),
            owner_text=literal(wanted.owner),
            runtime=identifier(wanted.runtime),
        )
    )


@click.group()
def sql() -> None:
    """Print SQL for whoever looks after the database. Nothing is run, and no database is asked."""


class Name(click.types.StringParamType):
    """The name of something in a database: whatever PostgreSQL can be told in quotes."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
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
    "--tables", type=Name(), multiple=True, metavar="SCHEMA",
    help="Let the runtime role read and write all tables of this schema, too. May be said again.",
)  # fmt: skip
@click.option(
    "--tables-of", "makers", type=Name(), multiple=True, metavar="ROLE",
    help="Who makes such tables, so that it can use later ones, too. May be said again.",
)  # fmt: skip
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
    click.echo(bootstrap_script(wanted), nl=False)


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
        click.echo(fan_out_script(FanOutFunction(**options)), nl=False)
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
