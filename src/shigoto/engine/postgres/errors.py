"""Errors between this process and a server, and what callers are told of them.

ConnectionLost      a connection is of no use any more: the server is gone, or does not answer in time
psycopg.Error       the server has answered, and says no
StoreError          what callers see; the text says which store, what happened and what to do
"""

import random
import re
import time

import psycopg
from psycopg import pq

from shigoto.model.errors import (
    OptionInvalid,
    SchemaMissing,
    StoreBusy,
    StoreError,
    StoreMoved,
    StoreMoving,
    StoreRefused,
    StoreUnavailable,
)

RESTARTS = 10  # of one op, for conflicts with others
SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.25  # seconds before a restart

RESTARTABLE = frozenset({"40001", "40P01"})  # serialization failure, deadlock
# A schema, a table, a column or a function that is not there.
SCHEMA_IS_MISSING = frozenset({"3F000", "42P01", "42703", "42883"})
FORBIDDEN = frozenset({"42501"})
# A text with NUL in it, which nothing of ours lets through, or with letters that the database's encoding does not have.
NOT_TEXT = frozenset({"22021", "22P05"})
# What the move lock of a store raises whose jobs are moved; see moving.py.
MOVE_LOCKS: dict[str, type[StoreError]] = {"SH001": StoreMoved, "SH002": StoreMoving}
READ_ONLY = "25006"
STATEMENT_TIMEOUT, LOCK_TIMEOUT = "57014", "55P03"
NOT_PREPARED = frozenset({"26000", "42P05"})
# A connection to a server that was the primary once, or whose statements a pooler has mixed up: another may do.
WORN_OUT = NOT_PREPARED | {READ_ONLY}
UNAVAILABLE = re.compile("08...|53...|57P..|58...|XX...|" + READ_ONLY)
# What a server may be short of, and what helps.
STARVING = {
    "53100": ("disk space", "Make room on the disk of the server, or give it a larger one"),
    "53200": (
        "memory",
        "Give it more, or lower work_mem and max_connections; if it is for locks, raise max_locks_per_transaction",
    ),
    "53300": (
        "connections",
        "Raise max_connections or the limit of the role, say a smaller pool=N in the address, or put a pooler in front",
    ),
}
# How it says the last one before it has looked at anything else; the last words are PgBouncer's.
_CROWDED = re.compile(
    "too many clients|too many connections|connection slots are reserved|no more connections allowed"
)

# A failed connect has no code, only words: in English, unless the server was told otherwise, and then it is taken for
# an outage. The quoted names are the user's own.
_REFUSALS = (
    ("password authentication failed", "Put the right password into the address, PGPASSWORD or a passfile."),
    ("no password supplied", "Put the password into the address, PGPASSWORD or a passfile."),
    ("no pg_hba.conf entry", "The server's pg_hba.conf must allow this user, database and host."),
    ("authentication failed", "See what pg_hba.conf asks of this user."),
    ("is not permitted to log in", "ALTER ROLE … LOGIN, or use another user."),
    ("permission denied for database", "GRANT CONNECT ON DATABASE … to this user."),
    ("server does not support SSL", "Set sslmode to what the server offers."),
    (
        "certificate verify failed",
        "Set sslrootcert to the authority that has signed the server's certificate.",
    ),
    ("unsupported startup parameter", "A pooler is in between that refuses it: leave it out of the address."),
)
_UNKNOWN = re.compile(r'(database|role) "[^"]*" does not exist')
_ASIDE = re.compile(
    r"(?s)\s*Is the server running [^?]*\?|\s*This probably means .*|^consuming input failed: "
)
_SECRET = re.compile(r"(?i)\b((?:ssl)?password)=\S+")


