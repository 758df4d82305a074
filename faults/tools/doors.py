"""Hostile input through the Python door: many calls, one after the other, in a process of their own.

    python -m faults.tools.doors MODULE URL COUNT SEED

Each is refused in our own words, or stored. What came of them is printed as JSON.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct, field, json

from faults.evidence.records import Pen
from faults.stage import app_of
from faults.tools.nasty import Nasty
from shigoto import Call, JobHandle, Retry, Shigoto, ShigotoError
from shigoto.model.ids import uuid7

TASKS = ("echo", "echo_in_a_thread", "fail", "keep")
LONGEST_MESSAGE = 5_000
TOLD = 20

FILTERS = (
    "state",
    "queue",
    "task",
    "tag",
    "key",
    "tenant",
    "failure_kind",
    "worker",
    "error",
    "since",
    "args",
    "before",
    "limit",
)
OPTIONS = (
    "queue",
    "priority",
    "delay",
    "run_at",
    "expires",
    "key",
    "key_mode",
    "retry",
    "retries",
    "soft_timeout",
    "max_crashes",
    "tenant",
    "tags",
    "meta",
    "id",
    "on_error",
    "no_such_option",
)


class Tally(Struct):
    """What became of what was handed in; of crashes, which must not be, each kind with an example."""

    refused: int = 0
    accepted: int = 0
    crashes: int = 0
    examples: list[str] = field(default_factory=list)

    def crashed(self, what: str) -> None:
        """Something else than a refusal, or one that nobody can read."""
        self.crashes += 1
        if len(self.examples) < TOLD:
            self.examples.append(what)

    def add(self, other: "Tally") -> None:
        """Take over what another has counted."""
        self.refused += other.refused
        self.accepted += other.accepted
        self.crashes += other.crashes
        self.examples += other.examples[: TOLD - len(self.examples)]


class PythonDoor:
    """Calls of an app with whatever chance says."""

    def __init__(self, app: Shigoto, nasty: Nasty, pen: Pen) -> None:
        self.tally = Tally()
        self._app = app
        self._nasty = nasty
        self._pen = pen
        self._forms: tuple[Callable[[], object], ...] = (
            self._one,
            self._one,
            self._one_with_options,
            self._one_with_options,
            self._typed,
            self._several,
            self._by_name,
            self._find,
            self._act,
        )

    def knock(self) -> None:
        """One call."""
        form = self._nasty.random.choice(self._forms)
        try:
            form()
        except ShigotoError as error:
            self.tally.refused += 1
            if not 10 < len(str(error)) < LONGEST_MESSAGE:
                self.tally.crashed(
                    f"{form.__name__}: a message of {len(str(error))} letters: {str(error)[:200]}"
                )
        except Exception as error:
            self.tally.crashed(f"{form.__name__}: {_told(error)}")
        else:
            self.tally.accepted += 1

    def _task(self) -> Any:
        return self._app.tasks[self._nasty.random.choice(TASKS)]

    def _one(self) -> None:
        self._store(lambda id: self._task().using(id=id).call(value=self._nasty.value()))

    def _one_with_options(self) -> None:
        options = {name: self._option(name) for name in self._nasty.some(OPTIONS, 3)}
        given = options.setdefault("id", uuid7())
        self._store(lambda id: self._task().using(**options).call(value=1), given)

    def _typed(self) -> None:
        nasty = self._nasty
        arguments = {
            "number": nasty.of(1, 2),
            "at": nasty.of(None),
            "names": nasty.of([], ["a"], None),
        }
        if nasty.random.random() < 0.2:
            arguments[nasty.text()] = 1
        self._store(lambda id: self._app.tasks["typed"].using(id=id).call(**arguments))

    def _store(self, call: Callable[[Any], Call[Any]], id: Any = None) -> None:
        id = uuid7() if id is None else id
        made = call(id)
        self._pen.write("try", job=str(id))
        self._acknowledge(self._app.enqueue_many([made])[0])

    def _acknowledge(self, handle: JobHandle[Any]) -> None:
        if handle.enqueued == "inserted":
            self._pen.write("ok", job=str(handle.id))

    def _several(self) -> None:
        ids = [uuid7() for _ in range(self._nasty.random.randrange(5))]
        calls: list[Any] = [self._task().using(id=id).call(value=self._nasty.value(1)) for id in ids]
        if self._nasty.random.random() < 0.3:
            calls.append(self._nasty.scalar())
        for id in ids:
            self._pen.write("try", job=str(id))
        for handle in self._app.enqueue_many(calls):
            self._acknowledge(handle)

    def _by_name(self) -> None:
        nasty, id = self._nasty, uuid7()
        name = nasty.of(*TASKS, "typed", "never_heard_of")
        payload = nasty.value() if nasty.random.random() < 0.3 else {"value": nasty.value()}
        self._pen.write("try", job=str(id))
        handle = self._app.enqueue_by_name(name, payload, allow_unknown=nasty.random.random() < 0.5, id=id)
        self._acknowledge(handle)

    def _option(self, name: str) -> Any:
        nasty = self._nasty
        usual: dict[str, Callable[[], Any]] = {
            "priority": lambda: nasty.of(-32768, 32767, 32768),
            "delay": lambda: nasty.of(0, 0.5, -1, 1e12),
            "retry": lambda: nasty.of(Retry.never(), Retry.immediate(retries=1)),
            "retries": lambda: nasty.of(0, 1),
            "soft_timeout": lambda: nasty.of(5, 60),
            "max_crashes": lambda: nasty.of(None, 1, 3),
            "tags": lambda: nasty.of([nasty.text()], [nasty.scalar()], [nasty.text() for _ in range(30)]),
            "meta": lambda: nasty.of({}, {nasty.text(): nasty.value(2)}, nasty.value()),
            "key_mode": lambda: nasty.of("keep", "replace", "unsafe_dedupe"),
            "on_error": lambda: nasty.of("raise"),
        }
        return usual.get(name, nasty.scalar)()

    def _find(self) -> None:
        nasty = self._nasty
        filters = {name: self._filter(name) for name in nasty.some(FILTERS, 3)}
        text = nasty.text() if nasty.random.random() < 0.5 else ""
        look: Callable[..., object] = nasty.random.choice((self._app.find, self._app.count))
        look(text, **filters)

    def _filter(self, name: str) -> Any:
        nasty = self._nasty
        usual: dict[str, Callable[[], Any]] = {
            "state": lambda: nasty.of("failed", "all", "retrying"),
            "args": lambda: nasty.of({"value": nasty.scalar()}, {nasty.text(): 1}, {"a.b": nasty.text()}),
            "limit": lambda: nasty.of(1, 1_000, 1_001, 0),
            "error": lambda: nasty.of("x", nasty.text()),
        }
        return usual.get(name, nasty.scalar)()

    def _act(self) -> None:
        """On jobs that are not there, or only to see what would be done."""
        nasty, app = self._nasty, self._app
        deeds: tuple[Callable[[], object], ...] = (
            lambda: app.job(nasty.scalar()),
            lambda: app.cancel(nasty.text(), dry_run=True),
            lambda: app.clear(nasty.text(), dry_run=True),
            lambda: app.redrive(nasty.text(), dry_run=True),
            lambda: app.clear(dry_run=True, state=self._filter("state"), queue=nasty.text()),
            lambda: app.resume(nasty.scalar()),
        )
        nasty.random.choice(deeds)()


def _told(error: Exception) -> str:
    """What it is, and where it came from, whatever its words are worth."""
    trace, place = error.__traceback__, ""
    while trace is not None:
        place = f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    try:
        words = str(error)[:200]
    except Exception:
        words = "without words"
    return f"{type(error).__name__}: {words!r} ({place})"


def main() -> None:
    """Make so many calls, and say what came of them."""
    module, url, count, seed = sys.argv[1:]
    door = PythonDoor(app_of(module, url), Nasty(Random(seed)), Pen(Path(os.environ["SHIGOTO_LEDGER"])))
    for _ in range(int(count)):
        door.knock()
    sys.stdout.buffer.write(json.encode(door.tally))


if __name__ == "__main__":
    main()
