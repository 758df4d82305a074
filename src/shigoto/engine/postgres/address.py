"""Store addresses, as in `postgresql://user@host:5432/database?schema=shigoto&pool=4`.

Whatever libpq knows goes to libpq as it is written: `sslmode`, `target_session_attrs`, several hosts, a service, a file
with passwords. Four parameters are ours:

    schema     where the tables live; `shigoto` unless said otherwise
    prepare    `on` or `off`, for statements that are prepared; else only on connections that go straight to the server
    listen     a second address, percent-encoded, for the one connection that waits for notifications, where the first
               leads to a pooler; or `off`, and then workers find new jobs by looking every now and then
    pool       how many connections the threads of a process may have, and how many each event loop

`connect_timeout`, which is libpq's, also bounds how long callers wait for a server that is being restarted.
"""

import re
from urllib.parse import unquote

import psycopg
from msgspec import Struct
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from shigoto.model.errors import StoreRefused, nearest
from shigoto.model.text import HIDDEN, shown, without_secrets

OURS = ("schema", "prepare", "listen", "pool")
SWITCH = {"on": True, "off": False}
IN_THREADS, ON_A_LOOP = 16, 8  # connections, unless the address says otherwise
BEYOND = 1  # connections of each pool for operations, which only the urgent may have
CONNECT_FOR = 10  # seconds

# How soon the system notices that nobody is at the other end. Our own deadlines hold without it, but not while nothing
# is asked: then only these end a connection whose server is gone without a word. The addresses of pooled servers must
# not carry `options`, which PgBouncer refuses.
LIBPQ_DEFAULTS = {
    "connect_timeout": str(CONNECT_FOR),
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "fallback_application_name": "shigoto",
}
ALWAYS = {"client_encoding": "utf8"}

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresAddress(Struct, frozen=True, kw_only=True):
    """Everything that an address says. Its parameters hold secrets: only `shown` is for the eyes of people."""

    url: str
    shown: str
    parameters: dict[str, str]  # for libpq
    listen_parameters: dict[str, str] | None
    schema: str = "shigoto"
    prepare: bool | None = None  # None: each connection finds out whether it may
    in_threads: int = IN_THREADS
    on_a_loop: int = ON_A_LOOP

    @property
    def patience(self) -> float:
        """How long anybody waits for a server that cannot be reached, in seconds: `connect_timeout`, within reason."""
        said = self.parameters.get("connect_timeout", "")
        return min(float(said), CONNECT_FOR) if said.isdigit() and int(said) > 0 else CONNECT_FOR

    @property
    def connections(self) -> int:
        """The most that a process with one event loop may have."""
        operations = self.in_threads + BEYOND + self.on_a_loop + BEYOND
        blocks = self.on_a_loop + self.on_a_loop  # in threads, and on the loop
        return operations + blocks + (self.listen_parameters is not None)

    def __repr__(self) -> str:
        return f"Settings({self.shown!r})"


def read_address(url: str) -> PostgresAddress:
    """What the address says. Raises StoreRefused for what cannot be meant."""
    parts = _our_part(url)
    listen, pool = parts.own.get("listen"), parts.own.get("pool")
    parameters = _libpq(parts.rest)
    if listen is None:
        listen_parameters: dict[str, str] | None = parameters
    else:
        listen_parameters = None if listen == "off" else _listen_address(listen)
    return PostgresAddress(
        url=url,
        shown=_shown(parts.rest, parts.own),
        parameters=parameters,
        listen_parameters=listen_parameters,
        schema=_schema(parts.own.get("schema", "shigoto")),
        prepare=_switch("prepare", parts.own["prepare"]) if "prepare" in parts.own else None,
        in_threads=IN_THREADS if pool is None else _number("pool", pool),
        on_a_loop=ON_A_LOOP if pool is None else _number("pool", pool),
    )


class _Parts(Struct, frozen=True):
    rest: str  # what libpq is told
    own: dict[str, str]


def _our_part(url: str) -> _Parts:
    """Taken apart by hand: the rest must reach libpq to the letter, and Python reads such URLs in its own way."""
    base, _, query = url.partition("?")
    if not base.startswith(("postgresql://", "postgres://")):
        raise StoreRefused(
            f"{without_secrets(url)!r} is not the address of a PostgreSQL database. Write"
            " postgresql://USER@HOST:5432/DATABASE."
        )
    own: dict[str, str] = {}
    rest: list[str] = []
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        name = unquote(name)
        if name in own:
            raise StoreRefused(f"The store address says {name!r} twice.")
        if name in OURS:
            own[name] = unquote(value)
        else:
            _expect_known(name)
            rest.append(pair)
    return _Parts("?".join([base, "&".join(rest)]) if rest else base, own)


def _expect_known(name: str) -> None:
    known = {*(option.keyword.decode() for option in pq.Conninfo.get_defaults()), "ssl"}
    if name not in known:
        raise StoreRefused(
            f"Unknown parameter {shown(name)} in the store address.{nearest(name, {*known, *OURS})}"
            f" Ours are {', '.join(OURS)}; all others are libpq's."
        )


def _libpq(url: str) -> dict[str, str]:
    try:
        said = conninfo_to_dict(url)
    except psycopg.Error as error:
        # What libpq says of it may quote the address, and with it a password.
        raise StoreRefused(
            f"{without_secrets(url)!r} is no address that libpq understands. Write"
            " postgresql://USER@HOST:5432/DATABASE; characters of a password or a name that mean something in an"
            " address, such as @ and /, must be percent-encoded."
        ) from (None if without_secrets(url) != url else error)
    return LIBPQ_DEFAULTS | {name: str(value) for name, value in said.items() if value is not None} | ALWAYS


def _listen_address(url: str) -> dict[str, str]:
    parts = _our_part(url)
    if parts.own:
        raise StoreRefused(
            f"The address in 'listen' says {next(iter(parts.own))!r}, which the store address itself must say."
        )
    return _libpq(parts.rest)


def _schema(name: str) -> str:
    if _SCHEMA.fullmatch(name) is None or name.startswith("pg_"):
        raise StoreRefused(
            f"{shown(name)} cannot be the schema of a store. It is made of at most 63 of a-z, 0-9 and _, begins with"
            " no digit, and not with pg_, which is PostgreSQL's own."
        )
    return name


def _switch(name: str, value: str) -> bool:
    if value not in SWITCH:
        raise StoreRefused(f"{name} must be 'on' or 'off', not {shown(value)}.")
    return SWITCH[value]


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and 1 <= int(value[:6]) <= 1000):
        raise StoreRefused(f"{name} must be a number from 1 to 1000, not {shown(value)}.")
    return int(value)


def _shown(rest: str, own: dict[str, str]) -> str:
    """The address for people: the second one in it is encoded, where nobody would recognise its secrets."""
    said = [
        f"{name}={value if name != 'listen' or value == 'off' else HIDDEN}" for name, value in own.items()
    ]
    address = without_secrets(rest)
    return address if not said else f"{address}{'&' if '?' in address else '?'}{'&'.join(said)}"