class ConnectionLost(Exception):
    """The connection is of no use any more.

    `again` tells that the op may be started again on another; `uncertain` that it may have been committed.
    """

    def __init__(self, reason: str, *, answered: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.answered = answered  # the server has said itself that it ends the connection
        self.again = False
        self.uncertain = True


class NoAnswer(ConnectionLost):
    """The server did not answer before the deadline."""


class OpAttempts:
    """What has gone wrong with one op so far."""

    def __init__(self, store: str, until: float) -> None:
        self._store, self._until = store, until
        self._conflicts = 0
        self._losses = 0

    def pause_after(self, error: psycopg.Error | ConnectionLost) -> float:
        """How long to wait before the op is started again. Raises what the caller is to see if it must not be."""
        if isinstance(error, ConnectionLost):
            self._losses += 1
            if error.again and self._losses == 1 and not isinstance(error, NoAnswer):
                return 0.0
            raise unavailable(self._store, error.reason, uncertain=error.uncertain) from error
        if error.sqlstate in RESTARTABLE and self._conflicts < RESTARTS:
            self._conflicts += 1
            pause = random.uniform(0.0, min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0**self._conflicts))
            if time.monotonic() + pause < self._until:
                return pause
        raise refined(error, self._store) from error


def unavailable(store: str, reason: str, *, uncertain: bool = False) -> StoreUnavailable:
    """That the store cannot be reached; `uncertain` if the change that was asked for may have been made."""
    doubt = " The change may have been made all the same." if uncertain else ""
    return StoreUnavailable(
        f"{store} cannot be reached: {reason}.{doubt} See whether the server runs and can be reached from this host;"
        " then try again."
    )


def refused_connection(error: psycopg.Error, store: str) -> StoreError:
    """What a failed attempt to connect means."""
    reason = one_line(error)
    if _UNKNOWN.search(reason):
        return StoreRefused(f"{store} is refused: {reason}. Create it, or correct the address.")
    for words, remedy in _REFUSALS:
        if words in reason:
            return StoreRefused(f"{store} is refused: {reason}. {remedy}")
    if _CROWDED.search(reason):
        return starving(store, "53300", reason)
    return unavailable(store, reason)


def starving(store: str, code: str, reason: str) -> StoreUnavailable:
    """That the server lacks what it needs to do anything."""
    what, remedy = STARVING[code]
    return StoreUnavailable(
        f"{store} is short of {what}: {reason}. {remedy}; then try again. Nothing was changed, and workers wait."
    )


def refined(error: psycopg.Error, store: str) -> Exception:
    """The error as callers are to see it; itself if it is none of theirs, which is a mistake of ours."""
    code, reason = error.sqlstate or "", one_line(error)
    if code in MOVE_LOCKS:
        return MOVE_LOCKS[code](error.diag.message_primary or reason)
    if code in SCHEMA_IS_MISSING:
        return SchemaMissing(
            f"{store} lacks what this release needs: {reason}. Run `shigoto migrate`, as the role that owns the schema."
            " If that has nothing to do, somebody has changed the schema by hand."
        )
    if code in FORBIDDEN:
        return StoreRefused(f"{store} is refused: {reason}. GRANT it to this user, or use another.")
    if code in NOT_TEXT or (not code and isinstance(error, psycopg.DataError)):
        return OptionInvalid(
            f"A text cannot be stored: {reason}. PostgreSQL has no place for U+0000, and a database whose"
            " encoding is not UTF8 has none for most other letters."
        )
    if code == READ_ONLY:
        return unavailable(store, f"{reason}: it is a standby, or read-only for this user")
    if code in NOT_PREPARED:
        return StoreRefused(
            f"{store} has lost a prepared statement: {reason}. A pooler is in between: say prepare=off."
        )
    if code == LOCK_TIMEOUT:
        return StoreBusy(
            f"{store} is busy: somebody else has locked what was to be changed ({reason}), perhaps a transaction whose"
            " client is gone. Nothing was changed; try again, or see pg_stat_activity for who it is."
        )
    if code == STATEMENT_TIMEOUT or code in RESTARTABLE:
        return StoreUnavailable(f"{store} is too busy: {reason}. Nothing was changed; try again.")
    if code in STARVING:
        return starving(store, code, reason)
    if UNAVAILABLE.fullmatch(code):
        return unavailable(store, reason)
    return error


def is_final(result: pq.abc.PGresult) -> bool:
    """Whether the server ends the connection with this error."""
    severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
    code = result.error_field(pq.DiagnosticField.SQLSTATE)
    return severity in (b"FATAL", b"PANIC") or code in (None, b"57P01", b"57P02", b"57P03")


def one_line(error: Exception) -> str:
    """What an error says, without its line breaks and without a password that libpq may have quoted."""
    words = " ".join(_ASIDE.sub("", str(error)).split()).rstrip(".")
    return _SECRET.sub(r"\1=***", words) or type(error).__name__
