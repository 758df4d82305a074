"""A store of Shigoto on PostgreSQL with millions of jobs, made by the server itself within a minute.

A few jobs are really stored, and run, by us. The rest are copies of one of them in the same tables, with numbers and
ids of their own; the ids begin with the time and ascend, as ours do. They are counted as an enqueue and a
settlement count them.
"""

import os
import subprocess
from typing import Protocol

from bench.ours import BETTER, PATH, ROOT, SHIGOTO, TOMORROW, WORKER, store_many
from bench.postgres import Asking
from bench.shigoto_app import app, noop, unmeasured

FEW = 10
AT_ONCE = 1_000_000
COLUMNS = """
SELECT string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position)
FROM information_schema.columns
WHERE table_schema = 'shigoto' AND table_name = '{table}' AND column_name NOT IN ({without})
"""
# 48 bits of milliseconds, the version, 12 bits, the variant, and what is left of a hash.
ID = """
(lpad(to_hex(p.created_at + g / 1000), 12, '0') || '7' || substr(md5(g::text), 1, 3)
  || '8' || substr(md5(g::text), 4, 15))::uuid
"""
BODIES = """
INSERT INTO shigoto.job (id, {columns})
SELECT {id}, {columns}
FROM (SELECT * FROM shigoto.job WHERE number = {pattern}) p, generate_series({first}, {last}) g
"""
ROWS = """
INSERT INTO shigoto.{table} (number, {columns})
SELECT b.number, {rows}
FROM shigoto.job b, (SELECT {columns} FROM shigoto.{table} WHERE number = {pattern}) p
WHERE b.number > {mark}
"""


class Filled(Protocol):
    """The runner whose store is filled."""

    @property
    def asking(self) -> Asking: ...


def history(runner: Filled, jobs: int) -> None:
    """So many jobs that were completed."""
    store_many(app, unmeasured.call, FEW)
    app.close()
    command = [*SHIGOTO, *WORKER, "--any-role", "--processes", "1", "--drain"]
    environment = {**os.environ, "PYTHONPATH": PATH}
    subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    _multiply(runner.asking, jobs, table="done", ended=True)


def future(runner: Filled, jobs: int) -> None:
    """So many that are due tomorrow, ahead of all others."""
    store_many(app, noop.using(delay=TOMORROW, priority=BETTER).call, FEW)
    app.close()
    _multiply(runner.asking, jobs, table="scheduled", ended=False)


def _multiply(asking: Asking, jobs: int, *, table: str, ended: bool) -> None:
    """Copy the last one that is in the table."""
    (pattern,) = asking.one(f"SELECT max(number) FROM shigoto.{table}")
    (of_job,) = asking.one(COLUMNS.format(table="job", without="'number', 'id'"))
    (of_table,) = asking.one(COLUMNS.format(table=table, without="'number'"))
    rows = ", ".join(f"p.{name}" for name in of_table.split(", "))
    for first in range(1, jobs + 1, AT_ONCE):
        last = min(first + AT_ONCE - 1, jobs)
        (mark,) = asking.one("SELECT max(number) FROM shigoto.job")
        asking.do(BODIES.format(columns=of_job, id=ID, pattern=pattern, first=first, last=last))
        asking.do(ROWS.format(table=table, columns=of_table, rows=rows, pattern=pattern, mark=mark))
        count = last - first + 1
        asking.do(
            "INSERT INTO shigoto.tally (queue, total, completed, failed, cancelled)"
            f" VALUES ('default', {count}, {count if ended else 0}, 0, 0)"
        )
    asking.do("VACUUM ANALYZE")
    asking.do("CHECKPOINT")
