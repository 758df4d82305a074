"""Two operations on the same jobs, of which the first is held in the midst of its transaction.

The second is begun when the first has come to its n-th command, and the first goes on when the second has ended or
really waits: the server says so. If each then has what the other needs, they wait in a circle, and PostgreSQL throws
one of them out; the driver must begin that one again without a word to anybody.
"""

import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from msgspec import Struct, structs

from shigoto.engine.op import Op
from shigoto.engine.postgres import PostgresEngine
from shigoto.model.errors import JobError
from shigoto.model.ids import uuid7
from shigoto.model.job import JobSpec, Lease, State
from shigoto.model.schedule import Change, Firing, Schedule, TickEntry, TickOutcome
from shigoto.model.worker import Announcement, Death, Ending, Report, Settlement, SweepOrder, Want

ENDED_WITHIN = 30.0  # seconds: as long as the driver lets an operation take
LOOK = 0.002
HOUR = 3_600_000  # milliseconds


class Gate:
    """Where the first operation waits for the second, once."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def pass_through(self) -> None:
        """Wait here, unless somebody has before."""
        if not self.reached.is_set():
            self.reached.set()
            self.open.wait(ENDED_WITHIN)


def held(op: Op[Any], after: int, gate: Gate) -> Op[Any]:
    """The same in a transaction of its own, which waits at the gate after so many commands."""

    def start() -> Generator[Any, Any, Any]:
        inner = op.start()
        done = 0
        try:
            command = next(inner)
            while True:
                try:
                    answer = yield command
                except Exception as error:
                    command = inner.throw(error)
                else:
                    done += 1
                    if done == after:
                        gate.pass_through()
                    command = inner.send(answer)
        except StopIteration as stop:
            return stop.value
        finally:
            inner.close()

    return structs.replace(op, start=start, batch=None, hints=None)


class Session:
    """One operation in a thread of its own, and what became of it."""

    def __init__(self, engine: PostgresEngine, op: Op[Any]) -> None:
        self.error: BaseException | None = None
        self._work: Callable[[], Any] = lambda: engine.run(op)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(ENDED_WITHIN + 5)
        if self._thread.is_alive():
            self.error = TimeoutError("it does not come back")

    def _run(self) -> None:
        try:
            self._work()
        except JobError:
            pass  # what was asked for cannot be done any more, since the other was first
        except Exception as error:
            self.error = error


class Case(Struct, frozen=True, kw_only=True):
    """What was seen of one pair: whether the first came to this step, and whether the second had to wait."""

    reached: bool
    waited: bool
    errors: tuple[str, ...]


def meet(
    engines: tuple[PostgresEngine, PostgresEngine],
    ops: tuple[Op[Any], Op[Any]],
    step: int,
    waits: Callable[[], bool],
) -> Case:
    """Run both; `waits` tells whether the second session waits for a lock right now."""
    gate = Gate()
    first = Session(engines[0], held(ops[0], step, gate))
    while not (gate.reached.is_set() or first.ended):
        time.sleep(LOOK / 4)
    if not gate.reached.is_set():
        first.join()
        return Case(reached=False, waited=False, errors=_told(first))
    second = Session(engines[1], ops[1])
    until = time.monotonic() + ENDED_WITHIN / 3
    waited = False
    while not (second.ended or waited):
        waited = waits()
        if time.monotonic() > until:
            break
        time.sleep(LOOK)
    neither = not (waited or second.ended)
    gate.open.set()
    first.join()
    second.join()
    errors = _told(first, second)
    return Case(
        reached=True,
        waited=waited,
        errors=(*errors, "the second neither ended nor waited") if neither else errors,
    )


def _told(*sessions: Session) -> tuple[str, ...]:
    return tuple(f"{type(each.error).__name__}: {each.error}" for each in sessions if each.error is not None)


class Scene:
    """Jobs of every kind, each with a key, that two operations can quarrel about; and the worker that has some."""

    def __init__(self, engine: PostgresEngine, name: str) -> None:
        self.name = name
        self.worker, self.other = uuid7(), uuid7()
        self._engine = engine
        for worker in (self.worker, self.other):
            engine.run(engine.announce(announcement(worker, (name,))))
        begun = [self._spec(number) for number in range(8)]
        waiting = [self._spec(number, delay=number % 2) for number in range(8, 12)]
        engine.run(engine.enqueue_many(begun))
        leases = engine.run(engine.claim(self.worker, [self.want(len(begun))]))
        ends = [ended(lease, Ending.FAILED) for lease in leases[:2]]
        engine.run(
            engine.settle(self.worker, [*ends, *(ended(lease, Ending.COMPLETED) for lease in leases[2:4])])
        )
        self.leases = leases[4:]
        self.failed = [lease.id for lease in leases[:2]]
        stored = engine.run(engine.enqueue_many(waiting))
        self.ids = [lease.id for lease in leases] + [each.id for each in stored]
        self.numbers = [lease.number for lease in leases] + [each.number for each in stored]
        self.schedules = [
            Schedule(id=uuid7(), name=f"{name} {number}", definition="{}", decided_to=0, created_at=0)
            for number in range(4)
        ]
        engine.run(engine.tick([Change(schedule=each, seen=0) for each in self.schedules]))

    def want(self, limit: int) -> Want:
        return Want(tasks=(self.name,), queues=None, limit=limit)

    def _spec(self, number: int, **more: Any) -> JobSpec:
        return JobSpec(
            id=uuid7(),
            task=self.name,
            queue="default",
            payload="{}",
            key=f"{self.name} {number}",
            expires_in=HOUR,
            **more,
        )

    def specs(self) -> list[JobSpec]:
        """New jobs with the same keys, and one without."""
        replacing = [
            structs.replace(self._spec(number), key_mode="replace" if number % 3 else "keep")
            for number in range(12)
        ]
        return [*replacing, JobSpec(id=uuid7(), task=self.name, queue="default", payload="{}")]

    def changes(self, schedules: list[Schedule]) -> list[Change]:
        """One tick of each, whose job has a key that others have; the first makes room for itself."""
        return [
            Change(
                schedule=each,
                seen=1,
                firings=(self._firing(each, number),),
                cancel=tuple(self.ids[-2:]) if not number else (),
            )
            for number, each in enumerate(schedules)
        ]

    def _firing(self, schedule: Schedule, number: int) -> Firing:
        spec = structs.replace(self._spec(number * 3), id=schedule.job_id(1))
        return Firing(
            entry=TickEntry(at=1, outcome=TickOutcome.FIRED, decided_at=1, job=spec.id),
            spec=structs.replace(spec, key_mode="replace" if number % 2 else "keep"),
        )


def announcement(worker: Any, tasks: tuple[str, ...], lease: int = HOUR) -> Announcement:
    """A worker that can do everything."""
    return Announcement(
        id=worker, name="w", tasks=tasks, queues=None, slots=10, version="0", lease=lease, isolates=True
    )


def ended(lease: Lease, ending: Ending) -> Settlement:
    """How a run has ended."""
    return Settlement(
        number=lease.number, token=lease.token, queue=lease.queue, ending=ending, error="broken", delay=1
    )


Make = Callable[[Scene, PostgresEngine, Callable[[list[Any]], list[Any]]], Op[Any]]


def _settling(*endings: Ending) -> Make:
    return lambda scene, engine, order: engine.settle(
        scene.worker,
        [ended(lease, endings[at % len(endings)]) for at, lease in enumerate(order(scene.leases))],
    )


def _reports(scene: Scene, order: Callable[[list[Any]], list[Any]]) -> list[Report]:
    return [Report(number=each.number, token=each.token, progress=0.5) for each in order(scene.leases)]


def _names(scene: Scene) -> list[str]:
    return [each.name for each in scene.schedules]


# By name; each is given the order in which to name its jobs, as far as it names any.
ACTS: dict[str, Make] = {
    "claim": lambda scene, engine, order: engine.claim(scene.other, [scene.want(10)]),
    "beat": lambda scene, engine, order: engine.beat(scene.worker, []),
    "report": lambda scene, engine, order: engine.report(scene.worker, _reports(scene, order)),
    "complete": _settling(Ending.COMPLETED),
    "fail": _settling(Ending.FAILED, Ending.ERRORED),
    "release": _settling(Ending.RELEASED),
    "leave": lambda scene, engine, order: engine.leave(scene.worker),
    "report_dead": lambda scene, engine, order: engine.report_dead(
        scene.worker, [Death(number=lease.number, alone=True) for lease in scene.leases[:2]]
    ),
    "cancel": lambda scene, engine, order: engine.cancel(order(scene.ids)),
    "cancel by force": lambda scene, engine, order: engine.cancel(order(scene.ids), force=True),
    "sweep": lambda scene, engine, order: engine.sweep(SweepOrder(fence=(scene.worker,))),
    "prune": lambda scene, engine, order: engine.sweep(
        SweepOrder(keep_completed_for=0, keep_failed_for=0, keep_cancelled_for=0)
    ),
    "promote": lambda scene, engine, order: engine.promote(100),
    "retry": lambda scene, engine, order: engine.retry(order(scene.failed)),
    "delete": lambda scene, engine, order: engine.delete(order(scene.numbers), tuple(State)),
    "enqueue": lambda scene, engine, order: engine.enqueue_many(order(scene.specs())),
    "tick": lambda scene, engine, order: engine.tick(scene.changes(order(scene.schedules))),
    "declare": lambda scene, engine, order: engine.declare(order(_names(scene))),
    "forget": lambda scene, engine, order: engine.remove_schedules(order(_names(scene))),
}
