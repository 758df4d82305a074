"""Commands of operations: named SQL, what differs between the SQL engines, and numbered migrations.

SQL lives in .sql files, where it can be read as SQL; a line `-- name: x` starts the statement called x. `Dialect` holds
what the SQL engines do each in its own way; all else in this package is one copy for them all.

Migrations are pure here: which exist, which are applied, and whether the two agree. Engines do the I/O.
"""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import UUID

from msgspec import Struct, json

from shigoto.engine.op import Write
from shigoto.model.errors import SchemaTooNew, StoreRefused
from shigoto.model.job import Enqueued, JobSpec, State, View
from shigoto.model.time import Millis
from shigoto.model.worker import Settlement

BREAKING = "-- breaking"


class Migration(Struct, frozen=True):
    """One shipped step of the schema, `0001_name.sql`; once released it is never edited."""

    version: int
    name: str
    sql: str
    checksum: str

    @property
    def breaking(self) -> bool:
        """Whether releases that do not know it must keep away from now on: its first line says `-- breaking`."""
        return self.sql.startswith(BREAKING)


class Applied(Struct, frozen=True):
    """One step as the store remembers it; a store that does not say is closed to older releases by any."""

    version: int
    name: str
    checksum: str
    breaking: bool = True


def load_migrations(folder: Path) -> list[Migration]:
    found: list[Migration] = []
    for file in sql_files(folder):
        sql = file.read_text("utf-8")
        number, _, name = file.stem.partition("_")
        found.append(Migration(int(number), name, sql, sha256(sql.encode()).hexdigest()))
    return found


def too_new(store: str, version: int, name: str, known: int) -> SchemaTooNew:
    """Why a release that knows migrations up to this one must keep away."""
    return SchemaTooNew(
        f"{store} has schema version {version} ({name}), but this release of shigoto knows only versions up to {known}."
        " Upgrade shigoto here, or use the release that made the store."
    )


def pending(
    shipped: Sequence[Migration], applied: Sequence[Applied], *, store: str, beside_newer: bool = False
) -> list[Migration]:
    """What is left to apply; refuses a store that is newer than this release or was changed by hand.

    `beside_newer` is for those who only work there: a newer schema is refused only if it is no longer theirs.
    """
    known = {migration.version: migration for migration in shipped}
    for row in applied:
        if row.version not in known:
            if beside_newer and not row.breaking:
                continue
            raise too_new(store, row.version, row.name, max(known))
        if known[row.version].checksum != row.checksum:
            raise StoreRefused(
                f"Migration {row.version} ({row.name}) of {store} differs from the one in this release."
                " The store was made by a development build, or its schema was edited by hand."
                " Restore a backup, or move the jobs to a new store."
            )
    done = {row.version for row in applied}
    return [migration for migration in shipped if migration.version not in done]


T = TypeVar("T")


class NamedSql(Struct, frozen=True):
    """One statement of the engine's own .sql files, by its name."""

    name: str
    values: Sequence[Any] = ()


class SqlText(Struct, frozen=True):
    """One statement whose text was made for the occasion, in the engine's own dialect; on SQLite also that statement
    for each of many rows. Elsewhere each of them would be a trip to the server."""

    text: str
    values: Sequence[Any] | Mapping[str, Any] = ()
    many: bool = False


