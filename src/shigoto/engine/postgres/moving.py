"""Moves of stores in PostgreSQL. The move lock is made of triggers; who may pass says so by a setting of the
transaction.

To put up a trigger waits for every transaction that has changed the table, and keeps new ones waiting meanwhile: what
is committed afterwards has met the lock. It is for the role that owns the schema.
"""

from collections.abc import Callable, Sequence
from typing import Any

from shigoto.engine.movable import MoveLock
from shigoto.engine.op import Op
from shigoto.engine.postgres import enqueueing
from shigoto.engine.postgres.errors import MOVE_LOCKS
from shigoto.engine.postgres.wire import Copy, Script, in_schema
from shigoto.engine.sql.commands import SqlText, Steps, sql
from shigoto.engine.sql.moving import SqlMover, Ways
from shigoto.model.errors import OptionInvalid

LOCKED_FOR = 10  # seconds to wait for the transactions of others
EVERYTHING = (
    "job", "ready", "scheduled", "blocked", "running", "done", "key", "expiry", "attempt", "progress", "log", "queue",
    "lane", "schedule", "tick",
)  # fmt: skip
STATES_OF_MOVE_LOCKS = {error.code: state for state, error in MOVE_LOCKS.items()}
# Not in the name of the schema, which may be another: a setting belongs to the session.
PASS = "shigoto_gate.holder"

MAKE_MOVE_LOCK = f"""
CREATE TABLE IF NOT EXISTS shigoto.gate (
  lone   boolean PRIMARY KEY DEFAULT true CHECK (lone),
  kind   text NOT NULL,
  move   text NOT NULL,
  other  text NOT NULL,
  holder text NOT NULL);
CREATE OR REPLACE FUNCTION shigoto.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('{PASS}', true) IS DISTINCT FROM TG_ARGV[2] THEN
    RAISE EXCEPTION USING ERRCODE = TG_ARGV[0], MESSAGE = TG_ARGV[1];
  END IF;
  RETURN NEW;
END
$$;
"""
WRITE_DOWN = """
INSERT INTO shigoto.gate (kind, move, other, holder) VALUES ($1::text, $2::text, $3::text, $4::text)
ON CONFLICT (lone) DO UPDATE SET
  kind = excluded.kind, move = excluded.move, other = excluded.other, holder = excluded.holder
"""
# What describes is spelt out where PostgreSQL has no place for it (model.text); what is found again is refused.
DESCRIBING = frozenset({"error", "traceback", "text", "level"})


def mover(schema: str, shown: str, run: Callable[[Op[Any]], Any]) -> SqlMover:
    def script(text: str) -> Script:
        return Script(in_schema(text, schema))

    return SqlMover(
        Ways(
            shown=shown,
            run=run,
            now=_now,
            move_lock=lambda: _move_lock(schema),
            alone=lambda: _alone(script),
            shut=lambda move_lock: _shut(move_lock, shown, schema),
            open=lambda: _open(script, schema),
            passing=_passing,
            load=lambda table, columns, rows: _load(table, columns, rows, schema),
            go_on_after=lambda highest: _go_on_after(highest, script),
            wipe=lambda: _wipe(script),
            submit=lambda _, specs: enqueueing.enqueue_joined(specs),
        )
    )


def _now() -> Steps[int]:
    now: int = (yield sql("now")).fetchone()[0]
    return now


def _move_lock(schema: str) -> Steps[MoveLock | None]:
    known = yield SqlText("SELECT 1 WHERE to_regclass($1::text) IS NOT NULL", (f'"{schema}".gate',))
    if known.fetchone() is None:
        return None
    look = in_schema("SELECT kind, move, other, holder FROM shigoto.gate", schema)
    row = (yield SqlText(look)).fetchone()
    return None if row is None else MoveLock(kind=row[0], move=row[1], other=row[2], holder=row[3])


def _alone(script: Callable[[str], Script]) -> Steps[None]:
    tables = ", ".join(f"shigoto.{table}" for table in (*EVERYTHING, "worker"))
    # Who changes a schedule has begun by locking its row, and changes it when the jobs are stored: so they are awaited
    # first, by a lock that row locks wait for, too. Otherwise they and we could wait for each other.
    yield script(
        f"SET LOCAL lock_timeout = '{LOCKED_FOR}s'; LOCK TABLE shigoto.schedule IN EXCLUSIVE MODE;"
        f" LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE"
    )


