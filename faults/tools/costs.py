"""What an operation makes a PostgreSQL server look at: rows of each table, and pages. Nothing of it is committed.

The server counts the rows that a transaction has fetched, also those inside of functions; pages are told by EXPLAIN,
in a second run. Neither depends on how fast anybody is. Rows that were deleted, and are still in an index because
somebody may have to see them, are pages but no rows.
"""

import json
import time
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from shigoto.engine.op import Op, Write, drive
from shigoto.engine.postgres.connection import ThreadConnection
from shigoto.engine.postgres.pool import ThreadOpening
from shigoto.engine.postgres.wire import ServerRows, WireRequest, encode, load_texts
from shigoto.engine.sql.commands import NamedSql

PATIENCE = 120.0  # seconds for one statement, for one that does walk through everything
EXPLAIN = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "
ROWS = b"""
SELECT relname::text, seq_tup_read + coalesce(idx_tup_fetch, 0)
FROM pg_stat_xact_user_tables
WHERE schemaname = 'shigoto'
"""


class Cost(Struct, frozen=True, kw_only=True):
    """Of one operation: rows that were read, by table, pages, and how long it took, which proves nothing."""

    rows: Mapping[str, int]
    pages: int
    milliseconds: float

    @property
    def all_rows(self) -> int:
        """Rows of all tables."""
        return sum(self.rows.values())


class Meter:
    """A connection to the store at this URL on which operations are weighed."""

    def __init__(self, url: str) -> None:
        self._inner = ThreadOpening.connect(url, autocommit=True, prepare_threshold=None)
        self._connection = ThreadConnection(self._inner, prepares=False)
        self._texts = {name: text.encode() for name, text in load_texts("shigoto").items()}

    def close(self) -> None:
        """Let go of the server."""
        self._connection.close()

    def say(self, text: str) -> ServerRows:
        """Any statement."""
        return self._ask(WireRequest(text.encode()))

    def weigh(self, op: Op[Any], *, first: str = "") -> Cost:
        """What the op costs, after a script that is part of the same transaction."""
        self._begin(first)
        before = self._rows()
        began = time.monotonic()
        drive(op.start(), self._execute)
        took = time.monotonic() - began
        after = self._rows()
        self.say("ROLLBACK")

        pages = 0

        def explained(command: Any) -> ServerRows | None:
            nonlocal pages
            pages += self._pages(command)
            return self._execute(command)

        self._begin(first)
        drive(op.start(), explained)
        self.say("ROLLBACK")
        rows = {name: read for name in after if (read := after[name] - before.get(name, 0))}
        return Cost(rows=rows, pages=pages, milliseconds=round(1000 * took, 2))

    def _begin(self, first: str) -> None:
        self.say("BEGIN")
        if first:
            self.say(first)

    def _rows(self) -> dict[str, int]:
        return {name: int(read) for name, read in self._ask(WireRequest(ROWS, (), ())).rows}

    def _execute(self, command: Any) -> ServerRows | None:
        request = self._request(command)
        return None if request is None else self._ask(request)

    def _pages(self, command: Any) -> int:
        """Of a command that is then undone."""
        request = self._request(command)
        if request is None:
            return 0
        self.say("SAVEPOINT weighed")
        answer = self._ask(WireRequest(EXPLAIN + request.text, request.values, request.formats))
        self.say("ROLLBACK TO SAVEPOINT weighed")
        [[told]] = answer.rows
        plan = (told if isinstance(told, list) else json.loads(told))[0]["Plan"]
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    def _request(self, command: Any) -> WireRequest | None:
        if isinstance(command, Write):
            return None
        text = self._texts[command.name] if isinstance(command, NamedSql) else command.text.encode()
        return encode(text, command.values, lambda: False)

    def _ask(self, request: WireRequest) -> ServerRows:
        return self._connection.ask(request, time.monotonic() + PATIENCE)