class SqlResult(Protocol):
    """What a driver sends back for a command."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


Command = NamedSql | SqlText | Write
Steps = Generator[Any, SqlResult, T]  # commands, and what else an engine knows


def sql(name: str, *values: Any) -> NamedSql:
    return NamedSql(name, values)


def sql_each(name: str, rows: Sequence[Sequence[Any]]) -> NamedSql:
    """The named statement for all rows at once: they travel as one JSON text, and the database takes them apart."""
    return NamedSql(name, (json.encode(rows).decode(),))


def value(value: T) -> Steps[T]:
    """Steps to a value that is known without any command."""
    yield from ()
    return value


def anything_new(answers: Sequence[Enqueued]) -> bool:
    """Return True if a call has stored a job; it has at least one answer."""
    # The first by itself: it is mostly the only one, and a generator takes longer than all the rest of this.
    return answers[0].status != "existing" or any(answer.status != "existing" for answer in answers)


def sql_files(folder: Path) -> list[Path]:
    """The .sql files of a folder, by name.

    `importlib.resources` could find it, and would cost every process of a worker more than a megabyte.
    """
    return sorted(folder.glob("*.sql"))


def load_statements(folder: Path) -> dict[str, str]:
    """The named statements of all files of a folder, without the comments that explain them."""
    statements: dict[str, str] = {}
    for file in sql_files(folder):
        for name, text in _parse(file.read_text("utf-8")).items():
            if name in statements:
                raise ValueError(f"{folder} has two statements called {name!r}")
            statements[name] = text
    return statements


def _parse(text: str) -> dict[str, str]:
    lines: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("-- name: "):
            name = line.removeprefix("-- name: ").strip()
            lines[name] = []
        elif name and line.strip() and not line.lstrip().startswith("--"):
            lines[name].append(line)
    return {name: "\n".join(found) for name, found in lines.items()}


class StateTable(Struct, frozen=True, kw_only=True):
    """Where jobs of one state or view are: the table, what must hold there, which column has the number or the lane,
    and what tells the last error."""

    table: str
    condition: str = "TRUE"
    number: str = "s.number"
    lane: str = "b.lane"
    error: str


class StateTables(Struct, frozen=True, kw_only=True):
    """All of them. `many_pending` finds a page of pending jobs sooner when `many` of them are ready.

    `conditions` are what can be asked in any place, by the name of the filter; `has_error` is asked with the words that
    the place has for the error. `bodies` and `lanes` are joined to a place that needs them, by its column of lanes.
    """

    everywhere: StateTable
    many_pending: StateTable
    by_state: Mapping[State | View, StateTable]
    conditions: Mapping[str, str]
    has_error: str
    join: str
    bodies: str
    lanes: str
    many: str


Submit = Callable[[Millis, Sequence[JobSpec]], Steps[list[Enqueued]]]


class Dialect(Struct, frozen=True, kw_only=True):
    """The ways of one store.

    `now_and_step`: store time, remembered for others, and by how much the clock was set back since the last sweep, if
    that was more than can be waited for.
    `complete`: T4 for those of the runs that the worker holds, with their counts; tells which these are.
    `forget`: delete the bodies of jobs of which nothing else is left, with their counts.
    `fold`: bring the counters up to date, as far as that is not done with every change.
    `uncounted`: by queue, how many jobs the counters do not know of yet.
    `numbers`: of those of the jobs that are known, in the order of their ids.
    `lock_keys`: until we end, nobody else can change who holds these keys, which come in order.
    `locked`: which of these runs somebody else has locked; the others are locked by us.
    `is_damage`: whether it is what a row holds that could not be read.
    `submit`: store jobs in the transaction at hand, which no error of theirs may end.
    `tables`, `statement`: where jobs are, and a statement from a text with `:name` for each value.
    """

    now_and_step: Callable[[], Steps[tuple[Millis, Millis]]]
    complete: Callable[[Millis, UUID, list[Settlement]], Steps[list[Settlement]]]
    forget: Callable[[Sequence[tuple[int, State, str]]], Steps[None]]
    fold: Callable[[], Steps[None]]
    uncounted: Callable[[], Steps[Mapping[str, int]]]
    numbers: Callable[[Collection[UUID]], Steps[dict[UUID, int]]]
    lock_keys: Callable[[Sequence[tuple[str, str]]], Steps[None]]
    locked: Callable[[Sequence[int]], Steps[Collection[int]]]
    is_damage: Callable[[Exception], bool]
    submit: Submit
    state_tables: StateTables
    statement: Callable[[str, Mapping[str, Any]], SqlText]


def one_by_one(dialect: Dialect, name: str, numbers: Sequence[int]) -> Steps[list[tuple[Any, ...]]]:
    """What a statement that takes numbers as JSON answers, without the rows that cannot be read."""
    try:
        return (yield sql(name, json.encode(numbers).decode())).fetchall()
    except Exception as error:
        if not dialect.is_damage(error):
            raise
    rows: list[tuple[Any, ...]] = []
    for number in numbers:
        try:
            rows += (yield sql(name, f"[{number}]")).fetchall()
        except Exception as error:
            if not dialect.is_damage(error):
                raise
    return rows