def _shut(move_lock: MoveLock, shown: str, schema: str) -> Steps[None]:
    if move_lock.kind == "draining":  # one that refused more may be there
        yield from _open(lambda text: Script(in_schema(text, schema)), schema)
    yield Script(in_schema(MAKE_MOVE_LOCK, schema))
    yield SqlText(
        in_schema(WRITE_DOWN, schema), (move_lock.kind, move_lock.move, move_lock.other, move_lock.holder)
    )
    told = ", ".join(
        map(_quoted, (STATES_OF_MOVE_LOCKS[move_lock.code], move_lock.refusal(shown), move_lock.holder))
    )
    events = dict.fromkeys(EVERYTHING, "INSERT OR UPDATE OR DELETE") | {"worker": "INSERT OR UPDATE"}
    if move_lock.kind == "draining":
        events = {"running": "INSERT"}
    for table, changes in events.items():
        named = in_schema(f"BEFORE {changes} ON shigoto.{table}", schema)
        refuse = in_schema("shigoto.refuse", schema)
        # A worker that was forgotten is told so by its beat, which finds no row; all others hear of the move.
        each = "ROW" if table == "worker" else "STATEMENT"
        # In place of another: to drop that one would wait for whoever only reads, who may be waiting for us.
        yield Script(
            f"CREATE OR REPLACE TRIGGER gate {named} FOR EACH {each} EXECUTE FUNCTION {refuse}({told})"
        )


def _quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def _open(script: Callable[[str], Script], schema: str) -> Steps[None]:
    if (yield from _move_lock(schema)) is None:
        return
    drops = [f"DROP TRIGGER IF EXISTS gate ON shigoto.{table}" for table in (*EVERYTHING, "worker")]
    yield script("; ".join([*drops, "DROP FUNCTION IF EXISTS shigoto.refuse()", "DROP TABLE shigoto.gate"]))


def _passing(move_lock: MoveLock, steps: Steps[Any]) -> Steps[Any]:
    yield SqlText("SELECT set_config($1::text, $2::text, true)", (PASS, move_lock.holder))
    return (yield from steps)


def _load(table: str, columns: tuple[str, ...], rows: Sequence[Sequence[Any]], schema: str) -> Steps[None]:
    text = in_schema(f"COPY shigoto.{table} ({', '.join(columns)}) FROM STDIN", schema)
    yield Copy(text, "".join([_line(columns, row) for row in rows]).encode())


def _line(columns: tuple[str, ...], row: Sequence[Any]) -> str:
    words: list[str] = []
    for column, value in zip(columns, row, strict=True):
        if value is None:
            words.append("\\N")
        elif isinstance(value, str):
            words.append(_escaped(_storable(row[0], column, value) if "\0" in value else value))
        else:
            words.append(str(value))
    return "\t".join(words) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _storable(whose: int | str, column: str, text: str) -> str:
    if column in DESCRIBING:
        return text.replace("\0", "\\x00")
    what, remedy = (f"Job {whose}", "Clear") if isinstance(whose, int) else (f"Schedule {whose!r}", "Remove")
    raise OptionInvalid(
        f"{what} cannot be stored in PostgreSQL: its {column} has U+0000 in it. {remedy} it in the old store, or leave"
        " it out."
    )


def _go_on_after(highest: int, script: Callable[[str], Script]) -> Steps[None]:
    own: int = (yield sql("highest_ever")).fetchone()[0]
    if highest > own:
        yield sql("go_on_after", highest)
    yield sql("set_meta", "pruned_to", 0)
    yield script(
        "ANALYZE shigoto.job, shigoto.done, shigoto.ready, shigoto.scheduled, shigoto.attempt, shigoto.log,"
        " shigoto.schedule, shigoto.tick"
    )


def _wipe(script: Callable[[str], Script]) -> Steps[None]:
    tables = (*(table for table in EVERYTHING if table != "running"), "counter", "tally")
    yield script("; ".join(f"DELETE FROM shigoto.{table}" for table in tables))
