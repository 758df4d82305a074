"""Operations of the PostgreSQL engine, command by command: what two of them do to each other at the worst moment."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any, Generic, Self, TypeVar

import psycopg

from shigoto.engine.op import Op, Write
from shigoto.engine.postgres.joining import OfPsycopg
from shigoto.engine.postgres.wire import load_texts
from shigoto.engine.sql.commands import NamedSql

T = TypeVar("T")

TEXTS = load_texts("shigoto")
TIMEOUT = 20.0


class Stepper(Generic[T]):
    """One op in a transaction of its own, which stands still between two commands."""

    def __init__(self, address: str, op: Op[T], *, patience: int = 0) -> None:
        self._connection = psycopg.connect(address)
        self._connection.execute(f"SET lock_timeout = {patience}")
        self._connection.commit()
        self._theirs = OfPsycopg(self._connection)
        self._steps = op.start()
        self._command = next(self._steps)
        self._value: list[T] = []
        self._error: list[Exception] = []
        self._thread: Thread | None = None

    @property
    def ended(self) -> bool:
        """Whether all commands were executed."""
        return bool(self._value)

    def step(self) -> None:
        """Execute the next command."""
        answer: Any = None
        if not isinstance(self._command, Write):
            assert not isinstance(self._command.values, Mapping)
            named = isinstance(self._command, NamedSql)
            text = TEXTS[self._command.name] if named else self._command.text
            answer = self._theirs.execute(text, self._command.values)
        try:
            self._command = self._steps.send(answer)
        except StopIteration as stop:
            self._value.append(stop.value)

    def until(self, name: str) -> Self:
        """Stand before the next command of this name."""
        while getattr(self._command, "name", "") != name:
            assert not self.ended, f"there is no {name}"
            self.step()
        return self

    def past(self, name: str) -> Self:
        """Stand behind the next command of this name."""
        self.until(name).step()
        return self

    def to_the_end(self) -> Self:
        """Execute all commands, and do not commit."""
        while not self.ended:
            self.step()
        return self

    def finish(self) -> T:
        """Execute all that is left, commit, and give the value."""
        self.to_the_end()
        self._connection.commit()
        return self._value[0]

    def meanwhile(self) -> Self:
        """Finish in a thread; go on when that has ended, or waits for somebody."""
        self._thread = Thread(target=self._run)
        self._thread.start()
        with psycopg.connect(self._connection.info.dsn, password=self._connection.info.password) as watching:
            while self._thread.is_alive():
                [waits] = watching.execute(
                    "SELECT cardinality(pg_blocking_pids(%s)) > 0", [self._connection.info.backend_pid]
                ).fetchone() or [False]
                if waits:
                    break
        return self

    def _run(self) -> None:
        try:
            self.finish()
        except Exception as error:
            self._error.append(error)
            self._connection.rollback()

    def result(self) -> T:
        """What has come of what was finished in a thread."""
        assert self._thread is not None
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive(), "it still waits"
        if self._error:
            raise self._error[0]
        return self._value[0]

    def abandon(self) -> None:
        """Roll back, if that was not done, and leave."""
        if self._thread is not None:
            self._thread.join(TIMEOUT)
        self._steps.close()
        self._connection.close()


@contextmanager
def stepping(address: str) -> Iterator[Any]:
    """Makes steppers, and leaves none behind."""
    made: list[Stepper[Any]] = []

    def step(op: Op[T], *, patience: int = 0) -> Stepper[T]:
        stepper = Stepper(address, op, patience=patience)
        made.append(stepper)
        return stepper

    try:
        yield step
    finally:
        for stepper in made:
            stepper.abandon()
